//! How a read is divided among paths, so that all of them are done at the same moment. Pure.
//!
//! A path that has little under way, or is fast, gets more. With so many bytes under way over each path, and so many
//! bytes a second, there is one moment T at which all can be done: each gets what it carries until then, less what is
//! under way. A path whose part would be too small to be worth a request gets none, and the others share its part.
//!
//! A read is divided only where that ends it clearly earlier than the best path alone would. Where all paths have much
//! under way it does not: then whole requests, each over the path that is free first, keep all of them busy, with fewer
//! messages.

use forebay_transport::Request;
use forebay_types::SECTOR_SIZE;
use smallvec::SmallVec;

/// The smallest part. A message takes some ten microseconds of both ends, in which a card of 200 Gbit/s moves half of
/// this. Not measured on hardware.
pub(crate) const MIN_PART: u32 = 512 << 10;
/// The smallest read that is divided.
pub(crate) const MIN_STRIPED: u32 = 2 * MIN_PART;
/// Paths that one read is divided among at most: as many parts of the smallest size as a block has.
pub(crate) const MAX_PATHS: usize = 8;
/// A read is divided if it takes no more than so many eighths of the time.
const WORTH_IT: u128 = 7;

/// A path, as it is when a request is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathLoad {
    pub(crate) path: usize,
    /// Bytes that are under way over its card.
    pub(crate) in_flight: u64,
    /// Bytes a second; while nothing is known of any path, the same of all. Not 0.
    pub(crate) speed: u64,
    /// It has not been measured for long, and may have become faster.
    pub(crate) is_due: bool,
}

impl PathLoad {
    /// In how many nanoseconds it has delivered what is under way, and so many bytes more.
    pub(crate) fn done_in(&self, bytes: u64) -> u128 {
        u128::from(self.in_flight.saturating_add(bytes)) * 1_000_000_000 / u128::from(self.speed.max(1))
    }
}

/// Which path gets how many bytes, in the order of the bytes.
pub(crate) type Division = SmallVec<[(usize, u32); MAX_PATHS]>;

/// How a read of `length` bytes is divided among `loads`; none: it goes over one path as a whole.
pub(crate) fn divide(length: u32, loads: &[PathLoad]) -> Option<Division> {
    if length < MIN_STRIPED || loads.len() < 2 {
        return None;
    }
    let due = loads.iter().find(|load| load.is_due && is_left_out(load, length, loads));
    let rest = if due.is_some() { length - MIN_PART } else { length };
    let shared = share(rest, loads, due.map(|due| due.path));
    let parts = shared.iter().map(|(load, part)| (load.path, *part));
    let division: Division = due.map(|due| (due.path, MIN_PART)).into_iter().chain(parts).collect();
    let done_in = shared.iter().map(|(load, part)| load.done_in(u64::from(*part))).max()?;
    let alone = loads.iter().map(|load| load.done_in(u64::from(length))).min()?;
    // Who finds out how fast a path is now does not ask whether that is worth it.
    let is_worth_it = due.is_some() || done_in * 8 <= alone * WORTH_IT;
    (division.len() > 1 && is_worth_it).then_some(division)
}

/// Whether a path would get no part.
fn is_left_out(load: &PathLoad, length: u32, loads: &[PathLoad]) -> bool {
    share(length, loads, None).iter().all(|(other, _)| other.path != load.path)
}

type Shares = SmallVec<[(PathLoad, u32); MAX_PATHS]>;

/// What each of `loads` gets, but for `without`: at least [`MIN_PART`], or all of it.
fn share(length: u32, loads: &[PathLoad], without: Option<usize>) -> Shares {
    let mut taken: Shares =
        loads.iter().filter(|load| Some(load.path) != without).take(MAX_PATHS).map(|load| (*load, 0)).collect();
    loop {
        let speed: u128 = taken.iter().map(|(load, _)| u128::from(load.speed.max(1))).sum();
        let in_flight: u128 = taken.iter().map(|(load, _)| u128::from(load.in_flight)).sum();
        for (load, part) in &mut taken {
            let until_done = (u128::from(length) + in_flight) * u128::from(load.speed.max(1)) / speed.max(1);
            let bytes = until_done.saturating_sub(u128::from(load.in_flight));
            *part = u32::try_from(bytes).unwrap_or(length).min(length);
        }
        let least = taken.iter().enumerate().min_by_key(|(_, (_, part))| *part);
        match least.map(|(at, (_, part))| (at, *part)) {
            // The others get its part, and more is under way over it than they will have.
            Some((at, part)) if part < MIN_PART && taken.len() > 1 => {
                taken.remove(at);
            }
            _ => break,
        }
    }
    // Each ends where a sector does; what is over goes to the last.
    let mut left = length;
    for (_, part) in &mut taken {
        *part = (*part / SECTOR_SIZE * SECTOR_SIZE).min(left);
        left -= *part;
    }
    if let Some((_, part)) = taken.last_mut() {
        *part += left;
    }
    taken
}

