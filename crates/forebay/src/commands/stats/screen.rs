//! What is written to a terminal, or to a file, as intervals come: a heading now and then, and all anew when the terminal's
//! size asks for another layout. Pure: from values and a size to text.

use std::collections::VecDeque;

use super::columns::{Column, Counted};
use super::layout::Layout;
use super::table::Table;

/// Lines after which the heading is repeated where the height of the terminal is unknown.
const SCREENFUL: usize = 24;
/// Intervals that can be drawn anew; no terminal shows more.
const KEPT: usize = 256;
/// Empties the screen, and goes to its beginning. What scrolled out of it stays.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// How much room there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    /// Characters of a line; in a file as many as it takes.
    pub(super) width: Option<usize>,
    /// Lines.
    pub(super) height: Option<usize>,
}

/// What was written.
pub(super) struct Screen {
    columns: Vec<Column>,
    /// Whether a person named the groups.
    are_named: bool,
    table: Table,
    counted: Vec<Counted>,
    layout: Option<Layout>,
    /// The last intervals.
    rows: VecDeque<Vec<Option<f64>>>,
    /// Intervals since the heading.
    since_heading: usize,
}

impl Screen {
    /// Of nothing yet.
    pub(super) fn new(columns: Vec<Column>, are_named: bool, colours: bool) -> Self {
        let table = Table::new(columns.clone(), colours);
        let counted = vec![Counted::Nowhere; columns.len()];
        Self { columns, are_named, table, counted, layout: None, rows: VecDeque::new(), since_heading: 0 }
    }

    /// An interval: the values of its columns, and what is known of each by now.
    pub(super) fn row(&mut self, values: Vec<Option<f64>>, counted: &[Counted], size: Size) -> String {
        // One that did not answer this time is counted all the same.
        self.counted.iter_mut().zip(counted).for_each(|(known, now)| *known = (*known).max(*now));
        let layout = self.fitting(size);
        let is_new = self.layout.as_ref() != Some(&layout);
        if is_new || self.since_heading >= self.room(&layout, size) {
            self.since_heading = 0;
        }
        let heading = if self.since_heading == 0 { self.table.heading(&layout) } else { String::new() };
        let text = format!("{heading}{}", self.table.row(&layout, &values));
        self.since_heading += 1;
        self.layout = Some(layout);
        if self.rows.len() == KEPT {
            self.rows.pop_front();
        }
        self.rows.push_back(values);
        text
    }

    /// The terminal has another size: what is to be written for that.
    pub(super) fn resized(&mut self, size: Size) -> Option<String> {
        let layout = self.fitting(size);
        self.layout.as_ref().filter(|drawn| **drawn != layout)?;
        let shown = self.rows.len().min(self.room(&layout, size));
        let rows = self.rows.iter().skip(self.rows.len() - shown);
        let text = rows.map(|values| self.table.row(&layout, values)).collect::<String>();
        let text = format!("{CLEAR}{}{text}", self.table.heading(&layout));
        self.since_heading = shown;
        self.layout = Some(layout);
        Some(text)
    }

    fn fitting(&self, size: Size) -> Layout {
        Layout::of(&self.columns, &self.counted, self.are_named, size.width)
    }

    /// Intervals that have a place below the heading.
    fn room(&self, layout: &Layout, size: Size) -> usize {
        let (height, lines) = (size.height.unwrap_or(SCREENFUL), layout.lines.len().max(1));
        (height.saturating_sub(1 + 2 * lines) / lines).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::stats::columns::{Section, chosen};

    const WIDE: Size = Size { width: Some(235), height: Some(10) };

    fn screen() -> (Screen, usize) {
        let sections: Vec<Section> = "ufmcreo".chars().filter_map(Section::of).collect();
        let columns = chosen(&sections, 0);
        let count = columns.len();
        (Screen::new(columns, false, false), count)
    }

    #[test]
    fn the_heading_comes_again_with_each_screenful() {
        let (mut screen, count) = screen();
        let mut headings = 0;
        for _ in 0..15 {
            let text = screen.row(vec![Some(1.0); count], &vec![Counted::Ever; count], WIDE);
            headings += usize::from(text.contains("usage"));
            assert!(text.lines().count() == if text.contains("usage") { 3 } else { 1 }, "{text}");
        }
        // Of ten lines two are the heading, and one is the cursor's.
        assert_eq!(headings, 3);
    }

    #[test]
    fn a_terminal_that_became_narrower_is_drawn_anew_and_no_line_is_longer_than_it() {
        let (mut screen, count) = screen();
        for number in 0..20 {
            screen.row(vec![Some(f64::from(number)); count], &vec![Counted::Ever; count], WIDE);
        }
        assert_eq!(screen.resized(Size { height: Some(30), ..WIDE }), None, "what fits is left as it is");
        let narrow = Size { width: Some(80), height: Some(15) };
        let text = screen.resized(narrow).unwrap();
        assert!(text.starts_with(CLEAR), "{text}");
        let text = text.trim_start_matches(CLEAR);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        // Two lines for each interval below a heading of four, and the cursor's.
        assert_eq!(text.lines().count(), 14, "{text}");
        let last = text.lines().last().unwrap();
        assert!(last.contains("19"), "the last ones are kept: {text}");
        assert!(!screen.row(vec![Some(5.0); count], &vec![Counted::Ever; count], narrow).is_empty());
        assert!(screen.resized(WIDE).is_some_and(|text| text.contains("remotecache")), "and wider again");
    }

    #[test]
    fn a_group_that_begins_to_count_is_shown_from_then_on() {
        let (mut screen, count) = screen();
        let mut counted = vec![Counted::Ever; count];
        counted[count - 5..].fill(Counted::Nowhere);
        let without = screen.row(vec![Some(1.0); count], &counted, WIDE);
        assert!(without.contains("rdma") && !without.contains("object"), "{without}");
        assert!(!screen.row(vec![Some(1.0); count], &counted, WIDE).contains("rdma"));
        counted.fill(Counted::Ever);
        assert!(screen.row(vec![Some(1.0); count], &counted, WIDE).contains("object"));
        counted.fill(Counted::Nowhere);
        let away = screen.row(vec![None; count], &counted, WIDE);
        assert!(!away.contains("usage"), "a process that does not answer for once keeps its place: {away}");
    }
}
