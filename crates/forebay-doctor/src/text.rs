//! Numbers and lists in words.

use std::collections::BTreeSet;

/// `1.5 GiB`, in the largest unit that leaves at least one of it.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    for (unit, shift) in UNITS {
        if bytes >> shift > 0 {
            let tenths = (u128::from(bytes) * 10) >> shift;
            return match tenths % 10 {
                0 => format!("{} {unit}", tenths / 10),
                tenth => format!("{}.{tenth} {unit}", tenths / 10),
            };
        }
    }
    format!("{bytes} B")
}

/// `1.5 ms`, in the largest unit that leaves at least one of it.
pub(crate) fn time(nanos: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1000)];
    for (unit, length) in UNITS {
        if nanos >= length {
            let tenths = u128::from(nanos) * 10 / u128::from(length);
            return match tenths % 10 {
                0 => format!("{} {unit}", tenths / 10),
                tenth => format!("{}.{tenth} {unit}", tenths / 10),
            };
        }
    }
    format!("{nanos} ns")
}

/// `3 days`, in the largest unit that there are two of.
pub(crate) fn span(seconds: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("days", 86_400), ("hours", 3600), ("minutes", 60), ("s", 1)];
    let found = UNITS.into_iter().find(|(_, length)| seconds / length >= 2);
    let (unit, length) = found.unwrap_or(("s", 1));
    format!("{} {unit}", seconds / length)
}

/// `12.3 Gb/s`, or `900 Mb/s` below one of them.
pub(crate) fn rate(mbps: u64) -> String {
    match (mbps, mbps % 1000 / 100) {
        (..1000, _) => format!("{mbps} Mb/s"),
        (_, 0) => format!("{} Gb/s", mbps / 1000),
        (_, tenth) => format!("{}.{tenth} Gb/s", mbps / 1000),
    }
}

/// Numbers as the kernel writes lists of them: `0-3,8`.
pub(crate) fn ranges(numbers: &BTreeSet<u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    let range = |(first, last): &(u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    ranges.iter().map(range).collect::<Vec<_>>().join(",")
}

/// Names with commas between them; `none` where there are none.
pub(crate) fn listed<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// A line without characters that a terminal obeys, cut where it gets absurd: names and files may hold anything.
pub(crate) fn printable(line: &str) -> String {
    const LONGEST: usize = 4096;
    let escaped = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    line.chars().take(LONGEST).map(escaped).collect()
}

/// The text with `user:password@` taken out of every URL in it: reports are passed on.
pub(crate) fn without_passwords(text: &str) -> String {
    const SCHEME: &str = "://";
    let mut parts = text.split(SCHEME);
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let authority_end = part.find(|c: char| "/?#,\"'`)".contains(c) || c.is_whitespace()).unwrap_or(part.len());
        let (authority, rest) = part.split_at(authority_end);
        // `container@account` is no password.
        let host = match authority.rsplit_once('@') {
            Some((user, host)) if user.contains(':') => host,
            _ => authority,
        };
        clean.push_str(SCHEME);
        clean.push_str(host);
        clean.push_str(rest);
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_does_not_get_into_the_report() {
        assert_eq!(without_passwords("http://me:secret@host:80/a@b"), "http://host:80/a@b");
        let two = "[\"/=http://me:se@cret@host\", \"/b=http://you:secret@other/x\"] http://u:p@h";
        assert_eq!(without_passwords(two), "[\"/=http://host\", \"/b=http://other/x\"] http://h");
        for same in ["s3://bucket/a:b@c", "abfs://container@account/x", "/data", "http://host/?q=a:b@c", "://", ""] {
            assert_eq!(without_passwords(same), same);
        }
    }

    #[test]
    fn sizes_are_short_and_terminals_safe() {
        assert_eq!([size(0), size(1023), size(1536), size(8 << 20)], ["0 B", "1023 B", "1.5 KiB", "8 MiB"]);
        assert_eq!(size(u64::MAX), "16777215.9 TiB");
        assert_eq!(
            [time(999), time(1500), time(20_000_000), time(3_100_000_000)],
            ["999 ns", "1.5 us", "20 ms", "3.1 s"]
        );
        assert_eq!([span(0), span(119), span(120), span(7200)], ["0 s", "119 s", "2 minutes", "2 hours"]);
        assert_eq!([span(172_799), span(172_800)], ["47 hours", "2 days"]);
        assert_eq!([rate(0), rate(999), rate(1000), rate(12_345)], ["0 Mb/s", "999 Mb/s", "1 Gb/s", "12.3 Gb/s"]);
        assert_eq!((ranges(&[0, 1, 2, 5, 7, 8].into()), ranges(&[].into())), ("0-2,5,7-8".to_owned(), String::new()));
        assert_eq!(printable("a\x1b[2Jé"), "a\\u{1b}[2Jé");
        assert_eq!((listed(["a", "b"]), listed::<&str>([])), ("a, b".to_owned(), "none".to_owned()));
    }
}
