//! A process that is killed while it writes, at any point, leaves a slab from which only right bytes are served.

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::*;
use forebay_store::Store;

const DIR: &str = "FOREBAY_TEST_CRASH_DIR";
const DISK_MIB: u64 = 64;

/// Not a test of its own: what the killed process does. It fills a slab over and over with runs of all sizes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a process of other tests"]
async fn writes_until_it_is_killed() {
    let dir = std::env::var_os(DIR).expect("another test starts this");
    let store = Store::open(on_disk(32, Path::new(&dir), DISK_MIB)).await.unwrap();
    println!("\nopen");
    for turn in 0.. {
        let (start, end) = run_of(turn);
        fill(&store, key((turn / 64 % 200) as u8, turn % 64), sectors(start, end), BLOCK).await;
        if turn == 100 {
            println!("\nwriting");
        }
    }
}

fn run_of(turn: u64) -> (u32, u32) {
    let length = 1 << (turn * 7 % 8);
    let start = (turn * 13 % 100) as u32;
    (start, (start + length).min(128))
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_kill_in_the_middle_every_byte_served_is_right() {
    let dir = tempfile::tempdir().unwrap();
    let mut hits = 0;
    for round in 0..6u64 {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "writes_until_it_is_killed", "--ignored", "--nocapture"])
            .env(DIR, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut child = Killed(child);
        let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("writing")), "the child died by itself");
        // A different point of its work each time.
        tokio::time::sleep(std::time::Duration::from_millis(37 * round)).await;
        drop(child);

        let store = Store::open(on_disk(32, dir.path(), DISK_MIB)).await.unwrap();
        assert!(store.stats().disks[0].runs > 0);
        for file in 0..200 {
            for index in 0..64 {
                let key = key(file, index);
                for range in store.coverage(&key).disk {
                    let read = check(&store, &key, range.byte_offset(), range.byte_len(BLOCK)).await;
                    hits += usize::from(read.is_some());
                }
            }
        }
        store.close().await;
    }
    assert!(hits > 20, "{hits}");
}
