//! What a caller may read, as a service has worked it out: a bit for each number of the service's table.
//!
//! The bits of 32 numbers stand in one word with the epoch of the table that they follow from, and bits of another
//! epoch do not count. So a word is never wrong, whichever thread wrote it and whatever has changed since. A table that
//! changes moves on to the next epoch: that takes back what all callers remember, and writes to none of them. A caller
//! takes the same memory with any number of mounts: what has a greater number than there are bits is looked up each
//! time.
//!
//! What is known of the order of threads is all in here, and modelled (`model.rs`).

use super::sync::{AtomicU64, Ordering};

/// Numbers whose bits stand in one word.
const IN_WORD: u32 = 32;
/// One cache line of them, for 256 numbers: more origins than a cluster mounts in practice.
const WORDS: usize = 8;
/// Where epochs stop to count. All tables from then on are of this one, so nothing is remembered in it.
const LAST_EPOCH: u32 = u32::MAX;

/// The numbers of what may be read, as far as they were worked out.
#[derive(Debug, Default)]
pub(crate) struct Rights {
    /// The upper half is the epoch, the lower a bit a number. They start as zeros: no table has that epoch.
    words: [AtomicU64; WORDS],
}

impl Rights {
    /// Whether the number is in by the table of `epoch`; `None` where that is not known.
    #[inline]
    pub(crate) fn has(&self, number: u32, epoch: u32) -> Option<bool> {
        // Relaxed: all that is said is in the one word.
        let word = self.words.get((number / IN_WORD) as usize)?.load(Ordering::Relaxed);
        (epoch_of(word) == epoch).then_some((word >> (number % IN_WORD)) & 1 == 1)
    }

    /// Works out by the table of `epoch` whether the number is in, and remembers it, and that of its neighbours.
    pub(crate) fn learn(&self, number: u32, epoch: u32, is_in: impl Fn(u32) -> bool) -> bool {
        let Some(word) = self.words.get((number / IN_WORD) as usize) else { return is_in(number) };
        let (first, position) = (number - number % IN_WORD, number % IN_WORD);
        let bits = (0..IN_WORD).fold(0, |bits, at| bits | u64::from(is_in(first + at)) << at);
        if epoch < LAST_EPOCH {
            // What another thread has worked out meanwhile, by this table or another, is worked out again if need be.
            word.store(u64::from(epoch) << IN_WORD | bits, Ordering::Relaxed);
        }
        (bits >> position) & 1 == 1
    }
}

fn epoch_of(word: u64) -> u32 {
    (word >> IN_WORD) as u32
}
