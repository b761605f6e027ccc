//! What has been shown to clients and must stay as it is, and how much of that there may be. Pure: `K` is whatever keeps the bytes,
//! a reply's views above all.
//!
//! [`Pins`] is one session's. What it has shown is given up by [`Pins::release`], when the client says that it is done, and by
//! [`Pins::closed`], when no process has the client's end any more; *however else it ends, dropped by a panic or with its task,
//! what it has shown is forgotten*, which costs the memory and never gives a reader bytes that are not its own.
//!
//! [`Bound`] is all sessions': a part of the pool, counted by the frames that what is shown lies in, each once however often it
//! is shown: a frame with one extent in use is no good to blocks. A reply that does not fit is *parked*, for a short while. Those with
//! parked replies stand in one line, first come first served; each session may show one reply beyond the bound, up to half as
//! much again. A client that holds what it was shown may itself wait for more, so nothing here waits for long: what is not shown by
//! then is read another way.

use std::collections::{HashMap, VecDeque};
use std::mem::ManuallyDrop;
use std::time::Instant;

use foldhash::fast::RandomState;
use smallvec::SmallVec;

/// Memory that is free for blocks only as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Where it begins in the pool.
    pub(crate) base: u64,
    /// Bytes of it.
    pub(crate) size: u64,
}

/// The frames of one reply.
pub(crate) type Frames = SmallVec<[Frame; 2]>;

/// What all sessions may show.
#[derive(Debug)]
pub(crate) struct Bound {
    limit: u64,
    /// With the one more of each session.
    most: u64,
    pinned: u64,
    /// How often each frame is shown, by where it begins.
    shown: HashMap<u64, u32, RandomState>,
    line: VecDeque<u64>,
}

impl Bound {
    /// At most `limit` bytes, and one reply of each session up to half as much again.
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            limit,
            most: limit.saturating_add(limit / 2),
            pinned: 0,
            shown: HashMap::default(),
            line: VecDeque::new(),
        }
    }

    /// Bytes of all frames that are shown.
    pub(crate) fn pinned(&self) -> u64 {
        self.pinned
    }

    /// The session whose turn it is.
    pub(crate) fn next(&self) -> Option<u64> {
        self.line.front().copied()
    }

    /// Counts `frames` as shown by `session`, if they fit and it is its turn; else it stands in line from now on. `is_first`:
    /// it shows nothing yet.
    fn admit(&mut self, session: u64, is_first: bool, frames: &[Frame]) -> bool {
        let more = |frame: &&Frame| !self.shown.contains_key(&frame.base);
        let more: u64 = frames.iter().filter(more).map(|frame| frame.size).sum();
        let limit = if is_first { self.most } else { self.limit };
        let fits = more == 0 || self.pinned == 0 || self.pinned.saturating_add(more) <= limit;
        let is_its_turn = is_first || self.next().is_none_or(|next| next == session);
        if !is_its_turn || !fits {
            if !self.line.contains(&session) {
                self.line.push_back(session);
            }
            return false;
        }
        for frame in frames {
            let times = self.shown.entry(frame.base).or_default();
            self.pinned += if *times == 0 { frame.size } else { 0 };
            *times += 1;
        }
        true
    }

    fn release(&mut self, frames: &[Frame]) {
        for frame in frames {
            let Some(times) = self.shown.get_mut(&frame.base) else { continue };
            *times -= 1;
            if *times == 0 {
                self.shown.remove(&frame.base);
                self.pinned -= frame.size;
            }
        }
    }

    fn leave(&mut self, session: u64) {
        self.line.retain(|other| *other != session);
    }
}

/// What keeps a reply's bytes as they are.
#[derive(Debug)]
pub(crate) struct Pin<K> {
    /// The request's.
    pub(crate) id: u64,
    pub(crate) frames: Frames,
    pub(crate) kept: K,
}

/// A reply that waits for its turn.
#[derive(Debug)]
struct Parked<K> {
    pin: Pin<K>,
    packet: Vec<u8>,
    /// Bytes of its payload.
    length: u32,
    expires: Instant,
}

/// A reply that has waited for too long.
#[derive(Debug)]
pub(crate) struct Expired<K> {
    /// The request's.
    pub(crate) id: u64,
    /// Bytes of its payload.
    pub(crate) length: u32,
    /// What kept its bytes, which were never shown. Not to be dropped while the line is held.
    pub(crate) kept: K,
}

