//! What a worker is told while it runs, by its owner and by requests, and what it tells of itself.

mod common;

use std::collections::HashMap;
use std::sync::Arc;

use common::*;
use forebay_origin::FakeOrigin;
use forebay_transport::message::{FreeReply, FreeRequest, ListReply, ListRequest};
use forebay_transport::{Caller, Op, Request};
use forebay_types::{ByteSize, CachePolicy, FailureKind, FileVersion, PolicyTable, Role};

fn policy(change: impl FnOnce(&mut CachePolicy)) -> CachePolicy {
    let mut policy = CachePolicy::default();
    change(&mut policy);
    policy
}

#[tokio::test]
async fn what_is_freed_is_gone_and_counted() {
    let origin = origin();
    let versions = [origin.put("a", pattern(5 << 20, 1)), origin.put("b", pattern(1 << 20, 2))];
    let worker = worker(&origin).await;
    for version in &versions {
        read(&worker, version, 0, 0, 1 << 20).await.unwrap();
    }
    read(&worker, &versions[0], 1, 0, 1 << 20).await.unwrap();
    let files = versions.iter().map(|version| (version.id(), 2)).collect();
    let request = Request::on_path(Op::Free, FreeRequest { files, below: None }.encode(), SECOND);
    let reply = FreeReply::decode(&ask(&worker, request.clone()).await.unwrap().body).unwrap();
    assert_eq!(reply, FreeReply { blocks: 3, bytes: 3 << 20 });
    assert_eq!((worker.counts().blocks_freed, worker.counts().bytes_freed), (3, 3 << 20));
    assert_eq!(worker.store().stats().blocks, 0);
    let reply = FreeReply::decode(&ask(&worker, request).await.unwrap().body).unwrap();
    assert_eq!(reply, FreeReply::default());
    let garbage = Request::on_path(Op::Free, vec![0xff; 9].into(), SECOND);
    assert_eq!(ask(&worker, garbage).await.unwrap_err().kind(), FailureKind::InvalidArgument);
}

#[tokio::test]
async fn what_is_cached_below_a_path_is_freed_also_of_files_that_are_gone() {
    let origin = origin();
    let worker = worker(&origin).await;
    for (name, seed) in [("dir/a", 1), ("dir/b", 2), ("directory", 3)] {
        let version = origin.put(name, pattern(1 << 20, seed));
        read(&worker, &version, 0, 0, 1 << 20).await.unwrap();
    }
    origin.delete("dir/a");
    let free = |at: &str| {
        let request = FreeRequest { files: Vec::new(), below: Some(at.as_bytes().to_vec()) };
        Request::on_path(Op::Free, request.encode(), SECOND)
    };
    let freed = async |at: &str| FreeReply::decode(&ask(&worker, free(at)).await.unwrap().body).unwrap();
    assert_eq!(freed("/s3/dir").await, FreeReply { blocks: 2, bytes: 2 << 20 });
    assert_eq!(freed("/s3/dir").await, FreeReply::default());
    assert_eq!(freed("/").await, FreeReply { blocks: 1, bytes: 1 << 20 });
    assert_eq!(ask(&worker, free("no path")).await.unwrap_err().kind(), FailureKind::InvalidArgument);
}

#[tokio::test]
async fn mounts_come_and_go_while_the_worker_runs() {
    let (first, second) = (origin(), Arc::new(FakeOrigin::new("fake://other")));
    let version = first.put("f", pattern(9 << 20, 9));
    second.put("f", pattern(77, 1));
    let worker = worker(&first).await;
    assert_eq!(stat(&worker, "/s3/f").await.unwrap().attr.size(), 9 << 20);
    assert_eq!(stat(&worker, "/two/f").await.unwrap_err().kind(), FailureKind::NotFound);
    worker.set_namespace(namespace(&[("/s3", &first), ("/two", &second)])).await;
    assert_eq!(stat(&worker, "/two/f").await.unwrap().attr.size(), 77);
    let list = Request::on_path(Op::List, ListRequest { path: b"/".to_vec(), token: None, max: 10 }.encode(), SECOND);
    let page = ListReply::decode(&ask(&worker, list).await.unwrap().body).unwrap();
    assert_eq!(page.entries.len(), 2);
    // A read that is under way when its mount goes ends well.
    let stall = first.stall();
    let (reading, gone) = tokio::join!(async { read(&worker, &version, 0, 0, 1000).await }, async {
        while first.counts().gets == 0 {
            tokio::task::yield_now().await;
        }
        worker.set_namespace(namespace(&[("/s3", &second)])).await;
        drop(stall);
        stat(&worker, "/two/f").await.unwrap_err().kind()
    });
    assert_eq!((reading.unwrap().len(), gone), (1000, FailureKind::NotFound));
    assert_eq!(stat(&worker, "/s3/f").await.unwrap().attr.size(), 77, "another origin is behind the path");
    for index in [0, 1] {
        let refused = read(&worker, &version, index, 0, 9).await.unwrap_err();
        assert_eq!(
            refused.kind(),
            FailureKind::Unavailable,
            "what is cached of a mount that was removed is not served"
        );
    }
    // The same URL with other options is another origin, which is the one that is asked.
    let replaced = origin();
    assert_eq!(replaced.put("f", pattern(9 << 20, 9)), version);
    worker.set_namespace(namespace(&[("/s3", &replaced)])).await;
    read(&worker, &version, 1, 0, 9).await.unwrap();
    assert_eq!(read(&worker, &version, 0, 0, 1000).await.unwrap().len(), 1000, "what is cached is served again");
    assert_eq!(replaced.counts().gets, 1);
}

