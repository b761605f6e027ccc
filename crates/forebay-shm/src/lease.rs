//! What a client may look at, for as long as it looks.
//!
//! A [`Lease`] goes with the views of one reply, and ends with the last of them. It holds the session's socket: as long as there is
//! a view, the worker sees that this end is open, whatever has become of the session otherwise.
//!
//! [`Releases`] decides when the worker is told what has ended. Pure. A reader that goes on reads again at once: its next request
//! takes them along. When there are [`ENOUGH`] they do not wait for that, and never for longer than [`SOON`].

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::connection::Connection;
use crate::wire::MAX_RELEASES;

/// How long a release may wait for company.
pub(crate) const SOON: Duration = Duration::from_millis(1);
/// How many do not wait.
const ENOUGH: usize = 8;

/// The right to look at the bytes of one reply.
pub(crate) struct Lease {
    connection: Arc<Connection>,
    id: u64,
}

impl Lease {
    pub(crate) fn new(connection: Arc<Connection>, id: u64) -> Self {
        Self { connection, id }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.connection.release(self.id);
    }
}

/// Some that are to be told in one packet.
pub(crate) type Ids = SmallVec<[u64; ENOUGH]>;

/// What is to be done about a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// It is taken along.
    Nothing,
    /// The session's task has to look in a while.
    Watch,
    /// The time has come.
    Send,
}

/// What has ended, and the worker was not told of.
#[derive(Debug, Default)]
pub(crate) struct Releases {
    ids: Ids,
    /// The session's task will look soon.
    watched: bool,
}

impl Releases {
    /// Adds one.
    pub(crate) fn add(&mut self, id: u64) -> Then {
        self.ids.push(id);
        if self.ids.len() >= ENOUGH {
            return Then::Send;
        }
        if std::mem::replace(&mut self.watched, true) { Then::Nothing } else { Then::Watch }
    }

    /// Those that go into the next packet.
    pub(crate) fn take(&mut self) -> Ids {
        if self.ids.len() <= MAX_RELEASES {
            return std::mem::take(&mut self.ids);
        }
        self.ids.drain(..MAX_RELEASES).collect()
    }

    /// The session's task will look soon.
    pub(crate) fn watch(&mut self) {
        self.watched = true;
    }

    /// Whether the session's task has to look soon.
    pub(crate) fn is_watched(&self) -> bool {
        self.watched
    }

    /// The look: the releases that go now. The next one that is added asks for a look again.
    pub(crate) fn look(&mut self) -> Ids {
        self.watched = false;
        self.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_waits_for_company_but_is_looked_for_and_many_do_not_wait() {
        let mut releases = Releases::default();
        assert_eq!(releases.add(1), Then::Watch);
        assert!((2..8).all(|id| releases.add(id) == Then::Nothing));
        assert_eq!(releases.add(8), Then::Send);
        assert_eq!(releases.take().len(), 8);
        assert_eq!(releases.add(9), Then::Nothing);
        assert_eq!(releases.look()[..], [9]);
        assert_eq!(releases.add(10), Then::Watch);
        assert!(releases.is_watched() && releases.look()[..] == [10] && !releases.is_watched());
        releases.watch();
        assert_eq!(releases.add(11), Then::Nothing);
    }

    #[test]
    fn no_packet_has_more_than_it_may_and_none_is_lost() {
        let mut releases = Releases::default();
        (0..100).for_each(|id| _ = releases.add(id));
        let first = releases.take();
        assert_eq!(first.len(), MAX_RELEASES);
        let all: Vec<u64> = first.into_iter().chain(releases.take()).collect();
        assert!(all == (0..100).collect::<Vec<_>>() && releases.take().is_empty());
    }
}
