//! Changes and uploads: they go through to the origin, and the worker tells at once what they made.

mod common;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use common::*;
use forebay_engine::FetchPolicy;
use forebay_origin::{FakeOrigin, ListPage, Origin, OriginCounts};
use forebay_transport::message::{Change, ChangeReply, ListReply, ListRequest, UploadRequest};
use forebay_transport::{Flags, Op, Request};
use forebay_types::{Attr, Failure, FailureKind, FileVersion};
use forebay_worker::{MetadataOptions, Namespace, Worker, WorkerOptions};
use tokio::sync::watch;

async fn worker_of_mounts(mounts: Vec<(&str, Arc<dyn Origin>)>, takes_changes: bool) -> Arc<Worker> {
    let options = WorkerOptions {
        block_size: BLOCK,
        fetch: FetchPolicy::origin(64 << 10, 4 << 20),
        deadline: 20 * SECOND,
        metadata: MetadataOptions { ttl: 60 * SECOND, entries: 10_000 },
        takes_changes,
    };
    let mounts = mounts.into_iter().map(|(at, origin)| (path(at), origin));
    Arc::new(Worker::new(store(64, None).await, Namespace::new(mounts).unwrap(), options))
}

async fn change(worker: &Worker, change: Change) -> Result<ChangeReply, Failure> {
    let request = Request::on_path(Op::Change, change.encode(), SECOND);
    Ok(ChangeReply::decode(&ask(worker, request).await?.body).unwrap())
}

async fn upload(
    worker: &Worker,
    name: &str,
    part: Option<(&str, u32)>,
    bytes: Vec<u8>,
) -> Result<ChangeReply, Failure> {
    let part = part.map(|(upload, number)| (upload.to_owned(), number));
    let upload = UploadRequest { path: name.into(), part, only_new: false, bytes: bytes.into() };
    Ok(ChangeReply::decode(&ask(worker, upload.request(SECOND)).await?.body).unwrap())
}

async fn list(worker: &Worker, name: &str, flags: Flags) -> Vec<(String, u64)> {
    let body = ListRequest { path: name.into(), token: None, max: 100 }.encode();
    let page = ask(worker, Request::on_path(Op::List, body, SECOND).with_flags(flags)).await.unwrap();
    let entries = ListReply::decode(&page.body).unwrap().entries;
    entries.iter().map(|entry| (String::from_utf8_lossy(&entry.name).into_owned(), entry.attr.size())).collect()
}

async fn refresh(worker: &Worker, name: &str, flags: Flags) {
    let request = Request::on_path(Op::Refresh, name.as_bytes().to_vec().into(), SECOND).with_flags(flags);
    ask(worker, request).await.unwrap();
}

fn kind<T: std::fmt::Debug>(result: Result<T, Failure>) -> FailureKind {
    result.unwrap_err().kind()
}

fn named(entries: &[(&str, u64)]) -> Vec<(String, u64)> {
    entries.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect()
}

fn copied(from: &str, to: &str) -> Change {
    Change::Copy { from: from.into(), to: to.into() }
}

