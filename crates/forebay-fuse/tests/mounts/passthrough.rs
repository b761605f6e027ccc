//! Materialised files: what the kernel reads by itself, and what not.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use forebay_fuse::{LocalOptions, MountOptions};
use forebay_types::{ByteSize, FsPath};
use serde_json::Value;

use crate::bucket::{BLOCK_SIZE, Bucket, pattern};
use crate::child::Actor;
use crate::harness::{MINUTE, Mounted, options, skipped, wait_until};

/// Some blocks and a bit.
pub(crate) const SIZE: usize = 9 * BLOCK_SIZE as usize + 777;

/// Every file is worth it, and its first open waits for it.
fn eager() -> LocalOptions {
    let files = forebay_materialise::LocalOptions {
        size: ByteSize::mib(64),
        dir: None,
        owner: "tests".to_owned(),
        max_file_size: ByteSize::gib(1),
        min_opens: 1,
        first_open_size: ByteSize::mib(16),
        first_open_wait: MINUTE,
        fills: 2,
        check_interval: Duration::ZERO,
        check_bandwidth: ByteSize::gib(1),
        check_writes: false,
        is_automatic: false,
        lender: None,
    };
    LocalOptions { files, on_writable: true }
}

/// Files that are opened twice are worth it, and no open waits.
fn patient() -> LocalOptions {
    let eager = eager();
    LocalOptions {
        files: forebay_materialise::LocalOptions { min_opens: 2, first_open_size: ByteSize::bytes(0), ..eager.files },
        ..eager
    }
}

fn mounted(local: LocalOptions) -> Mounted {
    let bucket = Bucket::new(Duration::ZERO);
    bucket.put("file", pattern(SIZE, 1));
    Mounted::with(bucket, MINUTE, &MountOptions { local: Some(local), ..options() })
}

/// A mount that passes every file through, and its options.
pub(crate) fn mounted_eagerly() -> (Mounted, MountOptions) {
    (mounted(eager()), MountOptions { local: Some(eager()), ..options() })
}

fn report(mounted: &Mounted) -> Value {
    mounted.mount.reporter()()
}

pub(crate) fn count(mounted: &Mounted, pointer: &str) -> u64 {
    let report = report(mounted);
    report.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {pointer} in {report}"))
}

/// Why nothing is passed through here, if it is not.
pub(crate) fn why_off(mounted: &Mounted) -> Option<String> {
    let local = report(mounted)["local"].clone();
    (local["on"] != true).then(|| local["why_off"].as_str().unwrap_or("off").to_owned())
}

macro_rules! on_or_skip {
    ($mounted:expr) => {
        match why_off(&$mounted) {
            None => {}
            Some(why) => return skipped(&format!("files are not passed through here: {why}")),
        }
    };
}

