//! Giving a mount to another process: this one stops taking requests, answers those that it has, tells what the kernel relies on, and
//! either goes on or leaves. When it does which is decided by [`forebay_handover`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use forebay_fuse_io::protocol::init::Negotiated;
use forebay_fuse_io::{Channel, Pauser, Session};
use forebay_handover::{Given, Refusal};

use crate::dispatcher::Dispatcher;
use crate::handover::{being_written, capture};
use crate::keeping::Keeping;
use crate::serving::MountShared;

/// How often it is looked whether requests are answered.
const LOOKED_AT_EVERY: Duration = Duration::from_millis(1);

/// What becomes of a session that has paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It goes on.
    Serve,
    /// Another process goes on.
    Leave,
}

/// What it takes to give a mount to another process. Clones are the same. All of it may wait: call it from a thread that may.
#[derive(Clone)]
pub struct HandOver {
    shared: Arc<MountShared>,
    agreed: Negotiated,
    pauser: Pauser,
    decide: Sender<Decision>,
    /// The mount is not this process's to unmount any more.
    is_detached: Arc<AtomicBool>,
}

impl HandOver {
    /// Of the mount that `session` serves, and where it hears what becomes of it.
    pub(crate) fn new(session: &Session<Dispatcher>, shared: Arc<MountShared>) -> (Self, Receiver<Decision>) {
        let (decide, decisions) = channel();
        let (agreed, pauser) = (session.agreed(), session.pauser());
        (Self { shared, agreed, pauser, decide, is_detached: Arc::default() }, decisions)
    }

    /// Why the mount cannot be given away, whoever asks for it.
    #[must_use]
    pub fn cannot(&self) -> Option<Refusal> {
        if self.is_detached() || self.shared.ended.is_cancelled() {
            return Some(Refusal::Detached);
        }
        match self.shared.carried().map(|carried| carried.channel) {
            Some(Channel::Device { .. }) => None,
            Some(Channel::Uring(_)) => Some(Refusal::Uring),
            // It begins to be served at this moment.
            None => Some(Refusal::Busy),
        }
    }

    /// Paths of files that are open for writing, or of which something is on its way to the origin.
    #[must_use]
    pub fn writers(&self) -> Vec<String> {
        being_written(&self.shared.files)
    }

    /// Takes no more requests, and waits until those that were taken are answered. Also after an error, nobody serves the mount until
    /// [`HandOver::resume`].
    ///
    /// # Errors
    /// How many are not answered within that time; that the mount has ended.
    pub fn drain(&self, within: Duration) -> Result<(), Refusal> {
        let until = Instant::now() + within;
        let under_way = || self.shared.tasks.len() as u64;
        if !self.pauser.pause(within) {
            return Err(Refusal::Unanswered(under_way().max(1)));
        }
        while !self.shared.tasks.is_empty() {
            if Instant::now() >= until {
                return Err(Refusal::Unanswered(under_way()));
            }
            thread::sleep(LOOKED_AT_EVERY);
        }
        if self.shared.ended.is_cancelled() { Err(Refusal::Detached) } else { Ok(()) }
    }

    /// What the next process needs. To be called after [`HandOver::drain`].
    ///
    /// # Errors
    /// When something is under way after all, or there are too many descriptors.
    pub fn give(&self) -> io::Result<Given> {
        let state = capture(&self.shared.files, &self.shared.virtual_files, &self.agreed).map_err(io::Error::other)?;
        Ok(Given { state, connection: self.pauser.connection()? })
    }

    /// Serves again.
    pub fn resume(&self) {
        self.shared.kept().into_iter().for_each(Keeping::again);
        // It fails when the mount has ended.
        let _ = self.decide.send(Decision::Serve);
    }

    /// Another process serves the mount: what is left of it here ends, and it stays mounted.
    pub fn leave(&self) {
        self.shared.kept().into_iter().for_each(Keeping::leave);
        self.detached();
        let _ = self.decide.send(Decision::Leave);
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
