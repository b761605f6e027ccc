//! All of it together: a source and a backend that do what they are told.

mod lent;

use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use forebay_types::{ByteSize, FailureKind, FileVersion};
use tokio::runtime::Handle;

use crate::backend::BackendKind;
use crate::fake::{BLOCK, FakeBackend, FakeSource, LIMIT, bytes_of, named, version};
use crate::{Local, LocalFile, LocalOptions, LocalState, NotTaken, Verdict, Why};

const SIZE: u64 = 5 * BLOCK as u64 + 40_001;

struct Rig {
    source: FakeSource,
    backend: FakeBackend,
    local: Local,
}

fn options() -> LocalOptions {
    LocalOptions {
        size: ByteSize::mib(16),
        dir: None,
        owner: "test".to_owned(),
        max_file_size: ByteSize::gib(1),
        min_opens: 2,
        first_open_size: ByteSize::bytes(0),
        first_open_wait: LIMIT,
        fills: 2,
        check_interval: Duration::ZERO,
        check_bandwidth: ByteSize::gib(1),
        check_writes: false,
        is_automatic: false,
        lender: None,
    }
}

/// Each first open waits.
fn first() -> LocalOptions {
    LocalOptions { first_open_size: ByteSize::mib(8), ..options() }
}

impl Rig {
    fn new(options: LocalOptions) -> Self {
        Self::on(FakeBackend::new(BackendKind::Memory), options)
    }

    fn on(backend: FakeBackend, options: LocalOptions) -> Self {
        let source = FakeSource::new();
        let local = Local::on(Arc::new(backend.clone()), options, Arc::new(source.clone()), Handle::current()).unwrap();
        Self { source, backend, local }
    }

    fn open(&self, version: &FileVersion) -> Verdict {
        self.local.opened(version.id(), version)
    }

    async fn file(&self, version: &FileVersion) -> Result<LocalFile, NotTaken> {
        match self.open(version) {
            Verdict::Ready(file) => Ok(file),
            Verdict::Waiting(waiting) => tokio::time::timeout(LIMIT, waiting.done()).await.unwrap(),
            Verdict::No => Err(NotTaken::Off),
        }
    }

    async fn close(self) {
        tokio::time::timeout(LIMIT, self.local.close()).await.unwrap();
        assert_eq!(self.source.in_flight(), 0);
    }
}

fn read(file: &LocalFile) -> Vec<u8> {
    let mut bytes = Vec::new();
    File::from(file.as_fd().try_clone_to_owned().unwrap()).read_to_end(&mut bytes).unwrap();
    bytes
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let waited = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, waited).await.is_ok(), "not in time: {what}");
}

#[tokio::test]
async fn what_is_opened_twice_is_served_whole() {
    let rig = Rig::new(options());
    let version = version("/a", SIZE);
    assert!(matches!(rig.open(&version), Verdict::No));
    assert_eq!(rig.source.reads(), 0);
    assert!(matches!(rig.open(&version), Verdict::No));
    until("it is there", || rig.local.stats().files.ready == 1).await;
    let file = rig.file(&version).await.unwrap();
    assert!(read(&file) == bytes_of(&version));
    assert_eq!((rig.source.reads(), file.id()), (6, version.id()));
    let stats = rig.local.stats();
    assert_eq!((stats.fills.done, stats.fills.bytes, stats.files.pinned), (1, SIZE, 1));
    assert_eq!(stats.fills.seconds.iter().sum::<u64>(), 1);
    let listed = rig.local.list();
    assert_eq!((listed[0].path.as_str(), listed[0].state, listed[0].pins), ("/a", LocalState::Ready, 1));
    drop(file);
    assert_eq!(rig.local.stats().files.pinned, 0);
    rig.close().await;
}

