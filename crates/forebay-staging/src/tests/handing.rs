//! Drafts that go on in another process, which is another [`Staging`] of the same directory here: locks are of open files.

use std::os::fd::OwnedFd;

use forebay_types::FailureKind;

use super::*;
use crate::fake::Verb;
use crate::{Handing, StagedState, adopt, staged};

fn soon() -> Instant {
    Instant::now() + LIMIT
}

/// What goes to the other process.
fn given(handing: &Handing) -> (Vec<u8>, OwnedFd) {
    (handing.passed().to_vec(), handing.bytes().unwrap())
}

/// It goes on there, and here is nothing of it any more.
fn moved(draft: Arc<Draft>, to: &Staging) -> Arc<Draft> {
    let handing = Handing::begin(&draft, soon()).unwrap();
    let (passed, bytes) = given(&handing);
    let next = adopt(to, &passed, bytes).unwrap();
    handing.given();
    drop(draft);
    next.own();
    next
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_goes_on_in_the_next_process_again_and_again() {
    let rig = Rig::new();
    let old = pattern(1000, 3);
    let attr = rig.remote.store(&path("/a"), old.clone());
    let base = crate::Remote::open(&rig.remote, attr.version().unwrap().clone());
    let mut staging = rig.lazy();
    let mut draft = staging.revise(path("/a"), base).unwrap();
    let mut expected = old.to_vec();
    for round in 0..5u8 {
        let at = 100 + usize::from(round) * 150;
        write(&draft, at as u64, &[round; 7]);
        expected[at..at + 7].fill(round);
        let next = rig.lazy();
        draft = moved(draft, &next);
        staging.close().await;
        staging = next;
        assert_eq!(read_all(&draft).await, expected);
        assert!(draft.is_dirty() && !draft.is_new());
        let [listed] = <[_; 1]>::try_from(staged(&rig.dir()).unwrap()).unwrap();
        assert!(matches!(listed.state, StagedState::Open { .. }), "{listed:?}");
    }
    draft.zero(10..20).await.unwrap();
    draft.truncate(900).await.unwrap();
    draft = {
        let next = rig.lazy();
        let draft = moved(draft, &next);
        staging = next;
        draft
    };
    expected[10..20].fill(0);
    expected.truncate(900);
    draft.finish().await.unwrap().unwrap();
    assert_eq!(rig.remote.object(&path("/a")).unwrap(), expected);
    drop(draft);
    assert!(rig.files().is_empty(), "{:?}", rig.files());
    staging.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_clean_stays_so_and_what_is_new_is_made() {
    let rig = Rig::new();
    let (staging, next) = (rig.lazy(), rig.lazy());
    let synced = staging.create(path("/synced")).unwrap();
    write(&synced, 0, b"synced");
    let attr = synced.sync().await.unwrap();
    let empty = staging.create(path("/empty")).unwrap();
    let (synced, empty) = (moved(synced, &next), moved(empty, &next));
    assert!(!synced.is_dirty() && empty.is_dirty() && empty.is_new());
    assert_eq!(read_all(&synced).await, "synced");
    let puts = rig.remote.calls(Verb::Put);
    assert_eq!(synced.finish().await.unwrap(), attr, "what the inode becomes");
    assert_eq!(rig.remote.calls(Verb::Put), puts);
    empty.finish().await.unwrap().unwrap();
    assert_eq!(rig.remote.object(&path("/empty")).unwrap(), "");
    drop((synced, empty));
    assert!(rig.files().is_empty(), "{:?}", rig.files());
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_that_have_arrived_are_not_sent_again_and_all_others_are() {
    let rig = Rig::new();
    let (staging, next) = (rig.eager(), rig.lazy());
    let draft = staging.create(path("/a")).unwrap();
    let mut expected = pattern(1000, 5).to_vec();
    write(&draft, 0, &expected);
    until("parts are there", || rig.remote.arrived().len() >= 4).await;
    let handing = Handing::begin(&draft, soon()).unwrap();
    let arrived = rig.remote.arrived().len();
    let (passed, bytes) = given(&handing);
    let there = adopt(&next, &passed, bytes).unwrap();
    handing.given();
    drop(draft);
    there.own();
    write(&there, 150, b"changed");
    expected[150..157].copy_from_slice(b"changed");
    there.finish().await.unwrap().unwrap();
    assert_eq!(rig.remote.object(&path("/a")).unwrap(), expected);
    let again = rig.remote.arrived().split_off(arrived);
    assert!(again.contains(&2) && !again.contains(&1), "{again:?}");
    assert_eq!(rig.remote.uploads(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_come_to_be_the_next_processs_goes_on_here() {
    let rig = Rig::new();
    let (staging, next) = (rig.lazy(), rig.lazy());
    let draft = staging.create(path("/a")).unwrap();
    write(&draft, 0, b"one");
    let clean = staging.create(path("/clean")).unwrap();
    write(&clean, 0, b"clean");
    clean.sync().await.unwrap();
    for draft in [&draft, &clean] {
        let handing = Handing::begin(draft, soon()).unwrap();
        let (passed, bytes) = given(&handing);
        drop(adopt(&next, &passed, bytes).unwrap());
        let open = staged(&rig.dir()).unwrap();
        assert!(open.iter().all(|file| matches!(file.state, StagedState::Open { .. })), "{open:?}");
        // Nothing is uploaded meanwhile.
        assert!(!draft.is_movable());
        drop(handing);
        assert!(draft.is_movable());
    }
    next.close().await;
    write(&draft, 3, b" two");
    write(&clean, 5, b" two");
    for draft in [&draft, &clean] {
        draft.finish().await.unwrap().unwrap();
    }
    assert_eq!(rig.remote.object(&path("/a")).unwrap(), "one two");
    assert_eq!(rig.remote.object(&path("/clean")).unwrap(), "clean two");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_ends_before_it_is_known_which_process_goes_on_leaves_what_is_lent_alone() {
    let rig = Rig::new();
    let (staging, next) = (rig.lazy(), rig.lazy());
    let draft = staging.create(path("/a")).unwrap();
    write(&draft, 0, b"one");
    let mut handing = Handing::begin(&draft, soon()).unwrap();
    let (passed, bytes) = given(&handing);
    handing.lend();
    let on_disk = || {
        let read = |name: &String| (name.clone(), std::fs::read(rig.dir().join(name)).unwrap());
        rig.files().iter().map(read).collect::<Vec<_>>()
    };
    let before = on_disk();
    // Until it is its own, the next one writes nothing, either: it may never be.
    let there = adopt(&next, &passed, bytes).unwrap();
    drop((draft, handing));
    staging.close().await;
    assert!(on_disk() == before, "{:?}", rig.files());
    let [listed] = <[_; 1]>::try_from(staged(&rig.dir()).unwrap()).unwrap();
    assert!(matches!(listed.state, StagedState::Open { .. }), "{listed:?}");
    there.own();
    write(&there, 3, b" two");
    there.finish().await.unwrap().unwrap();
    assert_eq!(rig.remote.object(&path("/a")).unwrap(), "one two");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_taken_back_is_let_go_of_as_ever() {
    let rig = Rig::new();
    let staging = rig.lazy();
    let draft = staging.create(path("/a")).unwrap();
    write(&draft, 0, b"one");
    draft.sync().await.unwrap();
    let mut handing = Handing::begin(&draft, soon()).unwrap();
    handing.lend();
    // Its last handle goes while it is held still.
    drop(draft);
    assert_eq!(rig.files().len(), 2);
    handing.take_back();
    assert!(rig.files().is_empty(), "{:?}", rig.files());
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_that_are_whole_or_become_so_go_early_in_the_next_process_too() {
    let rig = Rig::new();
    let (staging, next) = (rig.lazy(), rig.eager());
    let draft = staging.create(path("/a")).unwrap();
    let expected = pattern(800, 7);
    // Not in order: here they would wait.
    for range in [350..400, 0..10, 0..400, 400..600] {
        write(&draft, range.start as u64, &expected[range]);
    }
    assert!(rig.remote.arrived().is_empty());
    let draft = moved(draft, &next);
    until("whole parts are there", || (1..=4).all(|part| rig.remote.arrived().contains(&part))).await;
    assert!(!rig.remote.arrived().contains(&5));
    write(&draft, 600, &expected[600..]);
    until("the last one is there", || rig.remote.arrived().contains(&5)).await;
    draft.finish().await.unwrap().unwrap();
    assert_eq!(rig.remote.object(&path("/a")).unwrap(), expected);
    drop((draft, staging));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_on_its_way_or_has_no_name_stays_here() {
    let rig = Rig::new();
    let staging = rig.lazy();
    let draft = staging.create(path("/a")).unwrap();
    write(&draft, 0, b"one");
    rig.remote.hold(Verb::Put);
    let syncing = {
        let draft = Arc::clone(&draft);
        tokio::spawn(async move { draft.sync().await })
    };
    until("it is being uploaded", || rig.remote.waiting(Verb::Put) == 1).await;
    assert!(!draft.is_movable());
    let late = Handing::begin(&draft, Instant::now()).err().unwrap();
    assert!(late.kind() == FailureKind::Unavailable && late.to_string().contains("/a"), "{late}");
    rig.remote.release(Verb::Put);
    syncing.await.unwrap().unwrap();
    drop(Handing::begin(&draft, soon()).unwrap());
    draft.unlink();
    assert!(!draft.is_movable() && Handing::begin(&draft, soon()).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_or_is_of_another_directory_is_refused() {
    let (rig, other) = (Rig::new(), Rig::new());
    let staging = rig.lazy();
    let draft = staging.create(path("/a")).unwrap();
    write(&draft, 0, b"one");
    let handing = Handing::begin(&draft, soon()).unwrap();
    let (passed, _) = given(&handing);
    let bytes = || handing.bytes().unwrap();
    let refused = |staging: &Staging, passed: &[u8], bytes: OwnedFd| {
        let failure = adopt(staging, passed, bytes).err().unwrap();
        assert_eq!(failure.kind(), FailureKind::Corrupt);
        failure.to_string()
    };
    assert!(refused(&other.lazy(), &passed, bytes()).contains("write.staging_dir"));
    refused(&staging, b"{", bytes());
    refused(&staging, &passed, tempfile::tempfile().unwrap().into());
    let elsewhere = String::from_utf8(passed.clone()).unwrap().replace("\"id\":\"", "\"id\":\"../");
    refused(&staging, elsewhere.as_bytes(), bytes());
    assert!(adopt(&staging, &passed, bytes()).is_ok());
    assert!(crate::is_in(&rig.dir(), &passed, &bytes()).is_ok());
    let refused = crate::is_in(&other.dir(), &passed, &bytes()).unwrap_err();
    assert!(refused.to_string().contains("write.staging_dir"), "{refused}");
}
