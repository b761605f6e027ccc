//! Giving a mount to another process: this one stops taking requests, answers those that it has, tells what the kernel relies on, and
//! either goes on or leaves. When it does which is decided by [`forebay_handover`]. A process that is told to end may leave the mount in
//! the same way to a keeper, who has it until the next one comes.
//!
//! The session hears of a decision only once it has paused. One that it has not heard of yet would be taken for the answer to the
//! next pause, and two processes would serve: so a session is asked to pause again only when it has heard the last one ([`Pausing`]).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use forebay_fuse_io::protocol::init::Negotiated;
use forebay_fuse_io::{Channel, Pauser, Session};
use forebay_handover::{Given, Journal, Keeps, Kept, Refusal, spend};
use forebay_locks::{Condvar, Mutex};
use tracing::warn;

use crate::dispatcher::Dispatcher;
use crate::handover::{Moving, being_written, capture, capture_to_leave, held_back};
use crate::keeping::{Keeping, Survival};
use crate::serving::MountShared;

/// How often it is looked whether requests are answered.
const LOOKED_AT_EVERY: Duration = Duration::from_millis(1);
/// How long parts of what is open for writing may take that are on their way, while nobody serves.
const ARRIVES_WITHIN: Duration = Duration::from_secs(5);
/// The same, with what is written down of it: the disk that it is staged on may not answer.
const WRITTEN_DOWN_WITHIN: Duration = Duration::from_secs(10);
/// Longer than a mount takes to start its threads.
const SETTLES_WITHIN: Duration = Duration::from_secs(10);

/// What becomes of a session that has paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It goes on.
    Serve,
    /// Another process goes on.
    Leave,
    /// Somebody keeps the mount for the next process.
    Entrust,
}

/// Where a session is between two pauses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// It serves, or is about to.
    #[default]
    Serves,
    /// It was asked to pause, and waits for a decision as soon as it has.
    Asked,
    /// It was decided, and it has not heard of that yet.
    Decided,
}

/// Keeps each pause of a session to one decision.
#[derive(Debug, Default)]
struct Pausing {
    stage: Mutex<Stage>,
    serves: Condvar,
}

impl Pausing {
    /// It is to pause. False: it has not heard within that time what was decided before.
    fn ask(&self, within: Duration) -> bool {
        let until = Instant::now() + within;
        let mut stage = self.stage.lock();
        while *stage != Stage::Serves {
            let is_late;
            (stage, is_late) = self.serves.wait_until(stage, until);
            if is_late && *stage != Stage::Serves {
                return false;
            }
        }
        *stage = Stage::Asked;
        true
    }

    /// Whether it is to be told of a decision: it was asked, and told of none.
    fn decide(&self) -> bool {
        let mut stage = self.stage.lock();
        let is_asked = *stage == Stage::Asked;
        if is_asked {
            *stage = Stage::Decided;
        }
        is_asked
    }

    /// It goes on.
    fn goes_on(&self) {
        *self.stage.lock() = Stage::Serves;
        self.serves.notify_all();
    }
}

/// Where a session that has paused hears what becomes of it.
pub(crate) struct Decisions {
    decided: Receiver<Decision>,
    pausing: Arc<Pausing>,
    pauser: Pauser,
}

impl Decisions {
    /// What was decided; waits for that. Where it is to serve, it may from now on, and be asked to pause again. `None`: nobody
    /// decides any more.
    pub(crate) fn wait(&self) -> Option<Decision> {
        let decision = self.decided.recv().ok()?;
        if decision == Decision::Serve {
            // In this order: who asks again is not to be forgotten.
            self.pauser.go_on();
            self.pausing.goes_on();
        }
        Some(decision)
    }
}

/// What it takes to give a mount to another process. Clones are the same. All of it may wait: call it from a thread that may.
#[derive(Clone)]
pub struct HandOver {
    shared: Arc<MountShared>,
    agreed: Negotiated,
    pauser: Pauser,
    pausing: Arc<Pausing>,
    decide: Sender<Decision>,
    /// What is open for writing and was given with the mount, until it is decided which process goes on with it.
    moving: Arc<Mutex<Vec<Moving>>>,
    /// The mount is not this process's to unmount any more.
    is_detached: Arc<AtomicBool>,
}

