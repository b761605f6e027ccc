//! A disk in memory that fails on demand.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;

use forebay_locks::Mutex;
use forebay_memory::SpanMut;
use futures::future::BoxFuture;
use tokio::sync::Semaphore;

use super::front::{Back, Front, Kind, Operation};
use super::{DiskIo, Limits, Watch, WriteBuffer};

/// Operations that may pass the gate at once: more than there can be.
const GATE: u32 = 1000;

/// The fake; clones are one disk.
#[derive(Clone)]
pub(crate) struct FakeDisk {
    front: Arc<Front<FakeBack>>,
    state: Arc<Mutex<FakeIoState>>,
    gate: Arc<Semaphore>,
}

struct FakeIoState {
    bytes: Vec<u8>,
    write_errors: VecDeque<io::ErrorKind>,
    read_errors: VecDeque<io::ErrorKind>,
}

struct FakeBack {
    state: Arc<Mutex<FakeIoState>>,
    gate: Arc<Semaphore>,
    runtime: tokio::runtime::Handle,
}

impl FakeDisk {
    /// A disk of `size` zeros; it wants to be made in a runtime.
    pub(crate) fn new(size: usize) -> Self {
        Self::limited(size, Limits::default())
    }

    /// The same, which may hold its readers up no longer than that.
    pub(crate) fn limited(size: usize, limits: Limits) -> Self {
        let state = FakeIoState { bytes: vec![0; size], write_errors: VecDeque::new(), read_errors: VecDeque::new() };
        let state = Arc::new(Mutex::new(state));
        let gate = Arc::new(Semaphore::new(GATE as usize));
        let back =
            FakeBack { state: Arc::clone(&state), gate: Arc::clone(&gate), runtime: tokio::runtime::Handle::current() };
        Self { front: Arc::new(Front::new(back, 16, Path::new("fake"), limits)), state, gate }
    }

    /// The next writes fail like this, one each.
    pub(crate) fn fail_writes(&self, errors: impl IntoIterator<Item = io::ErrorKind>) {
        self.state.lock().write_errors.extend(errors);
    }

    /// The next reads fail like this, one each.
    pub(crate) fn fail_reads(&self, errors: impl IntoIterator<Item = io::ErrorKind>) {
        self.state.lock().read_errors.extend(errors);
    }

    /// Holds all operations up until the result drops.
    pub(crate) async fn hold(&self) -> tokio::sync::OwnedSemaphorePermit {
        Arc::clone(&self.gate).acquire_many_owned(GATE).await.expect("the gate is never closed")
    }

    /// Changes bytes behind the store's back.
    pub(crate) fn tamper(&self, change: impl FnOnce(&mut [u8])) {
        change(&mut self.state.lock().bytes);
    }
}

impl DiskIo for FakeDisk {
    fn read_at(&self, offset: u64, into: SpanMut) -> BoxFuture<'static, io::Result<SpanMut>> {
        self.front.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: WriteBuffer) -> BoxFuture<'static, io::Result<()>> {
        self.front.write_at(offset, from)
    }

    fn probe(&self, into: SpanMut) -> BoxFuture<'static, io::Result<SpanMut>> {
        self.front.probe(into)
    }

    fn watch(&self) -> &Arc<Watch> {
        self.front.watch()
    }
}

impl Back for FakeBack {
    fn begin(&self, mut operation: Operation) {
        let (state, gate) = (Arc::clone(&self.state), Arc::clone(&self.gate));
        self.runtime.spawn(async move {
            let _passed = gate.acquire().await;
            let result = state.lock().perform(&mut operation);
            operation.end(result);
        });
    }
}

impl FakeIoState {
    fn perform(&mut self, operation: &mut Operation) -> io::Result<()> {
        let start = operation.offset as usize;
        let range = start..start + operation.len();
        match &mut operation.kind {
            Kind::Read { into, .. } => {
                if let Some(kind) = self.read_errors.pop_front() {
                    return Err(kind.into());
                }
                into.copy_from_slice(self.bytes.get(range).ok_or(io::ErrorKind::UnexpectedEof)?);
            }
            Kind::Write { from, .. } => {
                if let Some(kind) = self.write_errors.pop_front() {
                    return Err(kind.into());
                }
                let bytes = self.bytes.get_mut(range).ok_or(io::ErrorKind::StorageFull)?;
                bytes.copy_from_slice(&from.parts().concat());
            }
        }
        Ok(())
    }
}
