//! What comes out: Markdown for people, JSON with every sample for programs.
//!
//! A number may be compared with another one, or with a target. Targets are judged only when the machine was calm before the run
//! (`machine.rs`).

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;

use crate::machine::Machine;
use crate::process::Memory;
use crate::rounds::Outcome;
use crate::settings::Settings;

/// In a Markdown file: what follows was measured.
const MARKER: &str = "<!-- What follows was written by forebay-bench. -->";
/// What follows was not.
const END: &str = "<!-- Up to here. -->";

/// All that was measured.
#[derive(Serialize)]
pub(crate) struct Report {
    machine: Vec<(String, String)>,
    /// Why no target was judged.
    not_judged: Option<String>,
    tables: Vec<Table>,
    targets: Vec<Target>,
    memory: Vec<Memory>,
    /// Every sample, by section.
    samples: Vec<(String, Vec<Outcome>)>,
}

/// A table, with what must be known to read it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Table {
    title: String,
    text: String,
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// Something to be reached, and whether it was.
#[derive(Clone, Debug, Serialize)]
struct Target {
    what: String,
    goal: String,
    measured: String,
    /// Nothing where the machine was not calm.
    met: Option<bool>,
}

impl Table {
    pub(crate) fn new(title: &str, text: String, header: &[&str]) -> Self {
        let header = header.iter().map(|&name| name.to_owned()).collect();
        Self { title: title.to_owned(), text, header, rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.header.len());
        self.rows.push(cells);
    }

    fn write(&self, out: &mut String) {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rule = vec!["---".to_owned(); self.header.len()];
        let _ = write!(out, "\n### {}\n\n", self.title);
        if !self.text.is_empty() {
            let _ = write!(out, "{}\n\n", self.text);
        }
        out.push_str(&line(&self.header));
        out.push_str(&line(&rule));
        self.rows.iter().for_each(|row| out.push_str(&line(row)));
    }
}

impl Report {
    pub(crate) fn new(settings: Settings, machine: Machine) -> Self {
        let Machine { facts: mut machine, not_judged } = machine;
        let Settings { repeat, size, time, quick } = settings;
        let size = forebay_types::ByteSize::bytes(size);
        let rounds = if repeat == 0 { "one round".to_owned() } else { format!("{repeat} rounds after one to warm up") };
        let mut run = format!("{rounds}, {} ms a measurement, {size} file", time.as_millis());
        if quick {
            run.push_str("; `--quick`: shows that everything works, not how fast");
        }
        machine.push(("run".to_owned(), run));
        let (tables, targets, memory, samples) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { machine, not_judged, tables, targets, memory, samples }
    }

    /// Something that the numbers depend on and a section has found out.
    pub(crate) fn fact(&mut self, name: &str, value: String) {
        self.machine.push((name.to_owned(), value));
    }

    pub(crate) fn table(&mut self, table: Table) {
        self.tables.push(table);
    }

    /// Keeps every sample of a section.
    pub(crate) fn samples(&mut self, section: &str, outcomes: Vec<Outcome>) {
        self.samples.push((section.to_owned(), outcomes));
    }

    fn target(&mut self, what: &str, goal: String, measured: String, met: bool) {
        // What was not measured is neither met nor missed.
        let met = (self.not_judged.is_none() && !measured.contains(NOTHING)).then_some(met);
        self.targets.push(Target { what: what.to_owned(), goal, measured, met });
    }

    /// A target for a ratio that is to be at least `goal`.
    pub(crate) fn ratio_target(&mut self, what: &str, of_what: &str, goal: f64, measured: f64) {
        self.target(what, format!("≥ {} of {of_what}", percent(goal)), beside(goal, measured), measured >= goal);
    }

    /// A target for a ratio that is to be at most `goal`.
    pub(crate) fn max_target(&mut self, what: &str, of_what: &str, goal: f64, measured: f64) {
        self.target(what, format!("≤ {} of {of_what}", percent(goal)), beside(goal, measured), measured <= goal);
    }

    /// A target for a small share of something.
    pub(crate) fn share_target(&mut self, what: &str, of_what: &str, goal: f64, measured: f64) {
        let share = |ratio: f64| number(ratio * 100.0, 2, " %");
        self.target(what, format!("≤ {} of {of_what}", share(goal)), share(measured), measured <= goal);
    }

    /// A target for bytes a second.
    pub(crate) fn rate_target(&mut self, what: &str, goal: f64, measured: f64) {
        let gigabytes = |rate: f64| number(rate / 1e9, 2, " GB/s");
        self.target(what, format!("≥ {}", gigabytes(goal)), gigabytes(measured), measured >= goal);
    }

    /// A target for how many times as much is at most taken.
    pub(crate) fn times_target(&mut self, what: &str, goal: f64, measured: f64) {
        self.target(what, format!("≤ {goal} ×"), times(measured, 2), measured <= goal);
    }

