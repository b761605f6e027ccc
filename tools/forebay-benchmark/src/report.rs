//! What a record looks like: a page with plots, tables for a terminal, a table as CSV, and several records side by side.
//!
//! A record becomes a document first (headings, findings, plots, tables: plain values), and that is drawn twice: as one HTML
//! page that needs nothing else, and as text. So the page and the terminal cannot say different things.
//!
//! ```text
//!  record ──► posix, read ──┐                  ┌──► page (templates: HTML with SVG in it)
//!  records ─► compare ──────┴──► document ─────┴──► text
//! ```
//!
//! * `load`: reads a record back, or says why not;
//! * `posix` (of `sweeps`) and `read`: which plots and tables there are;
//! * `published`: scaling, and figures of others;
//! * `plot`, `axis`, `units`: where a value goes on paper, and how it is written;
//! * `csv`: all that was measured, for other programs.

use document::Document;

use crate::record::{Measured, Record};

mod axis;
mod common;
mod compare;
mod csv;
mod document;
mod load;
mod page;
mod plot;
mod posix;
mod published;
mod read;
mod sweeps;
#[cfg(test)]
pub(crate) mod testing;
mod text;
mod units;

pub use load::{RecordError, load};

/// One page, complete in itself: plots are SVG in it, nothing is fetched and no script runs.
#[must_use]
pub fn html(record: &Record) -> String {
    page::page(&document(record))
}

/// The same without plots, for a terminal.
#[must_use]
pub fn text(record: &Record) -> String {
    text::text(&document(record))
}

/// Everything that was measured, a line each.
#[must_use]
pub fn csv(record: &Record) -> String {
    csv::csv(record)
}

/// Records side by side, each with the name that it is to go by. The first is what the others are compared with.
///
/// # Errors
/// When there are fewer than two, or when they are of different benchmarks.
pub fn compare(records: &[(String, Record)]) -> Result<Comparison, RecordError> {
    compare::document(records).map(Comparison)
}

/// What more workers and clients give: the records of several topologies in one table for each way of reading.
///
/// # Errors
/// When there is no record of `forebay bench posix`, or all are of one topology.
pub fn scaling(records: &[(String, Record)]) -> Result<Comparison, RecordError> {
    compare::scaling(records).map(Comparison)
}

/// Several records in one document.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison(Document);

impl Comparison {
    /// One page, complete in itself.
    #[must_use]
    pub fn html(&self) -> String {
        page::page(&self.0)
    }

    /// The same without plots, for a terminal.
    #[must_use]
    pub fn text(&self) -> String {
        text::text(&self.0)
    }
}

