//! What origins are asked, and what is believed.

use super::ahead::is_paged;
use super::*;
use crate::list_ahead::{EARNED_BY, PATIENCE};
use crate::namespace::Namespace;
use forebay_origin::{FakeOrigin, Origin};
use forebay_types::{CachePolicy, PolicyTable};

fn path(text: &str) -> FsPath {
    FsPath::new(text).unwrap()
}

fn metadata(ttl: Duration) -> (Arc<FakeOrigin>, Metadata) {
    let origin = Arc::new(FakeOrigin::new("fake://bucket"));
    let mount = (path("/data/s3"), Arc::clone(&origin) as Arc<dyn Origin>);
    let scopes = Arc::new(Scopes::new(Namespace::new([mount]).unwrap(), ttl, true));
    (origin, Metadata::new(scopes, 10_000))
}

const TTL: Duration = Duration::from_secs(60);

#[tokio::test]
async fn many_who_ask_at_once_are_one_question_to_the_origin() {
    let (origin, metadata) = metadata(TTL);
    origin.put("a", b"abc".as_slice());
    let metadata = Arc::new(metadata);
    let asks = (0..50).map(|_| {
        let metadata = Arc::clone(&metadata);
        tokio::spawn(async move { metadata.stat(&path("/data/s3/a"), false).await.unwrap().attr.size() })
    });
    for ask in asks.collect::<Vec<_>>() {
        assert_eq!(ask.await.unwrap(), 3);
    }
    assert_eq!(origin.counts().stats, 1);
}

