//! A keeper: has what a mount lives by while no daemon has it.
//!
//! It serves nobody and understands nothing of what it holds, so there is nothing in it that could fail with a daemon. A daemon
//! that ends without a word is dead, and what it had is kept for the next one, which the keeper starts if it was told how; a daemon
//! that says that the mount has ended is believed. A daemon that asks while another one serves is its heir: it is about to take the
//! mount over, and nobody else gets it meanwhile.
//!
//! ```text
//!            Keep                Closed                Take, or Keep
//! empty ───────────▶ served ───────────────▶ unserved ───────────────▶ served
//!                      │ Forget, Ended          │ nobody came in time
//!                      └────────────────────────┴──▶ let go
//! ```
//!
//! Plain, as [`crate::giving`]: what is held is of any type, and in a process, descriptors.

use std::time::{Duration, Instant};

use crate::restart::Restart;

/// How long a keeper waits for something to keep.
const IDLE_FOR: Duration = Duration::from_secs(30);
/// A daemon that served for so long is a good one: if it dies, the next one is started at once, and has all the time.
const GOOD_AFTER: Duration = Duration::from_secs(1);
/// Until the first one is started. The one that gave a mount away, and whose heir died, is back by then.
const FIRST_DELAY: Duration = Duration::from_millis(50);
/// Until a further one is, at most.
const MAX_DELAY: Duration = Duration::from_secs(2);
/// How long programs wait for a daemon that stays. After that it is better that they are told.
const PATIENCE: Duration = Duration::from_secs(300);
/// How a daemon ends whose command line, configuration or mountpoint is wrong: trying again does not help.
const FINAL_EXITS: [i32; 2] = [2, 3];

/// A connection.
pub(crate) type Peer = u64;

/// What happens, to a keeper of what is of type `D`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event<D> {
    /// A daemon gives what the mount lives by, in the place of what was held before, and says how it is started again. It serves.
    Keep(Peer, D, Option<Restart>),
    /// A daemon wants what is held: it serves from then on.
    Take(Peer),
    /// The daemon that serves has given the mount to its heir.
    Left(Peer),
    /// A daemon says that the mount has ended.
    Forget(Peer),
    /// A connection has ended.
    Closed(Peer),
    /// The kernel has ended the mount.
    Ended,
    /// The process that was started has ended, with this code if it was not killed; or could not be started.
    Exited(Option<i32>),
    /// The deadline that was told is here.
    Late,
}

/// What is to be done by a keeper of what is of type `D`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action<D> {
    /// Say that it is kept.
    Kept(Peer),
    /// Give copies of this.
    Give(Peer, D),
    /// Say that nothing is held.
    SayNothing(Peer),
    /// Say that another daemon serves.
    SayServed(Peer),
    /// Start a daemon.
    Start(Restart),
    /// Close what was held, and end.
    LetGo(Over),
}

/// Why there is nothing left to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// There never was.
    NeverBegan,
    /// A daemon says so, or the kernel.
    Ended,
    /// No daemon came that stays.
    Unserved,
}

/// A keeper of one mount.
#[derive(Clone, Debug)]
pub(crate) struct Keeper<D> {
    held: Option<(D, Option<Restart>)>,
    serving: Option<Peer>,
    heir: Option<Peer>,
    /// What an heir has given while the other one has not said yet that it does not serve any more: it may have taken the mount back.
    coming: Option<Coming<D>>,
    /// Since when the one that serves does.
    since: Option<Instant>,
    /// When the next daemon is to be started.
    start_at: Option<Instant>,
    /// Until when one must have come.
    until: Option<Instant>,
    /// Since when no good one served.
    failing_since: Option<Instant>,
    delay: Duration,
}

/// What an heir has given before it is known whether it serves.
#[derive(Clone, Debug)]
struct Coming<D> {
    heir: Peer,
    what: D,
    restart: Option<Restart>,
    /// When the heir died.
    died: Option<Instant>,
}

