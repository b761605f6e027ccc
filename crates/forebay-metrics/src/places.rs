//! Which connections a listener has when more come than it has places for.
//!
//! One client could take all places, and so could clients that ask nothing. So of what comes from one address only a
//! share may be there at once: beyond it, the next one takes the place of one of its own. And when all places are
//! taken, a connection makes room on which this process has nothing to do: first those that ask nothing, then those
//! whose clients are to go on with what they began. Of these, the one goes that has been so for longest. One that is
//! being answered stays.
//!
//! Loopback has no share: everybody on this machine, and a proxy on it, has the same address. What asks nothing from
//! there goes first instead.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

/// Of the bits of an IPv6 address, those that tell networks apart: within one, a host has as many addresses as it
/// wants.
const V6_NETWORK: u128 = !(u64::MAX as u128);

/// What a connection that has a place does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// It has not asked anything yet.
    Silent,
    /// It is being answered.
    Answered,
    /// Its client is to go on: to send the rest of a request, or to read the answer.
    Awaited,
    /// It was answered, and may ask more.
    Idle,
}

/// Where connections come from, as shares are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// This machine.
    Loopback,
    /// An IPv4 address, or an IPv6 network.
    Elsewhere(IpAddr),
}

/// What becomes of a connection that comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It has this place.
    Taken(u64),
    /// It is to come again when another connection has left, or does something else.
    Wait,
    /// It is closed: its source has its share, and all of that is being answered.
    Refused,
}

/// The answer to a connection that comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admission {
    pub(crate) verdict: Verdict,
    /// The place whose connection is told to leave.
    pub(crate) leaves: Option<u64>,
}

/// The places of a listener.
#[derive(Debug)]
pub(crate) struct Places {
    most: usize,
    taken: HashMap<u64, Taken>,
    /// Counts what happens: an order of time, without a clock.
    events: u64,
}

#[derive(Debug)]
struct Taken {
    source: Source,
    doing: Doing,
    since: u64,
    /// It was told to leave.
    leaving: bool,
}

impl Source {
    pub(crate) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            address if address.is_loopback() => Self::Loopback,
            IpAddr::V6(address) => Self::Elsewhere(Ipv6Addr::from_bits(address.to_bits() & V6_NETWORK).into()),
            address => Self::Elsewhere(address),
        }
    }
}

impl Taken {
    /// The lower, the sooner it makes room; `None` if it does not.
    fn rank(&self) -> Option<u8> {
        match (self.doing, self.source) {
            _ if self.leaving => None,
            (Doing::Answered, _) => None,
            (Doing::Silent | Doing::Idle, Source::Loopback) => Some(0),
            (Doing::Silent | Doing::Idle, Source::Elsewhere(_)) => Some(1),
            (Doing::Awaited, _) => Some(2),
        }
    }
}

