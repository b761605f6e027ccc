//! Figures as people read them, for sentences.

use crate::record::{Case, Pattern};

/// Reads of so many bytes are for throughput; of smaller ones it counts how many there are.
pub(super) const LARGE: u64 = 64 << 10;

/// `9.52 GB/s`, `866 MB/s`.
pub(super) fn rate(bytes_per_second: f64) -> String {
    match bytes_per_second {
        rate if rate >= 1e10 => format!("{:.1} GB/s", rate / 1e9),
        rate if rate >= 1e9 => format!("{:.2} GB/s", rate / 1e9),
        rate if rate >= 1e7 => format!("{:.0} MB/s", rate / 1e6),
        rate => format!("{:.1} MB/s", rate / 1e6),
    }
}

/// `83 µs`, `2.01 ms`, `1.3 s`.
pub(super) fn time(micros: f64) -> String {
    match micros {
        micros if micros >= 1e6 => format!("{:.1} s", micros / 1e6),
        micros if micros >= 1e4 => format!("{:.0} ms", micros / 1e3),
        micros if micros >= 1e3 => format!("{:.2} ms", micros / 1e3),
        micros if micros >= 10.0 => format!("{micros:.0} µs"),
        micros => format!("{micros:.1} µs"),
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
pub(super) fn operations(per_second: f64) -> String {
    match per_second {
        rate if rate >= 1e6 => format!("{:.2}M operations/s", rate / 1e6),
        rate if rate >= 1e3 => format!("{:.1}k operations/s", rate / 1e3),
        rate => format!("{rate:.0} operations/s"),
    }
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
pub(super) fn speed(case: &Case, bytes_per_second: f64, operations_per_second: f64) -> String {
    if case.block_bytes < LARGE { operations(operations_per_second) } else { rate(bytes_per_second) }
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
