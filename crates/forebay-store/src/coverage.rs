//! Which sectors of a block a store holds.

use forebay_types::SectorRange;

/// Which sectors of a block are held, by tier; merged and in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Sectors in memory.
    pub memory: Vec<SectorRange>,
    /// Sectors on disk.
    pub disk: Vec<SectorRange>,
}

/// The same sectors in as few ranges as possible, in order.
pub(crate) fn merge(ranges: impl Iterator<Item = SectorRange>) -> Vec<SectorRange> {
    let mut sorted: Vec<_> = ranges.collect();
    sorted.sort_unstable();
    let mut merged: Vec<SectorRange> = Vec::new();
    for range in sorted {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_and_touching_ranges_become_one() {
        let range = |start, end| SectorRange { start, end };
        let merged = merge([range(8, 9), range(2, 4), range(4, 5), range(0, 3), range(0, 1)].into_iter());
        assert_eq!(merged, [range(0, 5), range(8, 9)]);
    }
}
