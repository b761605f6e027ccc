//! The hand-over of entries between threads, in every order in which their steps can come and be seen (loom).
//!
//! `answered.rs` and `turn.rs` are compiled a second time here, on loom's atomics and cells. A bell that is lost is a
//! deadlock, and two threads that touch the same memory without having synchronised are a data race: loom finds both by
//! itself. `make model` runs these with more preemptions.

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use self::modelled::answered::Answered;
use self::modelled::turn::Turn;

#[expect(clippy::duplicate_mod, reason = "the same code, with other atomics")]
#[path = "."]
mod modelled {
    #[path = "answered.rs"]
    pub(crate) mod answered;
    #[path = "turn.rs"]
    pub(crate) mod turn;

    mod sync {
        pub(super) use loom::cell::UnsafeCell;
        pub(super) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
    }
}

/// Says how many orders were tried, also when one of them failed.
struct Said(String, std::sync::Arc<std::sync::atomic::AtomicU64>);

impl Drop for Said {
    fn drop(&mut self) {
        println!("model: {}: {} orders", self.0, self.1.load(std::sync::atomic::Ordering::Relaxed));
    }
}

/// Runs `model` in all orders of at most three preemptions; of five in `make model`, as many as fit.
fn in_every_order(name: &str, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // Bugs need few preemptions; without a bound the largest of these models takes hours.
    let bound = if std::env::var_os("FOREBAY_MODEL").is_some() { 5 } else { 3 };
    builder.preemption_bound = builder.preemption_bound.or(Some(bound));
    builder.max_duration = Some(std::time::Duration::from_secs(120));
    let orders = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let _said = Said(name.to_owned(), std::sync::Arc::clone(&orders));
    builder.check(move || {
        orders.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        model();
    });
}

fn get(cell: &UnsafeCell<u32>) -> u32 {
    // SAFETY: loom watches which thread looks when.
    cell.with(|value| unsafe { *value })
}

fn put(cell: &UnsafeCell<u32>, value: u32) {
    // SAFETY: as above.
    cell.with_mut(|place| unsafe { *place = value });
}

/// What an eventfd is to a ring: a waiter goes on if it was rung since the waiter last did.
#[derive(Default)]
struct Bell {
    rung: Mutex<u32>,
    ring: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap() += 1;
        self.ring.notify_one();
    }

    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while *rung == 0 {
            rung = self.ring.wait(rung).unwrap();
        }
        *rung = 0;
    }
}

/// The loop of a ring thread, as `thread.rs` has it: calls `each` for what is answered until it returns true.
fn serve(answered: &Answered, bell: &Bell, mut each: impl FnMut(Option<u32>) -> bool) {
    loop {
        let mut is_over = false;
        answered.drain(|entry| is_over |= each(entry));
        if is_over {
            return;
        }
        if answered.fall_asleep() {
            bell.wait();
            answered.wake_up();
        }
    }
}

#[test]
fn no_answer_is_missed_by_an_owner_that_falls_asleep() {
    in_every_order("answers of two threads, and an owner that sleeps", || {
        let shared = Arc::new((Answered::new(2), Bell::default(), [UnsafeCell::new(0), UnsafeCell::new(0)]));
        let answerers = [0, 1].map(|entry| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (answered, bell, answers) = &*shared;
                put(&answers[entry as usize], 10 + entry);
                if answered.set(entry) {
                    bell.ring();
                }
            })
        });
        let (answered, bell, answers) = &*shared;
        let mut seen = Vec::new();
        serve(answered, bell, |entry| {
            let entry = entry.unwrap();
            assert_eq!(get(&answers[entry as usize]), 10 + entry);
            seen.push(entry);
            seen.len() == 2
        });
        seen.sort_unstable();
        assert_eq!(seen, [0, 1]);
        answerers.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_thread_that_is_told_to_end_hears_of_it_whatever_is_answered_meanwhile() {
    in_every_order("the end, and an answer", || {
        let shared = Arc::new((Answered::new(1), Bell::default()));
        let [answerer, ender] = [false, true].map(|ends| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (answered, bell) = &*shared;
                if if ends { answered.end() } else { answered.set(0) } {
                    bell.ring();
                }
            })
        });
        let (answered, bell) = &*shared;
        serve(answered, bell, |entry| entry.is_none());
        ender.join().unwrap();
        answerer.join().unwrap();
    });
}

/// One thread answers, and another still reads what a WRITE brought. The owner gives the entry to the kernel, which
/// takes the answer out and puts the next request there.
#[test]
fn an_entry_is_given_away_when_nobody_looks_at_it_and_with_the_answer() {
    struct Entry {
        turn: Turn<u32>,
        payload: UnsafeCell<u32>,
        answered: Answered,
        bell: Bell,
    }
    impl Entry {
        fn let_go(&self) {
            if self.turn.let_go() && self.answered.set(0) {
                self.bell.ring();
            }
        }
    }
    const REQUEST: u32 = 1;
    const ANSWER: u32 = 2;
    in_every_order("an entry, its answer, and a reader of the request", || {
        let entry = Arc::new(Entry {
            turn: Turn::new(),
            payload: UnsafeCell::new(REQUEST),
            answered: Answered::new(1),
            bell: Bell::default(),
        });
        entry.turn.take();
        entry.turn.keep(2);
        let who_reads = {
            let entry = Arc::clone(&entry);
            thread::spawn(move || {
                assert_eq!(get(&entry.payload), REQUEST, "it was written over");
                entry.let_go();
            })
        };
        let who_answers = {
            let entry = Arc::clone(&entry);
            thread::spawn(move || {
                if entry.turn.is_sole() {
                    put(&entry.payload, ANSWER);
                } else {
                    // SAFETY: this one answers, and has its hold.
                    unsafe { entry.turn.leave(ANSWER) };
                }
                entry.let_go();
            })
        };
        let mut times = 0;
        serve(&entry.answered, &entry.bell, |which| {
            assert_eq!(which, Some(0));
            times += 1;
            if let Some(late) = entry.turn.take_late() {
                put(&entry.payload, late);
            }
            entry.turn.give();
            true
        });
        // The kernel's turn.
        assert_eq!(get(&entry.payload), ANSWER);
        put(&entry.payload, REQUEST);
        assert!(entry.turn.is_with_kernel());
        entry.turn.take();
        entry.turn.answer();
        assert!(entry.turn.is_answered());
        who_reads.join().unwrap();
        who_answers.join().unwrap();
        entry.answered.drain(|_| times += 1);
        assert_eq!(times, 1, "it was given away twice");
    });
}