#[tokio::test]
async fn who_asks_which_files_are_kept_hears_of_those_that_the_next_open_gets() {
    let rig = Rig::new(first());
    let (whole, other) = (version("/whole", SIZE), version("/other", SIZE));
    let kept = rig.local.kept();
    assert!(!kept.has(whole.id()));
    let file = rig.file(&whole).await.unwrap();
    assert!(kept.has(whole.id()) && !kept.has(other.id()));
    assert!(rig.local.drop_file(whole.id()));
    assert!(!kept.has(whole.id()), "it is there for those alone who have it open");
    drop(file);
    until("it is gone", || rig.backend.files() == 0).await;
    drop(rig.file(&other).await.unwrap());
    assert!(kept.has(other.id()));
    rig.local.turn_off("it is to be off");
    assert!(!kept.has(other.id()));
    rig.close().await;
}

#[tokio::test]
async fn a_first_open_waits_and_all_who_wait_share_one_fill_and_one_descriptor() {
    let rig = Rig::new(first());
    let version = version("/a", SIZE);
    rig.source.hold(true);
    let waiting: Vec<_> = (0..5).map(|_| rig.open(&version)).collect();
    until("blocks are asked for", || rig.source.in_flight() == 4).await;
    rig.source.hold(false);
    let mut files = Vec::new();
    for waiting in waiting {
        let Verdict::Waiting(waiting) = waiting else { panic!("{waiting:?}") };
        files.push(waiting.done().await.unwrap());
    }
    assert_eq!((rig.source.reads(), rig.source.max_in_flight()), (6, 4));
    let descriptors: std::collections::HashSet<_> =
        files.iter().map(|file| std::os::fd::AsRawFd::as_raw_fd(&file.as_fd())).collect();
    assert_eq!((descriptors.len(), rig.local.list()[0].pins), (1, 1));
    assert_eq!(rig.local.stats().opens.waited, 5);
    drop(files);
    assert_eq!(rig.local.list()[0].pins, 0);
    rig.close().await;
}

#[tokio::test]
async fn an_open_that_waited_long_enough_is_served_as_ever() {
    let rig = Rig::new(LocalOptions { first_open_wait: Duration::from_millis(5), ..first() });
    let version = version("/a", SIZE);
    rig.source.hold(true);
    assert_eq!(rig.file(&version).await.unwrap_err(), NotTaken::Late);
    rig.source.hold(false);
    until("it comes all the same", || rig.local.stats().files.ready == 1).await;
    rig.close().await;
}

#[tokio::test]
async fn a_wrong_byte_is_asked_for_again_and_twice_is_a_failure() {
    for kind in [BackendKind::Memory, BackendKind::Directory] {
        let rig = Rig::on(FakeBackend::new(kind), first());
        let good = version("/good", SIZE);
        rig.source.spoil(3, 1);
        assert!(read(&rig.file(&good).await.unwrap()) == bytes_of(&good));
        assert!(rig.source.was_scrubbed(3) && !rig.source.was_scrubbed(2));
        rig.source.spoil(5, 2);
        let bad = version("/bad", SIZE);
        assert!(matches!(rig.file(&bad).await, Err(NotTaken::Failed(_))));
        let stats = rig.local.stats();
        assert_eq!((stats.corrupt_sectors, stats.fills.corrupt, stats.files.cooling), (3, 1, 1));
        assert_eq!(stats.bytes.filling, 0);
        // It is left alone for a while.
        assert!(matches!(rig.open(&bad), Verdict::No));
        assert_eq!(rig.backend.files(), 2);
        rig.close().await;
    }
}

#[tokio::test]
async fn what_the_backend_wrote_wrong_is_written_again() {
    let rig = Rig::on(FakeBackend::new(BackendKind::Directory), LocalOptions { check_writes: true, ..first() });
    let version = version("/a", SIZE);
    rig.backend.fault(|faults| {
        faults.flipped = Some((u64::from(BLOCK), 1));
        faults.torn = Some((3 * u64::from(BLOCK), 1));
    });
    assert!(read(&rig.file(&version).await.unwrap()) == bytes_of(&version));
    assert_eq!(rig.local.stats().corrupt_sectors, 2);
    rig.close().await;
}

