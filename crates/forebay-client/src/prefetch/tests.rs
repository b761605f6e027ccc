use super::*;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const BLOCK: u32 = 4 << 20;

const PART: u32 = 512 << 10;

fn streams(size: u64) -> Streams {
    Streams::new(size, BLOCK, PrefetchOptions::default())
}

/// Those of a mount: longer reads come in parts.
fn mounted(size: u64) -> Streams {
    Streams::new(size, BLOCK, PrefetchOptions { largest_request: PART, ..PrefetchOptions::default() })
}

/// The requests that the kernel makes of a read.
fn parts(offset: u64, length: u64) -> impl DoubleEndedIterator<Item = (u64, u32)> + Clone {
    let part = u64::from(PART);
    let at = move |part_of: u64| (offset + part_of * part, part.min(length - part_of * part) as u32);
    (0..length.div_ceil(part)).map(at)
}

/// A read whose parts come in order; what is fetched ahead.
fn read(streams: &mut Streams, offset: u64, length: u64) -> Option<Range<u64>> {
    let told = parts(offset, length).map(|(offset, length)| streams.on_read(offset, length, || u64::MAX).fetch);
    told.flatten().reduce(|whole, more| whole.start.min(more.start)..whole.end.max(more.end))
}

#[test]
fn a_sequential_reader_earns_a_window_of_eight_blocks() {
    let mut streams = streams(1 << 30);
    assert_eq!(streams.on_read(0, 1 << 20, || u64::MAX), Ahead::default());
    let second = streams.on_read(MIB, 1 << 20, || u64::MAX);
    assert_eq!(second, Ahead { sequential: true, fetch: Some(2 * MIB..4 * MIB) });
    let mut fetched = 4 * MIB;
    for read in 2..200 {
        let ahead = streams.on_read(read * MIB, 1 << 20, || u64::MAX);
        assert!(ahead.sequential);
        if let Some(fetch) = ahead.fetch {
            assert_eq!(fetch.start, fetched, "each byte is fetched ahead once");
            fetched = fetch.end;
        }
        assert!(fetched >= (read + 1) * MIB && fetched <= (read + 1 + 32) * MIB);
    }
    assert_eq!(fetched, (200 + 32) * MIB);
}

/// How many blocks ahead a stream is that is held up only by fetches of `fetch`, by a line of `line` bytes a second and by
/// what it does with the bytes, `reader` of them a second.
fn blocks_ahead(fetch: Duration, line: u64, reader: u64, room: u64) -> u64 {
    let mut streams = streams(1 << 40);
    let mut now = Duration::ZERO;
    for read in 0..2000 {
        // What lies ahead comes within one fetch.
        let window = streams.ahead().max(FIRST_WINDOW);
        let arriving = (window as f64 / fetch.as_secs_f64()) as u64;
        now += Duration::from_secs_f64(MIB as f64 / arriving.min(line).min(reader) as f64);
        streams.at(now, Some(fetch));
        streams.on_read(read * MIB, 1 << 20, || room);
    }
    streams.ahead() / u64::from(BLOCK)
}

#[test]
fn the_window_grows_as_far_as_the_distance_holds_the_reader_up() {
    let (near, far) = (Duration::from_millis(2), Duration::from_millis(30));
    let (slow, fast) = (200 * MIB, 1500 * MIB);
    assert_eq!(blocks_ahead(near, fast, u64::MAX, u64::MAX), 8);
    assert_eq!(blocks_ahead(far, fast, u64::MAX, u64::MAX), 22);
    assert_eq!(blocks_ahead(far, slow, u64::MAX, u64::MAX), 8);
    assert_eq!(blocks_ahead(far, fast, slow, u64::MAX), 8);
    assert_eq!(blocks_ahead(10 * far, fast, u64::MAX, u64::MAX), 32);
    assert_eq!(blocks_ahead(far, fast, u64::MAX, 64 * MIB), 8, "half of the room is the others'");
}

