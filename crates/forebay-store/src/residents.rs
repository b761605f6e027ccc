//! The copies that a tier holds, in eviction order and by frame.
//!
//! Two questions are answered: which copy goes next (SIEVE), and which frame is emptied with the least loss. Only
//! publishing and evicting take its lock; hits set a flag in the copy itself.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use crate::Eviction;
use crate::run::Held;
use crate::sieve::{Sieve, Token, Verdict};

/// The copies of one tier: all memory, or one disk.
#[derive(Debug)]
pub(crate) struct Residents<T> {
    order: Mutex<Order<T>>,
}

#[derive(Debug)]
struct Order<T> {
    sieve: Sieve<Arc<T>>,
    frames: HashMap<u32, Frame>,
    /// The same frames, those with the least used bytes first.
    by_use: BTreeSet<(u64, u32)>,
    run_bytes: u64,
}

#[derive(Debug, Default)]
struct Frame {
    /// Bytes in the extents of its copies.
    used: u64,
    tokens: Vec<Token>,
}

/// How many copies a tier holds, and how many bytes of runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holding {
    pub(crate) runs: u64,
    pub(crate) bytes: u64,
}

impl<T: Held> Residents<T> {
    pub(crate) fn new() -> Self {
        Self {
            order: Mutex::new(Order {
                sieve: Sieve::new(),
                frames: HashMap::new(),
                by_use: BTreeSet::new(),
                run_bytes: 0,
            }),
        }
    }

    /// Adds a copy, as the newest.
    pub(crate) fn insert(&self, copy: &Arc<T>) {
        let mut order = self.order.lock();
        let token = order.sieve.insert(Arc::clone(copy));
        copy.marks().token.store(token.to_u64(), Ordering::Relaxed);
        order.run_bytes += u64::from(copy.run().byte_len);
        let frame = order.frames.entry(copy.frame()).or_default();
        let before = (frame.used, copy.frame());
        frame.used += copy.extent_size();
        frame.tokens.push(token);
        let after = (frame.used, copy.frame());
        order.by_use.remove(&before);
        order.by_use.insert(after);
    }

    /// Takes out a copy that was inserted; no effect when it has left already.
    pub(crate) fn remove(&self, copy: &Arc<T>) {
        let mut order = self.order.lock();
        let token = Token::from_u64(copy.marks().token.load(Ordering::Relaxed));
        if order.sieve.remove(token).is_some() {
            order.left(copy, token);
        }
    }

    /// Takes out the copy that goes next, in order of `eviction`; `may_go` can refuse one for now.
    pub(crate) fn evict(&self, eviction: Eviction, may_go: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        let mut order = self.order.lock();
        let victim = order.sieve.evict(|copy| {
            if !may_go(copy) {
                Verdict::Skip
            } else if eviction == Eviction::Sieve && copy.marks().take_visited() {
                Verdict::Spare
            } else {
                Verdict::Evict
            }
        })?;
        let token = Token::from_u64(victim.marks().token.load(Ordering::Relaxed));
        order.left(&victim, token);
        Some(victim)
    }

    /// Takes out all copies of the frame with the least used bytes, of those frames whose copies all `may_go`. Empty
    /// when there is none.
    pub(crate) fn evict_frame(&self, may_go: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut order = self.order.lock();
        let order = &mut *order;
        let sieve = &order.sieve;
        let frame_may_go = |number: &u32| {
            let tokens = order.frames.get(number).map_or(&[][..], |frame| &frame.tokens);
            tokens.iter().all(|token| sieve.get(*token).is_none_or(|copy| may_go(copy)))
        };
        let Some(first) = order.by_use.iter().find(|(_, number)| frame_may_go(number)).copied() else {
            return Vec::new();
        };
        let (_, number) = first;
        order.by_use.remove(&first);
        let Some(frame) = order.frames.remove(&number) else { return Vec::new() };
        let victims: Vec<_> = frame.tokens.into_iter().filter_map(|token| order.sieve.remove(token)).collect();
        order.run_bytes -= victims.iter().map(|copy| u64::from(copy.run().byte_len)).sum::<u64>();
        victims
    }