fn read_all(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Waits until nothing is open any more: the kernel says so later than `close(2)` returns.
fn wait_until_closed(mounted: &Mounted) {
    wait_until("all is closed", || count(mounted, "/local/files/pinned") == 0);
}

#[test]
fn an_open_of_a_materialised_file_reads_at_the_kernel_and_not_through_us() {
    let mounted = mounted(eager());
    on_or_skip!(mounted);
    let file = mounted.open("file");
    assert_eq!(count(&mounted, "/local/handles/passed"), 1);
    assert!(read_all(&file) == pattern(SIZE, 1));
    let mut unaligned = [0; 3];
    file.read_exact_at(&mut unaligned, 65_533).unwrap();
    assert!(unaligned == pattern(SIZE, 1)[65_533..65_536]);
    assert_eq!(file.read_at(&mut [0; 16], SIZE as u64).unwrap(), 0, "the end of the file is where it is");
    let mut mapper = Actor::start("map", &mounted.path("file"), None);
    mapper.says("mapped").unwrap();
    assert_eq!(count(&mounted, "/fuse/read_bytes"), 0);
    assert_eq!(count(&mounted, "/local/refused_by_kernel"), 0);
}

#[test]
fn a_read_past_the_page_cache_of_any_alignment_reaches_a_file_in_memory() {
    let mounted = mounted(eager());
    on_or_skip!(mounted);
    let direct = mounted.open_direct("file");
    let mut bytes = [0; 5];
    direct.read_exact_at(&mut bytes, 4095).unwrap();
    assert!(bytes == pattern(SIZE, 1)[4095..4100]);
    assert_eq!(count(&mounted, "/fuse/read_bytes"), 0);
}

#[test]
fn a_file_that_is_open_the_other_way_waits_for_the_next_open() {
    let mounted = mounted(patient());
    on_or_skip!(mounted);
    let held = mounted.open("file");
    drop(mounted.open("file"));
    wait_until("it is materialised", || count(&mounted, "/local/files/ready") == 1);
    let other = mounted.open("file");
    assert!(read_all(&other) == pattern(SIZE, 1));
    assert_eq!(count(&mounted, "/local/handles/passed"), 0, "it is open the other way");
    drop((held, other));
    wait_until("the last close has come", || {
        drop(mounted.open("file"));
        count(&mounted, "/local/handles/passed") > 0
    });
    assert!(fs::read(mounted.path("file")).unwrap() == pattern(SIZE, 1));
}

#[test]
fn two_processes_share_one_backing() {
    let mounted = mounted(eager());
    on_or_skip!(mounted);
    let file = mounted.open("file");
    let read = Command::new("cat").arg(mounted.path("file")).stdin(Stdio::null()).output().unwrap();
    assert!(read.status.success() && read.stdout == pattern(SIZE, 1));
    assert!(read_all(&file) == pattern(SIZE, 1));
    assert_eq!((count(&mounted, "/local/handles/passed"), count(&mounted, "/fuse/read_bytes")), (2, 0));
}

#[test]
fn a_replaced_object_is_read_anew_while_an_old_handle_reads_the_old_one() {
    let mounted = mounted(eager());
    on_or_skip!(mounted);
    let old = mounted.open("file");
    mounted.bucket.put("file", pattern(2 * SIZE, 2));
    mounted.bucket.evict();
    let new = mounted.open("file");
    assert!(read_all(&new) == pattern(2 * SIZE, 2));
    assert!(read_all(&old) == pattern(SIZE, 1), "all of the version that it opened");
    assert_ne!(old.metadata().unwrap().ino(), new.metadata().unwrap().ino());
    assert_eq!((count(&mounted, "/local/handles/passed"), count(&mounted, "/fuse/read_bytes")), (2, 0));
}

#[test]
fn a_file_that_is_dropped_goes_after_the_last_close() {
    let mounted = mounted(eager());
    on_or_skip!(mounted);
    let (first, second) = (mounted.open("file"), mounted.open("file"));
    let local = mounted.mount.local_files().unwrap();
    assert_eq!(mounted.runtime.block_on(local.release(&FsPath::root())).unwrap(), 1);
    assert_eq!(count(&mounted, "/local/files/leaving"), 1);
    assert!(read_all(&first) == pattern(SIZE, 1));
    drop(first);
    assert!(read_all(&mounted.open("file")) == pattern(SIZE, 1), "it joins those that are open");
    assert!(read_all(&second) == pattern(SIZE, 1));
    drop(second);
    wait_until("its room is free", || {
        count(&mounted, "/local/files/leaving") == 0 && count(&mounted, "/local/bytes/leaving") == 0
    });
    assert_eq!(count(&mounted, "/fuse/read_bytes"), 0);
    assert!(read_all(&mounted.open("file")) == pattern(SIZE, 1));
}

#[test]
fn what_is_asked_for_is_materialised_however_seldom_it_is_opened() {
    let mounted = mounted(patient());
    on_or_skip!(mounted);
    mounted.bucket.put("models/a", pattern(SIZE, 2));
    mounted.bucket.put("models/b", pattern(SIZE, 3));
    let local = mounted.mount.local_files().unwrap();
    let request = local.add(FsPath::new(b"/models".as_slice()).unwrap(), forebay_materialise::Why::Command);
    wait_until("the request has ended", || local.progress(request).unwrap().ended);
    let progress = local.progress(request).unwrap();
    assert_eq!((progress.files, progress.ready, progress.ready_bytes), (2, 2, 2 * SIZE as u64), "{progress:?}");
    assert!(fs::read(mounted.path("models/a")).unwrap() == pattern(SIZE, 2));
    assert!(fs::read(mounted.path("models/b")).unwrap() == pattern(SIZE, 3));
    assert_eq!(count(&mounted, "/fuse/read_bytes"), 0);
    assert_eq!(local.list().len(), 2);
}

#[test]
fn a_cold_file_that_is_read_from_its_start_is_filled_meanwhile_and_one_that_is_read_past_the_page_cache_is_not() {
    let mounted = mounted(patient());
    on_or_skip!(mounted);
    mounted.bucket.put("direct", pattern(SIZE, 3));
    let direct = mounted.open_direct("direct");
    let mut bytes = vec![0; SIZE];
    direct.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == pattern(SIZE, 3));
    drop(direct);
    assert!(fs::read(mounted.path("file")).unwrap() == pattern(SIZE, 1));
    wait_until("it is whole after one open", || count(&mounted, "/local/files/ready") == 1);
    wait_until("the next open after the last close is passed through", || {
        drop(mounted.open("file"));
        count(&mounted, "/local/handles/passed") > 0
    });
    let local = mounted.mount.local_files().unwrap();
    assert_eq!(local.list().len(), 1, "{:?}", local.list());
}

