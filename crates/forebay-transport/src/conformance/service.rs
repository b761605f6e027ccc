//! The service that the suite calls: what it does with a read is written in the block's key.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use forebay_memory::{Pool, PoolOptions, SpanMut, Spans};
use forebay_types::{BlockKey, ByteSize, Failure, FailureKind, FileId, crc32c};
use tokio::sync::Semaphore;

use crate::op::Op;
use crate::reply::{Provenance, Response};
use crate::request::Request;
use crate::traits::Service;
use crate::wire::{MAX_BODY_BESIDE_PAYLOAD, MAX_REPLY_BODY};

/// What the service does with a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Behaviour {
    /// Answers without waiting.
    AtOnce = 1,
    /// Answers from a task.
    Later = 2,
    /// Answers after [`Scripted::open`].
    Gated = 3,
    /// Never answers.
    Never = 4,
    /// Fails as `fail` says.
    Fails = 5,
    /// Answers with one byte more than was asked for.
    TooMuch = 6,
    /// Answers with half of what was asked for.
    Short = 7,
    /// Panics.
    Panics = 8,
}

impl Behaviour {
    const ALL: [Self; 8] =
        [Self::AtOnce, Self::Later, Self::Gated, Self::Never, Self::Fails, Self::TooMuch, Self::Short, Self::Panics];

    fn of(block: &BlockKey) -> Option<Self> {
        Self::ALL.into_iter().find(|behaviour| *behaviour as u8 == block.file.0[0])
    }
}

/// A request to read from block `index`, with the service behaving as said.
#[must_use]
pub fn read(behaviour: Behaviour, index: u64, offset: u32, length: u32, deadline: Duration) -> Request {
    let block = BlockKey { file: FileId([behaviour as u8; 16]), index };
    Request::on_block(Op::Read, block, offset, length, deadline)
}

/// The byte at `offset` of block `index`.
#[must_use]
pub fn pattern(index: u64, offset: u32) -> u8 {
    (offset ^ (offset >> 8) ^ (offset >> 16)).wrapping_add((index as u32).wrapping_mul(41)) as u8
}

/// A body whose bytes depend on their place. Made here and not in the cases: those are compiled with the crate of each transport, whose
/// code is not optimised (`profile.dev` in `Cargo.toml`).
pub(super) fn body(length: usize) -> Bytes {
    (0..length).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect::<Vec<_>>().into()
}

/// What the service answers to an upload: how long its body was, and the body's CRC32C.
#[must_use]
pub fn digest(body: &[u8]) -> Bytes {
    [&(body.len() as u64).to_le_bytes()[..], &crc32c(body).to_le_bytes()].concat().into()
}

/// A pool of `frames` × 4 MiB.
#[must_use]
pub fn pool(frames: u64) -> Pool {
    let options = PoolOptions { huge_pages: false, ..PoolOptions::fixed(ByteSize::mib(4 * frames)) };
    Pool::new(options).expect("the suite's pools are small")
}

/// The service.
///
/// * `Read`: as [`Behaviour`] says. `Stat`: the request's body comes back. `List`: a body of the greatest length that the
///   protocol allows. `Upload`: what [`digest`] makes of the request's body. `StatRead`: as much of the body as goes with a
///   payload, and a thousand bytes for each of the body's, at most as many as are asked for. Others: an empty answer.
pub struct Scripted {
    memory: Pool,
    gate: Semaphore,
    started: AtomicUsize,
    ended: AtomicUsize,
}

/// Counts a request as ended, whether it was answered or dropped.
struct Ends<'a>(&'a AtomicUsize);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Scripted {
    /// The service, with the gate closed.
    #[must_use]
    pub fn new() -> Arc<Self> {
        let (started, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Self { memory: pool(16), gate: Semaphore::new(0), started, ended })
    }

    /// Lets `count` gated requests go on.
    pub fn open(&self, count: usize) {
        self.gate.add_permits(count);
    }

    /// How many requests it has got.
    #[must_use]
    pub fn started(&self) -> usize {
        self.started.load(Ordering::SeqCst)
    }

    /// How many of them it works on no more.
    #[must_use]
    pub fn ended(&self) -> usize {
        self.ended.load(Ordering::SeqCst)
    }

    /// Some bytes of a block in two views that meet at an odd place.
    fn bytes(mut memory: SpanMut, request: &Request) -> Response {
        let (index, offset, length) = (request.block.index, request.offset, memory.len());
        for (at, byte) in memory.iter_mut().enumerate() {
            *byte = pattern(index, offset.wrapping_add(at as u32));
        }
        let (head, tail) = memory.split_at(length / 3);
        let provenance = Provenance { memory: 1, disk: 2, origin: length as u32 };
        Response::of_spans(Spans::from_iter([head.freeze(), tail.freeze()]), provenance)
    }

    async fn memory(&self, length: usize) -> Result<SpanMut, Failure> {
        let memory = self.memory.alloc(length, Duration::from_secs(60)).await;
        memory.map_err(|error| Failure::new(FailureKind::OutOfResources, error.to_string()))
    }
}

#[async_trait::async_trait]
impl Service for Scripted {
    fn try_handle(&self, request: &Request) -> Option<Response> {
        if request.op != Op::Read || Behaviour::of(&request.block) != Some(Behaviour::AtOnce) {
            return None;
        }
        let memory = self.memory.try_alloc(request.length as usize)?;
        self.started.fetch_add(1, Ordering::SeqCst);
        let _ends = Ends(&self.ended);
        Some(Self::bytes(memory, request))
    }

    async fn handle(&self, request: Request, _takes_files: bool) -> Result<Response, Failure> {
        self.started.fetch_add(1, Ordering::SeqCst);
        let _ends = Ends(&self.ended);
        match request.op {
            Op::Stat => return Ok(Response::of_body(request.body)),
            Op::Upload => return Ok(Response::of_body(digest(&[&request.body[..], &request.tail].concat()))),
            Op::List => return Ok(Response::of_body(Bytes::from(vec![b'x'; MAX_REPLY_BODY as usize]))),
            Op::StatRead => {
                let length = request.length.min(request.body.len() as u32 * 1000);
                let payload = Self::bytes(self.memory(length as usize).await?, &request);
                let body = request.body.slice(..request.body.len().min(MAX_BODY_BESIDE_PAYLOAD as usize));
                return Ok(Response { body, ..payload });
            }
            Op::Read => {}
            _ => return Ok(Response::of_body(Bytes::new())),
        }
        let length = request.length as usize;
        match Behaviour::of(&request.block) {
            Some(Behaviour::AtOnce | Behaviour::Later) => {
                tokio::task::yield_now().await;
                Ok(Self::bytes(self.memory(length).await?, &request))
            }
            Some(Behaviour::Gated) => {
                match self.gate.acquire().await {
                    Ok(permit) => permit.forget(),
                    Err(_) => return Err(Failure::new(FailureKind::Internal, "the gate is gone")),
                }
                Ok(Self::bytes(self.memory(length).await?, &request))
            }
            Some(Behaviour::Never) => std::future::pending().await,
            Some(Behaviour::Fails) => Err(Failure::new(FailureKind::VersionChanged, "`/a/b` changed: été")),
            Some(Behaviour::TooMuch) => Ok(Self::bytes(self.memory(length + 1).await?, &request)),
            Some(Behaviour::Short) => Ok(Self::bytes(self.memory(length / 2).await?, &request)),
            Some(Behaviour::Panics) => panic!("as the request wanted"),
            None => Err(Failure::new(FailureKind::InvalidArgument, "no such behaviour")),
        }
    }
}
