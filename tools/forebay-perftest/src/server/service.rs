//! What the cache's servers answer from: a few blocks in memory.

use std::time::{Duration, Instant};

use forebay_memory::{FRAME_SIZE, Pool, Span};
use forebay_transport::{Op, Provenance, Request, Response, Service};
use forebay_types::{Failure, FailureKind};

use crate::error::Error;
use crate::memory::Buffer;
use crate::pattern;
use crate::plan::Place;
use crate::wire::BENCH_FILE;

/// The blocks, full of patterns.
pub(super) struct Blocks {
    frames: Vec<Span>,
    delay: Duration,
}

impl Blocks {
    /// So many blocks in `pool`. Each answer takes `delay` besides.
    pub(super) fn new(pool: &Pool, count: usize, delay: Duration) -> Result<Self, Error> {
        let mut frames = Vec::with_capacity(count);
        for index in 0..count as u32 {
            let fill = |position, bytes: &mut [u8]| pattern::fill(pattern::block_seed(index), position, bytes);
            if let Buffer::Out(spans) = Buffer::to_write(pool, FRAME_SIZE as u64, fill)? {
                frames.extend(spans);
            }
        }
        Ok(Self { frames, delay })
    }

    /// The bytes at `place`; `None` when there are none.
    pub(super) fn at(&self, place: Place) -> Option<Span> {
        let frame = self.frames.get(place.frame as usize)?;
        let (start, end) = (place.offset as usize, place.offset.checked_add(place.length)? as usize);
        (end <= frame.len()).then(|| frame.slice(start..end))
    }

    fn answer(&self, request: &Request) -> Option<Response> {
        let frame = u32::try_from(request.block.index).ok()?;
        let place = Place { frame, offset: request.offset, length: request.length };
        let span = self.at(place).filter(|_| request.op == Op::Read && request.block.file == BENCH_FILE)?;
        let provenance = Provenance { memory: request.length, ..Provenance::default() };
        Some(Response::of_spans(std::iter::once(span).collect(), provenance))
    }
}

#[async_trait::async_trait]
impl Service for Blocks {
    fn try_handle(&self, request: &Request) -> Option<Response> {
        self.delay.is_zero().then(|| self.answer(request)).flatten()
    }

    async fn handle(&self, request: Request, _takes_files: bool) -> Result<Response, Failure> {
        pause(self.delay).await;
        let failure = || Failure::new(FailureKind::InvalidArgument, "the benchmark's server has blocks to read only");
        self.answer(&request).ok_or_else(failure)
    }
}

/// A pause of exactly so long, during which others are served: a timer for whole milliseconds, which is all that it can,
/// and for the rest a look at the clock between the others' turns.
async fn pause(delay: Duration) {
    let until = Instant::now() + delay;
    let whole = Duration::from_millis((delay.as_millis() as u64).saturating_sub(1));
    if !whole.is_zero() {
        tokio::time::sleep(whole).await;
    }
    while Instant::now() < until {
        tokio::task::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use forebay_types::{BlockKey, ByteSize};

    use super::*;
    use crate::memory::pool;

    fn blocks(delay: Duration) -> Blocks {
        Blocks::new(&pool(ByteSize::mib(8)).unwrap(), 2, delay).unwrap()
    }

    fn read(index: u64, offset: u32, length: u32) -> Request {
        let block = BlockKey { file: BENCH_FILE, index };
        Request::on_block(Op::Read, block, offset, length, Duration::from_secs(1))
    }

    #[test]
    fn bytes_that_there_are_are_answered_at_once_and_others_never() {
        let blocks = blocks(Duration::ZERO);
        let response = blocks.try_handle(&read(1, 4096, 4096)).unwrap();
        let forebay_transport::ResponsePayload::Spans(spans) = response.payload else { panic!("no spans") };
        assert_eq!(pattern::first_difference(pattern::block_seed(1), 4096, &spans[0]), None);
        let frame = FRAME_SIZE as u32;
        for bad in [read(2, 0, 1), read(0, frame, 1), read(0, 1, frame), read(0, u32::MAX, u32::MAX)] {
            assert!(blocks.try_handle(&bad).is_none(), "{bad:?}");
        }
        let mut other = read(0, 0, 1);
        other.op = Op::Stat;
        assert!(blocks.try_handle(&other).is_none());
    }

    #[tokio::test]
    async fn a_delay_is_kept() {
        for delay in [Duration::from_micros(300), Duration::from_micros(2500)] {
            let blocks = blocks(delay);
            assert!(blocks.try_handle(&read(0, 0, 1)).is_none());
            let start = Instant::now();
            assert!(blocks.handle(read(0, 0, 1), false).await.is_ok());
            assert!(start.elapsed() >= delay);
            assert!(blocks.handle(read(9, 0, 1), false).await.is_err());
        }
    }
}
