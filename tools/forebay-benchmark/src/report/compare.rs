//! Records side by side: what differs in machine and settings, then every case that all of them have, with ratios to the first record.
//!
//! They were measured at different times, so a ratio is that of two medians and not of paired rounds, and the page says so.

use super::document::{Cell, Document, Headline, Section, Table, Tone};
use super::load::RecordError;
use super::sweeps::topology;
use super::{common, published};
use crate::record::{Measured, Record};

mod posix;
mod ratios;
mod read;

use self::ratios::RATIO;

/// `records` in one document.
pub(super) fn document(records: &[(String, Record)]) -> Result<Document, RecordError> {
    let [(first_name, first), others @ ..] = records else { return Err(RecordError::Few(0)) };
    if others.is_empty() {
        return Err(RecordError::Few(1));
    }
    if let Some((other_name, other)) = others.iter().find(|(_, other)| benchmark(other) != benchmark(first)) {
        return Err(RecordError::Different {
            first_name: first_name.clone(),
            first: benchmark(first),
            other_name: other_name.clone(),
            other: benchmark(other),
        });
    }
    let mut conditions = differences(records);
    let same = match first.measured {
        Measured::Posix { .. } => {
            let (sections, note) = posix::sections(records);
            conditions.paragraphs.extend(note);
            sections
        }
        Measured::Read { .. } => vec![read::section(records)],
    };
    let headlines = headlines(records, &same, first);
    let same: Vec<Section> = same.into_iter().filter(|section| !section.tables.is_empty()).collect();
    let unfinished: Vec<_> =
        records.iter().filter(|(_, record)| !record.finished).map(|(name, _)| name.as_str()).collect();
    let caution = match (same.as_slice(), unfinished.as_slice()) {
        ([], _) => {
            Some("Nothing was measured in all of them: no case has the same files, order, block and jobs.".to_owned())
        }
        (_, unfinished) => {
            let told = (!unfinished.is_empty()).then(|| format!("Not complete: {}.", unfinished.join(", ")));
            let marked = records.iter().filter_map(|(name, record)| Some(format!("{name} is {}", of_mark(record)?)));
            let marked = marked.collect::<Vec<_>>().join("; ");
            let marked = (!marked.is_empty()).then(|| format!("Not to be published: {marked}."));
            Some([told, marked].into_iter().flatten().collect::<Vec<_>>().join(" ")).filter(|words| !words.is_empty())
        }
    };
    Ok(Document {
        title: names(records).join(" beside "),
        lead: format!(
            "Ratios are to {first_name}: 2.00× is twice its figure. The records were measured at different times, so that a difference is one \
             only where the rounds of both sides are further apart than those of each."
        ),
        mark: records.iter().find_map(|(_, record)| common::mark(record)),
        caution,
        headlines,
        sections: [vec![conditions], same].concat(),
        notes: "GB is decimal (10⁹), MiB binary. Figures are of all rounds of a record, ratios are of those.",
        ..Document::default()
    })
}

/// What is left to chance in a record, as one says it of it.
fn of_mark(record: &Record) -> Option<String> {
    common::mark(record).map(|mark| if mark == "quick" { "a quick run".to_owned() } else { format!("of {mark}") })
}

/// `records`, which are of several topologies, in one table for each way of reading.
pub(super) fn scaling(records: &[(String, Record)]) -> Result<Document, RecordError> {
    if let Some((other_name, other)) = records.iter().find(|(_, record)| benchmark(record) != "posix") {
        let (first_name, first) = &records[0];
        return Err(RecordError::Different {
            first_name: first_name.clone(),
            first: benchmark(first),
            other_name: other_name.clone(),
            other: benchmark(other),
        });
    }
    let all: Vec<&Record> = records.iter().map(|(_, record)| record).collect();
    let section = published::scaling(&all);
    if section.is_empty() {
        return Err(RecordError::OneTopology);
    }
    let conditions = if records.len() > 1 { vec![differences(records)] } else { Vec::new() };
    let document = Document {
        title: "More workers, more clients".to_owned(),
        lead: names(records).join(", "),
        mark: records.iter().find_map(|(_, record)| common::mark(record)),
        sections: [vec![section], conditions].concat(),
        notes: super::posix::NOTES,
        ..Document::default()
    };
    Ok(document.with_findings(&crate::posix::scaling::findings(&crate::posix::scaling::tables(&all))))
}

