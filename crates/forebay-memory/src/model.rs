//! The pool under a scheduler that tries orders out (shuttle): `make model`.
//!
//! A thread that waits for ever is a deadlock, which shuttle reports with the order that led to it. Besides, no two
//! threads may have the same memory, and no memory may be lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_types::ByteSize;
use shuttle::future::{block_on, spawn};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};

use crate::{FRAME_SIZE, Pool, PoolOptions, Sharing, Span};

/// Says how many orders were tried, also when one of them failed.
struct Said(String, Arc<AtomicUsize>);

impl Drop for Said {
    fn drop(&mut self) {
        println!("model: {}: {} orders", self.0, self.1.load(Ordering::Relaxed));
    }
}

/// Tries `model` in some thousand orders, half of them by priorities that change at a few random places, which finds deep bugs.
fn in_many_orders(name: &str, model: impl Fn() + Send + Sync + 'static) {
    let orders = std::env::var("FOREBAY_MODEL_ORDERS").ok().and_then(|orders| orders.parse().ok()).unwrap_or(5_000);
    let tried = Arc::new(AtomicUsize::new(0));
    let _said = Said(name.to_owned(), Arc::clone(&tried));
    let model = Arc::new(move || {
        tried.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let again = Arc::clone(&model);
    let mut config = Config::new();
    // Coroutines have little otherwise.
    config.stack_size = 512 << 10;
    Runner::new(RandomScheduler::new(orders), config.clone()).run(move || model());
    Runner::new(PctScheduler::new(3, orders), config).run(move || again());
}

fn pool() -> Pool {
    let size = ByteSize::bytes(FRAME_SIZE as u64);
    Pool::new(PoolOptions { initial: size, max: size, huge_pages: false, sharing: Sharing::Private }).unwrap()
}

/// Writes its name into all the memory it was given, lets others go on, and looks whether it still is there.
fn use_it(mut span: crate::SpanMut, name: u8) -> Span {
    let ends = [0, span.len() - 1];
    ends.iter().for_each(|at| span[*at] = name);
    thread::yield_now();
    let span = span.freeze();
    assert!(ends.iter().all(|at| span[*at] == name), "somebody else was given it");
    span
}

#[test]
fn whoever_waits_is_served_whatever_others_wait_for_and_none_has_what_another_has() {
    in_many_orders("the pool: three who take turns", || {
        let pool = pool();
        let threads: Vec<_> = [FRAME_SIZE, FRAME_SIZE / 2, FRAME_SIZE / 2]
            .into_iter()
            .enumerate()
            .map(|(number, length)| {
                let pool = pool.clone();
                thread::spawn(move || {
                    for round in 0..2 {
                        let span = block_on(pool.alloc(length, Duration::MAX)).unwrap();
                        let view = use_it(span, 10 * number as u8 + round + 1);
                        let reader = view.slice(1..view.len());
                        drop(view);
                        thread::yield_now();
                        drop(reader);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let left = pool.occupancy();
        assert_eq!((left.used, left.waiting, left.free_frames), (0, 0, 1));
    });
}

#[test]
fn those_who_give_up_or_are_given_up_keep_nothing_and_nobody_waiting() {
    in_many_orders("the pool: a deadline, a read that is given up, and one who waits behind them", || {
        let pool = pool();
        let held = pool.try_alloc(1).unwrap();
        let impatient = {
            let pool = pool.clone();
            thread::spawn(move || {
                // Its deadline may pass at any moment.
                if let Ok(span) = block_on(pool.alloc(FRAME_SIZE, Duration::from_secs(1))) {
                    drop(use_it(span, 1));
                }
            })
        };
        let given_up = {
            let pool = pool.clone();
            spawn(async move { drop(pool.alloc(FRAME_SIZE, Duration::MAX).await) })
        };
        let behind = {
            let pool = pool.clone();
            thread::spawn(move || drop(use_it(block_on(pool.alloc(1, Duration::MAX)).unwrap(), 2)))
        };
        thread::yield_now();
        given_up.abort();
        let _ = block_on(given_up);
        // There is room for this one although what is held is not given back, once the others have left.
        behind.join().unwrap();
        impatient.join().unwrap();
        drop(use_it(held, 3));
        assert!(pool.try_alloc(FRAME_SIZE).is_some());
        assert_eq!((pool.used(), pool.occupancy().waiting), (0, 0));
    });
}

#[test]
fn what_lies_behind_a_view_is_had_by_one_when_the_others_are_gone() {
    in_many_orders("a span that is lent and had again", || {
        let pool = pool();
        let (head, tail) = pool.try_alloc(100).unwrap().split_at(0);
        let mut anchor = head.freeze();
        let lent = thread::spawn(move || drop(use_it(tail, 1)));
        let again = loop {
            match anchor.reclaim(100) {
                Some(again) => break again,
                None => thread::yield_now(),
            }
        };
        assert_eq!(anchor.views(), 2);
        drop(use_it(again, 2));
        lent.join().unwrap();
        drop(anchor);
        assert_eq!(pool.used(), 0);
    });
}

#[test]
fn memory_that_is_taken_ahead_is_none_that_is_lent_and_clears_none_that_is_filled() {
    in_many_orders("the pool: memory is taken ahead while a frame is lent, had again and filled", || {
        let pool = pool();
        let warmer = {
            let pool = pool.clone();
            thread::spawn(move || pool.warm_up(pool.capacity(), || true).unwrap())
        };
        drop(pool.try_alloc(FRAME_SIZE).unwrap().lend().unwrap());
        drop(use_it(pool.try_alloc(FRAME_SIZE).unwrap(), 1));
        let lent = pool.try_alloc(FRAME_SIZE).unwrap().lend().unwrap();
        warmer.join().unwrap();
        assert!(!pool.is_backed(0), "it is lent");
        drop(lent);
        assert_eq!(pool.used(), 0);
    });
}
