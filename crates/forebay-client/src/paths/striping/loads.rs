//! How busy and how fast the paths to one worker are: what decides over which one a request goes, and how a large read
//! is divided. Pure: it is told the time and what happened.
//!
//! A part asks for what the worker has in its cache alone, since each part would be a request of its own to the origin,
//! where the whole read is one. When a worker lacks something, large reads go as a whole until some in a row came from
//! its cache.

use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::division::{Division, MAX_PATHS, PathLoad, divide};
use super::speed::{PathSpeed, Sent};

/// A path that gets nothing since it is slow is tried again after this time.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// Requests of fewer bytes count as this many when a path is chosen: what is different between paths is not the time of
/// these.
const MIN_CHOICE: u64 = 64 << 10;
/// Paths that take up to a quarter longer than the best one are as good: measured speeds differ by that much by chance.
const ALIKE: (u128, u128) = (5, 4);
/// A card takes this part of its speed to a buffer on another NUMA node, when one is chosen. Not measured: it makes the
/// near one of equal cards the better one, and no slow card the better one because it is near.
const FAR: (u64, u64) = (3, 4);
/// So many large reads in a row that came from the worker's cache show that reads are worth dividing.
const WARM: u32 = 4;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// With its bytes, from the worker's cache.
    Delivered,
    /// Otherwise: what it took says nothing of its path.
    Otherwise,
}

/// See above.
#[derive(Debug)]
pub(crate) struct PathLoads {
    paths: Vec<Loaded>,
    /// How many large reads must come from the cache until one is divided again.
    cold: u32,
}

#[derive(Debug, Default)]
struct Loaded {
    speed: PathSpeed,
    /// Bytes that are under way over the same card for others: paths to other workers, mostly.
    elsewhere: u64,
    /// The NUMA node that the card is next to.
    node: Option<u32>,
    /// When it last got a part for no other reason than that it may have become faster.
    tried: Option<Instant>,
}

impl PathLoads {
    /// Paths that are idle, over cards next to these NUMA nodes.
    pub(crate) fn new(nodes: impl IntoIterator<Item = Option<u32>>) -> Self {
        let loaded = |node| Loaded { node, ..Loaded::default() };
        Self { paths: nodes.into_iter().map(loaded).collect(), cold: 0 }
    }

    /// So many bytes are under way over the card of `path` in all.
    pub(crate) fn on_card(&mut self, path: usize, bytes: u64) {
        if let Some(path) = self.paths.get_mut(path) {
            path.elsewhere = bytes.saturating_sub(path.speed.in_flight());
        }
    }

    /// A request whose answer brings `bytes` is sent over `path`.
    pub(crate) fn sent(&mut self, path: usize, bytes: u32, now: Instant) -> Option<Sent> {
        self.paths.get_mut(path).map(|path| path.speed.sent(bytes, now))
    }

    /// That request ended.
    pub(crate) fn ended(&mut self, path: usize, sent: Sent, how: Ended, now: Instant) {
        let Some(path) = self.paths.get_mut(path) else { return };
        match how {
            Ended::Delivered => path.speed.delivered(sent, now),
            Ended::Otherwise => path.speed.ended(sent, now),
        }
    }

    /// A part over `path` has been waited for so long, and has not come though others have.
    pub(crate) fn late(&mut self, path: usize, waited: Duration, now: Instant) {
        if let Some(path) = self.paths.get_mut(path) {
            path.speed.late(waited, now);
        }
    }

    /// A worker lacks what a part asked for.
    pub(crate) fn lacked(&mut self) {
        self.cold = WARM;
    }

    /// A read that could have been divided was answered, from the worker's cache or not.
    pub(crate) fn whole(&mut self, from_cache: bool) {
        self.cold = if from_cache { self.cold.saturating_sub(1) } else { WARM };
    }

    /// How a read of `length` bytes is divided among those paths that `will_do`; none: it goes as a whole.
    pub(crate) fn divide(&mut self, length: u32, will_do: impl Fn(usize) -> bool, now: Instant) -> Option<Division> {
        if self.cold > 0 {
            return None;
        }
        let loads = self.among(None, will_do, now);
        let division = divide(length, &loads)?;
        for (path, _) in &division {
            let is_due = loads.iter().any(|load| load.path == *path && load.is_due);
            if let Some(path) = self.paths.get_mut(*path).filter(|_| is_due) {
                path.tried = Some(now);
            }
        }
        Some(division)
    }

    /// The path by which a request for `bytes` into memory on NUMA node `near` is done first, of those that `will_do`.
    /// `random` decides among equals.
    pub(crate) fn best(
        &self,
        bytes: u32,
        near: Option<u32>,
        will_do: impl Fn(usize) -> bool,
        random: u64,
        now: Instant,
    ) -> Option<usize> {
        let bytes = u64::from(bytes).max(MIN_CHOICE);
        let loads = self.among(near, will_do, now);
        let best = loads.iter().map(|load| load.done_in(bytes)).min()?;
        let is_alike = |load: &&PathLoad| load.done_in(bytes) * ALIKE.1 <= best * ALIKE.0;
        let count = loads.iter().filter(is_alike).count() as u64;
        // At least the best one is alike.
        loads.iter().filter(is_alike).nth((random % count.max(1)) as usize).map(|load| load.path)
    }