/// A client that names what it was not shown, or asks twice by one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Mistaken {
    /// A release.
    #[error("it released {0}, which it was not shown")]
    Unknown(u64),
    /// A request.
    #[error("it used the number {0} for two requests at once")]
    Twice(u64),
}

/// What one session has shown, and what waits for its turn to be.
#[derive(Debug)]
pub(crate) struct Pins<K> {
    session: u64,
    shown: HashMap<u64, ManuallyDrop<Pin<K>>, RandomState>,
    parked: VecDeque<Parked<K>>,
}

impl<K> Pins<K> {
    /// Nothing yet.
    pub(crate) fn new(session: u64) -> Self {
        Self { session, shown: HashMap::default(), parked: VecDeque::new() }
    }

    /// How many replies are shown.
    pub(crate) fn len(&self) -> usize {
        self.shown.len()
    }

    /// Whether replies wait.
    pub(crate) fn has_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    /// Whether request `id` has been answered with what is still shown.
    pub(crate) fn shows(&self, id: u64) -> bool {
        self.shown.contains_key(&id)
    }

    /// Pins the bytes of a reply, which may then be sent. Gives them back when they have to wait: to [`Pins::park`].
    ///
    /// # Errors
    /// [`Mistaken::Twice`].
    pub(crate) fn show(&mut self, bound: &mut Bound, pin: Pin<K>) -> Result<Option<Pin<K>>, Mistaken> {
        if self.has_parked() {
            return Ok(Some(pin));
        }
        self.admit(bound, pin)
    }

    fn admit(&mut self, bound: &mut Bound, pin: Pin<K>) -> Result<Option<Pin<K>>, Mistaken> {
        if self.shows(pin.id) {
            return Err(Mistaken::Twice(pin.id));
        }
        if !bound.admit(self.session, self.shown.is_empty(), &pin.frames) {
            return Ok(Some(pin));
        }
        self.shown.insert(pin.id, ManuallyDrop::new(pin));
        Ok(None)
    }

    /// Has a reply wait behind those that do, until it `expires`. The session is in the bound's line.
    pub(crate) fn park(&mut self, pin: Pin<K>, packet: Vec<u8>, length: u32, expires: Instant) {
        self.parked.push_back(Parked { pin, packet, length, expires });
    }

    /// The first of the replies that wait, pinned and to be sent, if it may be shown by now.
    ///
    /// # Errors
    /// [`Mistaken::Twice`].
    pub(crate) fn resume(&mut self, bound: &mut Bound) -> Result<Option<Vec<u8>>, Mistaken> {
        let Some(Parked { pin, packet, length, expires }) = self.parked.pop_front() else { return Ok(None) };
        if let Some(pin) = self.admit(bound, pin)? {
            self.parked.push_front(Parked { pin, packet, length, expires });
            return Ok(None);
        }
        self.leave_if_done(bound);
        Ok(Some(packet))
    }

    /// When the first reply that waits expires.
    pub(crate) fn expires(&self) -> Option<Instant> {
        self.parked.iter().map(|parked| parked.expires).min()
    }

    /// The replies that have waited for long enough at `now`.
    pub(crate) fn expire(&mut self, bound: &mut Bound, now: Instant) -> Vec<Expired<K>> {
        let (over, left): (Vec<_>, _) = self.parked.drain(..).partition(|parked| parked.expires <= now);
        self.parked = left.into();
        self.leave_if_done(bound);
        over.into_iter().map(|Parked { pin, length, .. }| Expired { id: pin.id, length, kept: pin.kept }).collect()
    }

    fn leave_if_done(&self, bound: &mut Bound) {
        if !self.has_parked() {
            bound.leave(self.session);
        }
    }

    /// The client is done with what it was shown for request `id`.
    ///
    /// # Errors
    /// [`Mistaken::Unknown`].
    pub(crate) fn release(&mut self, bound: &mut Bound, id: u64) -> Result<K, Mistaken> {
        let pin = self.shown.remove(&id).ok_or(Mistaken::Unknown(id))?;
        let Pin { frames, kept, .. } = ManuallyDrop::into_inner(pin);
        bound.release(&frames);
        Ok(kept)
    }

