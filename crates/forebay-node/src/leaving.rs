//! A process that is told to end: whether it unmounts, or leaves its mount to whoever has it until the next process comes.
//!
//! ```text
//!        auto            there is one      nobody writes, or too late       nothing is under way     nobody writes still
//! begin ─────▶ Asking ─────▶ Finding ─────▶ Waiting ───▶ (Asking again) ───▶ Draining ───▶ Drained ───▶ Keeping ─▶ Left
//!    leave ───────────────────▲   │          │  ▲               │               │             │            │
//!    unmount                      │          │  └─ ServeOn: somebody has opened a file since ─┤            │
//!                                 └──────────┴── Unmount ───────┘               └─── Resume ──┴────────────┘
//! ```
//!
//! Until it drains, it serves. What drains and is not left after all serves again before it is unmounted: programs that close what
//! they have must get an answer. Plain: it takes events and the time, and returns what is to be done.

use std::time::{Duration, Instant};

use forebay_config::OnStop;

use crate::unit_job::UnitJob;

/// How long files may be open for writing: as long as readers have when a mount is unmounted.
const WRITERS_WITHIN: Duration = Duration::from_secs(10);
/// How often it is looked whether they still are.
const LOOKED_AT_EVERY: Duration = Duration::from_millis(50);
/// How long requests that were taken may take to be answered, while nobody serves: as in a hand-over.
const DRAIN_WITHIN: Duration = Duration::from_secs(5);

/// What happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The job that the service manager has for this process, as asked by [`Action::AskManager`].
    Manager(Option<UnitJob>),
    /// Somebody is there who would have the mount, as asked by [`Action::FindKeeper`].
    Found,
    /// There is nobody, because of this.
    NotFound(String),
    /// Whether files are open for writing, as asked by [`Action::LookForWriters`] or [`Action::ServeOn`].
    Writers(bool),
    /// Nothing is under way, as asked by [`Action::Drain`].
    Drained,
    /// That is not so, because of this.
    NotDrained(String),
    /// The mount is kept, as asked by [`Action::Keep`].
    Kept,
    /// It is not, because of this.
    NotKept(String),
    /// This process is to end at once.
    AtOnce,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Ask the service manager what it is about to do.
    AskManager,
    /// Find somebody who has the mount after this process has ended.
    FindKeeper,
    /// Say whether files are open for writing, at that time.
    LookForWriters(Instant),
    /// Stop serving, and answer what was taken.
    Drain(Duration),
    /// Serve again, and say whether files are open for writing at that time.
    ServeOn(Instant),
    /// Give state and connection to the keeper.
    Keep,
    /// Serve again, and then unmount.
    Resume(String),
    /// Unmount; why, if that is not what was to be.
    Unmount(Option<String>),
    /// End: the mount is left.
    Leave,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Asking,
    Finding,
    Waiting {
        until: Instant,
    },
    AskingAgain {
        until: Instant,
    },
    Draining {
        until: Instant,
    },
    /// Nothing is under way. Somebody may have opened a file for writing just before.
    Drained {
        until: Instant,
    },
    Keeping,
    Over,
}

/// A process that is told to end.
#[derive(Clone, Debug)]
pub(crate) struct Leaving {
    on_stop: OnStop,
    state: State,
}

impl Leaving {
    /// One whose configuration says this; and what is to be done first.
    pub(crate) fn begin(on_stop: OnStop) -> (Self, Action) {
        let (state, action) = match on_stop {
            OnStop::Auto => (State::Asking, Action::AskManager),
            OnStop::Leave => (State::Finding, Action::FindKeeper),
            OnStop::Unmount => (State::Over, Action::Unmount(None)),
        };
        (Self { on_stop, state }, action)
    }

