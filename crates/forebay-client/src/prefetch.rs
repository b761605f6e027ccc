//! What to fetch ahead of a reader: a state machine per handle. Pure.
//!
//! A handle may carry several readers at once (threads of a data loader, tensors of one file), so it follows a few
//! *streams*. A read that starts near where a stream ended continues it; near, because the kernel sends the parts of one
//! read-ahead window out of order. A continued stream earns a window that doubles from [`FIRST_WINDOW`] up to
//! `max_part_number` blocks, and is fetched that far ahead. A read that continues nothing takes the place of the stream
//! that was idle longest and fetches nothing ahead, so random access costs nothing.
//!
//! Where a fetch takes long, as from an object store that is tens of milliseconds away, that many blocks are less than
//! what is read meanwhile. There the window grows further, to [`HEADWAY`] times what the stream reads while one fetch
//! takes place, and up to [`FARTHEST`] times as many blocks: a reader that is held up by the distance alone gets faster with
//! each step, until it is held up by something else. The shortest fetch is what counts, since a longer one has waited for
//! others, and more of them would only make it wait longer.
//!
//! What all streams of a client have fetched ahead is bounded by a *budget*, so that they do not evict each other's
//! bytes before they are read. Each may go as far ahead as half of what the others leave: with n streams that settles
//! at budget / (n + 1) each, whoever came first. A stream that has stopped while others of its handle went on, as each does
//! when its reader goes back to the beginning, holds nothing of it any more.

use std::ops::Range;
use std::time::Duration;

/// Streams followed per handle. Eight is what a torch loader with its default prefetch factor keeps in flight.
pub(crate) const STREAMS: usize = 8;
/// What the second sequential read fetches ahead: two of the largest reads that FUSE makes.
const FIRST_WINDOW: u64 = 2 << 20;
/// How far from its end a read may start and still continue a stream, ahead or behind: the kernel's read-ahead window.
pub(crate) const SLACK: u64 = 4 << 20;
/// The same while it is not known to be a stream: small reads that jump about within the slack are none, it must move by what was
/// read.
const FIRST_SLACK: u64 = 64 << 10;
/// A stream that did not move while its handle told of so many reads has stopped: several rounds of as many readers as are followed.
const STOPPED: u64 = 64;
/// Nothing is fetched ahead for less than this, so that small sequential reads do not make a request each.
pub(crate) const MIN_STEP: u64 = 512 << 10;
/// How much more than what is read while a fetch takes place is fetched ahead: with less, a stream that is held up by the
/// distance would never show that it could be faster.
const HEADWAY: u64 = 2;
/// How many times its usual window a stream is fetched ahead at most.
const FARTHEST: u64 = 4;

/// How far ahead to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefetchOptions {
    /// Blocks ahead of each stream, up to four times as many where each takes long; 0 turns prefetching off.
    pub max_part_number: u32,
    /// Files up to this many bytes are fetched whole at their first read; 0 turns that off.
    pub file_length_threshold: u64,
}

impl Default for PrefetchOptions {
    fn default() -> Self {
        Self { max_part_number: 8, file_length_threshold: 0 }
    }
}

/// What a read tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ahead {
    /// Whether the read continues a stream.
    pub sequential: bool,
    /// What to fetch ahead, in bytes of the file.
    pub fetch: Option<Range<u64>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// The furthest that a read reached.
    end: u64,
    /// The furthest that was fetched ahead.
    fetched: u64,
    /// How far ahead to fetch.
    window: u64,
    /// When it last moved, in reads of this handle. 0: never used.
    last_used: u64,
    /// As long as it ends before that, reads that continue it exactly need not be told of. 0 without a window.
    quiet_until: u64,
    /// Where it was when its speed was last looked at, and when that was.
    mark: (u64, Duration),
    /// Bytes a second up to there.
    speed: u64,
}

impl Stream {
    fn new(end: u64, last_used: u64, now: Duration) -> Self {
        Self { end, fetched: end, last_used, mark: (end, now), ..Self::default() }
    }

