//! Figures as people read them, for sentences.

use crate::record::{Case, Pattern};
use crate::spread::{Spread, written};

/// Digits of what is known exactly.
const DIGITS: usize = 3;

/// Reads of so many bytes are for throughput; of smaller ones it counts how many there are.
pub(super) const LARGE: u64 = 64 << 10;

/// `9.52 GB/s`, `866 MB/s`.
pub(super) fn rate(bytes_per_second: f64) -> String {
    rate_in(bytes_per_second, DIGITS)
}

/// The same of what was measured, in as many digits as are known.
pub(super) fn measured_rate(bytes_per_second: &Spread) -> String {
    rate_in(bytes_per_second.middle, bytes_per_second.digits())
}

fn rate_in(bytes_per_second: f64, digits: usize) -> String {
    in_units(bytes_per_second, digits, &[(1e9, "GB/s"), (1e6, "MB/s")])
}

/// `83 µs`, `2.01 ms`, `1.3 s`, in as many digits as are known.
pub(super) fn measured_time(micros: &Spread) -> String {
    in_units(micros.middle, micros.digits(), &[(1e6, "s"), (1e3, "ms"), (1.0, "µs")])
}

/// In the largest unit of which it is one.
fn in_units(value: f64, digits: usize, units: &[(f64, &str)]) -> String {
    // 999.6 would be written with four digits.
    let fitting = units.iter().find(|(size, _)| value >= size * 0.9995).or(units.last());
    let (size, unit) = fitting.copied().unwrap_or((1.0, ""));
    format!("{} {unit}", written(value / size, digits))
}

/// ` ±3 % of 3 rounds`; ` (one round)`.
pub(super) fn rounds(spread: &Spread) -> String {
    match spread.part() {
        Some(part) => format!("±{} of {} rounds", percent(part), spread.rounds),
        None => "one round".to_owned(),
    }
}

/// `91 %`.
pub(super) fn percent(fraction: f64) -> String {
    format!("{:.0} %", fraction * 100.0)
}

/// `6.8 times`, `23 times`.
pub(super) fn times(factor: f64) -> String {
    if factor < 10.0 { format!("{factor:.1} times") } else { format!("{factor:.0} times") }
}

/// `1 job`, `16 jobs`.
pub(super) fn jobs(count: u32) -> String {
    format!("{count} job{}", if count == 1 { "" } else { "s" })
}

/// `70.1k operations/s`.
fn measured_operations(per_second: &Spread) -> String {
    let units = [(1e6, "M operations/s"), (1e3, "k operations/s"), (1.0, "operations/s")];
    let text = in_units(per_second.middle, per_second.digits(), &units);
    text.replace(" k", "k").replace(" M", "M")
}

/// `200 Gb/s`.
pub(super) fn bits(bits_per_second: f64) -> String {
    let gigabits = bits_per_second / 1e9;
    if gigabits < 10.0 { format!("{gigabits:.1} Gb/s") } else { format!("{gigabits:.0} Gb/s") }
}

/// `25 MiB`, `1.6 GiB`, `100 GiB`: sizes of data, which need not be exact.
pub(super) fn bytes(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.iter().find(|(_, power)| bytes >= 1 << power) {
        None => format!("{bytes} B"),
        Some((unit, power)) => {
            let count = bytes as f64 / (1_u64 << power) as f64;
            if count < 10.0 { format!("{count:.1} {unit}") } else { format!("{count:.0} {unit}") }
        }
    }
}

/// `256 KiB`, `4 KiB`, `1 MiB`.
pub(super) fn block(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 && bytes % (1 << 20) == 0 => format!("{} MiB", bytes >> 20),
        bytes if bytes >= 1 << 10 && bytes % (1 << 10) == 0 => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

/// `depth 8`, where a job has not as many operations under way as is usual for the pattern.
pub(super) fn depth(case: &Case) -> Option<String> {
    let usual = match case.pattern {
        Pattern::Shared => 1,
        Pattern::Distinct => 32,
    };
    (case.depth != usual).then(|| format!("depth {}", case.depth))
}

/// What is told of reads: operations of small blocks, bytes of large ones.
pub(super) fn speed(case: &Case, bytes_per_second: &Spread, operations_per_second: &Spread) -> String {
    if case.block_bytes < LARGE { measured_operations(operations_per_second) } else { measured_rate(bytes_per_second) }
}

/// How a figure compares: `40 % more`, `29 % less`, `3.0 times as much`, `the same`. All ratios of a sentence are of the same by the
/// same, so that each says which way it points.
pub(super) fn more_or_less(ratio: f64, [more, less, much]: [&str; 3]) -> String {
    match (ratio - 1.0) * 100.0 {
        percent if percent >= 100.0 => format!("{} as {much}", times(ratio)),
        percent if percent >= 0.5 => format!("{percent:.0} % {more}"),
        percent if percent <= -0.5 => format!("{:.0} % {less}", -percent),
        _ => "the same".to_owned(),
    }
}

/// Which sweep it is: `forebay, warm, multiple files, shared, sequential, 256 KiB`.
pub(super) fn sweep(case: &Case) -> String {
    use crate::record::Layout;
    let files = match case.layout {
        Layout::Single => "single file".to_owned(),
        Layout::Multiple => format!("multiple files, {}", case.pattern.name()),
        Layout::Small => format!("small files, {}", case.pattern.name()),
    };
    let (state, access, block) = (case.state.name(), case.access.name(), block(case.block_bytes));
    let topology = match (case.workers, case.clients) {
        (0, 0 | 1) => String::new(),
        (0, clients) => format!(", {clients} clients"),
        (workers, clients) => format!(", {workers}W/{clients}C"),
    };
    let depth = depth(case).map(|depth| format!(", {depth}")).unwrap_or_default();
    format!("{}, {state}, {files}, {access}, {block}{depth}{topology}", case.target)
}