    /// Takes an event.
    pub(crate) fn on(&mut self, event: Event, now: Instant) -> Action {
        let (state, action) = match (self.state, event) {
            (State::Asking, Event::Manager(Some(UnitJob::Start))) => (State::Finding, Action::FindKeeper),
            (State::AskingAgain { until }, Event::Manager(Some(UnitJob::Start))) => drain(until),
            (State::Asking | State::AskingAgain { .. }, Event::Manager(_)) => (State::Over, Action::Unmount(None)),
            (State::Finding, Event::Found) => {
                (State::Waiting { until: now + WRITERS_WITHIN }, Action::LookForWriters(now))
            }
            (State::Finding, Event::NotFound(why)) => {
                // Not everybody has one: who has said nothing is told nothing.
                let why = (self.on_stop == OnStop::Leave).then_some(why);
                (State::Over, Action::Unmount(why))
            }
            (State::Waiting { until }, Event::Writers(true)) if now < until => {
                (State::Waiting { until }, Action::LookForWriters(next_look(until, now)))
            }
            (State::Waiting { until }, Event::Writers(_)) => self.waited(until, now),
            (State::Draining { until }, Event::Drained) => (State::Drained { until }, Action::LookForWriters(now)),
            (State::Drained { until }, Event::Writers(true)) if now < until => {
                (State::Waiting { until }, Action::ServeOn(next_look(until, now)))
            }
            (State::Drained { .. }, Event::Writers(_)) => (State::Keeping, Action::Keep),
            (State::Draining { .. }, Event::NotDrained(why)) | (State::Keeping, Event::NotKept(why)) => {
                (State::Over, Action::Resume(why))
            }
            (State::Draining { .. } | State::Drained { .. } | State::Keeping, Event::AtOnce) => {
                (State::Over, Action::Resume("it is to end at once".to_owned()))
            }
            (State::Keeping, Event::Kept) => (State::Over, Action::Leave),
            // To end at once, and what is told of another state: unmounted, as ever.
            _ => (State::Over, Action::Unmount(None)),
        };
        self.state = state;
        action
    }

    /// Nobody writes any more, or nobody waits for that any longer. Meanwhile the manager may have been told otherwise.
    fn waited(&self, until: Instant, now: Instant) -> (State, Action) {
        let has_waited = now + WRITERS_WITHIN > until + LOOKED_AT_EVERY;
        if self.on_stop == OnStop::Auto && has_waited {
            (State::AskingAgain { until }, Action::AskManager)
        } else {
            drain(until)
        }
    }
}

fn drain(until: Instant) -> (State, Action) {
    (State::Draining { until }, Action::Drain(DRAIN_WITHIN))
}

