//! The bits of checked sectors, in every order in which threads that check can come (loom).

#[expect(clippy::duplicate_mod, reason = "the same code, with other atomics")]
#[path = "."]
mod modelled {
    #[path = "checked.rs"]
    pub(crate) mod checked;

    mod sync {
        pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
    }
}

/// A thread whose check began in the epoch before, and two that check in this one: no bit is lost, and none counts
/// without a check.
#[test]
fn each_bit_counts_in_the_epoch_of_its_check_and_in_no_other() {
    use loom::sync::Arc;
    use modelled::checked::Checked;

    let orders = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = std::sync::Arc::clone(&orders);
    loom::model(move || {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let checked = Arc::new(Checked::default());
        let note = |sectors, epoch| {
            let checked = Arc::clone(&checked);
            loom::thread::spawn(move || checked.note(sectors, epoch))
        };
        let threads = [note(0..1, 1), note(31..33, 2)];
        checked.note(2..3, 2);
        assert!(checked.has(2..3, 2) && !checked.has(0..1, 2));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(checked.has(2..3, 2) && checked.has(31..33, 2), "a bit is lost");
        assert!(!checked.has(0..1, 2) && !checked.has(0..1, 1) && !checked.has(3..4, 2) && !checked.has(33..34, 2));
    });
    let orders = orders.load(std::sync::atomic::Ordering::Relaxed);
    println!("model: sectors that were checked: {orders} orders");
    assert!(orders > 10);
}
