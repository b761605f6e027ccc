//! What a caller remembers while a service's table changes, in every order in which threads can come (loom).

use std::time::Duration;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};

use self::modelled::rights::Rights;

#[expect(clippy::duplicate_mod, reason = "the same code, with other atomics")]
#[path = "."]
mod modelled {
    #[path = "rights.rs"]
    pub(crate) mod rights;

    mod sync {
        pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
    }
}

/// A caller, and a service as a worker is one (its `scope.rs` and `fast_access.rs`). Its table lets the caller read
/// what has the number of the epoch.
struct Scene {
    rights: Rights,
    /// The table: its epoch says all of it.
    table: AtomicU32,
    /// The epoch as hits look at it.
    epoch: AtomicU32,
    /// That of the last change whose call has returned.
    done: AtomicU32,
}

impl Scene {
    fn of(epoch: u32) -> Self {
        let number = || AtomicU32::new(epoch);
        Self { rights: Rights::default(), table: number(), epoch: number(), done: number() }
    }

    fn change(&self, epoch: u32) {
        self.table.store(epoch, Ordering::Release);
        self.epoch.store(epoch, Ordering::Release);
        self.done.store(epoch, Ordering::Release);
    }

    fn may_read(&self, number: u32) -> bool {
        self.rights.has(number, self.epoch.load(Ordering::Acquire)).unwrap_or_else(|| {
            let epoch = self.table.load(Ordering::Acquire);
            let known = self.rights.has(number, epoch);
            known.unwrap_or_else(|| self.rights.learn(number, epoch, |number| number == epoch))
        })
    }

    /// A hit on what only the table of `epoch` lets the caller read.
    fn hit(&self, epoch: u32) {
        let done = self.done.load(Ordering::Acquire);
        let may_read = self.may_read(epoch);
        assert!(done <= epoch || !may_read, "what epoch {epoch} let it read is read in epoch {done}");
    }
}

/// Says how many orders were tried, also when one of them failed.
struct Said(std::sync::Arc<std::sync::atomic::AtomicU64>);

impl Drop for Said {
    fn drop(&mut self) {
        println!("model: rights of a caller: {} orders", self.0.load(std::sync::atomic::Ordering::Relaxed));
    }
}

/// One change of the table, and two threads that serve hits of the caller meanwhile.
#[test]
fn what_a_table_took_back_is_not_read_from_then_on() {
    let mut builder = loom::model::Builder::new();
    // Without a bound in `make model`.
    if std::env::var_os("FOREBAY_MODEL").is_none() {
        builder.preemption_bound = builder.preemption_bound.or(Some(3));
    }
    builder.max_duration = Some(Duration::from_secs(120));
    let orders = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let said = Said(std::sync::Arc::clone(&orders));
    builder.check(move || {
        orders.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let scene = Arc::new(Scene::of(1));
        assert!(scene.may_read(1) && !scene.may_read(2), "it is remembered for the hits below");
        let changes = Arc::clone(&scene);
        let hits = Arc::clone(&scene);
        let threads = [loom::thread::spawn(move || changes.change(2)), loom::thread::spawn(move || hits.hit(1))];
        scene.hit(1);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(!scene.may_read(1) && scene.may_read(2));
    });
    assert!(said.0.load(std::sync::atomic::Ordering::Relaxed) > 10);
}
