//! Fetches under way: who starts one, who joins it, and how all of them hear of its end.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_memory::Span;
use forebay_types::{BlockKey, Failure, FailureKind, SectorRange};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::plan::FetchPolicy;
use crate::sync::Mutex;

/// What a fetch brought.
#[derive(Clone, Debug)]
pub(crate) struct Landed {
    /// The bytes of its sectors.
    pub(crate) bytes: Span,
    /// How many of them the source had in a cache of its own.
    pub(crate) from_cache: u32,
}

/// What a fetch ended with, or why not.
pub(crate) type Landing = Result<Landed, Failure>;

/// Shards of the table, so that misses of different blocks seldom meet at one lock.
const SHARDS: usize = 64;

/// The table of fetches under way.
#[derive(Debug)]
pub(crate) struct Flights {
    shards: Vec<Mutex<HashMap<BlockKey, Vec<Flight>>>>,
}

/// A fetch to wait for.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub(crate) sectors: SectorRange,
    /// When it began.
    pub(crate) since: Instant,
    landed: watch::Receiver<Option<Landing>>,
}

impl Flight {
    /// Waits until the fetch has ended.
    pub(crate) async fn landed(mut self) -> Landing {
        match self.landed.wait_for(Option::is_some).await {
            Ok(landing) => landing.clone().unwrap_or_else(|| Err(abandoned())),
            Err(_) => Err(abandoned()),
        }
    }
}

/// A fetch ended without a result: its task was stopped with the engine, or panicked.
fn abandoned() -> Failure {
    Failure::new(FailureKind::Internal, "a fetch was abandoned")
}

/// The duty to carry out a fetch. Dropped without [`Departure::land`], those who wait are told that it was abandoned.
#[derive(Debug)]
pub(crate) struct Departure {
    flights: Arc<Flights>,
    key: BlockKey,
    pub(crate) sectors: SectorRange,
    landed: watch::Sender<Option<Landing>>,
}

impl Departure {
    /// Ends the fetch and tells everyone. Call it when the bytes are in the store: from now on, readers look there.
    pub(crate) fn land(self, landing: Landing) {
        self.flights.forget(self.key, self.sectors);
        self.landed.send_replace(Some(landing));
    }
}

impl Drop for Departure {
    fn drop(&mut self) {
        if self.landed.borrow().is_none() {
            self.flights.forget(self.key, self.sectors);
        }
    }
}

