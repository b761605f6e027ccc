//! Whether a disk answers. Pure: times are passed in.
//!
//! A disk that fails says so; one that hangs says nothing, and everything that was asked of it waits. It is judged by the
//! operations that the kernel has of it. It is taken out of service when reads were given up three times in a row with no
//! answer in time between, or when an operation is overdue: a read after twice the time that a reader waits, a write
//! after five times. A queue of ours is no fault of the disk's: the time counts from when the kernel has the operation.
//!
//! A disk that is out gets nothing to do but probes: one page, read past the page cache. The first one waits until every
//! operation that the kernel still has has ended: so nothing that was asked for before is carried out after what is asked
//! for later, and a probe that hangs too holds a single page. Three answers in time, one after the other, bring the disk
//! back. One that hangs again soon has to answer twice as often, up to 48 times.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Reads in a row that are given up before the disk is taken out.
const TOLERATED: u32 = 3;
/// A read is overdue after so many times the time that a reader waits.
const READ_OVERDUE: u32 = 2;
/// A write is: it is larger than most reads, and nobody waits for it.
const WRITE_OVERDUE: u32 = 5;
/// Probes in a row that bring a disk back.
const ANSWERS: u32 = 3;
/// The same of one that hangs again and again.
const MAX_ANSWERS: u32 = 48;
/// From one probe to the next.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// One that hangs again within this time of its return has relapsed.
const RELAPSE_WITHIN: Duration = Duration::from_secs(60);

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// Why a disk was taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// So many reads were given up in a row.
    ReadsInARow(u32),
    /// An operation takes so long by now.
    Overdue(Direction, Duration),
}

/// What has become of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Nothing more is asked of it but probes.
    TakenOut(Cause),
    /// It is as good as any other again, after so long.
    Returned(Duration),
}

/// An operation that the kernel has.
#[derive(Clone, Copy, Debug)]
struct Begun {
    direction: Direction,
    at: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Out {
    since: Instant,
    answers: u32,
    next_probe: Instant,
    is_probing: bool,
}

/// What is known of one disk.
#[derive(Debug)]
pub(crate) struct Liveness {
    /// How long a reader waits; zero: for ever, and the disk is never taken out.
    read_timeout: Duration,
    /// By their numbers, and so the oldest first.
    under_way: BTreeMap<u64, Begun>,
    last_number: u64,
    given_up_in_a_row: u32,
    out: Option<Out>,
    returned_at: Option<Instant>,
    /// Probes that must be answered in a row, the next time that it is out.
    wanted: u32,
}

impl Liveness {
    pub(crate) fn new(read_timeout: Duration) -> Self {
        Self {
            read_timeout,
            under_way: BTreeMap::new(),
            last_number: 0,
            given_up_in_a_row: 0,
            out: None,
            returned_at: None,
            wanted: ANSWERS,
        }
    }

    /// Whether nothing is to be asked of it but probes.
    pub(crate) fn is_out(&self) -> bool {
        self.out.is_some()
    }

    /// Operations that the kernel has.
    pub(crate) fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// The kernel is about to have an operation; its number.
    pub(crate) fn begun(&mut self, direction: Direction, now: Instant) -> u64 {
        self.last_number += 1;
        self.under_way.insert(self.last_number, Begun { direction, at: now });
        self.last_number
    }

    /// The kernel has ended an operation, in whatever way.
    pub(crate) fn ended(&mut self, number: u64, now: Instant) {
        let Some(begun) = self.under_way.remove(&number) else { return };
        if now.saturating_duration_since(begun.at) <= self.read_timeout {
            self.given_up_in_a_row = 0;
        }
    }

    /// A reader does not wait for its read any more.
    pub(crate) fn gave_up(&mut self, now: Instant) -> Option<Change> {
        self.given_up_in_a_row += 1;
        if self.out.is_none() && self.given_up_in_a_row >= TOLERATED && !self.read_timeout.is_zero() {
            return Some(self.take_out(Cause::ReadsInARow(self.given_up_in_a_row), now));
        }
        self.look(now)
    }

    /// Time has passed.
    pub(crate) fn look(&mut self, now: Instant) -> Option<Change> {
        if self.out.is_some() || self.read_timeout.is_zero() {
            return None;
        }
        let late = self.under_way.values().find_map(|begun| {
            let times = match begun.direction {
                Direction::Read => READ_OVERDUE,
                Direction::Write => WRITE_OVERDUE,
            };
            let taken = now.saturating_duration_since(begun.at);
            (taken >= self.read_timeout.saturating_mul(times)).then_some((begun.direction, taken))
        });
        let (direction, taken) = late?;
        Some(self.take_out(Cause::Overdue(direction, taken), now))
    }

