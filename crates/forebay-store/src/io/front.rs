//! What the real implementations share: operations, the bounds on what is under way, and how long it is waited for.
//!
//! Whoever waits for an operation waits no longer when the disk is taken out, and a reader not longer than
//! [`Limits::read_timeout`] once the kernel has its read. The operation goes on, with its memory and with its share of the
//! bounds: so a disk that hangs has no more than them.

use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_memory::SpanMut;
use forebay_types::MAX_BLOCK_SIZE;
use futures::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::liveness::Direction;
use super::traits::{DiskIo, silent};
use super::watch::{Limits, UnderWay, Watch};
use super::write_buffer::WriteBuffer;

/// An operation and everything that it needs, owned until it has ended.
pub(super) struct Operation {
    pub(super) offset: u64,
    pub(super) kind: Kind,
    turn: Turn,
}

/// What to do, and where the result goes.
pub(super) enum Kind {
    Read {
        into: SpanMut,
        /// Whether the page cache must not answer.
        is_probe: bool,
        done: oneshot::Sender<io::Result<SpanMut>>,
    },
    Write {
        from: WriteBuffer,
        done: oneshot::Sender<io::Result<()>>,
    },
}

/// What an operation has of the bounds; and that it is under way.
struct Turn {
    under_way: UnderWay,
    /// `None` once the bounds are of no use any more.
    share: Option<Share>,
}

/// A part of the bounds.
struct Share {
    _place: OwnedSemaphorePermit,
    /// Of a read: what it lands in, in KiB.
    _room: Option<OwnedSemaphorePermit>,
}

impl Operation {
    /// Bytes to be moved.
    pub(super) fn len(&self) -> usize {
        match &self.kind {
            Kind::Read { into, .. } => into.len(),
            Kind::Write { from, .. } => from.len(),
        }
    }

    /// Tells the result to the caller, if it still waits for it; the memory goes along or is let go.
    pub(super) fn end(self, result: io::Result<()>) {
        let Self { kind, turn, .. } = self;
        let Turn { under_way, share: _share } = turn;
        // Before anybody hears of it, who would then find it under way.
        drop(under_way);
        match kind {
            Kind::Read { into, done, .. } => _ = done.send(result.map(|()| into)),
            Kind::Write { done, .. } => _ = done.send(result),
        }
    }

    /// Tells the caller that nobody will know what becomes of it, and lets whoever waits for a turn have it. All else stays as it is:
    /// it is under way, and has its memory.
    pub(super) fn lose(&mut self, error: io::Error) {
        self.turn.share = None;
        match &mut self.kind {
            Kind::Read { done, .. } => _ = std::mem::replace(done, oneshot::channel().0).send(Err(error)),
            Kind::Write { done, .. } => _ = std::mem::replace(done, oneshot::channel().0).send(Err(error)),
        }
    }
}

/// Where operations go. It takes as many as the [`Front`] lets through.
pub(super) trait Back: Send + Sync + 'static {
    /// Begins an operation, or ends it with an error.
    fn begin(&self, operation: Operation);
}

/// Lets a bounded number of operations through to its back.
pub(super) struct Front<B> {
    back: Arc<B>,
    gate: Gate,
}

/// The bounds on one disk; clones are one.
#[derive(Clone)]
struct Gate {
    places: Arc<Semaphore>,
    room: Arc<Semaphore>,
    /// All of the room, in KiB.
    most: u32,
    watch: Arc<Watch>,
}

impl<B> Front<B> {
    /// At most `bound` operations at a time go to `back`, which is the disk of this directory.
    pub(super) fn new(back: B, bound: usize, dir: &Path, limits: Limits) -> Self {
        // One block at least, and no more than permits can be asked for.
        let kib = (limits.read_bytes >> 10).clamp(u64::from(MAX_BLOCK_SIZE >> 10), u64::from(u32::MAX >> 4));
        let most = u32::try_from(kib).unwrap_or(u32::MAX >> 4);
        let gate = Gate {
            places: Arc::new(Semaphore::new(bound)),
            room: Arc::new(Semaphore::new(most as usize)),
            most,
            watch: Arc::new(Watch::new(dir, limits)),
        };
        Self { back: Arc::new(back), gate }
    }
}

impl Gate {
    /// Waits until an operation may begin.
    async fn turn(&self, direction: Direction, length: usize) -> io::Result<Turn> {
        let room = match direction {
            Direction::Read => {
                let kib = u32::try_from(length.div_ceil(1 << 10)).unwrap_or(self.most).min(self.most);
                Some(Arc::clone(&self.room).acquire_many_owned(kib).await.map_err(|_| gone())?)
            }
            Direction::Write => None,
        };
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(|_| gone())?;
        let share = Some(Share { _place: place, _room: room });
        Ok(Turn { under_way: self.watch.begin(direction), share })
    }

    /// What comes of `work`, unless the disk is out or taken out.
    async fn unless_out<T>(&self, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        tokio::select! {
            biased;
            () = self.watch.taken_out() => Err(silent()),
            result = work => result,
        }
    }

    /// What comes of a read that the kernel has, in time.
    async fn in_time<T>(&self, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let result = within(self.watch.limits().read_timeout, work).await;
        result.unwrap_or_else(|| {
            self.watch.gave_up();
            Err(silent())
        })
    }
}

/// What comes of `work`; `None` when it takes longer than `limit`, if that is not zero.
async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    match limit.is_zero() {
        true => Some(work.await),
        false => tokio::time::timeout(limit, work).await.ok(),
    }
}

impl<B: Back> Front<B> {
    fn read(&self, offset: u64, into: SpanMut, is_probe: bool) -> BoxFuture<'static, io::Result<SpanMut>> {
        let (back, gate) = (Arc::clone(&self.back), self.gate.clone());
        Box::pin(async move {
            let work = async {
                let turn = gate.turn(Direction::Read, into.len()).await?;
                let (done, result) = oneshot::channel();
                back.begin(Operation { offset, kind: Kind::Read { into, is_probe, done }, turn });
                let result = async { result.await.unwrap_or_else(|_| Err(gone())) };
                // Whoever probes knows how long to wait, and what to make of it.
                if is_probe { result.await } else { gate.in_time(result).await }
            };
            if is_probe { work.await } else { gate.unless_out(work).await }
        })
    }
}

impl<B: Back> DiskIo for Front<B> {
    fn read_at(&self, offset: u64, into: SpanMut) -> BoxFuture<'static, io::Result<SpanMut>> {
        self.read(offset, into, false)
    }

    fn write_at(&self, offset: u64, from: WriteBuffer) -> BoxFuture<'static, io::Result<()>> {
        let (back, gate) = (Arc::clone(&self.back), self.gate.clone());
        Box::pin(async move {
            let work = async {
                let turn = gate.turn(Direction::Write, from.len()).await?;
                let (done, result) = oneshot::channel();
                back.begin(Operation { offset, kind: Kind::Write { from, done }, turn });
                result.await.unwrap_or_else(|_| Err(gone()))
            };
            gate.unless_out(work).await
        })
    }

    fn probe(&self, into: SpanMut) -> BoxFuture<'static, io::Result<SpanMut>> {
        self.read(0, into, true)
    }

    fn watch(&self) -> &Arc<Watch> {
        &self.gate.watch
    }
}

fn gone() -> io::Error {
    io::Error::other("the disk I/O threads have stopped")
}