#[tokio::test]
async fn every_change_is_seen_at_once_by_whoever_asks_after_it() {
    let origin = origin();
    let worker = worker(&origin).await;
    let size = async |name: &str| stat(&worker, name).await.map(|reply| reply.attr.size());
    let none = Flags::default();
    assert_eq!(kind(size("/s3/d/a").await), FailureKind::NotFound);
    assert_eq!(kind(size("/s3/d").await), FailureKind::NotFound);
    assert_eq!(list(&worker, "/s3", none).await, []);

    let made = change(&worker, Change::MakeDirectory { path: b"/s3/d".to_vec() }).await.unwrap().attr.unwrap();
    assert_eq!(made, Attr { writable: true, ..Attr::directory() });
    assert_eq!((size("/s3/d").await, list(&worker, "/s3", none).await), (Ok(0), named(&[("d", 0)])));
    assert_eq!(list(&worker, "/s3/d", none).await, []);

    let asked = origin.counts().stats;
    let put = upload(&worker, "/s3/d/a", None, pattern(100, 1)).await.unwrap().attr.unwrap();
    assert_eq!(stat(&worker, "/s3/d/a").await.unwrap().attr, put);
    assert!(put.writable && put.version() == origin.version("d/a").as_ref());
    assert_eq!(origin.counts().stats, asked, "what the change answered is what is known");
    assert_eq!(list(&worker, "/s3/d", none).await, named(&[("a", 100)]));

    change(&worker, copied("/s3/d/a", "/s3/d/b")).await.unwrap();
    assert_eq!(list(&worker, "/s3/d", none).await, named(&[("a", 100), ("b", 100)]));
    upload(&worker, "/s3/d/a", None, pattern(7, 1)).await.unwrap();
    assert_eq!((size("/s3/d/a").await, size("/s3/d/b").await), (Ok(7), Ok(100)));
    assert_eq!(list(&worker, "/s3/d", none).await, named(&[("a", 7), ("b", 100)]));
    assert_eq!(kind(change(&worker, Change::RemoveDirectory { path: b"/s3/d".to_vec() }).await), FailureKind::NotEmpty);

    for name in ["/s3/d/a", "/s3/d/b"] {
        change(&worker, Change::Remove { path: name.into() }).await.unwrap();
        assert_eq!(kind(size(name).await), FailureKind::NotFound);
    }
    assert_eq!(list(&worker, "/s3/d", none).await, []);
    change(&worker, Change::RemoveDirectory { path: b"/s3/d".to_vec() }).await.unwrap();
    assert_eq!((kind(size("/s3/d").await), list(&worker, "/s3", none).await), (FailureKind::NotFound, vec![]));

    // Directories that are there by what is made below them, and that were known not to be there.
    assert_eq!(kind(size("/s3/x/y").await), FailureKind::NotFound);
    assert_eq!(kind(size("/s3/x").await), FailureKind::NotFound);
    upload(&worker, "/s3/x/y/z", None, pattern(3, 1)).await.unwrap();
    assert_eq!((size("/s3/x/y").await, size("/s3/x").await), (Ok(0), Ok(0)));
    assert_eq!(list(&worker, "/s3", none).await, named(&[("x", 0)]));
    let counts = worker.counts();
    assert_eq!((counts.requests.upload, counts.bytes_uploaded), (3, 110));
    assert_eq!((counts.requests.change, counts.failures > 0), (6, true));
}

#[tokio::test]
async fn a_file_in_parts_appears_when_it_is_complete_and_not_before() {
    let origin = origin();
    let worker = worker(&origin).await;
    let begin = Change::Begin { path: b"/s3/big".to_vec() };
    let name = change(&worker, begin.clone()).await.unwrap().token;
    let parts = [pattern(6 << 20, 1), pattern(5 << 20, 2), pattern(1000, 3)];
    let mut tags = Vec::new();
    for (number, part) in (1..).zip(&parts) {
        tags.push(upload(&worker, "/s3/big", Some((&name, number)), part.clone()).await.unwrap().token);
    }
    assert_eq!(kind(stat(&worker, "/s3/big").await), FailureKind::NotFound);
    let complete = |size, parts| Change::Complete { path: b"/s3/big".to_vec(), upload: name.clone(), size, parts };
    let whole = parts.concat();
    let size = whole.len() as u64;
    assert_eq!(kind(change(&worker, complete(size - 1, tags.clone())).await), FailureKind::Corrupt);
    let attr = change(&worker, complete(size, tags.clone())).await.unwrap().attr.unwrap();
    assert_eq!(stat(&worker, "/s3/big").await.unwrap().attr, attr);
    let version = attr.version().unwrap();
    for index in 0..3 {
        let start = index * BLOCK as usize;
        let length = (whole.len() - start).min(BLOCK as usize);
        assert!(read(&worker, version, index as u64, 0, length as u32).await.unwrap() == whole[start..start + length]);
    }

    // Who lost the answer completes it again, after another writer, of whom this worker heard nothing.
    origin.put("big", pattern(7, 4));
    assert_eq!(change(&worker, complete(size, tags)).await.unwrap().attr.unwrap(), attr);
    assert_eq!(stat(&worker, "/s3/big").await.unwrap().attr.size(), 7);

    let other = change(&worker, begin).await.unwrap().token;
    let abort = Change::Abort { path: b"/s3/big".to_vec(), upload: other.clone() };
    change(&worker, abort.clone()).await.unwrap();
    change(&worker, abort).await.unwrap();
    let late = upload(&worker, "/s3/big", Some((&other, 1)), pattern(10, 1)).await;
    assert_eq!((kind(late), origin.uploads().len()), (FailureKind::NotFound, 0));
}

