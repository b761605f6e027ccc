//! InfiniBand's partition keys.

use crate::value::{Scalar, quoted};

/// A partition key as the subnet manager gives them out, `0x8001`: 15 bits of partition, and one of full membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionKey(u16);

impl PartitionKey {
    /// The 16 bits.
    #[must_use]
    pub fn bits(self) -> u16 {
        self.0
    }
}

impl Scalar for PartitionKey {
    fn form() -> String {
        "partition key, as in 0x8001".to_owned()
    }

    fn parse(text: &str) -> Result<Self, String> {
        let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
        let key = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
        key.map(Self).ok_or_else(|| format!("`{text}` is not a {}", Self::form()))
    }

    fn toml(&self) -> String {
        quoted(&format!("{:#06x}", self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_key_is_written_in_hexadecimal() {
        assert_eq!(PartitionKey::parse("0x8001").map(PartitionKey::bits), Ok(0x8001));
        assert_eq!(PartitionKey::parse("0x1").unwrap().toml(), "\"0x0001\"");
        for wrong in ["8001", "0x", "0x10000", "ffff", ""] {
            assert!(PartitionKey::parse(wrong).is_err(), "{wrong}");
        }
    }
}
