//! What lanes take of the processor between calls, although they wait awake after each.

mod common;

use std::time::Duration;

use common::*;
use forebay_transport::Transport as _;
use forebay_transport::conformance::Scripted;

/// What the lanes of this process have taken of the processor so far.
fn taken_by_lanes() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let lanes = tasks
        .filter(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with("rdma-")));
    // The first of its numbers, in nanoseconds.
    let taken = |schedstat: String| schedstat.split(' ').next()?.parse::<u64>().ok();
    let taken = lanes.filter_map(|lane| taken(std::fs::read_to_string(lane.path().join("schedstat")).ok()?));
    Duration::from_nanos(taken.sum::<u64>())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_without_calls_sleep() {
    let Some(library) = library() else { return };
    let server = serve(library, 0, Scripted::new()).await;
    let (lane, link) = link(library, server.local_addr());
    assert_serves(&link).await;
    let before = taken_by_lanes();
    assert!(before > Duration::ZERO);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let idle = taken_by_lanes() - before;
    println!("two idle lanes took {idle:?} in a second");
    assert!(idle < Duration::from_millis(20), "{idle:?}");
    link.close().await;
    lane.close().await;
    server.close().await;
}
