//! Files that the kernel reads by itself, in a `forebay up` that has no setting of theirs.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::{Bucket, Mount, Setup, eventually, skipped};

const SOON: Duration = Duration::from_secs(60);
/// `f_type` of tmpfs, as in `linux/magic.h`.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// A mount with 128 MiB of memory, with these settings and no others; `None` where the kernel passes none through, or the memory
/// cannot be lent, which is said.
#[must_use]
pub fn passing(bucket: &Bucket, settings: &[&str]) -> Option<Mount> {
    let mount = Setup::of(bucket).options(settings).up(bucket);
    if mount.own_stats()["local"]["on"] != true {
        skipped(&format!("no files are materialised here: {}", mount.summary()["passthrough"]));
        return None;
    }
    Some(mount)
}

/// How many opens the kernel was given to serve by itself.
///
/// # Panics
/// When the mount does not say.
#[must_use]
pub fn passed(mount: &Mount) -> u64 {
    let stats = mount.own_stats();
    stats.pointer("/local/handles/passed").and_then(Value::as_u64).unwrap_or_else(|| panic!("no handles in {stats}"))
}

/// Reads a file, which has these bytes, until the kernel does so by itself.
///
/// # Panics
/// When it has others, or that never comes.
#[track_caller]
pub fn until_passed(mount: &Mount, key: &str, right: &[u8]) {
    let before = passed(mount);
    eventually("the kernel reads it by itself", SOON, || {
        assert!(std::fs::read(mount.path(key)).unwrap_or_else(|error| panic!("{key}: {error}")) == right, "{key}");
        passed(mount) > before
    });
}

/// Opens a file that the kernel reads by itself.
///
/// # Panics
/// When it does not.
#[track_caller]
#[must_use]
pub fn open_passed(mount: &Mount, key: &str) -> File {
    let before = passed(mount);
    let file = File::open(mount.path(key)).unwrap_or_else(|error| panic!("{key}: {error}"));
    assert_eq!(passed(mount), before + 1, "{key} is not passed through");
    file
}

/// The materialised file of `size` bytes, for reading and writing. No path leads to it: root gets to it by the descriptors of the
/// mount's process.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn materialised(mount: &Mount, size: u64) -> File {
    let is_theirs = |path: &PathBuf| {
        let is_tmpfs =
            rustix::fs::statfs(path).is_ok_and(|of| u64::try_from(of.f_type).is_ok_and(|magic| magic == TMPFS_MAGIC));
        is_tmpfs && path.join("parts").is_dir()
    };
    let places = names(Path::new(&format!("/proc/{}/fd", mount.pid()))).into_iter().filter(is_theirs);
    let files = places.flat_map(|place| names(&place)).flat_map(|shard| names(&shard));
    let is_it = |path: &PathBuf| std::fs::metadata(path).is_ok_and(|of| of.len() == size);
    // One view of them is for reading only.
    let mut opened = files.filter(is_it).filter_map(|path| File::options().read(true).write(true).open(path).ok());
    opened.next().unwrap_or_else(|| panic!("there is no materialised file of {size} bytes"))
}

/// What is in a directory; nothing where it is none.
fn names(directory: &Path) -> Vec<PathBuf> {
    let names = std::fs::read_dir(directory).into_iter().flatten();
    names.filter_map(|name| Some(name.ok()?.path())).collect()
}