    /// What `path` carries, in bytes a second, if that is known.
    pub(crate) fn bytes_per_second(&self, path: usize) -> Option<u64> {
        self.paths.get(path)?.speed.bytes_per_second()
    }

    /// Bytes that are under way over all paths.
    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> u64 {
        self.paths.iter().map(|path| path.speed.in_flight()).sum()
    }

    /// The paths that `will_do`. One that was never measured is taken for as fast as the others are on average.
    fn among(
        &self,
        near: Option<u32>,
        will_do: impl Fn(usize) -> bool,
        now: Instant,
    ) -> SmallVec<[PathLoad; MAX_PATHS]> {
        let will_do = &will_do;
        let usable = || self.paths.iter().enumerate().filter(move |(path, _)| will_do(*path));
        let known = || usable().filter_map(|(_, path)| path.speed.bytes_per_second()).map(u128::from);
        let average = known().sum::<u128>() / (known().count() as u128).max(1);
        // An average of what fits, so it does, too.
        let average = u64::try_from(average).unwrap_or(u64::MAX).max(1);
        let load = |(number, path): (usize, &Loaded)| {
            let is_far = near.zip(path.node).is_some_and(|(buffer, card)| buffer != card);
            let speed = path.speed.bytes_per_second().unwrap_or(average);
            let speed = if is_far { speed / FAR.1 * FAR.0 } else { speed };
            let looked_at = path.speed.measured().max(path.tried);
            PathLoad {
                path: number,
                in_flight: path.speed.in_flight().saturating_add(path.elsewhere),
                speed: speed.max(1),
                is_due: looked_at.is_some_and(|at| now.saturating_duration_since(at) >= TRY_AGAIN),
            }
        };
        usable().map(load).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u32 = 1 << 20;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Two paths, of which each delivered 1 MiB in so many milliseconds.
    fn measured(took: [u64; 2], start: Instant) -> PathLoads {
        let mut loads = PathLoads::new([Some(0), Some(1)]);
        for (path, took) in took.into_iter().enumerate() {
            let sent = loads.sent(path, MIB, start).unwrap();
            loads.ended(path, sent, Ended::Delivered, start + ms(took));
        }
        loads
    }

    #[test]
    fn requests_go_to_the_path_that_is_done_first_and_to_any_of_those_that_are_alike() {
        let start = Instant::now();
        let mut loads = measured([10, 10], start);
        let chosen = |loads: &PathLoads| [0, 1].map(|random| loads.best(4096, None, |_| true, random, start).unwrap());
        assert_eq!(chosen(&loads), [0, 1]);
        let sent = loads.sent(0, MIB, start).unwrap();
        assert_eq!(chosen(&loads), [1, 1], "the other one is busy");
        assert_eq!(loads.best(4096, None, |path| path == 0, 1, start), Some(0), "and may be all there is");
        assert_eq!(loads.best(4096, None, |_| false, 0, start), None);
        loads.ended(0, sent, Ended::Otherwise, start);
        loads.on_card(1, 1 << 20);
        assert_eq!(chosen(&loads), [0, 0], "busy with what is for another worker");
        let loads = measured([10, 40], start);
        assert_eq!(chosen(&loads), [0, 0], "four times as fast");
    }

    #[test]
    fn a_buffer_prefers_the_card_of_its_node_and_a_slow_one_is_not_preferred_for_that() {
        let start = Instant::now();
        let best =
            |loads: &PathLoads, node| [0, 1].map(|random| loads.best(4 * MIB, Some(node), |_| true, random, start));
        let loads = measured([10, 10], start);
        assert_eq!((best(&loads, 0), best(&loads, 1)), ([Some(0); 2], [Some(1); 2]));
        assert_eq!(best(&measured([10, 40], start), 1), [Some(0); 2]);
    }

    #[test]
    fn a_worker_that_lacks_something_is_asked_for_whole_reads_until_some_came_from_its_cache() {
        let start = Instant::now();
        let mut loads = measured([10, 10], start);
        let mut is_divided = |event: Option<bool>| {
            match event {
                Some(from_cache) => loads.whole(from_cache),
                None => loads.lacked(),
            }
            loads.divide(4 * MIB, |_| true, start).is_some()
        };
        assert!(!is_divided(None));
        let warm = |is_divided: &mut dyn FnMut(Option<bool>) -> bool| [0; 4].map(|_| is_divided(Some(true)));
        assert_eq!(warm(&mut is_divided), [false, false, false, true]);
        assert!(!is_divided(Some(false)), "it came from the origin");
        assert_eq!(warm(&mut is_divided), [false, false, false, true]);
    }

    #[test]
    fn a_path_that_is_too_slow_is_tried_once_a_second() {
        let start = Instant::now();
        let mut loads = measured([1, 100], start);
        let mut paths = |after: u64| {
            let division = loads.divide(4 * MIB, |_| true, start + ms(after));
            division.map(|division| division.iter().map(|(path, _)| *path).collect::<Vec<_>>())
        };
        assert_eq!((paths(200), paths(1050)), (None, None));
        assert_eq!(paths(1100), Some(vec![1, 0]));
        assert_eq!((paths(1101), paths(2099)), (None, None));
        assert_eq!(paths(2100), Some(vec![1, 0]));
    }
}
