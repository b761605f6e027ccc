//! What an origin answered.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::text::without_passwords;

/// What an origin answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginProbe {
    /// Its URL, without a password.
    pub url: String,
    /// How long the answer took, in milliseconds.
    pub took_ms: u64,
    /// Why there was none.
    pub error: Option<String>,
    /// What to do about it.
    pub remedy: Option<String>,
    /// How far our clock is ahead of the server's, in seconds, where that told its time.
    pub clock_ahead_s: Option<i64>,
}

impl OriginProbe {
    /// An origin that answered within `took`.
    #[must_use]
    pub fn answered(url: &str, took: Duration) -> Self {
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        Self { url: without_passwords(url), took_ms, ..Self::default() }
    }

    /// An origin that did not: for what reason, and what to do about it.
    #[must_use]
    pub fn failed(url: &str, took: Duration, reason: String, remedy: Option<String>) -> Self {
        Self { error: Some(without_passwords(&reason)), remedy, ..Self::answered(url, took) }
    }
}

/// The seconds since 1970 in an HTTP date such as `Sun, 06 Nov 1994 08:49:37 GMT`, the form that servers send (RFC 9110).
#[must_use]
pub fn seconds_of_date(text: &str) -> Option<i64> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut words = text.split_once(", ")?.1.split(' ');
    let day: i64 = words.next()?.parse().ok()?;
    let month = words.next()?;
    let month = MONTHS.iter().position(|name| *name == month)? as i64 + 1;
    let year: i64 = words.next()?.parse().ok()?;
    let mut time = words.next()?.split(':').map(|part| part.parse::<i64>().ok());
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    let is_sane = (1970..=9999).contains(&year) && (1..=31).contains(&day) && words.next()? == "GMT";
    if !is_sane || !(0..24).contains(&hour) || !(0..60).contains(&minute) || !(0..=60).contains(&second) {
        return None;
    }
    // Days since 1970, with years that begin in March so that the day of leap years is the last one (Hinnant,
    // chrono-Compatible Low-Level Date Algorithms).
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = year * 365 + year / 4 - year / 100 + year / 400 + day_of_year - 719_468;
    Some(days * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_servers_are_understood_and_others_are_not() {
        let seconds = |text| seconds_of_date(text);
        assert_eq!(seconds("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(seconds("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(seconds("Thu, 29 Feb 2024 23:59:59 GMT"), Some(1_709_251_199));
        assert_eq!(seconds("Fri, 01 Mar 2024 00:00:00 GMT"), Some(1_709_251_200));
        for bad in [
            "",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "Sun, 06 Nov 1994 25:49:37 GMT",
            "Sun, 0x Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun, 06 Nov 99999999999999999999 08:49:37 GMT",
        ] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }
}
