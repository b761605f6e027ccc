//! What every [`FileBackend`] does: one suite, run by memory, by a directory and by the fake.

use std::fs::{File, Permissions};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::PathBuf;

use forebay_types::{ByteSize, SECTOR_SIZE};

use crate::backend::{BackendKind, FileBackend};
use crate::fake::{FakeBackend, LIMIT, bytes_of, named, record_of, version};
use crate::name::Name;
use crate::tree::Step;
use crate::{clone, directory, memory};

/// Large enough that it has whole huge pages, and an end that is no page and no sector.
const SIZE: u64 = (5 << 20) + 40_001;
const ROOM: ByteSize = ByteSize::mib(64);

/// Says why a test does not run here.
fn skipped(reason: &str) {
    // The harness captures what is printed of tests that pass; this goes past it.
    let _ = writeln!(std::io::stderr(), "skipped: {reason}");
}

fn conforms(backend: &dyn FileBackend) {
    fills_and_serves(backend);
    what_is_dropped_is_gone(backend);
    holes_get_no_name(backend);
    a_removed_file_stays_for_its_reader(backend);
    assert!(backend.free().unwrap() > 0);
}

fn put(backend: &dyn FileBackend, path: &str, size: u64) -> (Name, Vec<u8>) {
    let version = version(path, size);
    let (_, name) = named(&version);
    let bytes = bytes_of(&version);
    let mut part = backend.begin(name).unwrap();
    for (at, piece) in (0..).zip(bytes.chunks(1 << 20)) {
        part.write(at << 20, piece).unwrap();
    }
    part.publish(&record_of(&version)).unwrap();
    (name, bytes)
}

fn fills_and_serves(backend: &dyn FileBackend) {
    let version = version("/served", SIZE);
    let (_, name) = named(&version);
    assert_eq!(backend.open(name).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    let bytes = bytes_of(&version);
    let mut part = backend.begin(name).unwrap();
    for (at, piece) in (0..).zip(bytes.chunks(1 << 20)) {
        part.write(at << 20, piece).unwrap();
        let sector = &piece[..piece.len().min(SECTOR_SIZE as usize)];
        assert_eq!(part.view().unwrap().at(at << 20, sector.len()).unwrap(), sector);
    }
    assert!(backend.open(name).is_err(), "it has its name before it is whole");
    part.publish(&record_of(&version)).unwrap();
    let mut served = Vec::new();
    let descriptor = backend.open(name).unwrap();
    let again = std::fs::OpenOptions::new().write(true).open(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
    if backend.kind() == BackendKind::Memory && is_root() {
        match again {
            Ok(_) => skipped("the kernel makes no view of the tmpfs that takes no writes"),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EROFS)),
        }
    }
    File::from(descriptor).read_to_end(&mut served).unwrap();
    assert!(served == bytes);
    assert_eq!(backend.record(name).unwrap(), Some(record_of(&version)));
    let end = SIZE / u64::from(SECTOR_SIZE) * u64::from(SECTOR_SIZE);
    let last = backend.view(name).unwrap().at(end, (SIZE - end) as usize).unwrap().to_vec();
    assert!(last == bytes[end as usize..]);
    backend.used(name);
    assert_eq!(backend.found().unwrap().iter().map(|found| found.name).collect::<Vec<_>>(), [name]);
    backend.remove(name).unwrap();
    backend.remove(name).unwrap();
    assert!(backend.open(name).is_err() && backend.found().unwrap().is_empty());
}

fn what_is_dropped_is_gone(backend: &dyn FileBackend) {
    let (_, name) = named(&version("/dropped", SIZE));
    let free = backend.free().unwrap();
    let mut part = backend.begin(name).unwrap();
    part.write(0, &vec![1; 4 << 20]).unwrap();
    drop(part);
    assert!(backend.open(name).is_err());
    if backend.kind() == BackendKind::Memory {
        is_free_again(backend, free);
    }
}

/// A process that another test starts has our descriptors until it is what it is to be.
fn is_free_again(backend: &dyn FileBackend, free: u64) {
    let deadline = std::time::Instant::now() + LIMIT;
    while backend.free().unwrap() != free {
        assert!(std::time::Instant::now() < deadline, "{} of {free} are free", backend.free().unwrap());
        std::thread::yield_now();
    }
}