#[test]
fn what_asks_for_too_much_is_told_what_did_not_come() {
    let mut local = patient();
    local.files.size = ByteSize::mib(4);
    let mounted = mounted(local);
    on_or_skip!(mounted);
    mounted.bucket.put("large", pattern(8 << 20, 2));
    let local = mounted.mount.local_files().unwrap();
    let request = local.add(FsPath::new(b"/large".as_slice()).unwrap(), forebay_materialise::Why::Command);
    wait_until("the request has ended", || local.progress(request).unwrap().ended);
    let progress = local.progress(request).unwrap();
    assert_eq!((progress.ready, progress.no_room + progress.failed, progress.first.len()), (0, 1, 1), "{progress:?}");
    assert!(fs::read(mounted.path("large")).unwrap() == pattern(8 << 20, 2), "served as ever");
}

#[test]
fn an_open_that_waits_in_vain_is_an_ordinary_one() {
    let mut local = eager();
    local.files.first_open_wait = Duration::from_millis(50);
    let mounted = mounted(local);
    on_or_skip!(mounted);
    mounted.bucket.withhold.store(true, Ordering::Relaxed);
    let file = mounted.open("file");
    assert_eq!(count(&mounted, "/local/handles/served"), 1);
    mounted.bucket.withhold.store(false, Ordering::Relaxed);
    assert!(read_all(&file) == pattern(SIZE, 1));
}

#[test]
fn a_mapping_outlives_close_and_the_files_going() {
    let mounted = mounted(eager());
    on_or_skip!(mounted);
    let mut mapper = Actor::start("map and wait", &mounted.path("file"), None);
    mapper.says("closed").unwrap();
    wait_until_closed(&mounted);
    let local = mounted.mount.local_files().unwrap();
    assert_eq!(local.release_all(), 1);
    // Another version, in the same inode's place.
    assert!(fs::read(mounted.path("file")).unwrap() == pattern(SIZE, 1));
    drop(mapper.0.stdin.take());
    mapper.says("the same").unwrap();
}

#[test]
fn open_handles_go_on_reading_after_the_daemon_was_killed() {
    on_or_skip!(mounted(eager()));
    let directory = tempfile::tempdir().unwrap();
    let mut server = Actor::start("mount with materialised files", directory.path(), None);
    server.says("mounted").unwrap();
    let file = File::open(directory.path().join("file")).unwrap();
    drop(server);
    assert!(read_all_of(&file, 1 << 20) == pattern(1 << 20, 1));
    drop(file);
    // The kernel ends what is left of a process with rings a little later than the process, and the mount with that.
    wait_until("the mount is dead", || forebay_fuse::mount_table::repair(directory.path()).is_ok());
}

