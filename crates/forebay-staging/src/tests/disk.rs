//! A disk that stands still: what must wait for it, and what must not.

use std::fs::File;
use std::io;
use std::path::Path;

use forebay_locks::{Condvar, Mutex};
use forebay_types::{Failure, FailureKind};

use super::crash::{crash, only};
use super::*;
use crate::fake::Verb;
use crate::journal::{Disk, Journal};
use crate::{RetryOptions, StagedState, retry, staged};

/// What a disk is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Sync,
    Replace,
}

/// A disk on which one kind of request stands still for as long as a test wants.
#[derive(Debug, Default)]
struct Standing {
    /// What stands still, and how many wait for it.
    state: Mutex<(Option<Asked>, usize)>,
    goes_on: Condvar,
}

impl Standing {
    fn hold(&self, asked: Asked) {
        self.state.lock().0 = Some(asked);
    }

    fn release(&self) {
        self.state.lock().0 = None;
        self.goes_on.notify_all();
    }

    fn waiting(&self) -> usize {
        self.state.lock().1
    }

    fn pass(&self, asked: Asked) {
        let mut state = self.state.lock();
        if state.0 != Some(asked) {
            return;
        }
        state.1 += 1;
        while state.0 == Some(asked) {
            let is_late;
            (state, is_late) = self.goes_on.wait_for(state, 2 * LIMIT);
            assert!(!is_late, "the test forgot the disk");
        }
        state.1 -= 1;
    }
}

impl Disk for Standing {
    fn sync(&self, file: &File) -> io::Result<()> {
        self.pass(Asked::Sync);
        file.sync_all()
    }

    fn replace(&self, new: &Path, old: &Path) -> io::Result<()> {
        self.pass(Asked::Replace);
        std::fs::rename(new, old)
    }
}

/// A staging on such a disk.
fn staging(rig: &Rig, disk: &Arc<Standing>) -> Staging {
    let journal = Journal::open(&rig.dir()).unwrap().on(Arc::clone(disk) as Arc<dyn Disk>);
    let schedule = Schedule::of_steps(&STEPS).unwrap();
    Staging::open_on(journal, rig.options(), schedule, Arc::new(rig.remote.clone()), Handle::current())
}

/// A changed file of which the origin has an older version.
fn revised(rig: &Rig, staging: &Staging) -> Arc<Draft> {
    let attr = rig.remote.store(&path("/a"), pattern(1000, 1));
    let base = crate::Remote::open(&rig.remote, attr.version().unwrap().clone());
    let draft = staging.revise(path("/a"), base).unwrap();
    write(&draft, 100, b"changed");
    draft
}

/// What a mount asks of a draft for `stat(2)`, and `read(2)`: all of it is answered though the disk stands still.
async fn is_answered(draft: &Arc<Draft>) {
    let asking = Arc::clone(draft);
    let described = tokio::task::spawn_blocking(move || {
        (asking.size(), asking.modified(), asking.is_dirty(), asking.is_new(), asking.path())
    });
    let (size, ..) = tokio::time::timeout(LIMIT, described).await.expect("nobody can say how large it is").unwrap();
    assert_eq!(size, 1000);
    let asking = Arc::clone(draft);
    let read = tokio::spawn(async move { asking.read(98, 11).await });
    let read = tokio::time::timeout(LIMIT, read).await.expect("a read waits for the disk").unwrap().unwrap();
    assert_eq!(read, [&pattern(1000, 1)[98..100], b"changed", &pattern(1000, 1)[107..109]].concat());
}

