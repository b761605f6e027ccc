//! Bad slabs and bad directories: each ends in a clear error or in right reads.

mod common;

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt, PermissionsExt as _};
use std::path::{Path, PathBuf};

use common::*;
use forebay_store::{Store, StoreError};
use forebay_types::{Failure, FailureKind};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

const FRAME: u64 = 4160 << 10;
const BLOCKS: u64 = 6;

/// A slab with six whole blocks, one a frame, in frames 0..6.
async fn six_blocks(dir: &Path) {
    let store = Store::open(on_disk(32, dir, 40)).await.unwrap();
    for index in 0..BLOCKS {
        fill(&store, key(1, index), sectors(0, 128), BLOCK).await;
        store.flush().await;
    }
    store.close().await;
}

/// Reopens and reads everything: how many blocks are there, all of them right.
async fn hits(dir: &Path, disk_mib: u64) -> usize {
    let store = Store::open(on_disk(32, dir, disk_mib)).await.unwrap();
    let mut hits = 0;
    for index in 0..BLOCKS {
        hits += usize::from(check(&store, &key(1, index), 0, BLOCK).await.is_some());
    }
    // It still takes writes.
    fill(&store, key(3, 0), sectors(0, 2), BLOCK).await;
    store.flush().await;
    assert_eq!(store.stats().disks[0].runs_written, 1);
    store.remove(&key(3, 0));
    store.flush().await;
    store.close().await;
    hits
}

fn slab(dir: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(dir.join("slab")).unwrap()
}

/// Flips a bit: of a number that was drawn at random, any byte that is written may be what is there.
fn damage(dir: &Path, at: u64) {
    let (slab, mut byte) = (slab(dir), [0]);
    slab.read_exact_at(&mut byte, at).unwrap();
    slab.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[tokio::test]
async fn a_truncated_slab_loses_what_was_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    six_blocks(dir.path()).await;
    slab(dir.path()).set_len(4096 + 3 * FRAME + FRAME / 2).unwrap();
    assert_eq!(hits(dir.path(), 40).await, 3);
}

#[tokio::test]
async fn a_damaged_superblock_makes_an_empty_slab() {
    let dir = tempfile::tempdir().unwrap();
    six_blocks(dir.path()).await;
    damage(dir.path(), 24);
    assert_eq!(hits(dir.path(), 40).await, 0);
    assert_eq!(hits(dir.path(), 40).await, 0, "and a whole one again");
}

#[tokio::test]
async fn a_damaged_header_loses_its_run() {
    let dir = tempfile::tempdir().unwrap();
    six_blocks(dir.path()).await;
    damage(dir.path(), 4096 + 2 * FRAME + 60);
    assert_eq!(hits(dir.path(), 40).await, 5);
}

#[tokio::test]
async fn a_damaged_first_header_does_not_hide_the_others_of_its_frame() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(on_disk(32, dir.path(), 40)).await.unwrap();
    for index in 0..BLOCKS {
        fill(&store, key(1, index), sectors(0, 4), BLOCK).await;
        store.flush().await;
    }
    store.close().await;
    damage(dir.path(), 4096 + 60);
    let store = Store::open(on_disk(32, dir.path(), 40)).await.unwrap();
    assert!(check(&store, &key(1, 0), 0, 4 * S).await.is_none());
    for index in 1..BLOCKS {
        assert!(check(&store, &key(1, index), 0, 4 * S).await.is_some());
    }
}

#[tokio::test]
async fn a_flipped_bit_in_a_slab_is_a_miss() {
    let dir = tempfile::tempdir().unwrap();
    six_blocks(dir.path()).await;
    let at = 4096 + FRAME + 4096 + 1_000_000;
    damage(dir.path(), at);
    let store = Store::open(on_disk(32, dir.path(), 40)).await.unwrap();
    assert!(check(&store, &key(1, 1), 0, BLOCK).await.is_none());
    assert_eq!(store.stats().disks[0].corrupt_sectors, 1);
    store.flush().await;
    store.close().await;
    assert_eq!(hits(dir.path(), 40).await, 5, "and it does not come back");
}

