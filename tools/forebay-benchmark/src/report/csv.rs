//! Everything that was measured as CSV (RFC 4180): one heading, one line for each run. For spreadsheets and scripts; each client's own
//! part is in the record only, since totals over lines would count it twice.

use crate::record::{Cell, Compared, Measured, Record, Step};

const POSIX: [&str; 30] = [
    "target",
    "state",
    "layout",
    "pattern",
    "access",
    "block_bytes",
    "jobs",
    "depth",
    "clients",
    "workers",
    "round",
    "bytes_per_second",
    "operations_per_second",
    "operations",
    "bytes",
    "seconds",
    "latency_mean_us",
    "latency_p50_us",
    "latency_p90_us",
    "latency_p95_us",
    "latency_p99_us",
    "latency_p999_us",
    "latency_max_us",
    "cpu_machine_percent",
    "cpu_fio_percent",
    "cpu_others_percent",
    "cpu_stolen_percent",
    "cpu_percent_per_gigabyte_per_second",
    "origin_bytes",
    "begun",
];
const READ: [&str; 15] = [
    "transport",
    "carried_by",
    "clients",
    "files",
    "file_bytes",
    "round",
    "milliseconds_per_file",
    "seconds",
    "client_percent_seconds",
    "worker_percent_seconds",
    "checked",
    "compared",
    "origin_bytes",
    "not_counted",
    "begun",
];

/// `record` as CSV.
pub(super) fn csv(record: &Record) -> String {
    let mut out = String::new();
    match &record.measured {
        Measured::Posix { steps, .. } => {
            line(&mut out, &POSIX.map(str::to_owned));
            steps.iter().for_each(|step| line(&mut out, &posix(step, &record.begun)));
        }
        Measured::Read { cells } => {
            line(&mut out, &READ.map(str::to_owned));
            cells.iter().for_each(|cell| line(&mut out, &read(cell, &record.begun)));
        }
    }
    out
}

fn posix(Step { case, round, outcome }: &Step, begun: &str) -> [String; POSIX.len()] {
    let latency = outcome.latency;
    // No machine is idle while fio reads: where it would be, what it did is not known.
    let has_cpu = outcome.cpu.machine > 0.0;
    let known = |percent: f64| if has_cpu || percent > 0.0 { number(percent) } else { String::new() };
    [
        case.target.clone(),
        case.state.name().to_owned(),
        case.layout.name().to_owned(),
        case.pattern.name().to_owned(),
        case.access.name().to_owned(),
        case.block_bytes.to_string(),
        case.jobs.to_string(),
        case.depth.to_string(),
        case.clients.to_string(),
        case.workers.to_string(),
        round.to_string(),
        number(outcome.bytes_per_second),
        number(outcome.operations_per_second),
        outcome.operations.to_string(),
        outcome.bytes.to_string(),
        number(outcome.seconds),
        number(latency.mean),
        number(latency.p50),
        number(latency.p90),
        number(latency.p95),
        number(latency.p99),
        number(latency.p999),
        number(latency.max),
        known(outcome.cpu.machine),
        known(outcome.cpu.fio),
        known(outcome.cpu.others),
        known(outcome.cpu.stolen),
        known(outcome.cpu.per_gigabyte(outcome.bytes_per_second)),
        outcome.origin_bytes.map(|received| received.to_string()).unwrap_or_default(),
        begun.to_owned(),
    ]
}

fn read(cell: &Cell, begun: &str) -> [String; READ.len()] {
    [
        cell.transport.clone(),
        cell.carried_by.clone(),
        cell.clients.to_string(),
        cell.files.to_string(),
        cell.file_bytes.to_string(),
        cell.round.to_string(),
        number(cell.milliseconds_per_file),
        number(cell.seconds),
        number(cell.client_percent_seconds),
        number(cell.worker_percent_seconds),
        cell.checked.to_string(),
        match cell.compared {
            Compared::Before => "before",
            Compared::While => "while",
        }
        .to_owned(),
        cell.origin_bytes.map(|bytes| bytes.to_string()).unwrap_or_default(),
        cell.not_counted.join("; "),
        begun.to_owned(),
    ]
}

/// With microseconds' and hundredths' precision, without an exponent. What is no number is left out.
fn number(value: f64) -> String {
    if value.is_finite() { format!("{value:.3}") } else { String::new() }
}

fn line(out: &mut String, fields: &[String]) {
    let fields: Vec<_> = fields.iter().map(|field| quoted(field)).collect();
    out.push_str(&fields.join(","));
    out.push_str("\r\n");
}

fn quoted(field: &str) -> String {
    match field.contains(['"', ',', '\r', '\n']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing;

    #[test]
    fn every_run_has_a_line_with_as_many_fields_as_the_heading() {
        for record in [testing::posix(), testing::read()] {
            let csv = csv(&record);
            let runs = match &record.measured {
                Measured::Posix { steps, .. } => steps.len(),
                Measured::Read { cells } => cells.len(),
            };
            let lines: Vec<_> = csv.trim_end().split("\r\n").collect();
            assert_eq!(lines.len(), runs + 1);
            let fields = lines[0].split(',').count();
            assert!(lines.iter().all(|line| line.split(',').count() == fields));
        }
    }

    #[test]
    fn a_name_with_commas_and_quotes_stays_one_field() {
        assert_eq!(quoted("a,\"b\"\nc"), "\"a,\"\"b\"\"\nc\"");
        assert_eq!(quoted("plain"), "plain");
    }

    #[test]
    fn what_is_no_number_is_empty() {
        assert_eq!([0.0, 1.5, 1e12, f64::NAN].map(number), ["0.000", "1.500", "1000000000000.000", ""]);
    }
}
