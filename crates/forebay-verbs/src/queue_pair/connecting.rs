//! How a queue pair is connected.
//!
//! librdmacm brings a pair that its id has from state to state by what the kernel's connection manager says, and leaves no say in it.
//! Where the path is to be another than that ([`PathOptions`]), the id is told of no pair, only of its number, and the same changes are
//! made here, with what was asked for: before the connection is accepted at one end, and after that at the other one.

use std::ffi::{c_int, c_uint};

use forebay_verbs_sys as sys;

use super::QueuePair;
use crate::error::{Error, by_errno, by_result};
use crate::requests::{Handshake, PathOptions, Reading, parameters};

/// Attributes of RoCE, which the kernel asks for over InfiniBand, too, and the card refuses (librdmacm, `ucma_modify_qp_rtr`).
const OF_ROCE: c_int = 0x00e0_0000;

impl QueuePair {
    /// Connects to the peer, to which the way is known. What follows is [`EventKind::Established`](crate::EventKind::Established); or,
    /// where the path is chosen, [`EventKind::Accepted`](crate::EventKind::Accepted), after which [`QueuePair::establish`] is to be called.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn connect(&self, handshake: Handshake<'_>) -> Result<(), Error> {
        let mut param = parameters(handshake);
        if handshake.path.is_chosen() {
            self.take_over(&mut param)?;
        }
        let connect = self.id.channel.library.cm.rdma_connect;
        // SAFETY: the id is alive, and so is what the parameters name.
        by_errno("connect", unsafe { connect(self.id.id, &raw mut param) })
    }

    /// Makes the connection that the peer has accepted: of one whose path is chosen.
    ///
    /// # Errors
    /// [`Error`]: there is none.
    pub fn establish(&self, path: PathOptions) -> Result<(), Error> {
        self.change_states(path, None)?;
        // SAFETY: the id is alive, and has no pair.
        by_errno("establish a connection", unsafe { (paths()?.rdma_establish)(self.id.id) })
    }

    /// Accepts the connection that somebody wants.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn accept(&self, handshake: Handshake<'_>) -> Result<(), Error> {
        let mut param = parameters(handshake);
        if handshake.path.is_chosen() {
            self.take_over(&mut param)?;
            self.change_states(handshake.path, Some(handshake.reading))?;
        }
        let accept = self.id.channel.library.cm.rdma_accept;
        // SAFETY: the id is alive, and so is what the parameters name.
        by_errno("accept a connection", unsafe { accept(self.id.id, &raw mut param) })?;
        self.id.answers.set(false);
        Ok(())
    }

    /// From here on the library knows of the pair by its number alone, and leaves its states to us.
    fn take_over(&self, param: &mut sys::rdma_conn_param) -> Result<(), Error> {
        self.registration.domain().device().check_path()?;
        param.qp_num = self.number();
        let id = self.id.id;
        // SAFETY: the id is alive and ours; the pair lives on, and is ended by us.
        unsafe { (*id).qp = std::ptr::null_mut() };
        Ok(())
    }

    /// Brings the pair into the state in which it receives and sends. `reading` is of the end that accepts: who connects was told by
    /// the peer how many reads may be under way.
    fn change_states(&self, path: PathOptions, reading: Option<Reading>) -> Result<(), Error> {
        let device = self.registration.domain().device();
        let most_if = |is_wanted: bool, most: u8| if is_wanted { most.min(device.max_reads) } else { 0 };
        for state in [sys::IBV_QPS_INIT, sys::IBV_QPS_RTR, sys::IBV_QPS_RTS] {
            let mut change = sys::ibv_qp_attr::to_state(state);
            let mut mask: c_int = 0;
            let init = paths()?.rdma_init_qp_attr;
            // SAFETY: the id is alive, and there are places for the answers.
            let result = unsafe { init(self.id.id, &raw mut change, &raw mut mask) };
            by_errno("ask rdma_cm for the way to the peer", result)?;
            match (state, reading) {
                (sys::IBV_QPS_RTR, _) => {
                    // SAFETY: the id is alive.
                    if device.is_infiniband(unsafe { (*self.id.id).port_num }) {
                        mask &= !OF_ROCE;
                    }
                    apply(path, &mut change);
                    if let Some(reading) = reading {
                        change.max_dest_rd_atomic = most_if(reading == Reading::Theirs, change.max_dest_rd_atomic);
                    }
                }
                (sys::IBV_QPS_RTS, Some(reading)) => {
                    change.max_rd_atomic = most_if(reading == Reading::Ours, change.max_rd_atomic);
                }
                _ => {}
            }
            let modify = self.id.channel.library.verbs.ibv_modify_qp;
            // SAFETY: the pair is alive, and so is the change.
            let result = unsafe { modify(self.pair.as_ptr(), &raw mut change, mask) };
            by_result("bring a queue pair into its next state", result)?;
        }
        Ok(())
    }
}

fn paths() -> Result<&'static sys::RdmacmPaths, Error> {
    let missing = |reason: &str| Error::Library { library: sys::CM_SONAME, reason: reason.to_owned() };
    sys::load_cm_paths().map_err(missing)
}

/// Changes what the connection manager chose into what was asked for.
fn apply(path: PathOptions, change: &mut sys::ibv_qp_attr) {
    if let Some(level) = path.service_level {
        change.ah_attr.sl = level;
    }
    if let Some(most) = path.mtu {
        change.path_mtu = change.path_mtu.min(mtu_number(most));
    }
}

/// `enum ibv_mtu` of a packet that has so many bytes: 1 is 256, 5 is 4096.
fn mtu_number(bytes: u16) -> c_uint {
    u32::from(bytes.clamp(256, 4096)).ilog2() - 7
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_of_a_path_is_changed_and_nothing_is_raised() {
        assert_eq!([0, 256, 512, 1024, 2048, 4096, u16::MAX].map(mtu_number), [1, 1, 2, 3, 4, 5, 5]);
        let chosen = |path| {
            let mut change = sys::ibv_qp_attr::to_state(sys::IBV_QPS_RTR);
            change.path_mtu = 3;
            change.ah_attr.sl = 1;
            apply(path, &mut change);
            (change.path_mtu, change.ah_attr.sl)
        };
        assert_eq!(chosen(PathOptions::default()), (3, 1));
        assert_eq!(chosen(PathOptions { mtu: Some(512), service_level: Some(5) }), (2, 5));
        assert_eq!(
            chosen(PathOptions { mtu: Some(4096), service_level: Some(0) }),
            (3, 0),
            "no larger than the way takes"
        );
        assert!(!PathOptions::default().is_chosen());
        assert!(PathOptions { mtu: Some(512), ..PathOptions::default() }.is_chosen());
    }
}