/// In how many of the cases each record but the first is better, for each figure.
fn headlines(records: &[(String, Record)], sections: &[Section], base: &Record) -> Vec<Headline> {
    let figures: &[&str] = match base.measured {
        Measured::Posix { .. } => &["Throughput", "p99 latency", "CPU for each GB/s"],
        Measured::Read { .. } => &["Time of a file", "CPU"],
    };
    let names = || records[1..].iter().map(|(name, _)| name);
    let mut names = figures.iter().flat_map(|figure| names().map(move |name| format!("{figure}, {name}")));
    let mut headlines = Vec::new();
    let Some(first) = sections.iter().flat_map(|section| &section.tables).next() else { return headlines };
    for (column, _) in first.headings.iter().enumerate().filter(|(_, heading)| *heading == RATIO) {
        let tables = sections.iter().flat_map(|section| &section.tables);
        let cells: Vec<&Cell> = tables.flat_map(|table| &table.rows).filter_map(|row| row.get(column)).collect();
        let count = |tone| cells.iter().filter(|cell| cell.tone == tone).count();
        let (better, worse, unjudged) = (count(Tone::Better), count(Tone::Worse), count(Tone::Unjudged));
        let unjudged =
            if unjudged > 0 { format!("; {unjudged} are of one round, and not judged") } else { String::new() };
        let name = names.next().unwrap_or_default();
        headlines.push(Headline {
            name: format!("{name} against {}", records[0].0),
            value: format!("{better} better, {worse} worse"),
            of: format!("of {} cases; the rest is within what rounds differ by, or 5 %{unjudged}", cells.len()),
        });
    }
    headlines
}

fn names(records: &[(String, Record)]) -> Vec<&str> {
    records.iter().map(|(name, _)| name.as_str()).collect()
}

/// Its name on the command line.
fn benchmark(record: &Record) -> &'static str {
    match record.measured {
        Measured::Posix { .. } => "posix",
        Measured::Read { .. } => "read",
    }
}

/// What differs between the records, and when and by what each was measured.
fn differences(records: &[(String, Record)]) -> Section {
    let mut headings = vec![""];
    headings.extend(records.iter().map(|(name, _)| name.as_str()));
    let mut table = Table::new("", &headings);
    let mut differing = Vec::new();
    let mut row = |name: &str, always: bool, values: Vec<String>| {
        let differ = values.iter().any(|value| *value != values[0]);
        if differ || always {
            let mut cells = vec![Cell::words(name)];
            cells.extend(values.into_iter().map(|value| Cell {
                tone: if differ && !always { Tone::Marked } else { Tone::Plain },
                ..Cell::words(value)
            }));
            table.row(cells);
        }
        if differ && !always {
            differing.push(name.to_owned());
        }
    };
    let each = |of: &dyn Fn(&Record) -> String| records.iter().map(|(_, record)| of(record)).collect::<Vec<_>>();
    row("Begun", true, each(&common::begun));
    row("Forebay", false, each(&|record| record.version.clone()));
    let machines: Vec<_> = records.iter().map(|(_, record)| common::machine(&record.machine)).collect();
    for (number, (name, _)) in machines[0].iter().enumerate() {
        row(name, false, machines.iter().map(|machine| machine[number].1.clone()).collect());
    }
    row("Targets", false, each(&targets));
    row("Topology", false, each(&topologies));
    let mut settings: Vec<&String> = records.iter().flat_map(|(_, record)| record.settings.keys()).collect();
    settings.sort();
    settings.dedup();
    for setting in settings {
        let value = |record: &Record| {
            record.settings.get(setting).map_or_else(|| "-".to_owned(), |value| common::setting(setting, value))
        };
        row(setting, false, each(&value));
    }
    let words = match differing.as_slice() {
        [] => "Version, machine and settings are the same.".to_owned(),
        differing => {
            format!("These are not the same: {}. What they change is part of every ratio below.", differing.join(", "))
        }
    };
    Section::new("What differs").says(words).table(table)
}

fn targets(record: &Record) -> String {
    match &record.measured {
        Measured::Posix { targets, .. } => targets
            .iter()
            .map(|target| format!("{} ({})", target.name, target.file_system))
            .collect::<Vec<_>>()
            .join(", "),
        Measured::Read { .. } => String::new(),
    }
}

