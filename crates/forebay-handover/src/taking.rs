//! The new process: when it may serve, and when it must not.
//!
//! ```text
//! Greeting ─Welcome─▶ Welcomed ─Given─▶ Looking ─understood─▶ Held ─Yours─▶ Mine ─serves─▶ Served ─Released─▶ Ended
//!                                                                            │ order "release first"
//!                                                                            └─Released─▶ starts, serves ─▶ Told
//! ```
//!
//! It serves only after "yours", and says so before it does. If it fails before that, it closes the connection to the kernel first
//! and the one to the old process after that: by its end the old one learns that it may go on. If the old one does not hear that this
//! one serves, it is dead; or it has taken the mount back, which it has said before it stopped to listen, and this one gives up. Plain, as
//! [`crate::giving`].

use std::time::{Duration, Instant};

use crate::giving::{DRAIN_WITHIN, HELD_WITHIN, MAX_PATIENCE};
use crate::identity::Identity;
use crate::message::{Ask, Hello, Order, Refusal, Say};

/// How long the first answer may take.
const GREETED_WITHIN: Duration = Duration::from_secs(10);
/// How long the old process may take to let go of disks and files.
const RELEASED_WITHIN: Duration = Duration::from_secs(300);
/// The longest that the process before takes until it has let go of everything, beyond what it waits for writers.
pub const LETS_GO_WITHIN: Duration =
    Duration::from_secs(DRAIN_WITHIN.as_secs() + HELD_WITHIN.as_secs() + RELEASED_WITHIN.as_secs());

/// Why a mount was not taken over. The daemon that runs serves on, unless it is said otherwise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// The daemon that runs says so.
    #[error("{0}")]
    Refused(Refusal),
    /// It says nothing, or no more.
    #[error("the daemon that runs gives no answer")]
    Silent,
    /// It ended, or went on by itself, before the mount was given.
    #[error("the daemon that runs ended the hand-over")]
    Closed,
    /// It speaks another protocol.
    #[error("the daemon that runs speaks version {theirs} of the hand-over, and this program version {ours}")]
    Protocol {
        /// What it speaks.
        theirs: u16,
        /// What we do.
        ours: u16,
    },
    /// What it gave is nothing that can be served.
    #[error("what the daemon that runs gave cannot be used: {0}")]
    NotUnderstood(String),
    /// It serves no more, and does not let go of what only one process can have.
    #[error("the daemon that ran has not let go of its disks and files in {} s", RELEASED_WITHIN.as_secs())]
    NotReleased,
    /// It waited for too long, and serves again.
    #[error("the daemon that runs has taken the mount back: this process took too long to serve it")]
    TakenBack,
    /// The connection to it cannot be used.
    #[error("cannot talk to the daemon that runs: {0}")]
    Io(String),
}

impl NotTaken {
    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Refused(refusal) => refusal.remedy(),
            Self::Protocol { .. } => "unmount and mount again",
            Self::NotReleased => "end it with `kill -9`, and mount again",
            Self::TakenBack => "see what kept this process from running, and try again",
            Self::Silent | Self::Closed | Self::NotUnderstood(_) | Self::Io(_) => "see its log, and try again",
        }
    }
}

/// What happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The old process said this.
    Said(Say),
    /// The connection has ended.
    Closed,
    /// What was given can be served.
    Understood,
    /// It cannot, because of this.
    NotUnderstood(String),
    /// The kernel's requests are served in the next moment.
    Serves,
    /// The old process did not hear that the kernel's requests are served in the next moment; whether it has said before that it has
    /// taken the mount back.
    NotHeard {
        /// It has.
        taken_back: bool,
    },
    /// The deadline that was told is here.
    Late,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Tell the old process.
    Send(Ask),
    /// Tell the user whose files are waited for.
    Tell(Vec<String>),
    /// Look at what was given.
    Look,
    /// Close the descriptors that were given.
    Drop,
    /// Make ready to serve; then, with [`Event::Serves`], begin to. In the order "release first", all that the old process had is free.
    Serve,
    /// It is over. `Ok`: the mount is ours, and so is all that the old process had.
    End(Result<(), NotTaken>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Greeting {
        until: Instant,
    },
    Welcomed {
        until: Instant,
    },
    Looking,
    Held {
        until: Instant,
    },
    /// It may serve. In the order "release first", it waits until then for the old process to let go of everything, and then starts.
    Mine {
        until: Option<Instant>,
    },
    Served {
        until: Instant,
    },
    /// It has said that it serves, and the old process has nothing any more.
    Told,
    Ended,
}

/// The new process.
#[derive(Clone, Debug)]
pub(crate) struct Taker {
    order: Order,
    patience: Duration,
    state: State,
    #[cfg(test)]
    serves: bool,
}

impl Taker {
    /// One that wants a mount with these options, and the first thing to do. `patience`: how long it waits for writers.
    pub(crate) fn new(identity: Identity, order: Order, patience: Duration, now: Instant) -> (Self, Vec<Action>) {
        let hello = Hello::new(identity, order, patience);
        let taker = Self {
            order,
            patience,
            state: State::Greeting { until: now + GREETED_WITHIN },
            #[cfg(test)]
            serves: false,
        };
        (taker, vec![Action::Send(Ask::Hello(hello))])
    }