    fn take_out(&mut self, cause: Cause, now: Instant) -> Change {
        let has_relapsed = self.returned_at.is_some_and(|at| now.saturating_duration_since(at) < RELAPSE_WITHIN);
        self.wanted = if has_relapsed { (self.wanted * 2).min(MAX_ANSWERS) } else { ANSWERS };
        self.out = Some(Out { since: now, answers: 0, next_probe: now + PROBE_EVERY, is_probing: false });
        Change::TakenOut(cause)
    }

    /// Whether a probe is to begin now; then its outcome is told to [`Liveness::probed`].
    pub(crate) fn begin_probe(&mut self, now: Instant) -> bool {
        let is_idle = self.under_way.is_empty();
        let Some(out) = &mut self.out else { return false };
        let begins = is_idle && !out.is_probing && out.next_probe <= now;
        out.is_probing |= begins;
        begins
    }

    /// What came of a probe: whether the disk answered it in time, be it with an error.
    pub(crate) fn probed(&mut self, has_answered: bool, now: Instant) -> Option<Change> {
        let is_idle = self.under_way.is_empty();
        let wanted = self.wanted;
        let out = self.out.as_mut()?;
        out.is_probing = false;
        out.next_probe = now + PROBE_EVERY;
        out.answers = if has_answered && is_idle { out.answers + 1 } else { 0 };
        if out.answers < wanted {
            return None;
        }
        let since = out.since;
        self.out = None;
        self.given_up_in_a_row = 0;
        self.returned_at = Some(now);
        Some(Change::Returned(now.saturating_duration_since(since)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TIMEOUT: Duration = Duration::from_secs(2);

    fn after(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    /// Answers probes until it is back; when that is, and how many it took.
    fn bring_back(liveness: &mut Liveness, mut now: Instant) -> (Instant, u32) {
        for probes in 1.. {
            now += PROBE_EVERY;
            assert!(liveness.begin_probe(now), "{liveness:?}");
            if liveness.probed(true, now).is_some() {
                return (now, probes);
            }
            assert!(probes < 100, "{liveness:?}");
        }
        unreachable!("it panics before")
    }

    #[test]
    fn reads_given_up_in_a_row_take_a_disk_out_and_an_answer_in_time_between_them_does_not() {
        let start = Instant::now();
        let mut liveness = Liveness::new(TIMEOUT);
        for round in 0..10 {
            let begun = after(start, round * 10_000);
            let read = liveness.begun(Direction::Read, begun);
            assert_eq!(liveness.gave_up(begun + TIMEOUT), None);
            assert_eq!(liveness.gave_up(begun + TIMEOUT), None);
            liveness.ended(read, begun + TIMEOUT);
        }
        let now = after(start, 200_000);
        assert_eq!((liveness.gave_up(now), liveness.gave_up(now)), (None, None));
        // An answer that comes late is none.
        let late = liveness.begun(Direction::Write, now);
        liveness.ended(late, now + TIMEOUT * 2);
        assert_eq!(liveness.gave_up(now + TIMEOUT * 2), Some(Change::TakenOut(Cause::ReadsInARow(3))));
        assert!(liveness.is_out());
    }

    #[test]
    fn an_overdue_operation_takes_a_disk_out_though_others_come_back() {
        for (direction, times) in [(Direction::Read, READ_OVERDUE), (Direction::Write, WRITE_OVERDUE)] {
            let start = Instant::now();
            let mut liveness = Liveness::new(TIMEOUT);
            liveness.begun(direction, start);
            let other = liveness.begun(Direction::Read, start);
            liveness.ended(other, start);
            let due = start + TIMEOUT * times;
            assert_eq!(liveness.look(due - Duration::from_millis(1)), None);
            let cause = Cause::Overdue(direction, TIMEOUT * times);
            assert_eq!(liveness.look(due), Some(Change::TakenOut(cause)));
            assert_eq!(liveness.look(due + TIMEOUT), None, "it is told once");
        }
    }

    #[test]
    fn no_probe_begins_while_the_kernel_has_an_operation_and_three_answers_bring_the_disk_back() {
        let start = Instant::now();
        let mut liveness = Liveness::new(TIMEOUT);
        let stuck = liveness.begun(Direction::Write, start);
        let out = start + TIMEOUT * WRITE_OVERDUE;
        assert!(liveness.look(out).is_some());
        assert!(
            !liveness.begin_probe(out + Duration::from_secs(3600)),
            "what is under way may be carried out any time"
        );
        let ended = out + Duration::from_secs(3600);
        liveness.ended(stuck, ended);
        assert!(liveness.begin_probe(ended));
        assert!(!liveness.begin_probe(ended), "one at a time");
        assert_eq!(liveness.probed(true, ended), None);
        assert!(!liveness.begin_probe(ended), "not before a while");
        let later = ended + PROBE_EVERY;
        assert!(liveness.begin_probe(later));
        assert_eq!(liveness.probed(false, later), None, "it counts from the start again");
        let (now, probes) = bring_back(&mut liveness, later);
        assert_eq!(probes, ANSWERS);
        assert!(!liveness.is_out());
        assert_eq!(liveness.gave_up(now), None, "it may miss as many as before");
    }

    #[test]
    fn a_probe_that_hangs_is_the_only_one() {
        let start = Instant::now();
        let mut liveness = Liveness::new(TIMEOUT);
        (0..TOLERATED).for_each(|_| _ = liveness.gave_up(start));
        let now = start + PROBE_EVERY;
        assert!(liveness.begin_probe(now));
        let probe = liveness.begun(Direction::Read, now);
        assert_eq!(liveness.probed(false, now + TIMEOUT), None);
        assert!(!liveness.begin_probe(now + TIMEOUT * 100));
        liveness.ended(probe, now + TIMEOUT * 100);
        assert!(liveness.begin_probe(now + TIMEOUT * 100));
    }

    #[test]
    fn a_disk_that_hangs_again_soon_answers_twice_as_often_and_one_that_was_well_for_long_does_not() {
        let mut now = Instant::now();
        let mut liveness = Liveness::new(TIMEOUT);
        for wanted in [3, 6, 12, 24, 48, 48] {
            (0..TOLERATED).for_each(|_| _ = liveness.gave_up(now));
            let probes;
            (now, probes) = bring_back(&mut liveness, now);
            assert_eq!(probes, wanted);
        }
        now += RELAPSE_WITHIN;
        (0..TOLERATED).for_each(|_| _ = liveness.gave_up(now));
        assert_eq!(bring_back(&mut liveness, now).1, ANSWERS);
    }

    #[test]
    fn without_a_time_that_readers_wait_no_disk_is_taken_out() {
        let start = Instant::now();
        let mut liveness = Liveness::new(Duration::ZERO);
        liveness.begun(Direction::Read, start);
        for day in 0..10 {
            let now = start + Duration::from_secs(day * 86_400);
            assert_eq!((liveness.gave_up(now), liveness.look(now)), (None, None));
        }
    }

    /// Something that happens, after so many milliseconds.
    #[derive(Clone, Debug)]
    enum Event {
        Begin(Direction),
        End(prop::sample::Index),
        GiveUp,
        Look,
        Probe(bool),
    }

    fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
        let event = prop_oneof![
            Just(Event::Begin(Direction::Read)),
            Just(Event::Begin(Direction::Write)),
            any::<prop::sample::Index>().prop_map(Event::End),
            Just(Event::GiveUp),
            Just(Event::Look),
            any::<bool>().prop_map(Event::Probe),
        ];
        prop::collection::vec((0..3_000u64, event), 1..200)
    }

    proptest! {
        #[test]
        fn a_disk_goes_for_a_cause_and_comes_back_by_answers_with_nothing_under_way(events in events()) {
            let mut liveness = Liveness::new(TIMEOUT);
            let mut now = Instant::now();
            let mut under_way: Vec<(u64, Direction, Instant)> = Vec::new();
            let (mut given_up, mut answers) = (0u32, 0u32);
            for (millis, event) in events {
                now += Duration::from_millis(millis);
                let was_out = liveness.is_out();
                let overdue = under_way.iter().any(|(_, direction, begun)| {
                    let times = if *direction == Direction::Read { READ_OVERDUE } else { WRITE_OVERDUE };
                    now - *begun >= TIMEOUT * times
                });
                let change = match event {
                    Event::Begin(direction) => {
                        under_way.push((liveness.begun(direction, now), direction, now));
                        None
                    }
                    Event::End(pick) => {
                        if !under_way.is_empty() {
                            let (number, _, begun) = under_way.swap_remove(pick.index(under_way.len()));
                            liveness.ended(number, now);
                            if now - begun <= TIMEOUT {
                                given_up = 0;
                            }
                        }
                        None
                    }
                    Event::GiveUp => {
                        given_up += 1;
                        liveness.gave_up(now)
                    }
                    Event::Look => liveness.look(now),
                    Event::Probe(has_answered) => {
                        if liveness.begin_probe(now) {
                            prop_assert!(was_out && under_way.is_empty());
                            answers = if has_answered { answers + 1 } else { 0 };
                            liveness.probed(has_answered, now)
                        } else {
                            None
                        }
                    }
                };
                prop_assert_eq!(liveness.under_way(), under_way.len());
                match change {
                    Some(Change::TakenOut(Cause::ReadsInARow(reads))) => {
                        prop_assert!(!was_out && given_up >= TOLERATED);
                        prop_assert_eq!(reads, given_up);
                        answers = 0;
                    }
                    Some(Change::TakenOut(Cause::Overdue(..))) => {
                        prop_assert!(!was_out && overdue);
                        answers = 0;
                    }
                    Some(Change::Returned(_)) => {
                        prop_assert!(was_out && under_way.is_empty() && answers >= ANSWERS);
                        given_up = 0;
                    }
                    None => prop_assert_eq!(liveness.is_out(), was_out),
                }
                prop_assert!(liveness.is_out() || given_up < TOLERATED, "it is to be out");
            }
        }
    }
}
