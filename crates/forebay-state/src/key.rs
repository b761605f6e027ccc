//! Keys: what is one, and how any name becomes a segment of one.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};

use crate::StateError;

/// The longest key, in bytes.
pub const MAX_KEY_LENGTH: usize = 512;

/// What stays as it is in a segment, beside letters and digits.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// Stands for the empty name: no name is encoded to it, and no segment may be empty.
const EMPTY: &str = "%";

/// Any name as one segment of a key: letters, digits, `-`, `_`, `.`, `~`, and `%XX` for every other byte.
///
/// Names that differ have segments that differ. A segment may be three times as long as its name.
#[must_use]
pub fn encode_segment(name: impl AsRef<[u8]>) -> String {
    let name = name.as_ref();
    if name.is_empty() { EMPTY.to_owned() } else { percent_encode(name, ESCAPED).to_string() }
}

/// The reverse of [`encode_segment`]; `None` for what it cannot have made.
#[must_use]
pub fn decode_segment(segment: &str) -> Option<Vec<u8>> {
    let name = if segment == EMPTY { Vec::new() } else { percent_decode_str(segment).collect() };
    (encode_segment(&name) == segment).then_some(name)
}

/// Whether `key` can be stored.
pub(crate) fn check(key: &str) -> Result<(), StateError> {
    let reason = if key.is_empty() {
        "it is empty"
    } else if key.len() > MAX_KEY_LENGTH {
        "it is too long"
    } else if key.starts_with('/') || key.ends_with('/') || key.contains("//") {
        "it has an empty segment"
    } else if key.contains(char::is_control) {
        "it has a control character"
    } else {
        return Ok(());
    };
    // Errors are shown and logged: a key of any length is not.
    let shown = key.char_indices().nth(80).map_or(key, |(end, _)| &key[..end]);
    Err(StateError::InvalidKey { key: shown.escape_debug().to_string(), reason })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_name_becomes_one_segment_and_comes_back(name in proptest::collection::vec(any::<u8>(), 0..64)) {
            let segment = encode_segment(&name);
            check(&segment).unwrap();
            prop_assert!(!segment.contains('/'));
            prop_assert_eq!(decode_segment(&segment), Some(name));
        }
    }

    #[test]
    fn a_segment_has_one_spelling() {
        assert_eq!(encode_segment("/s3/grüße"), "%2Fs3%2Fgr%C3%BC%C3%9Fe");
        for other in ["", "%2f", "%41", "%4", "a/b", "a b", "%%"] {
            assert_eq!(decode_segment(other), None, "{other}");
        }
    }

    #[test]
    fn a_key_has_segments_and_a_length() {
        for good in ["a", "a/b/c", "%", "mounts/%2Fs3", &"x".repeat(512), "grüße"] {
            check(good).unwrap();
        }
        for bad in ["", "/", "/a", "a/", "a//b", "a\0", "a\n", &"x".repeat(513), &"ü".repeat(300)] {
            let error = check(bad).unwrap_err();
            assert!(error.to_string().len() < 500, "{error}");
        }
    }
}