    /// Looks at its speed once it has read as much as lies ahead of it: what arrives comes in bursts.
    fn measure(&mut self, now: Duration) {
        let (read, took) = (self.end.saturating_sub(self.mark.0), now.saturating_sub(self.mark.1));
        if read >= self.window.max(FIRST_WINDOW) && !took.is_zero() {
            self.speed = (u128::from(read) * 1_000_000 / took.as_micros().max(1)).try_into().unwrap_or(u64::MAX);
            self.mark = (self.end, now);
        }
    }

    /// How many bytes are to be ahead of it so that fetches that take so long do not hold it up.
    fn headway(&self, fetch: Duration) -> u64 {
        let bytes = u128::from(self.speed) * u128::from(HEADWAY) * fetch.as_micros() / 1_000_000;
        bytes.try_into().unwrap_or(u64::MAX)
    }

    /// A long window is fetched block by block, so that whole blocks are asked for; so is a shorter one that reaches far enough while
    /// it has a block less.
    fn goes_by_blocks(&self, block_size: u64, fetch: Duration) -> bool {
        let headway = if fetch.is_zero() { block_size } else { self.headway(fetch).clamp(MIN_STEP, block_size) };
        self.speed > 0 && self.window >= block_size + headway || self.window >= 2 * block_size
    }
}

/// Whether a read of `offset..end` may continue one that ended at `ended` and continued nothing itself.
pub(crate) fn is_next_to(ended: u64, offset: u64, end: u64) -> bool {
    ended.abs_diff(offset) <= end.saturating_sub(offset).max(FIRST_SLACK)
}

/// The streams of one handle.
#[derive(Debug)]
pub struct Streams {
    options: PrefetchOptions,
    size: u64,
    block_size: u64,
    reads: u64,
    streams: [Stream; STREAMS],
    now: Duration,
    /// The shortest time that a fetch takes, if that is known.
    fetch: Duration,
}

impl Streams {
    /// The streams of a handle on a file of `size` bytes in blocks of `block_size`.
    #[must_use]
    pub fn new(size: u64, block_size: u32, options: PrefetchOptions) -> Self {
        let streams = [Stream::default(); STREAMS];
        let block_size = u64::from(block_size);
        Self { options, size, block_size, reads: 0, streams, now: Duration::ZERO, fetch: Duration::ZERO }
    }

    /// What time it is, counted from whenever, and how long the shortest fetch takes: for the reads that follow.
    pub fn at(&mut self, now: Duration, fetch: Option<Duration>) {
        (self.now, self.fetch) = (now, fetch.unwrap_or_default());
    }

    /// How many bytes have been fetched ahead of the readers and not been read: of streams that have not stopped.
    #[must_use]
    pub fn ahead(&self) -> u64 {
        let moves = |stream: &&Stream| stream.last_used + STOPPED > self.reads;
        self.streams.iter().filter(moves).map(|stream| stream.fetched.saturating_sub(stream.end)).sum()
    }

    /// A read of `length` bytes at `offset` has come; the other handles' streams leave `room` bytes to be ahead by.
    pub fn on_read(&mut self, offset: u64, length: u32, room: u64) -> Ahead {
        self.reads += 1;
        let end = offset.saturating_add(u64::from(length)).min(self.size);
        let usual = u64::from(self.options.max_part_number) * self.block_size;
        if usual == 0 {
            return Ahead::default();
        }
        let share = (room / 2).max(FIRST_WINDOW);
        if self.reads == 1 && self.size <= self.options.file_length_threshold {
            let (fetched, window) = (self.size, usual.min(share));
            self.streams[0] = Stream { fetched, window, quiet_until: end, ..Stream::new(end, self.reads, self.now) };
            return Ahead { sequential: true, fetch: (end < self.size).then_some(0..self.size) };
        }
        let (size, block_size, reads) = (self.size, self.block_size, self.reads);
        let (now, fetch) = (self.now, self.fetch);
        let near = |stream: &&mut Stream| {
            stream.last_used > 0
                && offset <= stream.end.saturating_add(SLACK)
                && offset.saturating_add(SLACK) >= stream.end
        };
        match self.streams.iter_mut().filter(near).min_by_key(|stream| stream.end.abs_diff(offset)) {
            Some(stream) if offset.abs_diff(stream.end) <= u64::from(length).max(FIRST_SLACK) || stream.window > 0 => {
                stream.last_used = reads;
                let exact = offset == stream.end;
                stream.end = stream.end.max(end);
                if !exact && stream.window == 0 {
                    return Ahead::default();
                }
                stream.measure(now);
                let max_window = stream.headway(fetch).clamp(usual, usual * FARTHEST).min(share);
                stream.window = (stream.window * 2).clamp(FIRST_WINDOW.min(max_window), max_window);
                let from = stream.fetched.max(stream.end);
                let reach = stream.end.saturating_add(stream.window).min(size);
                let by_blocks = stream.goes_by_blocks(block_size, fetch) && reach < size;
                let (to, step) =
                    if by_blocks { (reach / block_size * block_size, 1) } else { (reach, MIN_STEP.min(stream.window)) };
                let worth_it = to > from && (to - from >= step || to == size);
                if worth_it {
                    stream.fetched = to;
                }
                let is_full = stream.window == max_window;
                stream.quiet_until = if is_full { quiet_until(stream, size, block_size, fetch) } else { stream.end };
                Ahead { sequential: true, fetch: worth_it.then_some(from..to) }
            }
            _ => {
                self.begin(end);
                Ahead::default()
            }
        }
    }

