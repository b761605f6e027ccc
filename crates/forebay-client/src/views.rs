//! What a worker on this host has shown ahead of readers.
//!
//! A view costs no memory here, but the worker cannot use those bytes for anything else while there is one. So views
//! are few, each goes when it has been read to its end, and none stays for longer than [`STAYS`] after the last look at
//! it, nor than [`LASTS`] in all: a reader that comes later asks again, and the worker looks at its memory again
//! (`worker.memory.verify_interval`). When the worker has no more to show, all go at once.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_locks::Mutex;
use forebay_memory::Spans;
use forebay_types::BlockKey;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

/// How long a view stays after the last look at it.
pub(crate) const STAYS: Duration = Duration::from_millis(250);

/// How long a view stays at most.
const LASTS: Duration = Duration::from_millis(500);

/// Some bytes of a block.
#[derive(Debug)]
struct View {
    key: BlockKey,
    offset: u32,
    length: u32,
    spans: Spans,
    shown_at: Instant,
    looked_at: Instant,
}

impl View {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.looked_at) >= STAYS || now.saturating_duration_since(self.shown_at) >= LASTS
    }

    /// Where `length` bytes at `offset` of block `key` begin in it, if it has all of them.
    fn find(&self, key: &BlockKey, offset: u32, length: u32) -> Option<u32> {
        let from = offset.checked_sub(self.offset)?;
        (self.key == *key && from.checked_add(length)? <= self.length).then_some(from)
    }
}

/// All of a client's.
#[derive(Debug, Default)]
pub(crate) struct Views {
    views: Mutex<VecDeque<View>>,
    /// Whether there are any: most clients see no worker's memory.
    any: AtomicBool,
    cleared: Notify,
}

/// What becomes of a view that was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    /// A task looks after the views already.
    Watched,
    /// A task has to call [`Views::sweep`] every [`STAYS`] until it says that there are none.
    First,
}

impl Views {
    /// Adds what was shown of a block from `offset` on. They are of at most `most` blocks; the oldest go. A part of a block counts as
    /// the whole: the worker may hold both in one piece of memory.
    pub(crate) fn add(&self, key: BlockKey, offset: u32, spans: Spans, most: usize, now: Instant) -> Added {
        let length = spans.iter().map(|span| span.len() as u32).sum();
        let mut views = self.views.lock();
        views.push_back(View { key, offset, length, spans, shown_at: now, looked_at: now });
        let mut gone = Vec::new();
        while views.len() > most && blocks(&views) > most {
            gone.extend(views.pop_front());
        }
        let was_any = self.any.swap(true, Ordering::Relaxed);
        drop(views);
        // Not under the lock: the worker is told.
        drop(gone);
        if was_any { Added::Watched } else { Added::First }
    }

    /// The bytes, if they are among what was shown.
    #[inline]
    pub(crate) fn get(&self, key: &BlockKey, offset: u32, length: u32) -> Option<Spans> {
        if self.any.load(Ordering::Relaxed) { self.look(key, offset, length) } else { None }
    }

    fn look(&self, key: &BlockKey, offset: u32, length: u32) -> Option<Spans> {
        let mut views = self.views.lock();
        let (at, from) = views.iter().enumerate().find_map(|(at, view)| Some((at, view.find(key, offset, length)?)))?;
        if views[at].length == from + length {
            let view = views.remove(at)?;
            drop(views);
            return Some(slice(&view.spans, from, length));
        }
        let view = &mut views[at];
        view.looked_at = Instant::now();
        Some(slice(&view.spans, from, length))
    }

    /// Whether [`Views::get`] would have them.
    pub(crate) fn has(&self, key: &BlockKey, offset: u32, length: u32) -> bool {
        self.any.load(Ordering::Relaxed)
            && self.views.lock().iter().any(|view| view.find(key, offset, length).is_some())
    }

    /// Drops the views that were not looked at for a while, or have lasted too long. False when there are no more.
    pub(crate) fn sweep(&self, now: Instant) -> bool {
        let mut views = self.views.lock();
        let (stay, gone): (VecDeque<View>, VecDeque<View>) = views.drain(..).partition(|view| !view.is_over(now));
        *views = stay;
        let any = !views.is_empty();
        self.any.store(any, Ordering::Relaxed);
        drop(views);
        drop(gone);
        any
    }

    /// Waits until all are dropped at once.
    pub(crate) fn cleared(&self) -> Notified<'_> {
        self.cleared.notified()
    }

    /// Drops all: the worker wants its memory back, or there are no readers any more.
    pub(crate) fn clear(&self) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let gone = std::mem::take(&mut *self.views.lock());
        drop(gone);
        self.cleared.notify_waiters();
    }
}