    pub(crate) fn holding(&self) -> Holding {
        let order = self.order.lock();
        Holding { runs: order.sieve.len() as u64, bytes: order.run_bytes }
    }
}

impl<T: Held> Order<T> {
    /// Forgets what is kept besides the order of a copy that has left it.
    fn left(&mut self, copy: &T, token: Token) {
        self.run_bytes -= u64::from(copy.run().byte_len);
        let number = copy.frame();
        let Some(frame) = self.frames.get_mut(&number) else { return };
        self.by_use.remove(&(frame.used, number));
        frame.used -= copy.extent_size();
        frame.tokens.retain(|other| *other != token);
        if frame.tokens.is_empty() {
            self.frames.remove(&number);
        } else {
            self.by_use.insert((frame.used, number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Marks, Run};
    use forebay_types::{BlockKey, FileId, SectorRange};
    use proptest::prelude::*;

    #[derive(Debug)]
    struct Fake {
        run: Run,
        frame: u32,
        pinned: bool,
        marks: Marks,
    }

    impl Held for Fake {
        fn run(&self) -> &Run {
            &self.run
        }

        fn frame(&self) -> u32 {
            self.frame
        }

        fn extent_size(&self) -> u64 {
            u64::from(self.run.byte_len)
        }

        fn marks(&self) -> &Marks {
            &self.marks
        }
    }

    fn copy(frame: u32, length: usize, pinned: bool) -> Arc<Fake> {
        let key = BlockKey { file: FileId([0; 16]), index: 0 };
        let run = Run::of(key, SectorRange { start: 0, end: 1 }, &vec![0; length]);
        Arc::new(Fake { run, frame, pinned, marks: Marks::default() })
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert { frame: u32, length: usize, pinned: bool },
        Remove(prop::sample::Index),
        Evict,
        EvictFrame,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            5 => (0u32..6, 1usize..50, prop::bool::weighted(0.2))
                .prop_map(|(frame, length, pinned)| Step::Insert { frame, length, pinned }),
            2 => any::<prop::sample::Index>().prop_map(Step::Remove),
            1 => Just(Step::Evict),
            1 => Just(Step::EvictFrame),
        ];
        prop::collection::vec(step, 1..120)
    }

    proptest! {
        #[test]
        fn the_emptiest_frame_without_pins_goes_as_a_whole_and_counts_stay_right(steps in steps()) {
            let residents = Residents::new();
            let mut held: Vec<Arc<Fake>> = Vec::new();
            for step in steps {
                match step {
                    Step::Insert { frame, length, pinned } => {
                        let copy = copy(frame, length, pinned);
                        residents.insert(&copy);
                        held.push(copy);
                    }
                    Step::Remove(pick) if !held.is_empty() => {
                        let copy = held.swap_remove(pick.index(held.len()));
                        residents.remove(&copy);
                        residents.remove(&copy);
                    }
                    Step::Remove(_) => {}
                    Step::Evict => match residents.evict(Eviction::Sieve, |copy| !copy.pinned) {
                        Some(victim) => held.retain(|copy| !Arc::ptr_eq(copy, &victim)),
                        None => prop_assert!(held.iter().all(|copy| copy.pinned)),
                    },
                    Step::EvictFrame => {
                        let of = |frame| held.iter().filter(move |copy| copy.frame == frame);
                        let used = |frame| of(frame).map(|copy| copy.extent_size()).sum::<u64>();
                        let may_go = |frame: &u32| of(*frame).count() > 0 && of(*frame).all(|copy| !copy.pinned);
                        let expected = (0..6).filter(may_go).map(used).min();
                        let victims = residents.evict_frame(|copy| !copy.pinned);
                        let gone = victims.first().map(|victim| victim.frame);
                        prop_assert_eq!(gone.map(used), expected);
                        if let Some(frame) = gone {
                            prop_assert_eq!(victims.len(), of(frame).count());
                            held.retain(|copy| copy.frame != frame);
                        }
                    }
                }
                let bytes = held.iter().map(|copy| u64::from(copy.run.byte_len)).sum();
                prop_assert_eq!(residents.holding(), Holding { runs: held.len() as u64, bytes });
            }
        }
    }
}