fn topologies(record: &Record) -> String {
    let Measured::Posix { steps, .. } = &record.measured else { return String::new() };
    let mut all: Vec<String> =
        steps.iter().map(|step| topology(&step.case)).filter(|topology| !topology.is_empty()).collect();
    all.sort();
    all.dedup();
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing;

    fn named(records: [Record; 2]) -> Vec<(String, Record)> {
        ["A", "B"].map(str::to_owned).into_iter().zip(records).collect()
    }

    /// A record in which everything is read `speed` times as fast.
    fn faster(mut record: Record, speed: f64) -> Record {
        match &mut record.measured {
            Measured::Posix { steps, .. } => {
                steps.iter_mut().for_each(|step| step.outcome.bytes_per_second *= speed);
            }
            Measured::Read { cells } => cells.iter_mut().for_each(|cell| cell.milliseconds_per_file /= speed),
        }
        record
    }

    fn cells(table: &Table, heading: &str) -> Vec<Cell> {
        let column = table.headings.iter().position(|other| other == heading).unwrap();
        table.rows.iter().map(|row| row[column].clone()).collect()
    }

    #[test]
    fn a_faster_record_is_faster_everywhere_and_nothing_else_differs() {
        let document = document(&named([testing::posix(), faster(testing::posix(), 2.0)])).unwrap();
        assert_eq!(document.sections[0].paragraphs, ["Version, machine and settings are the same."]);
        assert_eq!(document.sections.len(), 5);
        for section in &document.sections[1..] {
            let ratios = cells(&section.tables[0], "ratio");
            // Two targets, two states, nine numbers of jobs.
            assert_eq!(ratios.len(), 36);
            assert!(ratios.iter().all(|cell| cell.text == "2.00×" && cell.tone == Tone::Better), "{ratios:?}");
            assert_eq!(section.plots.len(), 2);
        }
    }

    #[test]
    fn what_differs_in_machine_and_settings_is_named() {
        let mut other = testing::posix();
        other.machine.processors = 64;
        other.settings.insert("bs".to_owned(), "1048576".to_owned());
        let document = document(&named([testing::posix(), other])).unwrap();
        let section = &document.sections[0];
        assert!(
            section.paragraphs[0].starts_with("These are not the same: Processors, bs."),
            "{:?}",
            section.paragraphs
        );
        assert_eq!(
            cells(&section.tables[0], "B").iter().map(|cell| cell.text.as_str()).collect::<Vec<_>>()[1..],
            ["64", "1 MiB"]
        );
    }

    #[test]
    fn records_of_different_benchmarks_are_refused_and_so_is_one_alone() {
        let error = document(&named([testing::posix(), testing::read()])).unwrap_err().to_string();
        assert!(error.contains("A is a record of `forebay bench posix` and B of `forebay bench read`"), "{error}");
        assert!(matches!(document(&[]), Err(RecordError::Few(0))));
        assert!(matches!(document(&named([testing::posix(), testing::read()])[..1]), Err(RecordError::Few(1))));
    }

    #[test]
    fn targets_of_different_names_are_compared_by_their_place() {
        let mut other = testing::posix_on(1);
        let Measured::Posix { targets, steps } = &mut other.measured else { panic!("of posix") };
        targets[0].name = "elsewhere".to_owned();
        steps.iter_mut().for_each(|step| step.case.target = "elsewhere".to_owned());
        let document = document(&named([testing::posix_on(1), other])).unwrap();
        assert_eq!(document.sections[0].paragraphs[1], "The first target of each is compared: forebay, elsewhere.");
        assert!(cells(&document.sections[1].tables[0], "ratio").iter().all(|cell| cell.text == "1.00×"));
    }

    #[test]
    fn another_topology_is_a_difference_and_no_obstacle() {
        let document = document(&named([testing::posix_on(1), testing::posix_on(3)])).unwrap();
        assert!(document.sections[0].paragraphs[0].contains("Topology"));
        assert!(cells(&document.sections[1].tables[0], "ratio").iter().all(|cell| cell.text == "2.88×"));
    }

    #[test]
    fn records_without_a_common_case_say_so() {
        let mut other = testing::posix();
        let Measured::Posix { steps, .. } = &mut other.measured else { panic!("of posix") };
        steps.iter_mut().for_each(|step| step.case.block_bytes = 123);
        let document = document(&named([testing::posix(), other])).unwrap();
        assert!(document.caution.unwrap().starts_with("Nothing was measured in all of them"));
        assert_eq!(document.sections.len(), 1);
    }

    #[test]
    fn a_run_that_was_cut_off_is_named() {
        let mut other = testing::posix();
        other.finished = false;
        assert_eq!(document(&named([testing::posix(), other])).unwrap().caution.unwrap(), "Not complete: B.");
    }

    #[test]
    fn whole_files_are_compared_by_transport_clients_files_and_size() {
        let document = document(&named([testing::read(), faster(testing::read(), 2.0)])).unwrap();
        let section = &document.sections[1];
        assert!(
            cells(&section.tables[0], "ratio")
                .iter()
                .all(|cell| cell.text.starts_with("0.50") && cell.tone == Tone::Better)
        );
        assert_eq!(section.plots.len(), 4);
        assert_eq!(section.plots[0].lines.len(), 4);
    }

    #[test]
    fn scaling_needs_more_than_one_topology() {
        let document = scaling(&named([testing::posix_on(1), testing::posix_on(3)])).unwrap();
        assert_eq!(document.sections[0].heading, "Scaling");
        assert!(matches!(scaling(&named([testing::posix(), testing::posix()])), Err(RecordError::OneTopology)));
        assert!(matches!(scaling(&named([testing::posix(), testing::read()])), Err(RecordError::Different { .. })));
    }
}
