//! What an access log adds up to. Pure: lines in, a table out.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_metrics::{LatencyHistogram, LatencySnapshot};
use serde_json::{Value, json};

use crate::output::Table;

/// Whose requests count.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Filter {
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) pid: Option<u32>,
}

/// Requests by operation.
#[derive(Debug, Default)]
pub(super) struct Counts {
    filter: Filter,
    operations: BTreeMap<String, Operation>,
    /// Requests that the mount could not log because the reader was slow.
    pub(super) missing: u64,
    /// Lines that are not of an access log.
    pub(super) unknown: u64,
}

#[derive(Debug, Default)]
struct Operation {
    failures: u64,
    latency: LatencyHistogram,
}

/// A line of the log.
#[derive(Debug, PartialEq)]
struct Line<'a> {
    uid: u32,
    gid: u32,
    pid: u32,
    operation: &'a str,
    succeeded: bool,
    took: Duration,
}

impl<'a> Line<'a> {
    /// `2026.11.21 16:00:00.123456 [uid:0,gid:0,pid:1] read (17,4096,0): OK <0.000123>`.
    fn of(line: &'a str) -> Option<Self> {
        let (_, rest) = line.split_once(" [uid:")?;
        let (who, rest) = rest.split_once("] ")?;
        let (uid, rest_of_who) = who.split_once(",gid:")?;
        let (gid, pid) = rest_of_who.split_once(",pid:")?;
        let (operation, rest) = rest.split_once(" (")?;
        // What it is about may hold any of these signs, but what follows it does not.
        let (_, outcome) = rest.rsplit_once("): ")?;
        let (outcome, took) = outcome.trim_end().strip_suffix('>')?.rsplit_once(" <")?;
        let took = Duration::try_from_secs_f64(took.parse().ok()?).ok()?;
        let (uid, gid, pid) = (uid.parse().ok()?, gid.parse().ok()?, pid.parse().ok()?);
        Some(Self { uid, gid, pid, operation, succeeded: outcome == "OK", took })
    }
}

impl Filter {
    fn takes(&self, line: &Line<'_>) -> bool {
        let is = |wanted: Option<u32>, found| wanted.is_none_or(|wanted| wanted == found);
        is(self.uid, line.uid) && is(self.gid, line.gid) && is(self.pid, line.pid)
    }
}

impl Counts {
    /// Of nothing yet.
    pub(super) fn new(filter: Filter) -> Self {
        Self { filter, ..Self::default() }
    }

    /// Counts a line of the log.
    pub(super) fn count(&mut self, line: &str) {
        if let Some(remark) = line.strip_prefix('#') {
            let missing =
                remark.trim().split_once(" lines are missing").and_then(|(count, _)| count.parse::<u64>().ok());
            self.missing += missing.unwrap_or(0);
            return;
        }
        let Some(line) = Line::of(line) else {
            self.unknown += 1;
            return;
        };
        if !self.filter.takes(&line) {
            return;
        }
        if !self.operations.contains_key(line.operation) {
            self.operations.insert(line.operation.to_owned(), Operation::default());
        }
        if let Some(operation) = self.operations.get_mut(line.operation) {
            operation.failures += u64::from(!line.succeeded);
            operation.latency.record(line.took);
        }
    }

    /// The operations, those that took most of the time first.
    fn sorted(&self) -> Vec<(&str, u64, LatencySnapshot)> {
        let of = |(name, operation): (&'_ String, &Operation)| {
            (operation.failures, operation.latency.snapshot(), name.clone())
        };
        let mut operations: Vec<_> = self.operations.iter().map(of).collect();
        operations.sort_by_key(|(_, latency, _)| std::cmp::Reverse(latency.total()));
        let name = |name: &str| self.operations.get_key_value(name).map_or("", |(name, _)| name.as_str());
        operations.into_iter().map(|(failures, latency, of)| (name(&of), failures, latency)).collect()
    }

