//! What is read most just now: which files, and, while they are watched, which blocks.
//!
//! A hit must cost nothing for it, so one read in some 64 is looked at, on average and at random intervals (a fixed interval
//! would see the same block of a round again and again), and one that meets another at the lock is not. What is counted
//! fades: a read counts for half after [`HALF_LIFE`]. So a steady rate reads as that rate, and a burst is forgotten in
//! minutes. The lists are bounded: when one is full, its colder half is dropped; what is hot comes back hot.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use forebay_locks::Mutex;
use forebay_types::{BlockKey, FileId};

/// One read in so many is looked at.
const SAMPLE: u32 = 64;
const HALF_LIFE: Duration = Duration::from_secs(120);
/// Files that are told apart at once, and blocks.
const MAX_FILES: usize = 1024;
const MAX_BLOCKS: usize = 8192;

thread_local! {
    /// Reads of this thread until the next one that is looked at.
    static UNTIL_NEXT: Cell<u32> = const { Cell::new(0) };
    /// The state of the thread's random intervals (xorshift32 of Marsaglia, 2003).
    static RANDOM: Cell<u32> = const { Cell::new(0x9e37_79b9) };
}

/// How hot something is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate {
    pub(crate) reads_per_minute: f64,
    pub(crate) bytes_per_minute: f64,
}

/// The hottest files and blocks.
#[derive(Default)]
pub(crate) struct Heat {
    lists: Mutex<Lists>,
}

#[derive(Default)]
struct Lists {
    files: Hottest<FileId, MAX_FILES>,
    /// `None` while blocks are not watched.
    blocks: Option<Hottest<BlockKey, MAX_BLOCKS>>,
}

impl Heat {
    /// Notes a read, if it is one that is looked at.
    #[inline]
    pub(crate) fn note(&self, block: &BlockKey, length: u32) {
        UNTIL_NEXT.with(|until| match until.get().checked_sub(1) {
            Some(left) => until.set(left),
            None => {
                until.set(random() % (2 * SAMPLE - 1));
                self.sample(block, length, Instant::now());
            }
        });
    }

    #[cold]
    fn sample(&self, block: &BlockKey, length: u32, now: Instant) {
        let Some(mut lists) = self.lists.try_lock() else { return };
        lists.files.note(block.file, length, now);
        if let Some(blocks) = &mut lists.blocks {
            blocks.note(*block, length, now);
        }
    }

    /// Counts blocks from now on, or no more.
    pub(crate) fn watch_blocks(&self, watch: bool) {
        let mut lists = self.lists.lock();
        if watch != lists.blocks.is_some() {
            lists.blocks = watch.then(Hottest::default);
        }
    }

    pub(crate) fn files(&self, most: usize) -> Vec<(FileId, Rate)> {
        let mut hottest = self.lists.lock().files.rates(Instant::now());
        hottest.sort_by(|(_, a), (_, b)| b.bytes_per_minute.total_cmp(&a.bytes_per_minute));
        hottest.truncate(most);
        hottest
    }

    pub(crate) fn blocks(&self, most: usize) -> Vec<(BlockKey, Rate)> {
        let mut hottest = self.lists.lock().blocks.as_ref().map_or(Vec::new(), |blocks| blocks.rates(Instant::now()));
        hottest.sort_by(|(_, a), (_, b)| b.reads_per_minute.total_cmp(&a.reads_per_minute));
        hottest.truncate(most);
        hottest
    }
}

fn random() -> u32 {
    RANDOM.with(|state| {
        let mut x = state.get();
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        state.set(x);
        x
    })
}

/// What has faded of a count since it was made.
#[derive(Clone, Copy, Debug)]
struct Count {
    reads: f64,
    bytes: f64,
    at: Instant,
}

impl Count {
    fn faded(&self, now: Instant) -> Self {
        let age = now.saturating_duration_since(self.at).as_secs_f64();
        let left = (-age / HALF_LIFE.as_secs_f64()).exp2();
        Self { reads: self.reads * left, bytes: self.bytes * left, at: now }
    }
}

/// A bounded count of samples that fade. Pure.
struct Hottest<K, const MAX: usize> {
    counts: HashMap<K, Count>,
}

