use std::cell::Cell;
use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const BYTES: u64 = 100 << 10;
const JPG: u64 = 1;
const TXT: u64 = 2;
const MS: Duration = Duration::from_millis(1);
const ENOUGH: u64 = u64::MAX;

/// A listing of files of [`BYTES`], of which some are in memory.
struct Listing {
    names: Vec<Name>,
    here: BTreeSet<u64>,
    looked_at: Cell<u64>,
}

impl Listing {
    fn of(names: impl IntoIterator<Item = Name>) -> Self {
        Self { names: names.into_iter().collect(), here: BTreeSet::new(), looked_at: Cell::new(0) }
    }

    fn files(count: u64) -> Self {
        Self::of((0..count).map(|_| small(JPG)))
    }
}

impl Names for Listing {
    fn at(&self, position: u64) -> Option<Name> {
        self.names.get(position as usize).copied()
    }

    fn is_here(&self, position: u64) -> bool {
        self.looked_at.set(self.looked_at.get() + 1);
        self.here.contains(&position)
    }
}

fn small(ending: u64) -> Name {
    Name::Small { bytes: BYTES, ending }
}

/// A walk, what it had fetched, and what came of it.
#[derive(Default)]
struct Run {
    walk: Walk,
    now: Duration,
    fetched: Vec<u64>,
    outcome: Outcome,
    most: u64,
}

impl Run {
    fn open(&mut self, listing: &Listing, position: u64) {
        self.open_within(listing, position, ENOUGH);
    }

    /// Opens a file, and has fetched what is planned then.
    fn open_within(&mut self, listing: &Listing, position: u64, budget: u64) {
        self.now += MS;
        let ending = match listing.names[position as usize] {
            Name::Small { ending, .. } => ending,
            Name::Other => 0,
        };
        let (outcome, cursor) = self.walk.opened(position, ending, self.now);
        self.outcome += outcome;
        if let Some(at) = cursor {
            let room = budget.saturating_sub(self.walk.outstanding());
            self.fetched.extend(self.walk.plan(at, room, listing).fetch);
        }
        self.most = self.most.max(self.walk.outstanding());
        // What was fetched was used or wasted, or may still be opened.
        let known = self.outcome.used + self.outcome.wasted + self.walk.guesses();
        assert_eq!(known, self.fetched.len() as u64);
    }
}

#[test]
fn a_reader_in_the_order_of_the_listing_finds_each_file_from_the_fourth_on_fetched() {
    let (mut run, listing) = (Run::default(), Listing::files(1000));
    for position in 0..1000 {
        if position >= 3 {
            assert!(run.fetched.contains(&position), "{position}");
        }
        run.open(&listing, position);
    }
    assert_eq!(run.fetched, (3..1000).collect::<Vec<_>>(), "each once, and in order");
    assert_eq!(run.outcome, Outcome { used: 997, wasted: 0 });
    assert_eq!(run.most, MAX_WINDOW as u64 * BYTES);
}

#[test]
fn the_end_of_the_known_names_is_told_of() {
    let (mut walk, listing) = (Walk::default(), Listing::files(10));
    for position in 0..3 {
        let (_, cursor) = walk.opened(position, JPG, MS);
        let short = cursor.map(|at| walk.plan(at, ENOUGH, &listing).is_short);
        assert_eq!(short, (position > 0).then_some(false), "the window is smaller than what is left");
    }
    for position in 3..5 {
        let (_, cursor) = walk.opened(position, JPG, MS);
        assert!(walk.plan(cursor.unwrap(), ENOUGH, &listing).is_short || position == 3);
    }
}

#[test]
fn readers_side_by_side_and_readers_of_parts_of_their_own_are_walks() {
    let (mut beside, listing) = (Run::default(), Listing::files(800));
    // Each of eight takes the next file, and is a bit late or early.
    for round in 0..100 {
        for reader in [3, 0, 1, 6, 2, 5, 4, 7] {
            beside.open(&listing, round * 8 + reader);
        }
    }
    assert!(beside.outcome.used > 780 && beside.outcome.wasted == 0, "{:?}", beside.outcome);
    let mut parts = Run::default();
    for step in 0..100 {
        for reader in 0..8 {
            parts.open(&listing, reader * 100 + step);
        }
    }
    assert!(parts.outcome.used > 700 && parts.outcome.wasted < 80, "{:?}", parts.outcome);
}

#[test]
fn only_names_that_end_as_what_was_opened_are_fetched() {
    let listing = Listing::of((0..600).map(|at| match at % 3 {
        0 => small(JPG),
        1 => small(TXT),
        _ => Name::Other,
    }));
    let mut run = Run::default();
    (0..200).for_each(|at| run.open(&listing, at * 3));
    assert!(run.fetched.iter().all(|position| position % 3 == 0), "{:?}", run.fetched);
    assert_eq!(run.outcome, Outcome { used: 197, wasted: 0 });
    let mut pairs = Run::default();
    (0..200).for_each(|at| {
        pairs.open(&listing, at * 3);
        pairs.open(&listing, at * 3 + 1);
    });
    assert!(pairs.outcome.used > 390, "{:?}", pairs.outcome);
}

#[test]
fn a_reader_that_leaves_most_files_out_is_given_up_and_begins_anew_after_a_while() {
    let (mut run, listing) = (Run::default(), Listing::files(10_000));
    (0..1000).for_each(|at| run.open(&listing, at * 4));
    let fetched = run.fetched.len();
    assert!(fetched <= 32, "{fetched}");
    assert_eq!(run.walk.outstanding(), 0);
    run.now += GIVEN_UP_FOR;
    (5000..5100).for_each(|at| run.open(&listing, at));
    assert!(run.fetched.len() > fetched + 90, "it reads in order now");
}

