//! Who proved who it is may be denied later, or its certificate may end: what becomes of its connection.

use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use forebay_identity::Standing;
use forebay_transport::wire::CONNECTION_ID;
use forebay_types::{Failure, FailureKind};

use super::{Peer, Peers};
use crate::peer_link::PeerLink;
use crate::security::denied;

/// How long the requests of a connection are looked at that was told to come again: those that were sent before it heard of it.
const GRACE: Duration = Duration::from_secs(1);

impl<L: PeerLink> Peers<L> {
    /// Sends those away who are denied by now, and has those come again whose certificate has expired: what they have asked is
    /// answered. To be called now and then.
    pub(crate) fn look_over(&self) {
        let Some(security) = &self.options.security else { return };
        let (now, clock) = (Instant::now(), SystemTime::now());
        let peers: Vec<_> = self.peers.borrow().values().map(Rc::clone).collect();
        for peer in peers.iter().filter(|peer| !peer.denied.get()) {
            let Some(proved) = peer.proved.get() else { continue };
            match security.standing(proved, clock) {
                Standing::Good => {}
                Standing::Expired => self.have_come_again(peer, now),
                Standing::Denied => {
                    peer.denied.set(true);
                    self.dismiss_as(peer, FailureKind::PermissionDenied, denied(proved.identity()));
                }
            }
        }
    }

    /// The client is told, makes another connection, and closes this one when it has all its answers.
    fn have_come_again(&self, peer: &Peer<L>, now: Instant) {
        let Some(told) = peer.told.get() else {
            peer.told.set(Some(now));
            let message = "its certificate has expired; what it asked is answered, and it may come again";
            return self.reply(peer, CONNECTION_ID, Err(Failure::new(FailureKind::NotReady, message)));
        };
        let waited = now.duration_since(told);
        if waited >= GRACE {
            peer.dismissed.set(true);
        }
        let is_idle = peer.asked.get() == 0 && peer.endpoint.operations() == 0;
        if peer.dismissed.get() && (is_idle || waited >= self.options.stall_timeout) {
            peer.done.notify_one();
        }
    }
}
