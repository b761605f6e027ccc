//! What goes to the origin, when, and how often.

use super::*;
use crate::fake::Verb;

#[tokio::test]
async fn a_small_file_is_put_when_it_is_synced() {
    let rig = Rig::new();
    let staging = rig.eager();
    let draft = staging.create(path("/a")).unwrap();
    assert!(draft.is_dirty() && draft.is_new());
    write(&draft, 0, b"hello");
    write(&draft, 7, b"world");
    assert_eq!(rig.remote.object(&path("/a")), None);
    let attr = draft.sync().await.unwrap().unwrap();
    assert_eq!(rig.remote.object(&path("/a")).unwrap(), &b"hello\0\0world"[..]);
    assert_eq!((attr.size(), draft.is_dirty(), draft.is_new()), (12, false, false));
    assert_eq!(draft.sync().await.unwrap(), Some(attr.clone()), "nothing is dirty: nothing is sent");
    assert_eq!(draft.finish().await.unwrap(), Some(attr));
    assert_eq!((rig.remote.calls(Verb::Put), rig.remote.calls(Verb::Begin)), (1, 0));
    assert_eq!(rig.files(), [""; 0]);
    assert_eq!(read_all(&draft).await, &b"hello\0\0world"[..], "from the origin now");
    staging.close().await;
}

#[tokio::test]
async fn an_empty_file_is_made_by_a_close_without_a_write() {
    let rig = Rig::new();
    let staging = rig.lazy();
    let draft = staging.create(path("/a")).unwrap();
    assert_eq!(draft.finish().await.unwrap().unwrap().size(), 0);
    assert_eq!(rig.remote.object(&path("/a")).unwrap().len(), 0);
}

#[tokio::test]
async fn a_file_that_is_only_read_costs_nothing() {
    let rig = Rig::new();
    let attr = rig.remote.store(&path("/a"), pattern(250, 0));
    let staging = rig.lazy();
    let draft = staging.revise(path("/a"), open(&rig, &attr)).unwrap();
    assert_eq!(draft.read(240, 100).await.unwrap(), pattern(250, 0)[240..]);
    assert_eq!((draft.is_dirty(), draft.is_new()), (false, false));
    assert_eq!((draft.sync().await, draft.finish().await), (Ok(None), Ok(None)));
    assert_eq!((rig.files().len(), rig.remote.calls(Verb::Put)), (0, 0));
}

fn open(rig: &Rig, attr: &forebay_types::Attr) -> Arc<dyn crate::Base> {
    crate::Remote::open(&rig.remote, attr.version().unwrap().clone())
}

#[tokio::test]
async fn parts_go_while_the_file_is_being_written() {
    let rig = Rig::new();
    let staging = rig.eager();
    let draft = staging.create(path("/big")).unwrap();
    let bytes = pattern(1000, 1);
    for (index, piece) in bytes[..930].chunks(50).enumerate() {
        write(&draft, 50 * index as u64, piece);
    }
    until("five parts", || rig.remote.arrived().len() == 5).await;
    assert_eq!(rig.remote.object(&path("/big")), None, "never in part");
    write(&draft, 930, &bytes[930..]);
    assert_eq!(draft.sync().await.unwrap().unwrap().size(), 1000);
    assert_eq!(rig.remote.object(&path("/big")).unwrap(), bytes);
    let mut arrived = rig.remote.arrived();
    arrived.sort();
    assert_eq!(arrived, [1, 2, 3, 4, 5, 6], "each once; 1 to 4 have 100 bytes, 5 has 400");
    assert_eq!(rig.remote.uploads(), 0);
}

