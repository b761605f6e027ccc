//! What a worker missed, in every order in which threads can come (loom).

#[expect(clippy::duplicate_mod, reason = "the same code, with other atomics")]
#[path = "."]
mod modelled {
    #[path = "due.rs"]
    pub(crate) mod due;

    mod sync {
        pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
    }
}

/// One change is noted while another thread has the worker make up for the changes that are known. A request after the
/// change was noted hears of it, unless the worker was made to forget after that.
#[test]
fn a_change_that_is_noted_while_a_worker_makes_up_for_others_is_still_due() {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering};
    use modelled::due::Missed;

    let orders = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = std::sync::Arc::clone(&orders);
    loom::model(move || {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        // How many changes were made, and how many the worker has not forgotten the state before of.
        let shared = Arc::new((Missed::default(), AtomicU64::new(0), AtomicU64::new(0)));
        let changes = |times| {
            let shared = Arc::clone(&shared);
            move || {
                let (missed, made, _) = &*shared;
                for _ in 0..times {
                    made.fetch_add(1, Ordering::AcqRel);
                    missed.note();
                }
            }
        };
        let makes_up = {
            let shared = Arc::clone(&shared);
            move || {
                let (missed, made, forgotten) = &*shared;
                if let Some(due) = missed.due() {
                    // The worker forgets everything.
                    forgotten.fetch_max(made.load(Ordering::Acquire), Ordering::AcqRel);
                    missed.caught_up(due);
                }
            }
        };
        let threads = [loom::thread::spawn(changes(2)), loom::thread::spawn(makes_up.clone())];
        makes_up();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let (missed, made, forgotten) = &*shared;
        let has_missed = forgotten.load(Ordering::Acquire) < made.load(Ordering::Acquire);
        assert!(!has_missed || missed.due().is_some(), "a change that it was not told of is forgotten");
    });
    let orders = orders.load(std::sync::atomic::Ordering::Relaxed);
    println!("model: what a worker missed: {orders} orders");
    assert!(orders > 10);
}
