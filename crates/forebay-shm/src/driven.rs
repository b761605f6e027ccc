//! Threads that receive the answers to their reads themselves, in the place of the session's task: the shell around [`Helm`].

use std::time::Duration;

use forebay_locks::Mutex;
use forebay_transport::driving::{self, DriveOptions, Helm, Restraint, Taken, Turn, Waits};
use forebay_transport::{LinkError, Request};
use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::call::Answer;
use crate::wire::MAX_ANSWERED;

/// The longest read that a thread waits for itself.
const SHORT: u32 = 64 << 10;
/// Packets that it receives before it looks at the clock: there are no more than it and others asked for.
const BURST: usize = 32;

/// What a thread needs of the session that it drives.
pub(crate) trait Receives {
    /// Receives a packet, without waiting, and brings it to its call. False when there was none.
    fn take_next(&self, buffer: &mut [u8]) -> Result<bool, LinkError>;

    /// Sleeps until there may be one, for that long at most.
    fn sleep(&self, at_most: Duration);

    /// Whether calls wait for answers.
    fn has_calls(&self) -> bool;

    /// Tells the task that it has something to do: to end the session, if it is `broken`.
    fn tell_task(&self, broken: Option<LinkError>);
}

/// What the threads of a session share.
#[derive(Debug)]
pub(crate) struct Driven {
    /// Who receives.
    helm: Helm,
    options: DriveOptions,
    waits: Waits,
    restraint: Restraint,
    /// Where the thread that drives receives to; nobody else locks it.
    packet: Mutex<Vec<u8>>,
}

/// A thread that receives. When it is dropped, the task does, or the next thread.
pub(crate) struct Driver<'a, S: Receives> {
    driven: &'a Driven,
    session: &'a S,
    turn: Turn,
}

impl Driven {
    pub(crate) fn new(options: DriveOptions) -> Self {
        Self {
            helm: Helm::default(),
            options,
            waits: Waits::new(options.spin),
            restraint: Restraint::default(),
            packet: Mutex::new(vec![0; MAX_ANSWERED]),
        }
    }

    /// Who receives.
    pub(crate) fn helm(&self) -> &Helm {
        &self.helm
    }

    /// The calling thread receives from now on, if it may wait for the answer to `request`, which was not sent yet, nobody else waits,
    /// and answers come soon enough.
    pub(crate) fn begin<'a, S: Receives>(&'a self, session: &'a S, request: &Request) -> Option<Driver<'a, S>> {
        if request.length > SHORT || !driving::is_permitted() {
            return None;
        }
        let turn = driving::begin(&self.options, request.deadline)?;
        if session.has_calls() || self.restraint.holds_back() {
            return None;
        }
        if self.helm.take()? == Taken::FromTask {
            session.tell_task(None);
        }
        Some(Driver { driven: self, session, turn })
    }

    /// A call has begun whose caller does not receive.
    #[inline]
    pub(crate) fn called(&self, session: &impl Receives) {
        if self.helm.call() {
            session.tell_task(None);
        }
    }
}

impl<S: Receives> Driver<'_, S> {
    /// Waits for the answer; nothing if it does not come in time, or the session ends.
    pub(crate) fn wait(&self, answered: &mut oneshot::Receiver<Answer>) -> Option<Answer> {
        let Self { driven, session, turn } = self;
        let mut buffer = driven.packet.lock();
        let look = || {
            // What comes for others is brought to them, too.
            for _ in 0..BURST {
                match answered.try_recv() {
                    Ok(answer) => return Some(Some(answer)),
                    Err(TryRecvError::Empty) => {}
                    Err(TryRecvError::Closed) => return Some(None),
                }
                match session.take_next(&mut buffer) {
                    Ok(true) => {}
                    Ok(false) => return None,
                    Err(error) => {
                        session.tell_task(Some(error));
                        return Some(answered.try_recv().ok());
                    }
                }
            }
            None
        };
        let found = driven.waits.wait(turn.until(), look, |left| session.sleep(left));
        match &found {
            Some(Some(_)) => {
                turn.answered();
                // Where others wait by now the task has to watch again: to change over for each read costs more than it saves.
                if session.has_calls() { driven.restraint.late() } else { driven.restraint.prompt() }
            }
            Some(None) => {}
            None => driven.restraint.late(),
        }
        found.flatten()
    }
}

impl<S: Receives> Drop for Driver<'_, S> {
    fn drop(&mut self) {
        if self.driven.helm.leave(self.session.has_calls()) {
            self.session.tell_task(None);
        }
    }
}