    /// Whether this process may answer the kernel's requests.
    #[cfg(test)]
    pub(crate) fn serves(&self) -> bool {
        self.serves
    }

    /// Whether it serves, and the old process has not let go of everything else yet.
    pub(crate) fn waits_for_release(&self) -> bool {
        matches!(self.state, State::Served { .. })
    }

    /// When [`Event::Late`] is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Greeting { until } | State::Welcomed { until } | State::Held { until } | State::Served { until } => {
                Some(*until)
            }
            State::Mine { until } => *until,
            State::Looking | State::Told | State::Ended => None,
        }
    }

    /// Takes an event.
    pub(crate) fn on(&mut self, event: Event, now: Instant) -> Vec<Action> {
        match (std::mem::replace(&mut self.state, State::Ended), event) {
            (State::Greeting { .. }, Event::Said(Say::Welcome)) => {
                // What it waits for at the longest, and then drains and writes.
                let patience = self.patience.min(MAX_PATIENCE);
                self.state = State::Welcomed { until: now + patience + DRAIN_WITHIN + HELD_WITHIN };
                Vec::new()
            }
            (State::Greeting { .. } | State::Welcomed { .. }, Event::Said(Say::Refused(refusal))) => {
                vec![Action::End(Err(NotTaken::Refused(refusal)))]
            }
            (State::Welcomed { until }, Event::Said(Say::Waiting(names))) => {
                self.state = State::Welcomed { until };
                vec![Action::Tell(names)]
            }
            (State::Welcomed { .. }, Event::Said(Say::Given)) => {
                self.state = State::Looking;
                vec![Action::Look]
            }
            (State::Looking, Event::Understood) => {
                self.state = State::Held { until: now + HELD_WITHIN };
                vec![Action::Send(Ask::Holding)]
            }
            (State::Looking, Event::NotUnderstood(why)) => {
                let told = Action::Send(Ask::GivingUp(why.clone()));
                vec![Action::Drop, told, Action::End(Err(NotTaken::NotUnderstood(why)))]
            }
            (State::Held { .. }, Event::Said(Say::Yours)) => self.own(now),
            (State::Mine { until }, event) => self.mine(until, event, now),
            // Dead or done, it has nothing any more.
            (State::Served { .. }, Event::Said(Say::Released) | Event::Closed) => vec![Action::End(Ok(()))],
            // Nothing was served yet.
            (State::Served { .. } | State::Told, Event::NotHeard { taken_back: true }) => {
                self.serves_no_more();
                self.give_up(NotTaken::TakenBack)
            }
            (State::Served { .. }, Event::Late) => vec![Action::End(Err(NotTaken::NotReleased))],
            (State::Served { until }, _) => {
                self.state = State::Served { until };
                Vec::new()
            }
            (State::Told, _) => {
                self.state = State::Told;
                Vec::new()
            }
            (State::Ended, _) => Vec::new(),
            (_, Event::Late) => self.give_up(NotTaken::Silent),
            // Closed, or nonsense.
            _ => self.give_up(NotTaken::Closed),
        }
    }

    /// It may serve from now on.
    fn own(&mut self, now: Instant) -> Vec<Action> {
        match self.order {
            Order::ServeFirst => {
                self.state = State::Mine { until: None };
                vec![Action::Serve]
            }
            Order::ReleaseFirst => {
                self.state = State::Mine { until: Some(now + RELEASED_WITHIN) };
                Vec::new()
            }
        }
    }

    fn mine(&mut self, until: Option<Instant>, event: Event, now: Instant) -> Vec<Action> {
        match (self.order, event) {
            (Order::ServeFirst, Event::Serves) => {
                self.now_serves();
                self.state = State::Served { until: now + RELEASED_WITHIN };
                vec![Action::Send(Ask::Serving)]
            }
            // Also a process that died has let go.
            (Order::ReleaseFirst, Event::Said(Say::Released) | Event::Closed) if until.is_some() => {
                self.state = State::Mine { until: None };
                vec![Action::Serve]
            }
            (Order::ReleaseFirst, Event::Serves) if until.is_none() => {
                self.now_serves();
                self.state = State::Told;
                vec![Action::Send(Ask::Serving)]
            }
            (Order::ReleaseFirst, Event::Late) => vec![Action::Drop, Action::End(Err(NotTaken::NotReleased))],
            // The old process died: all the more it is ours.
            _ => {
                self.state = State::Mine { until };
                Vec::new()
            }
        }
    }

    fn give_up(&mut self, why: NotTaken) -> Vec<Action> {
        vec![Action::Drop, Action::End(Err(why))]
    }

    fn serves_no_more(&mut self) {
        #[cfg(test)]
        {
            self.serves = false;
        }
    }

    fn now_serves(&mut self) {
        #[cfg(test)]
        {
            self.serves = true;
        }
    }
}
