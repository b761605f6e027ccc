//! Which value holds for which bytes: runs that do not overlap, and that grow together where they touch. Pure.
//!
//! A writer that goes through a file in order makes one run, however many writes it takes; so every operation costs the
//! logarithm of the number of runs, and of what it removes.

use std::collections::BTreeMap;
use std::ops::Range;

/// A value for some bytes, and none for the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeMap<V> {
    /// By where a run begins: where it ends, and its value. No run is empty; none touches one of the same value.
    runs: BTreeMap<u64, (u64, V)>,
}

impl<V: Copy + Eq> RangeMap<V> {
    pub(crate) fn new() -> Self {
        Self { runs: BTreeMap::new() }
    }

    /// Gives `range` this value.
    pub(crate) fn set(&mut self, range: Range<u64>, value: V) {
        if range.is_empty() || self.has(&range, value) {
            return;
        }
        self.clear(range.clone());
        let Range { mut start, mut end } = range;
        if let Some((&before, &(reach, same))) = self.runs.range(..start).next_back()
            && reach == start
            && same == value
        {
            start = before;
        }
        if let Some(&(reach, same)) = self.runs.get(&end)
            && same == value
        {
            self.runs.remove(&end);
            end = reach;
        }
        self.runs.insert(start, (end, value));
    }

    /// Takes the value from `range`.
    pub(crate) fn clear(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        if let Some((&start, &(end, value))) = self.runs.range(..range.start).next_back()
            && end > range.start
        {
            self.runs.insert(start, (range.start, value));
            if end > range.end {
                self.runs.insert(range.end, (end, value));
            }
        }
        while let Some((&start, &(end, value))) = self.runs.range(range.clone()).next() {
            self.runs.remove(&start);
            if end > range.end {
                self.runs.insert(range.end, (end, value));
            }
        }
    }

    /// Whether all of `range` has this value.
    pub(crate) fn has(&self, range: &Range<u64>, value: V) -> bool {
        // Runs of one value never touch, so it must be one run.
        let run = self.runs.range(..=range.start).next_back();
        range.is_empty() || run.is_some_and(|(_, &(end, same))| same == value && end >= range.end)
    }

    /// The runs within `range`, in order, cut off at its ends.
    pub(crate) fn within(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, V)> {
        let (from, to) = (range.start, range.end.max(range.start));
        let reaching_in = self.runs.range(..from).next_back().filter(move |(_, (end, _))| *end > from && from < to);
        let runs = reaching_in.into_iter().chain(self.runs.range(from..to));
        runs.map(move |(&start, &(end, value))| (start.max(from)..end.min(to), value))
    }

    /// The bytes of `range` that have this value.
    pub(crate) fn bytes(&self, range: Range<u64>, value: V) -> u64 {
        self.within(range).filter(|(_, same)| *same == value).map(|(run, _)| run.end - run.start).sum()
    }

    /// How many runs there are.
    #[cfg(test)]
    pub(crate) fn runs(&self) -> usize {
        self.runs.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: u64 = 40;

    #[test]
    fn a_writer_in_order_makes_one_run() {
        let mut map = RangeMap::new();
        (0..1000).for_each(|write| map.set(write * 10..write * 10 + 10, 'w'));
        assert_eq!((map.runs(), map.bytes(5..95, 'w')), (1, 90));
        assert_eq!(map.within(7..8).collect::<Vec<_>>(), [(7..8, 'w')]);
        assert_eq!(map.within(8..8).count(), 0);
    }

    proptest! {
        #[test]
        fn it_says_what_an_array_says(
            changes in prop::collection::vec((0..SIZE, 0..SIZE, prop::option::of(0u8..3)), 0..60),
            asked in (0..SIZE, 0..SIZE),
        ) {
            let (mut map, mut model) = (RangeMap::new(), [None; SIZE as usize]);
            for (a, b, value) in changes {
                let range = a.min(b)..a.max(b);
                model[range.start as usize..range.end as usize].fill(value);
                match value {
                    Some(value) => map.set(range, value),
                    None => map.clear(range),
                }
            }
            let mut said = [None; SIZE as usize];
            for (run, value) in map.within(0..SIZE) {
                prop_assert!(run.start < run.end);
                said[run.start as usize..run.end as usize].fill(Some(value));
            }
            prop_assert_eq!(said, model);
            let borders = model.windows(2).filter(|pair| pair[0] != pair[1] && pair[1].is_some()).count();
            prop_assert_eq!(map.runs(), borders + usize::from(model[0].is_some()), "runs that touch are one");
            let asked = asked.0.min(asked.1)..asked.0.max(asked.1);
            let part = &model[asked.start as usize..asked.end as usize];
            let count = part.iter().filter(|value| **value == Some(1)).count();
            prop_assert_eq!(map.bytes(asked.clone(), 1), count as u64);
            prop_assert_eq!(map.has(&asked, 1), count == part.len());
        }
    }
}
