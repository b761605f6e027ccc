//! Whom a worker tells of locations, and how it takes back what it told: one connection's state, in virtual time.
//!
//! Whoever reads by address can read all of the slab. So a peer that may not see all of it any more, and everybody when
//! a mount was removed, has to lose the keys. A key that ends while the peer's card reads by it costs the peer its
//! connection. So it is asked to forget them first, and has a moment to say that it did; then they end, whatever it
//! says.

use std::time::{Duration, Instant};

/// How long a peer may take to say that it has forgotten.
const FORGETS_WITHIN: Duration = Duration::from_secs(1);

/// What is known of the peer of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// It said that it can use locations.
    pub speaks: bool,
    /// It may see all that is cached.
    pub sees_all: bool,
    /// Its reads are recorded, and those by location would not be.
    pub is_recorded: bool,
}

/// Why a peer is told no location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It cannot use any.
    Peer,
    /// It may not see all that is cached.
    Rights,
    /// Its reads are recorded.
    Recorded,
    /// It is to forget what it was told.
    Forgetting,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Tell the peer to forget all locations, and all keys.
    TellToForget,
    /// End the keys of this connection's windows. Those that are bound later are others.
    EndKeys,
}

/// Locations and keys of one connection.
#[derive(Debug, Default)]
pub struct Giving {
    state: State,
    /// Other keys than those before were given out since.
    ends: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// The peer has no key.
    #[default]
    Closed,
    /// It has some.
    Open,
    /// It was asked to forget them. Until then it may say that it has.
    Forgetting(Instant),
}

impl Giving {
    /// A read of this peer was a hit: whether it may be told where. It may have keys from here on.
    ///
    /// # Errors
    /// [`Why`] not.
    pub fn may_tell(&mut self, peer: Peer) -> Result<(), Why> {
        let refusal = match (self.state, peer) {
            (_, Peer { speaks: false, .. }) => Some(Why::Peer),
            (_, Peer { sees_all: false, .. }) => Some(Why::Rights),
            (_, Peer { is_recorded: true, .. }) => Some(Why::Recorded),
            (State::Forgetting(_), _) => Some(Why::Forgetting),
            (State::Closed | State::Open, _) => None,
        };
        if let Some(why) = refusal {
            return Err(why);
        }
        self.state = State::Open;
        Ok(())
    }

    /// To be asked now and then, and when rights have changed: a peer that may be told nothing any more has to forget.
    pub fn look(&mut self, peer: Peer, now: Instant) -> Option<Action> {
        match self.state {
            State::Closed => None,
            State::Open if peer.sees_all && !peer.is_recorded => None,
            State::Open => self.withdraw(now),
            State::Forgetting(until) => (now >= until).then(|| self.end()),
        }
    }

    /// What the peer was told is not for anybody any more: a mount was removed.
    pub fn withdraw(&mut self, now: Instant) -> Option<Action> {
        if self.state != State::Open {
            return None;
        }
        self.state = State::Forgetting(now + FORGETS_WITHIN);
        Some(Action::TellToForget)
    }

    /// The peer says that it has forgotten, and reads nothing. `None` where it was not asked: who says so unasked
    /// breaks nothing.
    pub fn forgotten(&mut self) -> Option<Action> {
        matches!(self.state, State::Forgetting(_)).then(|| self.end())
    }

    /// When [`Giving::look`] has something to do, if nothing changes before.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        match self.state {
            State::Forgetting(until) => Some(until),
            State::Closed | State::Open => None,
        }
    }

    /// How often keys were ended.
    #[must_use]
    pub fn ends(&self) -> u64 {
        self.ends
    }

    fn end(&mut self) -> Action {
        self.state = State::Closed;
        self.ends += 1;
        Action::EndKeys
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SEES: Peer = Peer { speaks: true, sees_all: true, is_recorded: false };

    #[test]
    fn who_may_not_see_all_or_is_recorded_or_cannot_use_it_is_told_nothing() {
        let mut giving = Giving::default();
        for (peer, why) in [
            (Peer { speaks: false, ..SEES }, Why::Peer),
            (Peer { sees_all: false, ..SEES }, Why::Rights),
            (Peer { is_recorded: true, ..SEES }, Why::Recorded),
        ] {
            assert_eq!(giving.may_tell(peer), Err(why));
        }
        assert_eq!(giving.look(Peer { sees_all: false, ..SEES }, Instant::now()), None, "it has no key");
        assert_eq!(giving.may_tell(SEES), Ok(()));
    }

    #[test]
    fn who_loses_its_rights_is_asked_to_forget_and_then_loses_its_keys() {
        let (mut giving, now) = (Giving::default(), Instant::now());
        let confined = Peer { sees_all: false, ..SEES };
        giving.may_tell(SEES).unwrap();
        assert_eq!(giving.look(SEES, now), None);
        assert_eq!(giving.look(confined, now), Some(Action::TellToForget));
        assert_eq!(giving.look(confined, now + FORGETS_WITHIN / 2), None);
        assert_eq!(giving.may_tell(SEES), Err(Why::Forgetting), "also if it may again");
        assert_eq!(giving.forgotten(), Some(Action::EndKeys));
        assert_eq!((giving.forgotten(), giving.due()), (None, None));
        giving.may_tell(SEES).unwrap();
        assert_eq!(giving.withdraw(now), Some(Action::TellToForget));
        assert_eq!((giving.withdraw(now), giving.due()), (None, Some(now + FORGETS_WITHIN)));
        // One that says nothing.
        assert_eq!(giving.look(SEES, now + FORGETS_WITHIN), Some(Action::EndKeys));
        assert_eq!(giving.ends(), 2);
    }

    proptest! {
        #[test]
        fn nobody_keeps_a_key_for_longer_than_a_second_after_it_may_not_have_it(
            steps in prop::collection::vec((0u8..5, 0u64..700), 1..200)
        ) {
            let (mut giving, mut now) = (Giving::default(), Instant::now());
            let mut peer = SEES;
            // Whether the peer has a key; since when it should not.
            let (mut has_key, mut wrong_since): (bool, Option<Instant>) = (false, None);
            for (step, wait) in steps {
                now += Duration::from_millis(wait);
                let action = match step {
                    0 => {
                        if giving.may_tell(peer).is_ok() {
                            prop_assert!(peer.sees_all, "it was told where bytes are that it may not see");
                            has_key = true;
                        }
                        None
                    }
                    1 => {
                        peer.sees_all = !peer.sees_all;
                        giving.look(peer, now)
                    }
                    2 => giving.forgotten(),
                    3 => giving.withdraw(now),
                    _ => giving.look(peer, now),
                };
                match action {
                    Some(Action::EndKeys) => (has_key, wrong_since) = (false, None),
                    Some(Action::TellToForget) => wrong_since = Some(now),
                    None => {}
                }
                prop_assert!(has_key || wrong_since.is_none());
                prop_assert_eq!(giving.due(), wrong_since.map(|since| since + FORGETS_WITHIN));
                if has_key && !peer.sees_all {
                    prop_assert!(wrong_since.is_some(), "nobody told it to forget");
                }
                // The shell looks when it is due.
                if giving.due().is_some_and(|due| now >= due) {
                    prop_assert_eq!(giving.look(peer, now), Some(Action::EndKeys));
                    (has_key, wrong_since) = (false, None);
                }
            }
        }
    }
}
