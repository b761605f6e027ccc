//! What a client keeps of the locations that one worker has told it, over one connection.
//!
//! One of a block, the last that was told. Each is good for a while only ([`KnownOptions::lease`]), not for the bytes'
//! sake, which are known by their seals, but for the worker's: it sees no read that goes by a location, and would evict
//! first what is read most. So a read in between goes the ordinary way, counts there, and brings the location again.
//!
//! There is room for so many. When it is full, the oldest goes that was not used since it was looked at last (CLOCK: a
//! second chance for each).

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use forebay_types::{BlockKey, FileId};

use crate::location::{Location, Plan};
use crate::seal::Generation;

/// How much is kept, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownOptions {
    /// Locations of one worker.
    pub max: usize,
    /// How long one is used before a read asks the worker again.
    pub lease: Duration,
}

impl Default for KnownOptions {
    /// 16,384 locations, of 64 GiB if blocks are read whole, in some 4 MiB of memory; a second each.
    fn default() -> Self {
        Self { max: 16_384, lease: Duration::from_secs(1) }
    }
}

/// The locations that are known.
#[derive(Debug)]
pub struct KnownLocations {
    options: KnownOptions,
    blocks: HashMap<BlockKey, Known>,
    /// In the order in which they are looked at for their second chance. May name some that were forgotten.
    order: VecDeque<(BlockKey, u64)>,
    /// Numbers those in `order`.
    next: u64,
}

#[derive(Debug)]
struct Known {
    location: Location,
    until: Instant,
    was_used: bool,
    number: u64,
}