#[tokio::test]
async fn a_part_that_is_written_again_is_sent_again() {
    let rig = Rig::new();
    let staging = rig.eager();
    let draft = staging.create(path("/a")).unwrap();
    let mut bytes = pattern(300, 2).to_vec();
    rig.remote.hold(Verb::Part);
    write(&draft, 0, &bytes);
    until("all parts are under way", || rig.remote.waiting(Verb::Part) == 3).await;
    // While the first is under way: a few bytes, and all of the second.
    bytes[10..20].fill(7);
    write(&draft, 10, &[7; 10]);
    bytes[100..200].fill(8);
    write(&draft, 100, &[8; 100]);
    rig.remote.release(Verb::Part);
    until("the second went again", || rig.remote.arrived().iter().filter(|number| **number == 2).count() == 2).await;
    draft.sync().await.unwrap();
    assert_eq!(rig.remote.object(&path("/a")).unwrap(), bytes);
    let mut arrived = rig.remote.arrived();
    arrived.sort();
    assert_eq!(arrived, [1, 1, 2, 2, 3]);
}

#[tokio::test]
async fn a_change_takes_the_rest_from_the_version_before() {
    let rig = Rig::new();
    let mut bytes = pattern(1000, 3).to_vec();
    let attr = rig.remote.store(&path("/a"), bytes.clone());
    let staging = rig.eager();
    let draft = staging.revise(path("/a"), open(&rig, &attr)).unwrap();
    write(&draft, 450, b"changed");
    bytes[450..457].copy_from_slice(b"changed");
    assert_eq!(read_all(&draft).await, bytes);
    draft.truncate(700).await.unwrap();
    draft.truncate(900).await.unwrap();
    bytes.truncate(700);
    bytes.resize(900, 0);
    draft.zero(0..3).await.unwrap();
    draft.zero(890..5000).await.unwrap();
    bytes[..3].fill(0);
    assert_eq!(read_all(&draft).await, bytes);
    draft.finish().await.unwrap();
    assert_eq!(rig.remote.object(&path("/a")).unwrap(), bytes);
    assert_eq!(read_all(&draft).await, bytes);
}

#[tokio::test]
async fn what_is_written_during_a_sync_is_dirty_after_it() {
    let rig = Rig::new();
    let staging = rig.lazy();
    let draft = staging.create(path("/a")).unwrap();
    let before = pattern(500, 4);
    write(&draft, 0, &before);
    rig.remote.hold(Verb::Complete);
    let syncing = {
        let draft = Arc::clone(&draft);
        tokio::spawn(async move { draft.sync().await })
    };
    until("it is being completed", || rig.remote.waiting(Verb::Complete) == 1).await;
    write(&draft, 0, b"later");
    write(&draft, 500, b"and longer");
    rig.remote.release(Verb::Complete);
    assert_eq!(syncing.await.unwrap().unwrap().unwrap().size(), 500);
    assert_eq!(rig.remote.object(&path("/a")).unwrap(), before);
    assert!(draft.is_dirty());
    let now = [b"later", &before[5..], b"and longer"].concat();
    assert_eq!(read_all(&draft).await, now);
    assert_eq!(draft.sync().await.unwrap().unwrap().size(), 510);
    assert_eq!(rig.remote.object(&path("/a")).unwrap(), now);
}

#[tokio::test]
async fn a_file_that_is_cut_during_a_sync_is_not_made_long_again() {
    let rig = Rig::new();
    let staging = rig.lazy();
    let draft = staging.create(path("/a")).unwrap();
    write(&draft, 0, &pattern(900, 5));
    rig.remote.hold(Verb::Part);
    let syncing = {
        let draft = Arc::clone(&draft);
        tokio::spawn(async move { draft.sync().await })
    };
    until("parts are under way", || rig.remote.waiting(Verb::Part) > 1).await;
    draft.truncate(250).await.unwrap();
    draft.truncate(600).await.unwrap();
    rig.remote.release(Verb::Part);
    assert_eq!(syncing.await.unwrap().unwrap().unwrap().size(), 250);
    assert_eq!(rig.remote.object(&path("/a")).unwrap(), pattern(900, 5)[..250]);
    assert!(draft.is_dirty());
    let now = [&pattern(900, 5)[..250], &[0; 350]].concat();
    assert_eq!(read_all(&draft).await, now);
    draft.finish().await.unwrap();
    assert_eq!(rig.remote.object(&path("/a")).unwrap(), now);
}