fn next_look(until: Instant, now: Instant) -> Instant {
    (now + LOOKED_AT_EVERY).min(until)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Event = Event::Manager(Some(UnitJob::Start));

    /// What follows one after the other, from the beginning on.
    fn played(on_stop: OnStop, events: &[Event]) -> Vec<Action> {
        let now = Instant::now();
        let (mut leaving, first) = Leaving::begin(on_stop);
        let later = events.iter().map(|event| leaving.on(event.clone(), now));
        let later: Vec<Action> = later.collect();
        // The time is none of what is compared.
        let plain = |action| if let Action::LookForWriters(_) = action { Action::LookForWriters(now) } else { action };
        std::iter::once(first).chain(later).map(plain).collect()
    }

    #[test]
    fn under_a_restart_the_mount_is_left_once_nothing_is_under_way() {
        let none = Event::Writers(false);
        let events = [START, Event::Found, none.clone(), Event::Drained, none, Event::Kept];
        let done = played(OnStop::Auto, &events);
        assert_eq!(done[..2], [Action::AskManager, Action::FindKeeper]);
        assert!(matches!(done[2], Action::LookForWriters(_)));
        assert_eq!(done[3], Action::Drain(DRAIN_WITHIN));
        assert!(matches!(done[4], Action::LookForWriters(_)), "nobody can open one any more");
        assert_eq!(done[5..], [Action::Keep, Action::Leave]);
    }

    #[test]
    fn who_opens_a_file_for_writing_just_before_nobody_serves_has_the_rest_of_the_time_too() {
        let start = Instant::now();
        let until = start + WRITERS_WITHIN;
        let (mut leaving, _) = Leaving::begin(OnStop::Leave);
        leaving.on(Event::Found, start);
        let mut now = start;
        while now < until {
            assert_eq!(leaving.on(Event::Writers(false), now), Action::Drain(DRAIN_WITHIN));
            assert_eq!(leaving.on(Event::Drained, now), Action::LookForWriters(now));
            let action = leaving.on(Event::Writers(true), now);
            let Action::ServeOn(at) = action else { panic!("{action:?}") };
            assert!(at > now && at <= until);
            now = at;
        }
        assert_eq!(leaving.on(Event::Writers(true), now), Action::Drain(DRAIN_WITHIN));
        assert_eq!(leaving.on(Event::Drained, now), Action::LookForWriters(now));
        assert_eq!(leaving.on(Event::Writers(true), now), Action::Keep, "what they have open is lost to them then");
    }

    #[test]
    fn without_a_restart_that_is_known_of_it_is_unmounted() {
        for job in [None, Some(UnitJob::Stop), Some(UnitJob::Other)] {
            let done = played(OnStop::Auto, &[Event::Manager(job)]);
            assert_eq!(done, [Action::AskManager, Action::Unmount(None)], "{job:?}");
        }
    }

    #[test]
    fn whoever_says_so_has_it_left_or_unmounted_without_a_question() {
        assert_eq!(played(OnStop::Unmount, &[]), [Action::Unmount(None)]);
        let none = Event::Writers(false);
        let done = played(OnStop::Leave, &[Event::Found, none.clone(), Event::Drained, none, Event::Kept]);
        assert_eq!(done.first(), Some(&Action::FindKeeper));
        assert_eq!(done.last(), Some(&Action::Leave));
        assert!(!done.contains(&Action::AskManager));
    }

    #[test]
    fn where_nobody_has_it_it_is_unmounted_and_who_asked_for_that_is_told() {
        let none = || Event::NotFound("nobody".to_owned());
        assert_eq!(played(OnStop::Leave, &[none()]).last(), Some(&Action::Unmount(Some("nobody".to_owned()))));
        assert_eq!(played(OnStop::Auto, &[START, none()]).last(), Some(&Action::Unmount(None)));
    }

    #[test]
    fn writers_are_waited_for_and_not_for_ever_and_then_the_manager_is_asked_again() {
        for (on_stop, again) in [(OnStop::Auto, true), (OnStop::Leave, false)] {
            let start = Instant::now();
            let (mut leaving, _) = Leaving::begin(on_stop);
            if on_stop == OnStop::Auto {
                leaving.on(START, start);
            }
            let mut action = leaving.on(Event::Found, start);
            let mut now = start;
            while let Action::LookForWriters(at) = action {
                assert!(at >= now && at <= start + WRITERS_WITHIN);
                now = at;
                action = leaving.on(Event::Writers(true), now);
            }
            assert_eq!(now, start + WRITERS_WITHIN);
            if again {
                assert_eq!(action, Action::AskManager);
                let mut stopped = leaving.clone();
                assert_eq!(stopped.on(Event::Manager(Some(UnitJob::Stop)), now), Action::Unmount(None));
                action = leaving.on(START, now);
            }
            assert_eq!(action, Action::Drain(DRAIN_WITHIN), "what they have open is lost to them then");
        }
    }

    #[test]
    fn what_is_not_left_after_all_serves_again_before_it_is_unmounted() {
        let why = || "why".to_owned();
        let drains = [Event::Found, Event::Writers(false)];
        let not_kept = vec![Event::Drained, Event::Writers(false), Event::NotKept(why())];
        for rest in [vec![Event::NotDrained(why())], not_kept] {
            let done = played(OnStop::Leave, &[&drains[..], &rest[..]].concat());
            assert_eq!(done.last(), Some(&Action::Resume(why())));
        }
        for before in [vec![], vec![Event::Drained]] {
            let done = played(OnStop::Leave, &[&drains[..], &before[..], &[Event::AtOnce]].concat());
            assert!(matches!(done.last(), Some(Action::Resume(_))), "{done:?}");
        }
    }

    #[test]
    fn who_is_to_end_at_once_before_it_drains_unmounts() {
        assert_eq!(played(OnStop::Auto, &[Event::AtOnce]).last(), Some(&Action::Unmount(None)));
        for before in [vec![], vec![Event::Found]] {
            let done = played(OnStop::Leave, &[&before[..], &[Event::AtOnce]].concat());
            assert_eq!(done.last(), Some(&Action::Unmount(None)));
        }
    }
}
