//! Which runs in memory clients may read by themselves, and where those lie (ADR 0035).
//!
//! A run is sealed once it is warm, by a task, as all of its bytes are read twice for that.

use std::sync::{Arc, Weak};

use forebay_memory::Span;
use forebay_one_sided::{Location, Next, SealError};
use forebay_types::{BlockKey, SECTOR_SIZE};
use tokio::sync::mpsc::Receiver;
use tokio_util::sync::CancellationToken;

use crate::core::Core;
use crate::index::furthest;
use crate::run::MemoryRun;
use crate::sync::Ordering;

/// See [`Shown::locate`](crate::Shown::locate).
pub(crate) fn locate(
    core: &Core,
    key: &BlockKey,
    offset: u32,
    length: u32,
    admits: impl FnOnce(Option<u32>) -> bool,
) -> Option<Location> {
    let queue = core.to_seal.as_ref()?;
    let end = offset.checked_add(length)?;
    core.index.look(key, |runs| {
        if !admits(runs.label) {
            return None;
        }
        let copy = furthest(&runs.memory, offset).filter(|copy| copy.run.end() >= end)?;
        let sealing = copy.sealing.as_ref()?;
        if sealing.hit() == Next::Seal && !queue.offer(copy) {
            sealing.cool();
        }
        sealing.location(copy.run.sectors.start, copy.run.byte_len)
    })?
}

/// Seals what is wanted until it is told to stop.
pub(crate) async fn run(core: Arc<Core>, mut to_seal: Receiver<Weak<MemoryRun>>, stop: CancellationToken) {
    loop {
        let next = tokio::select! {
            () = stop.cancelled() => return,
            next = to_seal.recv() => next,
        };
        let Some(waiting) = next else { return };
        let Some(copy) = waiting.upgrade() else { continue };
        seal(&core, &copy);
        drop(copy);
        // A block takes half a millisecond.
        tokio::task::yield_now().await;
    }
}

fn seal(core: &Core, copy: &Arc<MemoryRun>) {
    let (Some(queue), Some(sealing)) = (&core.to_seal, &copy.sealing) else { return };
    let Some(at) = place_of(&copy.bytes) else { return };
    if copy.removed.load(Ordering::Acquire) {
        return;
    }
    let run = &copy.run;
    match queue.board.seal(run.key, run.sectors, at, &run.checksums, copy.bytes.clone()) {
        Ok(sealed) => sealing.sealed(sealed),
        Err(SealError::Corrupt(sector)) => core.drop_corrupt(copy, sector),
        // Not to be: its memory is its alone. It is read in the ordinary way.
        Err(error) => tracing::error!(block = %run.key, %error, "a run cannot be sealed"),
    }
}

/// The sector of the pool that the bytes begin with, if they begin with one.
fn place_of(bytes: &Span) -> Option<u32> {
    let (offset, sector) = (bytes.place()?.offset, u64::from(SECTOR_SIZE));
    offset.is_multiple_of(sector).then(|| u32::try_from(offset / sector).ok()).flatten()
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::time::{Duration, Instant};

    use forebay_memory::{Pool, PoolOptions};
    use forebay_one_sided::Board;
    use forebay_types::{ByteSize, FileId, SectorRange};

    use super::*;
    use crate::{Store, StoreOptions};

    const KEY: BlockKey = BlockKey { file: FileId([4; 16]), index: 2 };
    const LENGTH: u32 = 2 * SECTOR_SIZE + 100;

    async fn store() -> (Store, Arc<Board>, Pool) {
        let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(8))).unwrap();
        let board = Arc::clone(pool.let_peers_read());
        (Store::open(StoreOptions::in_memory(pool.clone())).await.unwrap(), board, pool)
    }

    async fn publish(store: &Store) {
        let mut landing = store.landing(LENGTH).await.unwrap();
        landing.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at % 249) as u8);
        store.publish(KEY, SectorRange::new(0, 3).unwrap(), LENGTH, landing);
    }

    async fn located(store: &Store) -> Location {
        let began = Instant::now();
        loop {
            if let Some(location) = store.shown(|_| true).locate(&KEY, 0, LENGTH) {
                return location;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "it is not sealed");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn a_run_that_is_asked_for_twice_is_sealed_and_told_of_until_it_goes() {
        let (store, _board, pool) = store().await;
        publish(&store).await;
        assert_eq!(store.shown(|_| true).locate(&KEY, 0, LENGTH), None, "it is not warm");
        let location = located(&store).await;
        assert_eq!((location.first, location.length), (0, LENGTH));
        assert_eq!(store.shown(|_| false).locate(&KEY, 0, LENGTH), None, "who may not see it is told nothing");
        assert_eq!(store.shown(|_| true).locate(&KEY, 0, LENGTH + 1), None, "so much there is not");
        store.remove(&KEY);
        assert_eq!((store.shown(|_| true).locate(&KEY, 0, LENGTH), pool.used()), (None, 0));
        // Again, in the same memory, and not the same.
        publish(&store).await;
        let again = located(&store).await;
        assert_eq!(again.at, location.at);
        assert_ne!(again.generation, location.generation);
    }

    #[tokio::test]
    async fn a_run_whose_bytes_have_a_reader_is_not_sealed_any_more_once_it_was_removed() {
        let (store, board, pool) = store().await;
        publish(&store).await;
        let location = located(&store).await;
        let reader = store.try_read(&KEY, 0, LENGTH).unwrap();
        store.remove(&KEY);
        assert!(pool.used() > 0);
        let sectors = SectorRange::new(0, 3).unwrap();
        let checksums = forebay_types::SectorChecksums::of(&reader[0]);
        // There would be no room for another seal.
        board.seal(KEY, sectors, location.at, &checksums, &reader[0]).unwrap();
    }

    #[tokio::test]
    async fn a_run_that_a_client_has_checked_gets_another_seal_since_the_old_one_may_be_damaged() {
        let (store, _board, _pool) = store().await;
        publish(&store).await;
        let location = located(&store).await;
        store.scrub(&KEY);
        assert_eq!(store.shown(|_| true).locate(&KEY, 0, LENGTH), None, "it has none, and is to be warm again");
        let again = located(&store).await;
        assert_eq!(again.at, location.at);
        assert_ne!(again.generation, location.generation);
    }

    #[tokio::test]
    async fn without_a_board_nothing_is_told() {
        let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(8))).unwrap();
        let store = Store::open(StoreOptions::in_memory(pool)).await.unwrap();
        publish(&store).await;
        for _ in 0..10 {
            assert_eq!(store.shown(|_| true).locate(&KEY, 0, LENGTH), None);
        }
    }
}