#[test]
fn who_leaves_in_the_middle_holds_nothing_for_long_and_may_come_back() {
    let (mut run, listing) = (Run::default(), Listing::files(1000));
    (0..100).for_each(|at| run.open(&listing, at));
    let open = run.walk.guesses();
    assert_eq!(open, MAX_WINDOW as u64);
    assert_eq!(run.walk.expire(run.now + IDLE - MS), Outcome::default());
    run.now += IDLE;
    let outcome = run.walk.expire(run.now);
    assert_eq!((outcome, run.walk.outstanding()), (Outcome { used: 0, wasted: open }, 0));
    run.outcome += outcome;
    (500..600).for_each(|at| run.open(&listing, at));
    assert!(run.outcome.used > 97 + 90, "{:?}", run.outcome);
}

#[test]
fn what_cannot_be_fetched_is_wrong_and_ends_it() {
    let (mut run, listing) = (Run::default(), Listing::files(1000));
    (0..5).for_each(|at| run.open(&listing, at));
    let wrong: Vec<_> = run.fetched.iter().copied().filter(|position| *position >= 5).collect();
    let outcomes: Vec<_> = wrong.iter().map(|position| run.walk.failed(*position, run.now)).collect();
    let wasted: u64 = outcomes.iter().map(|outcome| outcome.wasted).sum();
    assert_eq!(wasted, wrong.len() as u64, "once each");
    assert!(wrong.len() >= 6 && run.walk.given_up.is_some());
    assert_eq!(run.walk.failed(3, run.now), Outcome::default(), "it was opened");
}

#[test]
fn a_data_set_that_is_read_again_costs_a_look_now_and_then() {
    let mut listing = Listing::files(10_000);
    listing.here = (0..10_000).collect();
    let mut run = Run::default();
    (0..10_000).for_each(|at| run.open(&listing, at));
    assert!(run.fetched.is_empty());
    assert!(listing.looked_at.get() <= 10_000 / 40, "{}", listing.looked_at.get());
    // The same where a worker nearby has them, which a fetch tells.
    let (mut near, listing) = (Run::default(), Listing::files(10_000));
    for at in 0..10_000 {
        let before = near.fetched.len();
        near.open(&listing, at);
        for &fresh in &near.fetched[before..] {
            near.walk.fetched(fresh, false);
        }
    }
    assert!(near.fetched.len() <= 10_000 / 20, "{}", near.fetched.len());
    assert!(near.fetched.len() > 2 * MAX_WINDOW, "it is tried again");
}

#[test]
fn a_directory_that_is_expected_to_be_walked_is_fetched_before_the_first_open() {
    let (mut run, listing) = (Run::default(), Listing::files(100));
    let mut endings = Endings::default();
    endings.note(JPG);
    let cursor = run.walk.expect(&endings, run.now).unwrap();
    run.fetched.extend(run.walk.plan(cursor, ENOUGH, &listing).fetch);
    assert_eq!(run.fetched, [0, 1, 2, 3]);
    assert_eq!(run.walk.expect(&endings, run.now), None, "once");
    (0..100).for_each(|at| run.open(&listing, at));
    assert_eq!(run.outcome, Outcome { used: 100, wasted: 0 });
}

#[test]
fn less_room_is_a_smaller_window() {
    let (mut run, listing) = (Run::default(), Listing::files(1000));
    (0..1000).for_each(|at| run.open_within(&listing, at, 5 * BYTES + 1));
    assert_eq!(run.most, 5 * BYTES);
    assert_eq!(run.outcome, Outcome { used: 997, wasted: 0 });
    let mut none = Run::default();
    (0..100).for_each(|at| none.open_within(&listing, at, 0));
    assert!(none.fetched.is_empty());
}

proptest! {
    #[test]
    fn files_in_any_order_cost_little(seed in prop::collection::vec(any::<u64>(), 4)) {
        const FILES: u64 = 20_000;
        let (mut run, listing) = (Run::default(), Listing::files(FILES));
        // Odd and no multiple of 5: each position comes once.
        let (factor, offset) = ((seed[0] % FILES) / 10 * 10 + 4001, seed[1]);
        for at in 0..5000_u64 {
            run.open(&listing, at.wrapping_mul(factor).wrapping_add(offset % FILES) % FILES);
        }
        // Steps of few names are an order, though an odd one.
        let step = factor % FILES;
        prop_assume!(step.min(FILES - step) > 2 * (REACH + SPAN));
        prop_assert!(run.fetched.len() <= 500, "{} for steps of {step}", run.fetched.len());
    }

    #[test]
    fn whatever_happens_the_budget_is_kept_and_each_guess_is_accounted_for(
        steps in prop::collection::vec((0u64..300, 0u8..10, 0u64..3000, any::<bool>()), 1..300),
        budget in 0u64..40,
    ) {
        let budget = budget * BYTES;
        let listing = Listing::of((0..300).map(|at| if at % 7 == 0 { Name::Other } else { small(at % 2) }));
        let (mut run, mut at) = (Run::default(), 0);
        for (jump, kind, wait, settles) in steps {
            at = if kind == 0 { jump } else { (at + 1) % 300 };
            if kind == 1 {
                run.now += Duration::from_millis(wait * 10);
            }
            let before = run.fetched.len();
            run.open_within(&listing, at, budget);
            let fresh: BTreeSet<_> = run.fetched[before..].iter().copied().collect();
            prop_assert_eq!(fresh.len(), run.fetched.len() - before, "one plan has each name once");
            prop_assert!(run.walk.outstanding() <= budget);
            for position in fresh {
                if settles {
                    run.walk.fetched(position, position % 3 == 0);
                } else if kind == 2 {
                    run.outcome += run.walk.failed(position, run.now);
                }
            }
        }
    }
}