    /// A target for a time in µs.
    pub(crate) fn time_target(&mut self, what: &str, goal: f64, measured: f64) {
        self.target(what, format!("≤ {goal:.0} µs"), number(measured, 1, " µs"), measured <= goal);
    }

    /// A target for how long something takes, in seconds.
    pub(crate) fn seconds_target(&mut self, what: &str, goal: f64, measured: f64) {
        self.target(what, format!("≤ {goal} s"), number(measured, 2, " s"), measured <= goal);
    }

    /// Memory over a section, and whether it was flat.
    pub(crate) fn memory(&mut self, memory: Vec<Memory>) {
        for of in &memory {
            let added = format!("+{} after the warm-up", mebibytes(of.growth()));
            self.target(&format!("memory of {}", of.process), "flat".to_owned(), added, of.is_flat());
        }
        self.memory.extend(memory);
    }

    /// The whole as Markdown.
    pub(crate) fn markdown(&self) -> String {
        let mut out = String::from("## What was measured, and on what\n\n");
        for (name, value) in &self.machine {
            let _ = writeln!(out, "* {name}: {value}");
        }
        let text = self.not_judged.as_ref().map_or_else(String::new, |why| format!("**Not judged:** {why}."));
        let mut targets = Table::new("Targets", text, &["what", "target", "measured", "met"]);
        for Target { what, goal, measured, met } in &self.targets {
            let met = match met {
                Some(true) => "yes",
                Some(false) => "**no**",
                None => "",
            };
            targets.row(vec![what.clone(), goal.clone(), measured.clone(), met.to_owned()]);
        }
        let text = "Resident memory. Flat: no more than 5 %, or 32 MiB if that is more, is added after the warm-up; while writing, 128 MiB on top \
             for parts on their way (`write.memory`).";
        let header = ["process", "after the warm-up", "most", "at the end", "flat"];
        let mut memory = Table::new("Memory", text.to_owned(), &header);
        for of in &self.memory {
            let flat = if of.is_flat() { "yes" } else { "**no**" };
            let (warm, most, last) = (mebibytes(of.warm), mebibytes(of.most), mebibytes(of.last));
            memory.row(vec![of.process.clone(), warm, most, last, flat.to_owned()]);
        }
        let tables = std::iter::once(&targets).chain(&self.tables).chain(std::iter::once(&memory));
        tables.filter(|table| !table.rows.is_empty()).for_each(|table| table.write(&mut out));
        out
    }