async fn stands(disk: &Standing) {
    until("the disk is asked", || disk.waiting() == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_record_is_written_a_draft_is_described_and_read() {
    let (rig, disk) = (Rig::new(), Arc::new(Standing::default()));
    let staging = staging(&rig, &disk);
    let draft = revised(&rig, &staging);
    // At its start a sync writes down where each byte is; and again, when it failed; and forgets it when it is done.
    rig.remote.hold(Verb::Begin);
    disk.hold(Asked::Replace);
    let syncing = Arc::clone(&draft);
    let syncing = tokio::spawn(async move { syncing.sync().await });
    stands(&disk).await;
    is_answered(&draft).await;
    disk.release();
    until("the upload begins", || rig.remote.waiting(Verb::Begin) == 1).await;
    disk.hold(Asked::Replace);
    rig.remote.fail(Verb::Begin, 1, FailureKind::Unavailable);
    rig.remote.release(Verb::Begin);
    stands(&disk).await;
    is_answered(&draft).await;
    disk.release();
    assert_eq!(syncing.await.unwrap().unwrap_err().kind(), FailureKind::Unavailable);
    // A change of what is written down exactly waits for the disk, and others do not.
    disk.hold(Asked::Replace);
    let writing = Arc::clone(&draft);
    let writing = tokio::task::spawn_blocking(move || writing.try_write(100, b"changed").unwrap());
    stands(&disk).await;
    is_answered(&draft).await;
    disk.release();
    writing.await.unwrap().unwrap();
    assert!(draft.sync().await.unwrap().is_some());
    assert_eq!(rig.remote.object(&path("/a")).unwrap()[100..107], b"changed"[..]);
    draft.finish().await.unwrap();
    assert_eq!(rig.files(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_file_that_failed_is_made_safe_it_is_described_and_read() {
    let (rig, disk) = (Rig::new(), Arc::new(Standing::default()));
    let staging = staging(&rig, &disk);
    let draft = revised(&rig, &staging);
    rig.remote.fail(Verb::Begin, 1, FailureKind::PermissionDenied);
    disk.hold(Asked::Sync);
    let finishing = Arc::clone(&draft);
    let finishing = tokio::spawn(async move { finishing.finish().await });
    // Its bytes, its record, and the directory.
    stands(&disk).await;
    is_answered(&draft).await;
    let renaming = Arc::clone(&draft);
    let renamed = tokio::task::spawn_blocking(move || renaming.renamed(path("/b"), None));
    tokio::time::timeout(LIMIT, renamed).await.expect("a rename waits for the disk").unwrap();
    disk.release();
    let failure: Failure = finishing.await.unwrap().unwrap_err();
    assert_eq!(failure.kind(), FailureKind::PermissionDenied);
    let left = staged(&rig.dir()).unwrap();
    assert!(matches!(&left[0].state, StagedState::Failed { .. }), "{left:?}");
    assert_eq!((left.len(), &left[0].path, left[0].obstacle.as_ref()), (1, &path("/a"), None));
}

/// The record that is on disk tells where each byte is, and so would have what is cut off as staged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whenever_a_process_dies_that_cuts_a_file_the_file_is_as_before_or_as_it_was_cut() {
    let (rig, disk) = (Rig::new(), Arc::new(Standing::default()));
    let staging = staging(&rig, &disk);
    let draft = staging.create(path("/a")).unwrap();
    // Nothing of it is sent early: until the second write no part is whole, and from then on it is known that they are not in order.
    write(&draft, 250, &pattern(300, 1)[250..]);
    write(&draft, 0, &pattern(300, 1)[..250]);
    rig.remote.fail(Verb::Begin, 1, FailureKind::Unavailable);
    draft.sync().await.unwrap_err();
    let is_uploaded_as = async |length: usize| {
        let after = crash(&rig);
        let left = only(&after);
        assert_eq!((left.obstacle, left.size), (None, length as u64));
        retry(&after, &left.id, Arc::new(rig.remote.clone()), RetryOptions::default()).await.unwrap();
        assert_eq!(rig.remote.object(&path("/a")).unwrap(), pattern(300, 1)[..length]);
        std::fs::remove_dir_all(&after).unwrap();
    };
    disk.hold(Asked::Replace);
    let cutting = Arc::clone(&draft);
    let cutting = tokio::spawn(async move { cutting.truncate(120).await });
    stands(&disk).await;
    is_uploaded_as(300).await;
    disk.release();
    cutting.await.unwrap().unwrap();
    is_uploaded_as(120).await;
    draft.unlink();
}