fn document(record: &Record) -> Document {
    match &record.measured {
        Measured::Posix { targets, steps } => posix::document(record, targets, steps),
        Measured::Read { cells } => read::document(record, cells),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every element that is opened is closed, in order.
    fn is_well_formed(page: &str) -> bool {
        const NEVER_CLOSED: [&str; 2] = ["meta", "!doctype"];
        let mut open = Vec::new();
        for tag in page.split('<').skip(1) {
            let Some((tag, _)) = tag.split_once('>') else { return false };
            let name = tag.trim_matches('/').split_whitespace().next().unwrap_or_default();
            if tag.starts_with('/') {
                if open.pop() != Some(name) {
                    return false;
                }
            } else if !tag.ends_with('/') && !NEVER_CLOSED.contains(&name) {
                open.push(name);
            }
        }
        open.is_empty()
    }

    fn style_less(page: &str) -> String {
        let (head, rest) = page.split_once("<style>").unwrap();
        format!("{head}<style>{}", rest.split_once("</style>").map(|(_, rest)| format!("</style>{rest}")).unwrap())
    }

    #[test]
    fn a_page_is_whole_and_has_its_plots_in_it() {
        for (record, plots) in [(testing::posix(), 16), (testing::posix_on(3), 6), (testing::read(), 4)] {
            let page = html(&record);
            assert!(is_well_formed(&style_less(&page)));
            assert_eq!(page.matches("role=\"img\"").count(), plots);
            for foreign in ["http:", "https:", "<script", "url(", "NaN", "inf\""] {
                assert!(!page.contains(foreign), "{foreign}");
            }
            assert!(page.contains("p99 is 15.6 times the mean") && page.contains("gpu-17"));
        }
    }

    #[test]
    fn a_record_with_nothing_in_it_yet_has_a_report_as_well() {
        let mut record = testing::posix();
        record.finished = false;
        record.findings.clear();
        let Measured::Posix { steps, .. } = &mut record.measured else { panic!("of posix") };
        steps.clear();
        assert!(html(&record).contains("did not come to its end"));
        assert!(text(&record).contains("Machine and settings"));
        assert_eq!(csv(&record).lines().count(), 1);
        record.measured = Measured::Read { cells: Vec::new() };
        assert!(is_well_formed(&style_less(&html(&record))));
    }

    #[test]
    fn figures_that_cannot_be_do_no_harm() {
        let mut record = testing::posix();
        let Measured::Posix { steps, .. } = &mut record.measured else { panic!("of posix") };
        for (number, step) in steps.iter_mut().enumerate() {
            step.outcome.bytes_per_second = [0.0, f64::NAN, f64::INFINITY, -1.0][number % 4];
            step.outcome.latency.p99 = [0.0, f64::NAN, f64::INFINITY, -1.0][number % 4];
            step.case.block_bytes = 0;
        }
        assert!(!html(&record).contains("NaN"));
        assert!(!text(&record).is_empty());
    }

    #[test]
    fn the_page_and_the_terminal_have_the_same_figures() {
        let record = testing::posix();
        let (page, text) = (html(&record), text(&record));
        for words in ["Highest throughput, warm", "Against juicefs", "2.00×", "Alluxio, POSIX benchmark, DRAM"] {
            assert!(page.contains(words) && text.contains(words), "{words}");
        }
    }

    #[test]
    fn what_was_written_is_read_back_from_the_file_and_from_its_directory() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("record.json");
        let record = testing::posix_on(2);
        std::fs::write(&file, serde_json::to_vec(&record).unwrap()).unwrap();
        for path in [file.as_path(), directory.path()] {
            let back = load(path).unwrap();
            // serde_json reads a number to its last digit but one.
            assert!(csv(&back) == csv(&record) && back.findings == record.findings && back.machine == record.machine);
        }
    }

    #[test]
    fn a_record_of_an_earlier_version_is_read_and_its_percentiles_are_brought_below_the_maximum() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("record.json");
        let mut value = serde_json::to_value(testing::posix()).unwrap();
        for step in value["steps"].as_array_mut().unwrap() {
            let cpu = step["outcome"]["cpu"].as_object_mut().unwrap();
            cpu.retain(|name, _| ["machine", "fio"].contains(&name.as_str()));
            // As fio rounds up.
            let max = step["outcome"]["latency"]["max"].as_f64().unwrap();
            step["outcome"]["latency"]["p999"] = (max * 1.01).into();
        }
        std::fs::write(&file, value.to_string()).unwrap();
        let record = load(&file).unwrap();
        let Measured::Posix { steps, .. } = &record.measured else { panic!("of posix") };
        assert!(steps.iter().all(|step| (step.outcome.cpu.others, step.outcome.cpu.stolen) == (0.0, 0.0)));
        for sweep in sweeps::sweeps(steps, &record) {
            let of = |point: &sweeps::Point| (point.outcome.latency.p999, point.outcome.latency.max);
            assert!(sweep.points.iter().map(of).all(|(p999, max)| p999 <= max), "{:?}", sweep.case);
        }
        assert!(!html(&record).is_empty());
    }

    #[test]
    fn a_record_of_a_later_version_is_refused_with_that_version_whatever_else_is_in_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("record.json");
        std::fs::write(&file, r#"{ "format": 9, "version": "4.5.6", "benchmark": "quantum" }"#).unwrap();
        let error = load(&file).unwrap_err();
        assert!(matches!(error, RecordError::Newer { format: 9, .. }));
        assert!(error.to_string().contains("forebay 4.5.6"), "{error}");
        std::fs::write(&file, "{}").unwrap();
        assert!(matches!(load(&file), Err(RecordError::Malformed { .. })));
        let error = load(&directory.path().join("nowhere")).unwrap_err();
        assert!(matches!(&error, RecordError::Read { .. }) && error.to_string().contains("nowhere"), "{error}");
    }
}
