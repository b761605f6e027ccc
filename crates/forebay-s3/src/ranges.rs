//! Ranges that the library reads otherwise than Amazon does. Pure.
//!
//! HTTP has a `Range` passed over that is none (RFC 9110, 14.2), and so does Amazon: with several ranges, or with its ends
//! the wrong way round, all of the object is the answer. The library takes that for an error, and numbers beyond 63 bits,
//! too, which are beyond the end of any object.

/// What a `Range` is to be taken for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Meant {
    /// What it says.
    This,
    /// The same as this one.
    Other(String),
    /// Nothing: the whole object is wanted.
    Whole,
}

/// The largest number that the library reads at the beginning of a range.
const LARGEST: u128 = i64::MAX as u128;

/// What a client means by `range`.
pub(crate) fn meant(range: &str) -> Meant {
    let ends = range.strip_prefix("bytes=").and_then(|ends| ends.split_once('-'));
    let Some((first, last)) = ends.and_then(|(first, last)| Some((number(first)?, number(last)?))) else {
        return Meant::Whole;
    };
    match (first, last) {
        (None, None) => Meant::Whole,
        (None, Some(length)) if length > u128::from(u64::MAX) => Meant::Other(format!("bytes=-{}", u64::MAX)),
        (Some(first), Some(last)) if last < first => Meant::Whole,
        (Some(first), _) if first > LARGEST => Meant::Other(format!("bytes={LARGEST}-")),
        (Some(first), Some(last)) if last > LARGEST => Meant::Other(format!("bytes={first}-")),
        _ => Meant::This,
    }
}

/// The number that these digits are, as large as numbers get here; `None` within, where there are none, and without where
/// there is anything else.
fn number(digits: &str) -> Option<Option<u128>> {
    match digits {
        "" => Some(None),
        _ if digits.bytes().all(|digit| digit.is_ascii_digit()) => Some(Some(digits.parse().unwrap_or(u128::MAX))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use s3s::dto::Range;

    use super::*;

    #[test]
    fn what_is_no_range_is_passed_over() {
        for range in [
            "",
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=5",
            "bytes=a-b",
            "bytes=1-b",
            "bytes=0-1,3-4",
            "bytes=2-1",
            "bytes=99999999999999999999-1",
            "bytes= 0-1",
            "bytes=0-1 ",
            "bytes=+0-1",
            "items=0-1",
            "0-1",
        ] {
            assert_eq!(meant(range), Meant::Whole, "{range}");
        }
    }

    #[test]
    fn numbers_of_any_length_are_numbers() {
        let huge = "9".repeat(60);
        for range in ["bytes=0-0", "bytes=0-", "bytes=-0", "bytes=-5", "bytes=9223372036854775807-"] {
            assert_eq!(meant(range), Meant::This, "{range}");
        }
        let beyond = Meant::Other("bytes=9223372036854775807-".to_owned());
        for range in ["bytes=9223372036854775808-", "bytes=18446744073709551615-", &format!("bytes={huge}-{huge}")] {
            assert_eq!(meant(range), beyond, "{range}");
        }
        assert_eq!(meant(&format!("bytes=3-{huge}")), Meant::Other("bytes=3-".to_owned()));
        assert_eq!(meant(&format!("bytes=-{huge}")), Meant::Other(format!("bytes=-{}", u64::MAX)));
    }

    proptest! {
        #[test]
        fn the_library_reads_whatever_is_a_range(range in "(bytes=)?[0-9]{0,25}-[0-9]{0,25}(,[0-9]-)?") {
            match meant(&range) {
                Meant::This => prop_assert!(Range::parse(&range).is_ok(), "{range}"),
                Meant::Other(other) => prop_assert!(Range::parse(&other).is_ok(), "{other}"),
                Meant::Whole => {}
            }
        }
    }
}
