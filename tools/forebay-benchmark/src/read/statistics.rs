//! From cells to what is compared: the same cell by two ways, each the mean of its rounds.
//!
//! A pair is made of the rounds that both have, since only those are neighbours in time; and of what [`counts`](super::counted).

use std::collections::BTreeMap;

use super::doubt::{doubt, has_processors};
use crate::record::Cell;

pub use super::mean::{Mean, mean};

/// The same cell by two ways.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Clients that read at once.
    pub clients: u32,
    /// Files that each of them read.
    pub files: u32,
    /// Bytes in each.
    pub file_bytes: u64,
    /// By the way that is compared with.
    pub base: Mean,
    /// By the other.
    pub other: Mean,
    /// Whether one and the same of them was the faster in every round.
    pub agreed: bool,
    /// How far the rounds lie apart, relative to their mean: the worse of both ways. Nothing with one round.
    pub spread: Option<f64>,
}

impl Pair {
    /// How much less time a file took by the other way: 0.5 is half of it, a negative number is more.
    #[must_use]
    pub fn faster(&self) -> f64 {
        less(self.base.milliseconds_per_file, self.other.milliseconds_per_file)
    }

    /// Whether both used so much of the processors that they can be compared.
    #[must_use]
    pub fn has_processors(&self) -> bool {
        has_processors(&self.base) && has_processors(&self.other)
    }

    /// How much less of the processors was used.
    #[must_use]
    pub fn cheaper(&self) -> f64 {
        less(self.base.processors(), self.other.processors())
    }
}

fn less(base: f64, other: f64) -> f64 {
    if base > 0.0 { 1.0 - other / base } else { 0.0 }
}

/// Clients, files and bytes of each.
type Shape = (u32, u32, u64);

/// The cells that were measured by both `base` and `other`, by clients, files and size.
#[must_use]
pub fn pairs(cells: &[Cell], base: &str, other: &str) -> Vec<Pair> {
    let mut rounds: BTreeMap<Shape, BTreeMap<u32, [Option<&Cell>; 2]>> = BTreeMap::new();
    for cell in cells.iter().filter(|cell| doubt(cell).is_none()) {
        let Some(way) = [base, other].iter().position(|way| *way == cell.transport) else { continue };
        let shape = (cell.clients, cell.files, cell.file_bytes);
        rounds.entry(shape).or_default().entry(cell.round).or_default()[way] = Some(cell);
    }
    let both = rounds.into_iter().filter_map(|(shape, rounds)| {
        let (base, other): (Vec<&Cell>, Vec<&Cell>) =
            rounds.into_values().filter_map(|[base, other]| base.zip(other)).unzip();
        (!base.is_empty()).then_some((shape, base, other))
    });
    both.map(|((clients, files, file_bytes), base, other)| {
        let wins =
            base.iter().zip(&other).filter(|(base, other)| other.milliseconds_per_file < base.milliseconds_per_file);
        let wins = wins.count();
        let spread = spread(&base).zip(spread(&other)).map(|(base, other)| base.max(other));
        let agreed = wins == 0 || wins == base.len();
        Pair { clients, files, file_bytes, base: Mean::of(&base), other: Mean::of(&other), agreed, spread }
    })
    .collect()
}

fn spread(cells: &[&Cell]) -> Option<f64> {
    let times: Vec<f64> = cells.iter().map(|cell| cell.milliseconds_per_file).collect();
    let (least, most) =
        times.iter().fold((f64::MAX, f64::MIN), |(least, most), time| (least.min(*time), most.max(*time)));
    (times.len() > 1).then(|| (most - least) / mean(times).unwrap_or(f64::INFINITY))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::record::Compared;

    /// A cell of one client, one file of 1 MB, round 0, by this way.
    pub(crate) fn cell(transport: &str, milliseconds: f64) -> Cell {
        Cell {
            transport: transport.to_owned(),
            carried_by: if transport == "ucx" { "ucx (posix, cma)".to_owned() } else { transport.to_owned() },
            clients: 1,
            files: 1,
            file_bytes: 1_000_000,
            round: 0,
            milliseconds_per_file: milliseconds,
            seconds: milliseconds / 1e3,
            client_percent_seconds: milliseconds,
            worker_percent_seconds: milliseconds,
            checked: false,
            compared: Compared::Before,
            origin_bytes: None,
            not_counted: Vec::new(),
        }
    }

    #[test]
    fn a_pair_is_the_mean_of_the_rounds_that_both_have() {
        let round = |round, cell: Cell| Cell { round, ..cell };
        let cells = [
            cell("tcp", 10.0),
            cell("ucx", 5.0),
            round(1, cell("ucx", 7.0)),
            round(1, cell("tcp", 14.0)),
            // No neighbour.
            round(2, cell("tcp", 1000.0)),
            cell("juicefs", 1.0),
        ];
        let [pair] = pairs(&cells, "tcp", "ucx")[..] else { panic!("one cell was measured by both") };
        assert_eq!((pair.base.milliseconds_per_file, pair.other.milliseconds_per_file), (12.0, 6.0));
        assert_eq!((pair.faster(), pair.cheaper(), pair.agreed), (0.5, 0.5, true));
        assert_eq!(pair.other.processors(), 12.0);
        assert!((pair.spread.unwrap() - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(pairs(&cells, "tcp", "mountpoint-s3"), []);
    }

    #[test]
    fn rounds_that_contradict_each_other_are_known() {
        let second = [Cell { round: 1, ..cell("tcp", 5.0) }, Cell { round: 1, ..cell("ucx", 10.0) }];
        let cells = [&[cell("tcp", 10.0), cell("ucx", 5.0)][..], &second].concat();
        assert!(!pairs(&cells, "tcp", "ucx")[0].agreed);
    }
}
