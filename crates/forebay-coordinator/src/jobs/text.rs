//! How paths and sizes are written in JSON.
//!
//! What a person writes is plain text. What only this crate reads back, the place in a walk, must hold any name that a
//! file can have: there `%` and whatever is not UTF-8 are written as `%XX`.

use forebay_types::FsPath;
use serde::{Deserialize as _, Deserializer, Serializer, de, ser};

/// Bytes as text that [`unescape`] reads back.
pub(super) fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character == '%' { out.push_str("%25") } else { out.push(character) }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// The reverse of [`escape`]; `None` for what it cannot have made.
pub(super) fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte == b'%' {
            let (digits, tail) = rest.split_at_checked(2)?;
            out.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = tail;
        } else {
            out.push(byte);
        }
    }
    Some(out)
}

/// Paths that people write.
pub(super) mod path {
    use super::*;

    pub(in crate::jobs) fn serialize<S: Serializer>(path: &FsPath, to: S) -> Result<S::Ok, S::Error> {
        let text = std::str::from_utf8(path.as_bytes());
        to.serialize_str(text.map_err(|_| ser::Error::custom(format!("`{path}` is not UTF-8")))?)
    }

    pub(in crate::jobs) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<FsPath, D::Error> {
        FsPath::new(String::deserialize(from)?).map_err(de::Error::custom)
    }
}

/// Sizes that people write, where one may be left out.
pub(super) mod size {
    use forebay_types::ByteSize;

    use super::*;

    #[expect(clippy::ref_option, reason = "serde's form")]
    pub(in crate::jobs) fn serialize<S: Serializer>(size: &Option<ByteSize>, to: S) -> Result<S::Ok, S::Error> {
        match size {
            Some(size) => to.collect_str(size),
            None => to.serialize_none(),
        }
    }

    pub(in crate::jobs) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ByteSize>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(de::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_name_comes_back(name in prop::collection::vec(any::<u8>(), 0..40)) {
            prop_assert_eq!(unescape(&escape(&name)), Some(name));
        }

        #[test]
        fn no_text_makes_it_panic(text in ".*") {
            let _ = unescape(&text);
        }
    }

    #[test]
    fn names_stay_readable() {
        assert_eq!(escape("/s3/Grüße".as_bytes()), "/s3/Grüße");
        assert_eq!(escape(b"100%\xff"), "100%25%FF");
        assert_eq!((unescape("%"), unescape("%zz")), (None, None));
    }
}
