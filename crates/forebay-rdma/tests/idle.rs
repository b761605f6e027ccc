//! What lanes take of the processor between calls, although they wait awake after each.

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::*;
use forebay_transport::Transport as _;
use forebay_transport::conformance::Scripted;

/// What the lanes of this process have taken of the processor so far.
fn taken_by_lanes() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let lanes = tasks
        .filter(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with("rdma-")));
    lanes.filter_map(|lane| taken(&lane.path())).sum()
}

/// What a thread has taken of the processor: the first number of its `schedstat`, in nanoseconds.
fn taken(thread: &Path) -> Option<Duration> {
    let schedstat = std::fs::read_to_string(thread.join("schedstat")).ok()?;
    Some(Duration::from_nanos(schedstat.split(' ').next()?.parse().ok()?))
}

/// What a thread takes of the processor that asks for so long whether it is over.
fn spin(time: Duration) -> Duration {
    let own = || taken(Path::new("/proc/thread-self")).unwrap();
    let (began, before) = (Instant::now(), own());
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
    own() - before
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_without_calls_sleep() {
    let Some(library) = library() else { return };
    let server = serve(library, 0, Scripted::new()).await;
    let (lane, link) = link(library, server.local_addr());
    assert_serves(&link).await;
    let before = taken_by_lanes();
    assert!(before > Duration::ZERO);
    // A thread that does not sleep gets less on a busy machine, and so would lanes that do not.
    let awake = tokio::task::spawn_blocking(|| spin(Duration::from_secs(1))).await.unwrap();
    let idle = taken_by_lanes() - before;
    println!("two idle lanes took {idle:?} of the processor while a thread that was awake took {awake:?}");
    assert!(idle < awake / 10, "{idle:?}");
    link.close().await;
    lane.close().await;
    server.close().await;
}