impl HandOver {
    /// Of the mount that `session` serves, and where it hears what becomes of it.
    pub(crate) fn new(session: &Session<Dispatcher>, shared: Arc<MountShared>) -> (Self, Decisions) {
        let (decide, decided) = channel();
        let (agreed, pauser, pausing) = (session.agreed(), session.pauser(), Arc::<Pausing>::default());
        let decisions = Decisions { decided, pausing: Arc::clone(&pausing), pauser: pauser.clone() };
        let (moving, is_detached) = (Arc::default(), Arc::default());
        (Self { shared, agreed, pauser, pausing, decide, moving, is_detached }, decisions)
    }

    /// Why the mount cannot be given away, whoever asks for it. Waits for one that begins to be served at this moment.
    #[must_use]
    pub fn cannot(&self) -> Option<Refusal> {
        if self.is_detached() || self.shared.ended.is_cancelled() {
            return Some(Refusal::Detached);
        }
        // Requests may be answered a moment before it is known how.
        match self.shared.carried_within(SETTLES_WITHIN).map(|carried| carried.channel) {
            Some(Channel::Device { .. }) => None,
            Some(Channel::Uring(_)) => Some(Refusal::Uring),
            None => Some(Refusal::Busy),
        }
    }

    /// Paths of files that are open for writing, or of which something is on its way to the origin.
    #[must_use]
    pub fn writers(&self) -> Vec<String> {
        being_written(&self.shared.files)
    }

    /// Those of them that cannot go on in another process as they are: files that were removed, and those that are on their way.
    #[must_use]
    pub fn held_back(&self) -> Vec<String> {
        held_back(&self.shared.files)
    }

    /// Takes no more requests, and waits until those that were taken are answered. Also after an error, nobody serves the mount until
    /// [`HandOver::resume`].
    ///
    /// # Errors
    /// How many are not answered within that time; that the mount has ended; that it has not gone on yet after the last time.
    pub fn drain(&self, within: Duration) -> Result<(), Refusal> {
        let until = Instant::now() + within;
        let under_way = || self.shared.tasks.len() as u64;
        if !self.pausing.ask(within) {
            return Err(Refusal::Busy);
        }
        if !self.pauser.pause(until.saturating_duration_since(Instant::now())) {
            return Err(Refusal::Unanswered(under_way().max(1)));
        }
        while !self.shared.tasks.is_empty() {
            if Instant::now() >= until {
                return Err(Refusal::Unanswered(under_way()));
            }
            self.shared.virtual_files.log().answer_readers();
            thread::sleep(LOOKED_AT_EVERY);
        }
        if self.shared.ended.is_cancelled() { Err(Refusal::Detached) } else { Ok(()) }
    }

    /// What the next process needs. To be called after [`HandOver::drain`]. What is open for writing is held still from now on, until
    /// [`HandOver::resume`] or [`HandOver::leave`].
    ///
    /// # Errors
    /// When something is under way after all, or there are too many descriptors.
    pub fn give(&self) -> io::Result<Given> {
        let (shared, agreed, until) = (Arc::clone(&self.shared), self.agreed, Instant::now() + ARRIVES_WITHIN);
        let (tell, told) = channel();
        let capturing = move || {
            let captured = capture(&shared.files, &shared.virtual_files, &agreed, until);
            // The next process may wait for what it has.
            drop(shared);
            // Too late for whoever waits, all of it goes on here.
            let _ = tell.send(captured);
        };
        thread::Builder::new().name("forebay-capture".to_owned()).spawn(capturing)?;
        let silent =
            |_| io::Error::other("the disk that holds what is being written (write.staging_dir) does not answer");
        let captured = told.recv_timeout(WRITTEN_DOWN_WITHIN).map_err(silent)?;
        let (state, mut moving) = captured.map_err(io::Error::other)?;
        let written = moving.iter().map(|moving| Ok((moving.written.clone(), moving.handing.bytes()?)));
        let written = written.collect::<io::Result<_>>()?;
        let connection = self.pauser.connection()?;
        moving.iter_mut().for_each(|moving| moving.handing.lend());
        *self.moving.lock() = moving;
        Ok(Given { state, connection, written })
    }

