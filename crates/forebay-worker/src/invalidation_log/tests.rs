//! What is believed when; and, of the tombstones, in whatever order threads come.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::*;

/// The tombstones as they are, with threads that a scheduler chooses among at each step.
#[expect(clippy::duplicate_mod, reason = "the same code, with other atomics")]
#[path = "."]
mod modelled {
    #[path = "tombstones.rs"]
    pub(super) mod tombstones;

    mod sync {
        pub(super) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    }
}

fn path(number: u32) -> FsPath {
    FsPath::new(format!("/{number}")).unwrap()
}

fn after(start: Instant, nanos: u64) -> Instant {
    start + Duration::from_nanos(nanos)
}

#[test]
fn what_was_asked_before_a_change_is_not_believed_after_it_and_what_was_asked_after_is() {
    let (invalidations, start) = (InvalidationLog::new(), Instant::now());
    let name = |number, nanos| invalidations.believes_name(&path(number), after(start, nanos), start);
    let listing = |number, nanos| invalidations.believes_listing(&path(number), after(start, nanos), start);
    assert!(name(1, 0));
    invalidations.name_changed(&path(1), after(start, 10));
    assert!(!name(1, 9) && name(1, 10));
    assert!(listing(1, 0));
    invalidations.name_changed(&path(1), after(start, 5));
    assert!(!name(1, 9), "a later change is not forgotten for an earlier one");
    invalidations.listing_changed(&path(2), after(start, 7));
    assert!(!listing(2, 6) && listing(2, 7));
    invalidations.everything_changed(after(start, 100));
    assert!(!name(3, 99) && name(1, 100) && !listing(3, 99) && listing(2, 100));
}

#[test]
fn however_many_names_change_none_is_believed_from_before_and_few_others_are_asked_for_again() {
    let (invalidations, start) = (InvalidationLog::with_slots(1024), Instant::now());
    for number in 0..4096 {
        invalidations.name_changed(&path(number), after(start, 10 * u64::from(number + 1)));
    }
    for number in 0..4096 {
        let at = after(start, 10 * u64::from(number + 1));
        assert!(!invalidations.believes_name(&path(number), at - Duration::from_nanos(1), at), "{number}");
    }
    assert!(invalidations.believes_name(&path(99), after(start, 40_960), start));
    let invalidations = InvalidationLog::new();
    (0..64).for_each(|number| invalidations.name_changed(&path(number), after(start, 10)));
    let believed = (1000..2000).filter(|number| invalidations.believes_name(&path(*number), start, start)).count();
    assert!(believed > 950, "{believed} of a thousand names that did not change are believed");
}

#[test]
fn what_was_learned_before_a_tenure_was_over_is_not_believed_after_it() {
    let (invalidations, tenure, next) =
        (InvalidationLog::new(), Arc::new(Tenure::unlimited()), Arc::new(Tenure::unlimited()));
    let start = Instant::now();
    let believes = |asked, now| invalidations.believes_name(&path(1), after(start, asked), after(start, now));
    assert!(believes(0, 1_000_000), "a worker alone hears of everything");
    tenure.hold_until(after(start, 1000));
    invalidations.hears_during(&tenure, after(start, 100));
    assert!(!believes(99, 100) && believes(100, 999));
    assert!(!believes(100, 1000) && !believes(999, 5000));
    assert!(believes(1000, 5000), "asked for since then, it is no older than anybody's");
    invalidations.hears_during(&next, after(start, 6000));
    assert!(!believes(5999, 6000) && believes(6000, 1_000_000));
    assert!(!invalidations.believes_listing(&path(2), after(start, 5999), after(start, 6000)));
}

/// Real threads, and more names than places: a thread that was told that a change is done sees it, while others change.
#[test]
fn a_change_that_was_told_to_be_done_is_never_unseen_while_others_are_made() {
    let (invalidations, start) = (InvalidationLog::with_slots(4), Instant::now());
    let done = AtomicBool::new(false);
    let last = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Acquire) {
                    let changed = last.load(std::sync::atomic::Ordering::Acquire);
                    let asked = after(start, 10 * changed) - Duration::from_nanos(1);
                    let number = u32::try_from(changed).unwrap();
                    assert!(changed == 0 || !invalidations.believes_name(&path(number), asked, start), "{number}");
                }
            });
        }
        for number in 1..50_000 {
            invalidations.name_changed(&path(number), after(start, 10 * u64::from(number)));
            last.store(u64::from(number), std::sync::atomic::Ordering::Release);
        }
        done.store(true, std::sync::atomic::Ordering::Release);
    });
}

/// One change of a name, one of a name that shares its place, one of everything, and a thread that uses answers
/// meanwhile: in all orders in which their steps can come, and be seen.
#[test]
fn in_whatever_order_threads_come_no_answer_from_before_a_change_that_is_done_is_believed() {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering};
    use modelled::tombstones::Tombstones;

    let orders = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = std::sync::Arc::clone(&orders);
    loom::model(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        let (tombstones, done) = (Arc::new(Tombstones::new(1)), Arc::new(AtomicU64::new(0)));
        let change = |name: &'static [u8], at| {
            let (tombstones, done) = (Arc::clone(&tombstones), Arc::clone(&done));
            loom::thread::spawn(move || {
                tombstones.add(name, at);
                if name == b"/a" {
                    done.store(at, Ordering::Release);
                }
            })
        };
        let threads = [change(b"/a", 5), change(b"/b", 3)];
        let seen = done.load(Ordering::Acquire);
        assert!(seen == 0 || !tombstones.believes(b"/a", seen - 1), "an answer from before {seen} is believed");
        tombstones.raise_watermark(4);
        assert!(!tombstones.believes(b"/a", 3) && !tombstones.believes(b"/b", 3));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(!tombstones.believes(b"/a", 4) && tombstones.believes(b"/a", 5));
    });
    let orders = orders.load(Ordering::Relaxed);
    assert!(orders > 10, "only {orders} orders were tried");
}