/// An origin that cannot be written.
struct Fixed(FakeOrigin);

#[async_trait::async_trait]
impl Origin for Fixed {
    fn url(&self) -> &Arc<str> {
        self.0.url()
    }

    async fn stat(&self, path: &[u8]) -> Result<Attr, Failure> {
        self.0.stat(path).await
    }

    async fn list(&self, path: &[u8], token: Option<&str>, max: usize) -> Result<ListPage, Failure> {
        self.0.list(path, token, max).await
    }

    async fn read(&self, version: &FileVersion, range: Range<u64>, into: &mut [u8]) -> Result<(), Failure> {
        self.0.read(version, range, into).await
    }

    fn counts(&self) -> OriginCounts {
        Origin::counts(&self.0)
    }
}

/// Every kind of change of a name.
async fn outcomes(worker: &Worker, name: &str) -> Vec<FailureKind> {
    let path = || name.as_bytes().to_vec();
    let complete = Change::Complete { path: path(), upload: "u".into(), size: 1, parts: vec!["t".into()] };
    let changes = [
        Change::MakeDirectory { path: path() },
        Change::RemoveDirectory { path: path() },
        Change::Remove { path: path() },
        copied("/s3/f", name),
        Change::Begin { path: path() },
        Change::Abort { path: path(), upload: "u".into() },
        Change::Parts { path: path(), upload: "u".into(), after: 0, max: 1 },
        complete,
    ];
    let mut kinds = Vec::new();
    for each in changes {
        kinds.push(kind(change(worker, each).await));
    }
    kinds.push(kind(upload(worker, name, None, vec![1]).await));
    kinds.push(kind(upload(worker, name, Some(("u", 1)), vec![1]).await));
    kinds
}

#[tokio::test]
async fn mounts_and_what_leads_to_them_cannot_be_changed_nor_what_takes_no_changes() {
    let origin = origin();
    origin.put("f", pattern(10, 1));
    let fixed = Arc::new(Fixed(FakeOrigin::new("fake://fixed")));
    fixed.0.put("f", pattern(10, 1));
    let mounts = || -> Vec<(&str, Arc<dyn Origin>)> {
        let other = FakeOrigin::new("fake://other");
        vec![("/s3", origin.clone()), ("/a/fixed", fixed.clone()), ("/s3/in/ner", Arc::new(other))]
    };
    let worker = worker_of_mounts(mounts(), true).await;
    for name in ["/", "/s3", "/a", "/a/fixed", "/s3/in", "/s3/in/ner"] {
        let kinds = outcomes(&worker, name).await;
        assert_eq!(kinds[0], FailureKind::Exists, "{name}");
        assert!(kinds[1..].iter().all(|kind| *kind == FailureKind::NotPermitted), "{name}: {kinds:?}");
    }
    for name in ["/new", "/a/new", "/a/fixed/f"] {
        assert!(outcomes(&worker, name).await.iter().all(|kind| *kind == FailureKind::ReadOnly), "{name}");
    }
    assert!(outcomes(&worker, "/no/where").await.iter().all(|kind| *kind == FailureKind::NotFound));
    for (from, expected) in [
        ("/s3", FailureKind::IsADirectory),
        ("/s3/in", FailureKind::IsADirectory),
        ("/a/fixed/f", FailureKind::CrossDevice),
        ("/s3/in/ner/f", FailureKind::CrossDevice),
        ("/no/where", FailureKind::NotFound),
        ("/s3/none", FailureKind::NotFound),
    ] {
        assert_eq!(kind(change(&worker, copied(from, "/s3/copy")).await), expected, "{from}");
    }
    for (name, writable) in
        [("/", false), ("/a", false), ("/a/fixed/f", false), ("/s3", true), ("/s3/f", true), ("/s3/in/ner", true)]
    {
        assert_eq!(stat(&worker, name).await.unwrap().attr.writable, writable, "{name}");
    }
    let without = worker_of_mounts(mounts(), false).await;
    assert!(outcomes(&without, "/s3/f").await.iter().all(|kind| *kind == FailureKind::ReadOnly));
    assert!(!stat(&without, "/s3/f").await.unwrap().attr.writable);
    assert_eq!(origin.counts().stats + fixed.0.counts().stats, 4, "no origin was asked about what was refused");
}