fn holes_get_no_name(backend: &dyn FileBackend) {
    let version = version("/holes", SIZE);
    let (_, name) = named(&version);
    let bytes = bytes_of(&version);
    let mut part = backend.begin(name).unwrap();
    part.write(0, &bytes[..1 << 20]).unwrap();
    part.write(2 << 20, &bytes[2 << 20..]).unwrap();
    assert!(part.publish(&record_of(&version)).is_err());
    assert!(backend.open(name).is_err());
}

fn a_removed_file_stays_for_its_reader(backend: &dyn FileBackend) {
    let (name, bytes) = put(backend, "/removed", SIZE);
    let file = File::from(backend.open(name).unwrap());
    backend.remove(name).unwrap();
    let mut last = vec![0; 1000];
    file.read_exact_at(&mut last, SIZE - 1000).unwrap();
    assert!(last == bytes[bytes.len() - 1000..]);
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn memory_conforms() {
    match memory::open(ROOM) {
        Ok(backend) => conforms(&backend),
        Err(error) => skipped(&format!("no tmpfs of our own: {error}")),
    }
}

#[test]
fn memory_without_a_view_that_takes_no_writes_is_read_all_the_same() {
    let root = match memory::tmpfs(ROOM, "within_size") {
        Ok(root) => root,
        Err(error) => return skipped(&format!("no tmpfs of our own: {error}")),
    };
    let readable = clone::or_itself(&root, Err(std::io::ErrorKind::InvalidInput.into())).unwrap();
    let backend = memory::on(root, readable).unwrap();
    let (name, bytes) = put(&backend, "/a", SIZE);
    let mut read = Vec::new();
    File::from(backend.open(name).unwrap()).read_to_end(&mut read).unwrap();
    assert!(read == bytes);
}

#[test]
fn memory_takes_no_more_than_its_size_and_lies_in_huge_pages() {
    let backend = match memory::open(ROOM) {
        Ok(backend) => backend,
        Err(error) => return skipped(&format!("no tmpfs of our own: {error}")),
    };
    let free = backend.free().unwrap();
    assert!(free <= ROOM.as_u64());
    // What a small file takes is what it is reckoned to take, not a huge page.
    let (small, _) = put(&backend, "/small", 10_000);
    assert!(free - backend.free().unwrap() <= crate::index::room_of(10_000), "{}", free - backend.free().unwrap());
    backend.remove(small).unwrap();
    let huge = memory::huge_pages().unwrap_or(0);
    let (large, _) = put(&backend, "/large", 32 << 20);
    let grown = memory::huge_pages().unwrap_or(0).saturating_sub(huge);
    if grown < 16 << 20 {
        skipped(&format!(
            "only {grown} bytes of 32 MiB are in huge pages: the machine has none left, or others took some"
        ));
    }
    assert!(free - backend.free().unwrap() <= crate::index::room_of(32 << 20));
    // It is full, whatever its users reckon.
    let (_, name) = named(&version("/too-large", 60 << 20));
    let mut part = backend.begin(name).unwrap();
    let mebibyte = vec![7; 1 << 20];
    let full = (0..60).find_map(|at| part.write(at << 20, &mebibyte).err()).unwrap();
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
    drop(part);
    // The bytes of a removed file go with its last reader.
    let reader = backend.open(large).unwrap();
    backend.remove(large).unwrap();
    assert!(backend.free().unwrap() < free - (31 << 20));
    drop(reader);
    is_free_again(&backend, free);
}

#[test]
fn a_directory_conforms() {
    let dir = tempfile::tempdir().unwrap();
    conforms(&directory::open(dir.path(), "test").unwrap());
}

#[test]
fn the_fake_conforms() {
    conforms(&FakeBackend::new(BackendKind::Directory));
}

#[test]
fn a_directory_is_one_mounts_and_nobody_elses() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let first = directory::open(dir.path(), "a").unwrap();
    assert!(matches!(directory::open(dir.path(), "a"), Err(crate::LocalError::InUse(_))));
    let second = directory::open(dir.path(), "b").unwrap();
    drop((first, second));
    let ours = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    assert_eq!(std::fs::metadata(&ours).unwrap().permissions().mode() & 0o777, 0o700);
    std::fs::set_permissions(&ours, std::fs::Permissions::from_mode(0o750)).unwrap();
    let refused = ["a", "b"].iter().filter(|owner| directory::open(dir.path(), owner).is_err()).count();
    assert_eq!(refused, 1);
}

