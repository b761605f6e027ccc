use forebay_types::ByteSize;

use super::*;
use crate::{Pool, PoolOptions, Sharing};

fn pool(sharing: Sharing) -> Pool {
    let options = PoolOptions { huge_pages: false, sharing, ..PoolOptions::fixed(ByteSize::mib(8)) };
    Pool::new(options).unwrap()
}

fn window(pool: &Pool) -> Window {
    Window::map(pool.descriptor().unwrap(), pool.capacity().as_u64()).unwrap()
}

fn filled(pool: &Pool, length: usize) -> Span {
    let mut span = pool.try_alloc(length).unwrap();
    for (number, byte) in span.iter_mut().enumerate() {
        *byte = (number % 251) as u8;
    }
    span.freeze()
}

#[test]
fn a_window_shows_the_bytes_of_a_span_where_they_lie() {
    let pool = pool(Sharing::Always);
    let window = window(&pool);
    // One class for each: they lie in two frames.
    let (small, large) = (filled(&pool, 1000), filled(&pool, 3 << 20));
    for span in [small.slice(0..1000), small.slice(10..20), large.clone(), large.slice(100_000..3_000_000)] {
        let seen = window.span(span.place().unwrap(), Arc::new(())).unwrap();
        assert!(*seen == *span);
        assert_eq!(&seen.slice(3..7)[..], &span[3..7]);
    }
}

#[test]
fn what_is_seen_through_a_window_is_read_only_and_of_no_pool_here() {
    let pool = pool(Sharing::Always);
    let place = filled(&pool, 100_000).slice(10..50_000).place().unwrap();
    let mut seen = window(&pool).span(place, Arc::new(())).unwrap().slice(0..10);
    assert!(seen.reclaim(0).is_none() && seen.reclaim(10).is_none());
    assert_eq!(seen.place(), None);
    assert_eq!((seen.frame(), seen.extent_size(), seen.views()), (u32::MAX, 49_990, 1));
}

#[test]
fn a_place_beyond_the_end_or_without_bytes_is_no_view() {
    let pool = pool(Sharing::Always);
    let window = window(&pool);
    let end = window.length();
    let seen = |offset, length| window.span(Place { offset, length }, Arc::new(())).is_some();
    assert!(seen(0, 1) && seen(end - 1, 1) && seen(0, end as u32));
    for (offset, length) in [(0, 0), (end, 0), (end, 1), (end - 1, 2), (1, u32::MAX), (u64::MAX, 1), (u64::MAX, 0)] {
        assert!(!seen(offset, length), "{length} bytes at {offset}");
    }
}

#[test]
fn a_lease_ends_with_the_last_view() {
    let pool = pool(Sharing::Always);
    let lease = Arc::new(());
    let seen = window(&pool).span(Place { offset: 0, length: 100 }, lease.clone()).unwrap();
    let (slice, clone) = (seen.slice(10..20), seen.clone());
    drop((seen, clone));
    assert_eq!(Arc::strong_count(&lease), 2);
    drop(slice);
    assert_eq!(Arc::strong_count(&lease), 1);
}

#[test]
fn a_view_outlives_its_window_and_the_pool() {
    let pool = pool(Sharing::Always);
    let place = filled(&pool, 1000).place().unwrap();
    let seen = window(&pool).span(place, Arc::new(())).unwrap();
    drop(pool);
    assert_eq!(seen[..3], [0, 1, 2]);
}

#[test]
fn less_memory_than_was_promised_is_no_window() {
    let pool = pool(Sharing::Always);
    let map = |length| Window::map(pool.descriptor().unwrap(), length).map_err(|error| error.kind());
    assert_eq!(map(pool.capacity().as_u64() + 1).unwrap_err(), io::ErrorKind::InvalidData);
    assert_eq!(map(u64::MAX).unwrap_err(), io::ErrorKind::InvalidData);
    assert!(map(0).is_err());
    assert_eq!(map(4096).unwrap().length(), 4096);
}

#[test]
fn a_private_pool_cannot_be_seen() {
    let pool = pool(Sharing::Private);
    assert!(pool.descriptor().is_none());
    // It has places all the same.
    assert_eq!(filled(&pool, 1000).place(), Some(Place { offset: 0, length: 1000 }));
}

#[test]
fn a_shared_pool_is_backed_by_memory_from_the_start_where_that_is_asked() {
    let prewarm = ByteSize::mib(4);
    let options = PoolOptions { sharing: Sharing::Always, ..PoolOptions::fixed(ByteSize::mib(8)) };
    let pool = Pool::new(options).unwrap();
    pool.warm_up(prewarm, || true).unwrap();
    let blocks = rustix::fs::fstat(pool.descriptor().unwrap()).unwrap().st_blocks as u64;
    assert!(blocks * 512 >= prewarm.as_u64(), "{blocks} blocks");
    assert!(pool.warm_up(ByteSize::gib(1), || true).is_ok(), "no further than its end");
}

#[test]
fn a_device_may_register_memory_whose_pages_stay_and_no_other() {
    let pool = pool(Sharing::Always);
    let window = window(&pool);
    let span = filled(&pool, 1000);
    // Of this process's own pool, which may lend frames.
    assert!(span.registrable().is_none() && span.copied().unwrap().registrable().is_none());
    let seen = window.span(span.place().unwrap(), Arc::new(())).unwrap();
    let registrable = seen.registrable().unwrap();
    assert_eq!(registrable.length() as u64, pool.capacity().as_u64());
    assert_eq!(registrable.base().as_ptr() as usize + span.place().unwrap().offset as usize, seen.as_ptr() as usize);
    drop(window);
    // Of another GPU.
    let other = seen.registrable().unwrap();
    assert!(!registrable.is_unused() && !other.is_unused());
    drop(seen);
    assert!(registrable.is_unused() && other.is_unused());
    // A file that anybody may cut or punch.
    let file = rustix::fs::memfd_create(c"open", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 1 << 20).unwrap();
    let open = Window::map(std::os::fd::AsFd::as_fd(&file), 1 << 20).unwrap();
    let seen = open.span(Place { offset: 0, length: 100 }, Arc::new(())).unwrap();
    assert!(seen.registrable().is_none());
}
