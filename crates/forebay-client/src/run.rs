//! Whether requests in order are the parts of one read, or the reads of a program that reads in order. Pure.
//!
//! The kernel cuts a long read into requests of its largest size (`fuse.max_read`) and sends them side by side, be it a `pread` of an
//! `O_DIRECT` file or what the page cache lacks of a buffered one. A program that reads 1 MiB here and there must not be taken for
//! one that reads on: what would be fetched ahead of it is never read. Nothing in a request says whose part it is; but
//!
//! * one that is shorter than the largest ends a read, so what begins where it ended is another one, unless it is as long as what the
//!   page cache asks for at most (`fuse.read_ahead`);
//! * what is longer than any read of a program is several. Longer than [`LONGEST_READ`], unless this handle's reader has shown that
//!   it makes longer ones: by going elsewhere after them;
//! * parts come side by side. What comes only when the answer to what lies before it was there, and had taken as long as
//!   [`LONG_WAIT`], is another read. It counts for few reads and as long as few wait ([`Waits`]): the kernel holds parts back
//!   while many do.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// The longest read that programs make which are not known to make longer ones. With fio, `cp` and data loaders it is 1 to 4 MiB, and
/// what the kernel reads around a page fault is as much (`fuse.read_ahead`).
pub(crate) const LONGEST_READ: u64 = 4 << 20;
/// Whatever is longer is not one read.
const NO_READ: u64 = 16 << 20;
/// A reader's buffer that begins within a page makes the largest request so much shorter at most.
const PAGE: u64 = 4096;
/// Within that time all parts of a read have come, on a busy machine too: an origin that is far away takes longer to answer, and one
/// that is near costs little while nothing is fetched ahead.
const LONG_WAIT: Duration = Duration::from_millis(5);
/// Reads that wait when the kernel may hold others back: it sends at least so many at once (`fuse.max_background`), unless it
/// is set to send fewer.
const FEW_WAIT: usize = 8;

/// Requests in order.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Run {
    start: u64,
    /// How many bytes they asked for.
    read: u64,
    /// How many the last one asked for.
    last: u64,
}

/// What is known of a reader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// The largest request that it makes, in bytes.
    pub(crate) largest: u64,
    /// The largest that the page cache makes for it.
    pub(crate) read_ahead: u64,
    /// The longest read that it may make.
    pub(crate) longest: u64,
    /// Whether it waited long for what lies before this request, and got it.
    pub(crate) has_waited: bool,
}

impl Run {
    /// That of one request for `start..end`.
    pub(crate) fn new(start: u64, end: u64) -> Self {
        let length = end.saturating_sub(start);
        Self { start, read: length, last: length }
    }

    /// Where the first one begins.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// How many bytes were read.
    pub(crate) fn read(&self) -> u64 {
        self.read
    }

    /// One more request for `offset..end`, after those that reached as far as `reached`. Whether that shows that a program reads in
    /// order.
    pub(crate) fn goes_on(&mut self, reached: u64, offset: u64, end: u64, known: Known) -> bool {
        // What is longer than the largest was not cut.
        let may_be_cut = (known.largest.saturating_sub(PAGE)..known.largest).contains(&(self.last.saturating_sub(1)));
        let may_go_on = may_be_cut || self.last == known.read_ahead;
        let is_another_read = offset == reached && (!may_go_on || known.has_waited);
        let length = end.saturating_sub(offset);
        // A reader that reads the same again has not got further. What came out of order may begin before the first one.
        self.start = self.start.min(offset);
        self.read = (self.read + length).min(reached.max(end) - self.start);
        self.last = length;
        is_another_read || self.read >= known.longest.saturating_add(known.largest)
    }
}

/// The longest read that a reader may make whose other runs had so many bytes before they ended.
pub(crate) fn longest_read(ended: impl Iterator<Item = u64>) -> u64 {
    ended.filter(|read| *read <= NO_READ).fold(LONGEST_READ, u64::max)
}

/// How far a reader got that waited long. Any thread may tell.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    reached: AtomicU64,
}

impl Waits {
    /// A read of `offset..end` was answered after so long.
    pub(crate) fn answered(&self, end: u64, took: Duration) {
        if took < LONG_WAIT {
            return;
        }
        let reached = self.reached.load(Ordering::Relaxed);
        // A later part of the same read may be answered first.
        if !(end..=end.saturating_add(LONGEST_READ)).contains(&reached) {
            self.reached.store(end, Ordering::Relaxed);
        }
    }

