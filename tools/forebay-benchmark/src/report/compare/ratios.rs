//! Columns of a comparison: each figure of each record, and its ratio to that of the first.

use crate::record::Record;
use crate::report::document::Cell;
use crate::report::units::Common;
use crate::spread::Spread;

/// The heading of ratios to the first record.
pub(super) const RATIO: &str = "ratio";

/// The headings of [`with_ratios`], for each of `figures`.
pub(super) fn headings_with_ratios(figures: &[&str], records: &[(String, Record)]) -> Vec<String> {
    let mut headings = Vec::new();
    for figure in figures {
        for (number, (name, _)) in records.iter().enumerate() {
            headings.push(format!("{figure}: {name}"));
            if number > 0 {
                headings.push(RATIO.to_owned());
            }
        }
    }
    headings
}

/// A figure of each record; behind each but the first its ratio to that.
pub(super) fn with_ratios(values: Vec<Option<Spread>>, unit: Common, more_is_better: bool) -> Vec<Cell> {
    let mut cells = Vec::new();
    for (number, value) in values.iter().enumerate() {
        cells.push(Cell::spread(*value, unit));
        if number > 0 {
            let ratio = values[0].and_then(|first| (*value)?.over(&first));
            cells.push(Cell::ratio(ratio, more_is_better));
        }
    }
    cells
}
