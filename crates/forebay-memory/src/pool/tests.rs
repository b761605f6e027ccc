use super::*;
use crate::Sharing;

const FRAME: usize = FRAME_SIZE;

fn pool(frames: u64) -> Pool {
    Pool::new(PoolOptions::fixed(ByteSize::bytes(frames * FRAME as u64))).unwrap()
}

#[test]
fn memory_with_a_reader_is_not_reused() {
    let pool = pool(1);
    let mut span = pool.try_alloc(FRAME).unwrap();
    span[..3].copy_from_slice(b"abc");
    let reader = span.freeze().slice(1..3);
    assert!(pool.try_alloc(1).is_none());
    assert_eq!(&*reader, b"bc");
    drop(reader);
    assert!(pool.try_alloc(FRAME).is_some());
}

#[test]
fn split_spans_are_disjoint_and_free_their_extent_together() {
    let pool = pool(1);
    let (mut head, mut tail) = pool.try_alloc(FRAME).unwrap().split_at(100);
    head.fill(1);
    tail.fill(2);
    assert!(head.iter().all(|byte| *byte == 1));
    drop(head);
    assert!(pool.try_alloc(1).is_none());
    drop(tail);
    assert_eq!(pool.used(), 0);
}

#[test]
fn pieces_that_follow_one_another_are_one_again_and_others_are_not() {
    let pool = pool(1);
    let (head, rest) = pool.try_alloc(1000).unwrap().split_at(100);
    let (mut middle, tail) = rest.split_at(300);
    middle.fill(7);
    let (head, tail) = head.joined(tail).expect_err("there is something between them");
    let (tail, other) = tail.joined(pool.try_alloc(10).unwrap()).expect_err("of another extent");
    assert!(tail.is_of(&pool) && tail.is_of(&pool.clone()) && !tail.is_of(&self::pool(1)));
    let (tail, middle) = tail.joined(middle).expect_err("in the wrong order");
    let joined = head.joined(middle).and_then(|both| both.joined(tail)).expect("one after the other");
    assert!(joined.len() == 1000 && joined[100..400] == [7; 300]);
    drop(other);
    drop(joined);
    assert_eq!(pool.used(), 0);
}

#[test]
fn what_lies_behind_a_view_is_had_again_when_all_others_are_gone() {
    let pool = pool(1);
    let (head, mut tail) = pool.try_alloc(100).unwrap().split_at(10);
    let mut head = head.freeze();
    assert!(head.reclaim(90).is_none(), "it is still lent");
    tail.fill(7);
    drop(tail);
    assert!(head.reclaim(FRAME).is_none(), "there is not so much");
    let again = head.reclaim(90).unwrap();
    assert_eq!(*again, [7; 90]);
    assert!(head.reclaim(1).is_none(), "it is had once");
    drop((head, again));
    assert_eq!(pool.used(), 0);
}

#[test]
fn a_pool_grows_to_its_limit_and_no_further() {
    let options =
        PoolOptions { initial: ByteSize::mib(4), max: ByteSize::mib(12), huge_pages: false, sharing: Sharing::Private };
    let pool = Pool::new(options).unwrap();
    let held: Vec<_> = std::iter::from_fn(|| pool.try_alloc(FRAME)).collect();
    assert_eq!(held.len(), 3);
    assert!(Pool::new(PoolOptions { initial: ByteSize::mib(16), ..options }).is_err());
}

/// What memory goes through with a mount: filled by a transport, read by several, had again by the entry of a ring that lent it.
#[test]
fn memory_that_goes_from_thread_to_thread_is_written_when_nobody_reads_it() {
    let pool = pool(1);
    let (head, tail) = pool.try_alloc(100).unwrap().split_at(0);
    let mut anchor = head.freeze();
    let mut lent = Some(tail);
    for round in 0..3 {
        let mut filled = lent.take().or_else(|| anchor.reclaim(100)).unwrap();
        let filler = std::thread::spawn(move || {
            filled.fill(round);
            filled.freeze()
        });
        let view = filler.join().unwrap();
        let readers = [0, 20, 40].map(|at| {
            let view = view.slice(at..at + 40);
            std::thread::spawn(move || assert!(view.iter().all(|byte| *byte == round)))
        });
        drop(view);
        // Not joined: that they have gone is learnt from the views alone.
        while anchor.views() > 1 {
            std::thread::yield_now();
        }
        let mut again = anchor.reclaim(100).unwrap();
        again.fill(99);
        drop(again);
        readers.into_iter().for_each(|thread| thread.join().unwrap());
    }
    drop(anchor);
    assert!(pool.try_alloc(FRAME).is_some());
}

#[test]
#[cfg_attr(miri, ignore = "Miri backs no mapping with memory")]
fn taking_memory_ends_soon_when_nobody_wants_it_any_more() {
    let pool = Pool::new(PoolOptions { huge_pages: false, ..PoolOptions::fixed(ByteSize::gib(64)) }).unwrap();
    let mut asked = 0;
    pool.warm_up(pool.capacity(), || {
        asked += 1;
        asked < 3
    })
    .unwrap();
    assert_eq!(asked, 3, "of thousands of steps it has taken two");
    let before = std::time::Instant::now();
    pool.warm_up(ByteSize::bytes(1), || true).unwrap();
    assert!(before.elapsed() < Duration::from_secs(10), "no more than what it is asked for");
}