impl<K, const MAX: usize> Default for Hottest<K, MAX> {
    fn default() -> Self {
        Self { counts: HashMap::new() }
    }
}

impl<K: Copy + Eq + Hash, const MAX: usize> Hottest<K, MAX> {
    fn note(&mut self, key: K, length: u32, now: Instant) {
        if self.counts.len() >= MAX && !self.counts.contains_key(&key) {
            self.drop_the_colder_half(now);
        }
        let count = self.counts.entry(key).or_insert(Count { reads: 0.0, bytes: 0.0, at: now });
        *count = count.faded(now);
        count.reads += f64::from(SAMPLE);
        count.bytes += f64::from(SAMPLE) * f64::from(length);
    }

    fn drop_the_colder_half(&mut self, now: Instant) {
        let mut reads: Vec<f64> = self.counts.values().map(|count| count.faded(now).reads).collect();
        let half = reads.len() / 2;
        let (_, median, hotter) = reads.select_nth_unstable_by(half, f64::total_cmp);
        let median = *median;
        // Those that are just as hot as the one in the middle may be all there are: no more than half stay either.
        let hotter = hotter.iter().filter(|reads| **reads > median).count();
        let mut room = (MAX / 2).saturating_sub(hotter);
        self.counts.retain(|_, count| {
            let reads = count.faded(now).reads;
            let fills_room = reads == median && room > 0;
            room -= usize::from(fills_room);
            reads > median || fills_room
        });
    }

    /// A rate that stays the same piles up to that rate times the mean life of a count.
    fn rates(&self, now: Instant) -> Vec<(K, Rate)> {
        let mean_life_minutes = HALF_LIFE.as_secs_f64() / 60.0 / std::f64::consts::LN_2;
        let rate = |count: Count| Rate {
            reads_per_minute: count.reads / mean_life_minutes,
            bytes_per_minute: count.bytes / mean_life_minutes,
        };
        self.counts.iter().map(|(key, count)| (*key, rate(count.faded(now)))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_steady_rate_reads_as_that_rate_and_fades_when_it_ends() {
        let (mut hottest, mut now) = (Hottest::<u32, 8>::default(), Instant::now());
        // One sample a second stands for 64 reads a second.
        for _ in 0..1800 {
            hottest.note(1, 1000, now);
            now += SECOND;
        }
        let rate = hottest.rates(now)[0].1;
        assert!((rate.reads_per_minute / 3840.0 - 1.0).abs() < 0.01, "{rate:?}");
        assert!((rate.bytes_per_minute / 3_840_000.0 - 1.0).abs() < 0.01, "{rate:?}");
        let later = hottest.rates(now + HALF_LIFE)[0].1;
        assert!((later.reads_per_minute * 2.0 / rate.reads_per_minute - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_list_stays_bounded_and_keeps_what_is_hot() {
        let (mut hottest, now) = (Hottest::<u32, 64>::default(), Instant::now());
        for turn in 0..10_000 {
            hottest.note(turn, 1, now);
            hottest.note(7, 1, now);
            assert!(hottest.counts.len() <= 64);
        }
        assert!(hottest.counts[&7].reads > 600_000.0);
    }

    #[test]
    fn one_read_in_64_is_looked_at_and_blocks_only_when_wanted() {
        let heat = Heat::default();
        let key = |index| BlockKey { file: FileId([1; 16]), index };
        (0..64_000).for_each(|index| heat.note(&key(index % 64), 10));
        assert!(heat.blocks(10).is_empty());
        let file = heat.files(10)[0];
        let mean_life_minutes = HALF_LIFE.as_secs_f64() / 60.0 / std::f64::consts::LN_2;
        let reads = file.1.reads_per_minute * mean_life_minutes;
        assert!((50_000.0..80_000.0).contains(&reads), "{reads}");
        heat.watch_blocks(true);
        (0..640_000).for_each(|index| heat.note(&key(index % 64), 10));
        let blocks = heat.blocks(100);
        assert_eq!(blocks.len(), 64, "a round of 64 is not seen as one block");
        heat.watch_blocks(false);
        assert!(heat.blocks(10).is_empty());
    }
}