/// A part: over which path, and where in the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartOfRead {
    pub(crate) path: usize,
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

/// The parts of a read that is divided so.
pub(crate) fn parts_of(request: &Request, division: &Division) -> SmallVec<[PartOfRead; MAX_PATHS]> {
    let mut offset = request.offset;
    let part = |&(path, length): &(usize, u32)| {
        let part = PartOfRead { path, offset, length };
        offset += length;
        part
    };
    division.iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::MAX_BLOCK_SIZE;
    use proptest::prelude::*;

    const MIB: u32 = 1 << 20;

    fn load(path: usize, in_flight: u64, speed: u64) -> PathLoad {
        PathLoad { path, in_flight, speed, is_due: false }
    }

    fn divided(length: u32, loads: &[PathLoad]) -> Option<Vec<(usize, u32)>> {
        divide(length, loads).map(|division| division.to_vec())
    }

    #[test]
    fn idle_paths_of_one_speed_get_the_same() {
        let loads = [load(0, 0, 10), load(1, 0, 10)];
        assert_eq!(divided(4 * MIB, &loads), Some(vec![(0, 2 * MIB), (1, 2 * MIB)]));
        assert_eq!(divided(MIB, &loads), Some(vec![(0, MIB / 2), (1, MIB / 2)]));
        assert_eq!(divided(MIB - 1, &loads), None, "too small for two parts");
        assert_eq!(divided(4 * MIB, &loads[..1]), None);
        // The end of a file: the last part takes what is no whole sector.
        let odd = divided(2 * MIB + 5, &loads).unwrap();
        assert_eq!((odd[0].1 % SECTOR_SIZE, odd[0].1 + odd[1].1), (0, 2 * MIB + 5));
    }

    #[test]
    fn a_path_that_is_slow_or_busy_gets_less_or_nothing() {
        assert_eq!(
            divided(4 * MIB, &[load(0, 0, 400), load(1, 0, 100)]),
            Some(vec![(0, 3_342_336), (1, 4 * MIB - 3_342_336)]),
            "four fifths, cut to sectors"
        );
        assert_eq!(divided(4 * MIB, &[load(0, 0, 1000), load(1, 0, 10)]), None, "its part would be too small");
        assert_eq!(
            divided(4 * MIB, &[load(0, 2 << 20, 10), load(1, 0, 10)]),
            Some(vec![(0, MIB), (1, 3 * MIB)]),
            "both are done at the same moment"
        );
        assert_eq!(
            divided(4 * MIB, &[load(0, 64 << 20, 10), load(1, 0, 10), load(2, 0, 10)]).map(|parts| parts.len()),
            Some(2)
        );
        let busy = [load(0, 64 << 20, 10), load(1, 64 << 20, 10)];
        assert_eq!(divided(4 * MIB, &busy), None, "whole requests keep them as busy");
    }

    #[test]
    fn a_path_that_was_left_out_for_long_gets_a_small_part() {
        let due = PathLoad { is_due: true, ..load(1, 0, 10) };
        assert_eq!(divided(4 * MIB, &[load(0, 0, 1000), due]), Some(vec![(1, MIN_PART), (0, 4 * MIB - MIN_PART)]));
        let is_well = PathLoad { is_due: true, ..load(1, 0, 1000) };
        assert_eq!(divided(4 * MIB, &[load(0, 0, 1000), is_well]), Some(vec![(0, 2 * MIB), (1, 2 * MIB)]));
    }

    proptest! {
        #[test]
        fn a_division_covers_the_read_in_parts_that_are_worth_it_and_is_never_slower_than_one_path(
            sectors in 0u32..=128,
            rest in 0u32..SECTOR_SIZE,
            paths in prop::collection::vec((0u64..64 << 20, 1u64..100_000_000_000, any::<bool>()), 0..12),
        ) {
            let length = (sectors * SECTOR_SIZE + rest).min(MAX_BLOCK_SIZE);
            let load = |(path, (in_flight, speed, is_due))| PathLoad { path, in_flight, speed, is_due };
            let loads: Vec<_> = paths.into_iter().enumerate().map(load).collect();
            let Some(division) = divide(length, &loads) else { return Ok(()) };
            prop_assert!(division.len() > 1 && division.len() <= MAX_PATHS + 1);
            prop_assert_eq!(division.iter().map(|(_, part)| *part).sum::<u32>(), length);
            let mut seen = std::collections::BTreeSet::new();
            for (at, (path, part)) in division.iter().enumerate() {
                prop_assert!(seen.insert(*path), "one part for each path");
                prop_assert!(*part >= MIN_PART - SECTOR_SIZE, "{part}");
                prop_assert!(at + 1 == division.len() || part.is_multiple_of(SECTOR_SIZE));
            }
            if !loads.iter().any(|load| load.is_due) {
                let done = division.iter().map(|(path, part)| loads[*path].done_in(u64::from(*part))).max();
                let alone = loads.iter().map(|load| load.done_in(u64::from(length))).min();
                prop_assert!(done <= alone);
            }
        }
    }
}
