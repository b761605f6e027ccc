//! Origins that fail, and bases that change.

use forebay_types::FailureKind;

use super::*;
use crate::fake::Verb;
use crate::{StagedState, drop_staged, retry, staged};

#[tokio::test]
async fn a_sync_that_failed_goes_on_where_it_stopped() {
    let rig = Rig::new();
    let staging = rig.lazy();
    let draft = staging.create(path("/a")).unwrap();
    let bytes = pattern(1000, 1);
    write(&draft, 0, &bytes);
    rig.remote.fail(Verb::Complete, 1, FailureKind::Unavailable);
    let failure = draft.sync().await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Unavailable);
    assert!(failure.message().starts_with("cannot upload /a: "), "{failure}");
    assert!(draft.is_dirty());
    assert_eq!(read_all(&draft).await, bytes);
    write(&draft, 0, b"x");
    draft.sync().await.unwrap();
    assert_eq!(rig.remote.object(&path("/a")).unwrap(), [b"x", &bytes[1..]].concat());
    let mut arrived = rig.remote.arrived();
    arrived.sort();
    assert_eq!(arrived, [1, 1, 2, 3, 4, 5, 6], "only what was changed went again");
    assert_eq!(staging.report().uploads.failures, 1);
}

#[tokio::test]
async fn every_verb_may_fail_once() {
    for verb in [Verb::Begin, Verb::Part, Verb::Complete, Verb::Put] {
        let rig = Rig::new();
        let staging = rig.lazy();
        let draft = staging.create(path("/a")).unwrap();
        let bytes = pattern(if verb == Verb::Put { 50 } else { 800 }, 2);
        write(&draft, 0, &bytes);
        rig.remote.fail(verb, 1, FailureKind::TimedOut);
        assert_eq!(draft.sync().await.unwrap_err().kind(), FailureKind::TimedOut, "{verb:?}");
        assert!(draft.sync().await.unwrap().is_some());
        assert_eq!(rig.remote.object(&path("/a")).unwrap(), bytes);
        assert_eq!(rig.remote.uploads(), 0);
    }
}

#[tokio::test]
async fn an_upload_that_is_gone_is_begun_anew_once() {
    let rig = Rig::new();
    let staging = rig.eager();
    let draft = staging.create(path("/a")).unwrap();
    let bytes = pattern(1000, 3);
    write(&draft, 0, &bytes);
    until("whole parts are there", || rig.remote.arrived().len() == 5).await;
    rig.remote.lose_uploads();
    draft.sync().await.unwrap();
    assert_eq!(rig.remote.object(&path("/a")).unwrap(), bytes);
    assert_eq!(rig.remote.calls(Verb::Begin), 2);
    write(&draft, 0, &bytes);
    rig.remote.fail(Verb::Complete, 2, FailureKind::NotFound);
    assert_eq!(draft.sync().await.unwrap_err().kind(), FailureKind::NotFound);
    assert!(draft.sync().await.unwrap().is_some());
}

#[tokio::test]
async fn early_parts_that_fail_are_no_failure() {
    let rig = Rig::new();
    let staging = rig.eager();
    let draft = staging.create(path("/a")).unwrap();
    rig.remote.fail(Verb::Begin, 1, FailureKind::Unavailable);
    rig.remote.fail(Verb::Part, 1, FailureKind::Unavailable);
    let bytes = pattern(300, 4);
    write(&draft, 0, &bytes);
    until("they go again after a rest", || rig.remote.arrived().len() == 3).await;
    draft.sync().await.unwrap();
    assert_eq!(rig.remote.object(&path("/a")).unwrap(), bytes);
    assert_eq!(rig.remote.arrived().len(), 3);
}

#[tokio::test]
async fn a_file_that_cannot_be_uploaded_stays_and_can_be_retried() {
    let rig = Rig::new();
    let staging = rig.lazy();
    let draft = staging.create(path("/dir/a")).unwrap();
    let bytes = pattern(1000, 5);
    write(&draft, 0, &bytes);
    rig.remote.fail(Verb::Part, 1, FailureKind::PermissionDenied);
    assert_eq!(draft.finish().await.unwrap_err().kind(), FailureKind::PermissionDenied);
    assert_eq!(draft.try_write(0, b"x").unwrap().unwrap_err().kind(), FailureKind::PermissionDenied);
    assert_eq!(draft.finish().await.unwrap_err().kind(), FailureKind::PermissionDenied);
    assert_eq!(read_all(&draft).await, bytes);
    // The name is another file's by now.
    draft.unlink();
    drop(draft);
    assert_eq!((rig.remote.uploads(), rig.remote.calls(Verb::Abort)), (0, 1), "nothing is left at the origin");
    let left = staged(&rig.dir()).unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!((left[0].path.clone(), left[0].size, left[0].owner.as_str()), (path("/dir/a"), 1000, "/mnt/test"));
    assert!(matches!(&left[0].state, StagedState::Failed { reason } if reason.contains("as it was told to")));
    assert_eq!(left[0].obstacle, None);
    assert_eq!((staging.report().space.used, staging.report().drafts.failed), (1000, 1));

    let before = rig.remote.arrived().len();
    let sent = || rig.remote.arrived().len() - before;
    let remote: Arc<dyn crate::Remote> = Arc::new(rig.remote.clone());
    let attr = retry(&rig.dir(), &left[0].id, Arc::clone(&remote), crate::RetryOptions::default()).await.unwrap();
    assert_eq!((attr.size(), rig.remote.object(&path("/dir/a")).unwrap()), (1000, bytes));
    assert_eq!(sent(), 6, "all of it is here, and goes again");
    assert_eq!((staged(&rig.dir()).unwrap(), rig.files().len()), (Vec::new(), 0));
    assert_eq!((staging.report().space.used, staging.report().drafts.failed), (0, 0));
    let again = retry(&rig.dir(), &left[0].id, remote, crate::RetryOptions::default()).await;
    assert_eq!(again.unwrap_err().kind(), FailureKind::NotFound);
}

