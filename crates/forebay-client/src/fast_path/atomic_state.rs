//! The atomic state that all threads which read a handle share. All memory ordering is in here, and modelled (`model.rs`).

use super::sync::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::prefetch::{SLACK, STREAMS, Streams, is_near, reach};

/// Reads that continued nothing and are remembered: as many as streams, for each may be the start of one.
const LONE: usize = STREAMS;
/// The end of no read: far from any, also for [`is_near`].
const NOWHERE: u64 = 3 << 62;

/// On cache lines of its own: each read of the handle writes to it.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct StreamFastPath {
    streams: [Watched; STREAMS],
    lone: [Lone; LONE],
    /// How many there were.
    next: AtomicUsize,
    /// The first read decides whether the file is fetched whole.
    awaits_first: AtomicBool,
}

#[derive(Debug)]
struct Watched {
    end: AtomicU64,
    /// The first end that the stream is to be told of; 0 while it is no stream yet.
    until: AtomicU64,
}

#[derive(Debug)]
struct Lone {
    start: AtomicU64,
    end: AtomicU64,
}

impl StreamFastPath {
    pub(crate) fn new(streams: &Streams) -> Self {
        let nowhere = || AtomicU64::new(NOWHERE);
        Self {
            streams: std::array::from_fn(|_| Watched { end: nowhere(), until: AtomicU64::new(0) }),
            lone: std::array::from_fn(|_| Lone { start: AtomicU64::new(0), end: nowhere() }),
            next: AtomicUsize::new(0),
            awaits_first: AtomicBool::new(streams.may_fetch_whole()),
        }
    }

    /// Records a read of `offset..end`. Whether it continues a stream; `None` if the streams must be updated.
    #[inline]
    pub(crate) fn try_record(&self, offset: u64, end: u64) -> Option<bool> {
        if self.awaits_first.load(Ordering::Relaxed) {
            return None;
        }
        let reach = reach(offset, end);
        for stream in &self.streams {
            let (was_at, until) = (stream.end.load(Ordering::Relaxed), stream.until.load(Ordering::Relaxed));
            if was_at == offset && end < until {
                stream.end.store(end, Ordering::Relaxed);
                return Some(true);
            }
            if is_near(was_at, offset, if until == 0 { reach } else { SLACK }) {
                return None;
            }
        }
        if self.lone.iter().any(|lone| is_near(lone.end.load(Ordering::Relaxed), offset, reach)) {
            return None;
        }
        let next = self.next.load(Ordering::Relaxed);
        let lone = &self.lone[next % LONE];
        lone.start.store(offset, Ordering::Relaxed);
        lone.end.store(end, Ordering::Relaxed);
        self.next.store(next.wrapping_add(1), Ordering::Relaxed);
        Some(false)
    }

    /// Writes back to the streams what was recorded here, before they are told of a read of `offset..end`.
    pub(crate) fn write_back(&self, streams: &mut Streams, offset: u64, end: u64) {
        self.awaits_first.store(false, Ordering::Relaxed);
        streams.moved(|at| self.streams.get(at).map(|stream| stream.end.load(Ordering::Relaxed)).filter(is_somewhere));
        streams.jumped(self.next.load(Ordering::Relaxed));
        let ended = |lone: &Lone| lone.end.load(Ordering::Relaxed);
        let near = self.lone.iter().filter(|lone| is_near(ended(lone), offset, reach(offset, end)));
        if let Some(lone) = near.min_by_key(|lone| ended(lone).abs_diff(offset)) {
            let start = lone.start.load(Ordering::Relaxed);
            let end = lone.end.swap(NOWHERE, Ordering::Relaxed);
            streams.begin(start.min(end), end);
        }
    }

    /// Reloads the state from the streams.
    pub(crate) fn refresh(&self, streams: &Streams) {
        for (watched, stream) in self.streams.iter().zip(streams.quiet()) {
            let (end, until) = stream.unwrap_or((NOWHERE, 0));
            watched.until.store(0, Ordering::Relaxed);
            watched.end.store(end, Ordering::Relaxed);
            watched.until.store(until, Ordering::Relaxed);
        }
    }
}

fn is_somewhere(end: &u64) -> bool {
    *end != NOWHERE
}
