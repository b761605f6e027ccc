//! What all reports begin with: when, where, on which machine and with which settings.

use chrono::{DateTime, FixedOffset};

use super::document::{Cell, Section, Table};
use super::units::{link, rate, size};
use crate::posix::quality::Quality;
use crate::record::{Machine, Record};

/// Settings that are bytes: written as sizes.
const SIZES: [&str; 7] = ["bs", "file-size", "random-bs", "single-bs", "size", "small-size", "buffer"];

/// `2026-11-22 09:30, gpu-17, forebay 0.1.0`.
pub(super) fn lead(record: &Record) -> String {
    format!("{}, {}, forebay {}", begun(record), record.machine.host, record.version)
}

/// When, without what a person does not need; as it is, if it is no time.
pub(super) fn begun(record: &Record) -> String {
    let time = DateTime::parse_from_rfc3339(&record.begun);
    let shown = |time: DateTime<FixedOffset>| time.format("%Y-%m-%d %H:%M %:z").to_string().replace("+00:00", "UTC");
    time.map_or_else(|_| record.begun.clone(), shown)
}

/// What all of its figures are to be seen with: that they are of a quick run.
pub(super) fn mark(record: &Record) -> Option<String> {
    Quality::of(&record.settings).mark()
}

/// What to know first: about a run that did not end, and about one that was quick.
pub(super) fn caution(record: &Record) -> Option<String> {
    let quick = Quality::of(&record.settings).warning().map(|(text, next)| format!("{text} {next}"));
    let words = [unfinished(record), quick].into_iter().flatten().collect::<Vec<_>>().join(" ");
    (!words.is_empty()).then_some(words)
}

fn unfinished(record: &Record) -> Option<String> {
    let words = "This run did not come to its end: what is missing was not measured. The same command with the same --output goes on.";
    (!record.finished).then(|| words.to_owned())
}

/// The machine's properties.
pub(super) fn machine(machine: &Machine) -> Vec<(&'static str, String)> {
    let unknown = || "not known".to_owned();
    vec![
        ("Host", machine.host.clone()),
        ("System", machine.system.clone()),
        ("Processors", machine.processors.to_string()),
        // Never a round number: a part of it is the kernel's.
        ("Memory", format!("{:.1} GiB", machine.memory_bytes as f64 / f64::from(1 << 30))),
        (
            "Network",
            machine.network.as_ref().map_or_else(unknown, |net| format!("{}, {}", net.name, link(net.bits_per_second))),
        ),
        ("Disk of the cache", machine.disk_bytes_per_second.map_or_else(unknown, rate)),
    ]
}

/// A setting's value, as people write it.
pub(super) fn setting(name: &str, value: &str) -> String {
    let bytes = value.parse::<u64>().ok().filter(|_| SIZES.contains(&name));
    bytes.map_or_else(|| value.to_owned(), size)
}

/// The section on both, with `more` tables between them.
pub(super) fn conditions(record: &Record, more: Table) -> Section {
    let mut facts = Table::new("Machine", &["", ""]);
    for (name, value) in machine(&record.machine) {
        facts.row(vec![Cell::words(name), Cell::words(value)]);
    }
    let mut settings = Table::new("Settings", &["", ""]);
    for (name, value) in &record.settings {
        settings.row(vec![Cell::words(name), Cell::words(setting(name, value))]);
    }
    Section::new("Machine and settings").table(facts).table(more).table(settings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing;

    #[test]
    fn what_is_not_known_of_a_machine_is_said_so() {
        let facts = machine(&Machine::default());
        let value = |name| facts.iter().find(|fact| fact.0 == name).unwrap().1.as_str();
        assert_eq!((value("Network"), value("Disk of the cache")), ("not known", "not known"));
        let facts = machine(&testing::posix().machine);
        assert!(facts.contains(&("Network", "ens5, 200 Gb/s".to_owned())));
    }

    #[test]
    fn sizes_among_the_settings_are_readable_and_the_rest_is_as_it_was_given() {
        assert_eq!(setting("bs", "262144"), "256 KiB");
        assert_eq!(setting("numjobs", "262144"), "262144");
        assert_eq!(setting("bs", "auto"), "auto");
    }

    #[test]
    fn a_run_that_was_cut_off_says_how_to_go_on() {
        let mut record = testing::posix();
        assert_eq!(caution(&record), None);
        record.finished = false;
        assert!(caution(&record).unwrap().contains("--output"));
        assert_eq!(lead(&record), "2026-11-22 09:30 UTC, gpu-17, forebay 0.1.0");
        record.begun = "yesterday".into();
        assert_eq!(begun(&record), "yesterday");
    }
}