    /// No replies that wait will be sent: what they keep was never shown.
    pub(crate) fn unpark(&mut self, bound: &mut Bound) -> Vec<K> {
        bound.leave(self.session);
        self.parked.drain(..).map(|parked| parked.pin.kept).collect()
    }

    /// No process has the client's end any more: everything is given up.
    pub(crate) fn closed(&mut self, bound: &mut Bound) -> Vec<K> {
        let parked = self.unpark(bound);
        let ids: Vec<u64> = self.shown.keys().copied().collect();
        ids.into_iter().filter_map(|id| self.release(bound, id).ok()).chain(parked).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::rc::Rc;
    use std::time::Duration;

    use proptest::prelude::*;

    fn pin<K>(id: u64, bases: &[u64], kept: K) -> Pin<K> {
        Pin { id, frames: bases.iter().map(|base| Frame { base: *base, size: 10 }).collect(), kept }
    }

    /// Shows a reply, or parks it; whether it was shown.
    fn offer<K>(pins: &mut Pins<K>, bound: &mut Bound, pin: Pin<K>) -> bool {
        let (id, expires) = (pin.id, Instant::now() + Duration::from_secs(60));
        match pins.show(bound, pin).unwrap() {
            None => true,
            Some(pin) => {
                pins.park(pin, vec![id as u8], 1, expires);
                false
            }
        }
    }

    #[test]
    fn a_reply_beyond_the_bound_waits_for_a_release_and_those_behind_it_wait_in_order() {
        let (mut bound, mut pins) = (Bound::new(20), Pins::new(1));
        assert!(offer(&mut pins, &mut bound, pin(1, &[0], ())) && offer(&mut pins, &mut bound, pin(2, &[10], ())));
        assert!(!offer(&mut pins, &mut bound, pin(3, &[20, 30], ())));
        // This one would fit, as its frame is shown already, but it is not its turn.
        assert!(!offer(&mut pins, &mut bound, pin(4, &[0], ())));
        assert_eq!((pins.resume(&mut bound), bound.pinned()), (Ok(None), 20));
        pins.release(&mut bound, 1).unwrap();
        assert_eq!(pins.resume(&mut bound), Ok(None));
        pins.release(&mut bound, 2).unwrap();
        assert_eq!(pins.resume(&mut bound), Ok(Some(vec![3])));
        assert_eq!((pins.resume(&mut bound), bound.next()), (Ok(None), Some(1)));
        pins.release(&mut bound, 3).unwrap();
        assert_eq!((pins.resume(&mut bound), bound.next()), (Ok(Some(vec![4])), None));
        assert_eq!(pins.release(&mut bound, 3), Err(Mistaken::Unknown(3)));
    }

    #[test]
    fn each_session_may_show_one_reply_more_up_to_a_point_and_the_others_come_in_turn() {
        let mut bound = Bound::new(20);
        let (mut one, mut two, mut three) = (Pins::new(1), Pins::new(2), Pins::new(3));
        assert!(offer(&mut one, &mut bound, pin(1, &[0, 100], ())));
        assert!(offer(&mut two, &mut bound, pin(1, &[10], ())) && bound.pinned() == 30);
        assert!(!offer(&mut two, &mut bound, pin(2, &[20], ())) && !offer(&mut one, &mut bound, pin(2, &[30], ())));
        // Half as much again is shown already: also the first of a session waits now.
        assert!(!offer(&mut three, &mut bound, pin(1, &[40], ())) && bound.pinned() == 30);
        one.release(&mut bound, 1).unwrap();
        three.closed(&mut bound);
        assert_eq!((bound.next(), bound.pinned()), (Some(2), 10));
        // The first session shows nothing now, so its next goes out of turn; the second waits for its own.
        assert_eq!(one.resume(&mut bound), Ok(Some(vec![2])));
        assert_eq!(two.resume(&mut bound), Ok(None));
        two.closed(&mut bound);
        assert_eq!((bound.next(), bound.pinned()), (None, 10));
    }

    #[test]
    fn a_reply_that_has_waited_for_long_enough_is_given_up() {
        let (mut bound, mut pins, now) = (Bound::new(10), Pins::new(1), Instant::now());
        assert!(offer(&mut pins, &mut bound, pin(1, &[0], ())));
        for (id, after) in [(2, 5), (3, 2)] {
            let parked = pins.show(&mut bound, pin(id, &[10], ())).unwrap().unwrap();
            pins.park(parked, Vec::new(), id as u32 * 100, now + Duration::from_secs(after));
        }
        assert_eq!(pins.expires(), Some(now + Duration::from_secs(2)));
        let mut expire = |after| {
            let over = pins.expire(&mut bound, now + Duration::from_secs(after));
            over.into_iter().map(|over| (over.id, over.length)).collect::<Vec<_>>()
        };
        assert_eq!((expire(1), expire(2)), (vec![], vec![(3, 300)]));
        assert_eq!((pins.has_parked(), bound.next()), (true, Some(1)));
        assert_eq!(pins.expire(&mut bound, now + Duration::from_secs(6)).len(), 1);
        assert_eq!((pins.expires(), bound.next()), (None, None));
    }

    #[test]
    fn a_number_is_good_for_one_request_at_a_time() {
        let (mut bound, mut pins) = (Bound::new(100), Pins::new(1));
        assert!(offer(&mut pins, &mut bound, pin(7, &[0], ())) && pins.shows(7));
        assert!(matches!(pins.show(&mut bound, pin(7, &[10], ())), Err(Mistaken::Twice(7))));
        pins.release(&mut bound, 7).unwrap();
        assert!(offer(&mut pins, &mut bound, pin(7, &[10], ())));
    }

    #[test]
    fn what_is_shown_is_forgotten_unless_the_client_is_known_to_be_gone() {
        let bytes = Rc::new(());
        for is_gone in [false, true] {
            let (mut bound, mut pins) = (Bound::new(20), Pins::new(1));
            for (id, base) in [(1, 0), (2, 10), (3, 20), (4, 30)] {
                offer(&mut pins, &mut bound, pin(id, &[base], Rc::clone(&bytes)));
            }
            drop(pins.release(&mut bound, 1));
            if is_gone {
                assert_eq!(pins.closed(&mut bound).len(), 3);
            }
            drop(pins);
            // What waited was never shown, and needs no reader's leave to go.
            // One is ours, the other the one that was forgotten.
            assert_eq!(Rc::strong_count(&bytes), 2);
        }
    }

    proptest! {
        #[test]
        fn the_bound_holds_and_counts_each_frame_once(
            steps in prop::collection::vec((0u8..4, 0u64..3, 0u64..12, 0u64..6), 1..200),
        ) {
            let mut bound = Bound::new(30);
            let mut sessions: Vec<Pins<Vec<u64>>> = (0..3).map(Pins::new).collect();
            let mut next = 0;
            for (step, session, base, pick) in steps {
                let pins = &mut sessions[session as usize];
                match step {
                    0 | 1 => {
                        let before = (pins.len(), bound.pinned());
                        let bases = [base * 10, (base + step as u64) * 10];
                        next += 1;
                        let fits = offer(pins, &mut bound, pin(next, &bases, bases.to_vec()));
                        prop_assert!(!fits || before.0 == 0 || bound.pinned() <= 30 || bound.pinned() == before.1);
                        prop_assert!(fits || before.0 > 0 || before.0 == 0 && pins.has_parked());
                    }
                    2 => {
                        let mut ids: Vec<u64> = pins.shown.keys().copied().collect();
                        ids.sort_unstable();
                        if let Some(id) = ids.get(pick as usize) {
                            pins.release(&mut bound, *id).unwrap();
                        }
                    }
                    _ => drop(pins.resume(&mut bound)),
                }
                let shown: HashSet<u64> = sessions.iter().flat_map(|pins| pins.shown.values()).flat_map(|pin| pin.kept.clone()).collect();
                prop_assert_eq!(bound.pinned(), 10 * shown.len() as u64);
                prop_assert!(bound.pinned() <= 45);
                let waiting: HashSet<u64> = sessions.iter().filter(|pins| pins.has_parked()).map(|pins| pins.session).collect();
                prop_assert_eq!(bound.line.iter().copied().collect::<HashSet<_>>(), waiting);
            }
            for pins in &mut sessions {
                pins.closed(&mut bound);
            }
            prop_assert_eq!((bound.pinned(), bound.next()), (0, None));
        }
    }
}