    /// A read that ended at `end` continued nothing; the next one may continue it. It takes the place of the stream that was idle
    /// longest.
    pub(crate) fn begin(&mut self, end: u64) {
        if let Some(idle) = self.streams.iter_mut().min_by_key(|stream| stream.last_used) {
            *idle = Stream::new(end, self.reads.max(1), self.now);
        }
    }

    /// Streams that were quiet have moved: `end` says where the stream of a number ends now, if anywhere.
    pub(crate) fn moved(&mut self, end: impl Fn(usize) -> Option<u64>) {
        for (at, stream) in self.streams.iter_mut().enumerate().filter(|(_, stream)| stream.last_used > 0) {
            let end = end(at).unwrap_or(0);
            if end > stream.end {
                (stream.end, stream.last_used) = (end, self.reads);
            }
        }
    }

    /// Where each stream ends, and before which end it need not be told of reads that continue it exactly; 0 where it has no
    /// window.
    pub(crate) fn quiet(&self) -> impl Iterator<Item = Option<(u64, u64)>> {
        self.streams.iter().map(|stream| (stream.last_used > 0).then_some((stream.end, stream.quiet_until)))
    }

    /// Whether the first read may fetch the whole file.
    pub(crate) fn may_fetch_whole(&self) -> bool {
        self.size <= self.options.file_length_threshold
    }

    /// What was to be fetched up to `wanted` was only fetched up to `reached`: the next read of that stream asks again.
    pub fn shrink(&mut self, wanted: u64, reached: u64) {
        for stream in self.streams.iter_mut().filter(|stream| stream.fetched == wanted) {
            stream.fetched = reached;
            stream.quiet_until = stream.quiet_until.min(stream.end);
        }
    }
}

