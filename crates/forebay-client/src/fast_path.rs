//! The lock-free fast path of stream detection, which a hit takes instead of the streams.
//!
//! The streams of a handle ([`Streams`]) are behind a lock, and most reads change nothing in them that matters: a sequential
//! reader within a window that is as long as it gets and reaches far enough, or a random reader. For these there is atomic state
//! that any thread may read and write: where each stream ended and how far it may move before the streams must be updated, and
//! where the last few reads ended that continued nothing. Every other read updates the streams. Two readers of a handle that write
//! the same word at once lose one of two updates; the reader whose stream is lost earns its window again.

mod atomic_state;
#[cfg(test)]
mod model;

pub(crate) use self::atomic_state::StreamFastPath;

/// What `atomic_state` needs of threads.
mod sync {
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefetch::{PrefetchOptions, Streams};
    use proptest::prelude::*;
    use std::ops::Range;

    const MIB: u64 = 1 << 20;
    const BLOCK: u32 = 4 << 20;

    /// Streams behind their fast path, as a handle has them.
    struct Handle {
        fast_path: StreamFastPath,
        streams: Streams,
        size: u64,
        told: u32,
    }

    impl Handle {
        fn new(size: u64, options: PrefetchOptions) -> Self {
            let streams = Streams::new(size, BLOCK, options);
            Self { fast_path: StreamFastPath::new(&streams), streams, size, told: 0 }
        }

        fn read(&mut self, offset: u64, length: u32) -> (bool, Option<Range<u64>>) {
            let end = (offset + u64::from(length)).min(self.size);
            if let Some(sequential) = self.fast_path.try_record(offset, end) {
                return (sequential, None);
            }
            self.told += 1;
            self.fast_path.write_back(&mut self.streams, offset, end);
            let ahead = self.streams.on_read(offset, length, || u64::MAX);
            self.fast_path.refresh(&self.streams);
            (ahead.sequential, ahead.fetch)
        }
    }

    #[test]
    fn random_reads_tell_the_streams_nothing() {
        let mut handle = Handle::new(1 << 40, PrefetchOptions::default());
        let mut at = 12_345u64;
        for _ in 0..10_000 {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            assert_eq!(handle.read(at % ((1 << 40) - 4096) / 4096 * 4096, 4096), (false, None));
        }
        assert!(handle.told < 10, "{}", handle.told);
    }

    #[test]
    fn long_reads_at_random_tell_them_no_more_than_that_parts_follow_each_other() {
        const PART: u32 = 512 << 10;
        let mut handle = Handle::new(1 << 40, PrefetchOptions { largest_request: PART, ..PrefetchOptions::default() });
        let mut at = 12_345u64;
        for _ in 0..1_000 {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let offset = at % ((1 << 40) - MIB) / MIB * MIB;
            assert_eq!(handle.read(offset, PART), (false, None));
            assert_eq!(handle.read(offset + u64::from(PART), PART), (false, None));
        }
        assert!(handle.told <= 1_000 + 10, "{}", handle.told);
    }

    #[test]
    fn small_reads_in_order_tell_them_once_in_512_kib() {
        let mut handle = Handle::new(1 << 40, PrefetchOptions::default());
        (0..1000).for_each(|read| _ = handle.read(read * 4096, 4096));
        let before = handle.told;
        for read in 1000..11_000 {
            assert!(handle.read(read * 4096, 4096).0);
        }
        let told = handle.told - before;
        assert!((70..100).contains(&told), "{told}");
    }

    #[test]
    fn two_readers_that_jump_between_streams_keep_them() {
        let mut handle = Handle::new(1 << 40, PrefetchOptions::default());
        for read in 0..500 {
            for stream in 0..4 {
                let (sequential, _) = handle.read((stream << 30) + read * (128 << 10), 128 << 10);
                assert_eq!(sequential, read > 0, "read {read} of stream {stream}");
                let elsewhere = (100 << 30) + (read * 7919 + stream) % 1000 * (50 << 20);
                assert_eq!(handle.read(elsewhere, 4096), (false, None));
            }
        }
    }

    #[test]
    fn the_first_read_of_a_small_file_fetches_it_whole() {
        let options = PrefetchOptions { file_length_threshold: 10 * MIB, ..PrefetchOptions::default() };
        let mut whole = Handle::new(10 * MIB, options);
        assert_eq!(whole.read(5 * MIB, 4096), (true, Some(0..10 * MIB)));
        assert_eq!(whole.read(5 * MIB + 4096, 4096).1, None);
        assert_eq!(Handle::new(10 * MIB + 1, options).read(5 * MIB, 4096), (false, None));
    }

    proptest! {
        /// What is fetched ahead of one reader is what it would be if the streams were told of each read.
        #[test]
        fn a_reader_is_fetched_ahead_of_as_if_every_read_were_told(
            size in 1u64..200 << 20,
            start in 0u64..64 << 20,
            lengths in prop::collection::vec(prop_oneof![Just(4096u32), Just(128 << 10), Just(1 << 20), 1u32..3 << 20], 1..400),
            largest_request in prop_oneof![Just(u32::MAX), Just(128 << 10), Just(1 << 20)],
        ) {
            let options = PrefetchOptions { largest_request, ..PrefetchOptions::default() };
            let mut handle = Handle::new(size, options);
            let mut told = Streams::new(size, BLOCK, options);
            let mut at = start % size;
            for length in lengths {
                let ahead = told.on_read(at, length, || u64::MAX);
                prop_assert_eq!(handle.read(at, length), (ahead.sequential, ahead.fetch));
                at = (at + u64::from(length)).min(size);
                if at == size {
                    break;
                }
            }
        }
    }
}