#[test]
fn streams_that_share_a_budget_settle_at_equal_shares() {
    const BUDGET: u64 = 128 * MIB;
    let mut handles: Vec<_> = (0..16).map(|_| streams(1 << 40)).collect();
    for read in 0..400 {
        for at in 0..handles.len() {
            let others: u64 = handles.iter().map(Streams::ahead).sum::<u64>() - handles[at].ahead();
            handles[at].on_read(read * MIB, 1 << 20, || BUDGET.saturating_sub(others));
        }
    }
    let ahead: Vec<_> = handles.iter().map(|handle| handle.ahead() / MIB).collect();
    assert!(ahead.iter().sum::<u64>() <= 128, "{ahead:?}");
    assert!(ahead.iter().all(|share| (2..=12).contains(share)), "{ahead:?}");
}

#[test]
fn what_lies_ahead_of_streams_that_stopped_is_nobodys() {
    let mut streams = streams(1 << 40);
    for pass in 0..8u64 {
        for read in 0..128 {
            streams.on_read((pass << 32) + read * MIB, 1 << 20, || u64::MAX);
        }
        assert_eq!(streams.ahead(), 32 * MIB, "pass {pass}");
    }
}

#[test]
fn reads_beyond_the_end_of_a_file_are_as_reads_at_its_end() {
    for size in [0, 50, MIB] {
        let (mut beyond, mut at_end) = (streams(size), streams(size));
        for offset in [size + 7, size + 100, size + 1, u64::MAX, size + 100, size + 4096] {
            let told = beyond.on_read(offset, 4096, || u64::MAX);
            assert_eq!(told.fetch, None, "{size} {offset}");
            assert_eq!(told, at_end.on_read(size, 4096, || u64::MAX), "{size} {offset}");
            assert_eq!(beyond.ahead(), 0);
        }
    }
}

#[test]
fn random_reads_fetch_nothing_ahead() {
    let mut streams = streams(1 << 40);
    let mut at = 12_345u64;
    for _ in 0..10_000 {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        assert_eq!(streams.on_read(at % ((1 << 40) - 4096) / 4096 * 4096, 4096, || u64::MAX), Ahead::default());
    }
}

#[test]
fn long_reads_at_random_fetch_nothing_ahead() {
    for length in [PART.into(), MIB, 2 * MIB, 4 * MIB, 700 << 10, MIB + 4096] {
        let mut streams = mounted(1 << 40);
        let mut at = 12_345u64;
        for _ in 0..1_000 {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // None begins where another one ended.
            let offset = at % ((1 << 40) - length) / (2 * length) * (2 * length);
            assert_eq!(read(&mut streams, offset, length), None, "{length}");
        }
    }
}

#[test]
fn reads_that_are_longer_than_expected_deceive_it_once() {
    let mut streams = mounted(1 << 40);
    assert!(read(&mut streams, 1 << 30, 8 * MIB).is_some());
    for at in 2..100 {
        assert_eq!(read(&mut streams, at << 30, 8 * MIB), None, "read {at}");
    }
}

#[test]
fn a_reader_of_long_reads_is_fetched_ahead_of_from_the_first_that_must_be_another() {
    for (length, first) in [(128 << 10, 1), (700 << 10, 1), (PART.into(), 8), (MIB, 4), (2 * MIB, 2), (4 * MIB, 1)] {
        let mut streams = mounted(1 << 40);
        let ahead: Vec<bool> = (0..16).map(|at| read(&mut streams, at * length, length).is_some()).collect();
        assert_eq!(ahead.iter().position(|ahead| *ahead), Some(first), "{length}: {ahead:?}");
    }
}

#[test]
fn who_waited_long_for_the_first_read_is_fetched_ahead_of_from_the_second() {
    let mut streams = mounted(1 << 40);
    assert_eq!(read(&mut streams, 0, MIB), None);
    streams.waited(Some(MIB));
    assert_eq!(streams.on_read(MIB, PART, || u64::MAX).fetch, Some(MIB + u64::from(PART)..8 * MIB));

    let mut at_random = mounted(1 << 40);
    for at in 0..10u64 {
        assert_eq!(read(&mut at_random, at << 30, MIB), None);
    }
    at_random.waited(Some((9 << 30) + MIB));
    assert_eq!(read(&mut at_random, (9 << 30) + MIB, MIB), None, "by chance");
}

