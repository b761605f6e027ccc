//! Bytes where they lie in the cache.
//!
//! What a view shows is not evicted and not written to for as long as the view is there (invariant 4), in this process or, through a
//! lease, in a worker on this host. So a program that collects views takes memory from the cache. It gets a part of it; beyond that,
//! views are copies in memory of their own, and nothing else changes.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_client::OpenFile;
use forebay_config::Config;
use forebay_memory::{Span, Spans};
use forebay_types::Failure;

use crate::caller_memory::CallerMemory;

/// The part of the memory that views may hold: what is read meanwhile needs the rest.
const PART: u64 = 4;

/// How much memory the views of a session may hold, in bytes.
pub(crate) fn budget(config: &Config, is_alone: bool) -> u64 {
    let memory = if is_alone { config.worker_memory_size } else { config.client_memory_size };
    memory.as_u64() / PART
}

/// What views hold of the cache.
#[derive(Debug)]
pub(crate) struct ViewBudget {
    limit: u64,
    held: AtomicU64,
}

/// A part of it, given back on drop.
#[derive(Debug)]
struct Held {
    budget: Arc<ViewBudget>,
    bytes: u64,
}

impl ViewBudget {
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, held: AtomicU64::new(0) }
    }

    fn hold(self: &Arc<Self>, bytes: u64) -> Option<Held> {
        let add = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= self.limit);
        let added = self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        added.ok().map(|_| Held { budget: Arc::clone(self), bytes })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Bytes of one version of a file, which stay as they are.
#[derive(Debug)]
pub struct View(Bytes);

#[derive(Debug)]
enum Bytes {
    None,
    /// The span is dropped first.
    Shared {
        span: Span,
        _held: Held,
    },
    Copied(Box<[u8]>),
}

impl View {
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.0 {
            Bytes::None => &[],
            Bytes::Shared { span, .. } => span,
            Bytes::Copied(bytes) => bytes,
        }
    }

    /// Whether they are in memory of their own, not of the cache.
    #[must_use]
    pub fn is_copy(&self) -> bool {
        matches!(self.0, Bytes::Copied(_))
    }
}

/// A view of bytes where they lie, waiting for them if need be; none if they do not lie in one piece, or views hold too much already.
///
/// # Errors
/// What keeps the bytes from being read.
pub(crate) async fn shared(
    file: &Arc<OpenFile>,
    offset: u64,
    length: usize,
    budget: &Arc<ViewBudget>,
) -> Result<Option<View>, Failure> {
    if length == 0 {
        return Ok(Some(View(Bytes::None)));
    }
    let block_size = u64::from(file.layout().block_size());
    // Blocks do not lie behind one another.
    if offset % block_size + length as u64 > block_size {
        return Ok(None);
    }
    // Within a block, whose size is a u32.
    let short = length as u32;
    let spans = match file.try_read(offset, short) {
        Some(spans) => spans,
        None => file.read(offset, short).await?,
    };
    Ok(one(spans, length).and_then(|span| {
        let held = budget.hold(span.extent_size() as u64)?;
        Some(View(Bytes::Shared { span, _held: held }))
    }))
}

fn one(spans: Spans, length: usize) -> Option<Span> {
    let [span] = <[Span; 1]>::try_from(spans.into_vec()).ok()?;
    (span.len() == length).then_some(span)
}

/// Memory that becomes a view once it was filled.
pub(crate) struct CopyBuffer(Box<[u8]>);

impl CopyBuffer {
    /// Of `length` bytes; none if the system has no such memory.
    pub(crate) fn new(length: usize) -> Option<Self> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(length).ok()?;
        bytes.resize(length, 0);
        Some(Self(bytes.into_boxed_slice()))
    }

    /// To be filled by a read that ends, or is dropped, before [`CopyBuffer::finish`] is called or this is dropped.
    pub(crate) fn memory(&mut self) -> CallerMemory {
        let start = NonNull::new(self.0.as_mut_ptr()).unwrap_or(NonNull::dangling());
        // SAFETY: the future that has both this and the read drops the read first, and looks at the bytes after its end only.
        unsafe { CallerMemory::new(start, self.0.len()) }
    }

    /// The view of the first `length` bytes.
    pub(crate) fn finish(self, length: usize) -> View {
        let mut bytes = self.0.into_vec();
        bytes.truncate(length);
        View(Bytes::Copied(bytes.into_boxed_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_hold_no_more_than_their_part_and_give_it_back() {
        let budget = Arc::new(ViewBudget::new(100));
        let first = budget.hold(60).unwrap();
        assert!(budget.hold(50).is_none() && budget.hold(u64::MAX).is_none());
        let second = budget.hold(40).unwrap();
        drop(first);
        assert!(budget.hold(60).is_some());
        drop(second);
        assert_eq!(budget.held.load(Ordering::Relaxed), 0);
    }
}
