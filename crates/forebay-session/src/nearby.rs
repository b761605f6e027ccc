//! Short pieces of several reads in one block: a worker in this process that lacks them is to fetch together what lies close together.
//!
//! A request to an origin costs as much as some hundred KiB, and reads that come one by one make one each. Those of a batch are known
//! before the first of them is carried out. Only those that may be under way together are looked at, and only short pieces: longer
//! ones are worth a request. So what is fetched before its reader has a place is a few hundred KiB for each read that is under way.
//! A read that comes alone is none of several, and has nothing fetched for it but what it needs.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_client::OpenFile;
use forebay_types::Piece;

/// Bytes between two pieces that are fetched though nobody wants them, unless the caller says how many.
pub(crate) const GAP: u32 = 512 << 10;
/// The longest piece that is fetched together with others.
const SHORT: u32 = 256 << 10;

/// Short pieces of one block.
pub(crate) struct Nearby {
    file: Arc<OpenFile>,
    index: u64,
    /// Each a place and a length in the block.
    ranges: Vec<(u32, u32)>,
    gap: u32,
    has_begun: AtomicBool,
}

impl Nearby {
    /// `pieces` are of one block of `file`.
    pub(crate) fn new(file: Arc<OpenFile>, index: u64, pieces: &[(usize, Piece)], gap: u32) -> Self {
        let ranges = pieces.iter().map(|(_, piece)| (piece.offset, piece.length)).collect();
        Self { file, index, ranges, gap, has_begun: AtomicBool::new(false) }
    }

    /// One of the reads is about to begin. The first of them has all pieces fetched.
    pub(crate) fn begin(&self) {
        if !self.has_begun.swap(true, Ordering::Relaxed) {
            self.file.expect_reads(self.index, &self.ranges, self.gap);
        }
    }
}

/// The blocks in which several reads have short pieces, and those pieces. `pieces` come with the number of their read and their file.
pub(crate) fn shared_blocks<F: Eq + Hash>(
    pieces: impl Iterator<Item = (usize, F, Piece)>,
) -> HashMap<(F, u64), Vec<(usize, Piece)>> {
    let mut blocks: HashMap<(F, u64), Vec<(usize, Piece)>> = HashMap::new();
    for (read, file, piece) in pieces.filter(|(_, _, piece)| piece.length <= SHORT) {
        blocks.entry((file, piece.index)).or_default().push((read, piece));
    }
    blocks.retain(|_, pieces| pieces.len() > 1);
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_pieces_of_one_block_of_one_file_belong_together() {
        let piece = |index, offset, length| Piece { index, offset, length };
        let pieces = [
            (0, 'a', piece(0, 5, 10)),
            (1, 'a', piece(1, 5, 10)),
            (2, 'b', piece(0, 5, 10)),
            (3, 'a', piece(0, 0, SHORT + 1)),
            (4, 'a', piece(0, 90, SHORT)),
        ];
        let together = vec![(0, pieces[0].2), (4, pieces[4].2)];
        assert_eq!(shared_blocks(pieces.into_iter()), HashMap::from([(('a', 0), together)]));
        assert!(shared_blocks(pieces.into_iter().take(4)).is_empty());
    }
}