    /// A table for people.
    pub(super) fn table(&self) -> Table {
        let mut table = Table::new(&["operation", "count", "errors", "average us", "p99 us", "total us", "time"]);
        let operations = self.sorted();
        let all: f64 = operations.iter().map(|(_, _, latency)| latency.total().as_secs_f64()).sum();
        for (name, failures, latency) in operations {
            let micros = |took: Option<Duration>| format!("{:.0}", took.unwrap_or_default().as_secs_f64() * 1e6);
            let share = if all > 0.0 { 100.0 * latency.total().as_secs_f64() / all } else { 0.0 };
            table.row(vec![
                name.to_owned(),
                latency.count().to_string(),
                failures.to_string(),
                micros(latency.mean()),
                micros(latency.quantile(0.99)),
                micros(Some(latency.total())),
                format!("{share:.1}%"),
            ]);
        }
        table
    }

    /// The same for programs.
    pub(super) fn json(&self) -> Value {
        let micros = |took: Option<Duration>| took.unwrap_or_default().as_secs_f64() * 1e6;
        let operation = |(name, failures, latency): (&str, u64, LatencySnapshot)| {
            json!({
                "operation": name,
                "count": latency.count(),
                "errors": failures,
                "average_us": micros(latency.mean()),
                "p99_us": micros(latency.quantile(0.99)),
                "total_us": micros(Some(latency.total())),
            })
        };
        let operations: Vec<Value> = self.sorted().into_iter().map(operation).collect();
        json!({ "operations": operations, "missing": self.missing, "unknown_lines": self.unknown })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
2026.11.21 16:00:00.000001 [uid:0,gid:0,pid:1] read (17,4096,0): OK <0.000100>
2026.11.21 16:00:00.000002 [uid:0,gid:0,pid:2] read (17,4096,4096): EIO <0.000300>
2026.11.21 16:00:00.000003 [uid:7,gid:8,pid:2] lookup (1,a] b (c): OK <9>): ENOENT <0.000900>
#
# 12 lines are missing here: they were read too slowly
what is this
";

    fn counts(filter: Filter) -> Counts {
        let mut counts = Counts::new(filter);
        LOG.lines().for_each(|line| counts.count(line));
        counts
    }

    #[test]
    fn operations_are_sorted_by_the_time_that_they_took() {
        let counts = counts(Filter::default());
        let operations = counts.json();
        assert_eq!(operations["operations"][0]["operation"], "lookup");
        assert_eq!(operations["operations"][1]["count"], 2);
        assert_eq!(operations["operations"][1]["errors"], 1);
        assert_eq!(operations["operations"][1]["average_us"], 200.0);
        assert_eq!((counts.missing, counts.unknown), (12, 1));
        let mut text = Vec::new();
        counts.table().print(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lookup = text.lines().nth(1).unwrap();
        assert!(lookup.starts_with("lookup") && lookup.contains("69.2%"), "{text}");
    }

    #[test]
    fn requests_of_others_do_not_count() {
        let counts = |filter: Filter| {
            let json = counts(filter).json();
            json["operations"].as_array().unwrap().iter().map(|of| of["count"].as_u64().unwrap()).sum::<u64>()
        };
        assert_eq!(counts(Filter { uid: Some(7), ..Filter::default() }), 1);
        assert_eq!(counts(Filter { pid: Some(2), ..Filter::default() }), 2);
        assert_eq!(counts(Filter { gid: Some(8), pid: Some(1), ..Filter::default() }), 0);
    }

    #[test]
    fn a_line_is_understood_whatever_the_name_in_it() {
        let line = LOG.lines().nth(2).unwrap();
        let expected =
            Line { uid: 7, gid: 8, pid: 2, operation: "lookup", succeeded: false, took: Duration::from_micros(900) };
        assert_eq!(Line::of(line), Some(expected));
        for nonsense in
            ["", " [uid:1", "x [uid:1,gid:2,pid:3] read (1): OK <-1>", "x [uid:a,gid:2,pid:3] read (1): OK <1>"]
        {
            assert_eq!(Line::of(nonsense), None, "{nonsense}");
        }
    }
}