#[tokio::test]
async fn an_object_is_not_copied_to_itself_whichever_mounts_lead_to_it() {
    let (origin, below) = (Arc::new(FakeOrigin::new("fake://one")), Arc::new(FakeOrigin::new("fake://one/sub")));
    origin.put("f", pattern(10, 1));
    origin.put("sub/f", pattern(10, 2));
    let mounts: Vec<(&str, Arc<dyn Origin>)> =
        vec![("/a", origin.clone()), ("/b", origin.clone()), ("/c", below.clone())];
    let worker = worker_of_mounts(mounts, true).await;
    for (from, to) in [("/a/f", "/b/f"), ("/a/f", "/a/f"), ("/a/sub/f", "/c/f"), ("/c/f", "/b/sub/f")] {
        let refused = change(&worker, copied(from, to)).await.unwrap_err();
        assert_eq!(refused.kind(), FailureKind::InvalidArgument, "{from} to {to}: {refused}");
        assert!(refused.message().contains("are one object"), "{refused}");
    }
    assert_eq!((origin.counts().copies, below.counts().copies), (0, 0), "no origin was asked");
    change(&worker, copied("/a/f", "/b/other")).await.unwrap();
    assert!(origin.version("other").is_some());
    assert_eq!(kind(change(&worker, copied("/a/f", "/c/f")).await), FailureKind::CrossDevice);
}

#[tokio::test]
async fn requests_to_change_that_make_no_sense_are_refused() {
    let worker = worker(&origin()).await;
    let invalid = async |request: Request| assert_eq!(kind(ask(&worker, request).await), FailureKind::InvalidArgument);
    for op in [Op::Change, Op::Upload, Op::Refresh] {
        invalid(Request::on_path(op, vec![0xff; 40].into(), SECOND)).await;
        invalid(Request::on_path(op, Bytes::new(), SECOND)).await;
    }
    for name in ["", "s3/f", "/s3//f", "/s3/../f", "/s3/f\0"] {
        assert!(outcomes(&worker, name).await.iter().all(|kind| *kind == FailureKind::InvalidArgument), "{name:?}");
    }
    for (name, number) in [("u", 0), ("u", 10_001), ("u", u32::MAX), ("", 1)] {
        assert_eq!(kind(upload(&worker, "/s3/f", Some((name, number)), vec![1]).await), FailureKind::InvalidArgument);
    }
    let too_much = upload(&worker, "/s3/f", None, vec![1; (64 << 20) + 1]).await;
    assert_eq!(kind(too_much), FailureKind::InvalidArgument);
    let complete = |upload: &str, size, parts: Vec<&str>| {
        let parts = parts.into_iter().map(str::to_owned).collect();
        change(&worker, Change::Complete { path: b"/s3/f".to_vec(), upload: upload.to_owned(), size, parts })
    };
    assert_eq!(kind(complete("u", 1, vec![]).await), FailureKind::InvalidArgument);
    assert_eq!(kind(complete("", 1, vec!["t"]).await), FailureKind::InvalidArgument);
    assert_eq!(kind(complete("u", 1, vec!["t", ""]).await), FailureKind::InvalidArgument);
    assert_eq!(kind(complete("u", u64::MAX, vec!["t"]).await), FailureKind::InvalidArgument);
    let corrupt = UploadRequest { path: b"/s3/f".to_vec(), part: None, only_new: false, bytes: vec![1; 9].into() };
    let mut corrupt = corrupt.request(SECOND);
    corrupt.tail = vec![2; 9].into();
    assert_eq!(kind(ask(&worker, corrupt).await), FailureKind::Corrupt);
    assert_eq!(worker.counts().bytes_uploaded, 0);
}

