//! Which calls on a connection wait for an answer. Pure: `C` is whatever a call owns, its buffer above all.
//!
//! A call stays here until its answer arrives or the connection ends, also when its caller has long left: its buffer
//! belongs to the operation (invariant 3). A connection with too many such calls *retires*: it takes no new ones, and
//! is *spent* when no call is left that a caller waits for.

use std::collections::HashMap;

/// The calls of one connection.
#[derive(Debug)]
pub struct Outstanding<C> {
    next: u64,
    calls: HashMap<u64, Waiting<C>>,
    abandoned: usize,
    max_abandoned: usize,
    accepting: bool,
    /// No task watches for silence, because there were no calls.
    unwatched: bool,
}

#[derive(Debug)]
struct Waiting<C> {
    call: C,
    abandoned: bool,
}

/// A call that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// Its number on the wire.
    pub id: u64,
    /// Whether a task must begin to watch for silence.
    pub watch: bool,
}

impl<C> Outstanding<C> {
    /// No calls yet; with more than `max_abandoned` that were, no new ones are taken.
    #[must_use]
    pub fn new(max_abandoned: usize) -> Self {
        Self::beginning_at(1, max_abandoned)
    }

    /// The same; its first call has the number `first`, since there were others before.
    #[must_use]
    pub fn beginning_at(first: u64, max_abandoned: usize) -> Self {
        Self { next: first, calls: HashMap::new(), abandoned: 0, max_abandoned, accepting: true, unwatched: true }
    }

    /// Whether new calls may begin.
    #[must_use]
    pub fn is_accepting(&self) -> bool {
        self.accepting
    }

    /// Takes `call` in, or gives it back when the connection takes no more.
    ///
    /// # Errors
    /// The call, when the connection takes no more.
    pub fn begin(&mut self, call: C) -> Result<Begun, C> {
        if !self.accepting {
            return Err(call);
        }
        let id = self.next;
        // 2^64 calls do not happen in the life of a connection.
        self.next += 1;
        self.calls.insert(id, Waiting { call, abandoned: false });
        Ok(Begun { id, watch: std::mem::take(&mut self.unwatched) })
    }

    /// The answer to call `id` is arriving.
    pub fn take(&mut self, id: u64) -> Option<C> {
        let waiting = self.calls.remove(&id)?;
        self.abandoned -= usize::from(waiting.abandoned);
        Some(waiting.call)
    }

    /// All calls, also those that no caller waits for, with their numbers.
    pub fn calls_mut(&mut self) -> impl Iterator<Item = (u64, &mut C)> {
        self.calls.iter_mut().map(|(id, waiting)| (*id, &mut waiting.call))
    }

    /// Call `id`, if its answer is not arriving yet.
    pub fn call_mut(&mut self, id: u64) -> Option<&mut C> {
        self.calls.get_mut(&id).map(|waiting| &mut waiting.call)
    }

    /// The caller of `id` has left. True when that makes the connection spent.
    pub fn abandon(&mut self, id: u64) -> bool {
        if let Some(waiting) = self.calls.get_mut(&id) {
            self.abandoned += usize::from(!waiting.abandoned);
            waiting.abandoned = true;
        }
        self.accepting &= self.abandoned <= self.max_abandoned;
        self.is_spent()
    }

    /// No new calls are taken, and the connection ends with those that it has.
    pub fn retire(&mut self) {
        self.accepting = false;
    }

    /// Whether the connection takes no new calls and no caller waits for the ones it has.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        !self.accepting && self.abandoned == self.calls.len()
    }

    /// Whether silence would mean anything. When not, the next call to begin says that it must be watched for again.
    pub fn watch(&mut self) -> bool {
        self.unwatched = self.calls.is_empty();
        !self.unwatched
    }

    /// The connection has ended: every call that is left.
    pub fn end(&mut self) -> Vec<C> {
        self.accepting = false;
        self.abandoned = 0;
        self.calls.drain().map(|(_, waiting)| waiting.call).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_abandoned_call_keeps_what_it_owns_until_its_answer_arrives() {
        let mut calls = Outstanding::new(8);
        let id = calls.begin("buffer").unwrap().id;
        assert!(!calls.abandon(id));
        assert_eq!(calls.take(id), Some("buffer"));
        assert_eq!(calls.take(id), None);
    }

    #[test]
    fn a_connection_with_too_many_abandoned_calls_retires_and_lets_the_others_end() {
        let mut calls = Outstanding::new(1);
        let ids: Vec<u64> = (0..4).map(|call| calls.begin(call).unwrap().id).collect();
        assert!(!calls.abandon(ids[0]));
        assert!(calls.is_accepting());
        assert!(!calls.abandon(ids[1]));
        assert_eq!(calls.begin(9), Err(9));
        assert_eq!(calls.take(ids[2]), Some(2));
        assert!(!calls.is_spent());
        assert!(calls.abandon(ids[3]));
        assert_eq!(calls.end().len(), 3);
    }

    #[test]
    fn calls_go_on_from_a_number_that_others_ended_with() {
        let mut calls = Outstanding::beginning_at(7, 0);
        assert_eq!(calls.begin("late").unwrap().id, 7);
        calls.retire();
        assert!(calls.begin("another").is_err() && !calls.is_spent());
        assert_eq!((calls.take(7), calls.is_spent()), (Some("late"), true));
    }

    #[test]
    fn silence_is_watched_for_only_while_calls_wait() {
        let mut calls = Outstanding::new(1);
        let first = calls.begin(()).unwrap();
        assert!(first.watch);
        assert!(!calls.begin(()).unwrap().watch);
        assert!(calls.watch());
        calls.take(first.id);
        calls.take(first.id + 1);
        assert!(!calls.watch());
        assert!(calls.begin(()).unwrap().watch);
    }

    proptest! {
        #[test]
        fn every_call_is_given_back_exactly_once(steps in prop::collection::vec((0u8..3, any::<prop::sample::Index>()), 1..200)) {
            let mut calls = Outstanding::new(5);
            let (mut live, mut begun, mut back) = (Vec::new(), 0, 0);
            for (step, pick) in steps {
                match step {
                    0 => if let Ok(call) = calls.begin(()) { live.push(call.id); begun += 1; },
                    _ if live.is_empty() => {}
                    1 => back += usize::from(calls.take(live.swap_remove(pick.index(live.len()))).is_some()),
                    _ => { calls.abandon(live[pick.index(live.len())]); }
                }
            }
            prop_assert_eq!(back + calls.end().len(), begun);
        }
    }
}
