//! What is believed when; and, of the marks, in whatever order threads come.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::*;

/// The marks as they are, with threads that a scheduler chooses among at each step.
#[expect(clippy::duplicate_mod, reason = "the same code, with other atomics")]
#[path = "."]
mod modelled {
    #[path = "marks.rs"]
    pub(super) mod marks;

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
    let (freshness, start) = (Freshness::new(), Instant::now());
    let name = |number, nanos| freshness.believes_name(&path(number), after(start, nanos), start);
    let listing = |number, nanos| freshness.believes_listing(&path(number), after(start, nanos), start);
    assert!(name(1, 0));
    freshness.name_changed(&path(1), after(start, 10));
    assert!(!name(1, 9) && name(1, 10));
    assert!(listing(1, 0));
    freshness.name_changed(&path(1), after(start, 5));
    assert!(!name(1, 9), "a later change is not forgotten for an earlier one");
    freshness.listing_changed(&path(2), after(start, 7));
    assert!(!listing(2, 6) && listing(2, 7));
    freshness.everything_changed(after(start, 100));
    assert!(!name(3, 99) && name(1, 100) && !listing(3, 99) && listing(2, 100));
}

#[test]
fn however_many_names_change_none_is_believed_from_before_and_few_others_are_asked_for_again() {
    let (freshness, start) = (Freshness::with_places(1024), Instant::now());
    for number in 0..4096 {
        freshness.name_changed(&path(number), after(start, 10 * u64::from(number + 1)));
    }
    for number in 0..4096 {
        let at = after(start, 10 * u64::from(number + 1));
        assert!(!freshness.believes_name(&path(number), at - Duration::from_nanos(1), at), "{number}");
    }
    assert!(freshness.believes_name(&path(99), after(start, 40_960), start));
    let freshness = Freshness::new();
    (0..64).for_each(|number| freshness.name_changed(&path(number), after(start, 10)));
    let believed = (1000..2000).filter(|number| freshness.believes_name(&path(*number), start, start)).count();
    assert!(believed > 950, "{believed} of a thousand names that did not change are believed");
}

#[test]
fn what_was_learned_before_a_tenure_was_over_is_not_believed_after_it() {
    let (freshness, tenure, next) = (Freshness::new(), Arc::new(Tenure::unlimited()), Arc::new(Tenure::unlimited()));
    let start = Instant::now();
    let believes = |asked, now| freshness.believes_name(&path(1), after(start, asked), after(start, now));
    assert!(believes(0, 1_000_000), "a worker alone hears of everything");
    tenure.hold_until(after(start, 1000));
    freshness.hears_during(&tenure, after(start, 100));
    assert!(!believes(99, 100) && believes(100, 999));
    assert!(!believes(100, 1000) && !believes(999, 5000));
    assert!(believes(1000, 5000), "asked for since then, it is no older than anybody's");
    freshness.hears_during(&next, after(start, 6000));
    assert!(!believes(5999, 6000) && believes(6000, 1_000_000));
    assert!(!freshness.believes_listing(&path(2), after(start, 5999), after(start, 6000)));
}

/// Real threads, and more names than places: whoever was told that a change is done sees it, while others change.
#[test]
fn a_change_that_was_told_to_be_done_is_never_unseen_while_others_are_made() {
    let (freshness, start) = (Freshness::with_places(4), Instant::now());
    let done = AtomicBool::new(false);
    let last = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Acquire) {
                    let changed = last.load(std::sync::atomic::Ordering::Acquire);
                    let asked = after(start, 10 * changed) - Duration::from_nanos(1);
                    let number = u32::try_from(changed).unwrap();
                    assert!(changed == 0 || !freshness.believes_name(&path(number), asked, start), "{number}");
                }
            });
        }
        for number in 1..50_000 {
            freshness.name_changed(&path(number), after(start, 10 * u64::from(number)));
            last.store(u64::from(number), std::sync::atomic::Ordering::Release);
        }
        done.store(true, std::sync::atomic::Ordering::Release);
    });
}

/// One change of a name, one of a name that shares its place, one of everything, and somebody who uses answers meanwhile: in all
/// orders in which their steps can come, and be seen.
#[test]
fn in_whatever_order_threads_come_no_answer_from_before_a_change_that_is_done_is_believed() {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering};
    use modelled::marks::Marks;

    let orders = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = std::sync::Arc::clone(&orders);
    loom::model(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        let (marks, done) = (Arc::new(Marks::new(1)), Arc::new(AtomicU64::new(0)));
        let change = |name: &'static [u8], at| {
            let (marks, done) = (Arc::clone(&marks), Arc::clone(&done));
            loom::thread::spawn(move || {
                marks.mark(name, at);
                if name == b"/a" {
                    done.store(at, Ordering::Release);
                }
            })
        };
        let threads = [change(b"/a", 5), change(b"/b", 3)];
        let seen = done.load(Ordering::Acquire);
        assert!(seen == 0 || !marks.believes(b"/a", seen - 1), "an answer from before {seen} is believed");
        marks.mark_all(4);
        assert!(!marks.believes(b"/a", 3) && !marks.believes(b"/b", 3));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(!marks.believes(b"/a", 4) && marks.believes(b"/a", 5));
    });
    let orders = orders.load(Ordering::Relaxed);
    assert!(orders > 10, "only {orders} orders were tried");
}