    /// Serves again, if it was drained.
    pub fn resume(&self) {
        // It goes on here.
        let moving = std::mem::take(&mut *self.moving.lock());
        moving.into_iter().for_each(|moving| moving.handing.take_back());
        self.shared.kept().into_iter().for_each(Keeping::again);
        self.decide(Decision::Serve);
    }

    /// Counts that a process which was given the mount has not come to serve it in time, so that this one serves it again.
    pub fn taken_back(&self) {
        self.shared.taken_back.fetch_add(1, Ordering::Relaxed);
    }

    /// Another process serves the mount: what is left of it here ends, and it stays mounted.
    pub fn leave(&self) {
        let moving = std::mem::take(&mut *self.moving.lock());
        moving.into_iter().for_each(|moving| moving.handing.given());
        self.shared.kept().into_iter().for_each(Keeping::leave);
        self.detached();
        self.decide(Decision::Leave);
    }

    /// Leaves the mount to the keeper of `survival` until the next process comes. To be called after [`HandOver::drain`]. What is open for
    /// writing is lost to its handles then, as after a crash.
    ///
    /// # Errors
    /// Why it is not kept; then [`HandOver::resume`] follows.
    pub fn entrust(&self, survival: &Survival) -> io::Result<()> {
        let (shared, keeper) = (&self.shared, &survival.keeper);
        let state = capture_to_leave(&shared.files, &shared.virtual_files, &self.agreed).map_err(io::Error::other)?;
        let memory = Journal::leave(&state, &survival.identity)?;
        // Nothing is under way, so nothing ends with the descriptors that requests were read from.
        let what = Kept { memory, connection: self.pauser.connection()?, clones: Vec::new() };
        if let Err(error) = keeper.keep(&what) {
            // It may have it all the same, and this process serves again.
            if let Err(error) = spend(&what.memory) {
                warn!(%error, "what was to be left of the mount may be taken");
            }
            // Of a mount that is kept over a crash, too, what was kept before is given again.
            if shared.kept().is_none_or(|kept| !kept.is_by(keeper)) {
                keeper.forget();
            }
            return Err(error);
        }
        shared.kept().into_iter().for_each(Keeping::entrusted);
        self.detached();
        self.decide(Decision::Entrust);
        Ok(())
    }

    fn decide(&self, decision: Decision) {
        if self.pausing.decide() {
            // It fails when the mount has ended.
            let _ = self.decide.send(decision);
        }
    }

    /// Who keeps the mount over a crash, if somebody does, or did until another process came.
    #[must_use]
    pub fn keeper(&self) -> Option<Arc<dyn Keeps>> {
        self.shared.kept().map(Keeping::keeper)
    }

    /// Whether the mount is to outlive a crash of this process, and its keeper has ended.
    #[must_use]
    pub fn lacks_keeper(&self) -> bool {
        self.shared.kept().is_some_and(Keeping::lacks_keeper)
    }

    /// Has `keeper` keep the mount in the place of one that has ended. False: there is nothing to be kept any more. May wait.
    ///
    /// # Errors
    /// When it does not take it.
    pub fn renew(&self, keeper: Arc<dyn Keeps>) -> io::Result<bool> {
        self.shared.kept().map_or(Ok(false), |kept| kept.renew(keeper))
    }

    /// Whether the mount is unmounted, or another process's.
    pub(crate) fn is_detached(&self) -> bool {
        self.is_detached.load(Ordering::Acquire)
    }

    /// The mount is not this process's to unmount any more.
    pub(crate) fn detached(&self) {
        self.is_detached.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn each_pause_has_one_decision_and_the_next_one_waits_until_it_is_heard() {
        let pausing = Pausing::default();
        assert!(!pausing.decide(), "it was not asked");
        assert!(pausing.ask(SOON));
        assert!(!pausing.ask(Duration::ZERO), "it is asked already");
        assert!(pausing.decide());
        assert!(!pausing.decide(), "it is decided");
        assert!(!pausing.ask(Duration::ZERO), "it has not heard of it");
        thread::scope(|scope| {
            let asks = scope.spawn(|| pausing.ask(SOON));
            pausing.goes_on();
            assert!(asks.join().unwrap());
        });
        assert!(pausing.decide());
    }
}
