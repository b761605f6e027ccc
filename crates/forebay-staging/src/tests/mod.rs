//! Drafts against a fake origin.

mod crash;
mod disk;
mod failing;
mod handing;
mod model;
mod room;
mod speed;
mod streaming;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_types::{ByteSize, FsPath};
use tempfile::TempDir;
use tokio::runtime::Handle;

use crate::fake::{FakeRemote, LIMIT};
use crate::schedule::Schedule;
use crate::{Draft, Staging, StagingOptions};

/// The parts of most tests: small ones first.
const STEPS: [(u32, u64); 2] = [(4, 100), (1000, 400)];

/// A staging directory and an origin.
struct Rig {
    dir: TempDir,
    remote: FakeRemote,
}

impl Rig {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), remote: FakeRemote::new() }
    }

    fn dir(&self) -> PathBuf {
        self.dir.path().join("staging")
    }

    fn options(&self) -> StagingOptions {
        StagingOptions {
            dir: self.dir(),
            size: ByteSize::mib(64),
            part_size: ByteSize::bytes(100),
            memory: ByteSize::mib(1),
            timeout: LIMIT,
            // Parts go early only when a test asks for it.
            quiet: Duration::from_secs(3600),
            owner: "/mnt/test".to_owned(),
        }
    }

    fn open(&self, options: StagingOptions) -> Staging {
        self.open_with(options, &STEPS)
    }

    fn open_with(&self, options: StagingOptions, steps: &[(u32, u64)]) -> Staging {
        let schedule = Schedule::of_steps(steps).unwrap();
        Staging::open_scheduled(options, schedule, Arc::new(self.remote.clone()), Handle::current()).unwrap()
    }

    /// A staging that sends parts as soon as they are whole.
    fn eager(&self) -> Staging {
        self.open(StagingOptions { quiet: Duration::ZERO, ..self.options() })
    }

    fn lazy(&self) -> Staging {
        self.open(self.options())
    }

    /// The names in the staging directory.
    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir()).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn path(text: &str) -> FsPath {
    FsPath::new(text).unwrap()
}

/// Bytes that tell where they are.
fn pattern(length: usize, seed: u8) -> Bytes {
    (0..length).map(|at| (at / 7) as u8 ^ (at as u8).wrapping_mul(31) ^ seed).collect()
}

fn write(draft: &Draft, offset: u64, bytes: &[u8]) {
    draft.try_write(offset, bytes).expect("room").unwrap();
}

async fn read_all(draft: &Draft) -> Bytes {
    draft.read(0, u32::MAX).await.unwrap()
}

/// Waits until something holds.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < deadline, "it does not come: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