#[tokio::test]
async fn long_paths_and_tokens_take_the_room_of_many_names() {
    let (_, metadata) = metadata(TTL);
    let below = "/n".repeat(30_000);
    for number in 0..200 {
        metadata.stat(&path(&format!("/nowhere/{number}{below}")), false).await.unwrap_err();
        metadata.list(&path("/data"), Some(format!("{number}{below}")), 10, false).await.unwrap();
    }
    metadata.attrs.run_pending_tasks().await;
    metadata.pages.run_pending_tasks().await;
    // Of 60 KB each, and an answer that repeats it.
    assert!((1..=90).contains(&metadata.attrs.entry_count()), "{}", metadata.attrs.entry_count());
    assert!((1..=170).contains(&metadata.pages.entry_count()), "{}", metadata.pages.entry_count());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_when_an_answer_under_way_is_too_old_for_him_has_his_own() {
    let ttl = Duration::from_millis(50);
    let (origin, metadata) = metadata(ttl);
    origin.put("d/a", b"abc".as_slice());
    origin.set_delay(20 * ttl);
    let name = path("/data/s3/d/a");
    let stat = || {
        let (metadata, name) = (metadata.clone(), name.clone());
        tokio::spawn(async move { metadata.stat(&name, false).await.unwrap() })
    };
    let list = || {
        let metadata = metadata.clone();
        tokio::spawn(async move { metadata.list(&path("/data/s3/d"), None, 10, false).await.unwrap() })
    };
    let (first, first_page) = (stat(), list());
    while origin.counts().stats == 0 || origin.counts().lists == 0 {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(2 * ttl).await;
    let (late, late_page) = (stat(), list());
    for asked in [first, late] {
        asked.await.unwrap();
    }
    for asked in [first_page, late_page] {
        asked.await.unwrap();
    }
    assert_eq!((origin.counts().stats, origin.counts().lists), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn those_who_insist_while_the_origin_is_asked_share_the_question_after_it() {
    // Where nothing is believed, everybody insists.
    for (ttl, insists) in [(TTL, true), (Duration::ZERO, false)] {
        let (origin, metadata) = metadata(ttl);
        origin.put("d/a", b"abc".as_slice());
        origin.set_delay(Duration::from_millis(100));
        let asks = (0..50).map(|_| {
            let metadata = metadata.clone();
            tokio::spawn(async move {
                let (name, directory) = (path("/data/s3/d/a"), path("/data/s3/d"));
                let (stat, page) =
                    tokio::join!(metadata.stat(&name, insists), metadata.list(&directory, None, 10, insists));
                (stat.unwrap().attr.size(), page.unwrap().entries.len())
            })
        });
        for ask in asks.collect::<Vec<_>>() {
            assert_eq!(ask.await.unwrap(), (3, 1));
        }
        assert_eq!((origin.counts().stats, origin.counts().lists), (2, 2), "with a ttl of {ttl:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_told_to_all_who_share_the_question_and_to_nobody_after_them() {
    let (origin, metadata) = metadata(TTL);
    origin.put("a", b"abc".as_slice());
    origin.set_delay(Duration::from_millis(100));
    origin.fail_next(2, &Failure::new(FailureKind::Unavailable, "slow down"));
    let stat = || {
        let metadata = metadata.clone();
        tokio::spawn(async move { metadata.stat(&path("/data/s3/a"), true).await })
    };
    for ask in (0..10).map(|_| stat()).collect::<Vec<_>>() {
        assert_eq!(ask.await.unwrap().unwrap_err().kind(), FailureKind::Unavailable);
    }
    assert_eq!(stat().await.unwrap().unwrap().attr.size(), 3);
    assert_eq!(origin.counts().stats, 3);
}

#[tokio::test]
async fn absence_is_remembered_until_someone_insists() {
    let (origin, metadata) = metadata(TTL);
    let kind = |reply: Result<StatReply, Failure>| reply.unwrap_err().kind();
    assert_eq!(kind(metadata.stat(&path("/data/s3/a"), false).await), FailureKind::NotFound);
    origin.put("a", b"abc".as_slice());
    assert_eq!(kind(metadata.stat(&path("/data/s3/a"), false).await), FailureKind::NotFound);
    assert_eq!(metadata.stat(&path("/data/s3/a"), true).await.unwrap().attr.size(), 3);
    assert_eq!(metadata.stat(&path("/data/s3/a"), false).await.unwrap().attr.size(), 3);
}

#[tokio::test]
async fn what_a_change_made_is_believed_no_longer_than_from_its_beginning() {
    let short = Duration::from_millis(20);
    for (ttl, takes, size) in [(TTL, Duration::ZERO, 1), (short, short, 2)] {
        let (origin, metadata) = metadata(ttl);
        origin.put("a", vec![0; 1]);
        let (name, ours) = (path("/data/s3/a"), origin.stat(b"a").await.unwrap());
        let changing = metadata.changing(&metadata.scopes.current(), &name, false);
        // Another writer replaces it before we hear that the origin has ours.
        origin.put("a", vec![0; 2]);
        tokio::time::sleep(takes).await;
        let made = changing.made(ours).await;
        assert_eq!(made.size(), 1);
        let known = metadata.stat(&name, false).await.unwrap();
        assert_eq!(known.attr.size(), size, "it took {takes:?}");
        assert!(known.valid_for <= ttl);
    }
}

#[tokio::test]
async fn a_ttl_of_zero_always_asks_and_is_never_believed() {
    let (origin, metadata) = metadata(Duration::ZERO);
    for size in 1..4 {
        origin.put("a", vec![0; size]);
        let reply = metadata.stat(&path("/data/s3/a"), false).await.unwrap();
        assert_eq!((reply.attr.size(), reply.valid_for), (size as u64, Duration::ZERO));
    }
}

#[tokio::test]
async fn a_listing_teaches_the_attributes_of_its_names() {
    let (origin, metadata) = metadata(TTL);
    for name in ["d/a", "d/b", "d/c"] {
        origin.put(name, b"x".as_slice());
    }
    let page = metadata.list(&path("/data/s3/d"), None, 2, false).await.unwrap();
    assert_eq!(page.entries.len(), 2);
    let rest = metadata.list(&path("/data/s3/d"), page.next, 2, false).await.unwrap();
    assert_eq!((rest.entries.len(), rest.next), (1, None));
    for name in ["a", "b", "c"] {
        metadata.stat(&path("/data/s3/d").join(name.as_bytes()).unwrap(), false).await.unwrap();
    }
    assert_eq!(origin.counts().stats, 0);
}

#[tokio::test]
async fn directories_above_mounts_are_there() {
    let (_origin, metadata) = metadata(TTL);
    for (directory, writable) in [("/", false), ("/data", false), ("/data/s3", true)] {
        let attr = metadata.stat(&path(directory), false).await.unwrap().attr;
        assert_eq!(attr, Attr { writable, ..Attr::directory() }, "{directory}");
    }
    let page = metadata.list(&path("/"), None, 10, false).await.unwrap();
    assert_eq!(page.entries.iter().map(|entry| &*entry.name).collect::<Vec<_>>(), [b"data"]);
    assert!(metadata.stat(&path("/nothing"), false).await.is_err());
    assert!(metadata.list(&path("/nothing"), None, 10, false).await.is_err());
}

fn with(change: impl FnOnce(&mut CachePolicy)) -> CachePolicy {
    let mut policy = CachePolicy::default();
    change(&mut policy);
    policy
}

#[tokio::test]
async fn policies_say_how_long_what_is_believed_and_how_many_replicas_there_are() {
    let (origin, metadata) = metadata(TTL);
    for name in ["slow/a", "live/a", "fixed/a"] {
        origin.put(name, b"x".as_slice());
    }
    metadata.scopes.set_policies(PolicyTable::new([
        (path("/data/s3/slow"), with(|policy| policy.metadata_ttl = Some(10 * TTL))),
        (path("/data/s3/live"), with(|policy| policy.metadata_ttl = Some(Duration::ZERO))),
        (path("/data/s3/fixed"), with(|policy| policy.immutable = Some(true))),
        (path("/data"), with(|policy| policy.replicas = Some(3))),
    ]));
    let stat = async |name: &str| metadata.stat(&path(name), false).await.unwrap();
    let slow = stat("/data/s3/slow/a").await;
    assert!(slow.valid_for > 9 * TTL && slow.valid_for <= 10 * TTL);
    assert_eq!(slow.attr.replicas, 3);
    assert!(stat("/data/s3/fixed/a").await.valid_for > 100 * 24 * 60 * TTL);
    assert!(metadata.list(&path("/data/s3/fixed"), None, 10, false).await.unwrap().valid_for <= TTL);
    let asked = origin.counts().stats;
    for _ in 0..3 {
        assert_eq!(stat("/data/s3/live/a").await.valid_for, Duration::ZERO);
        stat("/data/s3/fixed/a").await;
    }
    assert_eq!(origin.counts().stats, asked + 3, "what is fixed is not asked again");
    metadata.stat(&path("/data/s3/fixed/a"), true).await.unwrap();
    assert_eq!(origin.counts().stats, asked + 4, "unless somebody insists");
    let page = metadata.list(&path("/data/s3/slow"), None, 10, false).await.unwrap();
    assert_eq!(page.entries[0].attr.replicas, 3);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_under_way_when_the_mounts_changed_is_not_believed() {
    let (old, metadata) = metadata(TTL);
    old.put("a", b"abc".as_slice());
    let metadata = Arc::new(metadata);
    old.set_delay(Duration::from_secs(1));
    let asked = tokio::spawn({
        let metadata = Arc::clone(&metadata);
        async move { metadata.stat(&path("/data/s3/a"), false).await.unwrap().attr.size() }
    });
    while old.counts().stats == 0 {
        tokio::task::yield_now().await;
    }
    let new = Arc::new(FakeOrigin::new("fake://other"));
    new.put("a", b"longer".as_slice());
    metadata.scopes.set_namespace(Namespace::new([(path("/data/s3"), Arc::clone(&new) as Arc<dyn Origin>)]).unwrap());
    metadata.forget_all();
    assert_eq!(asked.await.unwrap(), 3, "who asked before, hears of what was before");
    assert_eq!(metadata.stat(&path("/data/s3/a"), false).await.unwrap().attr.size(), 6);
    assert_eq!(metadata.stat(&path("/data/s3/a"), false).await.unwrap().attr.size(), 6);
    assert_eq!(new.counts().stats, 1);
}

#[tokio::test(start_paused = true)]
async fn who_insists_when_the_mounts_have_changed_is_told_of_the_new_ones() {
    let (old, metadata) = metadata(TTL);
    old.put("a", b"abc".as_slice());
    old.set_delay(Duration::from_millis(100));
    let insist = || {
        let metadata = metadata.clone();
        tokio::spawn(async move { metadata.stat(&path("/data/s3/a"), true).await.unwrap().attr.size() })
    };
    let before: Vec<_> = (0..2).map(|_| insist()).collect();
    while old.counts().stats == 0 {
        tokio::task::yield_now().await;
    }
    let new = Arc::new(FakeOrigin::new("fake://other"));
    new.put("a", b"longer".as_slice());
    metadata.scopes.set_namespace(Namespace::new([(path("/data/s3"), Arc::clone(&new) as Arc<dyn Origin>)]).unwrap());
    metadata.forget_all();
    assert_eq!(insist().await.unwrap(), 6);
    let mut told = Vec::new();
    for ask in before {
        told.push(ask.await.unwrap());
    }
    assert_eq!((told, old.counts().stats, new.counts().stats), (vec![3, 6], 1, 1));
}

/// Names in an order that no listing has.
fn shuffled(names: u64) -> impl Iterator<Item = FsPath> {
    // Any odd number, and as many names as a power of two: each comes once.
    (0..names).map(move |at| path(&format!("/data/s3/d/{:05}", (at * 2_654_435_761) % names)))
}

#[tokio::test]
async fn many_names_of_one_directory_cost_a_page_for_each_thousand() {
    const NAMES: u64 = 4096;
    let (origin, metadata) = metadata(TTL);
    for name in 0..NAMES {
        origin.put(format!("d/{name:05}"), vec![0; 1 + name as usize % 3]);
    }
    for path in shuffled(NAMES) {
        let told = metadata.stat(&path, false).await.unwrap().attr;
        let version = origin.version(path.as_bytes().strip_prefix(b"/data/s3/").unwrap());
        assert_eq!(told.version().cloned(), version, "a page tells the same version as the name itself");
    }
    let counts = origin.counts();
    assert_eq!(counts.lists, 5);
    assert!(counts.stats <= 5 * u64::from(EARNED_BY), "{counts:?}");
}

#[tokio::test]
async fn those_who_ask_while_a_page_is_listed_wait_for_it_and_ask_nothing_themselves() {
    let (origin, metadata) = metadata(TTL);
    for path in shuffled(64) {
        origin.put(path.as_bytes().strip_prefix(b"/data/s3/").unwrap(), b"x".as_slice());
    }
    let metadata = Arc::new(metadata);
    let stall = origin.stall();
    let asks = shuffled(64).map(|path| {
        let metadata = Arc::clone(&metadata);
        tokio::spawn(async move { metadata.stat(&path, false).await.unwrap().attr.size() })
    });
    let asks: Vec<_> = asks.collect();
    origin.wait_for_stalled(EARNED_BY as usize).await;
    drop(stall);
    for ask in asks {
        assert_eq!(ask.await.unwrap(), 1);
    }
    let counts = origin.counts();
    assert_eq!((counts.stats, counts.lists), (u64::from(EARNED_BY - 1), 1));
}

#[tokio::test]
async fn what_a_page_does_not_tell_is_asked_for_as_ever() {
    let (origin, metadata) = metadata(TTL);
    for name in ["a", "b", "c", "d"] {
        origin.put(format!("d/{name}"), b"x".as_slice());
    }
    let stat = async |name: &str| metadata.stat(&path(&format!("/data/s3/d/{name}")), false).await;
    for name in ["a", "b", "c", "d"] {
        stat(name).await.unwrap();
    }
    assert_eq!((origin.counts().stats, origin.counts().lists), (2, 1));
    for _ in 0..2 {
        assert_eq!(stat("nothing").await.unwrap_err().kind(), FailureKind::NotFound);
    }
    assert_eq!(origin.counts().stats, 3, "that a listing lacks a name is no answer, and the origin's no is remembered");
    origin.put("d/late", b"x".as_slice());
    assert_eq!(stat("late").await.unwrap().attr.size(), 1);
    origin.put("d/a", b"longer".as_slice());
    metadata.forget(&path("/data/s3/d/a"));
    assert_eq!(stat("a").await.unwrap().attr.size(), 6, "a page from before a change is not believed after it");
    assert_eq!(origin.counts().lists, 1);
}

#[tokio::test]
async fn a_directory_that_cannot_be_listed_is_asked_about_name_by_name_and_not_listed_again() {
    let (origin, metadata) = metadata(TTL);
    for path in shuffled(16) {
        origin.put(path.as_bytes().strip_prefix(b"/data/s3/").unwrap(), b"x".as_slice());
    }
    let mut names = shuffled(16);
    for path in names.by_ref().take(2) {
        metadata.stat(&path, false).await.unwrap();
    }
    origin.fail_next(1, &Failure::new(FailureKind::PermissionDenied, "no leave to list"));
    for path in names {
        assert_eq!(metadata.stat(&path, false).await.unwrap().attr.size(), 1);
    }
    assert_eq!((origin.counts().stats, origin.counts().lists), (16, 1));
}

#[tokio::test(start_paused = true)]
async fn a_page_that_is_slow_is_waited_for_a_moment_and_learned_though_nobody_waits_any_more() {
    let (origin, metadata) = metadata(TTL);
    let metadata = Arc::new(metadata);
    for path in shuffled(16) {
        origin.put(path.as_bytes().strip_prefix(b"/data/s3/").unwrap(), b"x".as_slice());
    }
    let stat = |path: FsPath| {
        let metadata = Arc::clone(&metadata);
        tokio::spawn(async move { metadata.stat(&path, false).await.unwrap().attr.size() })
    };
    let mut names = shuffled(16);
    for path in names.by_ref().take(2) {
        stat(path).await.unwrap();
    }
    origin.set_delay(Duration::from_secs(10));
    let third = stat(names.next().unwrap());
    while origin.counts().lists == 0 {
        tokio::task::yield_now().await;
    }
    third.abort();
    origin.set_delay(Duration::ZERO);
    let asked = tokio::time::Instant::now();
    stat(names.next().unwrap()).await.unwrap();
    let waited = asked.elapsed();
    assert!(waited <= PATIENCE + Duration::from_millis(10), "{waited:?}");
    assert_eq!((origin.counts().stats, origin.counts().lists), (3, 1));
    tokio::time::sleep(Duration::from_secs(10)).await;
    for path in names {
        stat(path).await.unwrap();
    }
    assert_eq!((origin.counts().stats, origin.counts().lists), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn a_directory_whose_pages_take_longer_than_they_are_worth_is_not_listed_again() {
    let (origin, metadata) = metadata(Duration::from_secs(8));
    origin.set_delay(Duration::from_secs(5));
    for name in 0..9 {
        origin.put(format!("d/{name}"), b"x".as_slice());
        metadata.stat(&path(&format!("/data/s3/d/{name}")), false).await.unwrap();
    }
    assert_eq!((origin.counts().stats, origin.counts().lists), (9, 1));
}

#[tokio::test]
async fn what_was_asked_first_does_not_replace_what_was_asked_later() {
    let (origin, metadata) = metadata(TTL);
    let name = path("/data/s3/a");
    let scope = metadata.scopes.current();
    origin.put("a", b"old".as_slice());
    let old = metadata.ask(&scope, &name).await.unwrap();
    origin.put("a", b"newer".as_slice());
    assert_eq!(metadata.stat(&name, true).await.unwrap().attr.size(), 5);
    metadata.remember(name.clone(), old).await;
    assert_eq!(metadata.stat(&name, false).await.unwrap().attr.size(), 5);
    metadata.forget(&name);
    origin.put("a", b"newest".as_slice());
    assert_eq!(metadata.stat(&name, false).await.unwrap().attr.size(), 6);
}

#[tokio::test]
async fn names_that_are_not_believed_are_not_listed_ahead() {
    let (origin, metadata) = metadata(Duration::ZERO);
    for path in shuffled(16) {
        origin.put(path.as_bytes().strip_prefix(b"/data/s3/").unwrap(), b"x".as_slice());
        metadata.stat(&path, false).await.unwrap();
    }
    assert_eq!((origin.counts().stats, origin.counts().lists), (16, 0));
    assert!(is_paged("s3://bucket/data") && !is_paged("file:///data") && !is_paged("https://example.com/data"));
}

#[tokio::test]
async fn closing_ends_a_page_that_is_being_listed_and_waits_for_its_task() {
    let (origin, metadata) = metadata(TTL);
    for path in shuffled(16) {
        origin.put(path.as_bytes().strip_prefix(b"/data/s3/").unwrap(), b"x".as_slice());
    }
    let metadata = Arc::new(metadata);
    let stall = origin.stall();
    let asks: Vec<_> = shuffled(16)
        .take(EARNED_BY as usize)
        .map(|path| {
            let metadata = Arc::clone(&metadata);
            tokio::spawn(async move { metadata.stat(&path, false).await })
        })
        .collect();
    origin.wait_for_stalled(EARNED_BY as usize).await;
    assert_eq!(origin.counts().lists, 1);
    asks.iter().for_each(|ask| ask.abort());
    for ask in asks {
        assert!(ask.await.is_err_and(|error| error.is_cancelled()));
    }
    // The requests are gone, and the task that lists is not: it has the other reference.
    assert!(Arc::strong_count(&metadata.invalidations) > 1);
    tokio::time::timeout(Duration::from_secs(10), metadata.close()).await.expect("the listing is not ended");
    assert_eq!(Arc::strong_count(&metadata.invalidations), 1, "its task has ended");
    drop(stall);
}

/// What is spawned on a runtime that has shut down is dropped at once, by the thread that spawns it.
#[test]
fn a_page_that_is_due_while_the_runtime_shuts_down_holds_up_nobody() {
    let (told, heard) = std::sync::mpsc::channel();
    // By a thread of its own: one that waits for itself is not to hold up the test.
    std::thread::spawn(move || {
        let (origin, metadata) = metadata(TTL);
        let mut names = shuffled(16);
        let mut stat = async || {
            let path = names.next().unwrap();
            origin.put(path.as_bytes().strip_prefix(b"/data/s3/").unwrap(), b"x".as_slice());
            metadata.stat(&path, false).await.unwrap().attr.size()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let handle = runtime.handle().clone();
        for _ in 1..EARNED_BY {
            runtime.block_on(stat());
        }
        drop(runtime);
        let _entered = handle.enter();
        told.send(futures::executor::block_on(stat())).unwrap();
    });
    assert_eq!(heard.recv_timeout(Duration::from_secs(60)), Ok(1));
}
