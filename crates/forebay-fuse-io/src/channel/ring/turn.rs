//! Whose turn it is to touch an entry: its owner thread's, that of the thread that answers later, or the kernel's.
//!
//! Each view of an entry that is answered later is one hold on it. The entry is ready when the last hold is let go.
//! From then on only the owner thread touches it, until it has given the entry to the kernel. If an answer cannot be
//! written yet, because the request is still being read, it is left beside the entry. All that the code relies on about
//! the order of threads is in this module, and modelled (`model.rs`).

use super::sync::{AtomicU8, AtomicU32, Ordering, UnsafeCell};

const WITH_KERNEL: u8 = 0;
const SERVING: u8 = 1;
const ANSWERED: u8 = 2;
const KEPT: u8 = 3;
const READY: u8 = 4;

/// The turns of one entry; `L` is an answer that is left beside it.
#[derive(Debug)]
pub(crate) struct Turn<L> {
    state: AtomicU8,
    /// How many views there are of an entry that is answered later.
    holds: AtomicU32,
    /// Left by the thread that answers, taken by the owner thread.
    late: UnsafeCell<Option<L>>,
}

// SAFETY: the states say whose turn it is to touch `late`, and each hand-over from thread to thread goes through
// `state` or `holds` with release and acquire.
unsafe impl<L: Send> Sync for Turn<L> {}

impl<L> Turn<L> {
    /// The kernel's.
    pub(crate) fn new() -> Self {
        Self { state: AtomicU8::new(WITH_KERNEL), holds: AtomicU32::new(0), late: UnsafeCell::new(None) }
    }

    /// The kernel has put a request into it: it is its owner thread's.
    pub(crate) fn take(&self) {
        self.go(WITH_KERNEL, SERVING);
    }

    /// Its owner thread has answered.
    pub(crate) fn answer(&self) {
        self.go(SERVING, ANSWERED);
    }

    /// Whether its owner thread has answered.
    pub(crate) fn is_answered(&self) -> bool {
        self.state.load(Ordering::Relaxed) == ANSWERED
    }

    /// It is answered later, by one of those with so many holds.
    pub(crate) fn keep(&self, holds: u32) {
        self.holds.store(holds, Ordering::Relaxed);
        self.go(SERVING, KEPT);
    }

    /// Whether there is one hold on it, which is the caller's.
    pub(crate) fn is_sole(&self) -> bool {
        self.holds.load(Ordering::Acquire) == 1
    }

    /// Leaves an answer beside it.
    ///
    /// # Safety
    /// Only for the thread that answers, while it has its hold.
    pub(crate) unsafe fn leave(&self, late: L) {
        // SAFETY: the owner thread does not look while there is a hold, and no other thread leaves anything.
        self.late.with_mut(|place| unsafe { *place = Some(late) });
    }

    /// Lets go of one hold. Whether it was the last: then the owner thread is to be told.
    #[must_use]
    pub(crate) fn let_go(&self) -> bool {
        if self.holds.fetch_sub(1, Ordering::AcqRel) != 1 {
            return false;
        }
        self.state.store(READY, Ordering::Release);
        true
    }

    /// The answer that was left beside an entry that is ready. For its owner thread, which gives it away next.
    pub(crate) fn take_late(&self) -> Option<L> {
        if self.state.load(Ordering::Acquire) != READY {
            return None;
        }
        // SAFETY: it is ready and not the kernel's yet, so only the owner thread looks.
        self.late.with_mut(|place| unsafe { (*place).take() })
    }

    /// It is the kernel's from now on. For its owner thread.
    pub(crate) fn give(&self) {
        let old = self.state.swap(WITH_KERNEL, Ordering::Acquire);
        debug_assert!(matches!(old, ANSWERED | READY | WITH_KERNEL), "an entry was given away in state {old}");
    }

    /// Whether the kernel has it.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn is_with_kernel(&self) -> bool {
        self.state.load(Ordering::Acquire) == WITH_KERNEL
    }

    fn go(&self, from: u8, to: u8) {
        let old = self.state.swap(to, Ordering::AcqRel);
        debug_assert_eq!(old, from, "an entry went from {old} to {to}");
    }
}
