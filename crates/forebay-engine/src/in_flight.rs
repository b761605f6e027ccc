//! In-flight fetches: which reader starts one, which ones join it, and how all of them hear of its end.

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
pub(crate) struct FetchedSectors {
    /// The bytes of its sectors.
    pub(crate) bytes: Span,
    /// How many of them the source had in a cache of its own.
    pub(crate) from_cache: u32,
}

/// What a fetch ended with, or why not.
pub(crate) type FetchResult = Result<FetchedSectors, Failure>;

/// Shards of the table, so that misses of different blocks seldom meet at one lock.
const SHARDS: usize = 64;

/// The table of in-flight fetches.
#[derive(Debug)]
pub(crate) struct InFlightFetches {
    shards: Vec<Mutex<HashMap<BlockKey, Vec<InFlightFetch>>>>,
}

/// One in-flight fetch, to wait for.
#[derive(Clone, Debug)]
pub(crate) struct InFlightFetch {
    pub(crate) sectors: SectorRange,
    /// When it began.
    pub(crate) since: Instant,
    result: watch::Receiver<Option<FetchResult>>,
}

impl InFlightFetch {
    /// Waits until the fetch has ended.
    pub(crate) async fn wait(mut self) -> FetchResult {
        match self.result.wait_for(Option::is_some).await {
            Ok(result) => result.clone().unwrap_or_else(|| Err(abandoned())),
            Err(_) => Err(abandoned()),
        }
    }
}

/// A fetch ended without a result: its task was stopped with the engine, or panicked.
fn abandoned() -> Failure {
    Failure::new(FailureKind::Internal, "a fetch was abandoned")
}

/// Held by the task that carries out a fetch. If it is dropped without [`FetchGuard::complete`], the fetch was abandoned, and its
/// readers are told so.
#[derive(Debug)]
pub(crate) struct FetchGuard {
    fetches: Arc<InFlightFetches>,
    key: BlockKey,
    pub(crate) sectors: SectorRange,
    result: watch::Sender<Option<FetchResult>>,
}

impl FetchGuard {
    /// Ends the fetch, and gives the result to all readers that wait for it. Call it when the bytes are in the store:
    /// from now on, readers look there.
    pub(crate) fn complete(self, result: FetchResult) {
        self.fetches.forget(self.key, self.sectors);
        self.result.send_replace(Some(result));
    }
}

impl Drop for FetchGuard {
    fn drop(&mut self) {
        if self.result.borrow().is_none() {
            self.fetches.forget(self.key, self.sectors);
        }
    }
}

