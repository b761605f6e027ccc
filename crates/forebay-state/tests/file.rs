//! The embedded store: the conformance suite, crashes, damage, and which process may open it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use forebay_state::conformance::{self, Fixture, Users, by_key, commit};
use forebay_state::{FileOptions, FileStore, LeaseId, StateError, StateStore, Transaction};
use tempfile::TempDir;

async fn open(directory: &Path) -> FileStore {
    FileStore::open(directory, FileOptions::default()).await.unwrap()
}

/// Stores in a directory each; without one, in memory.
struct Stores(Option<TempDir>, std::sync::atomic::AtomicU32);

#[async_trait::async_trait]
impl Fixture for Stores {
    async fn users(&self) -> Users {
        let number = self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let one: Arc<dyn StateStore> = Arc::new(match &self.0 {
            Some(directory) => open(&directory.path().join(number.to_string())).await,
            None => FileStore::in_memory(&FileOptions::default()).unwrap(),
        });
        Users { two: Arc::clone(&one), one }
    }

    fn shortest_ttl(&self) -> Duration {
        Duration::from_millis(100)
    }

    async fn expire(&self, _: LeaseId) -> bool {
        false
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_file_store_keeps_the_contract() {
    conformance::check(Arc::new(Stores(Some(TempDir::new().unwrap()), 0.into()))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_in_memory_keeps_the_contract() {
    conformance::check(Arc::new(Stores(None, 0.into()))).await;
}

#[tokio::test]
async fn everything_but_leased_keys_is_there_after_a_restart() {
    let directory = TempDir::new().unwrap();
    let store = open(directory.path()).await;
    let lease = store.lease(Duration::from_secs(1)).await.unwrap();
    let kept = commit(&store, Transaction::new().put("a", "1").put("b", "2")).await;
    commit(&store, Transaction::new().put_leased("leased", "x", lease.id()).delete("b")).await;
    let before = store.list("").await.unwrap().revision;
    // As if the process ended: the lease is not revoked.
    drop(store);
    for _ in 0..2 {
        let store = open(directory.path()).await;
        let listed = store.list("").await.unwrap();
        assert_eq!(listed.entries.len(), 1);
        assert_eq!(listed.entries[0].revision, kept);
        assert!(listed.revision > before, "that the leased key went is a change like any other");
        store.close().await;
    }
    drop(lease);
}

#[tokio::test]
async fn a_second_opener_is_told_who_holds_the_directory() {
    let directory = TempDir::new().unwrap();
    let store = open(directory.path()).await;
    let error = FileStore::open(directory.path(), FileOptions::default()).await.unwrap_err();
    assert!(matches!(&error, StateError::InUse { .. }), "{error}");
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    store.close().await;
    drop(store);
    open(directory.path()).await.close().await;
}

#[tokio::test]
async fn the_log_is_replaced_by_a_snapshot_and_nothing_is_lost() {
    let directory = TempDir::new().unwrap();
    let store = open(directory.path()).await;
    for turn in 0..40u8 {
        commit(
            &store,
            Transaction::new().put(format!("large/{}", turn % 3), vec![turn; 300_000]).put("small", [turn].to_vec()),
        )
        .await;
    }
    let expected = store.list("").await.unwrap();
    store.close().await;
    drop(store);
    let snapshot = directory.path().join("snapshot");
    let log = std::fs::metadata(directory.path().join("log")).unwrap().len();
    assert!(snapshot.exists() && log < 8 << 20, "a log of {log} bytes");
    assert_eq!(open(directory.path()).await.list("").await.unwrap(), expected);

    // A crash between the renaming of a snapshot and the emptying of the log leaves records that the snapshot has.
    let store = open(directory.path()).await;
    commit(&store, Transaction::new().put("more", "x")).await;
    let expected = store.list("").await.unwrap();
    drop(store);
    let log = std::fs::read(directory.path().join("log")).unwrap();
    let store = open(directory.path()).await;
    for turn in 0..20u8 {
        commit(&store, Transaction::new().put("large/0", vec![turn; 600_000])).await;
    }
    drop(store);
    let newer = open(directory.path()).await.list("").await.unwrap();
    assert!(newer.revision > expected.revision);
    std::fs::write(directory.path().join("log"), log).unwrap();
    let store = open(directory.path()).await;
    let known = store.list("").await.unwrap();
    assert!(known.revision > expected.revision, "older records than the snapshot are passed over");
    drop(store);

    // A lost snapshot or log is not an empty one.
    let moved = directory.path().join("moved");
    for file in ["snapshot", "log"] {
        std::fs::rename(directory.path().join(file), &moved).unwrap();
        let error = FileStore::open(directory.path(), FileOptions::default()).await.unwrap_err();
        assert!(matches!(error, StateError::Corrupted { .. }), "without its {file}: {error}");
        std::fs::rename(&moved, directory.path().join(file)).unwrap();
    }
}

#[tokio::test]
async fn a_log_cut_anywhere_holds_every_commit_before_the_cut() {
    let directory = TempDir::new().unwrap();
    let log = directory.path().join("log");
    let store = open(directory.path()).await;
    let mut states = Vec::new();
    for turn in 0..6 {
        commit(
            &store,
            Transaction::new().put(format!("k/{turn}"), vec![b'v'; 20 + turn]).delete(format!("k/{}", (turn + 1) % 3)),
        )
        .await;
        states.push((std::fs::metadata(&log).unwrap().len(), store.list("").await.unwrap()));
    }
    drop(store);
    let whole = std::fs::read(&log).unwrap();
    let first = states[2].0;
    for cut in first..=whole.len() as u64 {
        std::fs::write(&log, &whole[..cut as usize]).unwrap();
        let store = open(directory.path()).await;
        let expected = &states.iter().rev().find(|(length, _)| *length <= cut).unwrap().1;
        assert_eq!(store.list("").await.unwrap(), *expected, "cut at {cut}");
        // It goes on from there, and the unfinished rest does not come back.
        commit(&store, Transaction::new().put("after", "x")).await;
        drop(store);
        assert!(open(directory.path()).await.get("after").await.unwrap().is_some(), "cut at {cut}");
    }
}

#[tokio::test]
async fn a_flipped_bit_anywhere_is_an_error_that_names_the_file() {
    let directory = TempDir::new().unwrap();
    let store = open(directory.path()).await;
    for turn in 0..3 {
        commit(&store, Transaction::new().put(format!("k/{turn}"), "value")).await;
    }
    drop(store);
    let log = directory.path().join("log");
    let whole = std::fs::read(&log).unwrap();
    for byte in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[byte] ^= 1 << (byte % 8);
        std::fs::write(&log, &flipped).unwrap();
        let error = FileStore::open(directory.path(), FileOptions::default()).await.unwrap_err();
        assert!(matches!(&error, StateError::Corrupted { file, .. } if *file == log), "byte {byte}: {error}");
        assert_eq!(std::fs::read(&log).unwrap(), flipped, "a damaged file is left as it is");
    }
}

const CRASH_DIRECTORY: &str = "FOREBAY_TEST_STATE_CRASH_DIRECTORY";

/// Not a test of its own: what the killed process does. It says what was acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a process of other tests"]
async fn commits_until_it_is_killed() {
    let directory = std::env::var_os(CRASH_DIRECTORY).expect("another test starts this");
    let store = Arc::new(open(Path::new(&directory)).await);
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                for turn in 0u64.. {
                    let value = vec![b'v'; (turn * 379 % 9000) as usize];
                    let put = Transaction::new().put(format!("turn/{writer}"), turn.to_string()).put("large", value);
                    commit(&*store, put.put(format!("done/{writer}/{}", turn % 50), turn.to_string())).await;
                    println!("\nacknowledged {writer} {turn}");
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_is_there_after_a_kill_at_any_time() {
    for round in 0..6 {
        let directory = TempDir::new().unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "commits_until_it_is_killed", "--ignored", "--nocapture"])
            .env(CRASH_DIRECTORY, directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut child = Killed(child);
        let output = BufReader::new(child.0.stdout.take().unwrap());
        let acknowledgements = output.lines().map_while(Result::ok).filter_map(|line| {
            let mut words = line.strip_prefix("acknowledged ")?.split(' ');
            Some((words.next()?.parse::<usize>().ok()?, words.next()?.parse::<u64>().ok()?))
        });
        let mut last = [None; 4];
        for (number, (writer, turn)) in acknowledgements.enumerate() {
            last[writer] = Some(turn);
            // The pipe still holds what was said before the kill: it is read to its end.
            if number == 40 + 37 * round {
                child.0.kill().unwrap();
            }
        }
        drop(child);
        let store = open(directory.path()).await;
        let entries = by_key(&store.list("").await.unwrap());
        for (writer, last) in last.into_iter().enumerate() {
            let last = last.expect("each writer was heard of");
            let found: u64 = String::from_utf8(entries[&format!("turn/{writer}")].0.to_vec()).unwrap().parse().unwrap();
            assert!(found == last || found == last + 1, "writer {writer} was told {last}, and {found} is there");
            assert_eq!(entries[&format!("done/{writer}/{}", found % 50)].0, found.to_string());
        }
        assert!(entries.contains_key("large"));
    }
}
