//! A read across blocks: each piece comes by itself, and then they are put together.
//!
//! A read that holds the bytes of one piece and waits for memory for the next keeps that memory from other reads. A few
//! such reads may hold all of it: the frames of a small pool are pinned by whatever lies in them. So no read holds
//! memory of the pool for long while a read waits for some: the bytes that have come are copied out of the pool, and
//! wait for the rest elsewhere. That costs a copy where memory is scarce, and nothing where it is not. The number of
//! reads that do so at once is limited, and with it the memory that they take beside the pool.

use std::future::Future;
use std::time::Duration;

use forebay_locks::Mutex;
use forebay_memory::{Pool, Spans};
use forebay_types::Failure;
use futures::future::try_join_all;
use smallvec::SmallVec;

/// How often a read that holds memory of the pool checks whether a caller waits for some. The pieces of a read that
/// finds memory come in less time.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What has come of a piece.
#[derive(Default)]
struct Came {
    bytes: Spans,
    /// Whether they are out of the pool.
    is_out: bool,
}

/// What all of `reads` bring, in their order.
///
/// # Errors
/// The first.
pub(crate) async fn together<F>(reads: impl Iterator<Item = F>, pool: &Pool) -> Result<Spans, Failure>
where
    F: Future<Output = Result<Spans, Failure>>,
{
    let reads: SmallVec<[F; 2]> = reads.collect();
    // Never held over an await.
    let came: Mutex<SmallVec<[Came; 2]>> = Mutex::new(reads.iter().map(|_| Came::default()).collect());
    let filed = reads.into_iter().enumerate().map(|(number, read)| {
        let came = &came;
        async move {
            let bytes = read.await?;
            came.lock()[number].bytes = bytes;
            Ok::<_, Failure>(())
        }
    });
    let mut all = std::pin::pin!(try_join_all(filed));
    loop {
        if let Ok(ended) = tokio::time::timeout(LOOK_EVERY, &mut all).await {
            ended?;
            break;
        }
        let mut came = came.lock();
        if came.iter().any(Came::holds) && pool.occupancy().waiting > 0 {
            came.iter_mut().filter(|came| came.holds()).for_each(Came::let_go);
        }
    }
    let came = std::mem::take(&mut *came.lock());
    Ok(came.into_iter().flat_map(|came| came.bytes).collect())
}

impl Came {
    /// Whether it holds memory of a pool, and not of another process.
    fn holds(&self) -> bool {
        !self.is_out && self.bytes.iter().any(|span| span.place().is_some())
    }

    /// Copies the bytes out of the pool. Where the system has no memory either, they stay where they are.
    fn let_go(&mut self) {
        if let Ok(copies) = self.bytes.iter().map(|span| span.copied()).collect::<Result<Spans, _>>() {
            self.bytes = copies;
        }
        self.is_out = true;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use forebay_memory::{PoolOptions, SpanMut};
    use forebay_types::ByteSize;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn spans(mut landed: SpanMut, of: u8) -> Spans {
        landed.fill(of);
        Spans::from_iter([landed.freeze()])
    }

    #[tokio::test(start_paused = true)]
    async fn a_piece_that_has_come_is_out_of_the_way_of_one_that_waits_for_its_memory() {
        // One frame: the second piece is of another size, and has no place before the first one is gone.
        let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(4))).unwrap();
        let piece = |length, of| {
            let pool = &pool;
            async move { Ok(spans(pool.alloc(length, LONG).await.expect("its turn comes"), of)) }
        };
        let began = Instant::now();
        let read = together([piece(3 << 20, 1), piece(1000, 2)].into_iter(), &pool).await.unwrap();
        let bytes: Vec<u8> = read.iter().flat_map(|span| span.iter().copied()).collect();
        assert!(bytes[..3 << 20].iter().all(|byte| *byte == 1) && bytes[3 << 20..] == [2; 1000], "in order");
        assert!(read[0].place().is_none() && read[1].place().is_some());
        assert!(began.elapsed() < LONG, "nobody gave up");
        drop(read);
        assert_eq!((pool.used(), pool.occupancy().failures), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn where_nobody_waits_for_memory_nothing_is_copied() {
        let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(8))).unwrap();
        let piece = |after: u64| {
            let landed = pool.try_alloc(1000).unwrap();
            async move {
                tokio::time::sleep(Duration::from_secs(after)).await;
                Ok(spans(landed, 1))
            }
        };
        let read = together([piece(2), piece(0), piece(1)].into_iter(), &pool).await.unwrap();
        assert!(read.len() == 3 && read.iter().all(|span| span.place().is_some()));
        let failed = async { Err(Failure::new(forebay_types::FailureKind::Unavailable, "no")) };
        assert!(together([failed].into_iter(), &pool).await.is_err());
    }
}