impl InFlightFetches {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() })
    }

    fn shard(&self, key: &BlockKey) -> &Mutex<HashMap<BlockKey, Vec<InFlightFetch>>> {
        let number = key.index ^ u64::from(key.file.0[0]);
        &self.shards[number as usize % SHARDS]
    }

    /// In one step: the fetches under way that a read must wait for, and those that the caller must now carry out.
    ///
    /// `cached` is asked under the lock, so that a fetch that completes in between is seen either here or there.
    pub(crate) fn join_or_start(
        self: &Arc<Self>,
        key: BlockKey,
        wanted: SectorRange,
        sectors: u32,
        policy: &FetchPolicy,
        cached: impl FnOnce() -> Vec<SectorRange>,
    ) -> (Vec<InFlightFetch>, Vec<FetchGuard>) {
        let mut shard = self.shard(&key).lock();
        let cached = cached();
        let under_way = shard.get(&key).map_or(&[][..], Vec::as_slice);
        let in_flight: Vec<_> = under_way.iter().map(|fetch| fetch.sectors).collect();
        let missing = wanted.without(cached.iter().copied());
        let needed = |fetch: &&InFlightFetch| missing.iter().any(|range| range.intersection(fetch.sectors).is_some());
        let mut waits: Vec<_> = under_way.iter().filter(needed).cloned().collect();
        let mut guards = Vec::new();
        for sectors in policy.plan(wanted, sectors, &cached, &in_flight) {
            let (fetch, guard) = self.begin(&mut shard, key, sectors);
            waits.push(fetch);
            guards.push(guard);
        }
        (waits, guards)
    }

    /// In one step: the fetches that the caller must now carry out for reads that are to come. `cached` is asked as above.
    pub(crate) fn start(
        self: &Arc<Self>,
        key: BlockKey,
        wanted: &[SectorRange],
        sectors: u32,
        policy: &FetchPolicy,
        cached: impl FnOnce() -> Vec<SectorRange>,
    ) -> Vec<FetchGuard> {
        let mut shard = self.shard(&key).lock();
        let cached = cached();
        let in_flight: Vec<_> = shard.get(&key).into_iter().flatten().map(|fetch| fetch.sectors).collect();
        let planned = policy.plan_all(wanted, sectors, &cached, &in_flight);
        planned.into_iter().map(|sectors| self.begin(&mut shard, key, sectors).1).collect()
    }

    /// One more fetch in the table.
    fn begin(
        self: &Arc<Self>,
        shard: &mut HashMap<BlockKey, Vec<InFlightFetch>>,
        key: BlockKey,
        sectors: SectorRange,
    ) -> (InFlightFetch, FetchGuard) {
        let (sender, result) = watch::channel(None);
        let fetch = InFlightFetch { sectors, since: Instant::now(), result };
        shard.entry(key).or_default().push(fetch.clone());
        (fetch, FetchGuard { fetches: Arc::clone(self), key, sectors, result: sender })
    }

    /// One fetch that brings all of `wanted`, whatever is cached: one that is under way, or that the caller must now carry out.
    pub(crate) fn join_or_start_whole(
        self: &Arc<Self>,
        key: BlockKey,
        wanted: SectorRange,
    ) -> (InFlightFetch, Option<FetchGuard>) {
        let mut shard = self.shard(&key).lock();
        let under_way = shard.get(&key).into_iter().flatten();
        if let Some(fetch) = under_way.into_iter().find(|fetch| fetch.sectors.contains(wanted)) {
            return (fetch.clone(), None);
        }
        let (fetch, guard) = self.begin(&mut shard, key, wanted);
        (fetch, Some(guard))
    }

    fn forget(&self, key: BlockKey, sectors: SectorRange) {
        let mut shard = self.shard(&key).lock();
        if let Some(fetches) = shard.get_mut(&key) {
            fetches.retain(|fetch| fetch.sectors != sectors);
            if fetches.is_empty() {
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
        let fetches = InFlightFetches::new();
        let (waits, mut guards) = fetches.join_or_start(KEY, range(0, 4), 128, &POLICY, Vec::new);
        assert_eq!((waits.len(), guards.len()), (1, 1));
        let (joined, none) = fetches.join_or_start(KEY, range(2, 4), 128, &POLICY, Vec::new);
        assert_eq!((joined.len(), none.len()), (1, 0));
        let (more, rest) = fetches.join_or_start(KEY, range(2, 8), 128, &POLICY, Vec::new);
        assert_eq!((more.len(), rest[0].sectors), (2, range(4, 8)));
        let failure = Failure::new(FailureKind::Unavailable, "no");
        guards.remove(0).complete(Err(failure.clone()));
        assert_eq!(joined[0].clone().wait().await.unwrap_err(), failure);
        drop(rest);
        assert_eq!(fetches.count(), 0);
    }

    #[tokio::test]
    async fn all_of_a_range_comes_by_one_fetch_which_is_joined_where_it_brings_all() {
        let fetches = InFlightFetches::new();
        let (_, first) = fetches.join_or_start(KEY, range(0, 4), 128, &POLICY, Vec::new);
        // It brings less, so it is not waited for.
        let (whole, guard) = fetches.join_or_start_whole(KEY, range(2, 6));
        assert_eq!((whole.sectors, guard.as_ref().map(|guard| guard.sectors)), (range(2, 6), Some(range(2, 6))));
        for wanted in [range(2, 6), range(4, 5)] {
            let (joined, none) = fetches.join_or_start_whole(KEY, wanted);
            assert!(joined.sectors == range(2, 6) && none.is_none());
        }
        let failure = Failure::new(FailureKind::Unavailable, "no");
        guard.unwrap().complete(Err(failure.clone()));
        assert_eq!(whole.wait().await.unwrap_err(), failure);
        assert_eq!(fetches.count(), 1);
        drop(first);
        assert_eq!(fetches.count(), 0);
    }

    #[tokio::test]
    async fn an_abandoned_fetch_fails_its_readers_and_frees_its_range() {
        let fetches = InFlightFetches::new();
        let (mut waits, guards) = fetches.join_or_start(KEY, range(0, 4), 128, &POLICY, Vec::new);
        drop(guards);
        assert_eq!(waits.remove(0).wait().await.unwrap_err().kind(), FailureKind::Internal);
        let (_, again) = fetches.join_or_start(KEY, range(0, 4), 128, &POLICY, Vec::new);
        assert_eq!(again.len(), 1);
    }
}
