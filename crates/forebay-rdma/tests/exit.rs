//! A process ends as it should, whatever lanes still do.

mod common;

use std::process::{Command, Stdio};
use std::time::Duration;

use common::{LONG, assert_serves, library, link, serve};
use forebay_transport::Transport as _;
use forebay_transport::conformance::{Behaviour, Scripted, read};

/// Ends in the middle of what its lanes do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a process of other tests"]
async fn a_process_that_ends_at_once() {
    let Some(library) = library() else { return };
    let server = serve(library, 0, Scripted::new()).await;
    for _ in 0..4 {
        let (_lane, transport) = link(library, server.local_addr());
        assert_serves(&transport).await;
        tokio::spawn(async move {
            loop {
                // In vain once the lane ends.
                let request = read(Behaviour::AtOnce, 1, 5, 10_000, LONG);
                let into = forebay_transport::conformance::pool(1).try_alloc(10_000);
                if transport.call(request, into).await.is_err() {
                    return;
                }
            }
        });
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    std::process::exit(7);
}

#[test]
fn a_process_that_ends_while_lanes_end_does_not_crash() {
    if library().is_none() {
        return;
    }
    for _ in 0..5 {
        let mut process = Command::new(std::env::current_exe().unwrap());
        process.args(["--exact", "a_process_that_ends_at_once", "--ignored"]).stdout(Stdio::null());
        let status = process.status().unwrap();
        assert_eq!(status.code(), Some(7), "{status}");
    }
}
