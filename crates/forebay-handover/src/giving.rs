//! The old process: when it stops serving, when it begins again, and when it is done.
//!
//! ```text
//! Listening ─Hello─▶ Waiting ─no writers─▶ Draining ─▶ Offered ─Holding─▶ Given ─Serving─▶ Releasing ─▶ Ended
//!      ▲                │                     │           │                │ order "serve first"
//!      └────────────────┴──────── refused, closed, too late: it serves (on) ┘
//!
//! in the order "release first":                    … Given ─told─▶ Releasing ─▶ Starting ─Serving─▶ Ended
//!                                                                                   └─closed─▶ rescued: Ended
//! ```
//!
//! It stops serving with [`Action::Drain`] and begins again with [`Action::Resume`]. Once the new process was told that the mount is
//! its own, it may serve: so from then on only the end of the connection, before it says that it serves, makes this one
//! resume. One that neither says so nor ends, as when it was stopped, is waited for until a deadline; then the mount is *taken back*:
//! this process says so, and hears no more but what was said until then. What the new one says after that fails there, and then it
//! does not serve ([`crate::taking`]).
//!
//! In the order "release first" this process has nothing left to serve with when the new one begins to start. It keeps state and
//! connection until that serves, and if it fails, leaves them to a keeper: who has this process started once more. Plain: it takes
//! events and the time, and returns what is to be done.

use std::time::{Duration, Instant};

use crate::identity::Identity;
use crate::message::{Ask, Hello, MAX_NAMES, Order, Refusal, Say, check_format};

/// How long requests that were taken may take to be answered, while nobody serves.
pub(crate) const DRAIN_WITHIN: Duration = Duration::from_secs(5);
/// How long the new process may take to understand what it was given.
pub(crate) const HELD_WITHIN: Duration = Duration::from_secs(30);
/// How long the new process may take to say that it serves the mount, which nobody serves meanwhile: it makes inodes and handles of what
/// it was given, a matter of seconds with millions of them.
pub(crate) const SERVED_WITHIN: Duration = Duration::from_secs(60);
/// How long the new process may take to start, once all is let go of that it needs: it reads the headers of large disks, and is
/// waited for by whoever started it for half as long.
pub(crate) const STARTS_WITHIN: Duration = Duration::from_secs(600);
/// How long a process that connects may take to say what it wants.
const GREETED_WITHIN: Duration = Duration::from_secs(10);
/// How often it is looked whether files are still open for writing.
const LOOKED_AT_EVERY: Duration = Duration::from_millis(50);
/// The longest that anybody waits for writers.
pub(crate) const MAX_PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// How it went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// This process serves the mount.
    Kept,
    /// The new one does, or the keeper has it: this one has nothing left to do.
    Gone,
}

/// What happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The new process said this.
    Asked(Ask),
    /// The connection has ended, or makes no sense any more.
    Closed,
    /// Files that are open for writing, as asked by [`Action::LookForWriters`].
    Writers(Vec<String>),
    /// Nothing is under way, as asked by [`Action::Drain`]; these are open for writing by now.
    Drained(Vec<String>),
    /// So many requests are not answered in time; or the state cannot be written, because of this.
    NotDrained(Refusal),
    /// What was to be sent could not be, or not be made.
    NotGiven(String),
    /// The new process was told that the mount is its own.
    Told,
    /// Everything is let go of, as asked by [`Action::Release`].
    Released,
    /// The deadline that was told is here.
    Late,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Tell the new process.
    Send(Say),
    /// Say which files are open for writing, at that time.
    LookForWriters(Instant),
    /// Stop serving, and answer what was taken.
    Drain(Duration),
    /// Send the state and the connection.
    Give,
    /// Say that the mount is the new process's no more, and hear nothing but what that has said until now, and then the end. Where it
    /// cannot be told, it is heard as before.
    TakeBack,
    /// Serve again.
    Resume,
    /// Let go of everything but the mount, which stays.
    Release,
    /// Leave what was given, and is not served by the new process, to a keeper.
    Rescue,
    /// It is over.
    End(Outcome),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Serves. Something has connected, and may take so long to say what it wants.
    Listening {
        until: Instant,
    },
    /// Serves, while files are open for writing: until then.
    Waiting {
        order: Order,
        until: Instant,
        told: Vec<String>,
    },
    /// Serves no more.
    Draining {
        order: Order,
        until: Instant,
    },
    /// The new process looks at what it was given, until then.
    Offered {
        order: Order,
        until: Instant,
    },
    /// The new process may serve, and has not said that it does. In the order "release first" it does not before all is let go
    /// of, which begins once it was told.
    Given {
        order: Order,
        until: Instant,
    },
    /// The new process may have said that it serves, and it has not been heard yet; or it may not serve any more.
    TakingBack {
        order: Order,
    },
    /// Lets go of everything.
    Releasing {
        order: Order,
    },
    /// The new process starts with what was let go of, until then.
    Starting {
        until: Instant,
    },
    /// It may have said that it serves, and it has not been heard yet; or it may not serve any more.
    Recalling,
    Ended(Outcome),
}