impl<D: Clone> Keeper<D> {
    /// A keeper of nothing yet.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            held: None,
            serving: None,
            heir: None,
            coming: None,
            since: None,
            start_at: None,
            until: Some(now + IDLE_FOR),
            failing_since: None,
            delay: FIRST_DELAY,
        }
    }

    /// What it holds.
    pub(crate) fn held(&self) -> Option<&D> {
        self.held.as_ref().map(|(what, _)| what)
    }

    /// When [`Event::Late`] is to come.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.start_at.into_iter().chain(self.until).min()
    }

    /// Takes an event.
    pub(crate) fn on(&mut self, event: Event<D>, now: Instant) -> Option<Action<D>> {
        // The other one would have said that it had left the mount: it had taken it back from an heir that died then.
        self.coming.take_if(|coming| coming.died.is_some_and(|died| died + PATIENCE <= now));
        match event {
            Event::Keep(peer, what, restart) => {
                if self.serving.is_some_and(|serving| serving != peer) && *self.heir.get_or_insert(peer) == peer {
                    self.coming = Some(Coming { heir: peer, what, restart, died: None });
                } else {
                    // It serves: whoever else was about to does not.
                    self.coming = None;
                    self.held = Some((what, restart));
                    self.serves(peer, now);
                }
                Some(Action::Kept(peer))
            }
            Event::Take(peer) => Some(self.take(peer, now)),
            Event::Left(peer) if self.serving == Some(peer) => self.left(now),
            // The mount was taken back from it.
            Event::Left(peer) => {
                self.coming = self.coming.take().filter(|coming| coming.heir != peer);
                self.heir = self.heir.filter(|heir| *heir != peer);
                None
            }
            Event::Forget(peer) if self.serving.is_some_and(|serving| serving != peer) => Some(Action::SayServed(peer)),
            Event::Forget(_) | Event::Ended => Some(Action::LetGo(Over::Ended)),
            Event::Closed(peer) => self.closed(peer, now),
            Event::Exited(code) => self.exited(code, now),
            Event::Late => self.late(now),
        }
    }

    fn serves(&mut self, peer: Peer, now: Instant) {
        if self.serving != Some(peer) {
            self.since = Some(now);
        }
        self.serving = Some(peer);
        self.heir = self.heir.filter(|heir| *heir != peer);
        (self.start_at, self.until) = (None, None);
    }

    fn take(&mut self, peer: Peer, now: Instant) -> Action<D> {
        let Some(what) = self.held.as_ref().map(|(what, _)| what.clone()) else { return Action::SayNothing(peer) };
        if self.serving.is_some() || self.heir.is_some_and(|heir| heir != peer) {
            self.heir.get_or_insert(peer);
            return Action::SayServed(peer);
        }
        self.serves(peer, now);
        Action::Give(peer, what)
    }

    /// The one that serves does not any more.
    fn left(&mut self, now: Instant) -> Option<Action<D>> {
        let Some(coming) = self.coming.take() else {
            let Some(heir) = self.heir else { return Some(Action::LetGo(Over::Ended)) };
            self.serves(heir, now);
            return None;
        };
        self.held = Some((coming.what, coming.restart));
        if self.heir == Some(coming.heir) {
            self.serves(coming.heir, now);
            return None;
        }
        // It has served, and died since.
        self.serving = None;
        if self.heir.is_none() { self.unserved(now) } else { None }
    }

    fn closed(&mut self, peer: Peer, now: Instant) -> Option<Action<D>> {
        if self.serving == Some(peer)
            && let Some(coming) = self.coming.take()
        {
            if self.heir != Some(coming.heir) {
                // Both have died, and neither has said which of them served last: what is held may be older than what the kernel knows.
                return Some(Action::LetGo(Over::Unserved));
            }
            self.held = Some((coming.what, coming.restart));
            self.serves(coming.heir, now);
            return None;
        }
        if let Some(coming) = self.coming.as_mut().filter(|coming| coming.heir == peer) {
            coming.died = Some(now);
        }
        let had_part = self.serving == Some(peer) || self.heir == Some(peer);
        self.serving = self.serving.filter(|serving| *serving != peer);
        self.heir = self.heir.filter(|heir| *heir != peer);
        let is_unserved = had_part && self.held.is_some() && self.serving.is_none() && self.heir.is_none();
        if is_unserved { self.unserved(now) } else { None }
    }

    fn exited(&mut self, code: Option<i32>, now: Instant) -> Option<Action<D>> {
        if self.held.is_none() || self.serving.is_some() || self.heir.is_some() {
            return None;
        }
        if code.is_some_and(|code| FINAL_EXITS.contains(&code)) {
            return Some(Action::LetGo(Over::Unserved));
        }
        // It is known already of one that had taken the mount.
        if self.start_at.is_some() { None } else { self.unserved(now) }
    }

    /// A daemon has died that served, or that was to.
    fn unserved(&mut self, now: Instant) -> Option<Action<D>> {
        let was_good = self.since.take().is_some_and(|since| now.saturating_duration_since(since) >= GOOD_AFTER);
        if was_good {
            (self.failing_since, self.delay) = (None, FIRST_DELAY);
        }
        let until = *self.failing_since.get_or_insert(now) + PATIENCE;
        if now >= until {
            return Some(Action::LetGo(Over::Unserved));
        }
        let is_started = self.held.as_ref().is_some_and(|(_, restart)| restart.is_some());
        self.start_at = is_started.then(|| now + self.delay);
        self.until = Some(until);
        self.delay = (self.delay * 2).min(MAX_DELAY);
        None
    }

    fn late(&mut self, now: Instant) -> Option<Action<D>> {
        if self.until.is_some_and(|until| until <= now) {
            let over = if self.held.is_some() { Over::Unserved } else { Over::NeverBegan };
            return Some(Action::LetGo(over));
        }
        self.start_at.take_if(|at| *at <= now)?;
        let (_, restart) = self.held.as_ref()?;
        restart.clone().map(Action::Start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    struct Kept {
        keeper: Keeper<u32>,
        now: Instant,
    }

    impl Kept {
        fn new() -> Self {
            let now = Instant::now();
            Self { keeper: Keeper::new(now), now }
        }

        fn on(&mut self, event: Event<u32>) -> Option<Action<u32>> {
            self.keeper.on(event, self.now)
        }

        /// Until something is to be done; after how long it is.
        fn wait(&mut self) -> (Duration, Action<u32>) {
            let before = self.now;
            loop {
                self.now = self.keeper.deadline().expect("something to wait for");
                if let Some(action) = self.on(Event::Late) {
                    return (self.now - before, action);
                }
            }
        }
    }

    fn restart() -> Restart {
        Restart::of_this_process(None).unwrap()
    }

    #[test]
    fn what_a_dead_daemon_had_is_given_to_the_next_one_and_to_one_at_a_time() {
        let mut kept = Kept::new();
        assert_eq!(kept.on(Event::Take(1)), Some(Action::SayNothing(1)), "there is nothing yet");
        assert_eq!(kept.on(Event::Keep(1, 7, None)), Some(Action::Kept(1)));
        assert_eq!(kept.on(Event::Take(2)), Some(Action::SayServed(2)), "its daemon lives");
        assert_eq!(kept.on(Event::Closed(2)), None);
        assert_eq!(kept.on(Event::Closed(1)), None);
        assert_eq!(kept.on(Event::Take(3)), Some(Action::Give(3, 7)));
        assert_eq!(kept.on(Event::Take(4)), Some(Action::SayServed(4)), "that one serves now");
        assert_eq!(kept.on(Event::Closed(4)), None);
        assert_eq!(kept.on(Event::Closed(3)), None);
        assert_eq!(kept.on(Event::Take(5)), Some(Action::Give(5, 7)), "it died, too");
        assert_eq!(kept.on(Event::Keep(5, 8, None)), Some(Action::Kept(5)));
        assert_eq!(kept.on(Event::Closed(5)), None);
        assert_eq!(kept.on(Event::Take(6)), Some(Action::Give(6, 8)), "what it gave last");
    }

    #[test]
    fn a_mount_that_has_ended_is_let_go_of_whoever_says_so() {
        for end in [Event::Forget(1), Event::Ended] {
            let mut kept = Kept::new();
            kept.on(Event::Keep(1, 7, None));
            assert_eq!(kept.on(Event::Forget(2)), Some(Action::SayServed(2)), "but it must have a say in it");
            assert_eq!(kept.on(end), Some(Action::LetGo(Over::Ended)));
        }
        let mut kept = Kept::new();
        kept.on(Event::Keep(1, 7, Some(restart())));
        kept.on(Event::Closed(1));
        assert_eq!(kept.on(Event::Forget(2)), Some(Action::LetGo(Over::Ended)), "nobody serves it");
    }

    #[test]
    fn the_next_daemon_is_started_at_once_and_then_at_longer_and_longer_intervals_until_it_is_given_up() {
        let mut kept = Kept::new();
        kept.on(Event::Keep(1, 7, Some(restart())));
        kept.now += GOOD_AFTER;
        kept.on(Event::Closed(1));
        let begun = kept.now;
        let mut delays = Vec::new();
        let ended = loop {
            match kept.wait() {
                (after, Action::Start(_)) => delays.push(after),
                (_, action) => break action,
            }
            assert_eq!(kept.on(Event::Exited(Some(1))), None);
        };
        assert_eq!(ended, Action::LetGo(Over::Unserved));
        assert_eq!(kept.now - begun, PATIENCE);
        assert_eq!(delays[..8], [50, 100, 200, 400, 800, 1600, 2000, 2000].map(|millis| millis * MS));
        assert!(delays.iter().all(|delay| *delay <= MAX_DELAY));
    }

    #[test]
    fn one_that_served_for_a_while_makes_good_for_those_that_died_before() {
        let mut kept = Kept::new();
        kept.on(Event::Keep(1, 7, Some(restart())));
        for peer in 1..1000 {
            // Killed again and again, at any point.
            kept.now += if peer % 5 == 0 { GOOD_AFTER } else { MS };
            assert_eq!(kept.on(Event::Closed(peer)), None);
            assert_eq!(kept.on(Event::Exited(None)), None, "its end is seen twice");
            let (after, action) = kept.wait();
            assert_eq!(action, Action::Start(restart()));
            assert!(after <= 2 * 16 * FIRST_DELAY, "{after:?}");
            assert_eq!(kept.on(Event::Take(peer + 1)), Some(Action::Give(peer + 1, 7)));
        }
    }

    #[test]
    fn one_whose_configuration_is_wrong_is_not_tried_again() {
        for code in FINAL_EXITS {
            let mut kept = Kept::new();
            kept.on(Event::Keep(1, 7, Some(restart())));
            kept.on(Event::Closed(1));
            kept.wait();
            // It finds out when it has taken the mount.
            kept.on(Event::Take(2));
            assert_eq!(kept.on(Event::Closed(2)), None);
            assert_eq!(kept.on(Event::Exited(Some(code))), Some(Action::LetGo(Over::Unserved)));
        }
    }

    #[test]
    fn who_takes_a_mount_over_is_waited_for_and_nobody_else_gets_it() {
        let mut kept = Kept::new();
        kept.on(Event::Keep(1, 7, Some(restart())));
        kept.on(Event::Take(2));
        // In the order "release first", the old daemon is gone before the new one gives what it has.
        assert_eq!(kept.on(Event::Left(1)), None);
        assert_eq!(kept.on(Event::Closed(1)), None);
        assert_eq!(kept.keeper.deadline(), None, "none is started beside it");
        assert_eq!(kept.on(Event::Take(3)), Some(Action::SayServed(3)));
        kept.on(Event::Closed(3));
        assert_eq!(kept.on(Event::Keep(2, 8, Some(restart()))), Some(Action::Kept(2)));
        // In the other one, after.
        kept.on(Event::Take(4));
        kept.on(Event::Keep(4, 9, Some(restart())));
        assert_eq!((kept.on(Event::Left(2)), kept.on(Event::Closed(2))), (None, None));
        assert_eq!(kept.on(Event::Take(5)), Some(Action::SayServed(5)), "the new one serves");
    }

    #[test]
    fn an_heir_that_dies_leaves_the_mount_to_the_old_daemon_or_to_the_keeper() {
        let mut kept = Kept::new();
        kept.on(Event::Keep(1, 7, Some(restart())));
        kept.on(Event::Take(2));
        kept.on(Event::Keep(2, 8, Some(restart())));
        assert_eq!(kept.on(Event::Closed(2)), None);
        assert_eq!(kept.keeper.deadline(), None, "the old one is not gone, and none is started beside it");
        // It serves on.
        assert_eq!(kept.on(Event::Keep(1, 7, Some(restart()))), Some(Action::Kept(1)));
        assert_eq!(kept.keeper.deadline(), None);
        kept.on(Event::Take(3));
        kept.on(Event::Closed(1));
        assert_eq!(kept.keeper.deadline(), None, "it may have the mount by now");
        assert_eq!(kept.on(Event::Take(3)), Some(Action::Give(3, 7)), "it has not, and asks again");
        kept.on(Event::Closed(3));
        assert!(matches!(kept.wait(), (_, Action::Start(_))), "it was to be the last one");
    }

    #[test]
    fn an_heir_from_which_the_mount_was_taken_back_is_followed_by_nobody_whether_it_says_so_or_dies() {
        for end in [Event::Left(2), Event::Closed(2)] {
            let mut kept = Kept::new();
            kept.on(Event::Keep(1, 7, Some(restart())));
            kept.on(Event::Take(2));
            // The old one serves again, and the heir was stopped, and goes on.
            kept.on(Event::Keep(1, 7, Some(restart())));
            assert_eq!(kept.on(Event::Keep(2, 8, Some(restart()))), Some(Action::Kept(2)));
            assert_eq!(kept.on(end), None);
            assert_eq!(kept.keeper.deadline(), None, "the old one serves");
            assert_eq!(kept.keeper.held(), Some(&7));
            // It does so for long, and then dies, too.
            kept.now += PATIENCE;
            assert_eq!(kept.on(Event::Closed(1)), None);
            assert!(matches!(kept.wait(), (_, Action::Start(_))));
            assert_eq!(kept.on(Event::Take(3)), Some(Action::Give(3, 7)));
        }
    }

    #[test]
    fn an_heir_that_has_served_and_died_before_the_old_daemon_said_so_is_followed_by_the_next() {
        let mut kept = Kept::new();
        kept.on(Event::Keep(1, 7, Some(restart())));
        kept.on(Event::Take(2));
        kept.on(Event::Keep(2, 8, Some(restart())));
        kept.on(Event::Closed(2));
        assert_eq!(kept.on(Event::Left(1)), None);
        assert!(matches!(kept.wait(), (_, Action::Start(_))));
        assert_eq!(kept.on(Event::Take(3)), Some(Action::Give(3, 8)), "what it had");
    }

    #[test]
    fn where_both_die_and_it_is_not_known_who_served_last_the_mount_ends() {
        let mut kept = Kept::new();
        kept.on(Event::Keep(1, 7, Some(restart())));
        kept.on(Event::Take(2));
        kept.on(Event::Keep(2, 8, Some(restart())));
        kept.on(Event::Closed(2));
        assert_eq!(kept.on(Event::Closed(1)), Some(Action::LetGo(Over::Unserved)));
        // One that dies before its heir has its mount served on.
        let mut kept = Kept::new();
        kept.on(Event::Keep(1, 7, Some(restart())));
        kept.on(Event::Take(2));
        kept.on(Event::Keep(2, 8, Some(restart())));
        assert_eq!((kept.on(Event::Closed(1)), kept.keeper.held()), (None, Some(&8)));
        assert_eq!(kept.keeper.deadline(), None);
    }

    #[test]
    fn who_leaves_a_mount_to_somebody_who_knows_no_keeper_has_it_forgotten() {
        let mut kept = Kept::new();
        kept.on(Event::Keep(1, 7, Some(restart())));
        assert_eq!(kept.on(Event::Left(1)), Some(Action::LetGo(Over::Ended)));
    }

    #[test]
    fn where_somebody_else_starts_the_next_daemon_it_is_waited_for_as_long() {
        let mut kept = Kept::new();
        kept.on(Event::Keep(1, 7, None));
        kept.on(Event::Closed(1));
        assert_eq!(kept.wait(), (PATIENCE, Action::LetGo(Over::Unserved)));
    }

    #[test]
    fn a_keeper_that_is_given_nothing_ends() {
        let mut kept = Kept::new();
        kept.on(Event::Take(1));
        kept.on(Event::Closed(1));
        assert_eq!(kept.wait(), (IDLE_FOR, Action::LetGo(Over::NeverBegan)));
    }
}
