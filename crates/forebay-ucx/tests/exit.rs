//! A process ends as it should, whatever its threads still do with UCX.

mod common;

use std::process::{Command, Stdio};
use std::time::Duration;

use common::{context, library};
use forebay_ucx::Worker;

/// The status with which the other process ends.
const STATUS: i32 = 7;

/// Ends while workers come and go.
#[test]
#[ignore = "a process of other tests"]
fn a_process_that_ends_at_once() {
    let Some(library) = library() else { return };
    for _ in 0..2 {
        let context = context(library, &["tcp"]);
        std::thread::spawn(move || {
            loop {
                drop(Worker::new(&context).unwrap());
            }
        });
    }
    std::thread::sleep(Duration::from_millis(50));
    std::process::exit(STATUS);
}

#[test]
fn a_process_that_ends_while_workers_come_and_go_does_not_crash() {
    if library().is_none() {
        return;
    }
    for _ in 0..20 {
        let mut process = Command::new(std::env::current_exe().unwrap());
        process.args(["--exact", "a_process_that_ends_at_once", "--ignored"]).stdout(Stdio::null());
        let status = process.status().unwrap();
        assert_eq!(status.code(), Some(STATUS), "{status}");
    }
}