#[tokio::test]
async fn a_full_backend_leaves_nothing_behind() {
    let rig = Rig::new(first());
    rig.backend.fault(|faults| faults.full_at = Some(SIZE / 2));
    assert_eq!(rig.file(&version("/a", SIZE)).await.unwrap_err(), NotTaken::NoRoom);
    assert_eq!((rig.backend.files(), rig.local.stats().fills.no_room), (0, 1));
    rig.close().await;
}

#[tokio::test]
async fn a_version_that_is_gone_is_forgotten_and_what_fails_is_told() {
    let rig = Rig::new(first());
    for (kind, why) in [
        (FailureKind::VersionChanged, NotTaken::Changed),
        (FailureKind::Unavailable, NotTaken::Failed("it fails as it was told to".to_owned())),
    ] {
        rig.source.fail(Some(kind));
        assert_eq!(rig.file(&version(&format!("/{kind:?}"), SIZE)).await.unwrap_err(), why);
    }
    assert_eq!(rig.local.list().len(), 1);
    assert_eq!((rig.local.stats().fills.changed, rig.local.stats().fills.failed, rig.backend.files()), (1, 1, 0));
    rig.close().await;
}

#[tokio::test]
async fn what_is_there_goes_for_what_is_opened_more_but_not_while_it_is_open() {
    let rig = Rig::new(LocalOptions { size: ByteSize::bytes(2 * SIZE), ..first() });
    let (old, new) = (version("/old", SIZE), version("/new", SIZE));
    let held = rig.file(&old).await.unwrap();
    for _ in 0..3 {
        assert!(rig.file(&new).await.is_err());
    }
    drop(held);
    // A refusal stands for a moment.
    let came = async {
        while rig.file(&new).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LIMIT, came).await.unwrap();
    let stats = rig.local.stats();
    assert_eq!((stats.evictions, stats.files.ready), (1, 1));
    assert!(stats.refused.room >= 3);
    rig.close().await;
}

#[tokio::test]
async fn a_dropped_file_goes_with_its_last_reader_and_a_fill_at_once() {
    let rig = Rig::new(first());
    let (whole, coming) = (version("/whole", SIZE), version("/coming", SIZE));
    let file = rig.file(&whole).await.unwrap();
    assert!(rig.local.drop_file(whole.id()));
    assert!(matches!(rig.open(&whole), Verdict::No));
    assert!(read(&file) == bytes_of(&whole));
    assert_eq!(rig.local.stats().files.leaving, 1);
    drop(file);
    until("it is gone", || rig.backend.files() == 0).await;
    rig.source.hold(true);
    let Verdict::Waiting(waiting) = rig.open(&coming) else { panic!() };
    until("it is coming", || rig.source.in_flight() > 0).await;
    rig.local.forget(coming.id());
    assert_eq!(waiting.done().await.unwrap_err(), NotTaken::Dropped);
    assert_eq!((rig.source.in_flight(), rig.backend.files(), rig.local.list().len()), (0, 0, 0));
    assert_eq!(rig.local.stats().fills.cancelled, 1);
    rig.close().await;
}

#[tokio::test]
async fn what_somebody_asks_for_comes_whatever_its_size_and_stays() {
    let rig = Rig::new(options());
    let version = version("/a", 12 << 20);
    let Ok(Verdict::Waiting(waiting)) = rig.local.want(version.id(), &version, Why::Job) else { panic!() };
    drop(waiting.done().await.unwrap());
    assert!(matches!(rig.local.want(version.id(), &version, Why::Job), Ok(Verdict::Ready(_))));
    assert_eq!(rig.local.list()[0].asked, Some(Why::Job));
    assert_eq!(rig.local.drop_all(), 1);
    until("it is gone", || rig.backend.files() == 0).await;
    rig.close().await;
}