#[tokio::test]
async fn of_two_syncs_at_once_one_does_the_work() {
    let rig = Rig::new();
    let staging = rig.lazy();
    let draft = staging.create(path("/a")).unwrap();
    write(&draft, 0, &pattern(500, 6));
    rig.remote.hold(Verb::Part);
    let sync = || {
        let draft = Arc::clone(&draft);
        tokio::spawn(async move { draft.sync().await.unwrap() })
    };
    let (one, other) = (sync(), sync());
    until("parts are under way", || rig.remote.waiting(Verb::Part) > 0).await;
    rig.remote.release(Verb::Part);
    assert_eq!(one.await.unwrap(), other.await.unwrap());
    assert_eq!((rig.remote.calls(Verb::Complete), rig.remote.arrived().len()), (1, 5));
}

#[tokio::test]
async fn an_unlinked_file_is_never_uploaded_and_lives_on() {
    let rig = Rig::new();
    let staging = rig.eager();
    let draft = staging.create(path("/a")).unwrap();
    let bytes = pattern(350, 7);
    write(&draft, 0, &bytes);
    until("parts are there", || rig.remote.arrived().len() == 3).await;
    draft.unlink();
    until("the upload is aborted", || rig.remote.uploads() == 0).await;
    assert_eq!(rig.files(), [""; 0], "nothing to find after a crash");
    write(&draft, 350, b"more");
    assert_eq!(read_all(&draft).await, [&bytes, &b"more"[..]].concat());
    assert_eq!((draft.is_dirty(), draft.sync().await, draft.finish().await), (false, Ok(None), Ok(None)));
    assert_eq!(read_all(&draft).await.len(), 354, "for those who still read it");
    assert_eq!(rig.remote.object(&path("/a")), None);
    drop(draft);
    assert_eq!(staging.report().space.used, 0);
}

#[tokio::test]
async fn an_unlink_stops_the_parts_that_are_under_way() {
    let rig = Rig::new();
    let staging = rig.lazy();
    let draft = staging.create(path("/a")).unwrap();
    write(&draft, 0, &pattern(500, 8));
    rig.remote.hold(Verb::Part);
    let syncing = {
        let draft = Arc::clone(&draft);
        tokio::spawn(async move { draft.finish().await })
    };
    until("it is under way", || rig.remote.waiting(Verb::Part) > 0).await;
    draft.unlink();
    assert_eq!(syncing.await.unwrap(), Ok(None));
    rig.remote.release(Verb::Part);
    until("the upload is aborted", || rig.remote.uploads() == 0).await;
    assert_eq!(rig.remote.object(&path("/a")), None);
}

#[tokio::test]
async fn whoever_holds_a_draft_knows_that_nothing_of_it_arrives_any_more() {
    for (verb, size) in [(Verb::Complete, 500), (Verb::Put, 5)] {
        let rig = Rig::new();
        let staging = rig.lazy();
        let draft = staging.create(path("/a")).unwrap();
        write(&draft, 0, &pattern(size, 8));
        rig.remote.hold(verb);
        let sync = |draft: &Arc<crate::Draft>| {
            let draft = Arc::clone(draft);
            tokio::spawn(async move { draft.sync().await })
        };
        let first = sync(&draft);
        until("it is under way", || rig.remote.waiting(verb) > 0).await;
        let holding = {
            let draft = Arc::clone(&draft);
            tokio::spawn(async move { draft.hold().await })
        };
        rig.remote.release(verb);
        let held = holding.await.unwrap();
        assert!(first.await.unwrap().is_ok(), "what was under way has arrived before");
        assert!(rig.remote.object(&path("/a")).is_some());
        rig.remote.remove(&path("/a"));
        // Written and synced while it is removed, or renamed.
        write(&draft, 0, b"more");
        let second = sync(&draft);
        let calls = rig.remote.waiting(verb);
        tokio::task::yield_now().await;
        assert_eq!((rig.remote.waiting(verb), second.is_finished()), (calls, false));
        assert_eq!(rig.remote.object(&path("/a")), None);
        draft.renamed(path("/b"), Some(rig.remote.store(&path("/b"), pattern(size, 8))));
        drop(held);
        assert!(second.await.unwrap().is_ok());
        assert_eq!(rig.remote.object(&path("/a")), None, "{verb:?}");
        assert_eq!(&rig.remote.object(&path("/b")).unwrap()[..4], b"more");
    }
}

