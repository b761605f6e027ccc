//! What files hold that are written to be read: every eight bytes tell which file they are of, and where in it they belong.
//!
//! ReadTest counted from 0 to 255, over and over. A block that is delivered in another's place looks right then, as does one of
//! another file, which is what a cache might get wrong. Here the word at index `i` of a file is `i` times an odd number (so no two
//! are equal), combined with a hash of the file's name: fast enough to be checked while it is read.

/// 2^64 divided by the golden ratio, as Fibonacci hashing takes it: it is odd, and spreads small numbers over all bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Bytes of a word.
const WORD: u64 = 8;

/// The contents of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    seed: u64,
}

impl Pattern {
    /// The contents of a file of this name, wherever it is.
    #[must_use]
    pub fn of(name: &[u8]) -> Self {
        // FNV-1a: http://www.isthe.com/chongo/tech/comp/fnv/
        let seed = name.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Self { seed }
    }

    /// Fills `into` with what belongs at `offset`.
    pub fn fill(self, offset: u64, into: &mut [u8]) {
        let head = into.len().min(to_boundary(offset));
        let (head, words) = into.split_at_mut(head);
        self.fill_part(offset, head);
        let first = offset.div_ceil(WORD);
        let mut whole = words.chunks_exact_mut(WORD as usize);
        let mut index = first;
        for word in &mut whole {
            word.copy_from_slice(&self.word(index));
            index = index.wrapping_add(1);
        }
        self.fill_part(index.wrapping_mul(WORD), whole.into_remainder());
    }

    /// The first offset at which `bytes`, which were read at `offset`, are not what belongs there.
    #[must_use]
    pub fn mismatch(self, offset: u64, bytes: &[u8]) -> Option<u64> {
        let (head, words) = bytes.split_at(bytes.len().min(to_boundary(offset)));
        if let Some(wrong) = self.mismatch_in_part(offset, head) {
            return Some(wrong);
        }
        let mut index = offset.div_ceil(WORD);
        let mut whole = words.chunks_exact(WORD as usize);
        for word in &mut whole {
            if *word != self.word(index) {
                return self.mismatch_in_part(index.wrapping_mul(WORD), word);
            }
            index = index.wrapping_add(1);
        }
        self.mismatch_in_part(index.wrapping_mul(WORD), whole.remainder())
    }

    /// What belongs at `offset`.
    #[must_use]
    pub fn byte(self, offset: u64) -> u8 {
        self.word(offset / WORD)[(offset % WORD) as usize]
    }

    fn word(self, index: u64) -> [u8; WORD as usize] {
        let spread = index.wrapping_mul(SPREAD);
        // The low bits of a product know only those of its factors: the high ones are mixed in.
        (spread ^ (spread >> 32) ^ self.seed).to_le_bytes()
    }

    /// Less than a word, which lies in one.
    fn fill_part(self, offset: u64, into: &mut [u8]) {
        into.iter_mut().zip(offset..).for_each(|(byte, at)| *byte = self.byte(at));
    }

    fn mismatch_in_part(self, offset: u64, bytes: &[u8]) -> Option<u64> {
        bytes.iter().zip(offset..).find(|(byte, at)| **byte != self.byte(*at)).map(|(_, at)| at)
    }
}

/// Bytes from `offset` to where the next word begins.
fn to_boundary(offset: u64) -> usize {
    (offset.next_multiple_of(WORD) - offset) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn files_of_two_names_and_blocks_of_one_file_differ() {
        let (a, b) = (Pattern::of(b"a"), Pattern::of(b"b"));
        let bytes = |pattern: Pattern, offset| {
            let mut bytes = vec![0; 4096];
            pattern.fill(offset, &mut bytes);
            bytes
        };
        assert_ne!(bytes(a, 0), bytes(b, 0));
        assert_eq!(a.mismatch(4 << 20, &bytes(a, 0)), Some(4 << 20));
        assert_eq!(b.mismatch(0, &bytes(a, 0)), Some(0));
        assert_eq!(a.mismatch(0, &bytes(a, 0)), None);
    }

    proptest! {
        #[test]
        fn any_range_holds_what_the_whole_file_holds_there(offset in 0u64..5000, length in 0usize..300) {
            let pattern = Pattern::of(b"file");
            let mut whole = vec![0; 5400];
            pattern.fill(0, &mut whole);
            let mut part = vec![0; length];
            pattern.fill(offset, &mut part);
            prop_assert_eq!(&part[..], &whole[offset as usize..][..length]);
            prop_assert_eq!(pattern.mismatch(offset, &part), None);
        }

        #[test]
        fn a_single_wrong_bit_is_found_where_it_is(
            offset in 0u64..5000,
            length in 1usize..300,
            at in any::<proptest::sample::Index>(),
            bit in 0u8..8,
        ) {
            let pattern = Pattern::of(b"file");
            let mut bytes = vec![0; length];
            pattern.fill(offset, &mut bytes);
            let at = at.index(length);
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(pattern.mismatch(offset, &bytes), Some(offset + at as u64));
        }
    }
}