#[tokio::test]
async fn what_rots_at_rest_is_found_and_served_to_nobody_else() {
    let options = LocalOptions { check_interval: Duration::from_millis(1), ..first() };
    let rig = Rig::new(options);
    let version = version("/a", SIZE);
    let (id, name) = named(&version);
    let file = rig.file(&version).await.unwrap();
    until("it was checked", || rig.local.stats().checked_bytes >= SIZE).await;
    assert_eq!(rig.local.stats().corrupt_sectors, 0);
    rig.backend.rot(name, 200_000);
    until("it was found", || rig.local.stats().corrupt_sectors == 1).await;
    until("it leaves", || rig.local.list().iter().all(|file| file.state == LocalState::Leaving)).await;
    assert!(matches!(rig.local.opened(id, &version), Verdict::No));
    until("its readers are told", || !file.is_right()).await;
    drop(file);
    until("it is gone", || rig.backend.files() == 0).await;
    assert!(read(&rig.file(&version).await.unwrap()) == bytes_of(&version));
    rig.close().await;
}

#[tokio::test]
async fn who_opens_a_file_at_once_with_another_is_told_of_what_rots_too() {
    let options = LocalOptions { check_interval: Duration::from_millis(1), ..first() };
    let rig = Rig::new(options);
    let version = version("/a", SIZE);
    drop(rig.file(&version).await.unwrap());
    let (local, other) = (rig.local.clone(), Arc::new(forebay_locks::Mutex::new(None)));
    let (opened, another) = (Arc::clone(&other), version.clone());
    rig.backend.on_open(move || *opened.lock() = Some(local.opened(another.id(), &another)));
    drop(rig.file(&version).await.unwrap());
    let Some(Verdict::Ready(file)) = other.lock().take() else { panic!("it is there") };
    assert_eq!(rig.local.list()[0].pins, 1);
    rig.backend.rot(named(&version).1, 200_000);
    until("its readers are told", || !file.is_right()).await;
    drop(file);
    until("it is gone", || rig.backend.files() == 0).await;
    rig.close().await;
}

#[tokio::test]
async fn a_file_that_cannot_be_opened_for_want_of_descriptors_stays() {
    let rig = Rig::new(first());
    let version = version("/a", SIZE);
    drop(rig.file(&version).await.unwrap());
    let reads = rig.source.reads();
    rig.backend.fault(|faults| faults.lacking = 2);
    assert!(matches!(rig.open(&version), Verdict::No), "it is served as ever");
    assert!(matches!(rig.local.want(version.id(), &version, Why::Job), Err(NotTaken::Failed(_))));
    assert_eq!((rig.local.list()[0].state, rig.local.list()[0].pins), (LocalState::Ready, 0));
    let Verdict::Ready(file) = rig.open(&version) else { panic!("it is there") };
    assert!(read(&file) == bytes_of(&version));
    assert_eq!((rig.source.reads(), rig.local.list()[0].pins), (reads, 1));
    drop(file);
    rig.close().await;
}

#[tokio::test]
async fn a_file_that_cannot_be_checked_for_want_of_descriptors_is_checked_later() {
    let backend = FakeBackend::new(BackendKind::Directory);
    let version = version("/a", SIZE);
    let rig = Rig::on(backend.clone(), first());
    drop(rig.file(&version).await.unwrap());
    rig.close().await;
    backend.fault(|faults| faults.lacking = 1);
    let rig = Rig::on(backend, options());
    until("it is checked", || rig.local.stats().files.ready == 1).await;
    let Verdict::Ready(file) = rig.open(&version) else { panic!("it is there") };
    assert!(read(&file) == bytes_of(&version) && rig.source.reads() == 0);
    drop(file);
    rig.close().await;
}

#[tokio::test]
async fn a_restart_uses_what_it_checked_and_nothing_else() {
    let backend = FakeBackend::new(BackendKind::Directory);
    let (good, bad) = (version("/good", SIZE), version("/bad", SIZE));
    let rig = Rig::on(backend.clone(), first());
    drop((rig.file(&good).await.unwrap(), rig.file(&bad).await.unwrap()));
    rig.close().await;
    backend.rot(named(&bad).1, 1000);
    let rig = Rig::on(backend, options());
    until("the bad one is gone", || rig.local.stats().corrupt_sectors == 1 && rig.backend.files() == 2).await;
    until("the good one is checked", || rig.local.stats().files.ready == 1).await;
    assert_eq!(rig.local.list()[0].path, "/good");
    let Verdict::Ready(file) = rig.open(&good) else { panic!() };
    assert!(read(&file) == bytes_of(&good) && rig.source.reads() == 0);
    rig.close().await;
}