#[tokio::test]
async fn a_refresh_asks_the_origin_again_for_one_name_or_for_everything() {
    let origin = origin();
    let worker = worker(&origin).await;
    for name in ["d/a", "e/a"] {
        origin.put(name, pattern(1, 1));
    }
    let none = Flags::default();
    let sizes = async || {
        let mut sizes = Vec::new();
        for directory in ["/s3/d", "/s3/e"] {
            sizes.push(list(&worker, directory, none).await[0].1);
            sizes.push(stat(&worker, &format!("{directory}/a")).await.unwrap().attr.size());
        }
        sizes
    };
    assert_eq!(sizes().await, [1, 1, 1, 1]);
    origin.put("d/a", pattern(2, 1));
    origin.put("e/a", pattern(2, 1));
    assert_eq!(sizes().await, [1, 1, 1, 1]);
    refresh(&worker, "/s3/d/a", none).await;
    assert_eq!(sizes().await, [2, 2, 1, 1], "the name and its place in its directory, and no other");
    origin.put("d/a", pattern(3, 1));
    assert_eq!(list(&worker, "/s3/d", Flags::REVALIDATE).await[0].1, 3);
    assert_eq!(sizes().await, [3, 3, 1, 1], "a listing that was asked for again has taught its names");
    refresh(&worker, "/s3", Flags::BELOW).await;
    assert_eq!(sizes().await, [3, 3, 2, 2]);
    origin.put("e/b", pattern(9, 1));
    refresh(&worker, "/s3/e", none).await;
    assert_eq!(list(&worker, "/s3/e", none).await, named(&[("a", 2), ("b", 9)]), "of a directory, its listing");
    let lists = origin.counts().lists;
    let revalidated = Request::on_path(Op::Stat, path("/s3/d/a").as_bytes().to_vec().into(), SECOND);
    ask(&worker, revalidated.with_flags(Flags::REVALIDATE)).await.unwrap();
    sizes().await;
    assert_eq!(origin.counts().lists, lists, "what turns out to be as it was, costs no listing");
    assert_eq!(worker.counts().requests.refresh, 3);
}

/// An origin whose answers about names take as long as a test wants to arrive.
struct Late {
    origin: Arc<FakeOrigin>,
    /// How many answers are on their way.
    under_way: watch::Sender<usize>,
    arrive: watch::Sender<bool>,
}

impl Late {
    fn new() -> Arc<Self> {
        let (origin, under_way) = (origin(), watch::Sender::new(0));
        Arc::new(Self { origin, under_way, arrive: watch::Sender::new(true) })
    }

    async fn hold<T>(&self, answer: T) -> T {
        if !*self.arrive.borrow() {
            self.under_way.send_modify(|count| *count += 1);
            self.arrive.subscribe().wait_for(|arrive| *arrive).await.unwrap();
        }
        answer
    }
}

#[async_trait::async_trait]
impl Origin for Late {
    fn url(&self) -> &Arc<str> {
        self.origin.url()
    }

    async fn stat(&self, path: &[u8]) -> Result<Attr, Failure> {
        self.hold(self.origin.stat(path).await).await
    }