/// Before which end nothing is fetched ahead of a stream whose window stays as it is. No further away than the smallest step: how
/// far it is ahead counts against the others.
fn quiet_until(stream: &Stream, size: u64, block_size: u64, fetch: Duration) -> u64 {
    let Stream { end, fetched, window, .. } = *stream;
    let step = end.saturating_add(MIN_STEP);
    if fetched >= size {
        return step;
    }
    // As in `Streams::on_read`.
    let by_blocks = stream.goes_by_blocks(block_size, fetch);
    let next = if by_blocks { (fetched / block_size + 1) * block_size } else { fetched + MIN_STEP.min(window) };
    next.min(size).saturating_sub(window).min(step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const BLOCK: u32 = 4 << 20;

    fn streams(size: u64) -> Streams {
        Streams::new(size, BLOCK, PrefetchOptions::default())
    }

    #[test]
    fn a_sequential_reader_earns_a_window_of_eight_blocks() {
        let mut streams = streams(1 << 30);
        assert_eq!(streams.on_read(0, 1 << 20, u64::MAX), Ahead::default());
        let second = streams.on_read(MIB, 1 << 20, u64::MAX);
        assert_eq!(second, Ahead { sequential: true, fetch: Some(2 * MIB..4 * MIB) });
        let mut fetched = 4 * MIB;
        for read in 2..200 {
            let ahead = streams.on_read(read * MIB, 1 << 20, u64::MAX);
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
            streams.on_read(read * MIB, 1 << 20, room);
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
        assert_eq!(blocks_ahead(10 * far, fast, u64::MAX, u64::MAX), 8 * FARTHEST);
        assert_eq!(blocks_ahead(far, fast, u64::MAX, 64 * MIB), 8, "half of the room is the others'");
    }

    #[test]
    fn streams_that_share_a_budget_settle_at_equal_shares() {
        const BUDGET: u64 = 128 * MIB;
        let mut handles: Vec<_> = (0..16).map(|_| streams(1 << 40)).collect();
        for read in 0..400 {
            for at in 0..handles.len() {
                let others: u64 = handles.iter().map(Streams::ahead).sum::<u64>() - handles[at].ahead();
                handles[at].on_read(read * MIB, 1 << 20, BUDGET.saturating_sub(others));
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
                streams.on_read((pass << 32) + read * MIB, 1 << 20, u64::MAX);
            }
            assert_eq!(streams.ahead(), 32 * MIB, "pass {pass}");
        }
    }

    #[test]
    fn random_reads_fetch_nothing_ahead() {
        let mut streams = streams(1 << 40);
        let mut at = 12_345u64;
        for _ in 0..10_000 {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            assert_eq!(streams.on_read(at % ((1 << 40) - 4096) / 4096 * 4096, 4096, u64::MAX), Ahead::default());
        }
    }

    #[test]
    fn interleaved_streams_keep_their_windows() {
        let mut streams = streams(1 << 40);
        for read in 0..100 {
            for stream in 0..4 {
                let ahead = streams.on_read((stream << 30) + read * MIB, 1 << 20, u64::MAX);
                assert_eq!(ahead.sequential, read > 0);
            }
        }
    }

    #[test]
    fn reads_that_the_kernel_reordered_still_continue_their_stream() {
        let mut streams = streams(1 << 30);
        let kib = 1 << 10;
        for read in 0..64 {
            streams.on_read(read * 128 * kib, 128 << 10, u64::MAX);
        }
        for read in [65, 64, 67, 66, 68] {
            assert!(streams.on_read(read * 128 * kib, 128 << 10, u64::MAX).sequential);
        }
    }

    #[test]
    fn a_small_file_is_fetched_whole_at_its_first_read() {
        let options = PrefetchOptions { file_length_threshold: 10 * MIB, ..PrefetchOptions::default() };
        let mut whole = Streams::new(10 * MIB, BLOCK, options);
        assert_eq!(whole.on_read(5 * MIB, 4096, u64::MAX).fetch, Some(0..10 * MIB));
        assert_eq!(whole.on_read(5 * MIB + 4096, 4096, u64::MAX).fetch, None);
        let mut larger = Streams::new(10 * MIB + 1, BLOCK, options);
        assert_eq!(larger.on_read(5 * MIB, 4096, u64::MAX).fetch, None);
    }

    #[test]
    fn what_there_was_no_room_to_fetch_is_asked_for_again() {
        let mut streams = streams(1 << 30);
        streams.on_read(0, 1 << 20, u64::MAX);
        let fetch = streams.on_read(MIB, 1 << 20, u64::MAX).fetch.unwrap();
        streams.shrink(fetch.end, fetch.start + MIB);
        assert_eq!(streams.on_read(2 * MIB, 1 << 20, u64::MAX).fetch.unwrap().start, fetch.start + MIB);
    }

    #[test]
    fn zero_parts_turn_it_off() {
        let mut off =
            Streams::new(1 << 30, BLOCK, PrefetchOptions { max_part_number: 0, ..PrefetchOptions::default() });
        assert!((0..10).all(|read| off.on_read(read * MIB, 1 << 20, u64::MAX) == Ahead::default()));
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
                let ahead = streams.on_read(offset, length, u64::MAX);
                last = (offset + u64::from(length)).min(size);
                if let Some(fetch) = ahead.fetch {
                    prop_assert!(fetch.start < fetch.end && fetch.end <= size);
                    prop_assert!(fetch.end <= last + SLACK + 8 * u64::from(BLOCK));
                }
            }
        }
    }
}
