//! Which measurements count, and why others do not.
//!
//! A cell that did not measure what it is called counts for nothing: what was asked of UCX and went over TCP, what was to come from
//! memory and came from an origin. It is shown, and neither a mean nor a conclusion takes it in, unless there is no other. Of a cell that counts, the
//! processor time may not: below a few ticks of the kernel's clock it is noise. And where rounds contradict each other the cell is
//! in the median, and never the best. Each of that is written beside the cell, so that a `-` in a table explains itself.

use super::mean::Mean;
use super::statistics::pairs;
use crate::record::Cell;

pub use super::doubt::{MIN_PROCESSORS, doubt, has_processors};

/// Writes beside each cell what of it does not count, others being compared with `base`.
pub fn judge(cells: &mut [Cell], base: &str) {
    let reasons: Vec<Vec<String>> = cells.iter().map(|cell| reasons(cells, cell, base)).collect();
    for (cell, reasons) in cells.iter_mut().zip(reasons) {
        cell.not_counted = reasons;
    }
}

fn reasons(cells: &[Cell], cell: &Cell, base: &str) -> Vec<String> {
    if let Some(doubt) = doubt(cell) {
        return vec![format!("all: {doubt}")];
    }
    let shape = |cell: &Cell| (cell.clients, cell.files, cell.file_bytes);
    let same = |way: &str| {
        let counts = |other: &&Cell| other.transport == way && shape(other) == shape(cell) && doubt(other).is_none();
        cells.iter().filter(counts).collect::<Vec<_>>()
    };
    let processors = |way: &str| {
        let mean = Mean::of(&same(way));
        match mean.processors() {
            known if known.is_finite() => (!has_processors(&mean))
                .then(|| format!("{known:.1} percent × seconds are too few to be told from none")),
            _ => Some("the workers did not say what they used".to_owned()),
        }
    };
    let mut reasons = Vec::new();
    if let Some(why) = processors(&cell.transport) {
        reasons.push(format!("CPU: {why}"));
    }
    let is_compared = cell.transport != base && cells.iter().any(|other| other.transport == base);
    if !is_compared {
        return reasons;
    }
    let partners = same(base);
    if !partners.iter().any(|partner| partner.round == cell.round) {
        reasons.push(format!("against {base}: nothing of {base} counts in round {}", cell.round + 1));
    } else if reasons.is_empty()
        && let Some(why) = processors(base)
    {
        reasons.push(format!("CPU against {base}: of {base}, {why}"));
    }
    let pair = pairs(cells, base, &cell.transport)
        .into_iter()
        .find(|pair| (pair.clients, pair.files, pair.file_bytes) == shape(cell));
    if pair.is_some_and(|pair| !pair.agreed) {
        reasons.push("as the best: the rounds disagree on which is faster".to_owned());
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::super::statistics::tests::cell;
    use super::*;

    fn judged(mut cells: Vec<Cell>) -> Vec<Vec<String>> {
        judge(&mut cells, "tcp");
        cells.into_iter().map(|cell| cell.not_counted).collect()
    }

    #[test]
    fn a_cell_that_counts_has_nothing_beside_it() {
        assert_eq!(judged(vec![cell("tcp", 20.0), cell("ucx", 10.0)]), vec![Vec::<String>::new(); 2]);
    }

    #[test]
    fn what_went_another_way_or_came_from_the_origin_counts_for_nothing_and_its_neighbour_against_nothing() {
        let partly = Cell { carried_by: "ucx (posix) 60 %, tcp 40 %".to_owned(), ..cell("ucx", 10.0) };
        let told = judged(vec![cell("tcp", 20.0), partly.clone()]);
        assert_eq!(told[0], [""; 0]);
        assert_eq!(told[1], ["all: ucx was asked for, and it went over ucx (posix) 60 %, tcp 40 %"]);
        assert_eq!(pairs(&[cell("tcp", 20.0), partly], "tcp", "ucx"), []);
        // Files of 1 MB.
        let cold = Cell { origin_bytes: Some(500_000), ..cell("tcp", 20.0) };
        let told = judged(vec![cold, cell("ucx", 10.0)]);
        assert_eq!(told[0], ["all: 500 kB came from the origin meanwhile, of 1 MB"]);
        assert_eq!(told[1], ["against tcp: nothing of tcp counts in round 1"]);
        let warm = Cell { origin_bytes: Some(9_000), ..cell("tcp", 20.0) };
        assert_eq!(doubt(&warm), None);
    }

    #[test]
    fn processor_time_that_is_too_little_or_unknown_is_said_where_it_is_missing() {
        let told = judged(vec![cell("tcp", 20.0), cell("ucx", 1.0)]);
        assert_eq!(told[0], [""; 0]);
        assert_eq!(told[1], ["CPU: 2.0 percent × seconds are too few to be told from none"]);
        let told = judged(vec![cell("tcp", 1.0), cell("ucx", 20.0)]);
        assert_eq!(told[1][0], "CPU against tcp: of tcp, 2.0 percent × seconds are too few to be told from none");
        let silent = Cell { worker_percent_seconds: f64::NAN, ..cell("tcp", 20.0) };
        assert_eq!(judged(vec![silent])[0], ["CPU: the workers did not say what they used"]);
    }

    #[test]
    fn rounds_that_disagree_are_said_on_what_is_compared() {
        let second = [Cell { round: 1, ..cell("tcp", 10.0) }, Cell { round: 1, ..cell("ucx", 20.0) }];
        let told = judged([&[cell("tcp", 20.0), cell("ucx", 10.0)][..], &second].concat());
        assert!(told[0].is_empty() && told[2].is_empty(), "{told:?}");
        assert_eq!(told[1], ["as the best: the rounds disagree on which is faster"]);
        assert_eq!(told[1], told[3]);
    }
}