#[tokio::test]
async fn a_retry_that_fails_keeps_the_file_and_a_drop_aborts_its_upload() {
    let rig = Rig::new();
    let staging = rig.lazy();
    let attr = rig.remote.store(&path("/a"), pattern(1000, 6));
    let base = crate::Remote::open(&rig.remote, attr.version().unwrap().clone());
    let draft = staging.revise(path("/a"), base).unwrap();
    write(&draft, 333, b"changed");
    rig.remote.fail(Verb::Complete, 2, FailureKind::Unavailable);
    // When the draft is left, when the retry has failed, and when it is dropped.
    rig.remote.fail(Verb::Abort, 3, FailureKind::Unavailable);
    draft.finish().await.unwrap_err();
    drop(draft);
    let left = staged(&rig.dir()).unwrap().remove(0);
    let remote: Arc<dyn crate::Remote> = Arc::new(rig.remote.clone());
    let failed = retry(&rig.dir(), &left.id, Arc::clone(&remote), crate::RetryOptions::default()).await;
    assert_eq!(failed.unwrap_err().kind(), FailureKind::Unavailable);
    let still = staged(&rig.dir()).unwrap().remove(0);
    assert_eq!((&still.id, still.size, still.since, rig.remote.uploads()), (&left.id, 1000, left.since, 1));
    assert!(drop_staged(&rig.dir(), &left.id, Some(Arc::clone(&remote))).await.is_err());
    assert_eq!(staged(&rig.dir()).unwrap().len(), 1);
    drop_staged(&rig.dir(), &left.id, Some(remote)).await.unwrap();
    assert_eq!((rig.files().len(), rig.remote.uploads()), (0, 0));
    assert_eq!(drop_staged(&rig.dir(), "../a", None).await.unwrap_err().kind(), FailureKind::NotFound);
}

#[tokio::test]
async fn what_a_process_works_with_is_left_alone() {
    let rig = Rig::new();
    let staging = rig.lazy();
    let draft = staging.create(path("/a")).unwrap();
    write(&draft, 0, b"x");
    let open = staged(&rig.dir()).unwrap().remove(0);
    assert_eq!(open.state, StagedState::Open { pid: std::process::id() });
    let remote: Arc<dyn crate::Remote> = Arc::new(rig.remote.clone());
    let refused = retry(&rig.dir(), &open.id, remote, crate::RetryOptions::default()).await.unwrap_err();
    assert_eq!(refused.kind(), FailureKind::NotPermitted);
    assert_eq!(drop_staged(&rig.dir(), &open.id, None).await.unwrap_err().kind(), FailureKind::NotPermitted);
    draft.finish().await.unwrap();
}

#[tokio::test]
async fn a_base_that_somebody_else_replaced_is_stale() {
    let rig = Rig::new();
    let staging = rig.lazy();
    let attr = rig.remote.store(&path("/a"), pattern(1000, 7));
    let base = crate::Remote::open(&rig.remote, attr.version().unwrap().clone());
    let draft = staging.revise(path("/a"), base).unwrap();
    write(&draft, 0, b"mine");
    rig.remote.store(&path("/a"), pattern(1000, 8));
    assert_eq!(draft.read(0, 4).await.unwrap(), &b"mine"[..]);
    assert_eq!(draft.read(0, 5).await.unwrap_err().kind(), FailureKind::VersionChanged);
    let failure = draft.finish().await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::VersionChanged);
    assert!(failure.message().contains(".data"), "it says where the bytes are: {failure}");
    assert_eq!(rig.remote.object(&path("/a")).unwrap(), pattern(1000, 8), "a mix is never made");
}

#[tokio::test]
async fn our_own_sync_does_not_make_a_reader_fail() {
    let rig = Rig::new();
    let staging = rig.lazy();
    let attr = rig.remote.store(&path("/a"), pattern(1000, 9));
    let base = crate::Remote::open(&rig.remote, attr.version().unwrap().clone());
    let draft = staging.revise(path("/a"), base).unwrap();
    write(&draft, 0, b"mine");
    let bytes = [b"mine", &pattern(1000, 9)[4..]].concat();
    rig.remote.hold(Verb::Complete);
    let syncing = {
        let draft = Arc::clone(&draft);
        tokio::spawn(async move { draft.sync().await })
    };
    until("it is being completed", || rig.remote.waiting(Verb::Complete) == 1).await;
    rig.remote.hold(Verb::Read);
    let reading = {
        let draft = Arc::clone(&draft);
        tokio::spawn(async move { draft.read(0, 1000).await })
    };
    until("the old version is being read", || rig.remote.waiting(Verb::Read) == 1).await;
    rig.remote.release(Verb::Complete);
    syncing.await.unwrap().unwrap();
    rig.remote.release(Verb::Read);
    assert_eq!(reading.await.unwrap().unwrap(), bytes);
}
