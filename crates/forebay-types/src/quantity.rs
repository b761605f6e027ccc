//! Sizes and durations as people write them: `4MiB`, `4MB`, `500ms`, `5m`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(u64);

impl ByteSize {
    /// `n` bytes.
    #[must_use]
    pub const fn bytes(n: u64) -> Self {
        Self(n)
    }

    /// `n` KiB (1024 bytes each).
    #[must_use]
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }

    /// `n` MiB.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// `n` GiB.
    #[must_use]
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }

    /// The number of bytes.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

/// Why a quantity was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Not a size.
    #[error("`{0}` is not a size: write a number and a unit, as in `512KiB`, `4MiB`, `2GB`")]
    Size(String),
    /// A fraction of a byte: the unit is missing.
    #[error("`{0}` is not a whole number of bytes: write its unit, as in `{0}GiB`")]
    Fraction(String),
    /// Not a duration.
    #[error("`{0}` is not a duration: write a number and a unit, as in `500ms`, `30s`, `5m`, `1h`")]
    Duration(String),
    /// Larger than 64 bits can say.
    #[error("`{0}` is too large")]
    TooLarge(String),
}

/// Binary units count by 1024 (`KiB`, `K`), decimal ones by 1000 (`KB`).
const SIZE_UNITS: [(&str, u64); 17] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1_000),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
    ("p", 1 << 50),
    ("pib", 1 << 50),
    ("pb", 1_000_000_000_000_000),
];

const DURATION_UNITS: [(&str, u64); 7] = [
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// Splits `1.5GiB` into the number, as a fraction of integers, and the unit.
fn split_number(text: &str) -> Option<(u128, u128, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.len() > 9 || fraction.contains('.') {
        return None;
    }
    let scale = 10u128.pow(u32::try_from(fraction.len()).ok()?);
    let whole: u128 = whole.parse().ok()?;
    let fraction: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    Some((whole.checked_mul(scale)?.checked_add(fraction)?, scale, unit.trim()))
}

impl FromStr for ByteSize {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let invalid = || QuantityError::Size(text.to_owned());
        let (number, scale, unit) = split_number(text).ok_or_else(invalid)?;
        let unit = unit.to_ascii_lowercase();
        let (_, factor) = SIZE_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(invalid)?;
        if *factor == 1 && number % scale != 0 {
            return Err(QuantityError::Fraction(text.trim_end_matches(['b', 'B']).trim().to_owned()));
        }
        let bytes = number.checked_mul(u128::from(*factor)).ok_or_else(invalid)? / scale;
        u64::try_from(bytes).map(Self).map_err(|_| QuantityError::TooLarge(text.to_owned()))
    }
}

impl fmt::Display for ByteSize {
    /// The largest binary unit that is exact, so that the text parses back to the same size.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u32); 5] = [("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        for (name, shift) in UNITS {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{name}", self.0 >> shift);
            }
        }
        write!(f, "{}B", self.0)
    }
}

/// Parses `500ms`, `5m`, `1.5h`. A bare `0` needs no unit.
///
/// # Errors
/// [`QuantityError`] when the number or the unit is missing or unknown.
pub fn parse_duration(text: &str) -> Result<Duration, QuantityError> {
    let invalid = || QuantityError::Duration(text.to_owned());
    let (number, scale, unit) = split_number(text).ok_or_else(invalid)?;
    if number == 0 && unit.is_empty() {
        return Ok(Duration::ZERO);
    }
    let unit = unit.to_lowercase();
    let (_, factor) = DURATION_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(invalid)?;
    let nanos = number.checked_mul(u128::from(*factor)).ok_or_else(invalid)? / scale;
    u64::try_from(nanos).map(Duration::from_nanos).map_err(|_| QuantityError::TooLarge(text.to_owned()))
}

/// The shortest text that [`parse_duration`] reads back as the same duration.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    if nanos == 0 {
        return "0s".to_owned();
    }
    const UNITS: [(&str, u128); 5] =
        [("h", 3_600_000_000_000), ("m", 60_000_000_000), ("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)];
    for (name, factor) in UNITS {
        if nanos.is_multiple_of(factor) {
            return format!("{}{name}", nanos / factor);
        }
    }
    // Three digits, of which the last is none: a multiple of a microsecond is above.
    let fraction = format!("{:03}", nanos % 1_000);
    format!("{}.{}us", nanos / 1_000, fraction.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn binary_and_decimal_units_differ() {
        assert_eq!("4MiB".parse(), Ok(ByteSize::mib(4)));
        assert_eq!("4M".parse(), Ok(ByteSize::mib(4)));
        assert_eq!("4MB".parse(), Ok(ByteSize::bytes(4_000_000)));
        assert_eq!(" 1.5 GiB ".parse(), Ok(ByteSize::mib(1536)));
        assert_eq!("17".parse(), Ok(ByteSize::bytes(17)));
    }

    #[test]
    fn a_bad_quantity_is_refused_with_its_text() {
        for bad in ["", "MiB", "4 MiBs", "-1", "4..5M", "1e3", "99999999999999999999PiB", "٣MiB"] {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad}");
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
        assert_eq!("5x".parse::<ByteSize>().unwrap_err().to_string(), QuantityError::Size("5x".into()).to_string());
    }

    #[test]
    fn a_fraction_of_a_byte_is_a_unit_that_was_forgotten() {
        for bad in ["1.5", "0.5", "1.5B"] {
            let error = bad.parse::<ByteSize>().unwrap_err().to_string();
            assert!(error.contains("not a whole number of bytes"), "{error}");
        }
        assert_eq!("1.0".parse(), Ok(ByteSize::bytes(1)));
        assert_eq!("1.5k".parse(), Ok(ByteSize::bytes(1536)));
    }

    #[test]
    fn durations_take_the_usual_units() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(parse_duration("1.5h"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
        assert!(parse_duration("5").is_err());
    }

    proptest! {
        #[test]
        fn what_is_printed_parses_back(bytes: u64, micros in 0u64..u64::MAX / 1_000_000) {
            prop_assert_eq!(ByteSize::bytes(bytes).to_string().parse(), Ok(ByteSize::bytes(bytes)));
            let duration = Duration::from_micros(micros);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }

        #[test]
        fn a_duration_of_any_precision_is_printed_whole(nanos in prop_oneof![0u64..5000, any::<u64>()]) {
            let duration = Duration::from_nanos(nanos);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }

        #[test]
        fn no_text_makes_the_parsers_panic(text in ".*") {
            let _ = text.parse::<ByteSize>();
            let _ = parse_duration(&text);
        }
    }
}
