//! What to fetch ahead of a reader: a state machine per handle. Pure.
//!
//! A handle may carry several readers at once (threads of a data loader, tensors of one file), so it follows a few
//! *streams*. A read that starts near where a stream ended continues it; near, because the kernel sends the parts of one
//! read-ahead window out of order. A stream that has shown that it is one ([`crate::run`]) earns a window that doubles from
//! [`FIRST_WINDOW`], or as much as it has read, up to `max_part_number` blocks, and is fetched that far ahead. A read that
//! continues nothing takes the place of the stream that was idle longest and fetches nothing ahead, so random access costs
//! nothing. A stream whose reader leaves out more than [`SLACK`] of what it passes is none any more.
//!
//! Where a fetch takes long, as from an object store that is tens of milliseconds away, that many blocks are less than
//! what is read meanwhile. There the window grows further, to [`HEADWAY`] times what the stream reads while one fetch
//! takes place, and up to `far_part_number` blocks: a reader that is held up by the distance alone gets faster with
//! each step, until it is held up by something else. The shortest fetch is what counts, since a longer one has waited for
//! others, and more of them would only make it wait longer.
//!
//! What all streams of a client have fetched ahead is bounded by a *budget*, so that they do not evict each other's
//! bytes before they are read. Each may go as far ahead as half of what the others leave: with n streams that settles
//! at budget / (n + 1) each, whichever came first. A stream that has stopped while others of its handle went on, as each does
//! when its reader goes back to the beginning, holds nothing of it any more.

use std::ops::Range;
use std::time::Duration;

use crate::run::{Known, LONGEST_READ, Run, longest_read};

/// Streams followed per handle. Eight is what a torch loader with its default prefetch factor keeps in flight.
pub(crate) const STREAMS: usize = 8;
/// What the second sequential read fetches ahead: two of the largest reads that FUSE makes.
const FIRST_WINDOW: u64 = 2 << 20;
/// How many times as much it is when the first one had to wait long: so much less is waited for when it begins.
const FIRST_FAR: u64 = 4;
/// A handle that had more reads than that which continued nothing has a reader that goes hither and thither: that it waited for
/// what lies before a read says nothing of it. Nor does it once such a read was not followed by as much as was fetched ahead of
/// it: the kernel sent the parts of one read one after the other.
const JUMPS: usize = STREAMS / 2;
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

/// How far ahead to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefetchOptions {
    /// Blocks ahead of each stream; 0 turns prefetching off.
    pub max_part_number: u32,
    /// The same where each takes long, if that is more.
    pub far_part_number: u32,
    /// The largest request that a read comes in, in bytes: longer ones come in such parts. [`u32::MAX`]: each read
    /// comes whole.
    pub largest_request: u32,
    /// The largest request that the kernel's page cache makes, if that is less: a request of exactly that many bytes may be a part.
    pub read_ahead: u32,
    /// Files up to this many bytes are fetched whole at their first read; 0 turns that off.
    pub file_length_threshold: u64,
    /// Whether a model (`.safetensors`) that is touched all over is fetched whole.
    pub models: bool,
}

