//! Which entries are answered and wait to be given to the kernel, and how their owner thread learns of it.
//!
//! Only the owner thread may submit to its ring. Another thread that has answered sets the entry's bit and, if the
//! owner sleeps in the kernel, writes to an eventfd that the ring waits on. One bit an entry is enough: an entry is
//! answered once before it is given away. One write a sleep is enough: the owner looks at all bits when it wakes. A bit beyond the
//! entries says that the thread is to end.

use std::cell::UnsafeCell;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// The bits of one ring thread, and its bell.
#[derive(Debug)]
pub(crate) struct Ready {
    words: Box<[AtomicU64]>,
    count: u32,
    sleeping: AtomicBool,
    bell: OwnedFd,
    /// Where the ring reads the bell into; nobody looks.
    counter: UnsafeCell<u64>,
}

// SAFETY: `counter` is written by the kernel alone and read by nobody.
unsafe impl Sync for Ready {}

impl Ready {
    /// For `count` entries.
    ///
    /// # Errors
    /// What `eventfd(2)` says.
    pub(crate) fn new(count: u32) -> std::io::Result<Self> {
        let words = (0..=count / 64).map(|_| AtomicU64::new(0)).collect();
        Ok(Self {
            words,
            count,
            sleeping: AtomicBool::new(false),
            bell: eventfd(0, EventfdFlags::CLOEXEC)?,
            counter: UnsafeCell::new(0),
        })
    }

    /// Entry `index` is answered. On any thread.
    pub(crate) fn set(&self, index: u32) {
        self.words[index as usize / 64].fetch_or(1 << (index % 64), Ordering::SeqCst);
        self.ring_bell();
    }

    /// The owner is to end.
    pub(crate) fn end(&self) {
        self.set(self.count);
    }

    /// Wakes the owner if it sleeps.
    fn ring_bell(&self) {
        // `SeqCst` here, in `set` and in `fall_asleep`: either the owner sees the bit, or this sees that it sleeps.
        if self.sleeping.swap(false, Ordering::SeqCst) {
            // It fails only when the counter is about to overflow, and then the owner is awake anyway.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }

    /// Takes all bits, calling `each` with the number of each entry; `None`: the end. The owner thread only.
    pub(crate) fn drain(&self, mut each: impl FnMut(Option<u32>)) {
        for (number, word) in self.words.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::Acquire);
            while bits != 0 {
                let entry = number as u32 * 64 + bits.trailing_zeros();
                each((entry < self.count).then_some(entry));
                bits &= bits - 1;
            }
        }
    }

    /// Says that the owner is about to sleep; `false` when there is something to do first.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        let idle = self.words.iter().all(|word| word.load(Ordering::SeqCst) == 0);
        if !idle {
            self.wake_up();
        }
        idle
    }

    /// The owner is awake.
    pub(crate) fn wake_up(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
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
    use std::sync::atomic::AtomicU32;

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
