//! Permissions as people write them: octal digits.

use std::fmt;

use crate::value::{Scalar, quoted};

/// The permissions of files or directories: nine bits, without set-user-ID and its like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions(u16);

impl Permissions {
    /// These bits; others are dropped.
    pub(crate) const fn new(bits: u16) -> Self {
        Self(bits & 0o777)
    }

    /// The bits.
    #[must_use]
    pub fn bits(self) -> u16 {
        self.0
    }
}

impl fmt::Display for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

/// Written in quotes, since a bare `644` of TOML is a decimal number.
impl Scalar for Permissions {
    fn form() -> String {
        "octal permissions".to_owned()
    }

    fn parse(text: &str) -> Result<Self, String> {
        let digits = text.strip_prefix("0o").unwrap_or(text);
        let is_octal = !digits.is_empty() && digits.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
        let bits = is_octal.then(|| u16::from_str_radix(digits, 8).ok()).flatten().filter(|bits| *bits <= 0o777);
        bits.map(Self).ok_or_else(|| format!("`{text}` is not octal permissions from 0000 to 0777, as in `0644`"))
    }

    fn toml(&self) -> String {
        quoted(&self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::{Raw, Setting as _};

    #[test]
    fn permissions_are_octal_digits_in_quotes() {
        for (text, bits) in [("0644", 0o644), ("755", 0o755), ("0o600", 0o600), ("0", 0)] {
            assert_eq!(Permissions::parse(text), Ok(Permissions(bits)), "{text}");
        }
        for text in ["", "0888", "1777", "rwxr-xr-x", "-644", "+644", "0o", "99999999999"] {
            assert!(Permissions::parse(text).is_err(), "{text}");
        }
        assert_eq!(Permissions::read(&Raw::Number(644)), Err("expected octal permissions, in quotes".to_owned()));
        assert_eq!(Permissions(0o44).to_string(), "0044");
    }
}
