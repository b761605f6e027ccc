//! How a file is cut into parts. Pure.
//!
//! Object stores take 10,000 parts and not one more, so parts that are small enough for a file of a few gigabytes are
//! too small for one of hundreds. The length of a file is not known beforehand. So parts grow on the way: 2,000 of the
//! configured size, 3,000 four times that, 5,000 eight times that, none above [`MAX_PART`]. With 8 MiB that ends at 422
//! GiB.

use std::ops::Range;

use crate::MAX_PART;

/// The last part of a step, and how many times the first size its parts have.
const STEPS: [(u32, u64); 3] = [(2_000, 1), (5_000, 4), (MAX_PARTS, 8)];
/// Parts of a file, at most.
const MAX_PARTS: u32 = 10_000;

/// The ranges of all parts that a file can have. Parts count from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// How many parts, and the size of each.
    steps: Vec<(u32, u64)>,
}

impl Schedule {
    /// The schedule that begins with parts of `part_size` bytes.
    #[must_use]
    pub fn new(part_size: u64) -> Self {
        let mut before = 0;
        let step = |(last, times)| {
            let parts = last - before;
            before = last;
            (parts, part_size.saturating_mul(times).min(u64::from(MAX_PART)))
        };
        Self { steps: STEPS.into_iter().map(step).collect() }
    }

    /// So many parts of each of these sizes; `None` where a part would be empty or too large, or there would be none or too many.
    pub(crate) fn of_steps(steps: &[(u32, u64)]) -> Option<Self> {
        let possible = |&(parts, size): &(u32, u64)| parts > 0 && (1..=u64::from(MAX_PART)).contains(&size);
        let parts: u64 = steps.iter().map(|&(parts, _)| u64::from(parts)).sum();
        let fits = !steps.is_empty() && steps.iter().all(possible) && parts <= u64::from(MAX_PARTS);
        fits.then(|| Self { steps: steps.to_vec() })
    }

    /// The steps that [`Schedule::of_steps`] takes.
    pub(crate) fn steps(&self) -> &[(u32, u64)] {
        &self.steps
    }

    /// The size of the first part, in bytes.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.steps[0].1
    }

    /// The size of the largest part.
    pub(crate) fn largest(&self) -> u64 {
        self.steps.iter().map(|&(_, size)| size).max().unwrap_or(0)
    }

    /// The size of the largest file, in bytes.
    #[must_use]
    pub fn max_size(&self) -> u64 {
        self.steps.iter().map(|&(parts, size)| u64::from(parts) * size).sum()
    }

    /// The part that byte `offset` is in. Beyond the last part, the one after it.
    pub(crate) fn part_at(&self, offset: u64) -> u32 {
        let (mut number, mut rest) = (1, offset);
        for &(parts, size) in &self.steps {
            let bytes = u64::from(parts) * size;
            if rest < bytes {
                // Below `parts`, which is 32 bits.
                return number + (rest / size) as u32;
            }
            number += parts;
            rest -= bytes;
        }
        number
    }

    /// The bytes of part `number`, from 1, in a file that is long enough. Empty beyond the last.
    #[must_use]
    pub fn range(&self, number: u32) -> Range<u64> {
        let (mut before, mut start) = (number - 1, 0);
        for &(parts, size) in &self.steps {
            if before < parts {
                let start = start + u64::from(before) * size;
                return start..start + size;
            }
            before -= parts;
            start += u64::from(parts) * size;
        }
        start..start
    }

    /// How many parts a file of `size` bytes has.
    pub(crate) fn count(&self, size: u64) -> u32 {
        if size == 0 { 0 } else { self.part_at(size - 1) }
    }

    /// The parts that `range` touches.
    pub(crate) fn touched(&self, range: &Range<u64>) -> Range<u32> {
        if range.is_empty() { 1..1 } else { self.part_at(range.start)..self.part_at(range.end - 1) + 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// > A file can have 10,000 parts, 421 GiB with `write.part_size=8MiB`; writes beyond that fail with `EFBIG`.
    #[test]
    fn eight_mebibytes_reach_422_gibibytes_in_ten_thousand_parts() {
        let schedule = Schedule::new(8 << 20);
        assert_eq!(schedule.max_size() >> 30, 421);
        assert_eq!(schedule.count(schedule.max_size()), 10_000);
        assert_eq!(schedule.range(2_001).end - schedule.range(2_001).start, 32 << 20);
        assert_eq!(schedule.largest(), 64 << 20);
        assert_eq!(Schedule::new(64 << 20).largest(), 64 << 20);
        assert_eq!(Schedule::of_steps(schedule.steps()), Some(schedule));
        assert_eq!(Schedule::of_steps(&[(1, 0)]), None);
        assert_eq!(Schedule::of_steps(&[]), None);
        assert!(Schedule::of_steps(&[(9_999, 1), (1, 7)]).is_some());
        // Each part that is staged costs memory when a draft goes on in another process.
        for steps in [&[(10_001, 1)][..], &[(u32::MAX, 1)], &[(10_000, 1), (1, 1)]] {
            assert_eq!(Schedule::of_steps(steps), None);
        }
    }

    proptest! {
        #[test]
        fn parts_follow_each_other_without_gaps(first in 5u64 << 20..=64 << 20, number in 1u32..10_000) {
            let schedule = Schedule::new(first);
            let (range, next) = (schedule.range(number), schedule.range(number + 1));
            prop_assert_eq!(range.end, next.start);
            prop_assert_eq!(schedule.part_at(range.start), number);
            prop_assert_eq!(schedule.part_at(range.end - 1), number);
            prop_assert_eq!(schedule.count(range.end), number);
            prop_assert_eq!(schedule.touched(&(range.end - 1..range.end + 1)), number..number + 2);
        }
    }
}
