//! Files whose memory somebody lends.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::time::Instant;

use forebay_locks::Mutex;
use forebay_types::{BlockKey, BlockLayout, FileId, SectorChecksums};

use super::*;
use crate::lender::{Lender, WantedBack};
use crate::policy::SMALL_FILE;

/// Lends up to so much, and notes what it is told.
#[derive(Debug, Default)]
struct FakeLender {
    state: Mutex<Lent>,
}

#[derive(Debug, Default)]
struct Lent {
    most: u64,
    held: u64,
    lingering: u64,
    wanted: Option<u64>,
    wrong: Vec<FileId>,
    doubled: usize,
    may_evict: Vec<bool>,
    whole: HashSet<FileId>,
    is_ended: bool,
}

impl FakeLender {
    fn of(most: u64) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(Lent { most, ..Lent::default() }) })
    }

    fn held(&self) -> u64 {
        self.state.lock().held
    }
}

#[async_trait::async_trait]
impl Lender for FakeLender {
    async fn lend(&self, bytes: u64, may_evict: bool) -> bool {
        let mut state = self.state.lock();
        state.may_evict.push(may_evict);
        let fits = !state.is_ended && state.held + bytes <= state.most;
        state.held += if fits { bytes } else { 0 };
        fits
    }

    fn give_back(&self, bytes: u64) {
        let mut state = self.state.lock();
        assert!(bytes <= state.held, "{bytes} of {}", state.held);
        state.held -= bytes;
    }

    fn lingers(&self, bytes: u64) {
        self.state.lock().lingering = bytes;
    }

    fn is_doubled(&self, _: BlockKey) {
        self.state.lock().doubled += 1;
    }

    fn is_whole(&self, id: FileId, layout: BlockLayout, file: OwnedFd, checksums: &SectorChecksums) {
        let mut bytes = Vec::new();
        File::from(file).read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len() as u64, layout.file_size());
        assert!(checksums.check(&bytes).is_ok());
        assert!(self.state.lock().whole.insert(id));
    }

    fn leaves(&self, id: FileId) {
        self.state.lock().whole.remove(&id);
    }

    fn found_wrong(&self) -> Vec<FileId> {
        std::mem::take(&mut self.state.lock().wrong)
    }

    fn wanted_back(&self, now: Instant) -> Option<WantedBack> {
        self.state.lock().wanted.take().map(|bytes| WantedBack { bytes, unused_since: now })
    }

    fn end(&self) {
        self.state.lock().is_ended = true;
    }
}

fn rig(lender: &Arc<FakeLender>) -> Rig {
    Rig::new(LocalOptions { lender: Some(Arc::clone(lender) as Arc<dyn Lender>), ..first() })
}

#[tokio::test]
async fn what_a_file_takes_is_lent_while_it_is_filled_and_given_back_when_it_is_gone() {
    let lender = FakeLender::of(16 << 20);
    let rig = rig(&lender);
    let version = version("/a", SIZE);
    drop(rig.file(&version).await.unwrap());
    let taken = rig.local.stats().bytes.ready;
    assert_eq!((lender.held(), lender.state.lock().doubled), (taken, 6));
    assert!(lender.state.lock().whole.contains(&version.id()), "it was shown");
    assert!(rig.local.drop_file(version.id()));
    until("it is given back", || lender.held() == 0).await;
    assert!(lender.state.lock().whole.is_empty());
    assert_eq!(lender.state.lock().lingering, 0, "nobody has it mapped");
    rig.close().await;
    assert!(lender.state.lock().is_ended);
}

#[tokio::test]
async fn a_file_for_which_nothing_is_lent_is_served_as_ever_and_leaves_nothing() {
    let lender = FakeLender::of(SIZE / 2);
    let rig = rig(&lender);
    let version = version("/a", SIZE);
    assert_eq!(rig.file(&version).await.unwrap_err(), NotTaken::NoRoom);
    until("all is given back", || lender.held() == 0 && rig.backend.files() == 0).await;
    assert_eq!(rig.local.stats().fills.no_room, 1);
    rig.close().await;
}

#[tokio::test]
async fn room_that_is_wanted_back_is_given_back_but_that_of_files_that_are_open() {
    let lender = FakeLender::of(16 << 20);
    let rig = rig(&lender);
    let (open, idle) = (version("/open", SIZE), version("/idle", SIZE));
    let held = rig.file(&open).await.unwrap();
    drop(rig.file(&idle).await.unwrap());
    let one = rig.local.stats().bytes.ready / 2;
    lender.state.lock().wanted = Some(16 << 20);
    until("one is given back", || lender.held() == one).await;
    assert!(read(&held) == bytes_of(&open));
    drop(held);
    rig.close().await;
}

#[tokio::test]
async fn a_file_that_rots_is_no_more_used_by_the_lender_though_it_is_open() {
    let lender = FakeLender::of(16 << 20);
    let lent = Some(Arc::clone(&lender) as Arc<dyn Lender>);
    let rig = Rig::new(LocalOptions { lender: lent, check_interval: Duration::from_millis(1), ..first() });
    let version = version("/a", SIZE);
    let file = rig.file(&version).await.unwrap();
    rig.backend.rot(named(&version).1, 200_000);
    until("it is told", || lender.state.lock().whole.is_empty()).await;
    drop(file);
    until("it is given back", || lender.held() == 0).await;
    rig.close().await;
}

#[tokio::test]
async fn a_file_of_which_the_lender_read_wrong_bytes_is_shown_to_nobody_else() {
    let lender = FakeLender::of(16 << 20);
    let rig = rig(&lender);
    let version = version("/a", SIZE);
    let file = rig.file(&version).await.unwrap();
    lender.state.lock().wrong.push(version.id());
    until("its readers are told", || !file.is_right()).await;
    assert!(matches!(rig.open(&version), Verdict::No));
    drop(file);
    until("it is given back", || lender.held() == 0).await;
    assert_eq!(rig.local.stats().corrupt_sectors, 1);
    rig.close().await;
}

#[tokio::test]
async fn nothing_is_evicted_for_a_small_file_unless_it_is_asked_for() {
    const SMALL: u64 = 3 * BLOCK as u64 + 1;
    let lender = FakeLender::of(64 << 20);
    let lent = Some(Arc::clone(&lender) as Arc<dyn Lender>);
    let rig = Rig::new(LocalOptions { lender: lent, is_automatic: true, ..options() });
    let may_evict = || std::mem::take(&mut lender.state.lock().may_evict);
    let small = version("/small", SMALL);
    for _ in 0..5 {
        assert!(matches!(rig.open(&small), Verdict::No));
    }
    assert!(rig.local.list().is_empty(), "two opens are enough for larger ones only");
    assert!(matches!(rig.open(&small), Verdict::No));
    until("it is there", || rig.local.stats().files.ready == 1).await;
    assert_eq!(may_evict(), [false], "all of its room at once");
    let asked = version("/asked", SMALL);
    let Ok(Verdict::Waiting(waiting)) = rig.local.want(asked.id(), &asked, Why::Command) else { panic!("no wait") };
    drop(waiting.done().await.unwrap());
    let of_asked = may_evict();
    assert!(!of_asked.is_empty() && of_asked.iter().all(|may| *may), "{of_asked:?}");
    let large = version("/large", SMALL_FILE + 1);
    assert!(matches!((rig.open(&large), rig.open(&large)), (Verdict::No, Verdict::No)));
    until("it is there", || rig.local.stats().files.ready == 3).await;
    let of_large = may_evict();
    assert!(!of_large.is_empty() && of_large.iter().all(|may| *may), "{of_large:?}");
    rig.close().await;
}