#[tokio::test]
async fn leftovers_of_another_class_are_never_served() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(on_disk(32, dir.path(), 5)).await.unwrap();
    // One frame. Twelve extents of one size; over them some of another size that are not full, so that headers of the
    // first stay whole in the gaps while their sectors are overwritten; then a few of the first size again.
    for (file, end, count) in [(1, 4, 12), (2, 9, 4), (3, 4, 2)] {
        for index in 0..count {
            fill(&store, key(file, index), sectors(0, end), BLOCK).await;
            store.flush().await;
        }
    }
    store.close().await;
    let store = Store::open(on_disk(32, dir.path(), 5)).await.unwrap();
    let mut hits = 0;
    for file in 1..4 {
        for index in 0..12 {
            hits += usize::from(check(&store, &key(file, index), 0, 4 * S).await.is_some());
        }
    }
    assert_eq!(hits, 2);
    assert_eq!(store.stats().disks[0].corrupt_sectors, 0);
}

#[tokio::test]
async fn a_file_that_is_no_slab_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    for content in [&b"my thesis"[..], &[0; 10_000]] {
        std::fs::write(dir.path().join("slab"), content).unwrap();
        let error = Store::open(on_disk(16, dir.path(), 40)).await.unwrap_err();
        assert!(matches!(error, StoreError::NotASlab { .. }), "{error}");
        assert_eq!(std::fs::read(dir.path().join("slab")).unwrap(), content);
    }
    std::fs::write(dir.path().join("slab"), b"").unwrap();
    assert_eq!(hits(dir.path(), 40).await, 0, "an empty file is nobody's");
}

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[tokio::test]
async fn a_link_that_was_planted_in_a_cache_directory_is_refused_and_what_it_leads_to_is_left_alone() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    six_blocks(elsewhere.path()).await;
    let precious = std::fs::read(elsewhere.path().join("slab")).unwrap();
    for name in ["lock", "slab", "slab.new"] {
        let planted = dir.path().join(name);
        std::os::unix::fs::symlink(elsewhere.path().join("slab"), &planted).unwrap();
        let error = Store::open(on_disk(16, dir.path(), 40)).await.unwrap_err();
        assert!(matches!(&error, StoreError::NotOurs(not_ours) if not_ours.path == planted), "{name}: {error}");
        assert_eq!(Failure::from(error).kind(), FailureKind::PermissionDenied);
        std::fs::remove_file(&planted).unwrap();
    }
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(elsewhere.path(), &link).unwrap();
    let error = Store::open(on_disk(16, &link, 40)).await.unwrap_err();
    assert!(matches!(error, StoreError::NotOurs(_)), "{error}");
    assert!(std::fs::read(elsewhere.path().join("slab")).unwrap() == precious);
}

#[tokio::test]
async fn a_slab_that_an_earlier_version_left_open_to_others_is_closed_to_them_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    six_blocks(dir.path()).await;
    let files = ["lock", "slab"].map(|name| dir.path().join(name));
    chmod(dir.path(), 0o755);
    files.iter().for_each(|file| chmod(file, 0o644));
    assert_eq!(hits(dir.path(), 40).await, 6);
    assert_eq!((mode(dir.path()), files.map(|file| mode(&file))), (0o700, [0o600; 2]));
}

#[tokio::test]
async fn a_directory_or_a_slab_of_another_user_is_refused_also_by_root() {
    let dir = tempfile::tempdir().unwrap();
    six_blocks(dir.path()).await;
    for path in [dir.path().join("slab"), dir.path().to_owned()] {
        if let Err(error) = std::os::unix::fs::chown(&path, Some(65_534), None) {
            let _ = writeln!(std::io::stderr(), "skipped: cannot give a file to another user: {error}");
            return;
        }
        let error = Store::open(on_disk(16, dir.path(), 40)).await.unwrap_err();
        assert!(matches!(&error, StoreError::NotOurs(not_ours) if not_ours.path == path), "{error}");
        assert!(error.to_string().contains("belongs to user 65534") && error.to_string().contains("chown"), "{error}");
    }
    std::os::unix::fs::chown(dir.path(), Some(0), None).unwrap();
}

#[tokio::test]
async fn a_directory_that_is_a_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, "x").unwrap();
    let error = Store::open(on_disk(16, &path, 40)).await.unwrap_err();
    assert!(matches!(error, StoreError::NotADirectory { .. }), "{error}");
    assert!(error.to_string().contains(path.to_str().unwrap()));
    assert_eq!(Failure::from(error).kind(), FailureKind::NotADirectory);
    let error = Store::open(on_disk(16, &path.join("below"), 40)).await.unwrap_err();
    assert!(matches!(error, StoreError::Io { .. }), "{error}");
}

