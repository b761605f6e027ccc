//! How many answers each submission still gets: one for each range, whatever becomes of it; and answers in order, for callers that
//! cannot tell submissions apart. Pure.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::codes::Code;

/// Submissions whose answers are not all given.
#[derive(Debug, Default)]
pub(crate) struct Owed {
    /// The number of the last submission. They count from 1.
    last: u64,
    ranges: HashMap<u64, usize>,
}

impl Owed {
    /// A submission of so many ranges; its number.
    pub(crate) fn begin(&mut self, ranges: usize) -> u64 {
        self.last += 1;
        if ranges > 0 {
            self.ranges.insert(self.last, ranges);
        }
        self.last
    }

    /// One more answer of a submission is given. Whether it was the last.
    pub(crate) fn answered(&mut self, submission: u64) -> bool {
        let Some(left) = self.ranges.get_mut(&submission) else { return true };
        *left = left.saturating_sub(1);
        let is_done = *left == 0;
        if is_done {
            self.ranges.remove(&submission);
        }
        is_done
    }

    /// Whether there is none.
    pub(crate) fn is_none(&self) -> bool {
        self.ranges.is_empty()
    }
}

/// Answers to one submission, in the order of its ranges, whatever the order is in which they come. What is held back for a moment
/// was read already, so nothing is read later for it.
#[derive(Debug, Default)]
pub(crate) struct InOrder {
    /// Which file and which range are not told yet.
    wanted: VecDeque<(u32, u32)>,
    early: BTreeMap<(u32, u32), Code>,
}

impl InOrder {
    /// A submission of files with so many ranges each.
    pub(crate) fn begin(&mut self, ranges: impl Iterator<Item = u32>) {
        self.wanted =
            (0_u32..).zip(ranges).flat_map(|(file, ranges)| (0..ranges).map(move |range| (file, range))).collect();
        self.early.clear();
    }

    /// An answer has come.
    pub(crate) fn came(&mut self, file: u32, range: u32, code: Code) {
        self.early.insert((file, range), code);
    }

    /// The next one in order, if it has come.
    pub(crate) fn next(&mut self) -> Option<(u32, u32, Code)> {
        let (file, range) = *self.wanted.front()?;
        let code = self.early.remove(&(file, range))?;
        self.wanted.pop_front();
        Some((file, range, code))
    }

    /// Whether all were told.
    pub(crate) fn is_over(&self) -> bool {
        self.wanted.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_answer_of_a_submission_says_so_in_whatever_order_they_come() {
        let mut owed = Owed::default();
        let (first, nothing, second) = (owed.begin(2), owed.begin(0), owed.begin(1));
        assert_eq!((first, nothing, second), (1, 2, 3));
        assert!(!owed.answered(first) && owed.answered(second));
        assert!(!owed.is_none());
        assert!(owed.answered(first) && owed.is_none());
    }

    #[test]
    fn answers_are_told_in_order_whenever_they_come() {
        let mut order = InOrder::default();
        assert!(order.is_over() && order.next().is_none());
        order.begin([2, 0, 1].into_iter());
        order.came(2, 0, Code::Success);
        order.came(0, 1, Code::EndOfFile);
        assert!(order.next().is_none() && !order.is_over());
        order.came(0, 0, Code::Success);
        let told: Vec<_> = std::iter::from_fn(|| order.next()).collect();
        assert_eq!(told, [(0, 0, Code::Success), (0, 1, Code::EndOfFile), (2, 0, Code::Success)]);
        assert!(order.is_over());
    }
}
