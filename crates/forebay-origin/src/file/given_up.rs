//! Whether somebody still waits for a change, which a file system that hangs may take up again at any time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Tells a change that nobody waits for it any more.
#[derive(Clone, Default)]
pub(super) struct GivenUp(Arc<AtomicBool>);

/// Whoever waits for a change. When this is dropped, nobody does.
pub(super) struct Waiting(GivenUp);

impl GivenUp {
    /// Somebody waits from now on.
    pub(super) fn waited_for(&self) -> Waiting {
        Waiting(self.clone())
    }

    /// Whether nobody waits any more.
    pub(super) fn is_so(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Release);
    }
}
