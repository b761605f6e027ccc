//! Which files are worth a whole copy. Pure.
//!
//! Only opens tell: what the page cache serves the daemon never sees, and what is passed through it does not see either. So
//! reuse is the number of opens, and an open counts for half after [`HALF_LIFE`]. What a copy saves is the bytes that will be
//! read from it, which is its opens times its size; per byte of room that is its opens, whatever its size. That is all its
//! [worth](Policy::opens).
//!
//! A scan opens everything once. So one open is enough only where the configuration says so
//! (`client.local.first_open_size`), and then it does not drive out what was opened oftener lately. The table is
//! bounded: when it is full, its colder half is forgotten.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use forebay_types::FileId;

use crate::file::Reading;

pub(crate) const HALF_LIFE: Duration = Duration::from_secs(600);
/// Files that are told apart, at some 64 bytes each.
pub(crate) const MAX_COUNTED: usize = 65_536;
/// Below the number of opens that makes a file worth it, because opens fade between the first and the last of them: with two
/// opens, exactly those within a half life are enough.
const FADED: f64 = 0.5;
/// A file goes for another only when it has fewer than this share of the other's opens. Two files that are opened as often as
/// each other, and of which one fits, would otherwise be fetched again and again.
const CLEARLY_LESS: f64 = 0.75;

/// Files below this are small. They are not filled while they are read for the first time: by then they have been read. And whoever
/// shares its memory with them has no use for their pages, so they are in it twice.
pub const SMALL_FILE: u64 = 1 << 20;
/// So much of a file from its start, or an eighth of it, makes a stream.
const STREAMED: u64 = 8 << 20;

/// What makes a file worth it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// All the room that there is.
    pub(crate) size: u64,
    /// Larger files are never worth it.
    pub(crate) max_file_size: u64,
    /// So many opens are enough.
    pub(crate) min_opens: u32,
    /// So many are for a [small](SMALL_FILE) file, for which nothing goes; `None`: it is like any other.
    pub(crate) small_min_opens: Option<u32>,
    /// Up to this size the first open is.
    pub(crate) first_open_size: u64,
}

/// What is thought of a file at an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Worth {
    /// Too large, or empty.
    Never,
    /// Not now.
    No,
    /// If there is room for it, but nothing goes for it.
    IfRoom,
    /// It may drive out what is worth less.
    Yes,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    opens: f64,
    /// Whether the last handle read most of it in order.
    read_through: bool,
    /// When `opens` was right.
    at: Instant,
}

impl Count {
    fn faded(&self, now: Instant) -> f64 {
        let age = now.saturating_duration_since(self.at);
        self.opens * (-age.as_secs_f64() / HALF_LIFE.as_secs_f64()).exp2()
    }
}

/// The opens of all files, and what follows from them.
#[derive(Debug)]
pub(crate) struct Policy {
    rules: Rules,
    counts: HashMap<FileId, Count>,
}

impl Policy {
    pub(crate) fn new(rules: Rules) -> Self {
        Self { rules, counts: HashMap::new() }
    }

    /// A file of `size` bytes is opened.
    pub(crate) fn opened(&mut self, file: FileId, size: u64, now: Instant) -> Worth {
        let before = self.counts.get(&file).copied();
        let opens = before.map_or(0.0, |count| count.faded(now)) + 1.0;
        self.note(file, Count { opens, read_through: before.is_some_and(|count| count.read_through), at: now }, now);
        let rules = &self.rules;
        if size == 0 || size > rules.size {
            return Worth::Never;
        }
        if size <= rules.first_open_size {
            return Worth::Yes;
        }
        // A file that leaves no room for any other has to be asked for.
        if size > rules.max_file_size || size > rules.size / 2 {
            return Worth::Never;
        }
        if let Some(enough) = rules.small_min_opens.filter(|_| size < SMALL_FILE) {
            return if opens >= f64::from(enough) - FADED { Worth::IfRoom } else { Worth::No };
        }
        if opens >= f64::from(rules.min_opens) - FADED {
            return Worth::Yes;
        }
        if before.is_some_and(|count| count.read_through) { Worth::IfRoom } else { Worth::No }
    }

    /// A handle of it was closed.
    pub(crate) fn closed(&mut self, file: FileId, size: u64, reading: Reading) {
        if let Some(count) = self.counts.get_mut(&file) {
            count.read_through = reading.bytes >= size.div_ceil(2) && reading.sequential >= reading.bytes / 2;
        }
    }