#[tokio::test]
async fn a_renamed_file_goes_where_it_is_called_now() {
    let rig = Rig::new();
    let staging = rig.eager();
    let draft = staging.create(path("/old")).unwrap();
    write(&draft, 0, &pattern(500, 9));
    let old = draft.sync().await.unwrap().unwrap().version().unwrap().clone();
    assert!(draft.is_at_origin_as(&path("/old"), &old) && !draft.is_at_origin_as(&path("/new"), &old));
    // Something that the rename did not wait for: its upload is for the old name.
    write(&draft, 0, &pattern(200, 10));
    until("parts are there", || rig.remote.uploads() == 1).await;
    let attr = rig.remote.store(&path("/new"), pattern(500, 9));
    rig.remote.remove(&path("/old"));
    let new = attr.version().unwrap().clone();
    draft.renamed(path("/new"), Some(attr));
    assert_eq!((draft.path(), draft.is_new(), draft.is_dirty()), (path("/new"), false, true));
    assert!(draft.is_at_origin_as(&path("/new"), &new) && !draft.is_at_origin_as(&path("/new"), &old));
    draft.finish().await.unwrap();
    let now = [&pattern(200, 10)[..], &pattern(500, 9)[200..]].concat();
    assert_eq!((rig.remote.object(&path("/new")).unwrap(), rig.remote.object(&path("/old"))), (now.into(), None));
    until("no upload is left", || rig.remote.uploads() == 0).await;
}

#[tokio::test]
async fn a_file_that_is_cut_to_nothing_gives_its_upload_up() {
    let rig = Rig::new();
    let staging = rig.eager();
    let draft = staging.create(path("/a")).unwrap();
    write(&draft, 0, &pattern(500, 11));
    until("parts are there", || !rig.remote.arrived().is_empty()).await;
    draft.truncate(0).await.unwrap();
    until("the upload is aborted", || rig.remote.uploads() == 0).await;
    write(&draft, 0, b"short");
    draft.finish().await.unwrap();
    assert_eq!(rig.remote.object(&path("/a")).unwrap(), &b"short"[..]);
}

#[tokio::test]
async fn the_time_of_a_change_holds_until_the_origin_says_another() {
    let rig = Rig::new();
    let staging = rig.lazy();
    let draft = staging.create(path("/a")).unwrap();
    write(&draft, 0, b"x");
    let long_ago = std::time::UNIX_EPOCH + Duration::from_secs(86_400);
    draft.set_modified(long_ago);
    assert_eq!(draft.modified(), long_ago);
    let attr = draft.sync().await.unwrap().unwrap();
    let origins = std::time::UNIX_EPOCH + Duration::from_nanos(attr.modified_nanos as u64);
    assert_eq!(draft.modified(), origins);
    write(&draft, 0, b"y");
    assert!(draft.modified() > origins);
}

#[tokio::test]
async fn a_sync_goes_on_when_nobody_waits_for_it_any_more() {
    let rig = Rig::new();
    let staging = rig.lazy();
    for (name, kind) in [("/good", None), ("/bad", Some(forebay_types::FailureKind::Unavailable))] {
        let draft = staging.create(path(name)).unwrap();
        write(&draft, 0, &pattern(500, 12));
        rig.remote.hold(Verb::Complete);
        let syncing = tokio::spawn(async move { draft.sync().await });
        until("it is being completed", || rig.remote.waiting(Verb::Complete) == 1).await;
        syncing.abort();
        assert!(syncing.await.unwrap_err().is_cancelled());
        kind.into_iter().for_each(|kind| rig.remote.fail(Verb::Complete, 1, kind));
        rig.remote.release(Verb::Complete);
        until("it is closed", || staging.report().drafts.open == 0).await;
        assert_eq!(rig.remote.object(&path(name)).is_some(), kind.is_none());
        assert_eq!(rig.files().len(), if kind.is_none() { 0 } else { 2 }, "{name}");
    }
}
