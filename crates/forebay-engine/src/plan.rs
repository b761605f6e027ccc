//! Which ranges of a block to fetch for a read that misses. Pure.
//!
//! A reader asks for what it needs now: a few KiB at random, or the megabytes that a stream has earned. The plan rounds
//! that up to the fetch unit, so that random 4 KiB reads do not make a request each for one sector and its neighbour,
//! never fetches what is cached or on its way, bridges small holes (fetching 64 KiB twice is cheaper than one more
//! request), and cuts what is long into requests of bounded size that run side by side.

use std::ops::Range;

use forebay_types::{BlockKey, BlockLayout, Failure, FailureKind, SectorRange};

/// How fetches are shaped.
#[derive(Clone, Copy, Debug)]
pub struct FetchPolicy {
    /// The smallest fetch, in sectors; fetches are aligned to it.
    pub unit: u32,
    /// The largest fetch, in sectors.
    pub max: u32,
    /// The largest hole between two fetches that is fetched again rather than left out, in sectors.
    pub bridge: u32,
}

impl FetchPolicy {
    /// For reads from an object store, where a request costs a round trip of milliseconds.
    #[must_use]
    pub fn origin(min_get: u64, max_get: u64) -> Self {
        let sectors =
            |bytes: u64| u32::try_from(bytes / u64::from(forebay_types::SECTOR_SIZE)).unwrap_or(u32::MAX).max(1);
        Self { unit: sectors(min_get), max: sectors(max_get), bridge: 2 }
    }

    /// For reads from another worker, where a request costs microseconds: exactly what is asked for.
    #[must_use]
    pub fn peer() -> Self {
        Self { unit: 1, max: forebay_types::MAX_SECTORS, bridge: 0 }
    }

    /// The ranges to fetch so that `wanted` is complete, in order and disjoint.
    ///
    /// `cached` and `flying` are what is there and what is on its way; `sectors` is how many the block has.
    #[must_use]
    pub fn plan(
        &self,
        wanted: SectorRange,
        sectors: u32,
        cached: &[SectorRange],
        flying: &[SectorRange],
    ) -> Vec<SectorRange> {
        self.plan_all(&[wanted], sectors, cached, flying)
    }

    /// The same for several reads, in any order. Holes between them are bridged as those within a read are.
    #[must_use]
    pub fn plan_all(
        &self,
        wanted: &[SectorRange],
        sectors: u32,
        cached: &[SectorRange],
        flying: &[SectorRange],
    ) -> Vec<SectorRange> {
        let present = || cached.iter().chain(flying).copied();
        let holes = wanted.iter().flat_map(|range| range.without(present()));
        let mut missing: Vec<SectorRange> =
            holes.flat_map(|hole| hole.aligned_to(self.unit, sectors).without(present())).collect();
        missing.sort_unstable();
        let mut fetches: Vec<SectorRange> = Vec::new();
        for range in missing {
            match fetches.last_mut() {
                Some(last) if range.start <= last.end + self.bridge => last.end = last.end.max(range.end),
                _ => fetches.push(range),
            }
        }
        fetches.into_iter().flat_map(|range| self.cut(range)).collect()
    }

    /// The policy for reads that come together: it bridges what lies between them up to `hole` bytes, where that is more.
    #[must_use]
    pub fn bridging(self, hole: u32) -> Self {
        Self { bridge: self.bridge.max(hole / forebay_types::SECTOR_SIZE), ..self }
    }

    fn cut(&self, range: SectorRange) -> impl Iterator<Item = SectorRange> + use<> {
        let max = self.max.max(self.unit);
        (range.start..range.end)
            .step_by(max as usize)
            .map(move |start| SectorRange { start, end: (start + max).min(range.end) })
    }
}

/// How many of the bytes `range` of a block lie in `sectors`.
pub(crate) fn overlap(layout: &BlockLayout, key: BlockKey, sectors: SectorRange, range: Range<u32>) -> u32 {
    let start = sectors.byte_offset();
    let end = start + sectors.byte_len(layout.block_len(key.index));
    end.min(range.end).saturating_sub(start.max(range.start))
}