/// The kernel may send the parts of a read one after the other.
#[test]
fn who_waited_long_for_parts_of_reads_at_random_is_fetched_ahead_of_once() {
    for parts_of_each in 2..=4 {
        let mut streams = mounted(1 << 40);
        let mut fetched = 0;
        for at in 0..JUMPS as u64 {
            for part in 0..parts_of_each {
                let offset = (at << 30) + part * u64::from(PART);
                streams.waited((part > 0).then_some(offset));
                let ahead = streams.on_read(offset, PART, || u64::MAX);
                fetched += ahead.fetch.map_or(0, |fetch| fetch.end - fetch.start);
            }
        }
        assert!(fetched <= (8 * MIB) << (parts_of_each - 2), "{parts_of_each} parts: {fetched}");
    }
}

#[test]
fn readers_side_by_side_who_waited_long_are_each_fetched_ahead_of_from_the_second_read() {
    let mut streams = mounted(1 << 40);
    let readers = 0..JUMPS as u64;
    for part in 0..2 {
        for reader in readers.clone() {
            let offset = (reader << 30) + part * u64::from(PART);
            streams.waited((part > 0).then_some(offset));
            let ahead = streams.on_read(offset, PART, || u64::MAX);
            assert_eq!(ahead.fetch.is_some(), part > 0, "reader {reader}, part {part}");
        }
    }
}

#[test]
fn a_stream_that_turns_out_random_is_fetched_ahead_of_no_more() {
    let mut streams = mounted(1 << 40);
    (0..64).for_each(|at| _ = read(&mut streams, at * MIB, MIB));
    let fetched = streams.ahead();
    assert_eq!(fetched, 32 * MIB);
    assert_eq!(read(&mut streams, 1 << 30, MIB), None, "elsewhere");
    // Near enough to have been reordered by the kernel, until too much was left out.
    let more = (1..40u64).filter(|at| read(&mut streams, 64 * MIB + at * 3 * MIB, MIB).is_some()).count();
    assert!(more <= 1, "{more}");
}

#[test]
fn what_one_part_ahead_means_is_one_part_also_far_away() {
    let options = PrefetchOptions { max_part_number: 1, far_part_number: 1, ..PrefetchOptions::default() };
    let mut streams = Streams::new(1 << 40, BLOCK, options);
    for read in 0..1000 {
        streams.at(Duration::from_millis(read), Some(Duration::from_millis(300)));
        streams.on_read(read * MIB, 1 << 20, || u64::MAX);
        assert!(streams.ahead() <= u64::from(BLOCK), "{}", streams.ahead());
    }
}

#[test]
fn interleaved_streams_keep_their_windows() {
    let mut streams = streams(1 << 40);
    for read in 0..100 {
        for stream in 0..4 {
            let ahead = streams.on_read((stream << 30) + read * MIB, 1 << 20, || u64::MAX);
            assert_eq!(ahead.sequential, read > 0);
        }
    }
}

#[test]
fn reads_that_the_kernel_reordered_still_continue_their_stream() {
    let mut streams = streams(1 << 30);
    let kib = 1 << 10;
    for read in 0..64 {
        streams.on_read(read * 128 * kib, 128 << 10, || u64::MAX);
    }
    for read in [65, 64, 67, 66, 68] {
        assert!(streams.on_read(read * 128 * kib, 128 << 10, || u64::MAX).sequential);
    }
}

#[test]
fn a_small_file_is_fetched_whole_at_its_first_read() {
    let options = PrefetchOptions { file_length_threshold: 10 * MIB, ..PrefetchOptions::default() };
    let mut whole = Streams::new(10 * MIB, BLOCK, options);
    assert_eq!(whole.on_read(5 * MIB, 4096, || u64::MAX).fetch, Some(0..10 * MIB));
    assert_eq!(whole.on_read(5 * MIB + 4096, 4096, || u64::MAX).fetch, None);
    let mut larger = Streams::new(10 * MIB + 1, BLOCK, options);
    assert_eq!(larger.on_read(5 * MIB, 4096, || u64::MAX).fetch, None);
}