/// The old process.
#[derive(Clone, Debug)]
pub(crate) struct Giver {
    identity: Identity,
    /// Why it gives nothing away, whoever asks.
    cannot: Option<Refusal>,
    state: State,
}

impl Giver {
    /// The process that serves a mount with these options, to which another one has connected. `cannot`: why it gives the
    /// mount to nobody.
    pub(crate) fn new(identity: Identity, cannot: Option<Refusal>, now: Instant) -> Self {
        Self { identity, cannot, state: State::Listening { until: now + GREETED_WITHIN } }
    }

    /// Whether this process may answer the kernel's requests.
    #[cfg(test)]
    pub(crate) fn serves(&self) -> bool {
        match &self.state {
            State::Listening { .. } | State::Waiting { .. } => true,
            State::Draining { .. } | State::Offered { .. } | State::Given { .. } => false,
            State::TakingBack { .. } | State::Releasing { .. } => false,
            State::Starting { .. } | State::Recalling => false,
            State::Ended(outcome) => *outcome == Outcome::Kept,
        }
    }

    /// Whether the new process was told that the mount is its own, and may be about to serve it.
    pub(crate) fn may_be_served_elsewhere(&self) -> bool {
        matches!(self.state, State::Given { .. } | State::TakingBack { .. } | State::Starting { .. } | State::Recalling)
    }

    /// Whether what is given may be needed once more.
    pub(crate) fn may_rescue(&self) -> bool {
        matches!(self.state, State::Offered { order: Order::ReleaseFirst, .. })
    }

