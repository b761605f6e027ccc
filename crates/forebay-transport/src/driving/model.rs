//! Threads that drive a connection, calls that do not, and the task, in every order in which they can come (loom).

mod dozing;

use std::time::Duration;

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Mutex};

use self::modelled::helm::{Helm, Taken};

#[expect(clippy::duplicate_mod, reason = "the same code, with other atomics")]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "what is public of it is so in the crate, and not all of it is tried here"
)]
#[path = "."]
mod modelled {
    #[path = "helm.rs"]
    pub(crate) mod helm;

    mod sync {
        pub(super) use loom::sync::atomic::{AtomicU32, Ordering};
    }
}

/// What the connection knows under its lock.
#[derive(Default)]
struct Calls {
    /// Answers that have arrived and were not received.
    arrived: Vec<usize>,
    /// Those that were brought to their calls.
    answered: Vec<usize>,
    under_way: usize,
    /// Views were given out since the task looked last: it has to look again, as they may be let go of.
    given: bool,
}

/// A connection whose worker answers at once.
struct Scene {
    helm: Helm,
    calls: Mutex<Calls>,
    /// The task was told: what is told while it does something else is not forgotten.
    told: AtomicBool,
}

/// The connection's task, between two turns.
struct Task {
    /// Whether the runtime watches for it: then it comes for whatever arrives.
    is_registered: bool,
    /// Whether it will look, when some time has passed.
    is_armed: bool,
}

impl Scene {
    /// `rests`: a thread has driven before.
    fn new(rests: bool) -> Self {
        let helm = Helm::default();
        if rests {
            assert_eq!(helm.take(), Some(Taken::FromTask));
            assert!(!helm.leave(false));
        }
        Self { helm, calls: Mutex::default(), told: AtomicBool::new(false) }
    }

    fn begin(&self) {
        self.calls.lock().unwrap().under_way += 1;
    }

    fn send(&self, call: usize) {
        self.calls.lock().unwrap().arrived.push(call);
    }

    fn tell(&self) {
        // As tokio's `Notify` does, by a read-modify-write: loom takes a store and the task's exchange for unordered.
        self.told.swap(true, Ordering::AcqRel);
    }

    /// Receives one answer, if there is one, and brings it to its call.
    fn receive(&self) -> bool {
        let mut calls = self.calls.lock().unwrap();
        let Some(call) = calls.arrived.pop() else { return false };
        calls.under_way -= 1;
        calls.given = true;
        calls.answered.push(call);
        true
    }

    fn is_answered(&self, call: usize) -> bool {
        self.calls.lock().unwrap().answered.contains(&call)
    }

    /// As `Connection` of `forebay-shm` makes a call: drives if it can, and does not wait for long.
    fn call_and_drive(&self, call: usize) {
        let taken = self.helm.take();
        if taken == Some(Taken::FromTask) {
            self.tell();
        }
        if taken.is_none() {
            return self.call(call);
        }
        self.begin();
        self.send(call);
        while !self.is_answered(call) && self.receive() {}
        let others_wait = self.calls.lock().unwrap().under_way > 0;
        if self.helm.leave(others_wait) {
            self.tell();
        }
    }

    /// As one that does not.
    fn call(&self, call: usize) {
        self.begin();
        self.send(call);
        if self.helm.call() {
            self.tell();
        }
    }
}

impl Task {
    /// `rests`: a thread has driven before.
    fn new(rests: bool) -> Self {
        Self { is_registered: !rests, is_armed: rests }
    }

    /// It looks whether anybody drove, and nobody did.
    fn look(&mut self, scene: &Scene) {
        self.is_armed = false;
        scene.calls.lock().unwrap().given = false;
        scene.helm.watch();
        self.go_on(scene);
    }

    /// It has its turn: because it was told, or for something that arrived where it watches.
    fn turn(&mut self, scene: &Scene) {
        if !scene.told.swap(false, Ordering::AcqRel) && !self.is_registered {
            return;
        }
        if self.is_registered && scene.helm.is_watched() {
            while scene.receive() {}
        }
        self.go_on(scene);
    }

    /// What it does before it waits for its next turn.
    fn go_on(&mut self, scene: &Scene) {
        self.is_armed |= scene.helm.is_watched() && scene.calls.lock().unwrap().given;
        self.is_registered = scene.helm.is_watched();
        self.is_armed |= !self.is_registered;
    }
}

/// Says how many orders were tried, also when one of them failed.
struct Said(&'static str, std::sync::Arc<std::sync::atomic::AtomicU64>);

impl Drop for Said {
    fn drop(&mut self) {
        println!("model: {}: {} orders", self.0, self.1.load(std::sync::atomic::Ordering::Relaxed));
    }
}

/// In the end, when the task has had all the turns that it was to have, no call waits, and it will look at what was given out.
fn nobody_waits_in_the_end(name: &'static str, (rests, looks): (bool, bool), parts: [fn(&Scene); 2]) {
    let mut builder = loom::model::Builder::new();
    // Without a bound in `make model`.
    if std::env::var_os("FOREBAY_MODEL").is_none() {
        builder.preemption_bound = builder.preemption_bound.or(Some(3));
    }
    builder.max_duration = Some(Duration::from_secs(120));
    let orders = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let said = Said(name, std::sync::Arc::clone(&orders));
    builder.check(move || {
        orders.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let scene = Arc::new(Scene::new(rests));
        let threads = parts.map(|part| {
            let scene = Arc::clone(&scene);
            loom::thread::spawn(move || part(&scene))
        });
        let mut task = Task::new(rests);
        if looks {
            task.look(&scene);
        }
        task.turn(&scene);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // Once for what it was told, and once for what it then watches.
        task.turn(&scene);
        task.turn(&scene);
        let left = scene.calls.lock().unwrap();
        assert!(left.answered.len() == 2 && left.under_way == 0, "a call waits, and nobody receives");
        assert!(!left.given || task.is_armed, "what was given out is not looked for");
    });
    assert!(said.1.load(std::sync::atomic::Ordering::Relaxed) > 10);
}

#[test]
fn a_thread_that_drives_and_a_call_that_waits_for_the_task_are_both_answered() {
    let parts: [fn(&Scene); 2] = [|scene| scene.call_and_drive(0), |scene| scene.call(1)];
    nobody_waits_in_the_end("a thread drives, and a call waits", (false, false), parts);
}

#[test]
fn the_same_where_the_connection_rested_and_the_task_looks() {
    let parts: [fn(&Scene); 2] = [|scene| scene.call_and_drive(0), |scene| scene.call(1)];
    nobody_waits_in_the_end("a thread drives what rested, and a call waits", (true, true), parts);
}

#[test]
fn two_threads_that_would_drive_are_both_answered() {
    let parts: [fn(&Scene); 2] = [|scene| scene.call_and_drive(0), |scene| scene.call_and_drive(1)];
    nobody_waits_in_the_end("two threads would drive", (false, true), parts);
}
