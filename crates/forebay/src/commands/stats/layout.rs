//! Which columns have a place in so many characters, and how wide each is: pure.
//!
//! A table that does not fit on one line is made narrower in steps. Columns that no process counts go, then names and
//! numbers are shortened to four characters, then groups of which nothing ever happened go. If that is not enough,
//! groups are put on several lines, as few as can be. Groups that the user named stay, and are only shortened and put
//! on further lines.

use super::columns::{Column, Counted, Section};

/// How much room a column takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Density {
    /// `99.9%`, under its whole name.
    Full,
    /// `100%`, under a name of four letters.
    Tight,
}

/// A column that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    /// Which it is, of all that were to be laid out.
    pub(super) at: usize,
    /// Characters.
    pub(super) width: usize,
}

/// A group of columns that are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) section: Section,
    pub(super) cells: Vec<Cell>,
}

/// What is shown where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) density: Density,
    /// The groups of each line. Where there is more than one, each begins with its letters.
    pub(super) lines: Vec<Vec<Group>>,
}

impl Density {
    /// The characters that the widest number takes.
    fn least(self) -> usize {
        match self {
            Self::Full => 5,
            Self::Tight => 4,
        }
    }

    pub(super) fn name_of(self, column: &Column) -> &'static str {
        match self {
            Self::Full => column.name,
            Self::Tight => column.short(),
        }
    }

    pub(super) fn title_of(self, section: Section) -> &'static str {
        match self {
            Self::Full => section.name(),
            Self::Tight => section.short(),
        }
    }
}

impl Group {
    fn of(columns: &[Column], section: Section, members: &[usize], density: Density) -> Self {
        let wide = |at: &usize| density.name_of(&columns[*at]).chars().count().max(density.least());
        let mut cells: Vec<Cell> = members.iter().map(|at| Cell { at: *at, width: wide(at) }).collect();
        // A group is as wide as its name.
        let missing = density.title_of(section).len().saturating_sub(width_of(&cells));
        if let Some(first) = cells.first_mut() {
            first.width += missing;
        }
        Self { section, cells }
    }

    pub(super) fn width(&self) -> usize {
        width_of(&self.cells)
    }
}

fn width_of(cells: &[Cell]) -> usize {
    cells.iter().map(|cell| cell.width + 1).sum::<usize>().saturating_sub(1)
}

fn width_of_groups(line: &[Group]) -> usize {
    line.iter().map(|group| group.width() + 1).sum::<usize>().saturating_sub(1)
}

impl Layout {
    /// Places `columns` in `width` characters, or on one line however long. `counted` says what is known of each; with
    /// `are_named`, all of them are wanted whatever that is.
    pub(super) fn of(columns: &[Column], counted: &[Counted], are_named: bool, width: Option<usize>) -> Self {
        let section_has = |at: usize, least: Counted| {
            let of_section = columns.iter().zip(counted).filter(|(column, _)| column.section == columns[at].section);
            of_section.map(|(_, counted)| *counted).max() >= Some(least)
        };
        let all = || 0..columns.len();
        // Where nothing at all is known, as of a process that just began, there is something to show all the same.
        let leaves_out = |least: Counted| !are_named && counted.iter().any(|counted| *counted >= least);
        let whole: Vec<usize> = match leaves_out(Counted::Never) {
            true => all().filter(|at| section_has(*at, Counted::Never)).collect(),
            false => all().collect(),
        };
        let known: Vec<usize> = match leaves_out(Counted::Never) {
            true => all().filter(|at| counted[*at] >= Counted::Never).collect(),
            false => whole.clone(),
        };
        let busy: Vec<usize> = match leaves_out(Counted::Ever) {
            true => known.iter().copied().filter(|at| section_has(*at, Counted::Ever)).collect(),
            false => known.clone(),
        };
        let Some(width) = width else { return Self::in_lines(columns, &whole, Density::Full, usize::MAX) };
        let steps =
            [(Density::Full, &whole), (Density::Full, &known), (Density::Tight, &known), (Density::Tight, &busy)];
        let mut in_one = steps.iter().map(|(density, shown)| Self::in_lines(columns, shown, *density, width));
        if let Some(fits) = in_one.find(|layout| layout.lines.len() == 1) {
            return fits;
        }
        let further =
            [(Density::Full, &known), (Density::Tight, &known), (Density::Full, &busy), (Density::Tight, &busy)];
        let further = further.map(|(density, shown)| Self::in_lines(columns, shown, density, width));
        // Of those with as few lines, the first: it shows most.
        let fewest = further.iter().map(|layout| layout.lines.len()).min();
        let [first, ..] = &further;
        further.iter().find(|layout| Some(layout.lines.len()) == fewest).unwrap_or(first).clone()
    }

    /// Fills lines with groups, in their order. A group that is wider than a line has one to itself.
    fn in_lines(columns: &[Column], shown: &[usize], density: Density, width: usize) -> Self {
        let groups: Vec<Group> = shown
            .chunk_by(|a, b| columns[*a].section == columns[*b].section)
            .map(|members| Group::of(columns, columns[members[0]].section, members, density))
            .collect();
        let whole = Self { density, lines: vec![groups.clone()] };
        if whole.width() <= width {
            return whole;
        }
        // The letters before the lines are as many as the groups of the fullest one.
        let ways = (1..=groups.len()).map(|most| {
            let mut lines: Vec<Vec<Group>> = Vec::new();
            for group in &groups {
                match lines.last_mut() {
                    Some(line) if line.len() < most && width_of_groups(line) + 1 + group.width() + most < width => {
                        line.push(group.clone());
                    }
                    _ => lines.push(vec![group.clone()]),
                }
            }
            Self { density, lines }
        });
        ways.min_by_key(|way| way.lines.len()).unwrap_or(whole)
    }

