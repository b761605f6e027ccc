//! What the mount tells of itself: `.stats`, `.stats.json` and `.accesslog`.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use forebay_fuse::{MountOptions, Operation, ReportSource};
use serde_json::{Value, json};

use crate::bucket::{Bucket, pattern};
use crate::child::NOBODY;
use crate::harness::{MINUTE, Mounted, is_root, options, skipped, wait_until};

fn mounted() -> Mounted {
    let bucket = Bucket::new(MINUTE);
    bucket.put("file", pattern(100_000, 1));
    bucket.put("below/.stats", b"an object".to_vec());
    bucket.put(".stats", b"hidden".to_vec());
    let report = ReportSource::new(|| json!({ "process": { "threads": 7 } }));
    Mounted::with(bucket, MINUTE, &MountOptions { report, ..options() })
}

/// The lines of an access log, as they come.
struct Log {
    lines: mpsc::Receiver<String>,
    seen: Vec<String>,
}

impl Log {
    fn open(mounted: &Mounted) -> Self {
        let mut log = File::open(mounted.path(".accesslog")).unwrap();
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let (mut buffer, mut text) = (vec![0; 1 << 16], String::new());
            while let Ok(n @ 1..) = log.read(&mut buffer) {
                text.push_str(std::str::from_utf8(&buffer[..n]).unwrap());
                while let Some(end) = text.find('\n') {
                    let line: String = text.drain(..=end).collect();
                    if send.send(line).is_err() {
                        return;
                    }
                }
            }
        });
        Self { lines, seen: Vec::new() }
    }

    /// Waits for a line in which all of `parts` are. Lines are written after the answers, so those of requests that follow one
    /// another may change places.
    #[track_caller]
    fn has(&mut self, parts: &[&str]) {
        let deadline = Instant::now() + MINUTE;
        let is_it = |line: &String| parts.iter().all(|part| line.contains(part));
        while !self.seen.iter().any(is_it) {
            let line = self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now()));
            self.seen.push(line.unwrap_or_else(|_| panic!("no line with {parts:?} in {:?}", self.seen)));
        }
    }
}

#[test]
fn the_counters_are_lines_and_json_and_grow_with_what_is_read() {
    let mounted = mounted();
    fs::read(mounted.path("file")).unwrap();
    let text = fs::read_to_string(mounted.path(".stats")).unwrap();
    let has = |line: &str| assert!(text.lines().any(|found| found == line), "no `{line}` in {text}");
    has("fuse.read_bytes 100000");
    has("process.threads 7");
    assert!(text.lines().all(|line| line.split_once(' ').is_some_and(|(name, _)| !name.is_empty())), "{text}");
    // An operation is counted when it has been answered: the program may be a moment ahead.
    let counted = || mounted.mount.stats().count(Operation::Read);
    wait_until("the read is counted", || counted() > 0);
    let before = counted();
    let json: Value = serde_json::from_slice(&fs::read(mounted.path(".stats.json")).unwrap()).unwrap();
    assert_eq!(json["fuse"]["read_bytes"], 100_000);
    let told = json["fuse"]["operations"]["read"]["count"].as_u64().unwrap();
    assert!((before..=counted()).contains(&told), "{told} of {before} to {}", counted());
    assert!(json["fuse"]["operations"]["read"]["buckets"].is_array(), "{json}");
    assert!(json["client"]["worker_memory"].is_u64(), "{json}");
    // What is open stays as it was, also in pieces.
    let open = File::open(mounted.path(".stats")).unwrap();
    fs::read(mounted.path("file")).unwrap();
    let mut piece = [0; 5];
    open.read_exact_at(&mut piece, 7).unwrap();
    let mut whole = String::new();
    (&open).read_to_string(&mut whole).unwrap();
    assert_eq!(piece, whole.as_bytes()[7..12]);
    assert_eq!(open.read_at(&mut piece, 1 << 30).unwrap(), 0);
}