#[test]
fn what_there_was_no_room_to_fetch_is_asked_for_again() {
    let mut streams = streams(1 << 30);
    streams.on_read(0, 1 << 20, || u64::MAX);
    let fetch = streams.on_read(MIB, 1 << 20, || u64::MAX).fetch.unwrap();
    streams.shrink(fetch.end, fetch.start + MIB);
    assert_eq!(streams.on_read(2 * MIB, 1 << 20, || u64::MAX).fetch.unwrap().start, fetch.start + MIB);
}

#[test]
fn zero_parts_turn_it_off() {
    let mut off = Streams::new(1 << 30, BLOCK, PrefetchOptions { max_part_number: 0, ..PrefetchOptions::default() });
    assert!((0..10).all(|read| off.on_read(read * MIB, 1 << 20, || u64::MAX) == Ahead::default()));
}

/// What a reader does.
#[derive(Clone, Debug)]
enum Reads {
    /// So many reads of a length, each on a slot of its own, in any order.
    AtRandom(u64, Vec<u64>),
    /// Reads of a length in order, from somewhere on.
    InOrder(u64, u64, u64),
}

fn reads() -> impl Strategy<Value = Vec<Reads>> {
    let length = || prop_oneof![Just(512 << 10), Just(MIB), Just(2 * MIB), Just(4 * MIB)];
    let slots = prop::collection::btree_set(0u64..1 << 14, 1..40);
    let at_random = (length(), slots.prop_map(|slots| slots.into_iter().collect::<Vec<_>>()).prop_shuffle());
    let in_order = (length(), 0u64..1 << 14, 1u64..40);
    prop::collection::vec(
        prop_oneof![
            at_random.prop_map(|(length, slots)| Reads::AtRandom(length, slots)),
            in_order.prop_map(|(length, from, count)| Reads::InOrder(length, from, count)),
        ],
        1..6,
    )
}

proptest! {
    #[test]
    fn it_never_fetches_beyond_the_file_nor_beyond_its_window(
        size in 1u64..1 << 34,
        reads in prop::collection::vec((0u64..1 << 34, 1u32..4 << 20, any::<bool>()), 1..200),
    ) {
        let mut streams = streams(size);
        let mut last = 0;
        for (offset, length, continues) in reads {
            let offset = if continues { last } else { offset % size };
            let ahead = streams.on_read(offset, length, || u64::MAX);
            last = (offset + u64::from(length)).min(size);
            if let Some(fetch) = ahead.fetch {
                prop_assert!(fetch.start < fetch.end && fetch.end <= size);
                prop_assert!(fetch.end <= last + SLACK + 8 * u64::from(BLOCK));
            }
        }
    }

    /// Whatever was read before, near or far: nothing is fetched ahead of a read that is not near another one, and no more lies
    /// ahead of those in order than may.
    #[test]
    fn only_reads_in_order_are_fetched_ahead_of(phases in reads(), backwards: bool, millis in 0u64..40) {
        let options = PrefetchOptions { largest_request: PART, max_part_number: 2, far_part_number: 3, ..PrefetchOptions::default() };
        let mut streams = Streams::new(1 << 40, BLOCK, options);
        let mut now = Duration::ZERO;
        let mut reached = None;
        for (phase, reads) in phases.into_iter().enumerate() {
            // Each phase has a part of the file of its own.
            let base = (phase as u64) << 37;
            let (length, offsets, is_random): (u64, Vec<u64>, _) = match reads {
                Reads::AtRandom(length, slots) => (length, slots.iter().map(|slot| base + slot * 8 * MIB).collect(), true),
                Reads::InOrder(length, from, count) => (length, (from..from + count).map(|at| base + at * length).collect(), false),
            };
            for offset in offsets {
                streams.at(now, Some(Duration::from_millis(millis)));
                streams.waited(reached);
                let mut parts: Vec<_> = parts(offset, length).collect();
                if backwards {
                    parts.reverse();
                }
                for (offset, length) in parts {
                    let ahead = streams.on_read(offset, length, || u64::MAX);
                    prop_assert!(!is_random || ahead.fetch.is_none(), "{ahead:?}");
                    prop_assert!(ahead.fetch.is_none_or(|fetch| fetch.end <= offset + u64::from(length) + SLACK + 12 * MIB));
                }
                now += Duration::from_millis(millis);
                reached = (millis >= 5).then_some(offset + length);
            }
        }
    }
}