fn read_all_of(file: &File, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Opens, reads and maps go on while files come, go for others and are replaced: no program ever sees an i/o error, or
/// a byte of another version.
#[test]
fn a_thousand_opens_while_files_come_and_go_never_give_eio() {
    const FILES: usize = 6;
    const LENGTH: usize = (3 << 19) + 11;
    let mut local = eager();
    // Room for two or three of them, in huge pages.
    local.files.size = ByteSize::mib(8);
    local.files.first_open_wait = Duration::from_millis(5);
    let mounted = mounted(local);
    on_or_skip!(mounted);
    let versions: Vec<Vec<u8>> = (0..8).map(|seed| pattern(LENGTH, seed)).collect();
    for file in 0..FILES {
        mounted.bucket.put(format!("{file}"), versions[file % 8].clone());
    }
    let (opened, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let local = mounted.mount.local_files().unwrap();
            for round in 0..250 {
                wait_until("the readers go on", || opened.load(Ordering::Relaxed) >= 4 * round);
                mounted.bucket.put(format!("{}", round % FILES), versions[round % 8].clone());
                if round % 16 == 0 {
                    let _ = local.release_all();
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        for thread in 0..8 {
            let (mounted, versions, opened, done) = (&mounted, &versions, &opened, &done);
            scope.spawn(move || {
                for round in thread.. {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    read_one(mounted, round % FILES, round % 3 == 0, versions);
                    opened.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let report = report(&mounted);
    assert!(report["local"]["handles"]["passed"].as_u64() > Some(0), "{}", report["local"]);
    assert_eq!(report["fuse"]["failures"]["EIO"].as_u64().unwrap_or(0), 0);
}

fn read_one(mounted: &Mounted, file: usize, keep_open: bool, versions: &[Vec<u8>]) {
    let path = mounted.path(&format!("{file}"));
    let stale = |error: &std::io::Error, doing: &str| {
        // The kernel looks up again once; what is replaced twice meanwhile is stale, and so is a read of what is not cached.
        assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{doing}: {error}");
    };
    let mut open = match File::open(&path) {
        Ok(open) => open,
        Err(error) => return stale(&error, "open"),
    };
    let _second = keep_open.then(|| File::open(&path));
    let mut bytes = Vec::new();
    match open.read_to_end(&mut bytes) {
        Ok(_) => assert!(versions.contains(&bytes), "a mix of versions, or a part: {} bytes", bytes.len()),
        // A buffered read of a page that could not be had.
        Err(error) if error.raw_os_error() == Some(libc::EIO) => assert!(is_served(mounted), "{error}"),
        Err(error) => stale(&error, "read"),
    }
}

/// Whether some handle was ever served by us: reads of those may fail once their version is gone.
fn is_served(mounted: &Mounted) -> bool {
    count(mounted, "/local/handles/served") > 0
}

/// Those of a mount that materialises every file when it is opened.
pub(crate) fn eager_options() -> MountOptions {
    MountOptions { local: Some(eager()), ..options() }
}

#[test]
fn a_directory_for_them_is_as_good_as_memory() {
    let place = tempfile::tempdir().unwrap();
    let mut local = eager();
    local.files.dir = Some(place.path().to_owned());
    let mounted = mounted(local);
    on_or_skip!(mounted);
    if !passes(&mounted) {
        return skipped(
            "the directory for temporary files is on a file system that the kernel passes nothing through to",
        );
    }
    assert!(fs::read(mounted.path("file")).unwrap() == pattern(SIZE, 1));
    let buffered = mounted.open("file");
    let direct = mounted.open_direct("file");
    let mut bytes = [0; 5];
    direct.read_exact_at(&mut bytes, 4095).unwrap();
    assert!(bytes == pattern(SIZE, 1)[4095..4100], "of an alignment that no disk would take");
    assert!(read_all(&buffered) == pattern(SIZE, 1));
    assert_eq!(count(&mounted, "/local/handles/direct"), 1);
}

#[test]
fn a_file_that_rots_while_it_is_open_is_served_to_who_opens_it_then() {
    let place = tempfile::tempdir().unwrap();
    let mut local = eager();
    (local.files.dir, local.files.check_interval) = (Some(place.path().to_owned()), Duration::from_millis(1));
    let mounted = mounted(local);
    on_or_skip!(mounted);
    if !passes(&mounted) {
        return skipped(
            "the directory for temporary files is on a file system that the kernel passes nothing through to",
        );
    }
    let open = mounted.open("file");
    let spoiled = materialised(place.path(), SIZE as u64).expect("it is there");
    fs::set_permissions(&spoiled, fs::Permissions::from_mode(0o600)).unwrap();
    let wrong = File::options().write(true).open(&spoiled).unwrap();
    wrong.write_all_at(&[!pattern(SIZE, 1)[5000]], 5000).unwrap();
    wrong.sync_all().unwrap();
    wait_until("it is found", || count(&mounted, "/local/files/leaving") == 1);
    let passed = count(&mounted, "/local/handles/passed");
    let later = mounted.open("file");
    assert!(read_all(&later) == pattern(SIZE, 1), "whoever opens it from now on is served by us");
    assert_eq!((count(&mounted, "/local/handles/passed"), count(&mounted, "/local/splits")), (passed, 1));
    assert_ne!(open.metadata().unwrap().ino(), later.metadata().unwrap().ino(), "the kernel would map what is wrong");
    drop((open, later));
    wait_until("it is gone", || count(&mounted, "/local/files/leaving") == 0);
    assert!(fs::read(mounted.path("file")).unwrap() == pattern(SIZE, 1));
}

/// A file of `size` bytes below a directory.
fn materialised(below: &Path, size: u64) -> Option<PathBuf> {
    fs::read_dir(below).unwrap().map(|entry| entry.unwrap().path()).find_map(|path| match path.is_dir() {
        true => materialised(&path, size),
        false => (fs::metadata(&path).unwrap().len() == size).then_some(path),
    })
}

fn passes(mounted: &Mounted) -> bool {
    drop(mounted.open("file"));
    count(mounted, "/local/handles/passed") > 0
}