impl KnownLocations {
    /// None yet.
    #[must_use]
    pub fn new(options: KnownOptions) -> Self {
        Self { options, blocks: HashMap::new(), order: VecDeque::new(), next: 0 }
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The worker has told where a run of `block` is, `now`.
    pub fn learn(&mut self, block: BlockKey, location: Location, now: Instant) {
        if self.options.max == 0 {
            return;
        }
        let Some(until) = now.checked_add(self.options.lease) else { return };
        if let Some(known) = self.blocks.get_mut(&block) {
            (known.location, known.until) = (location, until);
            return;
        }
        // Before it is put in: a new one is not the first to go.
        while self.blocks.len() >= self.options.max {
            self.evict_one();
        }
        let number = self.next;
        self.next += 1;
        self.blocks.insert(block, Known { location, until, was_used: false, number });
        self.order.push_back((block, number));
        self.tidy();
    }

    /// How to read `offset..offset + length` of `block` without the worker's help; `None` if the worker is to be asked.
    pub fn find(&mut self, block: &BlockKey, offset: u32, length: u32, now: Instant) -> Option<Plan> {
        let known = self.blocks.get_mut(block)?;
        if now >= known.until {
            // The worker tells it again, if it is still so.
            self.blocks.remove(block);
            return None;
        }
        let plan = known.location.plan(*block, offset, length)?;
        known.was_used = true;
        Some(plan)
    }

    /// What was read by the location of this generation was not to be believed. One that was told since stays.
    pub fn mistaken(&mut self, block: &BlockKey, generation: Generation) {
        if self.blocks.get(block).is_some_and(|known| known.location.generation == generation) {
            self.blocks.remove(block);
        }
    }

    /// Nobody reads this file version any more.
    pub fn forget_file(&mut self, file: FileId) {
        self.blocks.retain(|block, _| block.file != file);
        self.tidy();
    }

    /// The connection has ended, or the worker takes back what it told.
    pub fn forget_all(&mut self) {
        self.blocks.clear();
        self.order.clear();
    }

    fn evict_one(&mut self) {
        while let Some((block, number)) = self.order.pop_front() {
            let Some(known) = self.blocks.get_mut(&block).filter(|known| known.number == number) else { continue };
            if std::mem::take(&mut known.was_used) {
                self.order.push_back((block, number));
            } else {
                self.blocks.remove(&block);
                return;
            }
        }
        // Each that is known is in the order, so this is not reached with some of them left; and if it were, they would
        // be no loss.
        self.blocks.clear();
    }

    /// Names that stand for nothing any more are no more than those that stand for something.
    fn tidy(&mut self) {
        if self.order.len() > 2 * self.options.max.min(self.blocks.len()) + 16 {
            let blocks = &self.blocks;
            self.order.retain(|(block, number)| blocks.get(block).is_some_and(|known| known.number == *number));
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FILE: FileId = FileId([1; 16]);

    fn block(index: u64) -> BlockKey {
        BlockKey { file: FILE, index }
    }

    fn location(generation: u64) -> Location {
        Location { generation: Generation::new(generation).unwrap(), at: generation as u32, first: 0, length: 32_768 }
    }

    fn known(max: usize) -> KnownLocations {
        KnownLocations::new(KnownOptions { max, lease: Duration::from_secs(1) })
    }

    #[test]
    fn a_location_is_used_until_its_lease_is_over_and_then_asked_for_again() {
        let (mut known, start) = (known(4), Instant::now());
        known.learn(block(0), location(1), start);
        let later = start + Duration::from_millis(999);
        assert_eq!(known.find(&block(0), 0, 4096, later).unwrap().location(), &location(1));
        assert_eq!(known.find(&block(0), 1, 4096, later), None, "no pages");
        assert_eq!(known.find(&block(1), 0, 4096, later), None);
        assert_eq!(known.find(&block(0), 0, 4096, start + Duration::from_secs(1)), None);
        assert_eq!(known.find(&block(0), 0, 4096, later), None, "it is forgotten");
        known.learn(block(0), location(1), later);
        assert!(known.find(&block(0), 0, 4096, start + Duration::from_millis(1900)).is_some());
    }

    #[test]
    fn what_was_wrong_is_forgotten_unless_it_was_told_anew_since() {
        let (mut known, now) = (known(4), Instant::now());
        known.learn(block(0), location(1), now);
        known.learn(block(0), location(2), now);
        known.mistaken(&block(0), location(1).generation);
        assert_eq!(known.find(&block(0), 0, 4096, now).unwrap().location(), &location(2));
        known.mistaken(&block(0), location(2).generation);
        assert!(known.is_empty());
        known.learn(block(1), location(3), now);
        known.forget_file(FileId([2; 16]));
        assert_eq!(known.len(), 1);
        known.forget_file(FILE);
        assert_eq!(known.len(), 0);
        known.learn(block(1), location(3), now);
        known.forget_all();
        assert_eq!(known.find(&block(1), 0, 4096, now), None);
    }

    #[test]
    fn what_is_used_stays_when_there_is_no_room() {
        let (mut known, now) = (known(3), Instant::now());
        (0..3).for_each(|index| known.learn(block(index), location(index + 1), now));
        assert!(known.find(&block(0), 0, 4096, now).is_some());
        known.learn(block(3), location(4), now);
        assert!(known.find(&block(1), 0, 4096, now).is_none(), "the oldest that nobody used");
        assert!([0, 2, 3].iter().all(|index| known.find(&block(*index), 0, 4096, now).is_some()));
        assert_eq!(known.len(), 3);
    }

    proptest! {
        #[test]
        fn it_is_bounded_and_tells_the_last_that_it_was_told_or_nothing(
            max in 0usize..5,
            steps in prop::collection::vec((0u8..6, 0u64..8, 0u64..600), 1..300),
        ) {
            let (mut known, mut now) = (known(max), Instant::now());
            let mut told: HashMap<u64, (Location, Instant)> = HashMap::new();
            let mut number = 0;
            for (step, index, wait) in steps {
                now += Duration::from_millis(wait);
                match step {
                    0 | 1 => {
                        number += 1;
                        known.learn(block(index), location(number), now);
                        told.insert(index, (location(number), now));
                    }
                    2 => {
                        if let Some((location, _)) = told.remove(&index) {
                            known.mistaken(&block(index), location.generation);
                        }
                    }
                    3 if wait == 0 => {
                        known.forget_all();
                        told.clear();
                    }
                    _ => {
                        let found = known.find(&block(index), 0, 4096, now).map(|plan| *plan.location());
                        let right = told.get(&index).filter(|(_, since)| now < *since + Duration::from_secs(1));
                        prop_assert!(found.is_none() || found == right.map(|(location, _)| *location));
                        // What was told just now is there, if anything is.
                        if max > 0 && right.is_some_and(|(location, _)| location.generation.get() == number) {
                            prop_assert!(found.is_some());
                        }
                    }
                }
                prop_assert!(known.len() <= max);
                prop_assert!(known.order.len() <= 3 * max + 17);
            }
        }
    }
}
