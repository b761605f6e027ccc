//! A card that completes, a thread that looks, asks and sleeps, and the task that goes on in its place, in every order (loom).

use loom::sync::{Arc, Condvar, Mutex};

use super::Said;
use crate::driving::dozing::{Dozing, Step};

/// Entries that come.
const ENTRIES: usize = 2;

/// A completion queue and its channel.
#[derive(Default)]
struct Queue {
    entries: usize,
    is_armed: bool,
    /// The channel is readable.
    has_event: bool,
}

#[derive(Default)]
struct Scene {
    queue: Mutex<Queue>,
    told: Condvar,
}

impl Scene {
    /// What the card does.
    fn complete(&self) {
        let mut queue = self.queue.lock().unwrap();
        queue.entries += 1;
        if std::mem::take(&mut queue.is_armed) {
            queue.has_event = true;
            self.told.notify_all();
        }
    }

    fn look(&self) -> usize {
        std::mem::take(&mut self.queue.lock().unwrap().entries)
    }

    fn arm(&self) {
        self.queue.lock().unwrap().is_armed = true;
    }

    /// For ever, if nothing is told: loom finds that.
    fn sleep(&self) {
        let mut queue = self.queue.lock().unwrap();
        while !queue.has_event {
            queue = self.told.wait(queue).unwrap();
        }
    }

    fn take_events(&self) {
        self.queue.lock().unwrap().has_event = false;
    }

    /// A thread that waits until it has all, or gives up after so many steps; how much it has found.
    fn wait(&self, steps: usize) -> usize {
        let (mut dozing, mut found) = (Dozing::default(), self.look());
        for _ in 0..steps {
            if found == ENTRIES {
                break;
            }
            match dozing.found_nothing() {
                Step::Arm => self.arm(),
                Step::Sleep => {
                    self.sleep();
                    self.take_events();
                }
            }
            found += self.look();
        }
        found
    }

    /// The task of a connection that a thread has given up, which has found so much.
    fn go_on(&self, mut found: usize) {
        loop {
            self.take_events();
            self.arm();
            found += self.look();
            if found == ENTRIES {
                return;
            }
            self.sleep();
        }
    }
}

fn all_is_found_in_the_end(name: &'static str, steps: usize) {
    let orders = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let said = Said(name, std::sync::Arc::clone(&orders));
    loom::model(move || {
        orders.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let scene = Arc::new(Scene::default());
        let card = loom::thread::spawn({
            let scene = Arc::clone(&scene);
            move || (0..ENTRIES).for_each(|_| scene.complete())
        });
        let found = scene.wait(steps);
        scene.go_on(found);
        card.join().unwrap();
    });
    assert!(said.1.load(std::sync::atomic::Ordering::Relaxed) > 1);
}

#[test]
fn no_thread_sleeps_while_there_is_something_for_it() {
    all_is_found_in_the_end("a thread waits for a card", usize::MAX);
}

#[test]
fn the_task_finds_all_that_a_thread_has_left() {
    for steps in 0..4 {
        all_is_found_in_the_end("a thread gives up, and the task goes on", steps);
    }
}
