//! Memory that pieces of files are read into on their way to a caller's buffer.

use forebay_locks::Mutex;

/// Bytes that are read at once: few beside what they are copied to, and in the processor's cache still when they are.
pub(super) const PIECE: u64 = 512 << 10;
/// How many are kept for the next reads: 8 MiB.
const KEPT: usize = 16;

/// Pieces that nobody uses. Memory that is given back is taken from the kernel again, page by page, for the next piece.
#[derive(Default)]
pub(super) struct Pieces(Mutex<Vec<Vec<u8>>>);

impl Pieces {
    /// An empty piece with room for [`PIECE`] bytes, or for the fewer that are asked for.
    pub(super) fn take(&self, length: usize) -> Vec<u8> {
        let kept = if length < PIECE as usize { None } else { self.0.lock().pop() };
        kept.unwrap_or_else(|| Vec::with_capacity(length))
    }

    /// Takes one back.
    pub(super) fn keep(&self, mut piece: Vec<u8>) {
        if piece.capacity() < PIECE as usize {
            return;
        }
        let mut kept = self.0.lock();
        if kept.len() < KEPT {
            piece.clear();
            kept.push(piece);
        }
    }
}
