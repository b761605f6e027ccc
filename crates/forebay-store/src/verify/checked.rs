//! Which sectors of a run were found right, and in which epoch. What is known of the order of threads is all in here, and modelled
//! (`model.rs`).

use std::cmp::Ordering::{Equal, Greater, Less};
use std::ops::Range;

use forebay_types::MAX_SECTORS;

use super::sync::{AtomicU64, Ordering};

/// Sectors whose bits stand in one word.
const IN_WORD: u32 = 32;

/// The sectors of a run that were found right, and when. Counted from the first of the run.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    /// The upper half is the epoch, the lower a bit a sector.
    words: [AtomicU64; (MAX_SECTORS / IN_WORD) as usize],
}

impl Checked {
    /// Whether all of these were found right in `epoch`.
    #[inline]
    pub(crate) fn has(&self, sectors: Range<u32>, epoch: u32) -> bool {
        self.words(sectors).all(|(word, bits)| {
            let now = word.load(Ordering::Relaxed);
            epoch_of(now) == epoch && now & bits == bits
        })
    }

    /// These were found right by a check that began in `epoch`.
    pub(crate) fn note(&self, sectors: Range<u32>, epoch: u32) {
        for (word, bits) in self.words(sectors) {
            // An error is a word that needs no change.
            let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| match epoch_of(now).cmp(&epoch) {
                Less => Some(u64::from(epoch) << IN_WORD | bits),
                Equal => (now & bits != bits).then_some(now | bits),
                Greater => None,
            });
        }
    }

    /// The words in which the bits of these sectors stand, and which bits of each.
    fn words(&self, sectors: Range<u32>) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let (first, last) = (sectors.start / IN_WORD, sectors.end.div_ceil(IN_WORD));
        self.words.iter().zip(0..last).skip(first as usize).map(move |(word, number)| {
            let from = sectors.start.saturating_sub(number * IN_WORD);
            let to = (sectors.end - number * IN_WORD).min(IN_WORD);
            (word, ((1 << (to - from)) - 1) << from)
        })
    }
}

fn epoch_of(word: u64) -> u32 {
    (word >> IN_WORD) as u32
}
