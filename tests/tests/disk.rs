//! Blocks on disk: however the slab was damaged or the disk is unwilling, a reader gets the origin's bytes and a person
//! gets a clear error.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_e2e::reading::{self, DirectFile};
use forebay_e2e::{Bucket, Setup, Tmpfs, Tree, Worker, eventually, is_root, skipped};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
/// A disk that answers late on a busy machine is waited for, and the origin is not asked in its place.
const PATIENT: &str = "worker.disk.read_timeout=1m";
/// What the tree of a [`Warm`] worker has.
const CACHED: u64 = 24 * MIB;

/// A worker that is down, with a whole tree in its slab.
struct Warm {
    bucket: Bucket,
    tree: Tree,
    disk: TempDir,
    worker: Worker,
}

impl Warm {
    /// Fills the slab through a mount and ends the worker in good order.
    fn new(options: &[&str]) -> Self {
        let bucket = Bucket::new();
        let tree = Tree::of_equal_files(3, CACHED / 3);
        tree.put_into(&bucket, "");
        let disk = tempfile::tempdir().unwrap();
        let setup = Setup::of(&bucket).memory("256MiB").disk(disk.path(), "64MiB").option(PATIENT).options(options);
        let mut worker = setup.worker(&bucket);
        let mount = Setup::without_origin().mount([&worker]);
        tree.verify(&mount.root());
        worker.wait_for_disk(CACHED);
        drop(mount);
        worker.terminate();
        Self { bucket, tree, disk, worker }
    }

    fn slab(&self) -> PathBuf {
        self.disk.path().join("slab")
    }

    /// Starts the worker again and reads everything through a new mount. How many GETs that took.
    fn read_again(&mut self) -> u64 {
        self.worker.start_again();
        let before = self.bucket.gets();
        // A worker that shows its memory sends nothing, from wherever it has it.
        let mount = Setup::without_origin().option("network.shared_memory=off").mount([&self.worker]);
        self.tree.verify(&mount.root());
        for file in &self.tree.files {
            reading::verify_random_ranges(&mount.root(), file, 50, 200 << 10, 1);
        }
        self.bucket.gets() - before
    }

    fn corrupt_sectors(&self) -> u64 {
        self.worker.counter("/store/disks/0/corrupt_sectors")
    }
}

fn flip(slab: &Path, places: impl IntoIterator<Item = u64>) {
    let file = File::options().read(true).write(true).open(slab).unwrap();
    for place in places {
        let mut byte = [0];
        file.read_exact_at(&mut byte, place).unwrap();
        file.write_all_at(&[byte[0] ^ 0x10], place).unwrap();
    }
}

#[test]
fn what_was_cached_is_read_from_disk_in_every_serving_mode_and_by_either_backend() {
    for serve in ["dio", "pagecache", "splice"] {
        for io in ["threads", "uring"] {
            let modes = [format!("worker.disk.serve={serve}"), format!("worker.disk.io={io}")];
            let mut warm = Warm::new(&modes.each_ref().map(String::as_str));
            assert_eq!(warm.read_again(), 0, "{serve}, {io}");
            // Nothing was in memory; a run that is read a second time is, so not every byte counts as from disk.
            assert!(warm.worker.counter("/worker/bytes_disk") > 0, "{serve}, {io}");
            assert_eq!(warm.worker.counter("/worker/bytes_origin"), 0, "{serve}, {io}");
            assert_eq!(warm.corrupt_sectors(), 0, "{serve}, {io}");
        }
    }
}

#[test]
fn flipped_bits_are_misses_that_are_counted_and_filled_again() {
    for serve in ["dio", "pagecache", "splice"] {
        let mut warm = Warm::new(&[&format!("worker.disk.serve={serve}")]);
        // In many extents, at odd places of them, past the superblock; but not in all of them.
        let mut random = StdRng::seed_from_u64(7);
        flip(&warm.slab(), (0..8).map(|at| 4096 + at * 2 * MIB + random.random_range(0..2 * MIB)));
        assert!(warm.read_again() > 0, "{serve}: bad sectors are fetched again");
        assert!(warm.corrupt_sectors() > 0, "{serve}");
        let fetched = warm.worker.counter("/worker/bytes_origin");
        assert!(fetched < CACHED, "{serve}: {fetched} bytes were fetched, though most were good");
    }
}

