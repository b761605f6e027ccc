//! Which entries are answered and wait to be given to the kernel, and whether their owner has to be woken for it.
//!
//! One bit for each entry: it is answered once before it is given away. A bit beyond the entries says that the thread
//! is to end. A thread that sets a bit rings the bell if the owner sleeps. Only one thread does so for each sleep: the
//! owner looks at all bits when it wakes.
//!
//! No bell is lost, since the word that says whether the owner sleeps is only ever *exchanged*: of two exchanges one
//! comes first. If the owner's comes first, the other thread finds the owner asleep. If the other thread's comes first,
//! the owner has synchronised with that thread, and finds its bit. All that the code relies on about the order of
//! threads is in this module, and modelled (`model.rs`).

use super::sync::{AtomicBool, AtomicU64, Ordering};

/// The bits of one ring thread.
#[derive(Debug)]
pub(crate) struct Answered {
    words: Box<[AtomicU64]>,
    count: u32,
    sleeping: AtomicBool,
}

impl Answered {
    /// For `count` entries.
    pub(crate) fn new(count: u32) -> Self {
        let words = (0..=count / 64).map(|_| AtomicU64::new(0)).collect();
        Self { words, count, sleeping: AtomicBool::new(false) }
    }

    /// Entry `index` is answered. Whether the owner is to be woken. On any thread.
    #[must_use]
    pub(crate) fn set(&self, index: u32) -> bool {
        self.words[index as usize / 64].fetch_or(1 << (index % 64), Ordering::AcqRel);
        self.sleeping.swap(false, Ordering::AcqRel)
    }

    /// The owner is to end; whether it is to be woken for that.
    #[must_use]
    pub(crate) fn end(&self) -> bool {
        self.set(self.count)
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
        self.sleeping.swap(true, Ordering::AcqRel);
        let idle = self.words.iter().all(|word| word.load(Ordering::Acquire) == 0);
        if !idle {
            self.wake_up();
        }
        idle
    }

    /// The owner is awake.
    pub(crate) fn wake_up(&self) {
        // Not a store: that would hide from the next exchange a thread that asked in between, and saw that the owner is
        // awake.
        self.sleeping.swap(false, Ordering::AcqRel);
    }
}
