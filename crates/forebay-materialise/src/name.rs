//! What a file is called: its version's name and its length. Pure.
//!
//! The length is in the name so that a look at the directory tells what each file takes, and whether it is whole, before a
//! byte of it is read. Whatever else lies in the directory is not ours, or half of a file that a crash left.

use std::fmt;

use forebay_types::FileId;

/// The name of a file in its backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    pub(crate) id: FileId,
    /// The file's length in bytes.
    pub(crate) size: u64,
}

/// What ends the name of a file of checksums.
const CHECKSUMS: &str = ".sums";
/// Digits of a [`FileId`].
const ID: usize = 32;

impl Name {
    /// The name of the file of its checksums.
    pub(crate) fn checksums(&self) -> String {
        format!("{self}{CHECKSUMS}")
    }

    /// The directory that it lies in: one of 256, so that none of them grows too long.
    pub(crate) fn shard(&self) -> String {
        format!("{:02x}", self.id.0[0])
    }

    /// Reads what [`fmt::Display`] wrote, and nothing else.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (id, size) = text.split_at_checked(ID)?;
        let size = size.strip_prefix('-')?;
        let is_hex = id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        // The digits of a number are never signed and have no zeros in front.
        let name = Self { id: FileId(u128::from_str_radix(id, 16).ok()?.to_be_bytes()), size: size.parse().ok()? };
        (is_hex && name.to_string() == text).then_some(name)
    }

    /// Reads what [`Name::checksums`] wrote, and nothing else.
    pub(crate) fn parse_checksums(text: &str) -> Option<Self> {
        Self::parse(text.strip_suffix(CHECKSUMS)?)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.id, self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_name_is_read_as_it_was_written(id in any::<[u8; 16]>(), size in any::<u64>()) {
            let name = Name { id: FileId(id), size };
            prop_assert_eq!(Name::parse(&name.to_string()), Some(name));
            prop_assert_eq!(Name::parse_checksums(&name.checksums()), Some(name));
            prop_assert_eq!(Name::parse(&name.checksums()), None);
            prop_assert!(name.to_string().starts_with(&name.shard()));
        }

        #[test]
        fn whatever_else_there_is_is_no_name(text in "[0-9a-fA-F+-]{0,40}|.*") {
            if let Some(name) = Name::parse(&text) {
                prop_assert_eq!(name.to_string(), text);
            }
        }
    }

    #[test]
    fn there_is_one_way_to_write_a_name() {
        let id = "00112233445566778899aabbccddeeff";
        assert!(Name::parse(&format!("{id}-12")).is_some());
        for other in ["-012", "-+12", "-", "", "-12 ", "12", "-18446744073709551616"] {
            assert_eq!(Name::parse(&format!("{id}{other}")), None, "{other}");
        }
        assert_eq!(Name::parse(&format!("{}-1", id.to_uppercase())), None);
        assert_eq!(Name::parse("é".repeat(17).as_str()), None);
    }
}