#[test]
fn a_bit_that_flips_while_the_worker_runs_is_seen_when_it_is_read() {
    let mut warm = Warm::new(&[]);
    warm.worker.start_again();
    let mount = Setup::without_origin().option("client.memory.size=8MiB").mount([&warm.worker]);
    let random = StdRng::seed_from_u64(8).random_range(0..MIB);
    flip(&warm.slab(), (0..24).map(|at| 4096 + at * MIB + random));
    warm.tree.verify(&mount.root());
    assert!(warm.corrupt_sectors() > 0);
}

#[test]
fn a_slab_that_is_cut_off_while_the_worker_runs_is_a_miss() {
    let mut warm = Warm::new(&[]);
    warm.worker.start_again();
    let mount = Setup::without_origin().option("client.memory.size=8MiB").mount([&warm.worker]);
    File::options().write(true).open(warm.slab()).unwrap().set_len(6 * MIB).unwrap();
    warm.tree.verify(&mount.root());
    assert!(warm.worker.stats().is_object());
}

#[test]
fn a_worker_that_is_killed_while_it_fills_its_disk_comes_back_with_right_bytes() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(4, 12 * MIB);
    tree.put_into(&bucket, "");
    let disk = tempfile::tempdir().unwrap();
    // Smaller than the tree, so that extents are written again and again.
    let mut worker = Setup::of(&bucket).memory("64MiB").disk(disk.path(), "32MiB").worker(&bucket);
    let random = &mut StdRng::seed_from_u64(9);
    for _ in 0..6 {
        let mount = Setup::without_origin().mount([&worker]);
        let enough = worker.bytes_served() + random.random_range(1..30) * MIB;
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                for file in &tree.files {
                    let open = DirectFile::open(&mount.path(&file.path));
                    for offset in (0..file.size).step_by(MIB as usize) {
                        // Errors are what a killed worker without a peer leaves; wrong bytes it must not.
                        let Ok(bytes) =
                            open.as_ref().map_err(drop).and_then(|open| open.read_at(offset, 1 << 20).map_err(drop))
                        else {
                            return;
                        };
                        assert_eq!(file.data.first_difference(offset, &bytes), None);
                    }
                }
            });
            eventually("the worker has served for a while", SOON, || {
                reader.is_finished() || worker.bytes_served() >= enough
            });
            worker.kill();
            // It would have its reader wait for the worker.
            mount.kill();
        });
        worker.start_again();
    }
    let mount = Setup::without_origin().mount([&worker]);
    tree.verify(&mount.root());
    assert!(!worker.log_text().contains("panic"));
}

#[test]
fn damaged_headers_lose_their_extents_and_nothing_else() {
    let mut warm = Warm::new(&[]);
    let size = warm.slab().metadata().unwrap().len();
    // A block's header is a page in front of its sectors; a frame is 4 MiB and 64 KiB.
    let frames = (size - 4096) / (4160 << 10);
    flip(&warm.slab(), (0..frames).step_by(2).map(|frame| 4096 + frame * (4160 << 10) + 17));
    assert!(warm.read_again() > 0);
}

#[test]
fn a_slab_that_was_cut_off_is_filled_again() {
    let mut warm = Warm::new(&[]);
    // In the middle of a sector that holds data. Where those are depends on which read came first, and a page of data
    // has hardly a zero.
    let bytes = std::fs::read(warm.slab()).unwrap();
    let is_data = |page: &usize| bytes[*page..page + 4096].iter().filter(|byte| **byte != 0).count() > 3000;
    let pages = (bytes.len() / 2 / 4096 * 4096..bytes.len() - 4096).step_by(4096);
    let torn = pages.into_iter().find(is_data).or_else(|| (0..bytes.len() / 2).step_by(4096).rfind(is_data));
    let torn = torn.expect("a page of data") as u64;
    File::options().write(true).open(warm.slab()).unwrap().set_len(torn + 2345).unwrap();
    assert!(warm.read_again() > 0);
    assert!(warm.corrupt_sectors() > 0, "of the block that was cut");
    warm.worker.terminate();
    File::options().write(true).open(warm.slab()).unwrap().set_len(0).unwrap();
    assert!(warm.read_again() > 0);
}

#[test]
fn a_slab_with_a_damaged_superblock_starts_empty() {
    let mut warm = Warm::new(&[]);
    flip(&warm.slab(), [40]);
    assert!(warm.read_again() > 0);
    assert!(warm.worker.log_text().contains("superblock"), "{}", warm.worker.log_text());
}

