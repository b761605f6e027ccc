//! Transfers in virtual time: reads take what they take, side by side; copies follow one another, as on a stream.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use proptest::prelude::*;

use super::*;

/// What happens to a transfer.
#[derive(Clone, Debug)]
struct Course {
    slots: usize,
    /// Of each piece, how long its read and its copy take, in milliseconds.
    pieces: Vec<(u64, u64)>,
    /// A piece whose read fails, and one whose copy does.
    read_fails: Option<usize>,
    copy_fails: Option<usize>,
    given_up_at: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happens {
    GivenUp,
    Copied { slot: usize, piece: usize },
    Come { slot: usize, piece: usize },
}

/// How it went.
#[derive(Debug)]
struct Outcome {
    /// When it had settled.
    at: u64,
    is_complete: bool,
    read: Vec<usize>,
    copied: BTreeSet<usize>,
    most_at_once: usize,
}

fn carried_out(course: &Course) -> Outcome {
    let start = Instant::now();
    let mut pipeline = Pipeline::new(course.slots, course.pieces.len());
    let mut queue = BinaryHeap::new();
    queue.extend(course.given_up_at.map(|at| Reverse((at, Happens::GivenUp))));
    let (mut now, mut stream_free, mut is_ending) = (0_u64, 0_u64, false);
    let (mut busy, mut copying) = (BTreeSet::new(), BTreeSet::new());
    let mut outcome = Outcome { at: 0, is_complete: false, read: Vec::new(), copied: BTreeSet::new(), most_at_once: 0 };
    loop {
        while let Some(Begun { slot, piece }) = pipeline.begin() {
            assert!(!is_ending, "nothing begins after a failure");
            assert!(busy.insert(slot), "slot {slot} is given to two pieces");
            outcome.read.push(piece);
            queue.push(Reverse((now + course.pieces[piece].0, Happens::Come { slot, piece })));
        }
        outcome.most_at_once = outcome.most_at_once.max(busy.len());
        assert!(!pipeline.is_settled() || copying.is_empty(), "it has settled while {copying:?} are copied");
        if pipeline.is_settled() {
            break;
        }
        let Some(Reverse((at, happens))) = queue.pop() else { panic!("it hangs: {pipeline:?}") };
        now = at;
        match happens {
            Happens::GivenUp => {
                pipeline.give_up();
                is_ending = true;
            }
            Happens::Come { slot, piece } if course.read_fails == Some(piece) => {
                pipeline.failed(slot);
                (is_ending, _) = (true, busy.remove(&slot));
            }
            Happens::Come { slot, piece } => match pipeline.come(slot, start + Duration::from_millis(now)) {
                Come::Copy(copied) => {
                    assert!(copied == piece && !is_ending);
                    copying.insert(piece);
                    stream_free = now.max(stream_free) + course.pieces[piece].1;
                    queue.push(Reverse((stream_free, Happens::Copied { slot, piece })));
                }
                Come::Drop => assert!(is_ending && busy.remove(&slot)),
            },
            Happens::Copied { slot, piece } => {
                assert!(copying.remove(&piece) && busy.remove(&slot));
                if course.copy_fails == Some(piece) {
                    pipeline.failed(slot);
                    is_ending = true;
                } else {
                    pipeline.copied(slot);
                    assert!(outcome.copied.insert(piece), "piece {piece} is copied twice");
                }
            }
        }
    }
    Outcome { at: now, is_complete: pipeline.is_complete(), ..outcome }
}

fn undisturbed(slots: usize, pieces: Vec<(u64, u64)>) -> Outcome {
    carried_out(&Course { slots, pieces, read_fails: None, copy_fails: None, given_up_at: None })
}

fn courses() -> impl Strategy<Value = Course> {
    let pieces = prop::collection::vec((0_u64..50, 0_u64..50), 0..40);
    let disturbed = (prop::option::weighted(0.3, 0_usize..40), prop::option::weighted(0.3, 0_usize..40));
    (1_usize..8, pieces, disturbed, prop::option::weighted(0.3, 0_u64..500)).prop_map(
        |(slots, pieces, (read_fails, copy_fails), given_up_at)| {
            let within = |piece: &usize| *piece < pieces.len();
            let (read_fails, copy_fails) = (read_fails.filter(within), copy_fails.filter(within));
            Course { slots, pieces, read_fails, copy_fails, given_up_at }
        },
    )
}

proptest! {
    #[test]
    fn a_transfer_ends_whatever_fails_and_is_bounded_and_in_order(course in courses()) {
        let outcome = carried_out(&course);
        prop_assert!(outcome.most_at_once <= course.slots);
        prop_assert!(outcome.read.iter().enumerate().all(|(number, piece)| number == *piece));
        let is_undisturbed =
            course.read_fails.is_none() && course.copy_fails.is_none() && course.given_up_at.is_none();
        prop_assert!(outcome.is_complete || !is_undisturbed);
        prop_assert_eq!(outcome.is_complete, outcome.copied.len() == course.pieces.len());
        // A piece that failed never counts as copied, so a transfer with one is not complete.
        let failed = course.read_fails.or(course.copy_fails);
        prop_assert!(failed.is_none_or(|piece| !outcome.copied.contains(&piece) && !outcome.is_complete));
    }

    #[test]
    fn copies_are_as_early_as_reads_and_the_stream_allow(pieces in prop::collection::vec((0_u64..50, 0_u64..50), 1..20)) {
        // With a slot for each piece, all are read at once.
        let outcome = undisturbed(pieces.len(), pieces.clone());
        let (last_read, copies) =
            pieces.iter().fold((0_u64, 0_u64), |(last, copies), (read, copy)| (last.max(*read), copies + copy));
        prop_assert!(outcome.is_complete && outcome.at <= last_read + copies);
    }
}

#[test]
fn with_two_slots_copies_overlap_reads() {
    let pieces = vec![(10, 10); 10];
    assert_eq!(undisturbed(1, pieces.clone()).at, 200);
    let outcome = undisturbed(2, pieces);
    // The first read, and then the stream is never idle.
    assert_eq!((outcome.at, outcome.most_at_once), (110, 2));
}

#[test]
fn a_transfer_of_nothing_has_settled() {
    let mut nothing = Pipeline::new(4, 0);
    assert!(nothing.is_settled() && nothing.is_complete() && nothing.begin().is_none());
}

#[test]
fn what_was_given_up_has_settled_when_its_last_copy_has_ended() {
    let now = Instant::now();
    let mut pipeline = Pipeline::new(2, 5);
    let (first, second) = (pipeline.begin().unwrap(), pipeline.begin().unwrap());
    assert_eq!(pipeline.come(first.slot, now), Come::Copy(0));
    pipeline.give_up();
    // What is still read is waited for by nobody.
    assert!(!pipeline.is_settled() && pipeline.begin().is_none());
    pipeline.copied(first.slot);
    assert!(pipeline.is_settled() && !pipeline.is_complete());
    assert_eq!(pipeline.come(second.slot, now), Come::Drop);
    // What is said of a slot that is free, or of none, changes nothing.
    pipeline.copied(second.slot);
    assert_eq!((pipeline.come(second.slot, now), pipeline.come(17, now)), (Come::Drop, Come::Drop));
    assert!(pipeline.is_settled() && !pipeline.is_complete());
}

#[test]
fn a_copy_that_takes_long_is_said_once() {
    let (now, mut pipeline) = (Instant::now(), Pipeline::new(2, 2));
    let (first, second) = (pipeline.begin().unwrap(), pipeline.begin().unwrap());
    assert_eq!(pipeline.come(second.slot, now), Come::Copy(1));
    assert!(pipeline.overdue(now + LATE - Duration::from_millis(1)).is_empty());
    assert_eq!(pipeline.come(first.slot, now + LATE), Come::Copy(0));
    assert_eq!(pipeline.overdue(now + LATE), [1]);
    assert_eq!(pipeline.overdue(now + 2 * LATE), [0]);
    assert!(pipeline.overdue(now + 9 * LATE).is_empty());
}
