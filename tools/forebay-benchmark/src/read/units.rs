//! Times and sizes as the study writes them.

/// `0.42 ms`, `12.3 ms`, `1230 ms`.
#[must_use]
pub fn milliseconds(milliseconds: f64) -> String {
    let digits = match milliseconds {
        ..10.0 => 2,
        ..100.0 => 1,
        _ => 0,
    };
    format!("{milliseconds:.digits$} ms")
}

/// `50 MB`, `2.5 GB`, decimal as the study's.
#[must_use]
pub fn size(bytes: u64) -> String {
    let (unit, name) = match bytes {
        1_000_000_000.. => (1e9, "GB"),
        1_000_000.. => (1e6, "MB"),
        1_000.. => (1e3, "kB"),
        _ => (1.0, "bytes"),
    };
    let value = format!("{:.2}", bytes as f64 / unit);
    format!("{} {name}", value.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_short() {
        assert_eq!(
            [size(999), size(4096), size(2_500_000), size(40_000_000_000)],
            ["999 bytes", "4.1 kB", "2.5 MB", "40 GB"]
        );
        assert_eq!([milliseconds(0.4), milliseconds(12.34), milliseconds(1234.5)], ["0.40 ms", "12.3 ms", "1234 ms"]);
    }
}