impl Flights {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() })
    }

    fn shard(&self, key: &BlockKey) -> &Mutex<HashMap<BlockKey, Vec<Flight>>> {
        let number = key.index ^ u64::from(key.file.0[0]);
        &self.shards[number as usize % SHARDS]
    }

    /// In one step: the fetches under way that a read must wait for, and those that the caller must now carry out.
    ///
    /// `cached` is asked under the lock, so that a fetch that lands in between is seen either here or there.
    pub(crate) fn board(
        self: &Arc<Self>,
        key: BlockKey,
        wanted: SectorRange,
        sectors: u32,
        policy: &FetchPolicy,
        cached: impl FnOnce() -> Vec<SectorRange>,
    ) -> (Vec<Flight>, Vec<Departure>) {
        let mut shard = self.shard(&key).lock();
        let cached = cached();
        let under_way = shard.get(&key).map_or(&[][..], Vec::as_slice);
        let flying: Vec<_> = under_way.iter().map(|flight| flight.sectors).collect();
        let missing = wanted.without(cached.iter().copied());
        let needed = |flight: &&Flight| missing.iter().any(|range| range.intersection(flight.sectors).is_some());
        let mut waits: Vec<_> = under_way.iter().filter(needed).cloned().collect();
        let mut departures = Vec::new();
        for sectors in policy.plan(wanted, sectors, &cached, &flying) {
            let (sender, landed) = watch::channel(None);
            let flight = Flight { sectors, since: Instant::now(), landed };
            waits.push(flight.clone());
            shard.entry(key).or_default().push(flight);
            departures.push(Departure { flights: Arc::clone(self), key, sectors, landed: sender });
        }
        (waits, departures)
    }

    /// One fetch that brings all of `wanted`, whatever is cached: one that is under way, or that the caller must now carry out.
    pub(crate) fn board_whole(self: &Arc<Self>, key: BlockKey, wanted: SectorRange) -> (Flight, Option<Departure>) {
        let mut shard = self.shard(&key).lock();
        let under_way = shard.get(&key).into_iter().flatten();
        if let Some(flight) = under_way.into_iter().find(|flight| flight.sectors.contains(wanted)) {
            return (flight.clone(), None);
        }
        let (sender, landed) = watch::channel(None);
        let flight = Flight { sectors: wanted, since: Instant::now(), landed };
        shard.entry(key).or_default().push(flight.clone());
        (flight, Some(Departure { flights: Arc::clone(self), key, sectors: wanted, landed: sender }))
    }

    fn forget(&self, key: BlockKey, sectors: SectorRange) {
        let mut shard = self.shard(&key).lock();
        if let Some(flights) = shard.get_mut(&key) {
            flights.retain(|flight| flight.sectors != sectors);
            if flights.is_empty() {
                shard.remove(&key);
            }
        }
    }

    /// How many fetches are under way.
    pub(crate) fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().values().map(Vec::len).sum::<usize>()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::FileId;

    const KEY: BlockKey = BlockKey { file: FileId([1; 16]), index: 0 };
    const POLICY: FetchPolicy = FetchPolicy { unit: 2, max: 128, bridge: 0 };

    fn range(start: u32, end: u32) -> SectorRange {
        SectorRange::new(start, end).unwrap()
    }

    #[tokio::test]
    async fn the_second_reader_of_a_range_joins_the_first_ones_fetch() {
        let flights = Flights::new();
        let (waits, mut departures) = flights.board(KEY, range(0, 4), 128, &POLICY, Vec::new);
        assert_eq!((waits.len(), departures.len()), (1, 1));
        let (joined, none) = flights.board(KEY, range(2, 4), 128, &POLICY, Vec::new);
        assert_eq!((joined.len(), none.len()), (1, 0));
        let (more, rest) = flights.board(KEY, range(2, 8), 128, &POLICY, Vec::new);
        assert_eq!((more.len(), rest[0].sectors), (2, range(4, 8)));
        let failure = Failure::new(FailureKind::Unavailable, "no");
        departures.remove(0).land(Err(failure.clone()));
        assert_eq!(joined[0].clone().landed().await.unwrap_err(), failure);
        drop(rest);
        assert_eq!(flights.count(), 0);
    }

    #[tokio::test]
    async fn all_of_a_range_comes_by_one_fetch_which_is_joined_where_it_brings_all() {
        let flights = Flights::new();
        let (_, first) = flights.board(KEY, range(0, 4), 128, &POLICY, Vec::new);
        // It brings less, so it is not waited for.
        let (whole, departure) = flights.board_whole(KEY, range(2, 6));
        assert_eq!(
            (whole.sectors, departure.as_ref().map(|departure| departure.sectors)),
            (range(2, 6), Some(range(2, 6)))
        );
        for wanted in [range(2, 6), range(4, 5)] {
            let (joined, none) = flights.board_whole(KEY, wanted);
            assert!(joined.sectors == range(2, 6) && none.is_none());
        }
        let failure = Failure::new(FailureKind::Unavailable, "no");
        departure.unwrap().land(Err(failure.clone()));
        assert_eq!(whole.landed().await.unwrap_err(), failure);
        assert_eq!(flights.count(), 1);
        drop(first);
        assert_eq!(flights.count(), 0);
    }

    #[tokio::test]
    async fn an_abandoned_fetch_fails_its_readers_and_frees_its_range() {
        let flights = Flights::new();
        let (mut waits, departures) = flights.board(KEY, range(0, 4), 128, &POLICY, Vec::new);
        drop(departures);
        assert_eq!(waits.remove(0).landed().await.unwrap_err().kind(), FailureKind::Internal);
        let (_, again) = flights.board(KEY, range(0, 4), 128, &POLICY, Vec::new);
        assert_eq!(again.len(), 1);
    }
}