impl Default for PrefetchOptions {
    fn default() -> Self {
        Self {
            max_part_number: 8,
            far_part_number: 32,
            largest_request: u32::MAX,
            read_ahead: u32::MAX,
            file_length_threshold: 0,
            models: true,
        }
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
    /// The requests that it began with, until they have shown that it is a stream.
    run: Run,
    /// The read of this handle that it began with.
    began: u64,
    /// The furthest that a read reached.
    end: u64,
    /// How much of what it passed was not read.
    skipped: u64,
    /// The furthest that was fetched ahead.
    fetched: u64,
    /// How far ahead to fetch; 0 while it is not known to be a stream.
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
    fn new(start: u64, end: u64, last_used: u64, now: Duration) -> Self {
        let run = Run::new(start, end);
        Self { run, began: last_used, end, fetched: end, last_used, mark: (end, now), ..Self::default() }
    }

    /// How much was read in order.
    fn length(&self) -> u64 {
        if self.window == 0 { self.run.read() } else { self.end.saturating_sub(self.run.start()) }
    }

    /// More was fetched ahead of it than it read: if its reader has left it, in vain.
    fn was_deceived(&self) -> bool {
        self.fetched.saturating_sub(self.end) > self.length()
    }

    /// A read of `offset..end` has come near its end. Whether it may still be a stream.
    fn passes(&mut self, offset: u64, end: u64) -> bool {
        let left_out = offset.saturating_sub(self.end);
        let read = if left_out == 0 { end.saturating_sub(offset) } else { 0 };
        self.skipped = (self.skipped + left_out).saturating_sub(read);
        self.skipped <= SLACK
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

/// How far from the end of one that continued nothing itself a read of `offset..end` may begin and continue it.
#[inline]
pub(crate) fn reach(offset: u64, end: u64) -> u64 {
    end.saturating_sub(offset).max(FIRST_SLACK)
}

/// Whether `offset` is no further than `reach` from where a read ended: their distance in one comparison, as long as none of them is
/// within `reach` of 2^64.
#[inline]
pub(crate) fn is_near(ended: u64, offset: u64, reach: u64) -> bool {
    offset.wrapping_sub(ended).wrapping_add(reach) <= 2 * reach
}

/// The streams of one handle.
#[derive(Debug)]
pub struct Streams {
    options: PrefetchOptions,
    size: u64,
    block_size: u64,
    reads: u64,
    /// Those that continued nothing.
    jumps: usize,
    /// Where the reader goes on that waited long for what lies before.
    waited: Option<u64>,
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
        let (now, fetch) = (Duration::ZERO, Duration::ZERO);
        Self { options, size, block_size, reads: 0, jumps: 0, waited: None, streams, now, fetch }
    }

    /// What time it is, counted from whenever, and how long the shortest fetch takes: for the reads that follow.
    pub fn at(&mut self, now: Duration, fetch: Option<Duration>) {
        (self.now, self.fetch) = (now, fetch.unwrap_or_default());
    }

    /// Where a reader goes on that waited long for what lies before ([`crate::run::Waits`]): for the read that follows.
    pub(crate) fn waited(&mut self, waited: Option<u64>) {
        self.waited = waited;
    }

    /// How many bytes have been fetched ahead of the readers and not been read: of streams that have not stopped.
    #[must_use]
    pub fn ahead(&self) -> u64 {
        let moves = |stream: &&Stream| stream.last_used + STOPPED > self.reads;
        self.streams.iter().filter(moves).map(|stream| stream.fetched.saturating_sub(stream.end)).sum()
    }

    /// A read of `length` bytes at `offset` has come; the other handles' streams leave `room` bytes to be ahead by, which is looked at
    /// only for reads that go on.
    pub fn on_read(&mut self, offset: u64, length: u32, room: impl FnOnce() -> u64) -> Ahead {
        self.reads += 1;
        let end = offset.saturating_add(u64::from(length)).min(self.size);
        // What begins beyond the end of the file reads nothing, as what begins there.
        let offset = offset.min(end);
        if self.options.max_part_number == 0 {
            return Ahead::default();
        }
        let share = || (room() / 2).max(FIRST_WINDOW);
        if self.reads == 1 && self.size <= self.options.file_length_threshold {
            let usual = u64::from(self.options.max_part_number) * self.block_size;
            let (fetched, window) = (self.size, usual.min(share()));
            let stream = Stream::new(offset, end, self.reads, self.now);
            self.streams[0] = Stream { fetched, window, quiet_until: end, ..stream };
            return Ahead { sequential: true, fetch: (end < self.size).then_some(0..self.size) };
        }
        let near = |stream: &Stream| {
            let distance = stream.end.abs_diff(offset);
            let reach = if stream.window > 0 { SLACK } else { u64::from(length).max(FIRST_SLACK) };
            stream.last_used > 0 && distance <= reach
        };
        let nearest = self.streams.iter().enumerate().filter(|(_, stream)| near(stream));
        let Some((at, _)) = nearest.min_by_key(|(_, stream)| stream.end.abs_diff(offset)) else {
            self.jumps += 1;
            self.begin(offset, end);
            return Ahead::default();
        };
        self.go_on(at, offset, end, share)
    }

    /// A read of `offset..end` has come near the end of stream `at`, which may be ahead by `share` bytes.
    fn go_on(&mut self, at: usize, offset: u64, end: u64, share: impl FnOnce() -> u64) -> Ahead {
        let known = self.known(at, offset, end);
        let (size, block_size, now, fetch) = (self.size, self.block_size, self.now, self.fetch);
        let [usual, far] = [self.options.max_part_number, self.options.far_part_number].map(u64::from);
        let (usual, far) = (usual * block_size, far.max(usual) * block_size);
        let stream = &mut self.streams[at];
        let (exact, reached) = (offset == stream.end, stream.end);
        let is_stream = match stream.window {
            0 => stream.run.goes_on(reached, offset, end, known),
            _ => stream.passes(offset, end),
        };
        stream.last_used = self.reads;
        stream.end = reached.max(end);
        if !is_stream {
            if stream.window > 0 {
                *stream = Stream::new(offset, end, self.reads, now);
            }
            return Ahead::default();
        }
        stream.measure(now);
        let max_window = stream.headway(fetch).clamp(usual, far).min(share());
        let window = match stream.window {
            0 if known.has_waited => FIRST_WINDOW * FIRST_FAR,
            0 => stream.run.read(),
            window if exact => window * 2,
            window => window,
        };
        stream.window = window.clamp(FIRST_WINDOW.min(max_window), max_window);
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

    /// What is known of the reader of a stream, before its read of `offset..end`.
    fn known(&self, at: usize, offset: u64, end: u64) -> Known {
        let (began, read) = self.streams.get(at).map_or((0, 0), |stream| (stream.began, stream.run.read()));
        // Those that moved since it began stand for readers of their own.
        let left = || {
            let others = self.streams.iter().enumerate().filter(move |(other, _)| *other != at);
            others.map(|(_, other)| other).filter(move |other| (1..=began).contains(&other.last_used))
        };
        // A reader that has not read as much as any read may be long need not be compared with them.
        let is_short = read + end.saturating_sub(offset) < LONGEST_READ;
        Known {
            largest: u64::from(self.options.largest_request),
            read_ahead: u64::from(self.options.read_ahead),
            longest: if is_short { LONGEST_READ } else { longest_read(left().map(Stream::length)) },
            has_waited: self.jumps <= JUMPS && self.waited == Some(offset) && !left().any(Stream::was_deceived),
        }
    }

    /// A read of `start..end` continued nothing; the next one may continue it. It takes the place of the stream that was idle
    /// longest.
    pub(crate) fn begin(&mut self, start: u64, end: u64) {
        if let Some(idle) = self.streams.iter_mut().min_by_key(|stream| stream.last_used) {
            *idle = Stream::new(start, end, self.reads.max(1), self.now);
        }
    }

    /// So many reads continued nothing.
    pub(crate) fn jumped(&mut self, jumps: usize) {
        self.jumps = jumps;
    }

    /// Streams that were quiet have moved: `end` says where the stream of a number ends now, if anywhere.
    pub(crate) fn moved(&mut self, end: impl Fn(usize) -> Option<u64>) {
        for (at, stream) in self.streams.iter_mut().enumerate().filter(|(_, stream)| stream.last_used > 0) {
            let end = end(at).unwrap_or(0);
            if end > stream.end {
                stream.skipped = stream.skipped.saturating_sub(end - stream.end);
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
mod tests;
