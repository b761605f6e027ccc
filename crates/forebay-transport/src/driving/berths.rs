//! Which connection a thread drives that waits for its answer itself, and how many of those there are. Pure; `C` is a connection.
//!
//! A thread takes one that nobody has, uses it for one call and puts it back: so nobody else ever waits on it. There are as many
//! as threads wait at once, up to [`MAX`], made one at a time and in the background. The one that was used last is taken first, and what
//! nobody has used for [`LINGER`] goes.

use std::time::{Duration, Instant};

/// The most of one link. More threads than this are better served by calls that share connections.
const MAX: usize = 4;
/// How long one is kept that nobody uses.
pub const LINGER: Duration = Duration::from_secs(10);
/// How long none is made after that has failed.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What a thread gets that would drive.
#[derive(Debug, PartialEq, Eq)]
pub enum Berth<C> {
    /// This one; to be put back, or [`Berths::lost`].
    Take(C),
    /// None now, but one is to be made: [`Berths::attempted`] or [`Berths::failed`] must follow.
    Make,
    /// None.
    Wait,
}

/// Those of one link.
#[derive(Debug)]
pub struct Berths<C> {
    /// Those that nobody has, and since when.
    idle: Vec<(C, Instant)>,
    /// All of them, that in the making included.
    total: usize,
    is_making: bool,
    retry_at: Option<Instant>,
    /// There is somebody who looks for those that nobody uses.
    is_kept: bool,
    is_closed: bool,
}

impl<C> Default for Berths<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C> Berths<C> {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self { idle: Vec::new(), total: 0, is_making: false, retry_at: None, is_kept: false, is_closed: false }
    }

    /// One to drive.
    #[must_use = "what is to be made has to be"]
    pub fn take(&mut self, now: Instant) -> Berth<C> {
        if self.is_closed {
            return Berth::Wait;
        }
        if let Some((connection, _)) = self.idle.pop() {
            return Berth::Take(connection);
        }
        let rests = self.retry_at.is_some_and(|at| now < at);
        if rests || self.is_making || self.total >= MAX {
            return Berth::Wait;
        }
        self.total += 1;
        self.is_making = true;
        Berth::Make
    }

    /// The one that was used last of those that nobody has, and that `suits`; to be put back, or [`Berths::lost`].
    pub fn take_if(&mut self, mut suits: impl FnMut(&C) -> bool) -> Option<C> {
        let at = self.idle.iter().rposition(|(connection, _)| suits(connection))?;
        Some(self.idle.remove(at).0)
    }

    /// What came of making one; `Ok(None)`: there are never to be any. Those that are to be ended, and whether the caller has to begin to
    /// look for those that nobody uses.
    #[must_use = "connections are to be ended"]
    pub fn attempted<E>(&mut self, attempt: Result<Option<C>, E>, now: Instant) -> (Vec<C>, bool) {
        let unwanted = match attempt {
            Ok(Some(connection)) => self.made(connection, now).into_iter().collect(),
            Ok(None) => {
                self.failed(now);
                self.close()
            }
            Err(_) => {
                self.failed(now);
                Vec::new()
            }
        };
        (unwanted, self.begin_keeping())
    }

    /// One was made, which is given back when there are to be none any more.
    fn made(&mut self, connection: C, now: Instant) -> Option<C> {
        self.is_making = false;
        self.put_back(connection, now)
    }

    /// It could not be made.
    pub fn failed(&mut self, now: Instant) {
        self.is_making = false;
        self.total -= 1;
        self.retry_at = Some(now + RETRY_AFTER);
    }

    /// The call on it has its answer. It is given back when there are to be none any more.
    pub fn put_back(&mut self, connection: C, now: Instant) -> Option<C> {
        if self.is_closed {
            self.total -= 1;
            return Some(connection);
        }
        self.idle.push((connection, now));
        None
    }

    /// One that was taken is none of them any more.
    pub fn lost(&mut self) {
        self.total -= 1;
    }

    /// Whether somebody has to begin to look for those that nobody uses.
    fn begin_keeping(&mut self) -> bool {
        !self.is_closed && !std::mem::replace(&mut self.is_kept, true)
    }

    /// Those that nobody has used for long. And whether there are any left to look for.
    pub fn expire(&mut self, now: Instant) -> (Vec<C>, bool) {
        // The one that was used last is at the end.
        let is_old = |since: &Instant| now.saturating_duration_since(*since) >= LINGER;
        let count = self.idle.iter().take_while(|(_, since)| is_old(since)).count();
        let expired: Vec<C> = self.idle.drain(..count).map(|(connection, _)| connection).collect();
        self.total -= expired.len();
        self.is_kept = self.total > 0;
        (expired, self.is_kept)
    }

    /// There are to be none any more: those that nobody has.
    pub fn close(&mut self) -> Vec<C> {
        self.is_closed = true;
        self.total -= self.idle.len();
        self.idle.drain(..).map(|(connection, _)| connection).collect()
    }
}

