//! The budget in virtual time, against a store that is a list and files that are names.

use std::time::Duration;

use forebay_types::FileId;

use super::*;

const MIB: u64 = 1 << 20;
const FRAME: u64 = 4 * MIB;
const SECOND: Duration = Duration::from_secs(1);

fn key(index: u64) -> BlockKey {
    BlockKey { file: FileId([1; 16]), index }
}

fn roomy() -> StoreUse {
    StoreUse { spare: u64::MAX, ..StoreUse::default() }
}

/// Asks until it is settled; how many frames were taken, or `None` if it was refused.
fn lend(budget: &mut Budget, bytes: u64, store: StoreUse) -> Option<u64> {
    let mut taken = 0;
    loop {
        match budget.ask(bytes, true, store) {
            Step::Enough => return Some(taken),
            Step::Take => {
                budget.took();
                taken += 1;
            }
            Step::GiveUp(_) => {}
            Step::Refuse => return None,
        }
    }
}

#[test]
fn files_get_frames_for_what_they_take_together_and_give_them_back() {
    let mut budget = Budget::new(48 * MIB, FRAME);
    assert_eq!(lend(&mut budget, 100_000, roomy()), Some(1));
    assert_eq!(lend(&mut budget, 100_000, roomy()), Some(0), "there is room in the frame");
    assert_eq!(lend(&mut budget, 8 * MIB, roomy()), Some(2));
    assert_eq!(budget.give_back(8 * MIB), 2);
    assert_eq!((budget.give_back(200_000), budget.frames()), (1, 0));
    assert_eq!(budget.give_back(MIB), 0, "more than there was is no harm");
}

#[test]
fn three_quarters_can_be_lent_of_a_large_store_and_all_but_64_mib_of_a_small_one() {
    let cases = [(1024, 768), (256, 192), (128, 64), (90, 24), (64, 0), (32, 0)];
    for (capacity, most) in cases {
        assert_eq!(most_of(capacity * MIB, FRAME, false), most * MIB, "{capacity} MiB");
    }
    assert_eq!(most_of(1024 * MIB, FRAME, true), 256 * MIB, "others may hold half");
}

#[test]
fn no_more_is_lent_than_can_be_and_less_where_blocks_are_pinned() {
    let mut budget = Budget::new(48 * MIB, FRAME);
    assert_eq!(lend(&mut budget, 49 * MIB, roomy()), None);
    let pinned = StoreUse { pinned: 20 * MIB, ..roomy() };
    assert_eq!(lend(&mut budget, 29 * MIB, pinned), None);
    assert_eq!(lend(&mut budget, 28 * MIB, pinned), Some(7));
    assert_eq!(lend(&mut budget, 20 * MIB, roomy()), Some(5));
    // Pins that come later want room back, whatever was used when.
    let now = Instant::now();
    assert_eq!(budget.wanted_back(pinned, now), Some(WantedBack { bytes: 20 * MIB, unused_since: now }));
}

#[test]
fn what_is_there_twice_goes_first_where_the_store_is_full() {
    let mut budget = Budget::new(48 * MIB, FRAME);
    (0..3).for_each(|index| budget.is_doubled(key(index)));
    assert_eq!(budget.ask(MIB, true, roomy()), Step::Take, "there is room");
    let full = StoreUse { is_full: true, ..roomy() };
    let mut budget = Budget::new(48 * MIB, FRAME);
    (0..3).for_each(|index| budget.is_doubled(key(index)));
    assert_eq!(budget.ask(MIB, true, full), Step::GiveUp(key(0)));
    budget.is_once(|key| key.index == 1);
    assert_eq!(budget.ask(MIB, true, full), Step::GiveUp(key(2)));
    assert_eq!(budget.ask(MIB, true, full), Step::Take, "there is nothing else");
}