#[tokio::test]
async fn turned_off_it_says_why_and_does_nothing_more() {
    for (kind, left) in [(BackendKind::Memory, 0), (BackendKind::Directory, 2)] {
        let rig = Rig::on(FakeBackend::new(kind), first());
        let version = version("/a", SIZE);
        drop(rig.file(&version).await.unwrap());
        rig.local.turn_off("the kernel says no");
        rig.local.turn_off("again");
        assert!(!rig.local.is_on() && matches!(rig.open(&version), Verdict::No));
        assert_eq!(rig.local.want(version.id(), &version, Why::Job).unwrap_err(), NotTaken::Off);
        assert_eq!(rig.local.stats().why_off.as_deref(), Some("the kernel says no"));
        until("what is in memory is gone", || rig.backend.files() == left).await;
        rig.close().await;
    }
}

#[tokio::test]
async fn turned_off_it_tells_who_waits_for_what_was_not_checked_yet() {
    let backend = FakeBackend::new(BackendKind::Directory);
    let version = version("/a", SIZE);
    let rig = Rig::on(backend.clone(), first());
    drop(rig.file(&version).await.unwrap());
    rig.close().await;
    // It takes hours to check.
    let rig = Rig::on(backend, LocalOptions { check_bandwidth: ByteSize::bytes(1), ..options() });
    let Ok(Verdict::Waiting(waiting)) = rig.local.want(version.id(), &version, Why::Command) else { panic!() };
    rig.local.turn_off("the kernel says no");
    assert_eq!(tokio::time::timeout(LIMIT, waiting.done()).await.unwrap().unwrap_err(), NotTaken::Off);
    rig.close().await;
}

#[tokio::test]
async fn close_ends_what_is_under_way_and_descriptors_stay_good() {
    let rig = Rig::new(first());
    let (whole, coming) = (version("/whole", SIZE), version("/coming", SIZE));
    let file = rig.file(&whole).await.unwrap();
    rig.source.hold(true);
    let Verdict::Waiting(waiting) = rig.open(&coming) else { panic!() };
    until("it is coming", || rig.source.in_flight() > 0).await;
    let backend = rig.backend.clone();
    rig.close().await;
    assert!(waiting.done().await.is_err());
    assert_eq!(backend.files(), 2);
    assert!(read(&file) == bytes_of(&whole));
}

#[tokio::test]
async fn fills_are_bounded_and_slow_writes_hold_nothing_up_but_themselves() {
    let rig = Rig::new(first());
    rig.backend.fault(|faults| faults.is_held = true);
    let versions: Vec<_> = (0..5).map(|number| version(&format!("/{number}"), SIZE)).collect();
    let waiting: Vec<_> = versions.iter().map(|version| rig.open(version)).collect();
    until("two are filled", || rig.source.reads() == 8 && rig.source.in_flight() == 0).await;
    let stats = rig.local.stats();
    assert_eq!((stats.files.filling, stats.files.queued), (2, 3));
    rig.backend.fault(|faults| faults.is_held = false);
    for waiting in waiting {
        let Verdict::Waiting(waiting) = waiting else { panic!("{waiting:?}") };
        waiting.done().await.unwrap();
    }
    rig.close().await;
}

#[tokio::test]
async fn on_memory_of_its_own_it_works_as_on_the_fake() {
    let source = FakeSource::new();
    let local = Local::open(first(), Arc::new(source), Handle::current()).unwrap();
    let version = version("/a", SIZE);
    if !local.is_on() {
        assert!(local.stats().why_off.is_some() && matches!(local.opened(version.id(), &version), Verdict::No));
        return;
    }
    let Verdict::Waiting(waiting) = local.opened(version.id(), &version) else { panic!() };
    let file = waiting.done().await.unwrap();
    assert!(read(&file) == bytes_of(&version));
    // What is free may have been looked at in the middle of a write; it is looked at again each second.
    until("nothing lingers", || local.stats().bytes.lingering == 0).await;
    local.close().await;
}