#[tokio::test]
async fn a_directory_that_does_not_exist_is_made() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(hits(&dir.path().join("a"), 40).await, 0, "it is made");
    let deeper = dir.path().join("not-mounted/cache");
    let error = Store::open(on_disk(16, &deeper, 40)).await.unwrap_err();
    assert!(matches!(error, StoreError::NoParent { .. }), "{error}");
    assert!(!dir.path().join("not-mounted").exists(), "what a disk would be mounted on is not made");
}

#[tokio::test]
async fn two_stores_on_one_directory_are_one_too_many() {
    let dir = tempfile::tempdir().unwrap();
    let first = Store::open(on_disk(16, dir.path(), 40)).await.unwrap();
    let error = Store::open(on_disk(16, dir.path(), 40)).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains(dir.path().to_str().unwrap()), "{text}");
    assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
    first.close().await;
    Store::open(on_disk(16, dir.path(), 40)).await.unwrap().close().await;
}

#[tokio::test]
async fn a_slab_keeps_what_fits_when_its_size_changes() {
    let dir = tempfile::tempdir().unwrap();
    six_blocks(dir.path()).await;
    assert_eq!(hits(dir.path(), 80).await, 6);
    assert_eq!(std::fs::metadata(dir.path().join("slab")).unwrap().len(), 4096 + 19 * FRAME);
    // Room for three frames; one of their runs goes, for the watermark.
    let left = hits(dir.path(), 13).await;
    assert!((2..=3).contains(&left), "{left}");
    assert_eq!(std::fs::metadata(dir.path().join("slab")).unwrap().len(), 4096 + 3 * FRAME);
}

#[tokio::test]
async fn a_disk_smaller_than_a_frame_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let error = Store::open(on_disk(16, dir.path(), 4)).await.unwrap_err();
    assert!(matches!(error, StoreError::TooSmall { .. }), "{error}");
}

/// A mount of the test's own, undone on drop.
struct Mount(PathBuf);

impl Mount {
    /// `None`, with the reason on stderr, where this process may not mount.
    fn tmpfs(at: &Path, mib: u64) -> Option<Self> {
        let options = std::ffi::CString::new(format!("size={mib}m")).unwrap();
        match rustix::mount::mount("forebay-test", at, "tmpfs", MountFlags::empty(), options.as_c_str()) {
            Ok(()) => {
                let private = MountPropagationFlags::PRIVATE;
                rustix::mount::mount_change(at, private).unwrap();
                Some(Self(at.to_owned()))
            }
            Err(error) => {
                eprintln!("not run: cannot mount a tmpfs: {error}");
                None
            }
        }
    }

    fn make_read_only(&self) {
        rustix::mount::mount_remount(&self.0, MountFlags::RDONLY, "").unwrap();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[tokio::test]
async fn a_file_system_without_room_is_an_error_that_says_how_much() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_mount) = Mount::tmpfs(dir.path(), 20) else { return };
    let error = Store::open(on_disk(16, dir.path(), 40)).await.unwrap_err();
    let StoreError::NoSpace { needed, available, .. } = &error else { panic!("{error}") };
    assert_eq!(needed.as_u64(), 4096 + 9 * FRAME);
    assert!((19 << 20..=20 << 20).contains(&available.as_u64()), "{error}");
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["lock"], "no half-made slab stays behind");
    assert_eq!(hits(dir.path(), 10).await, 0, "a smaller one fits");
    let error = Store::open(on_disk(16, dir.path(), 40)).await.unwrap_err();
    assert!(matches!(error, StoreError::NoSpace { .. }), "{error}");
    assert_eq!(hits(dir.path(), 10).await, 0, "and it is whole after a growth that failed");
}

#[tokio::test]
async fn a_read_only_directory_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mount) = Mount::tmpfs(dir.path(), 60) else { return };
    mount.make_read_only();
    let error = Store::open(on_disk(16, dir.path(), 40)).await.unwrap_err();
    assert!(error.to_string().contains(dir.path().to_str().unwrap()), "{error}");
    assert_eq!(Failure::from(error).kind(), FailureKind::ReadOnly);
}

#[tokio::test]
async fn on_tmpfs_a_store_works_like_anywhere() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_mount) = Mount::tmpfs(dir.path(), 60) else { return };
    six_blocks(dir.path()).await;
    assert_eq!(hits(dir.path(), 40).await, 6);
}