#[test]
fn what_nothing_may_be_evicted_for_gets_what_is_spare_and_what_whole_files_have_twice() {
    let mut budget = Budget::new(48 * MIB, FRAME);
    // Its readers are served by the store.
    budget.is_doubled(key(0));
    let spare = |spare| StoreUse { spare, ..roomy() };
    assert_eq!(budget.ask(MIB, false, spare(FRAME - 1)), Step::Refuse);
    assert_eq!(budget.ask(MIB, true, spare(0)), Step::Take);
    assert_eq!(budget.ask(MIB, false, spare(FRAME)), Step::Take);
    (1..4).for_each(|index| budget.is_doubled_whole(key(index)));
    budget.is_once(|key| key.index == 2);
    assert_eq!(budget.ask(MIB, false, spare(FRAME)), Step::Take, "there is room");
    assert_eq!(budget.ask(MIB, false, spare(0)), Step::GiveUp(key(1)));
    assert_eq!(budget.ask(MIB, false, spare(0)), Step::GiveUp(key(3)));
    assert_eq!(budget.ask(MIB, false, spare(0)), Step::Refuse);
    budget.took();
    // Of what is lent already there is enough, whatever is spare.
    assert_eq!(budget.ask(3 * MIB, false, spare(0)), Step::Enough);
    let full = StoreUse { is_full: true, ..spare(0) };
    assert_eq!(budget.ask(2 * MIB, false, full), Step::Refuse, "and nothing goes");
    budget.is_doubled_whole(key(4));
    assert_eq!(budget.ask(2 * MIB, true, full), Step::GiveUp(key(4)), "whole files first");
    assert_eq!(budget.ask(2 * MIB, true, full), Step::GiveUp(key(0)));
    for index in 0..100_000 {
        budget.is_doubled_whole(key(index));
    }
    assert!(budget.doubled_whole.len() <= MAX_DOUBLED_WHOLE);
}

#[test]
fn what_is_mapped_and_gone_keeps_its_frames_until_it_is_unmapped() {
    let mut budget = Budget::new(48 * MIB, FRAME);
    assert_eq!(lend(&mut budget, 8 * MIB, roomy()), Some(2));
    assert_eq!(budget.lingers(8 * MIB), (0, 2), "for a moment both count");
    assert_eq!(budget.give_back(8 * MIB), 0);
    assert_eq!(budget.lingers(0), (2, 0));
}

#[test]
fn a_store_that_evicts_nothing_wants_nothing_and_neither_does_one_that_made_room_for_files() {
    let mut budget = Budget::new(48 * MIB, FRAME);
    let start = Instant::now();
    let mut store = StoreUse { used: 16 * MIB, ..roomy() };
    assert_eq!(lend(&mut budget, 40 * MIB, store), Some(10));
    for second in 0..1000 {
        assert_eq!(budget.wanted_back(store, start + SECOND * second), None, "{second}");
    }
    // As much as was lent went for that.
    store.evicted = 40 * MIB;
    assert_eq!(budget.wanted_back(store, start + SECOND * 1000), None);
}

#[test]
fn files_go_that_were_not_used_since_the_store_turned_over_and_as_much_as_it_evicts() {
    let mut budget = Budget::new(48 * MIB, FRAME);
    let start = Instant::now();
    let mut store = StoreUse { used: 16 * MIB, ..roomy() };
    assert_eq!(lend(&mut budget, 40 * MIB, store), Some(10));
    let lent = 40 * MIB;
    store.evicted = lent;
    let mut wanted = Vec::new();
    // It evicts 4 MiB a second: it turns over in four seconds.
    for second in 0..20 {
        wanted.push(budget.wanted_back(store, start + SECOND * second));
        store.evicted += 4 * MIB;
    }
    assert!(wanted[..4].iter().all(Option::is_none), "{wanted:?}");
    for (second, wanted) in (0..).zip(wanted).skip(4) {
        let unused_since = start + SECOND * (second - 4);
        assert_eq!(wanted, Some(WantedBack { bytes: 4 * MIB, unused_since }), "{second}");
    }
    // It rests: nothing is wanted any more, though it turned over a while ago.
    store.evicted -= 4 * MIB;
    for second in 20..40 {
        assert_eq!(budget.wanted_back(store, start + SECOND * second), None, "{second}");
    }
}

