//! A counter that many threads add to at once.
//!
//! With one number for all, its cache line goes from core to core with each hit. Here each thread has one of several, on cache lines
//! of its own; a reader adds them up.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use serde::{Serialize, Serializer};

/// More than the threads that serve on most machines.
const SHARDS: usize = 16;

/// A number that only grows. To add to it is one atomic operation on a cache line that few other threads use.
#[derive(Debug, Default)]
pub struct ShardedCounter {
    shards: [Shard; SHARDS],
}

/// Two cache lines: adjacent ones are fetched in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(AtomicU64);

impl ShardedCounter {
    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
        }
        let mine = MINE.with(|mine| {
            if mine.get() == usize::MAX {
                mine.set(THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS);
            }
            mine.get()
        });
        self.shards[mine % SHARDS].0.fetch_add(n, Ordering::Relaxed);
    }

    /// What was added so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.shards.iter().map(|shard| shard.0.load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }
}

impl Serialize for ShardedCounter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_many_threads_add_is_their_sum() {
        let counter = ShardedCounter::default();
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| (0..1000).for_each(|_| counter.add(3)));
            }
        });
        assert_eq!(counter.get(), 60_000);
        assert_eq!(serde_json::json!(counter), 60_000);
    }
}
