//! The promises of `docs/SEMANTICS.md`, each quoted by the test that holds it: `/// > …` above a test is a sentence of that
//! document, word for word, and `documents.rs` checks that all of them are quoted.

mod directories;
mod failures;
mod limits;
mod materialised;
mod reading;
mod renaming;
mod visibility;
mod writing;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_e2e::{Bucket, Mount, Setup, Worker};
use tempfile::TempDir;

/// How long a mount of [`Two`] believes what it was told.
const TTL: Duration = Duration::from_millis(800);
const SOON: Duration = Duration::from_secs(60);

/// A bucket, mounted by `forebay up`.
struct One {
    mount: Mount,
    bucket: Bucket,
    staging: TempDir,
}

impl One {
    fn new() -> Self {
        Self::with(|setup| setup)
    }

    fn with(change: impl FnOnce(Setup) -> Setup) -> Self {
        let (bucket, staging) = (Bucket::new(), tempfile::tempdir().unwrap());
        let mount = change(staged(Setup::of(&bucket), staging.path())).up(&bucket);
        Self { mount, bucket, staging }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mount.path(name)
    }

    /// The object of this name, if there is one.
    fn object(&self, key: &str) -> Option<Vec<u8>> {
        std::fs::read(self.bucket.path_of(key)).ok()
    }
}

/// A bucket behind one worker, mounted twice.
struct Two {
    a: Mount,
    b: Mount,
    worker: Worker,
    bucket: Bucket,
    _staging: [TempDir; 2],
}

impl Two {
    fn new() -> Self {
        Self::believing(TTL)
    }

    fn believing(ttl: Duration) -> Self {
        let bucket = Bucket::new();
        let ttl = format!("metadata.ttl={}ms", ttl.as_millis());
        let worker = Setup::of(&bucket).option(&ttl).worker(&bucket);
        let staging = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let mount = |staging: &TempDir| staged(Setup::of_user(), staging.path()).option(&ttl).mount([&worker]);
        let (a, b) = (mount(&staging[0]), mount(&staging[1]));
        Self { a, b, worker, bucket, _staging: staging }
    }

    fn object(&self, key: &str) -> Option<Vec<u8>> {
        std::fs::read(self.bucket.path_of(key)).ok()
    }
}

fn staged(setup: Setup, staging: &Path) -> Setup {
    setup.option(&format!("write.staging_dir={}", staging.display()))
}

/// The error number of what must have failed.
#[track_caller]
fn errno<T>(result: io::Result<T>) -> i32 {
    match result {
        Ok(_) => panic!("it succeeded"),
        Err(error) => error.raw_os_error().expect("an error of the system"),
    }
}

/// What a change gets where nothing can be changed: the mode bits show that, and the kernel asks them first if we are not root.
fn refused_below() -> i32 {
    if forebay_e2e::is_root() { libc::EROFS } else { libc::EACCES }
}

/// `close(2)`, which says whether the file arrived.
fn close(file: File) -> io::Result<()> {
    use std::os::fd::IntoRawFd as _;
    // SAFETY: the descriptor was the file's, which is gone, and nothing else has it.
    Ok(unsafe { rustix::io::try_close(file.into_raw_fd()) }?)
}

/// Some bytes that are not like others.
fn bytes(seed: u64, length: usize) -> Vec<u8> {
    use rand::{RngCore as _, SeedableRng as _};
    let mut bytes = vec![0; length];
    rand::rngs::StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// `truncate(2)`.
#[track_caller]
fn truncate(path: &Path, size: u64) {
    use std::os::unix::ffi::OsStrExt as _;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a string that ends with a NUL and lives for as long as the call.
    assert_eq!(unsafe { libc::truncate(path.as_ptr(), size as libc::off_t) }, 0, "{}", std::io::Error::last_os_error());
}