#[test]
fn a_file_of_somebody_else_is_not_taken_for_a_slab_and_not_overwritten() {
    let bucket = Bucket::new();
    let disk = tempfile::tempdir().unwrap();
    let slab = disk.path().join("slab");
    std::fs::write(&slab, "precious".repeat(10_000)).unwrap();
    let refused = Setup::of(&bucket).disk(disk.path(), "64MiB").prepare_up(&bucket.url()).start();
    refused.failed(2, &[slab.to_str().unwrap(), "not a forebay slab", "next: "]);
    assert_eq!(std::fs::read_to_string(&slab).unwrap(), "precious".repeat(10_000));
}

#[test]
fn a_cache_directory_that_is_a_file_is_refused_by_name() {
    let bucket = Bucket::new();
    let file = tempfile::NamedTempFile::new().unwrap();
    let refused = Setup::of(&bucket).disk(file.path(), "64MiB").prepare_up(&bucket.url()).start();
    refused.failed(2, &[file.path().to_str().unwrap(), "not a directory", "next: "]);
    assert!(refused.took < SOON);
}

#[test]
fn a_cache_directory_that_is_read_only_is_refused_by_name() {
    if !is_root() {
        return skipped("mounting a tmpfs needs root");
    }
    let bucket = Bucket::new();
    let tmpfs = Tmpfs::new("16m").unwrap();
    tmpfs.protect().unwrap();
    let refused = Setup::of(&bucket).disk(&tmpfs.path(), "8MiB").prepare_up(&bucket.url()).start();
    assert!(matches!(refused.code, Some(1 | 5)), "{refused:?}");
    assert!(refused.stderr.contains(tmpfs.path().to_str().unwrap()), "{refused:?}");
    assert!(refused.stderr.contains("Read-only file system"), "{refused:?}");
}

#[test]
fn a_disk_that_is_too_small_is_refused_with_what_it_has() {
    if !is_root() {
        return skipped("mounting a tmpfs needs root");
    }
    let bucket = Bucket::new();
    let tmpfs = Tmpfs::new("16m").unwrap();
    let refused = Setup::of(&bucket).disk(&tmpfs.path(), "64MiB").prepare_up(&bucket.url()).start();
    refused.failed(1, &[tmpfs.path().to_str().unwrap(), "needs", "next: ", "smaller size"]);
    // Nothing is left that takes the room.
    let mount = Setup::of(&bucket).disk(&tmpfs.path(), "12MiB").up(&bucket);
    assert!(mount.root().read_dir().is_ok());
}

#[test]
fn a_disk_that_others_fill_goes_on_caching() {
    if !is_root() {
        return skipped("mounting a tmpfs needs root");
    }
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(3, 8 * MIB);
    tree.put_into(&bucket, "");
    let tmpfs = Tmpfs::new("64m").unwrap();
    let mut worker = Setup::of(&bucket).memory("256MiB").disk(&tmpfs.path(), "40MiB").option(PATIENT).worker(&bucket);
    tmpfs.fill();
    let mount = Setup::without_origin().mount([&worker]);
    tree.verify(&mount.root());
    worker.wait_for_disk(CACHED);
    worker.kill();
    worker.start_again();
    let gets = bucket.gets();
    let mount = Setup::without_origin().mount([&worker]);
    tree.verify(&mount.root());
    assert_eq!(bucket.gets(), gets);
}

#[test]
fn a_cache_smaller_than_what_is_read_goes_on_serving_right_bytes() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(6, 16 * MIB);
    tree.put_into(&bucket, "");
    let disk = tempfile::tempdir().unwrap();
    let mount = Setup::of(&bucket).memory("16MiB").disk(disk.path(), "32MiB").up(&bucket);
    for _ in 0..2 {
        for file in &tree.files {
            reading::verify_direct(&mount.path(&file.path), file.data, file.size);
        }
    }
    for file in &tree.files {
        reading::verify_random_ranges(&mount.root(), file, 40, 100 << 10, 5);
    }
    assert!(mount.counter("/store/disks/0/runs_evicted") > 0);
    assert_eq!(mount.counter("/store/disks/0/corrupt_sectors"), 0);
}

#[test]
fn a_second_worker_on_one_directory_is_refused_and_the_first_one_named() {
    let bucket = Bucket::new();
    let disk = tempfile::tempdir().unwrap();
    let worker = Setup::of(&bucket).disk(disk.path(), "16MiB").worker(&bucket);
    let setup = Setup::of(&bucket).disk(disk.path(), "16MiB");
    let refused = setup.prepare_up(&bucket.url()).start();
    let holder = format!("process {}", worker.pid());
    refused.failed(6, &[disk.path().to_str().unwrap(), "in use", &holder, "next: "]);
    assert!(worker.stats().is_object(), "the first one goes on");
}
