//! Who is at the other end: proved over TCP, and shown here by a pass ([`forebay_identity::Passes`]).
//!
//! Whom UCX has accepted it believes in much: what a message says of its connection, and more below that (docs/RDMA.md). So who
//! was not admitted is not accepted; and whoever was may read over RDMA, whatever its role. Changes go over TCP, where nobody can
//! slip one into the connection of another.
//!
//! What a server decides is pure: times are handed in.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use forebay_identity::{Identity, LiveIdentity, Pass, Passes, Peer, Standing};
use forebay_locks::Mutex;
use forebay_transport::{CallError, Caller, Flags, LinkError, Op, Request, Transport};
use forebay_types::{Failure, FailureKind};
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

/// Whom a server accepts.
#[derive(Clone, Debug)]
pub struct ServerSecurity {
    /// Who is denied by now.
    pub live: Arc<LiveIdentity>,
    /// Those who were admitted over TCP and have not come yet.
    pub passes: Arc<Mutex<Passes>>,
    /// Accept also those who show nothing, and let them do everything: for the time in which a cluster is being changed.
    pub accepts_plain: bool,
}

/// How a client is admitted.
#[derive(Clone)]
pub struct ClientSecurity {
    tcp: Arc<dyn Transport>,
    runtime: Handle,
}

/// Whom a connection is from.
#[derive(Debug)]
pub(crate) struct Proved {
    pub(crate) pass: Pass,
    /// The same as `peer`, as its requests say it.
    pub(crate) caller: Caller,
    peer: Peer,
}

impl ServerSecurity {
    /// Whether a connection with this client id is to be accepted. To be asked once for each.
    pub(crate) fn lets_in(&self, client_id: Option<NonZeroU64>, now: Instant) -> bool {
        match client_id {
            Some(client_id) => self.passes.lock().arrive(client_id.get(), now),
            None => self.accepts_plain,
        }
    }

    /// Whom a connection that was let in is from, as the tag of its hello shows; it may be denied by now
    /// ([`ServerSecurity::takes_in`]). `None`: it need show nothing.
    ///
    /// # Errors
    /// Why it may not stay.
    pub(crate) fn identify(
        &self,
        client_id: Option<NonZeroU64>,
        tag: u64,
        now: Instant,
    ) -> Result<Option<Proved>, String> {
        let Some(client_id) = client_id else { return Ok(None) };
        let redeemed = self.passes.lock().redeem(client_id.get(), tag, now);
        let (pass, peer) = redeemed.ok_or("it shows no pass that waits to be used")?;
        let identity = &peer.identity;
        let caller = Caller::proved(identity.role(), identity.name(), &identity.to_string());
        Ok(Some(Proved { pass, caller, peer }))
    }

    /// Whether who was admitted may come in still.
    ///
    /// # Errors
    /// Why it may not.
    pub(crate) fn takes_in(&self, proved: &Proved, now: SystemTime) -> Result<(), String> {
        match self.standing(proved, now) {
            Standing::Denied => Err(denied(proved.identity())),
            // Whose certificate has expired is told to come again, as all of those are.
            Standing::Good | Standing::Expired => Ok(()),
        }
    }

    /// Whether it may stay.
    pub(crate) fn standing(&self, proved: &Proved, now: SystemTime) -> Standing {
        self.live.standing(&proved.peer, now)
    }
}

impl Proved {
    pub(crate) fn identity(&self) -> &Identity {
        &self.peer.identity
    }

    /// Why it may not ask for `op` with `flags` here, if that is so.
    pub(crate) fn refusal(&self, op: Op, flags: Flags) -> Option<Failure> {
        op.refusal(flags, self.peer.identity.role()).or_else(|| {
            let message = || format!("nobody may ask for `{}` over RDMA; ask over TCP", op.name());
            (!only_reads(op)).then(|| Failure::new(FailureKind::PermissionDenied, message()))
        })
    }
}

/// Why somebody is sent away.
pub(crate) fn denied(identity: &Identity) -> String {
    format!("`{identity}` is denied; take it out of the worker's `security.denied_file` if it may come back")
}

/// Whether nothing is other than before when `op` was answered, but for what is cached.
const fn only_reads(op: Op) -> bool {
    match op {
        Op::Ping | Op::Paths | Op::Read | Op::Fill | Op::Stat | Op::List | Op::Coverage | Op::StatRead | Op::Part => {
            true
        }
        Op::Change | Op::Upload | Op::Free | Op::Refresh | Op::Adopt | Op::Stats | Op::Admit => false,
    }
}

impl ClientSecurity {
    /// Asks for passes over `tcp`, a link to the same worker on which both ends have proved who they are, on the runtime of the
    /// caller.
    #[must_use]
    pub fn over(tcp: Arc<dyn Transport>) -> Self {
        Self { tcp, runtime: Handle::current() }
    }

    /// A pass for one connection with this client id, to `peer`.
    pub(crate) async fn pass(&self, client_id: NonZeroU64, peer: &str, deadline: Duration) -> Result<Pass, LinkError> {
        let body = Bytes::copy_from_slice(&client_id.get().to_le_bytes());
        let request = Request::on_path(Op::Admit, body, deadline);
        let tcp = Arc::clone(&self.tcp);
        // A connection that is made for it serves others, too, and not on this thread.
        let asked = AbortOnDropHandle::new(self.runtime.spawn(async move { tcp.call(request, None).await }));
        let refused = |reason: String| LinkError::Refused { peer: peer.to_owned(), reason };
        match asked.await {
            Ok(Ok(reply)) => {
                Pass::decode(&reply.body).ok_or_else(|| refused("what it gave over TCP is no pass".to_owned()))
            }
            Ok(Err(CallError::Link(error))) => Err(error),
            Ok(Err(CallError::Service(failure))) => Err(refused(failure.message().to_owned())),
            // Its runtime has ended.
            Err(ended) => Err(LinkError::Connect { peer: peer.to_owned(), reason: ended.to_string() }),
        }
    }
}

impl fmt::Debug for ClientSecurity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientSecurity").field("tcp", &self.tcp.peer()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use forebay_identity::Scope;
    use forebay_types::{Permission, Role};

    use super::*;

    #[test]
    fn whoever_it_is_reads_over_rdma_and_changes_nothing() {
        for role in Role::ALL {
            let identity = Scope::new("example.org", "prod").unwrap().identity(role, "somebody").unwrap();
            let peer = Peer { identity, until: SystemTime::UNIX_EPOCH, authority: None };
            let proved = Proved { pass: Pass { client: 1, server: 2 }, caller: Caller::default(), peer };
            for op in (0..=u8::MAX).filter_map(Op::from_wire) {
                let permission = op.permission(Flags::default());
                let is_allowed = proved.refusal(op, Flags::default()).is_none();
                let expected = only_reads(op) && permission.is_none_or(|permission| role.may(permission));
                assert_eq!(is_allowed, expected, "{role} {op:?}");
                assert!(!is_allowed || permission.is_none_or(|it| it == Permission::Read), "{role} {op:?}");
            }
        }
    }
}
