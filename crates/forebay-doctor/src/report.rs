//! The report: what there is, part by part, and then what is to be thought of it.

mod container;
mod devices;
mod lines;
mod machine;
mod others;

use std::io::{self, Write};

use forebay_config::Config;
use serde::Serialize;

use self::lines::Lines;
use crate::checks::{Check, Verdict, check};
use crate::facts::Facts;
use crate::text::printable;

/// Facts, verdicts, and how many there are of each.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What there is.
    pub facts: Facts,
    /// What is to be thought of it.
    pub checks: Vec<Check>,
    /// How many verdicts there are of each kind.
    pub counts: Counts,
    #[serde(skip)]
    shows_only_problems: bool,
}

/// How many verdicts there are of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// As they should be.
    pub ok: usize,
    /// Good to know.
    pub info: usize,
    /// Not as well as it could.
    pub warn: usize,
    /// Cannot work.
    pub fail: usize,
}

impl Report {
    /// The verdicts on `facts`.
    #[must_use]
    pub fn new(facts: Facts, config: &Config) -> Self {
        let checks = check(&facts, config);
        let count = |verdict| checks.iter().filter(|check| check.verdict == verdict).count();
        let counts = Counts {
            ok: count(Verdict::Ok),
            info: count(Verdict::Info),
            warn: count(Verdict::Warn),
            fail: count(Verdict::Fail),
        };
        Self { facts, checks, counts, shows_only_problems: false }
    }

    /// The same without what is well; the counts stay.
    #[must_use]
    pub fn only_problems(mut self) -> Self {
        self.checks.retain(|check| check.verdict >= Verdict::Warn);
        Self { shows_only_problems: true, ..self }
    }

    /// What failed.
    pub fn failures(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| check.verdict == Verdict::Fail)
    }

    /// Prints it for a person.
    ///
    /// # Errors
    /// When the writer takes no more.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        if let Some(recording) = &self.facts.recording {
            for line in others::recording(recording) {
                writeln!(out, "{}", printable(&line))?;
            }
            writeln!(out)?;
        }
        let sections = if self.shows_only_problems { Vec::new() } else { sections(&self.facts) };
        for (heading, lines) in sections {
            writeln!(out, "{heading}")?;
            for (name, text) in lines {
                let line = format!("  {:<14} {}", printable(&name), printable(&text));
                writeln!(out, "{}", line.trim_end())?;
            }
            writeln!(out)?;
        }
        if self.shows_only_problems && self.checks.is_empty() {
            writeln!(out, "Nothing is wrong.")?;
        } else {
            writeln!(out, "Verdicts")?;
        }
        for check in &self.checks {
            let subject = check.subject.as_deref().map(|subject| format!(" {subject}")).unwrap_or_default();
            let row = format!("{} {}{subject}", check.section.name(), check.name);
            let line = format!("{:<4}  {row}: {}", check.verdict.name(), check.what);
            writeln!(out, "  {}", printable(&line))?;
            if let (Some(remedy), true) = (&check.remedy, check.verdict > Verdict::Ok) {
                writeln!(out, "        {}", printable(remedy))?;
            }
        }
        let Counts { ok, info, warn, fail } = self.counts;
        writeln!(out, "\n{ok} ok, {info} info, {warn} warn, {fail} fail")
    }
}

fn sections(facts: &Facts) -> Vec<(&'static str, Lines)> {
    let mut sections = vec![
        ("System", machine::system(facts)),
        ("Modules", machine::modules(facts)),
        ("RDMA devices", devices::rdma(facts)),
        ("UCX", machine::ucx(facts)),
        ("Memory", machine::memory(facts)),
        ("FUSE", machine::fuse(facts)),
        ("Container", container::container(facts)),
        ("Units", container::units(facts)),
        ("Network", devices::network(facts)),
        ("Origin", others::origin(facts)),
        ("Cluster", others::cluster(facts)),
        ("Security", others::security(facts)),
        ("Configuration", others::configuration(facts)),
    ];
    sections.extend(facts.peers.iter().map(|peer| ("Peer", others::peer(peer))));
    sections
}