    async fn list(&self, path: &[u8], token: Option<&str>, max: usize) -> Result<ListPage, Failure> {
        self.hold(self.origin.list(path, token, max).await).await
    }

    async fn read(&self, version: &FileVersion, range: Range<u64>, into: &mut [u8]) -> Result<(), Failure> {
        self.origin.read(version, range, into).await
    }

    fn takes_changes(&self) -> bool {
        true
    }

    async fn put(&self, path: &[u8], bytes: Bytes) -> Result<Attr, Failure> {
        Origin::put(&*self.origin, path, bytes).await
    }

    fn counts(&self) -> OriginCounts {
        Origin::counts(&*self.origin)
    }
}

#[tokio::test]
async fn an_answer_that_was_under_way_when_a_name_changed_is_not_believed() {
    let origin = Late::new();
    origin.origin.put("d/a", pattern(1, 1));
    let worker = worker_of_mounts(vec![("/s3", origin.clone())], true).await;
    let none = Flags::default();
    origin.arrive.send_replace(false);
    let asking = {
        let worker = Arc::clone(&worker);
        tokio::spawn(async move {
            let stat = stat(&worker, "/s3/d/a");
            let list = list(&worker, "/s3/d", none);
            let (attr, listed) = tokio::join!(stat, list);
            (attr.unwrap().attr.size(), listed)
        })
    };
    origin.under_way.subscribe().wait_for(|count| *count == 2).await.unwrap();
    upload(&worker, "/s3/d/a", None, pattern(2, 1)).await.unwrap();
    let joining = {
        let worker = Arc::clone(&worker);
        // Asks when the change has been made: the answer that is under way is not for this one.
        tokio::spawn(async move { list(&worker, "/s3/d", none).await })
    };
    tokio::task::yield_now().await;
    origin.arrive.send_replace(true);
    assert_eq!(asking.await.unwrap(), (2, named(&[("a", 2)])), "who asked before need not hear of what was before");
    assert_eq!(joining.await.unwrap(), named(&[("a", 2)]));
    for _ in 0..2 {
        assert_eq!(stat(&worker, "/s3/d/a").await.unwrap().attr.size(), 2);
        assert_eq!(list(&worker, "/s3/d", none).await, named(&[("a", 2)]));
    }
}

#[tokio::test]
async fn after_a_change_of_which_nobody_heard_the_end_the_origin_is_asked() {
    let origin = origin();
    origin.put("a", pattern(1, 1));
    let worker = worker(&origin).await;
    assert_eq!(stat(&worker, "/s3/a").await.unwrap().attr.size(), 1);
    let stall = origin.stall();
    let abandoned = upload(&worker, "/s3/a", None, pattern(2, 1));
    tokio::select! {
        _ = abandoned => panic!("it is held back"),
        () = origin.wait_for_stalled(1) => {}
    }
    // It came through all the same, as it may.
    drop(stall);
    origin.put("a", pattern(2, 1));
    assert_eq!(stat(&worker, "/s3/a").await.unwrap().attr.size(), 2);
    origin.fail_next_changes(1, &Failure::new(FailureKind::TimedOut, "no answer"));
    assert_eq!(kind(upload(&worker, "/s3/a", None, pattern(3, 1)).await), FailureKind::TimedOut);
    origin.put("a", pattern(3, 1));
    assert_eq!(stat(&worker, "/s3/a").await.unwrap().attr.size(), 3);
}

#[tokio::test]
async fn two_changes_of_one_name_at_once_leave_what_the_origin_has() {
    let origin = origin();
    let worker = worker(&origin).await;
    for turn in 0..20 {
        let sizes = 1..=8usize;
        let puts = sizes.map(|size| upload(&worker, "/s3/a", None, pattern(turn * 8 + size, 1)));
        for put in futures::future::join_all(puts).await {
            put.unwrap();
        }
        let now = stat(&worker, "/s3/a").await.unwrap().attr;
        assert_eq!(now.version(), origin.version("a").as_ref());
    }
}
