//! What a crash leaves, and what is done about it. A crash is a copy of the directory as it is at that moment: no
//! process has its files locked, and the process that its records name is gone.

use forebay_types::FailureKind;

use super::*;
use crate::fake::Verb;
use crate::{RetryOptions, Staged, StagedState, retry, staged};

/// The directory as a crash leaves it now.
pub(super) fn crash(rig: &Rig) -> PathBuf {
    let after = rig.dir.path().join("after");
    std::fs::create_dir(&after).unwrap();
    for name in rig.files() {
        let (from, to) = (rig.dir().join(&name), after.join(&name));
        if name.ends_with(".json") {
            let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(from).unwrap()).unwrap();
            record["pid"] = u32::MAX.into();
            std::fs::write(to, record.to_string()).unwrap();
        } else {
            std::fs::copy(from, to).unwrap();
        }
    }
    after
}

pub(super) fn only(dir: &std::path::Path) -> Staged {
    let mut all = staged(dir).unwrap();
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

fn remote(rig: &Rig) -> Arc<dyn crate::Remote> {
    Arc::new(rig.remote.clone())
}

#[tokio::test]
async fn a_new_file_survives_its_process() {
    let rig = Rig::new();
    let staging = rig.eager();
    let draft = staging.create(path("/a")).unwrap();
    let bytes = pattern(750, 1);
    write(&draft, 0, &bytes[..300]);
    write(&draft, 400, &bytes[400..]);
    draft.truncate(800).await.unwrap();
    let after = crash(&rig);
    draft.unlink();
    until("its own upload is given up", || rig.remote.uploads() == 0).await;

    let left = only(&after);
    assert_eq!((left.state, left.size, left.obstacle), (StagedState::Unfinished, 800, None));
    let told = Arc::new(forebay_locks::Mutex::new(Vec::new()));
    let telling = Arc::clone(&told);
    let on_progress = Some(Box::new(move |bytes: u64| telling.lock().push(bytes)) as Box<dyn Fn(u64) + Send + Sync>);
    let options = RetryOptions { on_progress, ..RetryOptions::default() };
    retry(&after, &left.id, remote(&rig), options).await.unwrap();
    let whole = [&bytes[..300], &[0; 100], &bytes[400..], &[0; 50]].concat();
    assert_eq!(rig.remote.object(&path("/a")).unwrap(), whole);
    assert_eq!(told.lock().last(), Some(&800));
    assert_eq!(std::fs::read_dir(&after).unwrap().count(), 0);
}

#[tokio::test]
async fn uploads_of_dead_processes_are_aborted_and_empty_drafts_removed() {
    let rig = Rig::new();
    let staging = rig.eager();
    let draft = staging.create(path("/a")).unwrap();
    write(&draft, 0, &pattern(500, 2));
    until("parts are there", || !rig.remote.arrived().is_empty()).await;
    let empty = staging.create(path("/empty")).unwrap();
    write(&empty, 0, b"x");
    empty.truncate(0).await.unwrap();
    let after = crash(&rig);
    assert_eq!((staged(&after).unwrap().len(), rig.remote.uploads()), (2, 1));
    let options = StagingOptions { dir: after.clone(), ..rig.options() };
    let second = rig.open(options);
    until("the upload is aborted", || rig.remote.uploads() == 0).await;
    until("the empty one is removed", || staged(&after).unwrap().len() == 1).await;
    // What lives is left alone.
    assert_eq!(staged(&rig.dir()).unwrap().len(), 2);
    until("it is free again", || only(&after).state == StagedState::Unfinished).await;
    retry(&after, &only(&after).id, remote(&rig), RetryOptions::default()).await.unwrap();
    assert_eq!(rig.remote.object(&path("/a")).unwrap(), pattern(500, 2));
    second.close().await;
}

#[tokio::test]
async fn a_changed_file_can_be_finished_when_it_was_being_synced() {
    let rig = Rig::new();
    let staging = rig.lazy();
    let old = pattern(1000, 3);
    let attr = rig.remote.store(&path("/a"), old.clone());
    let base = crate::Remote::open(&rig.remote, attr.version().unwrap().clone());
    let draft = staging.revise(path("/a"), base).unwrap();
    write(&draft, 700, b"changed");
    draft.zero(10..20).await.unwrap();
    draft.truncate(900).await.unwrap();
    rig.remote.hold(Verb::Complete);
    let syncing = {
        let draft = Arc::clone(&draft);
        tokio::spawn(async move { draft.sync().await })
    };
    until("it is being completed", || rig.remote.waiting(Verb::Complete) == 1).await;
    let after = crash(&rig);
    rig.remote.fail(Verb::Complete, 1, FailureKind::Unavailable);
    draft.unlink();
    rig.remote.release(Verb::Complete);
    assert_eq!(syncing.await.unwrap(), Ok(None));

    assert_eq!((only(&after).obstacle, only(&after).size), (None, 900));
    retry(&after, &only(&after).id, remote(&rig), RetryOptions::default()).await.unwrap();
    let now = [&old[..10], &[0; 10], &old[20..700], b"changed", &old[707..900]].concat();
    assert_eq!(rig.remote.object(&path("/a")).unwrap(), now);
}

#[tokio::test]
async fn a_changed_file_of_which_the_changes_are_not_known_is_not_guessed_at() {
    let rig = Rig::new();
    let staging = rig.lazy();
    let attr = rig.remote.store(&path("/a"), pattern(1000, 4));
    let base = crate::Remote::open(&rig.remote, attr.version().unwrap().clone());
    let draft = staging.revise(path("/a"), base).unwrap();
    write(&draft, 700, b"changed");
    // It fails, which is written down exactly; but then it is changed again.
    rig.remote.fail(Verb::Begin, 1, FailureKind::Unavailable);
    draft.sync().await.unwrap_err();
    write(&draft, 100, b"again");
    let after = crash(&rig);
    let left = only(&after);
    let refused = retry(&after, &left.id, remote(&rig), RetryOptions::default()).await.unwrap_err();
    assert_eq!(refused.kind(), FailureKind::NotPermitted);
    assert!(refused.message().contains(left.file.to_str().unwrap()), "{refused}");
    assert_eq!(only(&after).state, left.state, "it is let go of again");
    // What was cut to nothing has nothing of the version before.
    draft.truncate(0).await.unwrap();
    write(&draft, 0, b"all mine");
    std::fs::remove_dir_all(&after).unwrap();
    let after = crash(&rig);
    retry(&after, &only(&after).id, remote(&rig), RetryOptions::default()).await.unwrap();
    assert_eq!(rig.remote.object(&path("/a")).unwrap(), &b"all mine"[..]);
    draft.unlink();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_which_parts_were_let_go_of_is_finished_with_its_upload() {
    let rig = Rig::new();
    let options = StagingOptions { size: ByteSize::bytes(1000), ..rig.options() };
    let staging = rig.open_with(options, &[(1000, 100)]);
    let draft = staging.create(path("/a")).unwrap();
    let bytes = pattern(3050, 5);
    for (index, piece) in bytes.chunks(50).enumerate() {
        draft.write(50 * index as u64, Bytes::copy_from_slice(piece)).await.unwrap();
    }
    assert!(draft.read(0, 10).await.is_err(), "parts were let go of");
    let after = crash(&rig);
    // What died sends nothing any more.
    staging.close().await;
    let options = StagingOptions { dir: after.clone(), ..rig.options() };
    let second = rig.open(options);
    second.close().await;
    assert_eq!(rig.remote.uploads(), 1, "it is needed");
    let left = only(&after);
    assert_eq!(left.size, 3050);
    assert!(rig.remote.object(&path("/a")).is_none());
    retry(&after, &left.id, remote(&rig), RetryOptions::default()).await.unwrap();
    assert_eq!(rig.remote.object(&path("/a")).unwrap(), bytes);
    draft.unlink();
}

#[tokio::test]
async fn a_draft_that_is_dropped_dirty_stays_and_a_clean_one_goes() {
    let rig = Rig::new();
    let staging = rig.lazy();
    let attr = rig.remote.store(&path("/a"), pattern(300, 6));
    let base = crate::Remote::open(&rig.remote, attr.version().unwrap().clone());
    let dirty = staging.revise(path("/a"), base).unwrap();
    write(&dirty, 5, b"x");
    let clean = staging.create(path("/b")).unwrap();
    write(&clean, 0, b"y");
    clean.sync().await.unwrap();
    assert_eq!(rig.files().len(), 3, "a synced one has nothing to lose, and no record");
    drop((dirty, clean));
    assert_eq!(rig.files().len(), 2);
    retry(&rig.dir(), &only(&rig.dir()).id, remote(&rig), RetryOptions::default()).await.unwrap();
    assert_eq!(rig.remote.object(&path("/a")).unwrap()[5], b'x');
}

#[tokio::test]
async fn a_close_writes_down_what_is_dirty() {
    let rig = Rig::new();
    let staging = rig.eager();
    let attr = rig.remote.store(&path("/a"), pattern(1000, 7));
    let base = crate::Remote::open(&rig.remote, attr.version().unwrap().clone());
    let draft = staging.revise(path("/a"), base).unwrap();
    rig.remote.hold(Verb::Part);
    write(&draft, 100, &[1; 300]);
    until("parts are under way", || rig.remote.waiting(Verb::Part) > 0).await;
    tokio::time::timeout(LIMIT, staging.close()).await.unwrap();
    assert_eq!(rig.remote.waiting(Verb::Part), 0, "background work has ended");
    assert_eq!(draft.sync().await.unwrap_err().kind(), FailureKind::Unavailable);
    assert!(staging.create(path("/b")).is_err());
    rig.remote.release(Verb::Part);
    let after = crash(&rig);
    assert_eq!(only(&after).obstacle, None);
    retry(&after, &only(&after).id, remote(&rig), RetryOptions::default()).await.unwrap();
    assert_eq!(
        rig.remote.object(&path("/a")).unwrap()[99..401],
        [&pattern(1000, 7)[99..100], &[1; 300], &pattern(1000, 7)[400..401]].concat()
    );
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_shown_and_can_be_dropped() {
    let rig = Rig::new();
    let staging = rig.lazy();
    let draft = staging.create(path("/a")).unwrap();
    write(&draft, 0, b"x");
    let after = crash(&rig);
    let left = only(&after);
    std::fs::write(after.join(format!("{}.json", left.id)), "{").unwrap();
    assert!(matches!(only(&after).state, StagedState::Failed { reason } if reason.contains("cannot be read")));
    assert_eq!(
        retry(&after, &left.id, remote(&rig), RetryOptions::default()).await.unwrap_err().kind(),
        FailureKind::Corrupt
    );
    crate::drop_staged(&after, &left.id, Some(remote(&rig))).await.unwrap();
    assert_eq!(staged(&after).unwrap(), []);
    assert_eq!(staged(&rig.dir.path().join("nowhere")).unwrap(), []);
    draft.finish().await.unwrap();
}

#[tokio::test]
async fn a_record_of_a_file_that_its_parts_cannot_hold_is_not_uploaded_in_part() {
    let rig = Rig::new();
    let staging = rig.lazy();
    let draft = staging.create(path("/a")).unwrap();
    write(&draft, 0, &pattern(300, 4));
    rig.remote.fail(Verb::Begin, 1, FailureKind::Unavailable);
    draft.sync().await.unwrap_err();
    let after = crash(&rig);
    let left = only(&after);
    let file = after.join(format!("{}.json", left.id));
    let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    record["size"] = 10_000_000_000u64.into();
    std::fs::write(&file, record.to_string()).unwrap();
    // Most of it is a hole.
    let data = std::fs::File::options().write(true).open(&left.file).unwrap();
    data.set_len(10_000_000_000).unwrap();
    drop(data);
    let refused = retry(&after, &left.id, remote(&rig), RetryOptions::default()).await.unwrap_err();
    assert_eq!(refused.kind(), FailureKind::Corrupt, "{refused}");
    assert!(rig.remote.object(&path("/a")).is_none() && left.file.exists(), "it stays staged");
    draft.unlink();
}

#[tokio::test]
async fn a_file_of_which_bytes_are_missing_is_not_uploaded_with_zeros_in_their_place() {
    let rig = Rig::new();
    let staging = rig.lazy();
    let draft = staging.create(path("/a")).unwrap();
    write(&draft, 0, &pattern(300, 8));
    rig.remote.fail(Verb::Begin, 1, FailureKind::Unavailable);
    draft.sync().await.unwrap_err();
    let after = crash(&rig);
    let left = only(&after);
    assert_eq!((left.size, left.obstacle), (300, None));
    let data = std::fs::File::options().write(true).open(&left.file).unwrap();
    data.set_len(100).unwrap();
    drop(data);
    let refused = retry(&after, &left.id, remote(&rig), RetryOptions::default()).await.unwrap_err();
    assert_eq!(refused.kind(), FailureKind::NotPermitted, "{refused}");
    assert!(only(&after).obstacle.is_some_and(|obstacle| refused.message().contains(&obstacle)), "{refused}");
    assert!(rig.remote.object(&path("/a")).is_none() && left.file.exists(), "it stays staged");
    draft.unlink();
}