/// What comes of `call`, which has a connection that was taken. If it panics the connection is gone, too: `lost` is to say so to the
/// [`Berths`], which would count it for ever.
pub fn or_lost<T>(lost: impl FnOnce(), call: impl FnOnce() -> T) -> T {
    let mut unwinding = Unwinding(Some(lost));
    let came = call();
    unwinding.0 = None;
    came
}

struct Unwinding<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for Unwinding<F> {
    fn drop(&mut self) {
        if let Some(lost) = self.0.take() {
            lost();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use proptest::prelude::*;

    fn made(berths: &mut Berths<u32>, connection: u32, now: Instant) {
        assert_eq!(berths.take(now), Berth::Make);
        assert_eq!(berths.made(connection, now), None);
    }

    #[test]
    fn a_thread_takes_one_that_nobody_has_and_another_is_made_for_the_next() {
        let (mut berths, now) = (Berths::new(), Instant::now());
        assert_eq!(berths.take(now), Berth::Make);
        assert_eq!(berths.take(now), Berth::Wait, "one is made at a time");
        assert_eq!(berths.made(1, now), None);
        assert_eq!(berths.take(now), Berth::Take(1));
        made(&mut berths, 2, now);
        assert_eq!(berths.put_back(1, now), None);
        assert_eq!(berths.take(now), Berth::Take(1), "the one that was used last");
        assert_eq!((berths.take(now), berths.take(now)), (Berth::Take(2), Berth::Make));
    }

    #[test]
    fn one_that_suits_is_taken_wherever_it_is_and_what_is_left_expires_in_its_order() {
        let (mut berths, now) = (Berths::new(), Instant::now());
        for connection in 1..=3 {
            made(&mut berths, connection, now);
            assert_eq!(berths.take(now), Berth::Take(connection));
        }
        for (connection, used) in [(1, 1), (2, 2), (3, 3)] {
            assert_eq!(berths.put_back(connection, now + Duration::from_secs(used)), None);
        }
        assert_eq!(berths.take_if(|connection| *connection > 3), None);
        assert_eq!(berths.take_if(|connection| *connection < 3), Some(2), "the one of them that was used last");
        assert_eq!(berths.expire(now + LINGER + Duration::from_secs(1)), (vec![1], true));
        assert_eq!(berths.take_if(|_| true), Some(3));
        berths.lost();
        assert_eq!(berths.put_back(2, now), None);
        assert_eq!(berths.close(), [2]);
        assert_eq!(berths.take_if(|_| true), None);
    }

    #[test]
    fn there_are_no_more_than_so_many_and_one_that_is_lost_makes_room() {
        let (mut berths, now) = (Berths::new(), Instant::now());
        for connection in 0..MAX as u32 {
            made(&mut berths, connection, now);
            assert_eq!(berths.take(now), Berth::Take(connection));
        }
        assert_eq!(berths.take(now), Berth::Wait);
        berths.lost();
        assert_eq!(berths.take(now), Berth::Make);
    }

    #[test]
    fn one_whose_thread_panics_makes_room() {
        let (mut berths, now) = (Berths::new(), Instant::now());
        for connection in 0..MAX as u32 {
            made(&mut berths, connection, now);
            assert_eq!(berths.take(now), Berth::Take(connection));
        }
        assert_eq!(or_lost(|| berths.lost(), || 7), 7);
        assert_eq!(berths.take(now), Berth::Wait, "its thread has it");
        let panics = AssertUnwindSafe(|| or_lost(|| berths.lost(), || panic!("as a call may")));
        assert!(catch_unwind(panics).is_err());
        assert_eq!(berths.take(now), Berth::Make);
    }

    #[test]
    fn one_that_could_not_be_made_is_not_tried_again_at_once() {
        let (mut berths, now) = (Berths::<u32>::new(), Instant::now());
        assert_eq!(berths.take(now), Berth::Make);
        berths.failed(now);
        assert_eq!(berths.take(now), Berth::Wait);
        assert_eq!(berths.take(now + RETRY_AFTER), Berth::Make);
    }

    #[test]
    fn who_has_tried_to_make_one_is_told_what_to_end_and_whether_to_look_for_the_idle() {
        let now = Instant::now();
        let begun = || {
            let mut berths = Berths::new();
            assert_eq!(berths.take(now), Berth::Make);
            berths
        };
        let mut berths = begun();
        assert_eq!(berths.attempted(Ok::<_, ()>(Some(1)), now), (vec![], true));
        assert_eq!(berths.take(now), Berth::Take(1));
        let mut berths = begun();
        assert_eq!(berths.attempted(Err(()), now), (vec![], true));
        assert_eq!((berths.take(now), berths.take(now + RETRY_AFTER)), (Berth::Wait, Berth::Make));
        // One that is there goes, too.
        assert_eq!(berths.attempted(Ok::<_, ()>(Some(2)), now), (vec![], false));
        let Berth::Take(taken) = berths.take(now) else { panic!("there is one") };
        assert_eq!(berths.take(now + RETRY_AFTER), Berth::Make);
        assert_eq!(berths.put_back(taken, now), None);
        assert_eq!(berths.attempted(Ok::<_, ()>(None), now), (vec![2], false));
        assert_eq!(berths.take(now + RETRY_AFTER), Berth::Wait);
        let mut berths = begun();
        berths.close();
        assert_eq!(berths.attempted(Ok::<_, ()>(Some(3)), now), (vec![3], false));
    }

    #[test]
    fn what_nobody_uses_goes_and_then_nobody_looks_for_it_any_more() {
        let (mut berths, start) = (Berths::new(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        made(&mut berths, 1, start);
        assert!(berths.begin_keeping() && !berths.begin_keeping(), "one looks");
        assert_eq!(berths.take(after(1)), Berth::Take(1));
        made(&mut berths, 2, after(1));
        assert_eq!(berths.put_back(1, after(5)), None);
        assert_eq!(berths.expire(after(10)), (vec![], true));
        assert_eq!(berths.expire(after(11)), (vec![2], true));
        assert_eq!(berths.take(after(12)), Berth::Take(1));
        assert_eq!(berths.expire(after(30)), (vec![], true), "somebody has it");
        assert_eq!(berths.put_back(1, after(30)), None);
        assert_eq!(berths.expire(after(40)), (vec![1], false));
        assert!(berths.begin_keeping());
    }

    #[test]
    fn after_the_end_none_is_given_out_or_kept() {
        let (mut berths, now) = (Berths::new(), Instant::now());
        made(&mut berths, 1, now);
        made_and_taken(&mut berths, now);
        assert_eq!(berths.close(), [1]);
        assert_eq!(berths.take(now), Berth::Wait);
        assert_eq!(berths.put_back(2, now), Some(2));
        assert!(!berths.begin_keeping());
    }

    /// The second, which somebody has.
    fn made_and_taken(berths: &mut Berths<u32>, now: Instant) {
        assert_eq!(berths.take(now), Berth::Take(1));
        made(berths, 2, now);
        assert_eq!(berths.take(now), Berth::Take(2));
        assert_eq!(berths.put_back(1, now), None);
    }

    proptest! {
        #[test]
        fn none_is_given_to_two_and_all_are_counted(steps in prop::collection::vec((0u8..6, 0u64..8), 1..200)) {
            let (mut berths, mut now) = (Berths::new(), Instant::now());
            let (mut taken, mut next, mut making) = (Vec::new(), 0, false);
            for (step, seconds) in steps {
                now += Duration::from_secs(seconds);
                match step {
                    0 | 1 => match berths.take(now) {
                        Berth::Take(connection) => {
                            prop_assert!(!taken.contains(&connection));
                            taken.push(connection);
                        }
                        Berth::Make => {
                            prop_assert!(!making);
                            making = true;
                        }
                        Berth::Wait => {}
                    },
                    2 if making => {
                        making = false;
                        next += 1;
                        prop_assert_eq!(berths.made(next, now), None);
                    }
                    3 if making => {
                        making = false;
                        berths.failed(now);
                    }
                    4 => if let Some(connection) = taken.pop() {
                        prop_assert_eq!(berths.put_back(connection, now), None);
                    },
                    5 => if taken.pop().is_some() {
                        berths.lost();
                    },
                    _ => drop(berths.expire(now)),
                }
                prop_assert_eq!(berths.total, berths.idle.len() + taken.len() + usize::from(making));
                prop_assert!(berths.total <= MAX);
            }
        }
    }
}