#[test]
fn a_directory_that_others_could_change_or_a_link_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let is_refused =
        |dir: &std::path::Path| matches!(directory::open(dir, "a"), Err(crate::LocalError::NotOurs { .. }));
    let dir = tempfile::tempdir().unwrap();
    drop(directory::open(dir.path(), "a").unwrap());
    for (mode, refused) in [(0o770, true), (0o777, true), (0o1777, false), (0o755, false)] {
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(is_refused(dir.path()), refused, "{mode:o}");
    }
    let ours = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    let elsewhere = tempfile::tempdir().unwrap();
    for part in [ours.join("v1"), ours.clone()] {
        std::fs::remove_dir_all(&part).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), &part).unwrap();
        assert!(is_refused(dir.path()), "{}", part.display());
        std::fs::remove_file(&part).unwrap();
    }
    std::fs::create_dir(&ours).unwrap();
    std::fs::set_permissions(&ours, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::symlink(elsewhere.path().join("made"), ours.join("lock")).unwrap();
    assert!(directory::open(dir.path(), "a").is_err());
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[test]
fn a_restart_finds_what_is_whole_and_removes_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let backend = directory::open(dir.path(), "a").unwrap();
    let names: Vec<Name> = (0..4).map(|number| put(&backend, &format!("/{number}"), 100_000).0).collect();
    drop(backend);
    let root = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path().join("v1");
    let path = |name: Name| root.join(name.shard()).join(name.to_string());
    std::fs::remove_file(root.join(names[0].shard()).join(names[0].checksums())).unwrap();
    // They are written once, and may be read only.
    std::fs::set_permissions(path(names[1]), Permissions::from_mode(0o600)).unwrap();
    let short = File::options().write(true).open(path(names[1])).unwrap();
    short.set_len(99_999).unwrap();
    std::fs::remove_file(path(names[2])).unwrap();
    std::fs::write(root.join("parts").join("7"), "half").unwrap();
    std::fs::write(root.join(names[3].shard()).join("other"), "not ours").unwrap();
    let backend = directory::open(dir.path(), "a").unwrap();
    assert_eq!(backend.found().unwrap().iter().map(|found| found.name).collect::<Vec<_>>(), [names[3]]);
    let left: Vec<PathBuf> = walk(&root);
    assert_eq!(left.len(), 2, "{left:?}");
}

fn walk(root: &std::path::Path) -> Vec<PathBuf> {
    let dirs = std::fs::read_dir(root).unwrap().map(|dir| dir.unwrap().path());
    dirs.flat_map(|dir| std::fs::read_dir(dir).unwrap()).map(|file| file.unwrap().path()).collect()
}

const CRASH: &str = "FOREBAY_LOCAL_TEST_CRASH";
const STEPS: [Step; 6] = [Step::Began, Step::Wrote, Step::Synced, Step::Recorded, Step::RecordNamed, Step::Named];

/// Not a test of its own: what the next one starts as a process, which kills itself after a step.
#[test]
#[ignore = "a process of other tests"]
fn the_process_that_crashes() {
    let told = std::env::var(CRASH).expect("another test starts this");
    let (step, dir) = told.split_once(':').unwrap();
    let step = STEPS[step.parse::<usize>().unwrap()];
    let backend = directory::open(dir.as_ref(), "a").unwrap().watched(move |done| {
        if done == step {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
        }
    });
    put(&backend, "/second", SIZE);
}

#[test]
fn a_crash_after_any_step_leaves_only_whole_files() {
    use std::os::unix::process::ExitStatusExt as _;
    for (number, step) in STEPS.iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let backend = directory::open(dir.path(), "a").unwrap();
        let (first, _) = put(&backend, "/first", SIZE);
        drop(backend);
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "conformance::the_process_that_crashes", "--ignored"])
            .env(CRASH, format!("{number}:{}", dir.path().display()))
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap();
        assert_eq!(child.signal(), Some(libc::SIGKILL), "{step:?}");
        let backend = directory::open(dir.path(), "a").unwrap();
        let mut found: Vec<Name> = backend.found().unwrap().into_iter().map(|found| found.name).collect();
        let (_, second) = named(&version("/second", SIZE));
        found.sort_by_key(|name| *name != first);
        let whole = if *step == Step::Named { vec![first, second] } else { vec![first] };
        assert_eq!(found, whole, "{step:?}");
        for name in found {
            let record = backend.record(name).unwrap().unwrap();
            let mut bytes = Vec::new();
            File::from(backend.open(name).unwrap()).read_to_end(&mut bytes).unwrap();
            assert_eq!((bytes.len() as u64, record.checksums.check(&bytes)), (SIZE, Ok(())), "{step:?}");
        }
        let root = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path().join("v1");
        assert_eq!(walk(&root).len(), 2 * whole.len(), "{step:?}");
    }
}
