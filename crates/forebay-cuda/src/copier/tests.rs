//! A device's thread, with the fake.

use std::time::{Duration, Instant};

use forebay_memory::{Pool, PoolOptions, Sharing, Span, Spans, Window};
use forebay_types::ByteSize;

use super::*;
use crate::conformance::World as _;
use crate::fake::Fake;
use crate::outstanding::Outstanding;

const SOON: Duration = Duration::from_secs(60);
const DEVICE: Device = Device(1);

/// A worker's memory, and a window onto it.
struct Near {
    pool: Pool,
    window: Option<Window>,
}

impl Near {
    fn new() -> Self {
        let options =
            PoolOptions { huge_pages: false, sharing: Sharing::Always, ..PoolOptions::fixed(ByteSize::mib(8)) };
        let pool = Pool::new(options).unwrap();
        let window = Window::map(pool.descriptor().unwrap(), pool.capacity().as_u64()).unwrap();
        Self { pool, window: Some(window) }
    }

    /// New bytes of it, as the window shows them, with the worker's own view of them. `lease` is held by the former.
    fn bytes(&self, seed: u8, length: usize, lease: Arc<()>) -> (Span, Span) {
        let mut filling = self.pool.try_alloc(length).unwrap();
        filling.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at % 251) as u8 ^ seed);
        let own = filling.freeze();
        let seen = self.window.as_ref().unwrap().span(own.place().unwrap(), lease).unwrap();
        (seen, own)
    }
}

fn started(fake: &Arc<Fake>) -> Copier {
    wait(Copier::start(Arc::clone(fake) as Arc<dyn Cuda>, DEVICE)).unwrap()
}

fn wait<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(SOON, work).await.expect("it does not hang") })
}

fn copied(copier: &Copier, source: Source, to: DeviceAddress) -> Result<Ended, Error> {
    let outstanding = Outstanding::default();
    // SAFETY: the memory is of a test, which looks at it when `outstanding` is gone.
    wait(unsafe { copier.copy(source, to, outstanding.ticket()) })
}

fn until(mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < SOON, "it hangs");
        std::thread::yield_now();
    }
}

fn staged(copier: &Copier, bytes: &[u8]) -> Source {
    let mut buffer = wait(copier.staging()).unwrap();
    assert!(buffer.fill([bytes].into_iter()));
    Source::Staged(buffer)
}

#[test]
fn bytes_of_a_worker_are_copied_from_where_they_lie_and_its_memory_is_registered_once() {
    let (fake, near) = (Arc::new(Fake::new(2)), Near::new());
    fake.delay(3);
    let (copier, to) = (started(&fake), fake.allocate(DEVICE, 3 << 20));
    assert_eq!(fake.registered(), 0);
    for seed in 0..5 {
        let (first, own) = near.bytes(seed, 1 << 20, Arc::new(()));
        let spans: Spans = [first.slice(0..1000), first.slice(1000..1 << 20)].into_iter().collect();
        assert!(matches!(copied(&copier, Source::Shared(spans), to), Ok(Ended::Copied)));
        assert!(fake.bytes(to, 1 << 20) == *own);
        assert_eq!(fake.registered(), 8 << 20);
    }
    drop(copier);
    assert!(fake.is_given_back());
}

#[test]
fn a_lease_is_held_until_the_copy_has_ended_also_if_nobody_waits_for_it() {
    let (fake, near, lease) = (Arc::new(Fake::new(2)), Near::new(), Arc::new(()));
    let (copier, to) = (started(&fake), fake.allocate(DEVICE, 1 << 20));
    // For ever, until it is let go on.
    fake.delay(usize::MAX);
    let (seen, own) = near.bytes(9, 1 << 20, Arc::clone(&lease));
    let outstanding = Outstanding::default();
    {
        // SAFETY: the memory is of this test, which looks at it when `outstanding` is gone.
        let copying = unsafe { copier.copy(Source::Shared([seen].into_iter().collect()), to, outstanding.ticket()) };
        // Begun, and given up.
        let given_up = wait(async { tokio::time::timeout(Duration::from_millis(1), copying).await.is_err() });
        assert!(given_up);
    }
    until(|| fake.registered() > 0);
    assert!(Arc::strong_count(&lease) == 2 && fake.copied() == 0);
    fake.delay(0);
    drop(outstanding);
    // The source is let go of before the ticket.
    assert_eq!((Arc::strong_count(&lease), fake.copied()), (1, 1));
    assert!(fake.bytes(to, 1 << 20) == *own);
}

#[test]
fn memory_that_cannot_be_registered_is_said_so_and_its_spans_come_back() {
    for refuses in [0, 1] {
        let (fake, near) = (Arc::new(Fake::new(2)), Near::new());
        if refuses == 0 {
            fake.take_read_only(false);
        } else {
            fake.fail("register", 0, 1);
        }
        let (copier, to) = (started(&fake), fake.allocate(DEVICE, 1 << 20));
        let (seen, own) = near.bytes(1, 5000, Arc::new(()));
        assert_eq!(copier.takes_windows(), refuses == 1);
        // It is not asked for again.
        for _ in 0..2 {
            let source = Source::Shared([seen.clone()].into_iter().collect());
            let Ok(Ended::NotRegistered(spans)) = copied(&copier, source, to) else { panic!("it was copied") };
            assert!(spans.len() == 1 && *spans[0] == *seen);
        }
        assert_eq!(fake.registered(), 0);
        let source = staged(&copier, &own);
        assert!(matches!(copied(&copier, source, to), Ok(Ended::Copied)));
        assert!(fake.bytes(to, 5000) == *own);
    }
}