impl Places {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, taken: HashMap::new(), events: 0 }
    }

    /// A connection comes.
    pub(crate) fn admit(&mut self, source: Source) -> Admission {
        let mut leaves = None;
        if self.has_its_share(source) {
            leaves = self.make_room(|taken| taken.source == source);
            if leaves.is_none() {
                return Admission { verdict: Verdict::Refused, leaves };
            }
        }
        if self.taken.len() < self.most {
            return Admission { verdict: Verdict::Taken(self.take(source)), leaves };
        }
        if !self.taken.values().any(|taken| taken.leaving) {
            leaves = self.make_room(|_| true);
        }
        Admission { verdict: Verdict::Wait, leaves }
    }

    /// A connection does something else now.
    pub(crate) fn now(&mut self, place: u64, doing: Doing) {
        if let Some(taken) = self.taken.get_mut(&place).filter(|taken| taken.doing != doing) {
            self.events += 1;
            taken.doing = doing;
            taken.since = self.events;
        }
    }

    /// What a connection does; `None` when it has left.
    pub(crate) fn doing(&self, place: u64) -> Option<Doing> {
        self.taken.get(&place).map(|taken| taken.doing)
    }

    /// A place is free again.
    pub(crate) fn leave(&mut self, place: u64) {
        self.taken.remove(&place);
    }

    /// Whether one more of `source` would be more than half of all. Those that leave do not count any more.
    fn has_its_share(&self, source: Source) -> bool {
        let share = (self.most / 2).max(1);
        let of_source = self.taken.values().filter(|taken| taken.source == source && !taken.leaving);
        source != Source::Loopback && of_source.count() >= share
    }

    fn take(&mut self, source: Source) -> u64 {
        self.events += 1;
        let taken = Taken { source, doing: Doing::Silent, since: self.events, leaving: false };
        self.taken.insert(self.events, taken);
        self.events
    }

    /// Tells one of these connections to leave, if any can be told.
    fn make_room(&mut self, of: impl Fn(&Taken) -> bool) -> Option<u64> {
        let these = self.taken.iter_mut().filter(|(_, taken)| of(taken));
        let ranked = these.filter_map(|(place, taken)| Some(((taken.rank()?, taken.since), *place, taken)));
        let (_, place, taken) = ranked.min_by_key(|(order, ..)| *order)?;
        taken.leaving = true;
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elsewhere(last: u8) -> Source {
        Source::of(IpAddr::from([10, 0, 0, last]))
    }

    #[track_caller]
    fn taken(places: &mut Places, source: Source) -> u64 {
        match places.admit(source) {
            Admission { verdict: Verdict::Taken(place), leaves: None } => place,
            other => panic!("{other:?}"),
        }
    }

    fn waits(leaves: Option<u64>) -> Admission {
        Admission { verdict: Verdict::Wait, leaves }
    }

    #[test]
    fn who_asks_nothing_for_longest_makes_place_and_who_is_being_answered_stays() {
        let mut places = Places::new(3);
        let [first, second, third] = [(); 3].map(|()| taken(&mut places, Source::Loopback));
        places.now(first, Doing::Answered);
        places.now(first, Doing::Idle);
        places.now(third, Doing::Answered);
        let second_leaves = places.admit(Source::Loopback);
        assert_eq!(second_leaves, waits(Some(second)), "it never asked anything, for longer than the first was idle");
        assert_eq!(places.admit(Source::Loopback), waits(None), "one is leaving");
        places.now(second, Doing::Answered);
        assert_eq!(places.admit(Source::Loopback), waits(None), "and does not stay for what it asks now");
        places.leave(second);
        let fourth = taken(&mut places, Source::Loopback);
        assert_eq!(places.admit(Source::Loopback), waits(Some(first)));
        places.leave(first);
        places.now(fourth, Doing::Answered);
        taken(&mut places, Source::Loopback);
        assert_eq!(places.doing(fourth), Some(Doing::Answered));
        assert_eq!(places.doing(first), None);
    }

    #[test]
    fn while_all_are_being_answered_who_comes_waits() {
        let mut places = Places::new(2);
        for _ in 0..2 {
            let place = taken(&mut places, Source::Loopback);
            places.now(place, Doing::Answered);
        }
        assert_eq!(places.admit(Source::Loopback), waits(None));
        assert_eq!(places.admit(elsewhere(1)), waits(None));
    }

    #[test]
    fn idle_ones_of_this_machine_go_first_and_those_whose_clients_hold_us_up_last() {
        let mut places = Places::new(4);
        let reads_nothing = taken(&mut places, Source::Loopback);
        places.now(reads_nothing, Doing::Answered);
        places.now(reads_nothing, Doing::Awaited);
        let far = taken(&mut places, elsewhere(1));
        let near = taken(&mut places, Source::Loopback);
        let busy = taken(&mut places, elsewhere(2));
        places.now(busy, Doing::Answered);
        for leaves in [near, far, reads_nothing] {
            assert_eq!(places.admit(elsewhere(3)), waits(Some(leaves)));
            places.leave(leaves);
            let answered = taken(&mut places, Source::Loopback);
            places.now(answered, Doing::Answered);
        }
        assert_eq!(places.admit(elsewhere(3)), waits(None));
    }

    #[test]
    fn who_goes_on_is_not_taken_for_one_that_stopped_long_ago() {
        let mut places = Places::new(2);
        let [first, second] = [(); 2].map(|()| taken(&mut places, Source::Loopback));
        for place in [first, second] {
            places.now(place, Doing::Answered);
            places.now(place, Doing::Awaited);
        }
        // It is said again and again, and has not begun anew.
        places.now(second, Doing::Awaited);
        places.now(first, Doing::Answered);
        places.now(first, Doing::Awaited);
        assert_eq!(places.admit(Source::Loopback), waits(Some(second)));
    }

    #[test]
    fn one_address_has_half_of_all_places_and_its_next_takes_the_place_of_its_own() {
        let mut places = Places::new(6);
        let other = taken(&mut places, elsewhere(2));
        let [first, second, third] = [(); 3].map(|()| taken(&mut places, elsewhere(1)));
        places.now(first, Doing::Answered);
        let Admission { verdict: Verdict::Taken(_), leaves } = places.admit(elsewhere(1)) else {
            panic!("it takes the place of one of its own")
        };
        assert_eq!(leaves, Some(second), "the other's was idle for longer, and stays");
        places.leave(second);
        for stays in [other, third] {
            assert_eq!(places.doing(stays), Some(Doing::Silent));
        }
        // Loopback has no share.
        for _ in 0..2 {
            taken(&mut places, Source::Loopback);
        }
        assert_eq!(places.taken.len(), 6);
    }

    #[test]
    fn of_an_address_whose_share_is_being_answered_no_more_is_taken() {
        let mut places = Places::new(4);
        for _ in 0..2 {
            let place = taken(&mut places, elsewhere(1));
            places.now(place, Doing::Answered);
        }
        assert_eq!(places.admit(elsewhere(1)), Admission { verdict: Verdict::Refused, leaves: None });
        taken(&mut places, elsewhere(2));
    }

    #[test]
    fn with_one_place_there_is_room_for_everybody_in_turn() {
        let mut places = Places::new(1);
        let first = taken(&mut places, elsewhere(1));
        assert_eq!(places.admit(elsewhere(1)), waits(Some(first)));
        places.leave(first);
        taken(&mut places, elsewhere(1));
    }

    #[test]
    fn a_share_is_of_an_ipv4_address_or_an_ipv6_network() {
        let of = |address: &str| Source::of(address.parse().unwrap());
        for loopback in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(of(loopback), Source::Loopback, "{loopback}");
        }
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.2"), of("10.0.0.1"));
        assert_eq!(of("fd00:1:2:3::1"), of("fd00:1:2:3:ffff::2"));
        assert_ne!(of("fd00:1:2:4::1"), of("fd00:1:2:3::1"));
    }
}
