//! How a worker keeps up with reads, or with questions about names, as this client sees it: the record of
//! [`forebay_cluster::ReadLatencies`] and [`Pace`], as threads share it. A read of a worker that was never late costs it no lock.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use forebay_cluster::{Pace, ReadLatencies, Turn};
use forebay_locks::Mutex;

/// See above.
#[derive(Default)]
pub(crate) struct Speed {
    latencies: ReadLatencies,
    pace: Mutex<Pace>,
    /// What `pace` says, for those who only look.
    is_slow: AtomicBool,
    is_unsettled: AtomicBool,
    /// Changes with each answer. One that is lost when two threads meet does not matter.
    answers: AtomicU32,
}

impl Speed {
    /// How a worker keeps up with questions about names.
    pub(crate) fn of_names() -> Self {
        Self { pace: Mutex::new(Pace::of_names()), ..Self::default() }
    }

    /// Whether it is slow.
    #[inline]
    pub(crate) fn is_slow(&self) -> bool {
        self.is_slow.load(Ordering::Relaxed)
    }

    /// Whether to send it a read.
    #[inline]
    pub(crate) fn turn(&self, now: Instant) -> Turn {
        if self.is_slow() { self.pace.lock().turn(now) } else { Turn::Ask }
    }

    /// After how long a read of `length` bytes is overdue.
    #[inline]
    pub(crate) fn overdue_after(&self, length: u32) -> Duration {
        self.latencies.overdue_after(length)
    }

    /// A read was answered, and took so long.
    #[inline]
    pub(crate) fn took(&self, length: u32, took: Duration) {
        self.answers.store(self.answers().wrapping_add(1), Ordering::Relaxed);
        self.latencies.took(length, took);
    }

    /// Another number than before: some read was answered meanwhile.
    #[inline]
    pub(crate) fn answers(&self) -> u32 {
        self.answers.load(Ordering::Relaxed)
    }

    /// A read was given up after so long. While the worker is slow, that says nothing of how it usually is.
    pub(crate) fn gave_up(&self, length: u32, waited: Duration) {
        if !self.is_slow() {
            self.latencies.took(length, waited);
        }
    }

    /// It answered in time, or before others. Whether it was slow until now.
    #[inline]
    pub(crate) fn in_time(&self, now: Instant) -> bool {
        self.is_unsettled.load(Ordering::Relaxed) && self.change(|pace| pace.in_time(now))
    }

    /// Another answered first; `is_clear`: from its cache. Whether it is slow because of that, and was not before.
    pub(crate) fn lost(&self, now: Instant, is_clear: bool) -> bool {
        self.change(|pace| pace.lost(now, is_clear))
    }

    /// A read waits for it that cannot be sent elsewhere. Whether it is slow, and was not before.
    pub(crate) fn still_waits(&self, now: Instant) -> bool {
        self.is_unsettled.load(Ordering::Relaxed) && self.change(|pace| pace.still_waits(now))
    }

    #[cold]
    fn change(&self, change: impl FnOnce(&mut Pace) -> bool) -> bool {
        let mut pace = self.pace.lock();
        let has_changed = change(&mut pace);
        self.is_slow.store(pace.is_slow(), Ordering::Relaxed);
        self.is_unsettled.store(!pace.is_settled(), Ordering::Relaxed);
        has_changed
    }
}
