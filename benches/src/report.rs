//! What comes out: Markdown for people, JSON with every sample for programs.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use serde::Serialize;

use crate::Settings;
use crate::process::Memory;
use crate::rounds::Outcome;

/// In a Markdown file: what follows was measured.
const MARKER: &str = "<!-- What follows was written by forebay-bench. -->";

/// All that was measured.
#[derive(Serialize)]
pub(crate) struct Report {
    machine: Vec<(String, String)>,
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
    met: bool,
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
    pub(crate) fn new(settings: Settings) -> Self {
        let mut machine = machine();
        let Settings { repeat, size, time, quick } = settings;
        let size = forebay_types::ByteSize::bytes(size);
        let mut run =
            format!("{repeat} rounds after one to warm up, {} ms a measurement, {size} file", time.as_millis());
        if quick {
            run.push_str("; `--quick`: shows that everything works, not how fast");
        }
        machine.push(("run".to_owned(), run));
        Self { machine, tables: Vec::new(), targets: Vec::new(), memory: Vec::new(), samples: Vec::new() }
    }

    pub(crate) fn table(&mut self, table: Table) {
        self.tables.push(table);
    }

    /// Keeps every sample of a section.
    pub(crate) fn samples(&mut self, section: &str, outcomes: Vec<Outcome>) {
        self.samples.push((section.to_owned(), outcomes));
    }

    /// A target for a ratio that is to be at least `goal`.
    pub(crate) fn ratio_target(&mut self, what: &str, of_what: &str, goal: f64, measured: f64) {
        self.targets.push(Target {
            what: what.to_owned(),
            goal: format!("≥ {} of {of_what}", percent(goal)),
            measured: percent(measured),
            met: measured >= goal,
        });
    }

    /// A target for a ratio that is to be at most `goal`.
    pub(crate) fn most_target(&mut self, what: &str, of_what: &str, goal: f64, measured: f64) {
        self.targets.push(Target {
            what: what.to_owned(),
            goal: format!("≤ {} of {of_what}", percent(goal)),
            measured: percent(measured),
            met: measured <= goal,
        });
    }

    /// Memory over a section, and whether it was flat.
    pub(crate) fn memory(&mut self, memory: Vec<Memory>) {
        for of in &memory {
            self.targets.push(Target {
                what: format!("memory of {}", of.process),
                goal: "flat".to_owned(),
                measured: format!("+{} after the warm-up", mebibytes(of.growth())),
                met: of.is_flat(),
            });
        }
        self.memory.extend(memory);
    }

    /// The whole as Markdown.
    pub(crate) fn markdown(&self) -> String {
        let mut out = String::from("## What was measured, and on what\n\n");
        for (name, value) in &self.machine {
            let _ = writeln!(out, "* {name}: {value}");
        }
        let mut targets = Table::new("Targets", String::new(), &["what", "target", "measured", "met"]);
        for Target { what, goal, measured, met } in &self.targets {
            let met = if *met { "yes" } else { "**no**" };
            targets.row(vec![what.clone(), goal.clone(), measured.clone(), met.to_owned()]);
        }
        let text = "Resident memory. Flat: no more than 5 %, or 32 MiB if that is more, is added after the first round; while writing, 128 MiB on top \
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

    /// Puts the tables into `path`, in the place of all that follows the marker.
    ///
    /// # Errors
    /// When the file cannot be written, or has no marker.
    pub(crate) fn update(&self, path: &Path) -> anyhow::Result<()> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let (before, _) = text.split_once(MARKER).with_context(|| format!("{} has no `{MARKER}`", path.display()))?;
        let text = format!("{before}{MARKER}\n\n{}", self.markdown());
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// What the numbers depend on.
fn machine() -> Vec<(String, String)> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map_or("unknown", |(_, value)| value.trim()).to_owned()
    };
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let load = read("/proc/loadavg").split_whitespace().next().unwrap_or("unknown").to_owned();
    let cpu = format!("{cores} × {}", field(&read("/proc/cpuinfo"), "model name"));
    let huge_pages = read("/sys/kernel/mm/transparent_hugepage/enabled").trim().to_owned();
    [
        ("processor", cpu),
        ("memory", field(&read("/proc/meminfo"), "MemTotal")),
        ("kernel", read("/proc/sys/kernel/osrelease").trim().to_owned()),
        ("transparent huge pages", huge_pages),
        ("fio", version("fio")),
        ("iperf3", version("iperf3")),
        ("load before the run (it should be near 0)", load),
        ("date", chrono::Local::now().format("%Y-%m-%d").to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

fn version(program: &str) -> String {
    let output = Command::new(program).arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or("missing").to_owned()
}

/// `5.91 ±3 %`: the median in GB/s, and how far the rounds lie apart.
pub(crate) fn rate(outcome: &Outcome) -> String {
    let rate = |sample: &crate::rounds::Sample| sample.rate;
    format!("{:.2} ±{:.0} %", outcome.median(rate) / 1e9, outcome.spread(rate) * 100.0)
}

/// Thousands of operations a second.
pub(crate) fn kilo(outcome: &Outcome) -> String {
    let operations = |sample: &crate::rounds::Sample| sample.operations;
    format!("{:.1} ±{:.0} %", outcome.median(operations) / 1e3, outcome.spread(operations) * 100.0)
}

/// `13/27`: the median of medians and of 99th percentiles, in µs.
pub(crate) fn latency(outcome: &Outcome) -> String {
    let micros = |value: f64| if value < 10.0 { format!("{value:.1}") } else { format!("{value:.0}") };
    format!("{}/{}", micros(outcome.median(|sample| sample.p50)), micros(outcome.median(|sample| sample.p99)))
}

pub(crate) fn percent(ratio: f64) -> String {
    format!("{:.0} %", ratio * 100.0)
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20))
}
