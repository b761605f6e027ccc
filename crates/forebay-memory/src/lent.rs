//! Which frames of a pool are lent, so that their memory is the kernel's until they are back.
//!
//! A pool's memory may be taken ahead by another thread meanwhile ([`Pool::warm_up`](crate::Pool::warm_up)), which must leave out what is
//! lent. To take it for a frame means to clear it: some milliseconds, for which whoever lends, on a thread that serves others too, is
//! not to wait. So the lock is not held for that. Afterwards it is looked again, under the lock: what was lent meanwhile is given up
//! once more. Whatever the order is, a frame that is lent has no memory when both are done.

use std::collections::BTreeSet;

use rustix::io::Result;

use crate::sync::Mutex;

/// The frames that are lent.
#[derive(Debug)]
pub(crate) struct Lent {
    frames: Mutex<BTreeSet<u32>>,
}

impl Lent {
    /// None yet.
    pub(crate) fn none() -> Self {
        Self { frames: Mutex::new(BTreeSet::new()) }
    }

    /// Lends `frame`, whose memory `give_up` gives up. Where that fails it is not lent.
    pub(crate) fn lend(&self, frame: u32, give_up: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut frames = self.frames.lock();
        give_up()?;
        frames.insert(frame);
        Ok(())
    }

    /// `frame` is the pool's again, and can be filled from now on.
    pub(crate) fn is_back(&self, frame: u32) {
        self.frames.lock().remove(&frame);
    }

    /// Has `back` back `frame` with memory, unless it is lent. What was lent meanwhile is given up again.
    pub(crate) fn back(
        &self,
        frame: u32,
        back: impl FnOnce() -> Result<()>,
        give_up: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if self.frames.lock().contains(&frame) {
            return Ok(());
        }
        let backed = back();
        // Held until it is given up: it is filled only after it is back, for which the lock is needed.
        let frames = self.frames.lock();
        if frames.contains(&frame) {
            give_up()?;
        }
        backed
    }
}
