//! How the owner thread of a ring learns what other threads have answered.
//!
//! Only the owner thread may submit to its ring. Another thread that has answered sets the entry's bit ([`Answered`]) and, if the
//! owner sleeps in the kernel, writes to an eventfd that the ring waits on.

use std::cell::UnsafeCell;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::event::{EventfdFlags, eventfd};

use super::answered::Answered;

/// The bits of one ring thread, and its bell.
#[derive(Debug)]
pub(crate) struct Ready {
    answered: Answered,
    bell: OwnedFd,
    /// Where the ring reads the bell into; the value is not used.
    counter: UnsafeCell<u64>,
}

// SAFETY: `counter` is written by the kernel alone, and never read.
unsafe impl Sync for Ready {}

impl Ready {
    /// For `count` entries.
    ///
    /// # Errors
    /// What `eventfd(2)` says.
    pub(crate) fn new(count: u32) -> std::io::Result<Self> {
        Ok(Self {
            answered: Answered::new(count),
            bell: eventfd(0, EventfdFlags::CLOEXEC)?,
            counter: UnsafeCell::new(0),
        })
    }

    /// Entry `index` is answered. On any thread.
    pub(crate) fn set(&self, index: u32) {
        if self.answered.set(index) {
            self.ring_bell();
        }
    }

    /// The owner is to end.
    pub(crate) fn end(&self) {
        if self.answered.end() {
            self.ring_bell();
        }
    }

    fn ring_bell(&self) {
        // It fails only when the counter is about to overflow, and then the owner is awake anyway.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Takes all bits, calling `each` with the number of each entry; `None`: the end. The owner thread only.
    pub(crate) fn drain(&self, each: impl FnMut(Option<u32>)) {
        self.answered.drain(each);
    }

    /// Says that the owner is about to sleep; `false` when there is something to do first.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.answered.fall_asleep()
    }

    /// The owner is awake.
    pub(crate) fn wake_up(&self) {
        self.answered.wake_up();
    }

    /// What to wait for beside the ring's own completions.
    pub(crate) fn bell(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    /// Eight bytes that the ring may read the bell into.
    pub(crate) fn counter(&self) -> *mut u8 {
        self.counter.get().cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn drained(ready: &Ready) -> Vec<Option<u32>> {
        let mut all = Vec::new();
        ready.drain(|entry| all.push(entry));
        all
    }

    #[test]
    fn what_was_set_is_taken_once() {
        for count in [1, 63, 64, 65, 200] {
            let ready = Ready::new(count).unwrap();
            ready.set(count - 1);
            ready.set(0);
            ready.end();
            assert!(!ready.fall_asleep());
            let mut expected = vec![Some(0), Some(count - 1), None];
            expected.dedup();
            assert_eq!(drained(&ready), expected);
            assert_eq!(drained(&ready), []);
            assert!(ready.fall_asleep());
        }
    }

    #[test]
    fn a_sleeper_is_woken_for_every_answer_and_rung_for_at_most_once_a_sleep() {
        const THREADS: u32 = 4;
        const ROUNDS: u32 = 2000;
        let ready = Ready::new(THREADS).unwrap();
        let taken = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (ready, taken) = (&ready, &taken);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        // An entry is answered again only after it was given away.
                        while taken.load(Ordering::Acquire) < round {
                            std::thread::yield_now();
                        }
                        ready.set(thread);
                    }
                });
            }
            let mut counts = [0; THREADS as usize];
            while counts.iter().any(|count| *count < ROUNDS) {
                ready.drain(|entry| counts[entry.unwrap() as usize] += 1);
                taken.store(*counts.iter().min().unwrap(), Ordering::Release);
                if counts.iter().all(|count| *count == ROUNDS) {
                    break;
                }
                if ready.fall_asleep() {
                    // A bell that is lost would be waited for until the test is killed.
                    let mut counter = [0; 8];
                    rustix::io::read(&ready.bell, &mut counter).unwrap();
                    assert!(u64::from_ne_bytes(counter) <= 2, "one for this sleep, one that came while it ended");
                }
                ready.wake_up();
            }
        });
    }
}