/// Of how many blocks they are.
fn blocks(views: &VecDeque<View>) -> usize {
    let is_first = |at: usize, view: &View| !views.iter().take(at).any(|earlier| earlier.key == view.key);
    views.iter().enumerate().filter(|(at, view)| is_first(*at, view)).count()
}

/// `length` bytes from `from` on, of which there are enough.
fn slice(spans: &Spans, from: u32, length: u32) -> Spans {
    let (mut skip, mut left) = (from as usize, length as usize);
    let mut slices = Spans::new();
    for span in spans {
        let start = skip.min(span.len());
        let end = span.len().min(start + left);
        if end > start {
            slices.push(span.slice(start..end));
        }
        skip -= start;
        left -= end - start;
    }
    slices
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_memory::{Pool, PoolOptions};
    use forebay_types::{ByteSize, FileId};

    fn key(index: u64) -> BlockKey {
        BlockKey { file: FileId([7; 16]), index }
    }

    /// Bytes that say where they lie in the block, in two spans.
    fn shown(pool: &Pool, offset: u32, length: u32) -> Spans {
        let mut span = pool.try_alloc(length as usize).unwrap();
        span.iter_mut().enumerate().for_each(|(at, byte)| *byte = (offset as usize + at) as u8);
        let (head, tail) = span.split_at(length as usize / 3);
        Spans::from_iter([head.freeze(), tail.freeze()])
    }

    fn bytes(spans: &Spans) -> Vec<u8> {
        spans.iter().flat_map(|span| span.to_vec()).collect()
    }

    fn pool() -> Pool {
        Pool::new(PoolOptions::fixed(ByteSize::mib(8))).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_shown_is_had_in_pieces_and_goes_with_the_last() {
        let (pool, views) = (pool(), Views::default());
        assert_eq!(views.add(key(1), 100, shown(&pool, 100, 300), usize::MAX, Instant::now()), Added::First);
        assert_eq!(views.add(key(2), 0, shown(&pool, 0, 30), usize::MAX, Instant::now()), Added::Watched);
        let expected = |from: u32, to: u32| (from..to).map(|at| at as u8).collect::<Vec<_>>();
        for (from, to) in [(100, 101), (150, 350), (180, 200), (200, 399)] {
            assert_eq!(bytes(&views.get(&key(1), from, to - from).unwrap()), expected(from, to));
        }
        for (from, to) in [(99, 110), (390, 401), (0, 1), (400, 401)] {
            assert!(!views.has(&key(1), from, to - from) && views.get(&key(1), from, to - from).is_none());
        }
        assert!(views.has(&key(1), 399, 1));
        assert_eq!(bytes(&views.get(&key(1), 350, 50).unwrap()), expected(350, 400));
        assert!(!views.has(&key(1), 100, 1), "it was read to its end");
        assert!(views.has(&key(2), 0, 30));
        views.clear();
        assert_eq!(pool.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_looks_at_goes_and_whoever_sweeps_may_go_then() {
        let (pool, views) = (pool(), Views::default());
        assert_eq!(views.add(key(1), 0, shown(&pool, 0, 30), usize::MAX, Instant::now()), Added::First);
        views.add(key(2), 0, shown(&pool, 0, 30), usize::MAX, Instant::now());
        tokio::time::advance(STAYS / 2).await;
        assert!(views.get(&key(2), 0, 10).is_some());
        tokio::time::advance(STAYS / 2).await;
        assert!(views.sweep(Instant::now()));
        assert!(!views.has(&key(1), 0, 1) && views.has(&key(2), 0, 1));
        tokio::time::advance(STAYS / 2).await;
        assert!(!views.sweep(Instant::now()));
        assert_eq!(pool.used(), 0);
        assert_eq!(views.add(key(1), 0, shown(&pool, 0, 30), usize::MAX, Instant::now()), Added::First);
        // A reader that looks again and again does not keep it.
        for _ in 0..4 {
            assert!(views.get(&key(1), 0, 1).is_some());
            tokio::time::advance(LASTS / 4).await;
        }
        assert!(!views.sweep(Instant::now()));
        assert_eq!(pool.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn there_are_never_more_than_there_may_be() {
        let (pool, views) = (pool(), Views::default());
        for index in 0..10 {
            views.add(key(index), 0, shown(&pool, 0, 100), 3, Instant::now());
        }
        let kept = || (0..10).filter(|index| views.has(&key(*index), 0, 100)).collect::<Vec<u64>>();
        assert_eq!(kept(), [7, 8, 9]);
        for part in 1..4 {
            views.add(key(8), part * 100, shown(&pool, 0, 100), 3, Instant::now());
        }
        assert_eq!(kept(), [7, 8, 9], "parts of a block are of one block");
        views.add(key(20), 0, shown(&pool, 0, 100), 0, Instant::now());
        assert!(!views.has(&key(20), 0, 1));
        assert_eq!(pool.used(), 0);
    }
}
