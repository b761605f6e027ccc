//! Other files of ours: what is known of files that are kept whole, and the embedded state store.

use std::fs;
use std::path::Path;

use forebay_state::{FileOptions, FileStore, Snapshot, StateError, StateStore, Transaction};
use forebay_types::{FileVersion, SECTOR_SIZE, SectorChecksums, VersionTag};

use crate::input::{Input, Output};
use crate::support::{block_on, folder};
use crate::targets::Seed;

/// How the log and the snapshot of a state store begin.
const LOG: &[u8; 16] = b"forebay state l1";
const SNAPSHOT: &[u8; 16] = b"forebay state s1";

pub(super) mod local_record {
    use super::*;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let flags = input.u8();
        let mut record = input.rest().to_vec();
        if flags & 1 != 0 {
            forebay_materialise::fuzzing::seal(&mut record);
        }
        forebay_materialise::fuzzing::record(&record);
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let size = u64::from(SECTOR_SIZE) + 1;
        let tag = VersionTag::Etag("\"1\"".into());
        let version = FileVersion { origin: "s3://b".into(), path: b"a".as_slice().into(), size, tag }.encode();
        let checksums = SectorChecksums::of(&vec![1; size as usize]);
        let record = Output::default().u8(1).bytes(b"fbylocal").u32(1).u32(version.len() as u32);
        vec![("two_sectors", record.bytes(version).bytes(checksums.as_bytes()).u32(0).done())]
    }
}

/// The log of a store after a few commits.
fn log() -> Vec<u8> {
    let dir = folder();
    block_on(async {
        let store = FileStore::open(dir.path(), FileOptions::default()).await.expect("a new store is made");
        for (key, value) in [("a", "1"), ("b/c", "22"), ("a", "333")] {
            store.commit(Transaction::new().put(key, value)).await.expect("it is committed");
        }
        store.commit(Transaction::new().delete("b/c")).await.expect("it is committed");
    });
    fs::read(dir.path().join("log")).expect("there is a log")
}

pub(super) mod state_log {
    use super::*;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let flags = input.u8();
        let mut log = input.rest().to_vec();
        if flags & 1 != 0 {
            forebay_state::fuzzing::seal(&mut log, 0);
        }
        forebay_state::fuzzing::log(&log);
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        vec![("commits", Output::default().u8(1).bytes(&log()[LOG.len()..]).done())]
    }
}

pub(super) mod state_store {
    use super::*;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let flags = input.u8();
        let file = |magic: &[u8], content: &[u8], puts_right: bool| {
            let mut file = if puts_right { [magic, content].concat() } else { content.to_vec() };
            if puts_right {
                forebay_state::fuzzing::seal(&mut file, magic.len());
            }
            file
        };
        let snapshot = file(SNAPSHOT, input.piece(), flags & 1 != 0);
        let log = file(LOG, input.rest(), flags & 2 != 0);
        let dir = folder();
        let write = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).expect("it takes a file");
        if flags & 4 != 0 {
            write("snapshot", &snapshot);
        }
        if flags & 8 == 0 {
            write("log", &log);
        }
        let Some(first) = block_on(contents(dir.path(), None)) else {
            assert!(block_on(contents(dir.path(), None)).is_none(), "what is damaged stays so");
            return;
        };
        let second = block_on(contents(dir.path(), Some("new/key"))).expect("it opens again");
        assert_eq!(first.entries, second.entries, "what is found once is found again");
        let third = block_on(contents(dir.path(), None)).expect("it opens again");
        assert_eq!(third.entries.iter().filter(|entry| entry.key == "new/key").count(), 1, "a commit is kept");
    }

    /// What a store holds that opens the folder; `None` when it finds damage. Writes a key then.
    async fn contents(dir: &Path, then_put: Option<&str>) -> Option<Snapshot> {
        let store = match FileStore::open(dir, FileOptions::default()).await {
            Ok(store) => store,
            Err(StateError::Corrupted { .. }) => return None,
            Err(error) => unreachable!("damage is told as such: {error}"),
        };
        let held = store.list("").await.expect("it is read");
        if let Some(key) = then_put {
            let put = store.commit(Transaction::new().put(key, "x")).await.expect("it is committed");
            assert!(put.revision().is_some_and(|revision| revision > held.revision));
        }
        Some(held)
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let log = &log()[LOG.len()..];
        let seed =
            |flags: u8, snapshot: &[u8], log: &[u8]| Output::default().u8(flags).piece(snapshot).bytes(log).done();
        vec![
            ("log", seed(2, b"", log)),
            ("no_log", seed(8, b"", b"")),
            ("torn", seed(2, b"", &log[..log.len() - 3])),
            ("empty_snapshot", seed(7, &end(0), log)),
            ("snapshot_behind_its_log", seed(7, &end(2), log)),
            ("last_revision", seed(7, &end(u64::MAX), log)),
        ]
    }

    /// The last frame of a snapshot: a change of nothing, with the revision that it is of. Its checksums are put right later.
    fn end(revision: u64) -> Vec<u8> {
        Output::default().bytes(b"FBrc").u32(16).u64(0).u64(revision).u32(0).u32(0).done()
    }
}
