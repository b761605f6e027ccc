//! Bytes that tell where they belong: each word of 8 depends on its position and on a seed.

/// The seed of block `index` of the server.
pub(crate) fn block_seed(index: u32) -> u64 {
    0x666f_7265_6261_7900 ^ u64::from(index)
}

/// Fills `bytes`, which begin at `position` of the pattern of `seed`.
pub(crate) fn fill(seed: u64, position: u64, bytes: &mut [u8]) {
    let (head, words) = bytes.split_at_mut(to_next_word(position).min(bytes.len()));
    head.copy_from_slice(&word_at(seed, position / 8)[(position % 8) as usize..][..head.len()]);
    let first = position.div_ceil(8);
    for (index, word) in words.chunks_mut(8).enumerate() {
        word.copy_from_slice(&word_at(seed, first + index as u64)[..word.len()]);
    }
}

/// The first byte that is not as [`fill`] makes it: its index in `bytes`, what should be there, what is.
pub(crate) fn first_difference(seed: u64, position: u64, bytes: &[u8]) -> Option<(usize, u8, u8)> {
    let differs = |expected: &[u8], found: &[u8]| {
        let at = found.iter().zip(expected).position(|(found, expected)| found != expected)?;
        Some((at, expected[at], found[at]))
    };
    let (head, words) = bytes.split_at(to_next_word(position).min(bytes.len()));
    let first = position.div_ceil(8);
    differs(&word_at(seed, position / 8)[(position % 8) as usize..], head).or_else(|| {
        words.chunks(8).enumerate().find_map(|(index, found)| {
            let (at, expected, found) = differs(&word_at(seed, first + index as u64), found)?;
            Some((head.len() + index * 8 + at, expected, found))
        })
    })
}

/// Bytes from `position` to the next word.
fn to_next_word(position: u64) -> usize {
    (position.next_multiple_of(8) - position) as usize
}

/// A multiplication that spreads every bit upwards, and a shift that brings the upper ones down again (splitmix64's).
fn word_at(seed: u64, word: u64) -> [u8; 8] {
    let mixed = (seed ^ word.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 31)).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_byte_that_is_wrong_or_of_another_place_is_found() {
        let mut bytes = vec![0; 4099];
        fill(7, 64, &mut bytes);
        assert_eq!(first_difference(7, 64, &bytes), None);
        assert!(first_difference(8, 64, &bytes).is_some() && first_difference(7, 72, &bytes).is_some());
        let expected = bytes[4098];
        bytes[4098] ^= 1;
        assert_eq!(first_difference(7, 64, &bytes), Some((4098, expected, expected ^ 1)));
    }

    proptest! {
        #[test]
        fn every_part_of_the_pattern_is_the_same_as_the_whole(position in 0_u64..40, length in 0_usize..40) {
            let mut whole = [0; 80];
            fill(3, 0, &mut whole);
            let mut part = vec![0; length];
            fill(3, position, &mut part);
            prop_assert_eq!(&part[..], &whole[position as usize..][..length]);
            prop_assert_eq!(first_difference(3, position, &part), None);
            if let Some(last) = part.last_mut() {
                *last ^= 0x80;
                prop_assert_eq!(first_difference(3, position, &part).unwrap().0, length - 1);
            }
        }
    }
}