    /// Whether a handle that has read so much of a file of `size` bytes looks as if it were to read all of it.
    ///
    /// A reader that began at the start and has come some way goes on, mostly. One that maps the file and faults here and there has it
    /// fetched by pieces otherwise, each of which it waits for. Who reads at random places asks for no more than it wants.
    pub(crate) fn is_read_whole(&self, size: u64, reading: Reading) -> bool {
        let Rules { size: room, max_file_size, .. } = self.rules;
        if size < SMALL_FILE || size > max_file_size || size > room / 2 {
            return false;
        }
        // What it left out on the way is no more than what it read.
        let is_dense = reading.bytes >= reading.from_start / 2;
        reading.is_mapped || (is_dense && reading.from_start >= (size / 8).min(STREAMED))
    }

    /// How often it was opened lately.
    pub(crate) fn opens(&self, file: &FileId, now: Instant) -> f64 {
        self.counts.get(file).map_or(0.0, |count| count.faded(now))
    }

    /// Whether a file with the first number of opens goes for one with the second.
    pub(crate) fn yields(resident: f64, candidate: f64) -> bool {
        resident < candidate * CLEARLY_LESS
    }

    /// Whether it fits, when a job or a command asks for it.
    pub(crate) fn is_possible(&self, size: u64) -> bool {
        size > 0 && size <= self.rules.size
    }

    /// Whether an open waits for a file of this size.
    pub(crate) fn waits(&self, size: u64) -> bool {
        size <= self.rules.first_open_size
    }

    /// No program will open it any more.
    pub(crate) fn forget(&mut self, file: &FileId) {
        self.counts.remove(file);
    }