#[tokio::test(start_paused = true)]
async fn it_is_told_once_that_so_much_is_in_use() {
    let pool = pool(4);
    let bytes = 2 * FRAME as u64;
    let (waiting, taken) = (pool.clone(), pool.try_alloc(FRAME).unwrap());
    let reached = tokio::spawn(async move { waiting.reaches(bytes).await });
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(!reached.is_finished());
    let more = pool.try_alloc(FRAME).unwrap();
    reached.await.unwrap();
    pool.reaches(bytes).await;
    drop((taken, more));
    let again = tokio::time::timeout(Duration::from_secs(1), pool.reaches(bytes)).await;
    assert!(again.is_err(), "less is in use now");
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_are_served_in_order() {
    let pool = pool(1);
    let held = pool.try_alloc(FRAME).unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let tasks: Vec<_> = (0..4)
        .map(|number| {
            let (pool, order) = (pool.clone(), Arc::clone(&order));
            tokio::spawn(async move {
                let span = pool.alloc(FRAME, Duration::from_secs(60)).await.unwrap();
                order.lock().push(number);
                drop(span);
            })
        })
        .collect();
    while pool.occupancy().waiting < 4 {
        tokio::task::yield_now().await;
    }
    assert!(pool.try_alloc(1).is_none(), "a newcomer must not overtake");
    drop(held);
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*order.lock(), [0, 1, 2, 3]);
    assert_eq!(pool.used(), 0);
}

#[tokio::test(start_paused = true)]
async fn one_who_gives_up_leaves_the_line_and_lets_smaller_ones_through() {
    let pool = pool(1);
    let small = pool.try_alloc(1).unwrap();
    let (big, behind) =
        tokio::join!(pool.alloc(FRAME, Duration::from_millis(10)), pool.alloc(1, Duration::from_secs(10)));
    assert!(matches!(big, Err(PoolError::Exhausted { .. })));
    assert!(behind.is_ok());
    drop((small, behind));
    assert_eq!(pool.used(), 0);
    assert_eq!(pool.occupancy().failures, 1);
}

#[tokio::test(start_paused = true)]
async fn one_whose_read_is_given_up_lets_those_behind_him_through() {
    let pool = pool(1);
    let small = pool.try_alloc(1).unwrap();
    let first = tokio::spawn({
        let pool = pool.clone();
        async move { pool.alloc(FRAME, Duration::from_secs(60)).await }
    });
    while pool.occupancy().waiting < 1 {
        tokio::task::yield_now().await;
    }
    let behind = tokio::spawn({
        let pool = pool.clone();
        async move { pool.alloc(1, Duration::from_secs(60)).await }
    });
    while pool.occupancy().waiting < 2 {
        tokio::task::yield_now().await;
    }
    first.abort();
    let given_up = tokio::time::Instant::now();
    assert!(behind.await.unwrap().is_ok(), "there was room for it all the time");
    assert_eq!(given_up.elapsed(), Duration::ZERO);
    drop(small);
}

#[tokio::test]
async fn a_grant_to_one_who_left_is_not_lost() {
    let pool = pool(1);
    let held = pool.try_alloc(FRAME).unwrap();
    let waiting = tokio::spawn({
        let pool = pool.clone();
        async move { pool.alloc(FRAME, Duration::from_secs(60)).await }
    });
    while pool.occupancy().waiting == 0 {
        tokio::task::yield_now().await;
    }
    waiting.abort();
    assert!(waiting.await.is_err());
    drop(held);
    assert!(pool.try_alloc(FRAME).is_some());
}

/// In small pages, of which each is backed by itself.
#[cfg(not(miri))]
fn of_small_pages(frames: u64) -> Pool {
    Pool::new(PoolOptions { huge_pages: false, ..PoolOptions::fixed(ByteSize::bytes(frames * FRAME as u64)) }).unwrap()
}

#[test]
#[cfg(not(miri))]
fn a_frame_that_is_lent_is_in_use_and_takes_no_memory_and_is_backed_anew_when_it_is_back() {
    let pool = of_small_pages(3);
    let mut filled: Vec<_> = std::iter::from_fn(|| pool.try_alloc(FRAME)).collect();
    filled.iter_mut().for_each(|frame| frame.fill(7));
    let kept = filled.pop().unwrap().freeze();
    assert!((0..3).all(|frame| pool.is_backed(frame)));
    let lent: Vec<_> = filled.into_iter().map(|frame| frame.lend().unwrap()).collect();
    assert_eq!((0..3).filter(|frame| pool.is_backed(*frame)).collect::<Vec<_>>(), [kept.frame()]);
    assert!(kept.iter().all(|byte| *byte == 7));
    assert!(pool.try_alloc(1).is_none(), "to the pool they are in use");
    assert_eq!(pool.used(), 3 * FRAME as u64);
    drop(lent);
    let mut again = pool.try_alloc(FRAME).unwrap();
    assert!(again.iter().all(|byte| *byte == 0));
    again.fill(1);
    assert!(again.freeze().iter().all(|byte| *byte == 1));
}

#[test]
#[cfg(not(miri))]
fn memory_is_taken_for_all_frames_but_those_that_are_lent() {
    let pool = of_small_pages(3);
    // The lowest come first.
    let (first, second) = (pool.try_alloc(FRAME).unwrap(), pool.try_alloc(FRAME).unwrap());
    let lent = second.lend().unwrap();
    pool.warm_up(pool.capacity(), || true).unwrap();
    assert_eq!([0, 1, 2].map(|frame| pool.is_backed(frame)), [true, false, true]);
    drop((first, lent));
    pool.warm_up(pool.capacity(), || true).unwrap();
    assert!(pool.is_backed(1), "it is the pool's again");
}

#[test]
#[cfg(not(miri))]
fn what_is_no_whole_frame_or_has_another_view_is_not_lent() {
    let pool = pool(2);
    let small = pool.try_alloc(1000).unwrap();
    assert_eq!(small.lend().unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    let (head, tail) = pool.try_alloc(FRAME).unwrap().split_at(10);
    assert_eq!(head.lend().unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    drop(tail);
    assert_eq!(pool.used(), 0, "nothing is lost by it");
}
