//! Which connections may stay when all places of a listener are taken: those that are being answered. Of the others, the one that
//! has asked nothing for longest makes place for the next.

use std::collections::HashMap;

/// What a connection that has a place does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// It has not asked anything yet.
    Silent,
    /// It is being answered.
    Answered,
    /// It was answered, and may ask more.
    Idle,
    /// It was told to leave.
    Leaving,
}

/// The places of a listener.
#[derive(Debug)]
pub(crate) struct Places {
    most: usize,
    taken: HashMap<u64, (Doing, u64)>,
    /// Counts what happens: an order of time, without a clock.
    events: u64,
}

impl Places {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, taken: HashMap::new(), events: 0 }
    }

    /// Takes a place, and names it; `None` when there is none.
    pub(crate) fn take(&mut self) -> Option<u64> {
        if self.taken.len() >= self.most {
            return None;
        }
        self.events += 1;
        self.taken.insert(self.events, (Doing::Silent, self.events));
        Some(self.events)
    }

    /// A connection does something else now.
    pub(crate) fn now(&mut self, place: u64, doing: Doing) {
        self.events += 1;
        if let Some(taken) = self.taken.get_mut(&place).filter(|(before, _)| *before != Doing::Leaving) {
            *taken = (doing, self.events);
        }
    }

    /// Tells the connection to leave that has asked nothing for longest, unless one was told already and has not left.
    pub(crate) fn make_room(&mut self) -> Option<u64> {
        let is_leaving = self.taken.values().any(|(doing, _)| *doing == Doing::Leaving);
        let asks_nothing = |(doing, _): &(Doing, u64)| matches!(doing, Doing::Silent | Doing::Idle);
        let idle = self.taken.iter().filter(|(_, taken)| !is_leaving && asks_nothing(taken));
        let (place, _) = idle.min_by_key(|(_, (_, since))| *since)?;
        let place = *place;
        self.now(place, Doing::Leaving);
        Some(place)
    }

    /// A place is free again.
    pub(crate) fn leave(&mut self, place: u64) {
        self.taken.remove(&place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_nothing_for_longest_makes_place_and_who_is_being_answered_stays() {
        let mut places = Places::new(3);
        let [first, second, third] = [(); 3].map(|()| places.take().unwrap());
        assert_eq!(places.take(), None);
        places.now(first, Doing::Answered);
        places.now(first, Doing::Idle);
        places.now(third, Doing::Answered);
        assert_eq!(places.make_room(), Some(second), "it never asked anything, for longer than the first was idle");
        assert_eq!(places.make_room(), None, "one is leaving");
        places.now(second, Doing::Answered);
        assert_eq!(places.make_room(), None, "and does not stay for what it asks now");
        places.leave(second);
        let fourth = places.take().unwrap();
        assert_eq!(places.make_room(), Some(first));
        places.leave(first);
        places.now(fourth, Doing::Answered);
        assert_eq!(places.make_room(), None, "all are being answered");
    }
}
