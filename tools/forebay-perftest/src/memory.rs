//! Buffers of a client, and the pools of a server.

use std::time::Duration;

use forebay_memory::{Pool, PoolError, PoolOptions, Span, SpanMut};
use forebay_types::ByteSize;
use smallvec::SmallVec;

use crate::error::Error;
use crate::plan::parts;

/// The payload of one operation, in the parts that it is moved in.
#[derive(Debug)]
pub(crate) enum Buffer {
    /// To be written.
    Out(SmallVec<[Span; 2]>),
    /// To be read into.
    In(SmallVec<[SpanMut; 2]>),
}

impl Buffer {
    /// A buffer of `bytes` to read into.
    pub(crate) fn to_read(pool: &Pool, bytes: u64) -> Result<Self, Error> {
        Ok(Self::In(allocate(pool, bytes)?))
    }

    /// A buffer of `bytes` to write, filled by `fill`, which gets each part with its position in the payload.
    pub(crate) fn to_write(pool: &Pool, bytes: u64, mut fill: impl FnMut(u64, &mut [u8])) -> Result<Self, Error> {
        let mut spans = allocate(pool, bytes)?;
        let mut position = 0;
        for span in &mut spans {
            fill(position, span);
            position += span.len() as u64;
        }
        Ok(Self::Out(spans.into_iter().map(SpanMut::freeze).collect()))
    }
}

fn allocate(pool: &Pool, bytes: u64) -> Result<SmallVec<[SpanMut; 2]>, Error> {
    let exhausted = || PoolError::Exhausted { capacity: pool.capacity(), waited: Duration::ZERO };
    parts(bytes).map(|part| pool.try_alloc(part).ok_or_else(|| exhausted().into())).collect()
}

/// A pool of `size`, all of it backed by memory.
pub(crate) fn pool(size: ByteSize) -> Result<Pool, Error> {
    let pool = Pool::new(PoolOptions::fixed(size))?;
    pool.warm_up(size, || true)?;
    Ok(pool)
}