    /// Where the next read begins that it did not make before it had its answer; `None` while so many reads `wait` that this is
    /// not known.
    pub(crate) fn reached(&self, wait: &AtomicUsize) -> Option<u64> {
        (wait.load(Ordering::Relaxed) < FEW_WAIT).then(|| self.reached.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const KNOWN: Known = Known { largest: 512 * KIB, read_ahead: 4 * MIB, longest: LONGEST_READ, has_waited: false };

    /// After how many of the requests in order, each of which has a length, it shows.
    fn shows_after(lengths: &[u64], known: Known) -> Option<usize> {
        let first = *lengths.first()?;
        let (mut run, mut reached) = (Run::new(0, first), first);
        lengths.iter().skip(1).position(|length| {
            let shows = run.goes_on(reached, reached, reached + length, known);
            reached += length;
            shows
        })
    }

    #[test]
    fn a_read_of_up_to_4_mib_is_one_read_whatever_its_parts() {
        for length in [512 * KIB + 1, 700 * KIB, MIB, MIB + 4 * KIB, 2 * MIB, 4 * MIB, 4 * MIB + 4 * KIB] {
            let (whole, rest) = (length / KNOWN.largest, length % KNOWN.largest);
            let parts: Vec<u64> = (0..whole).map(|_| KNOWN.largest).chain((rest > 0).then_some(rest)).collect();
            assert_eq!(shows_after(&parts, KNOWN), None, "{length}");
            let twice = [&parts[..], &parts[..]].concat();
            let shows = shows_after(&twice, KNOWN);
            // The second one begins to show it where the first ended with less than the kernel's largest request, or was the longest.
            let is_known = rest > 0 || length == LONGEST_READ;
            assert_eq!(shows.is_some_and(|at| at + 1 >= parts.len()), is_known, "{length}: {shows:?}");
        }
    }

    #[test]
    fn small_reads_show_it_with_the_second_and_long_ones_once_they_are_longer_than_a_read() {
        assert_eq!(shows_after(&[128 * KIB; 4], KNOWN), Some(0));
        assert_eq!(shows_after(&[512 * KIB; 16], KNOWN), Some(7));
        let longer = Known { longest: longest_read([8 * MIB, 100 * MIB].into_iter()), ..KNOWN };
        assert_eq!(shows_after(&[512 * KIB; 32], longer), Some(15));
        assert_eq!(shows_after(&[512 * KIB; 4], Known { has_waited: true, ..KNOWN }), Some(0));
        let (whole, little_ahead) =
            (Known { largest: u64::from(u32::MAX), ..KNOWN }, Known { read_ahead: 128 * KIB, ..KNOWN });
        assert_eq!(shows_after(&[128 * KIB; 40], little_ahead), Some(34), "1 MiB may come so");
        assert_eq!(shows_after(&[64 * KIB; 2], little_ahead), Some(0));
        assert_eq!(shows_after(&[64 * MIB; 2], whole), Some(0), "who sends reads whole");
        assert_eq!(shows_after(&[MIB; 2], KNOWN), Some(0), "who sends some whole that a kernel would have cut");
    }

    #[test]
    fn whoever_reads_the_same_again_and_again_reads_nothing_in_order() {
        let mut run = Run::new(0, 512 * KIB);
        assert!((0..100).all(|_| !run.goes_on(512 * KIB, 0, 512 * KIB, KNOWN)));
        assert_eq!(run.read(), 512 * KIB);
    }

    #[test]
    fn parts_in_any_order_are_one_read_and_show_nothing() {
        // As eight threads may take the parts of 4 MiB.
        let order = [3u64, 1, 2, 0, 5, 4, 7, 6];
        let part = KNOWN.largest;
        let mut run = Run::new(order[0] * part, (order[0] + 1) * part);
        let mut reached = (order[0] + 1) * part;
        for at in &order[1..] {
            assert!(!run.goes_on(reached, at * part, (at + 1) * part, KNOWN));
            reached = reached.max((at + 1) * part);
        }
        assert_eq!(run.read(), 4 * MIB);
    }

    #[test]
    fn who_waited_long_reached_the_end_of_the_last_part_whichever_came_first() {
        let (waits, few, many) = (Waits::default(), AtomicUsize::new(1), AtomicUsize::new(FEW_WAIT));
        waits.answered(MIB, LONG_WAIT);
        waits.answered(512 * KIB, LONG_WAIT);
        assert_eq!((waits.reached(&few), waits.reached(&many)), (Some(MIB), None));
        waits.answered(100 * MIB, LONG_WAIT / 2);
        assert_eq!(waits.reached(&few), Some(MIB), "it came soon");
        waits.answered(100 * MIB, LONG_WAIT);
        waits.answered(2 * MIB, LONG_WAIT);
        assert_eq!(waits.reached(&few), Some(2 * MIB), "a read elsewhere");
    }
}
