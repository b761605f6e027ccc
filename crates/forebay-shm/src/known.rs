//! The sessions whose clients proved who they are, and how these are told to end.

use std::collections::HashMap;

use forebay_identity::{Identity, Peer, Standing};
use forebay_locks::Mutex;
use tokio_util::sync::CancellationToken;

/// All of them, by number.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<HashMap<u64, KnownSession>>);

#[derive(Debug)]
struct KnownSession {
    peer: Peer,
    told: CancellationToken,
    standing: Standing,
}

impl Known {
    /// The client of `session` proved to be `peer`. `told` is cancelled when the session is to end.
    pub(crate) fn enter(&self, session: u64, peer: Peer, told: &CancellationToken) {
        let known = KnownSession { peer, told: told.clone(), standing: Standing::Good };
        self.0.lock().insert(session, known);
    }

    /// It is no more.
    pub(crate) fn leave(&self, session: u64) {
        self.0.lock().remove(&session);
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// Tells those to end whose clients are not in good standing any more, or may not see all of the memory.
    pub(crate) fn look_over(&self, standing: impl Fn(&Peer) -> Standing, sees_all: impl Fn(&Peer) -> bool) {
        for known in self.0.lock().values_mut().filter(|known| !known.told.is_cancelled()) {
            known.standing = standing(&known.peer);
            if known.standing != Standing::Good || !sees_all(&known.peer) {
                known.told.cancel();
            }
        }
    }

    /// What was thought of the client of `session` when that was last looked at, and who it is.
    pub(crate) fn standing(&self, session: u64) -> Option<(Standing, Identity)> {
        self.0.lock().get(&session).map(|known| (known.standing, known.peer.identity.clone()))
    }
}