#[test]
fn they_are_not_listed_cannot_be_written_and_hide_objects_only_at_the_root() {
    let mounted = mounted();
    let names = |path: &Path| -> BTreeSet<String> {
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    assert_eq!(names(mounted.directory.path()), BTreeSet::from(["below".to_owned(), "file".to_owned()]));
    assert_eq!(names(&mounted.path("below")), BTreeSet::from([".stats".to_owned()]));
    assert_eq!(fs::read(mounted.path("below/.stats")).unwrap(), b"an object");
    assert_ne!(fs::read(mounted.path(".stats")).unwrap(), b"hidden");
    for (name, mode) in [(".stats", 0o444), (".stats.json", 0o444), (".accesslog", 0o400)] {
        let metadata = fs::metadata(mounted.path(name)).unwrap();
        assert_eq!((metadata.mode() & 0o7777, metadata.len()), (mode, 0), "{name}");
        let refused = File::options().write(true).open(mounted.path(name)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem, "{name}");
        assert!(fs::remove_file(mounted.path(name)).is_err());
    }
    assert_eq!(fs::metadata(mounted.path(".stats2")).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn the_access_log_tells_each_request_with_who_made_it_and_not_itself() {
    let mounted = mounted();
    let mut log = Log::open(&mounted);
    let file = mounted.open_direct("file");
    let ino = file.metadata().unwrap().ino();
    file.read_exact_at(&mut [0; 4096], 8192).unwrap();
    assert!(fs::metadata(mounted.path("no\nne")).is_err());
    let who = format!("[uid:{},gid:{},pid:", rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    log.has(&[&who, "lookup (1,file): OK <"]);
    log.has(&[&who, &format!("] open ({ino}): OK <")]);
    log.has(&[&who, &format!("] read ({ino},4096,8192): OK <")]);
    log.has(&[&who, "] lookup (1,no\\nne): ENOENT <"]);
    drop(file);
    log.has(&[&format!("] release ({ino}): OK")]);
    if is_root() {
        let ran = Command::new("ls").arg(mounted.directory.path()).uid(NOBODY).gid(NOBODY).current_dir("/").output();
        assert!(ran.unwrap().status.success());
        log.has(&[&format!("[uid:{NOBODY},gid:{NOBODY},pid:"), "readdir (1,0): OK"]);
    } else {
        skipped("only root can become another user");
    }
    assert!(!log.seen.iter().any(|line| line.contains("accesslog")), "{:?}", log.seen);
}

#[test]
fn a_quiet_log_can_be_read_by_cat_and_head_and_who_reads_it_can_be_killed() {
    let mounted = mounted();
    for command in [&["cat"][..], &["head", "-n", "1"]] {
        let mut reader = Command::new(command[0]);
        reader.args(&command[1..]).arg(mounted.path(".accesslog")).stdout(Stdio::piped());
        let mut reader = reader.spawn().unwrap();
        let mut heartbeat = [0; 2];
        reader.stdout.take().unwrap().read_exact(&mut heartbeat).unwrap();
        assert_eq!(&heartbeat, b"#\n", "{command:?}");
        reader.kill().unwrap();
        reader.wait().unwrap();
    }
    // Nothing is held of readers that left: there are places for others, however many come after one another.
    for _ in 0..20 {
        wait_until("a reader has a place", || File::open(mounted.path(".accesslog")).is_ok());
    }
}

#[test]
fn only_the_owner_and_root_read_the_access_log_and_everybody_the_counters() {
    if !is_root() {
        return skipped("only root can become another user");
    }
    let mounted = mounted();
    let as_nobody = |name: &str| {
        let mut cat = Command::new("timeout");
        cat.args(["60", "cat"]).arg(mounted.path(name)).uid(NOBODY).gid(NOBODY).current_dir("/");
        cat.output().unwrap()
    };
    assert!(as_nobody(".stats").status.success());
    let refused = as_nobody(".accesslog");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("Permission denied"), "{refused:?}");
}

#[test]
fn an_open_access_log_does_not_keep_the_mount_from_ending() {
    let mut mounted = mounted();
    let mut log = File::open(mounted.path(".accesslog")).unwrap();
    let reading = std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(1..) = log.read(&mut buffer) {}
    });
    let unmounted = mounted
        .runtime
        .block_on(async { tokio::time::timeout(Duration::from_secs(30), mounted.mount.unmount()).await });
    assert!(unmounted.unwrap().is_ok());
    drop(mounted);
    // It is detached, and gone with the process; within one process the mount serves for as long as it is open.
    drop(reading);
}
