//! What I/O threads take of the processor between calls, although they busy-poll after each.

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::*;
use forebay_transport::Transport as _;
use forebay_transport::conformance::Scripted;

/// What the I/O threads of this process have taken of the processor so far.
fn taken_by_io_threads() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let io_threads = tasks
        .filter(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with("rdma-")));
    io_threads.filter_map(|io_thread| taken(&io_thread.path())).sum()
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
    let (io_thread, link) = link(library, server.local_addr());
    assert_serves(&link).await;
    let before = taken_by_io_threads();
    assert!(before > Duration::ZERO);
    // A thread that does not sleep gets less on a busy machine, and so would I/O threads that do not.
    let awake = tokio::task::spawn_blocking(|| spin(Duration::from_secs(1))).await.unwrap();
    let idle = taken_by_io_threads() - before;
    println!("two idle I/O threads took {idle:?} of the processor while a thread that was awake took {awake:?}");
    assert!(idle < awake / 10, "{idle:?}");
    link.close().await;
    io_thread.close().await;
    server.close().await;
}