    fn note(&mut self, file: FileId, count: Count, now: Instant) {
        if self.counts.len() >= MAX_COUNTED && !self.counts.contains_key(&file) {
            let mut opens: Vec<f64> = self.counts.values().map(|count| count.faded(now)).collect();
            let middle = opens.len() / 2;
            let (_, median, _) = opens.select_nth_unstable_by(middle, f64::total_cmp);
            let median = *median;
            self.counts.retain(|_, count| count.faded(now) > median);
        }
        self.counts.insert(file, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn rules() -> Rules {
        Rules { size: 100 * MIB, max_file_size: 60 * MIB, min_opens: 2, small_min_opens: None, first_open_size: 0 }
    }

    fn id(number: u32) -> FileId {
        FileId(u128::from(number).to_be_bytes())
    }

    #[test]
    fn two_opens_within_a_half_life_make_a_file_worth_it() {
        let (mut policy, start) = (Policy::new(rules()), Instant::now());
        assert_eq!(policy.opened(id(1), MIB, start), Worth::No);
        assert_eq!(policy.opened(id(1), MIB, start + HALF_LIFE), Worth::Yes);
        assert_eq!(policy.opened(id(2), MIB, start), Worth::No);
        assert_eq!(policy.opened(id(2), MIB, start + HALF_LIFE + Duration::from_secs(1)), Worth::No);
    }

    #[test]
    fn a_file_that_is_empty_or_would_take_most_of_the_room_is_never_worth_it() {
        let (mut policy, now) = (Policy::new(Rules { min_opens: 1, ..rules() }), Instant::now());
        for (size, worth) in
            [(0, Worth::Never), (50 * MIB, Worth::Yes), (50 * MIB + 1, Worth::Never), (200 * MIB, Worth::Never)]
        {
            assert_eq!(policy.opened(id(1), size, now), worth, "{size}");
        }
        let mut policy = Policy::new(Rules { first_open_size: 80 * MIB, ..rules() });
        assert_eq!(policy.opened(id(1), 80 * MIB, now), Worth::Yes);
        assert!(policy.waits(80 * MIB) && !policy.waits(81 * MIB));
        assert!(policy.is_possible(100 * MIB) && !policy.is_possible(100 * MIB + 1) && !policy.is_possible(0));
    }

    #[test]
    fn what_was_read_through_comes_at_its_next_open_if_there_is_room() {
        let (mut policy, now) = (Policy::new(Rules { min_opens: 5, ..rules() }), Instant::now());
        let worth = |policy: &mut Policy, bytes, sequential| {
            policy.opened(id(1), 10 * MIB, now);
            policy.closed(id(1), 10 * MIB, Reading { bytes, sequential, ..Reading::default() });
            let worth = policy.opened(id(1), 10 * MIB, now);
            policy.forget(&id(1));
            worth
        };
        assert_eq!(worth(&mut policy, 5 * MIB, 5 * MIB), Worth::IfRoom);
        assert_eq!(worth(&mut policy, 4 * MIB, 4 * MIB), Worth::No);
        assert_eq!(worth(&mut policy, 5 * MIB, MIB), Worth::No);
        // What was never opened is not counted.
        policy.closed(id(2), MIB, Reading { bytes: MIB, sequential: MIB, ..Reading::default() });
        assert_eq!(policy.counts.len(), 0);
    }

    #[test]
    fn a_small_file_may_take_more_opens_and_nothing_goes_for_it() {
        let (mut policy, now) = (Policy::new(Rules { small_min_opens: Some(4), ..rules() }), Instant::now());
        let read = Reading { bytes: MIB, sequential: MIB, ..Reading::default() };
        for worth in [Worth::No, Worth::No, Worth::No, Worth::IfRoom, Worth::IfRoom] {
            assert_eq!(policy.opened(id(1), MIB - 1, now), worth);
            // Not even where it is read through.
            policy.closed(id(1), MIB - 1, read);
        }
        policy.opened(id(2), MIB, now);
        assert_eq!(policy.opened(id(2), MIB, now), Worth::Yes, "it is not small");
        // Whoever has an open wait for it wants it.
        let mut policy = Policy::new(Rules { small_min_opens: Some(4), first_open_size: MIB, ..rules() });
        assert_eq!(policy.opened(id(1), 100, now), Worth::Yes);
    }

    #[test]
    fn a_stream_and_a_mapping_look_as_if_all_were_read_and_random_reads_and_small_files_do_not() {
        let policy = Policy::new(rules());
        let streamed = |from_start| Reading { bytes: 2 * from_start, from_start, ..Reading::default() };
        let mapped = Reading { is_mapped: true, ..Reading::default() };
        let cases = [
            (8 * MIB, streamed(MIB), true),
            (8 * MIB, streamed(MIB - 1), false),
            (48 * MIB, streamed(6 * MIB), true),
            (8 * MIB, Reading { bytes: 6 * MIB, sequential: 6 * MIB, ..Reading::default() }, false),
            (8 * MIB, Reading { bytes: MIB / 4, from_start: MIB, ..Reading::default() }, false),
            (8 * MIB, mapped, true),
            (MIB - 1, Reading { from_start: MIB - 1, ..mapped }, false),
            (51 * MIB, Reading { from_start: 51 * MIB, ..mapped }, false),
        ];
        for (size, reading, whole) in cases {
            assert_eq!(policy.is_read_whole(size, reading), whole, "{size}, {reading:?}");
        }
        // Of a large file, 8 MiB are enough.
        let large = Policy::new(Rules { size: 1 << 40, max_file_size: 1 << 40, ..rules() });
        assert!(large.is_read_whole(1 << 36, streamed(8 * MIB)));
    }

    #[test]
    fn the_table_is_bounded_and_keeps_what_is_opened_most() {
        let (mut policy, now) = (Policy::new(rules()), Instant::now());
        for _ in 0..2 {
            policy.opened(id(0), MIB, now);
        }
        for number in 1..100_000 {
            policy.opened(id(number), MIB, now);
        }
        assert!(policy.counts.len() <= MAX_COUNTED, "{}", policy.counts.len());
        assert_eq!(policy.opened(id(0), MIB, now), Worth::Yes);
    }

    proptest! {
        #[test]
        fn opens_fade_and_never_come_back(seconds in prop::collection::vec(0u64..2000, 1..20)) {
            let (mut policy, start) = (Policy::new(rules()), Instant::now());
            let mut now = start;
            let mut naive = Vec::new();
            for step in seconds {
                now += Duration::from_secs(step);
                policy.opened(id(1), MIB, now);
                naive.push(now);
                let sum: f64 = naive.iter().map(|at| 0.5_f64.powf((now - *at).as_secs_f64() / 600.0)).sum();
                prop_assert!((policy.opens(&id(1), now) - sum).abs() < 1e-6);
                prop_assert!(policy.opens(&id(1), now + HALF_LIFE) <= sum / 2.0 + 1e-6);
            }
        }

        #[test]
        fn no_two_files_drive_each_other_out(a in 0.0f64..100.0, b in 0.0f64..100.0) {
            prop_assert!(!(Policy::yields(a, b) && Policy::yields(b, a)));
            prop_assert!(!Policy::yields(a, a));
        }
    }
}
