//! What is open for writing while another process takes the mount over.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_e2e::{ended, eventually, is_long_run};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use crate::{MIB, SOON, mount_of_worker, replace, up};

/// What the processes of the mount logged that `path` is right below.
fn served_log(path: &Path) -> String {
    let directory = path.parent().and_then(Path::parent).expect("a directory");
    fs::read_to_string(directory.join("log")).unwrap_or_default()
}

/// > A file that is open for writing goes on in the process that takes the mount over, with what was written to it.
#[test]
fn a_file_that_is_open_for_writing_goes_on_in_the_next_process() {
    for mut served in [mount_of_worker(), up()] {
        let mount = &mut served.mount;
        let path = mount.path("written");
        let mut file = OpenOptions::new().write(true).create_new(true).open(&path).unwrap();
        file.write_all(b"first").unwrap();
        // Of which most comes from the origin.
        let changed = OpenOptions::new().read(true).write(true).open(mount.path("file01")).unwrap();
        changed.write_all_at(b"changed", MIB).unwrap();
        let untouched = OpenOptions::new().write(true).open(mount.path("file02")).unwrap();
        let mut reader = File::open(&path).unwrap();
        replace(mount);
        file.write_all(b" second").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "first second");
        file.sync_all().unwrap();
        assert_eq!(served.bucket.object("written"), b"first second");
        file.write_all(b" third").unwrap();
        replace(mount);
        // A child that closes what it inherited is no writer there, either.
        assert!(std::process::Command::new("true").status().unwrap().success());
        assert_eq!(served.bucket.object("written"), b"first second");
        assert_eq!(fs::read_to_string(&path).unwrap(), "first second third");
        let (before, mut bytes) = (served.tree.file("file01").clone(), vec![0; 2 * MIB as usize]);
        changed.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes[MIB as usize..][..7], b"changed");
        assert_eq!(before.data.first_difference(0, &bytes[..MIB as usize]), None);
        assert_eq!(before.data.first_difference(MIB + 7, &bytes[MIB as usize + 7..]), None);
        drop((file, changed, untouched));
        assert_eq!(served.bucket.object("written"), b"first second third");
        let object = served.bucket.object("file01");
        assert_eq!((object.len() as u64, &object[MIB as usize..][..7]), (before.size, &b"changed"[..]));
        assert_eq!(before.data.first_difference(MIB + 7, &object[MIB as usize + 7..]), None);
        replace(mount);
        assert_eq!(fs::read_to_string(&path).unwrap(), "first second third");
        let staged = mount.staged();
        assert!(staged.is_empty(), "nothing is left behind: {staged:?}");
    }
}

#[test]
fn who_stages_elsewhere_does_not_get_what_is_open_for_writing() {
    for mut served in [mount_of_worker(), up()] {
        let mount = &mut served.mount;
        let mut file = OpenOptions::new().write(true).create_new(true).open(mount.path("written")).unwrap();
        file.write_all(b"first").unwrap();
        let (before, elsewhere) = (mount.pid(), tempfile::tempdir().unwrap());
        let option = format!("write.staging_dir={}", elsewhere.path().join("staged").display());
        mount.replace(&["-o", &option]).failed(4, &["write.staging_dir"]);
        assert!(!ended(before));
        file.write_all(b" second").unwrap();
        drop(file);
        assert_eq!(served.bucket.object("written"), b"first second");
        // Nobody writes: then it may be any.
        let _ = served.mount.replace(&["-o", &option]).succeeded();
    }
}

/// > A replacement waits for a file that was removed while it is open for writing, and for one that is being uploaded, and is refused
/// > after `--timeout`; the mount is served all the while.
#[test]
fn a_file_that_cannot_go_on_in_the_next_process_is_waited_for_and_named() {
    let mut served = mount_of_worker();
    let mount = &mut served.mount;
    let path = mount.path("written");
    let mut file = OpenOptions::new().write(true).create_new(true).open(&path).unwrap();
    file.write_all(b"first").unwrap();
    fs::remove_file(&path).unwrap();
    let before = mount.pid();
    mount.replace(&["--timeout", "1s"]).failed(6, &["/written", "--timeout"]);
    assert!(!ended(before));
    file.write_all(b" second").unwrap();
    served.tree.verify(&mount.root());

    // Closed while it is waited for. The log is that of the replacement that was refused, too.
    let waits = || served_log(&path).matches("waiting for files that are open for writing").count();
    let refused = waits();
    std::thread::scope(|scope| {
        let replaced = scope.spawn(|| replace(mount));
        eventually("it is waited for", SOON, || waits() > refused);
        drop(file);
        replaced.join().unwrap();
    });
    assert_eq!(fs::metadata(&path).unwrap_err().kind(), ErrorKind::NotFound);
}

/// Ends what waits for it, also when a test panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What `fsx` does: changes a file at random and compares what it reads with the same in memory, until `stop`. What the file is then.
fn operate(path: &Path, seed: u64, stop: &AtomicBool, done: &AtomicU64) -> Vec<u8> {
    const LONGEST: usize = 3 << 20;
    const AT_ONCE: usize = 64 << 10;
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    let (mut random, mut expected) = (StdRng::seed_from_u64(seed), Vec::<u8>::new());
    while !stop.load(Ordering::Relaxed) {
        let at = random.random_range(0..=expected.len().min(LONGEST));
        let length = random.random_range(1..=AT_ONCE);
        match random.random_range(0..20) {
            0..=9 => {
                let bytes: Vec<u8> = std::iter::repeat_n(random.random_range(1..=255), length).collect();
                file.write_all_at(&bytes, at as u64).unwrap();
                expected.resize(expected.len().max(at + length), 0);
                expected[at..at + length].copy_from_slice(&bytes);
            }
            10..=16 => {
                let mut bytes = vec![0; length.min(expected.len() - at)];
                file.read_exact_at(&mut bytes, at as u64).unwrap();
                assert!(bytes == expected[at..][..bytes.len()], "what is read at {at} is wrong, with seed {seed}");
            }
            17 | 18 => {
                let size = if random.random_range(0..2) == 0 { at } else { (at + length).min(LONGEST) };
                file.set_len(size as u64).unwrap();
                expected.resize(size, 0);
            }
            _ => file.sync_all().unwrap(),
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    drop(file);
    expected
}

#[test]
fn random_changes_of_a_file_across_replacements_leave_what_was_written() {
    let times = if is_long_run() { 50 } else { 4 };
    for (mut served, seed) in [(mount_of_worker(), 1), (up(), 2)] {
        let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
        let path = served.mount.path("random");
        let expected = std::thread::scope(|scope| {
            let operates = scope.spawn(|| operate(&path, seed, &stop, &done));
            let stops = Stop(&stop);
            for _ in 0..times {
                let target = done.load(Ordering::Relaxed) + 50;
                eventually("the file is changed", SOON, || {
                    assert!(!operates.is_finished(), "it failed");
                    done.load(Ordering::Relaxed) >= target
                });
                replace(&mut served.mount);
            }
            drop(stops);
            operates.join().unwrap()
        });
        assert!(fs::read(&path).unwrap() == expected, "what is read");
        assert!(served.bucket.object("random") == expected, "what is at the origin");
    }
}