#[test]
fn pinned_buffers_are_used_again() {
    let fake = Arc::new(Fake::new(2));
    let (copier, to) = (started(&fake), fake.allocate(DEVICE, 100));
    for number in 0..10 {
        let source = staged(&copier, &[number; 100]);
        assert!(matches!(copied(&copier, source, to), Ok(Ended::Copied)));
        assert_eq!(fake.bytes(to, 100), [number; 100]);
    }
    assert_eq!(fake.registered(), crate::STAGING_SIZE);
    drop(copier);
    assert!(fake.is_given_back());
}

#[test]
fn what_the_driver_refuses_is_told_by_its_name_and_the_next_copy_goes_on() {
    let fake = Arc::new(Fake::new(2));
    let (copier, to) = (started(&fake), fake.allocate(DEVICE, 100));
    for what in ["copy", "record"] {
        let source = staged(&copier, b"lost");
        fake.fail(what, 0, 700);
        let error = copied(&copier, source, to).unwrap_err();
        assert!(error.to_string().contains("FAKE_700 (700)") && error.errno() == libc::EIO, "{error}");
    }
    let source = staged(&copier, b"here");
    assert!(matches!(copied(&copier, source, to), Ok(Ended::Copied)));
    assert_eq!(fake.bytes(to, 4), b"here");
}

#[test]
fn a_broken_context_ends_all_copies_with_its_error() {
    let fake = Arc::new(Fake::new(2));
    let (copier, to) = (started(&fake), fake.allocate(DEVICE, 100));
    fake.fail("query", 0, 719);
    for _ in 0..2 {
        let ended = wait(copier.staging()).map(|mut buffer| {
            assert!(buffer.fill([&b"lost"[..]].into_iter()));
            copied(&copier, Source::Staged(buffer), to)
        });
        assert!(ended.is_err() || ended.is_ok_and(|ended| ended.is_err()));
    }
}

#[test]
fn a_worker_that_has_gone_leaves_no_memory_registered() {
    let (fake, mut near) = (Arc::new(Fake::new(2)), Near::new());
    let (copier, to) = (started(&fake), fake.allocate(DEVICE, 100));
    let copy_of = |near: &Near| {
        let (seen, _own) = near.bytes(1, 100, Arc::new(()));
        assert!(matches!(copied(&copier, Source::Shared([seen].into_iter().collect()), to), Ok(Ended::Copied)));
    };
    copy_of(&near);
    near.window = None;
    // Seen when the next worker's memory is registered, at the latest.
    copy_of(&Near::new());
    assert_eq!(fake.registered(), 8 << 20);
}

#[test]
fn a_device_that_is_not_there_and_memory_that_is_not_its_own_are_refused() {
    let fake = Arc::new(Fake::new(2));
    let error = wait(Copier::start(Arc::clone(&fake) as Arc<dyn Cuda>, Device(2))).unwrap_err();
    assert_eq!(error, Error::NoDevice { device: Device(2), count: 2 });
    let (copier, own, other) = (started(&fake), fake.allocate(DEVICE, 100), fake.allocate(Device(0), 100));
    assert_eq!(copier.check(own, 100), Ok(()));
    assert_eq!(copier.check(DeviceAddress(7), 0), Ok(()));
    for (address, length) in [(own, 101), (other, 1), (DeviceAddress(7), 1), (own, usize::MAX)] {
        let refused = copier.check(address, length).unwrap_err();
        assert!(matches!(refused, Error::NotOfDevice { .. }) && refused.errno() == libc::EFAULT, "{refused}");
    }
}

#[test]
fn copies_come_after_no_stream_that_is_captured_or_another_one_on_each_thread() {
    let fake = Arc::new(Fake::new(2));
    let (copier, to) = (started(&fake), fake.allocate(DEVICE, 100));
    fake.capture(Some(Stream(0)));
    for (stream, said) in [(Stream(0), "captured"), (Stream::PER_THREAD, "on each thread")] {
        // SAFETY: the default stream, and one that is not used.
        let refused = wait(unsafe { copier.follow(stream) }).unwrap_err();
        assert!(refused.to_string().contains(said) && refused.errno() == libc::EINVAL, "{refused}");
    }
    fake.capture(None);
    // SAFETY: the default stream.
    wait(unsafe { copier.follow(Stream(0)) }).unwrap();
    let source = staged(&copier, b"after");
    assert!(matches!(copied(&copier, source, to), Ok(Ended::Copied)));
}

#[test]
fn copies_come_after_what_the_callers_stream_has() {
    let fake = Arc::new(Fake::new(2));
    let (copier, to) = (started(&fake), fake.allocate(DEVICE, 100));
    // SAFETY: the default stream.
    wait(unsafe { copier.follow(Stream(0)) }).unwrap();
    let source = staged(&copier, b"after");
    assert!(matches!(copied(&copier, source, to), Ok(Ended::Copied)));
    assert_eq!(fake.bytes(to, 5), b"after");
}
