//! Who asks, as far as a transport knows.
//!
//! A transport whose peers prove who they are hands each request to the service with one [`Caller`] for each
//! connection; the others know nothing of who is at the other end, and say so. What a service lets callers do is its
//! own affair. A caller only remembers, for as long as its connection lasts, what a service has worked out of what it
//! may read, so that a hit costs one bit (`rights.rs`).

#[cfg(test)]
mod model;
mod rights;

use std::fmt;
use std::sync::Arc;

use forebay_types::Role;

use self::rights::Rights;

/// What `rights` needs of threads.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU64, Ordering};
}

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
    rights: Rights,
}

impl Caller {
    /// Somebody who has proved to have this role, and this name among those of its role. `identity` is the whole of it,
    /// for people.
    #[must_use]
    pub fn proved(role: Role, name: &str, identity: &str) -> Self {
        let (name, identity) = (name.into(), identity.into());
        Self::Proved(Arc::new(ProvedCaller { role, name, identity, rights: Rights::default() }))
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

    /// Whether it may read what has this number in a service's table of this `epoch`. `None`: that was not worked out
    /// yet ([`Self::work_out`]). Each table has an epoch of its own, from 1 on, and all of them are of one service.
    #[inline]
    #[must_use]
    pub fn may_read(&self, number: u32, epoch: u32) -> Option<bool> {
        self.rights.has(number, epoch)
    }

    /// The same where it is not known yet: `lets_read` says what that table says of a number, and is asked about some
    /// others, too. It is remembered, except for numbers from 256 on: memory has a bound.
    #[cold]
    pub fn work_out(&self, number: u32, epoch: u32, lets_read: impl Fn(u32) -> bool) -> bool {
        self.rights.learn(number, epoch, lets_read)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Numbers below this one are remembered.
    const REMEMBERED: u32 = 256;

    #[test]
    fn what_may_be_read_is_worked_out_once_for_each_state_of_the_table() {
        let Caller::Proved(caller) = Caller::proved(Role::Reader, "team-a", "spiffe://d/forebay/c/reader/team-a")
        else {
            panic!("it has proved who it is")
        };
        assert_eq!(caller.name(), "team-a");
        // Whether it may, and whether that had to be worked out.
        let asked = |number, epoch, numbers: &[u32]| {
            let known = caller.may_read(number, epoch);
            let may_read = known.unwrap_or_else(|| caller.work_out(number, epoch, |number| numbers.contains(&number)));
            (may_read, known.is_none())
        };
        assert_eq!(asked(1, 1, &[1, 7]), (true, true));
        assert_eq!(asked(7, 1, &[]), (true, false));
        assert_eq!(asked(2, 1, &[2]), (false, false));
        assert_eq!(asked(70, 1, &[1]), (false, true), "those far from it are worked out apart");
        assert_eq!(asked(1, 2, &[2]), (false, true), "it has changed");
        assert_eq!(asked(2, 2, &[]), (true, false));
        for _ in 0..2 {
            assert_eq!(asked(REMEMBERED, 2, &[REMEMBERED]), (true, true), "memory has a bound");
            assert_eq!(asked(u32::MAX, 2, &[]), (false, true));
        }
    }

    #[test]
    fn when_epochs_have_stopped_to_count_nothing_is_remembered() {
        let rights = Rights::default();
        assert!(rights.learn(1, u32::MAX, |_| true));
        assert_eq!(rights.has(1, u32::MAX), None);
        assert!(!rights.learn(1, u32::MAX, |_| false), "the table has changed");
        assert!(rights.learn(1, u32::MAX - 1, |_| true));
        assert_eq!((rights.has(1, u32::MAX - 1), rights.has(1, u32::MAX)), (Some(true), None));
    }

    /// What the table of an epoch says: in no order, and of each epoch something else.
    fn says(number: u32, epoch: u32) -> bool {
        (number.wrapping_mul(0x9e37_79b1) >> (4 * epoch)) & 1 == 1
    }

    proptest! {
        /// Threads may work out what an earlier epoch says after others have gone on to a later one.
        #[test]
        fn in_whatever_order_it_was_worked_out_each_epoch_says_what_its_table_says(
            steps in prop::collection::vec((0..2 * REMEMBERED, 1..5u32), 1..20)
        ) {
            let rights = Rights::default();
            for (number, epoch) in steps {
                prop_assert_eq!(rights.learn(number, epoch, |number| says(number, epoch)), says(number, epoch));
                let remembered = (number < REMEMBERED).then(|| says(number, epoch));
                prop_assert_eq!(rights.has(number, epoch), remembered);
                for (number, epoch) in (0..2 * REMEMBERED).flat_map(|number| (1..6).map(move |epoch| (number, epoch))) {
                    prop_assert!(rights.has(number, epoch).is_none_or(|known| known == says(number, epoch)));
                }
            }
        }
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
