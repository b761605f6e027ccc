//! Which ranges of a block to fetch for a read that misses. Pure.
//!
//! A reader asks for what it needs now: a few KiB at random, or the megabytes that a stream has earned. The plan rounds
//! that up to the fetch unit, so that random 4 KiB reads do not make a request each for one sector and its neighbour,
//! never fetches what is cached or on its way, bridges small holes (fetching 64 KiB twice is cheaper than one more
//! request), and cuts what is long into requests of bounded size that run side by side.

use forebay_types::SectorRange;

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
        let present = || cached.iter().chain(flying).copied();
        let mut fetches: Vec<SectorRange> = Vec::new();
        for hole in wanted.without(present()) {
            for range in hole.aligned_to(self.unit, sectors).without(present()) {
                match fetches.last_mut() {
                    Some(last) if range.start <= last.end + self.bridge => last.end = last.end.max(range.end),
                    _ => fetches.push(range),
                }
            }
        }
        fetches.into_iter().flat_map(|range| self.cut(range)).collect()
    }

    fn cut(&self, range: SectorRange) -> impl Iterator<Item = SectorRange> + use<> {
        let max = self.max.max(self.unit);
        (range.start..range.end)
            .step_by(max as usize)
            .map(move |start| SectorRange { start, end: (start + max).min(range.end) })
    }
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

    fn ranges() -> impl Strategy<Value = SectorRange> {
        (0..MAX_SECTORS, 1..=MAX_SECTORS)
            .prop_map(|(start, length)| SectorRange { start, end: (start + length).min(MAX_SECTORS) })
    }

    proptest! {
        #[test]
        fn a_plan_completes_the_read_and_stays_in_the_block(
            wanted in ranges(),
            extra in 0u32..20,
            cached in prop::collection::vec(ranges(), 0..4),
            flying in prop::collection::vec(ranges(), 0..4),
            unit in 1u32..8, max in 8u32..64, bridge in 0u32..4,
        ) {
            let sectors = (wanted.end + extra).min(MAX_SECTORS);
            let policy = FetchPolicy { unit, max, bridge };
            let plan = policy.plan(wanted, sectors, &cached, &flying);
            let all: Vec<_> = cached.iter().chain(&flying).chain(&plan).copied().collect();
            prop_assert!(wanted.without(all).is_empty());
            prop_assert!(plan.windows(2).all(|pair| pair[0].end <= pair[1].start));
            for fetch in &plan {
                prop_assert!(fetch.start < fetch.end && fetch.end <= sectors && fetch.len() <= max);
            }
        }
    }
}