#[test]
fn what_is_remembered_of_the_store_is_bounded() {
    let mut budget = Budget::new(48 * MIB, FRAME);
    let start = Instant::now();
    for second in 0..100_000 {
        let store = StoreUse { used: 16 * MIB, evicted: u64::from(second) * MIB, ..roomy() };
        let wanted = budget.wanted_back(store, start + SECOND * second);
        assert!(wanted.is_none_or(|wanted| wanted.bytes == 0), "nothing is lent: {wanted:?}");
    }
    assert!(budget.seen.len() <= MAX_SEEN);
    for index in 0..100_000 {
        budget.is_doubled(key(index));
    }
    assert!(budget.doubled.len() <= MAX_DOUBLED);
}

#[test]
fn at_the_end_nothing_is_lent() {
    let mut budget = Budget::new(48 * MIB, FRAME);
    assert_eq!(lend(&mut budget, 40 * MIB, roomy()), Some(10));
    budget.end();
    assert_eq!((budget.frames(), lend(&mut budget, 1, roomy()), budget.give_back(40 * MIB)), (0, None, 0));
}

#[test]
fn whatever_happens_what_files_have_is_lent_and_no_frame_more() {
    const MAX: u64 = 48 * MIB;
    let (mut budget, mut held, mut lent) = (Budget::new(MAX, FRAME), Vec::new(), 0);
    let mut state = 1_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for _ in 0..20_000 {
        match random(4) {
            0 | 1 => {
                let bytes = 1 + random(10 * MIB);
                if let Some(taken) = lend(&mut budget, bytes, roomy()) {
                    lent += taken;
                    held.push(bytes);
                }
            }
            2 if !held.is_empty() => {
                let bytes = held.swap_remove(random(held.len() as u64) as usize);
                lent -= budget.give_back(bytes);
            }
            _ => {
                let (freed, lacking) = budget.lingers(random(8 * MIB));
                (0..lacking).for_each(|_| budget.took());
                lent = lent - freed + lacking;
            }
        }
        let in_use = held.iter().sum::<u64>() + budget.lingering;
        assert_eq!(lent, budget.frames());
        assert!(in_use <= lent * FRAME && lent * FRAME < in_use + FRAME, "{in_use} in use, {lent} frames");
        assert!(held.iter().sum::<u64>() <= MAX);
    }
}

/// A cache of blocks and files that are used by turns: whichever is used has the memory.
#[test]
fn memory_goes_to_what_is_used_and_back() {
    let mut budget = Budget::new(192 * MIB, FRAME);
    let start = Instant::now();
    let (mut store, mut files) = (StoreUse { used: 240 * MIB, is_full: true, ..roomy() }, Vec::new());
    // Files of 16 MiB are opened again and again, and blocks are not used: all that can be lent is.
    for file in 0..12 {
        let taken = lend(&mut budget, 16 * MIB, store).expect("it may have it");
        store.used -= taken * FRAME;
        store.evicted += taken * FRAME;
        files.push((start + SECOND * file, 16 * MIB));
    }
    assert_eq!(budget.frames() * FRAME, 192 * MIB);
    // Then only blocks are read, of which ever new ones come, 8 MiB a second.
    let mut seconds = 0;
    while budget.frames() > 0 {
        seconds += 1;
        assert!(seconds < 120, "files keep {} frames", budget.frames());
        let now = start + SECOND * (20 + seconds);
        store.evicted += 8 * MIB;
        let Some(wanted) = budget.wanted_back(store, now) else { continue };
        let mut freed = 0;
        files.retain(|(used, size)| {
            let goes = freed < wanted.bytes && *used <= wanted.unused_since;
            freed += if goes { *size } else { 0 };
            !goes
        });
        store.used += budget.give_back(freed) * FRAME;
    }
    assert!(files.is_empty() && store.used == 240 * MIB);
}