    /// When [`Event::Late`] is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Listening { until } | State::Waiting { until, .. } => Some(*until),
            State::Offered { until, .. } | State::Given { until, .. } | State::Starting { until } => Some(*until),
            // What drains has a limit of its own. Of what is taken back, what was said or the end is there to be read.
            _ => None,
        }
    }

    /// Takes an event.
    pub(crate) fn on(&mut self, event: Event, now: Instant) -> Vec<Action> {
        match (std::mem::replace(&mut self.state, State::Ended(Outcome::Kept)), event) {
            (State::Listening { .. }, Event::Asked(Ask::Hello(hello))) => self.greet(&hello, now),
            (State::Waiting { order, until, told }, event) => self.wait((order, until, told), event, now),
            (State::Draining { order, until }, event) => self.drain((order, until), event, now),
            (State::Offered { order, .. }, event) => self.offer(order, event, now),
            (State::Given { order, until }, event) => self.given(order, until, event),
            (State::TakingBack { order }, event) => self.take_back(order, event),
            (State::Releasing { order }, Event::Released) => self.released(order, now),
            // The new process is dead or goes on: that is seen when all is let go of.
            (State::Releasing { order }, _) => self.stay(State::Releasing { order }),
            (State::Starting { until }, event) => self.start(until, event),
            (State::Recalling, event) => self.recall(event),
            (State::Ended(outcome), _) => self.stay(State::Ended(outcome)),
            // What talks nonsense takes nothing.
            (State::Listening { .. }, _) => self.end(Outcome::Kept),
        }
    }

    fn greet(&mut self, hello: &Hello, now: Instant) -> Vec<Action> {
        let differences = self.identity.differences(&hello.identity);
        let refusal = check_format(hello).err().or_else(|| self.cannot.clone());
        let refusal = refusal.or_else(|| (!differences.is_empty()).then_some(Refusal::Options(differences)));
        if let Some(refusal) = refusal {
            return self.refuse(refusal);
        }
        let until = now + Duration::from_millis(hello.patience_millis).min(MAX_PATIENCE);
        self.state = State::Waiting { order: hello.order, until, told: Vec::new() };
        vec![Action::Send(Say::Welcome), Action::LookForWriters(now)]
    }

    fn wait(&mut self, (order, until, told): (Order, Instant, Vec<String>), event: Event, now: Instant) -> Vec<Action> {
        match event {
            Event::Writers(writers) if writers.is_empty() => {
                self.state = State::Draining { order, until };
                vec![Action::Drain(DRAIN_WITHIN)]
            }
            Event::Writers(writers) => self.wait_for(order, until, told, writers, now),
            Event::Late => self.refuse(Refusal::Writers(told)),
            _ => self.end(Outcome::Kept),
        }
    }

    fn wait_for(
        &mut self,
        order: Order,
        until: Instant,
        told: Vec<String>,
        mut writers: Vec<String>,
        now: Instant,
    ) -> Vec<Action> {
        writers.truncate(MAX_NAMES);
        let look = Action::LookForWriters(now + LOOKED_AT_EVERY);
        let tell = (writers != told).then(|| Action::Send(Say::Waiting(writers.clone())));
        self.state = State::Waiting { order, until, told: writers };
        tell.into_iter().chain([look]).collect()
    }

    fn drain(&mut self, (order, until): (Order, Instant), event: Event, now: Instant) -> Vec<Action> {
        match event {
            Event::Drained(writers) if writers.is_empty() => {
                self.state = State::Offered { order, until: now + HELD_WITHIN };
                vec![Action::Give]
            }
            // One was opened while it was looked.
            Event::Drained(writers) => {
                let mut actions = vec![Action::Resume];
                actions.extend(self.wait_for(order, until, Vec::new(), writers, now));
                actions
            }
            Event::NotDrained(refusal) => self.resume_and_refuse(refusal),
            _ => self.resume(),
        }
    }

    fn offer(&mut self, order: Order, event: Event, now: Instant) -> Vec<Action> {
        match event {
            Event::Asked(Ask::Holding) => {
                self.state = State::Given { order, until: now + SERVED_WITHIN };
                vec![Action::Send(Say::Yours)]
            }
            Event::NotGiven(why) => self.resume_and_refuse(Refusal::Other(why)),
            // It may hold them by now, but it does not serve before it is told that it may.
            _ => self.resume(),
        }
    }

    fn given(&mut self, order: Order, until: Instant, event: Event) -> Vec<Action> {
        match (order, event) {
            (Order::ServeFirst, Event::Asked(Ask::Serving)) | (Order::ReleaseFirst, Event::Told) => {
                self.state = State::Releasing { order };
                vec![Action::Release]
            }
            // It ends the connection only when it has closed what it was given, or is dead; and it says first that it serves.
            (_, Event::Closed | Event::Asked(Ask::GivingUp(_))) => self.resume(),
            (_, Event::Late) => {
                self.state = State::TakingBack { order };
                vec![Action::TakeBack]
            }
            // It may serve. Only the end of the connection tells that it does not.
            _ => self.stay(State::Given { order, until }),
        }
    }

    fn take_back(&mut self, order: Order, event: Event) -> Vec<Action> {
        match event {
            // It said so just before.
            Event::Asked(Ask::Serving) => {
                self.state = State::Releasing { order };
                vec![Action::Release]
            }
            Event::Closed | Event::Asked(Ask::GivingUp(_)) => self.resume(),
            _ => self.stay(State::TakingBack { order }),
        }
    }

    fn released(&mut self, order: Order, now: Instant) -> Vec<Action> {
        let mut actions = vec![Action::Send(Say::Released)];
        match order {
            Order::ServeFirst => actions.extend(self.end(Outcome::Gone)),
            Order::ReleaseFirst => self.state = State::Starting { until: now + STARTS_WITHIN },
        }
        actions
    }

    fn start(&mut self, until: Instant, event: Event) -> Vec<Action> {
        match event {
            Event::Asked(Ask::Serving) => self.end(Outcome::Gone),
            Event::Closed | Event::Asked(Ask::GivingUp(_)) => self.rescue(),
            Event::Late => {
                self.state = State::Recalling;
                vec![Action::TakeBack]
            }
            _ => self.stay(State::Starting { until }),
        }
    }

    fn recall(&mut self, event: Event) -> Vec<Action> {
        match event {
            // It said so just before.
            Event::Asked(Ask::Serving) => self.end(Outcome::Gone),
            Event::Closed | Event::Asked(Ask::GivingUp(_)) => self.rescue(),
            _ => self.stay(State::Recalling),
        }
    }

    fn rescue(&mut self) -> Vec<Action> {
        let mut actions = vec![Action::Rescue];
        actions.extend(self.end(Outcome::Gone));
        actions
    }

    fn refuse(&mut self, refusal: Refusal) -> Vec<Action> {
        let mut actions = vec![Action::Send(Say::Refused(refusal))];
        actions.extend(self.end(Outcome::Kept));
        actions
    }

    fn resume(&mut self) -> Vec<Action> {
        let mut actions = vec![Action::Resume];
        actions.extend(self.end(Outcome::Kept));
        actions
    }

    fn resume_and_refuse(&mut self, refusal: Refusal) -> Vec<Action> {
        let mut actions = vec![Action::Resume];
        actions.extend(self.refuse(refusal));
        actions
    }

    fn end(&mut self, outcome: Outcome) -> Vec<Action> {
        self.state = State::Ended(outcome.clone());
        vec![Action::End(outcome)]
    }

    fn stay(&mut self, state: State) -> Vec<Action> {
        self.state = state;
        Vec::new()
    }
}
