//! Copies that come and go in any order, against what each step may take out.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use forebay_types::{BlockKey, FileId, Priority, SectorRange};
use proptest::prelude::*;

use super::*;
use crate::run::{Marks, Run};

#[derive(Debug)]
struct Fake {
    run: Run,
    frame: u32,
    has_readers: bool,
    was_reclassed: AtomicBool,
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

impl Fake {
    fn rank(&self) -> Rank {
        let place = self.marks.place.lock();
        if place.is_pinned() { Rank::Pinned } else { place.keep.priority.into() }
    }
}

fn copy(frame: u32, length: usize, has_readers: bool) -> Arc<Fake> {
    let key = BlockKey { file: FileId([0; 16]), index: 0 };
    let run = Run::of(key, SectorRange { start: 0, end: 1 }, &vec![0; length]);
    Arc::new(Fake { run, frame, has_readers, was_reclassed: AtomicBool::new(false), marks: Marks::default() })
}

#[derive(Clone, Debug)]
enum Step {
    Insert { frame: u32, length: usize, has_readers: bool, keep: Keep, replaces: Option<prop::sample::Index> },
    Reclass { pick: prop::sample::Index, keep: Keep },
    Remove(prop::sample::Index),
    Evict,
    EvictFrame,
    EvictOf(u8),
}

const QUOTA: u64 = 100;

fn account(number: u8) -> Account {
    Account::of(&[number])
}

fn keeps() -> impl Strategy<Value = Keep> {
    let priority = prop_oneof![Just(Priority::Low), Just(Priority::Normal), Just(Priority::High)];
    (priority, prop::bool::weighted(0.2), prop::option::of(0u8..2)).prop_map(|(priority, pinned, number)| Keep {
        priority,
        pinned,
        account: number.map(account),
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (
            0u32..6,
            1usize..50,
            prop::bool::weighted(0.2),
            keeps(),
            prop::option::weighted(0.3, any::<prop::sample::Index>()),
        )
            .prop_map(|(frame, length, has_readers, keep, replaces)| {
                Step::Insert { frame, length, has_readers, keep, replaces }
            }),
        1 => (any::<prop::sample::Index>(), keeps()).prop_map(|(pick, keep)| Step::Reclass { pick, keep }),
        2 => any::<prop::sample::Index>().prop_map(Step::Remove),
        1 => Just(Step::Evict),
        1 => Just(Step::EvictFrame),
        1 => (0u8..2).prop_map(Step::EvictOf),
    ];
    prop::collection::vec(step, 1..120)
}

fn bytes<'a>(copies: impl Iterator<Item = &'a Arc<Fake>>) -> u64 {
    copies.map(|copy| u64::from(copy.run.byte_len)).sum()
}

proptest! {
    #[test]
    fn low_goes_before_high_and_pins_never_and_counts_stay_right(steps in steps()) {
        let residents = Residents::new(6);
        let mut held: Vec<Arc<Fake>> = Vec::new();
        for step in steps {
            match step {
                Step::Insert { frame, length, has_readers, keep, replaces } => {
                    let copy = copy(frame, length, has_readers);
                    let replaced: Vec<_> = replaces
                        .filter(|_| !held.is_empty())
                        .map(|pick| Arc::clone(&held[pick.index(held.len())]))
                        .into_iter()
                        .collect();
                    let is_in = |copies: &[Arc<Fake>], copy: &Arc<Fake>| copies.iter().any(|other| Arc::ptr_eq(other, copy));
                    let stay = || held.iter().filter(|copy| !is_in(&replaced, copy));
                    let mine = || stay().filter(|other| other.marks.keep().account == keep.account);
                    let pinned = bytes(mine().filter(|other| other.marks.is_pinned()));
                    let fits = keep.account.is_none() || pinned + length as u64 <= QUOTA;
                    let terms = Terms { keep, quota: Some(QUOTA), ..Terms::default() };
                    let gone = residents.insert(&copy, terms, &replaced);
                    prop_assert_eq!(gone.is_some(), fits);
                    if let Some(gone) = gone {
                        prop_assert!(gone.iter().all(|copy| copy.marks.keep().account == keep.account));
                        prop_assert!(gone.iter().all(|copy| !copy.marks.is_pinned()));
                        held.retain(|copy| !is_in(&gone, copy) && !is_in(&replaced, copy));
                        held.push(copy);
                        let used = keep.account.map_or(0, |account| residents.use_of(account).bytes);
                        // More only by what was given to the account later, which is not checked here.
                        let reclassed = bytes(held.iter().filter(|copy| copy.was_reclassed.load(Relaxed)));
                        prop_assert!(used <= QUOTA + reclassed);
                    }
                }
                Step::Reclass { pick, keep } if !held.is_empty() => {
                    let copy = &held[pick.index(held.len())];
                    residents.reclass(copy, keep, false);
                    copy.was_reclassed.store(true, Relaxed);
                    prop_assert_eq!(copy.marks.keep(), keep);
                }
                Step::Remove(pick) if !held.is_empty() => {
                    let copy = held.swap_remove(pick.index(held.len()));
                    residents.remove(&copy);
                    residents.remove(&copy);
                    residents.reclass(&copy, Keep::default(), false);
                }
                Step::Remove(_) | Step::Reclass { .. } => {}
                Step::Evict => {
                    let may_go = |copy: &Arc<Fake>| !copy.has_readers && !copy.marks.is_pinned();
                    let lowest = held.iter().filter(|copy| may_go(copy)).map(|copy| copy.rank()).min();
                    let victim = residents.evict(Eviction::Sieve, |copy| !copy.has_readers);
                    prop_assert_eq!(victim.as_ref().map(|victim| victim.rank()), lowest);
                    held.retain(|copy| victim.as_ref().is_none_or(|victim| !Arc::ptr_eq(copy, victim)));
                }
                Step::EvictFrame => {
                    let of = |frame| held.iter().filter(move |copy| copy.frame == frame);
                    let loss = |frame| (of(frame).map(|copy| copy.rank()).max(), bytes(of(frame)));
                    let may_go = |frame: &u32| {
                        of(*frame).count() > 0
                            && of(*frame).all(|copy| !copy.has_readers && !copy.marks.is_pinned())
                    };
                    let least = (0..6).filter(may_go).map(loss).min();
                    let losses: Vec<_> = (0..6).map(loss).collect();
                    let victims = residents.evict_frame(|copy| !copy.has_readers);
                    let gone = victims.first().map(|victim| victim.frame);
                    prop_assert_eq!(gone.map(|frame| losses[frame as usize]), least);
                    if let Some(frame) = gone {
                        prop_assert_eq!(victims.len(), of(frame).count());
                        held.retain(|copy| copy.frame != frame);
                    }
                }
                Step::EvictOf(number) => {
                    let mine = |copy: &&Arc<Fake>| copy.marks.keep().account == Some(account(number));
                    let is_over = bytes(held.iter().filter(mine)) > 20;
                    let lowest = held.iter().filter(mine).map(|copy| copy.rank()).min();
                    let expected = lowest.filter(|rank| is_over && *rank < Rank::Pinned);
                    let victim = residents.evict_of(account(number), 20);
                    prop_assert_eq!(victim.as_ref().map(|victim| victim.rank()), expected);
                    held.retain(|copy| victim.as_ref().is_none_or(|victim| !Arc::ptr_eq(copy, victim)));
                }
            }
            let pinned = || held.iter().filter(|copy| copy.marks.is_pinned());
            let holding = Holding {
                runs: held.len() as u64,
                bytes: bytes(held.iter()),
                pinned_bytes: bytes(pinned()),
            };
            prop_assert_eq!(residents.holding(), holding);
            prop_assert_eq!(residents.pinned(usize::MAX).len(), pinned().count());
            let pinned_frames: BTreeSet<u32> = pinned().map(|copy| copy.frame).collect();
            prop_assert!(pinned_frames.len() <= 4, "two frames can always be emptied");
            for number in 0..2 {
                let mine = |copy: &&Arc<Fake>| copy.marks.keep().account == Some(account(number));
                let expected = AccountUse {
                    bytes: bytes(held.iter().filter(mine)),
                    pinned: bytes(pinned().filter(mine)),
                };
                prop_assert_eq!(residents.use_of(account(number)), expected);
            }
        }
    }
}
