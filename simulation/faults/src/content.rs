//! What files hold: bytes that follow from a number, so that a reader of any of them can tell whether they are right
//! although no copy of them is kept.
//!
//! The first eight bytes of a file are its number; a shorter one has the beginning of that.

/// The word at `index` of the file with this number.
fn word(number: u64, index: u64) -> u64 {
    if index == 0 {
        return number;
    }
    let mut mixed = number ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 32)
}

/// The bytes from `offset` on.
pub(crate) fn fill(number: u64, offset: u64, bytes: &mut [u8]) {
    let mut at = offset;
    let mut rest = bytes;
    while !rest.is_empty() {
        let within = (at % 8) as usize;
        let take = (8 - within).min(rest.len());
        let (some, others) = rest.split_at_mut(take);
        some.copy_from_slice(&word(number, at / 8).to_le_bytes()[within..within + take]);
        (at, rest) = (at + take as u64, others);
    }
}

/// The whole file.
pub(crate) fn whole(number: u64, size: u64) -> Vec<u8> {
    let mut bytes = vec![0; size as usize];
    fill(number, 0, &mut bytes);
    bytes
}

/// Where `bytes`, which should be those from `offset` on, first differ.
pub(crate) fn first_difference(number: u64, offset: u64, bytes: &[u8]) -> Option<u64> {
    let mut at = offset;
    let mut rest = bytes;
    while !rest.is_empty() {
        let within = (at % 8) as usize;
        let take = (8 - within).min(rest.len());
        let right = &word(number, at / 8).to_le_bytes()[within..within + take];
        if rest[..take] != *right {
            let differs = right.iter().zip(rest).position(|(right, got)| right != got).unwrap_or(0);
            return Some(at + differs as u64);
        }
        (at, rest) = (at + take as u64, &rest[take..]);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_piece_of_a_file_can_be_told() {
        let file = whole(77, 1003);
        for (start, end) in [(0, 1003), (0, 3), (5, 9), (8, 16), (13, 1001)] {
            let mut piece = vec![0; end - start];
            fill(77, start as u64, &mut piece);
            assert_eq!(piece, file[start..end]);
            assert_eq!(first_difference(77, start as u64, &piece), None);
            let last = piece.len() - 1;
            piece[last] ^= 1;
            assert_eq!(first_difference(77, start as u64, &piece), Some(end as u64 - 1));
        }
        assert!(first_difference(78, 0, &file).is_some());
    }
}