    /// Puts the tables into `path`, in the place of all between the two markers.
    ///
    /// # Errors
    /// When the file cannot be written, or lacks a marker.
    pub(crate) fn update(&self, path: &Path) -> anyhow::Result<()> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let lacks = |marker: &str| format!("{} has no `{marker}`", path.display());
        let (before, rest) = text.split_once(MARKER).with_context(|| lacks(MARKER))?;
        let (_, after) = rest.split_once(END).with_context(|| lacks(END))?;
        let text = format!("{before}{MARKER}\n\n{}\n{END}{after}", self.markdown());
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// What stands for a number where nothing was measured.
const NOTHING: &str = "—";

/// A number with so many digits behind the point, and its unit.
pub(crate) fn number(value: f64, digits: usize, unit: &str) -> String {
    if value.is_finite() { format!("{value:.digits$}{unit}") } else { NOTHING.to_owned() }
}

/// How many times as much: `1.53 ×`.
pub(crate) fn times(ratio: f64, digits: usize) -> String {
    number(ratio, digits, " ×")
}

/// A median, and how far the rounds lie apart from it.
pub(crate) fn with_spread(median: f64, digits: usize, spread: f64) -> String {
    if !median.is_finite() {
        return NOTHING.to_owned();
    }
    format!("{} ±{}", number(median, digits, ""), percent(spread))
}

/// `5.91 ±3 %`: the median in GB/s, and how far the rounds lie apart.
pub(crate) fn rate(outcome: &Outcome) -> String {
    let rate = |sample: &crate::rounds::Sample| sample.rate;
    with_spread(outcome.median(rate) / 1e9, 2, outcome.spread(rate))
}

/// Thousands of operations a second.
pub(crate) fn kilo(outcome: &Outcome) -> String {
    let operations = |sample: &crate::rounds::Sample| sample.operations;
    with_spread(outcome.median(operations) / 1e3, 1, outcome.spread(operations))
}

/// `13/27`: the median of medians and of 99th percentiles, in µs.
pub(crate) fn latency(outcome: &Outcome) -> String {
    let micros = |value: f64| number(value, usize::from(value < 10.0), "");
    format!("{}/{}", micros(outcome.median(|sample| sample.p50)), micros(outcome.median(|sample| sample.p99)))
}

/// Seconds of processor time for each GiB.
pub(crate) fn seconds(value: f64) -> String {
    number(value, 2, "")
}

/// The mean latency, in µs.
pub(crate) fn mean(outcome: &Outcome) -> String {
    number(outcome.median(|sample| sample.mean), 1, "")
}

pub(crate) fn percent(ratio: f64) -> String {
    number(ratio * 100.0, 0, " %")
}

/// A ratio with the digit that small differences need.
pub(crate) fn fine_percent(ratio: f64) -> String {
    number(ratio * 100.0, 1, " %")
}

/// `98.7–100.2 %`: between which two ratios something lies.
pub(crate) fn fine_percents(between: Option<(f64, f64)>) -> String {
    between.map_or_else(
        || NOTHING.to_owned(),
        |(low, high)| format!("{}–{}", number(low * 100.0, 1, ""), fine_percent(high)),
    )
}

/// A ratio beside its goal: in whole percent, unless they would look alike.
fn beside(goal: f64, measured: f64) -> String {
    let looks_alike = percent(goal) == percent(measured);
    if looks_alike { fine_percent(measured) } else { percent(measured) }
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn report(not_judged: Option<&str>) -> Report {
        let settings = Settings { quick: false, repeat: 5, size: 1 << 30, time: Duration::from_secs(2) };
        let not_judged = not_judged.map(ToOwned::to_owned);
        let mut report = Report::new(settings, Machine { facts: Vec::new(), not_judged });
        report.ratio_target("a read", "tmpfs", 0.75, 0.8);
        report.time_target("a small read", 15.0, 19.5);
        report
    }

    #[test]
    fn a_target_is_met_or_not_or_not_judged() {
        let calm = report(None).markdown();
        assert!(calm.contains("| a read | ≥ 75 % of tmpfs | 80 % | yes |"), "{calm}");
        assert!(calm.contains("| a small read | ≤ 15 µs | 19.5 µs | **no** |"), "{calm}");
        let busy = report(Some("the machine was busy")).markdown();
        assert!(busy.contains("**Not judged:** the machine was busy."), "{busy}");
        assert!(busy.contains("| a read | ≥ 75 % of tmpfs | 80 % |  |"), "{busy}");
    }

    #[test]
    fn what_was_not_measured_is_a_dash_in_tables_null_in_json_and_no_target_that_was_missed() {
        let mut report = report(None);
        let sample = crate::rounds::Sample { p50: f64::NAN, p99: f64::NAN, rate: f64::NAN, ..Default::default() };
        let empty = Outcome { name: "nobody read".into(), samples: vec![sample] };
        assert_eq!([rate(&empty), latency(&empty), kilo(&empty)], ["—", "—/—", "0.0 ±—"]);
        let none = Outcome { name: "no round".into(), samples: Vec::new() };
        assert_eq!([rate(&none), mean(&none), kilo(&none)], ["—"; 3]);
        let ratio = empty.ratio(&none, |sample| sample.rate);
        assert_eq!([percent(ratio), times(f64::INFINITY, 1), seconds(f64::NAN)], ["—"; 3]);
        report.ratio_target("nobody read", "tmpfs", 0.75, ratio);
        report.samples("empty", vec![empty]);
        let (text, json) = (report.markdown(), serde_json::to_value(&report).unwrap());
        assert!(text.contains("| nobody read | ≥ 75 % of tmpfs | — |  |") && !text.contains("NaN"), "{text}");
        assert!(json["samples"][0][1][0]["samples"][0]["p50"].is_null(), "{json}");
    }

    #[test]
    fn a_ratio_that_looks_like_its_goal_has_another_digit() {
        assert_eq!([beside(0.98, 0.976), beside(0.98, 0.9843), beside(0.98, 0.99)], ["97.6 %", "98.4 %", "99 %"]);
        assert_eq!([beside(0.98, f64::NAN), fine_percents(None)], ["—"; 2]);
        assert_eq!(fine_percents(Some((0.987, 1.0021))), "98.7–100.2 %");
        let mut report = report(None);
        report.seconds_target("connections", 2.0, 0.71);
        assert!(report.markdown().contains("| connections | ≤ 2 s | 0.71 s | yes |"));
    }

    #[test]
    fn an_update_keeps_what_stands_around_the_tables() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("numbers.md");
        std::fs::write(&path, format!("# Before\n{MARKER}\nold\n{END}\n\n## After\n")).unwrap();
        report(None).update(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("# Before\n") && text.ends_with("\n\n## After\n"), "{text}");
        assert!(text.contains("### Targets") && !text.contains("old"), "{text}");
        std::fs::write(&path, MARKER).unwrap();
        assert!(report(None).update(&path).is_err());
    }
}