/// The sectors that hold these bytes of a block.
///
/// # Errors
/// [`FailureKind::InvalidArgument`] for a range that is not in the block.
pub(crate) fn sectors_of(
    layout: &BlockLayout,
    key: BlockKey,
    offset: u32,
    length: u32,
) -> Result<SectorRange, Failure> {
    let block_length = layout.block_len(key.index);
    let end = offset.checked_add(length).filter(|end| *end <= block_length);
    end.and_then(|_| SectorRange::covering(offset, length)).ok_or_else(|| {
        let message = format!("{length} bytes at {offset} are not in block {key} of {block_length} bytes");
        Failure::new(FailureKind::InvalidArgument, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::MAX_SECTORS;
    use proptest::prelude::*;

    const POLICY: FetchPolicy = FetchPolicy { unit: 2, max: 32, bridge: 2 };

    fn range(start: u32, end: u32) -> SectorRange {
        SectorRange::new(start, end).unwrap()
    }

    #[test]
    fn a_small_random_read_fetches_one_unit() {
        assert_eq!(POLICY.plan(range(5, 6), 128, &[], &[]), [range(4, 6)]);
        // The last sector of a file has no neighbour.
        assert_eq!(POLICY.plan(range(6, 7), 7, &[], &[]), [range(6, 7)]);
    }

    #[test]
    fn what_is_cached_or_flying_is_not_fetched() {
        assert_eq!(POLICY.plan(range(0, 8), 128, &[range(0, 2)], &[range(6, 8)]), [range(2, 6)]);
        assert!(POLICY.plan(range(0, 8), 128, &[range(0, 5)], &[range(5, 9)]).is_empty());
    }

    #[test]
    fn a_long_read_is_cut_and_small_holes_are_bridged() {
        assert_eq!(POLICY.plan(range(0, 70), 128, &[], &[]), [range(0, 32), range(32, 64), range(64, 70)]);
        assert_eq!(POLICY.plan(range(0, 12), 128, &[range(4, 6)], &[]), [range(0, 12)]);
        assert_eq!(POLICY.plan(range(0, 12), 128, &[range(4, 8)], &[]), [range(0, 4), range(8, 12)]);
    }

    #[test]
    fn reads_that_lie_near_one_another_are_fetched_together() {
        let near = POLICY.bridging(4 * forebay_types::SECTOR_SIZE);
        let reads = [range(20, 21), range(0, 2), range(6, 8), range(7, 9)];
        assert_eq!(near.plan_all(&reads, 128, &[], &[]), [range(0, 10), range(20, 22)]);
        assert_eq!(POLICY.plan_all(&reads, 128, &[], &[]), [range(0, 2), range(6, 10), range(20, 22)]);
        // What lies between reads that are there is nobody's.
        assert!(near.plan_all(&reads, 128, &[range(0, 2), range(6, 10)], &[range(20, 22)]).is_empty());
        assert_eq!(near.plan_all(&reads, 128, &[range(6, 10)], &[]), [range(0, 2), range(20, 22)]);
        assert_eq!(POLICY.bridging(0).bridge, POLICY.bridge);
    }

    fn ranges() -> impl Strategy<Value = SectorRange> {
        (0..MAX_SECTORS, 1..=MAX_SECTORS)
            .prop_map(|(start, length)| SectorRange { start, end: (start + length).min(MAX_SECTORS) })
    }

    proptest! {
        #[test]
        fn a_plan_completes_the_reads_and_stays_in_the_block(
            wanted in prop::collection::vec(ranges(), 1..4),
            extra in 0u32..20,
            cached in prop::collection::vec(ranges(), 0..4),
            flying in prop::collection::vec(ranges(), 0..4),
            unit in 1u32..8, max in 8u32..64, bridge in 0u32..4,
        ) {
            let last = wanted.iter().map(|range| range.end).max().unwrap();
            let sectors = (last + extra).min(MAX_SECTORS);
            let policy = FetchPolicy { unit, max, bridge };
            let plan = policy.plan_all(&wanted, sectors, &cached, &flying);
            let all: Vec<_> = cached.iter().chain(&flying).chain(&plan).copied().collect();
            prop_assert!(wanted.iter().all(|range| range.without(all.iter().copied()).is_empty()));
            prop_assert!(plan.windows(2).all(|pair| pair[0].end <= pair[1].start));
            for fetch in &plan {
                prop_assert!(fetch.start < fetch.end && fetch.end <= sectors && fetch.len() <= max);
            }
        }
    }
}
