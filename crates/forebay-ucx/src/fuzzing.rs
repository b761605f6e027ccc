//! What a fuzzer feeds to the reader of the keys of a peer's memory, before UCX has them.

use crate::remote::{Area, KEY_PREFIX, KEY_ROOM};

/// A peer exposed memory by `key`, and its bytes are asked for: each time from an offset on, and so many.
///
/// # Panics
/// When UCX would read behind what came and the zeros after it; when an address is outside of the memory, or bytes in it have none; when
/// a refusal is more than a line of a log.
pub fn key(key: &[u8], accesses: &[(u64, u32)]) {
    let (area, padded) = match Area::split(key) {
        Ok(read) => read,
        Err(error) => return assert!(!error.to_string().contains(char::is_control), "{error}"),
    };
    let (packed, zeros) = padded.split_at(key.len() - KEY_PREFIX);
    assert!(packed == &key[KEY_PREFIX..] && zeros.len() >= KEY_ROOM && zeros.iter().all(|byte| *byte == 0));
    let whole = |number: u64| u128::from(number);
    let end = whole(area.base) + whole(area.length);
    assert!(end <= whole(u64::MAX), "the memory ends where addresses do");
    for (offset, length) in accesses {
        let last = whole(*offset) + u128::from(*length);
        match area.address(*offset, *length as usize) {
            Ok(address) => assert!(address >= area.base && whole(address) + u128::from(*length) <= end),
            Err(_) => assert!(last > whole(area.length)),
        }
    }
}