    /// The letters before each line, and a space.
    pub(super) fn margin(&self) -> usize {
        if self.lines.len() > 1 { self.lines.iter().map(Vec::len).max().unwrap_or(0) + 1 } else { 0 }
    }

    /// Characters of the longest line.
    pub(super) fn width(&self) -> usize {
        self.margin() + self.lines.iter().map(|line| width_of_groups(line)).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::stats::columns::{chosen, counted, tests::reports};
    use forebay_node::report::Report;
    use forebay_node::report::sample::everything;

    fn of(letters: &str) -> Vec<Section> {
        letters.chars().filter_map(Section::of).collect()
    }

    /// The layout for a process that reports `report`, the letters of the groups of each line, and the columns.
    fn laid(
        report: &[(String, Report)],
        letters: &str,
        verbosity: u8,
        named: bool,
        width: usize,
    ) -> (Layout, Vec<String>) {
        let columns = chosen(&of(letters), verbosity);
        let layout = Layout::of(&columns, &counted(&columns, report), named, Some(width));
        assert!(layout.width() <= width, "{} of {width}: {layout:?}", layout.width());
        let letters = |line: &Vec<Group>| line.iter().map(|group| group.section.letter()).collect();
        (layout.clone(), layout.lines.iter().map(letters).collect())
    }

    /// A mount whose workers are in other processes, over TCP.
    fn mount() -> Vec<(String, Report)> {
        let mut report = everything(3);
        for part in ["node", "rdma", "local"] {
            report[part] = serde_json::Value::Null;
        }
        reports(report)
    }

    #[test]
    fn a_mount_fits_on_one_line_of_any_terminal_of_80_characters_or_more() {
        for width in [80, 100, 143, 235] {
            let (layout, letters) = laid(&mount(), "ufmcreo", 0, false, width);
            assert_eq!(letters, ["ufmcro"], "at {width}");
            assert_eq!(layout.density, if width == 80 { Density::Tight } else { Density::Full }, "at {width}");
        }
    }

    #[test]
    fn a_process_that_counts_everything_is_shortened_and_then_put_on_more_lines() {
        let all = reports(everything(3));
        let lines = |verbosity, width| laid(&all, "ufmcreol", verbosity, true, width);
        assert_eq!(lines(0, 235).1, ["ufmcreol"]);
        assert_eq!(lines(0, 143).1, ["ufmcreol"]);
        assert_eq!(lines(0, 143).0.density, Density::Tight);
        assert_eq!(lines(0, 100).1.len(), 2);
        assert_eq!(lines(0, 80).1.len(), 2);
        assert_eq!(lines(1, 235).1, ["ufmcreol"]);
        assert_eq!(lines(1, 143).1.len(), 2);
        assert_eq!(lines(1, 100).1.len(), 3);
        assert_eq!(lines(1, 80).1.len(), 4);
    }

    #[test]
    fn groups_that_nobody_counts_are_left_out_unless_they_are_named() {
        assert_eq!(laid(&mount(), "ufmcreo", 0, false, 235).1, ["ufmcro"]);
        assert_eq!(laid(&mount(), "ufmcreo", 0, true, 235).1, ["ufmcreo"]);
        let columns = chosen(&of("ufmcreo"), 0);
        let file = Layout::of(&columns, &counted(&columns, &mount()), false, None);
        assert_eq!((file.lines.len(), file.density), (1, Density::Full));
        assert!(file.lines[0].iter().all(|group| group.section != Section::Rdma));
    }

    #[test]
    fn groups_of_which_nothing_ever_happened_go_only_where_there_is_no_room() {
        let idle = everything(0);
        let mut report = everything(3);
        // Nothing was ever read from another process, over whatever.
        report["client"]["data"] = idle["client"]["data"].clone();
        report["window"] = serde_json::json!({ "bytes": 0, "reads": 0 });
        report["rdma"] = serde_json::Value::Null;
        report["node"]["rdma"] = serde_json::Value::Null;
        let up = reports(report);
        assert_eq!(laid(&up, "ufmcreo", 0, false, 80).1, ["ufmco"]);
        assert_eq!(laid(&up, "ufmcreo", 0, false, 143).1, ["ufmcro"]);
        assert_eq!(laid(&up, "ufmcreo", 0, true, 80).1.concat(), "ufmcreo");
    }

    #[test]
    fn a_terminal_that_is_narrower_than_a_group_has_it_on_a_line_of_its_own() {
        let columns = chosen(&of("er"), 1);
        let layout = Layout::of(&columns, &counted(&columns, &reports(everything(3))), true, Some(20));
        assert_eq!(layout.lines.len(), 2);
    }

    #[test]
    fn what_is_known_of_nothing_yet_is_shown_as_a_whole() {
        let columns = chosen(&of("uf"), 0);
        let layout = Layout::of(&columns, &counted(&columns, &[]), false, Some(80));
        assert_eq!(layout.lines[0].len(), 2);
    }
}