#[tokio::test]
async fn policies_decide_what_is_kept_and_how() {
    let origin = origin();
    let versions: HashMap<&str, FileVersion> =
        ["pin/f", "skip/f", "quota/f", "quota/g"].map(|name| (name, origin.put(name, pattern(3 << 20, 2)))).into();
    let worker = worker(&origin).await;
    let table = |pin| {
        PolicyTable::new([
            (path("/s3/pin"), policy(|policy| policy.pin = Some(pin))),
            (path("/s3/skip"), policy(|policy| policy.skip_cache = Some(true))),
            (path("/s3/quota"), policy(|policy| policy.quota = Some(ByteSize::mib(4)))),
            (path("/s3"), policy(|policy| policy.replicas = Some(2))),
        ])
    };
    worker.set_policies(table(true)).await;
    for _ in 0..2 {
        for name in ["pin/f", "skip/f", "quota/f", "quota/g"] {
            assert!(read(&worker, &versions[name], 0, 0, 3 << 20).await.unwrap() == pattern(3 << 20, 2), "{name}");
        }
    }
    let reads = |name: &str| origin.reads().iter().filter(|(path, _)| path == name.as_bytes()).count();
    assert_eq!((reads("pin/f"), reads("skip/f")), (1, 2), "what is skipped is never kept");
    assert_eq!(worker.store().stats().memory.pinned_bytes, 3 << 20);
    let shown = stats(&worker).await;
    assert_eq!(shown["store"]["memory"]["pinned_bytes"], 3 << 20);
    let account = &shown["accounts"][0];
    assert_eq!((&account["path"], &account["quota"]), (&"/s3/quota".into(), &(4 << 20).into()));
    assert_eq!(account["memory"], 3 << 20, "one of the two at a time");
    assert_eq!(stat(&worker, "/s3/pin/f").await.unwrap().attr.replicas, 2);
    // What is cached already follows the policies, too.
    worker.set_policies(table(false)).await;
    assert_eq!(worker.store().stats().memory.pinned_bytes, 0);
    worker.set_policies(table(true)).await;
    assert_eq!(worker.store().stats().memory.pinned_bytes, 3 << 20);
    worker.set_policies(PolicyTable::default()).await;
    read(&worker, &versions["skip/f"], 0, 0, 10).await.unwrap();
    read(&worker, &versions["skip/f"], 0, 0, 10).await.unwrap();
    assert_eq!(reads("skip/f"), 3);
    assert_eq!(stats(&worker).await["accounts"], serde_json::json!([]));
}

#[tokio::test]
async fn what_a_restart_found_is_kept_by_the_policies_once_it_is_described() {
    let dir = tempfile::tempdir().unwrap();
    let origin = origin();
    let version = origin.put("pin/f", pattern(1 << 20, 2));
    let first = worker_of(store(64, Some(dir.path())).await, &origin);
    read(&first, &version, 0, 0, 1 << 20).await.unwrap();
    first.store().flush().await;
    first.close().await;
    let kept = first.store().clone();
    drop(first);
    kept.close().await;
    let worker = worker_of(store(64, Some(dir.path())).await, &origin);
    worker.set_policies(PolicyTable::new([(path("/s3/pin"), policy(|policy| policy.pin = Some(true)))])).await;
    assert_eq!(worker.store().stats().disks[0].pinned_bytes, 0);
    read(&worker, &version, 0, 0, 10).await.unwrap();
    assert_eq!(worker.store().stats().disks[0].pinned_bytes, 1 << 20);
}

#[tokio::test]
async fn the_hottest_files_and_blocks_are_known_by_name() {
    let origin = origin();
    let versions = [origin.put("hot", pattern(9 << 20, 3)), origin.put("cold", pattern(1 << 20, 3))];
    let worker = worker(&origin).await;
    worker.watch_hot_blocks(true);
    for index in 0..2 {
        read(&worker, &versions[0], index, 0, 4096).await.unwrap();
    }
    read(&worker, &versions[1], 0, 0, 4096).await.unwrap();
    for turn in 0..20_000u64 {
        read(&worker, &versions[0], u64::from(turn % 4 == 0), 0, 4096).await.unwrap();
        if turn % 10 == 0 {
            read(&worker, &versions[1], 0, 0, 4096).await.unwrap();
        }
    }
    let files = worker.hot_files(20);
    let names: Vec<_> = files.iter().map(|hot| hot.path.clone().unwrap()).collect();
    assert_eq!(names, [path("/s3/hot"), path("/s3/cold")]);
    assert!(files[0].bytes_per_minute > 5.0 * files[1].bytes_per_minute, "{files:?}");
    let blocks = worker.hot_blocks(2);
    assert_eq!(blocks.iter().map(|hot| hot.key).collect::<Vec<_>>(), [block(&versions[0], 0), block(&versions[0], 1)]);
    assert!(blocks[0].reads_per_minute > 2.0 * blocks[1].reads_per_minute, "{blocks:?}");
    let shown = stats(&worker).await;
    assert_eq!(shown["hottest"][0]["path"], "/s3/hot");
    // Counters name no file to who may see counters alone.
    for (role, seen) in [(Role::Metrics, 0), (Role::Coordinator, 2), (Role::Worker, 2), (Role::Admin, 2)] {
        let caller = Caller::proved(role, "one", &format!("spiffe://d/forebay/c/{role}/one"));
        let request = Request { caller, ..Request::on_path(Op::Stats, bytes::Bytes::new(), SECOND) };
        let body = ask(&worker, request).await.unwrap().body;
        let told: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(told["hottest"].as_array().unwrap().len(), seen, "{role}");
        assert!(told["worker"].is_object(), "{role}");
    }
    worker.watch_hot_blocks(false);
    assert!(worker.hot_blocks(2).is_empty());
}
