//! Figures as people read them: a unit, and no more than three significant digits. Rates are decimal, as those of networks are.

use crate::spread::Spread;

const MICROS: [(f64, &str); 3] = [(1.0, "µs"), (1e3, "ms"), (1e6, "s")];
const MILLIS: [(f64, &str); 2] = [(1.0, "ms"), (1e3, "s")];
const COUNTS: [(f64, &str); 4] = [(1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G")];
const BYTES: [(f64, &str); 5] = [(1.0, " B"), (1e3, " kB"), (1e6, " MB"), (1e9, " GB"), (1e12, " TB")];
const RATES: [(f64, &str); 5] = [(1.0, "B/s"), (1e3, "kB/s"), (1e6, "MB/s"), (1e9, "GB/s"), (1e12, "TB/s")];
const BINARY: [(u64, &str); 4] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];

/// Three significant digits, and all of those before the point: `0.0123`, `1.23`, `123`, `1234`. A dash for what is no number.
pub(super) fn figure(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    // Rounded first: 9.996 has two digits before the point, not one.
    let magnitude = format!("{value:.2e}");
    let exponent: i32 = magnitude.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    let digits = usize::try_from(2 - exponent).unwrap_or(0).min(9);
    format!("{value:.digits$}")
}

/// The same without zeros at the end: for the marks of an axis.
pub(super) fn short(value: f64) -> String {
    let text = figure(value);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// What the numbers of an axis are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Unit {
    /// Just numbers.
    #[default]
    Number,
    /// Bytes per second.
    Rate,
    /// Operations per second.
    Count,
    /// Microseconds.
    Micros,
    /// Milliseconds.
    Millis,
    /// Bytes.
    Size,
    /// Percent, as a number that is one already.
    Percent,
    /// Percent of a processor × seconds.
    PercentSeconds,
    /// Places in [`PERCENTILES`].
    Percentile,
}

/// The percentiles of a latency, as they are shown, the highest of all last.
pub(super) const PERCENTILES: [&str; 6] = ["p50", "p90", "p95", "p99", "p99.9", "max"];

impl Unit {
    /// A value with its unit.
    pub(super) fn write(self, value: f64) -> String {
        match self {
            Self::Number => short(value),
            Self::Rate => rate(value),
            Self::Count => count(value),
            Self::Micros => spaced(value, &MICROS, short),
            Self::Millis => spaced(value, &MILLIS, short),
            Self::Size => size(value.max(0.0) as u64),
            Self::Percent => format!("{} %", short(value)),
            Self::PercentSeconds => format!("{} %·s", count(value)),
            Self::Percentile => PERCENTILES.get(value as usize).copied().unwrap_or_default().to_owned(),
        }
    }
}

/// The unit that all of a column, or of an axis, are written in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Common {
    unit: Unit,
    /// How much one is, and its name. None where the unit has no larger and smaller ones.
    one: Option<(f64, &'static str)>,
}

impl Unit {
    /// One for all of these values: for what is compared by differences the one that fits the largest, for what is compared by ratios, as
    /// times from microseconds to seconds are, the one that fits the middle.
    pub(super) fn common(self, values: impl IntoIterator<Item = f64>) -> Common {
        let units: &[(f64, &'static str)] = match self {
            Self::Rate => &RATES,
            Self::Count => &COUNTS,
            Self::Micros => &MICROS,
            Self::Millis => &MILLIS,
            Self::Number | Self::Size | Self::Percent | Self::PercentSeconds | Self::Percentile => {
                return Common { unit: self, one: None };
            }
        };
        let usable = values.into_iter().filter(|value| value.is_finite() && *value > 0.0);
        let ends = usable.fold(None, |ends: Option<(f64, f64)>, value| {
            Some(ends.map_or((value, value), |(low, high)| (low.min(value), high.max(value))))
        });
        let fitted = match (self, ends) {
            (_, None) => 0.0,
            (Self::Micros | Self::Millis, Some((low, high))) => (low * high).sqrt(),
            (_, Some((_, high))) => high,
        };
        let one = units.iter().rev().find(|(size, _)| fitted >= size * 0.9995).or(units.first()).copied();
        Common { unit: self, one }
    }
}

impl Common {
    /// A value with the unit.
    pub(super) fn write(&self, value: f64) -> String {
        match self.one {
            None => self.unit.write(value),
            Some((size, name)) if self.unit == Unit::Count => format!("{}{name}", short(value / size)),
            Some((size, name)) => format!("{} {name}", short(value / size)),
        }
    }

    /// What a value is to be divided by.
    pub(super) fn size(&self) -> f64 {
        self.one.map_or(1.0, |(size, _)| size)
    }

    /// For the heading of a column.
    pub(super) fn name(&self) -> &'static str {
        self.one.map_or("", |(_, name)| name)
    }
}

fn scaled(value: f64, units: &[(f64, &str)], write: fn(f64) -> String) -> String {
    // 999.6 would be written with four digits.
    let fitting = units.iter().rev().find(|(size, _)| value.abs() >= size * 0.9995);
    let (size, unit) = fitting.or(units.first()).copied().unwrap_or((1.0, ""));
    format!("{}{unit}", write(value / size))
}

/// `12.3 GB/s`.
pub(super) fn rate(bytes_per_second: f64) -> String {
    format!("{}/s", scaled(bytes_per_second, &BYTES, short))
}

/// `200 Gb/s`.
pub(super) fn link(bits_per_second: f64) -> String {
    let bits = [(1.0, " b"), (1e3, " kb"), (1e6, " Mb"), (1e9, " Gb"), (1e12, " Tb")];
    format!("{}/s", scaled(bits_per_second, &bits, short))
}

/// `70.1k`.
pub(super) fn count(value: f64) -> String {
    scaled(value, &COUNTS, short)
}

fn spaced(value: f64, units: &[(f64, &'static str)], write: fn(f64) -> String) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let text = scaled(value, units, write);
    let digits = text.find(|c: char| c.is_alphabetic()).unwrap_or(text.len());
    let (figure, unit) = text.split_at(digits);
    format!("{figure} {unit}")
}

/// `62 %`, of a fraction; `0.2 %` where it is little.
pub(super) fn percent(fraction: f64) -> String {
    let percent = fraction * 100.0;
    if percent.abs() < 9.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

/// `1.32×`, in as many digits as rounds have in common.
pub(super) fn times(ratio: &Spread) -> String {
    format!("{}×", ratio.written(1.0))
}

/// Bytes as a user wrote them: `256 KiB` and `1 GiB` where they are that, else `50 MB`.
pub(super) fn size(bytes: u64) -> String {
    let binary = BINARY.iter().find(|(unit, _)| bytes >= *unit);
    match binary {
        Some((unit, name)) if bytes.is_multiple_of(*unit) => format!("{} {name}", bytes / unit),
        _ => scaled(bytes as f64, &BYTES, short),
    }
}

/// `1 job`, `2 jobs`.
pub(super) fn counted(number: u32, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_has_three_significant_digits() {
        assert_eq!(
            [0.0123, 1.0, 9.996, 12.34, 999.7, 1234.4].map(figure),
            ["0.0123", "1.00", "10.0", "12.3", "1000", "1234"]
        );
        assert_eq!([0.0, f64::NAN, f64::INFINITY, -1.5].map(figure), ["0", "-", "-", "-1.50"]);
        assert_eq!([0.5, 20.0, 100.0, 1.25].map(short), ["0.5", "20", "100", "1.25"]);
    }

    #[test]
    fn rates_and_counts_are_decimal() {
        assert_eq!([0.0, 950.0, 12.3e9, 999.7e6].map(rate), ["0 B/s", "950 B/s", "12.3 GB/s", "1 GB/s"]);
        assert_eq!([2.0, 70_100.0, 1.24e6].map(count), ["2", "70.1k", "1.24M"]);
        assert_eq!(link(200e9), "200 Gb/s");
    }

    #[test]
    fn ratios_have_the_digits_that_are_known() {
        let of = |values: &[f64]| times(&Spread::of(values.iter().copied()).unwrap());
        assert_eq!([of(&[1.316]), of(&[1.316, 1.316]), of(&[12.34, 12.9, 11.9])], ["1.3×", "1.32×", "12.3×"]);
    }

    #[test]
    fn times_have_the_unit_that_fits() {
        let micros = |value| Unit::Micros.write(value);
        assert_eq!([0.5, 85.0, 1500.0, 2e6, f64::NAN].map(micros), ["0.5 µs", "85 µs", "1.5 ms", "2 s", "-"]);
        assert_eq!([0.25, 12.0, 61_000.0].map(|value| Unit::Millis.write(value)), ["0.25 ms", "12 ms", "61 s"]);
        assert_eq!([0.002, 0.62, 1.0].map(percent), ["0.2 %", "62 %", "100 %"]);
    }

    #[test]
    fn a_column_or_an_axis_has_one_unit() {
        let written = |unit: Unit, values: &[f64]| {
            let common = unit.common(values.iter().copied());
            values.iter().map(|value| common.write(*value)).collect::<Vec<_>>()
        };
        assert_eq!(written(Unit::Micros, &[10.0, 1000.0, 100_000.0]), ["0.01 ms", "1 ms", "100 ms"]);
        assert_eq!(written(Unit::Rate, &[0.0, 5e8, 2e9]), ["0 GB/s", "0.5 GB/s", "2 GB/s"]);
        assert_eq!(written(Unit::Count, &[0.0, 20_000.0, 40_000.0]), ["0k", "20k", "40k"]);
        assert_eq!(written(Unit::Percent, &[20.0, f64::NAN]), ["20 %", "- %"]);
        let common = Unit::Micros.common([]);
        assert_eq!((common.name(), common.size()), ("µs", 1.0));
    }

    #[test]
    fn a_size_reads_as_it_was_asked_for() {
        assert_eq!([4096, 256 << 10, 1 << 30, 100 << 30].map(size), ["4 KiB", "256 KiB", "1 GiB", "100 GiB"]);
        assert_eq!([50_000_000, 10_000_000_000, 512, 1500].map(size), ["50 MB", "10 GB", "512 B", "1.5 kB"]);
    }
}
