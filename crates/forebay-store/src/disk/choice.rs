//! Which disk a run is written to: rendezvous hashing of its block, weighted by free space. Pure.
//!
//! Where a run lies is in the index, so the choice need not be the same for ever; that it mostly is keeps the runs of
//! one block together. The score is -ln(u) / weight with u uniform in (0, 1), as in "weighted distributed hash tables"
//! (Schindelhauer and Schomaker, 2005): each disk wins in proportion to its weight.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use forebay_types::BlockKey;

/// The number of the disk, of those that take writes (with their free bytes).
pub(crate) fn choose(key: &BlockKey, disks: impl Iterator<Item = (usize, u64)>) -> Option<usize> {
    let score = |disk: usize, free: u64| {
        let hash = FixedState::default().hash_one((disk, key));
        // The upper 53 bits as a fraction in (0, 1).
        let uniform = ((hash >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        -uniform.ln() / free.max(1) as f64
    };
    disks.map(|(disk, free)| (score(disk, free), disk)).min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, disk)| disk)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::FileId;

    #[test]
    fn disks_win_in_proportion_to_their_free_space() {
        let mut wins = [0u32; 3];
        for index in 0..10_000 {
            let key = BlockKey { file: FileId([3; 16]), index };
            wins[choose(&key, [(0, 100), (1, 300), (2, 0)].into_iter()).unwrap()] += 1;
        }
        assert!((2_200..2_800).contains(&wins[0]), "{wins:?}");
        assert!(wins[2] < 100, "{wins:?}");
        let key = BlockKey { file: FileId([3; 16]), index: 0 };
        assert_eq!(choose(&key, std::iter::empty()), None);
        assert_eq!(choose(&key, [(1, 0)].into_iter()), Some(1));
    }
}
