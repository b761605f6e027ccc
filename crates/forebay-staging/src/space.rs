//! How many bytes may be staged, and which writers wait for room. Pure.
//!
//! First come, first served: no writer passes those that wait, or small writes would keep a large one waiting for ever.

use std::collections::VecDeque;

/// Names a writer that waits.
pub(crate) type Ticket = u64;

/// The room for staged bytes.
#[derive(Debug)]
pub(crate) struct Space {
    size: u64,
    used: u64,
    waiting: VecDeque<(Ticket, u64)>,
    tickets: Ticket,
}

impl Space {
    pub(crate) fn new(size: u64) -> Self {
        Self { size, used: 0, waiting: VecDeque::new(), tickets: 0 }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Takes room for `bytes`, now or not at all.
    pub(crate) fn take(&mut self, bytes: u64) -> bool {
        let fits = bytes == 0 || (self.waiting.is_empty() && self.used.saturating_add(bytes) <= self.size);
        if fits {
            self.used += bytes;
        }
        fits
    }

    /// Takes room whether there is some or not: the bytes are on the disk already.
    pub(crate) fn take_anyway(&mut self, bytes: u64) {
        self.used += bytes;
    }

    /// Waits for room for `bytes`.
    pub(crate) fn wait(&mut self, bytes: u64) -> Ticket {
        self.tickets += 1;
        self.waiting.push_back((self.tickets, bytes));
        self.tickets
    }

    /// Waits no longer. Returns whether it did wait: its turn had not come.
    pub(crate) fn leave(&mut self, ticket: Ticket) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|(waiting, _)| *waiting != ticket);
        self.waiting.len() < before
    }

    /// Gives room back.
    pub(crate) fn give(&mut self, bytes: u64) {
        debug_assert!(self.used >= bytes);
        self.used = self.used.saturating_sub(bytes);
    }

    /// The next waiting writer that there is room for; the room is taken.
    pub(crate) fn next(&mut self) -> Option<Ticket> {
        let &(ticket, bytes) = self.waiting.front()?;
        if self.used.saturating_add(bytes) > self.size {
            return None;
        }
        self.used += bytes;
        self.waiting.pop_front();
        Some(ticket)
    }

    /// The bytes that the waiting writers lack.
    pub(crate) fn missing(&self) -> u64 {
        let wanted: u64 = self.waiting.iter().map(|(_, bytes)| bytes).sum();
        if wanted == 0 { 0 } else { (self.used + wanted).saturating_sub(self.size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn those_who_wait_for_room_are_served_in_order() {
        let mut space = Space::new(100);
        assert!(space.take(90));
        let (large, small) = (space.wait(50), space.wait(5));
        assert!(!space.take(1), "nobody passes them");
        assert!(space.take(0));
        assert_eq!((space.next(), space.missing()), (None, 45));
        space.give(40);
        assert_eq!((space.next(), space.next()), (Some(large), None));
        space.give(10);
        assert_eq!((space.next(), space.next(), space.used()), (Some(small), None, 95));
    }

    #[test]
    fn one_who_leaves_lets_the_others_pass() {
        let mut space = Space::new(10);
        assert!(space.take(5));
        let (large, small) = (space.wait(10), space.wait(5));
        assert!(space.leave(large));
        assert_eq!(space.next(), Some(small));
        assert!(!space.leave(small), "it has its room");
        assert_eq!(space.missing(), 0);
    }

    proptest! {
        #[test]
        fn never_is_more_taken_than_there_is(steps in prop::collection::vec((0..4u8, 0..12u64), 0..200)) {
            let mut space = Space::new(20);
            let (mut taken, mut waiting) = (Vec::new(), std::collections::HashMap::new());
            for (step, bytes) in steps {
                match step {
                    0 => if space.take(bytes) { taken.push(bytes) },
                    1 => { waiting.insert(space.wait(bytes), bytes); }
                    2 => if let Some(bytes) = taken.pop() { space.give(bytes) },
                    _ => if let Some(&ticket) = waiting.keys().next() {
                        prop_assert!(space.leave(ticket));
                        waiting.remove(&ticket);
                    },
                }
                while let Some(ticket) = space.next() {
                    taken.push(waiting.remove(&ticket).unwrap());
                }
                prop_assert!(space.used() <= 20);
                prop_assert_eq!(space.used(), taken.iter().sum::<u64>());
                prop_assert_eq!(space.waiting(), waiting.len());
            }
        }
    }
}
