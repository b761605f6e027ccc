//! Who asks, as far as a transport knows.
//!
//! A transport whose peers prove who they are hands each request to the service with one [`Caller`] for each
//! connection; the others know nothing of who is at the other end, and say so. What a service lets callers do is its
//! own affair. A caller only remembers, for as long as its connection lasts, what a service has worked out of what it
//! may read, so that a hit costs one bit.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use forebay_types::{BitSet, Role};

/// Who asks.
#[derive(Clone, Debug, Default)]
pub enum Caller {
    /// Somebody who has proved nothing, or of whom the transport cannot know.
    #[default]
    Unproved,
    /// A part of the service's own process.
    Local,
    /// Somebody who has proved who it is.
    Proved(Arc<ProvedCaller>),
}

/// Somebody who has proved who it is.
#[derive(Debug)]
pub struct ProvedCaller {
    role: Role,
    name: Box<str>,
    identity: Box<str>,
    readable: ArcSwapOption<Readable>,
}

/// What somebody may read, by the numbers of a service's table.
#[derive(Debug)]
struct Readable {
    /// Of which state of the table.
    generation: u64,
    numbers: BitSet,
}

impl Caller {
    /// Somebody who has proved to have this role, and this name among those of its role. `identity` is the whole of it,
    /// for people.
    #[must_use]
    pub fn proved(role: Role, name: &str, identity: &str) -> Self {
        let (name, identity) = (name.into(), identity.into());
        Self::Proved(Arc::new(ProvedCaller { role, name, identity, readable: ArcSwapOption::empty() }))
    }

    /// The role that it has proved to have.
    #[must_use]
    pub fn role(&self) -> Option<Role> {
        match self {
            Self::Proved(caller) => Some(caller.role),
            Self::Unproved | Self::Local => None,
        }
    }

    /// The whole of the identity that it has proved to have.
    #[must_use]
    pub fn identity(&self) -> Option<&str> {
        match self {
            Self::Proved(caller) => Some(&caller.identity),
            Self::Unproved | Self::Local => None,
        }
    }

    /// Whether it is a worker, or in one: another cache of the same bytes.
    #[must_use]
    pub fn is_worker(&self) -> bool {
        matches!(self, Self::Local) || self.role() == Some(Role::Worker)
    }

    /// Whether it is a part of the cluster or commands it, so that no access list is about it.
    #[must_use]
    pub fn is_of_cluster(&self) -> bool {
        self.is_worker() || matches!(self.role(), Some(Role::Admin | Role::Coordinator))
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unproved => f.write_str("somebody who proved no identity"),
            Self::Local => f.write_str("this process"),
            Self::Proved(caller) => write!(f, "`{}`", caller.identity),
        }
    }
}

impl ProvedCaller {
    /// Its name among those of its role.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it may read what has this number in a table of this `generation`: what `work_out` says of all numbers,
    /// which is asked when the table has changed since. All of it is about the tables of one service.
    #[inline]
    pub fn may_read(&self, number: u32, generation: u64, work_out: impl FnOnce(&Self) -> BitSet) -> bool {
        if let Some(known) = &*self.readable.load()
            && known.generation == generation
        {
            return known.numbers.contains(number);
        }
        self.work_out(number, generation, work_out)
    }

    #[cold]
    fn work_out(&self, number: u32, generation: u64, work_out: impl FnOnce(&Self) -> BitSet) -> bool {
        let numbers = work_out(self);
        let may_read = numbers.contains(number);
        self.readable.store(Some(Arc::new(Readable { generation, numbers })));
        may_read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_read_is_worked_out_once_for_each_state_of_the_table() {
        let Caller::Proved(caller) = Caller::proved(Role::Reader, "team-a", "spiffe://d/forebay/c/reader/team-a")
        else {
            panic!("it has proved who it is")
        };
        let asked = |number, generation, numbers: &[u32]| {
            let mut worked_out = false;
            let may_read = caller.may_read(number, generation, |caller| {
                worked_out = true;
                assert_eq!(caller.name(), "team-a");
                numbers.iter().copied().collect()
            });
            (may_read, worked_out)
        };
        assert_eq!(asked(1, 0, &[1, 70]), (true, true));
        assert_eq!(asked(70, 0, &[]), (true, false));
        assert_eq!(asked(2, 0, &[2]), (false, false));
        assert_eq!(asked(1, 1, &[2]), (false, true), "it has changed");
        assert_eq!(asked(2, 1, &[]), (true, false));
    }

    #[test]
    fn who_is_of_the_cluster_is_no_client() {
        let of = |role: Role| Caller::proved(role, "x", "spiffe://d/forebay/c/x/x");
        for role in [Role::Admin, Role::Coordinator, Role::Worker] {
            assert!(of(role).is_of_cluster(), "{role}");
        }
        for role in [Role::Reader, Role::Writer, Role::Metrics] {
            assert!(!of(role).is_of_cluster() && !of(role).is_worker(), "{role}");
        }
        assert!(Caller::Local.is_worker() && !Caller::Unproved.is_of_cluster() && !of(Role::Admin).is_worker());
        assert_eq!(of(Role::Reader).to_string(), "`spiffe://d/forebay/c/x/x`");
        assert_eq!(of(Role::Reader).identity(), Some("spiffe://d/forebay/c/x/x"));
        assert_eq!((Caller::Local.identity(), Caller::Unproved.identity()), (None, None));
    }
}
