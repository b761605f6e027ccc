//! A mount outlives its daemon: `--replace`, while programs read (ADR 0028).

mod writers;

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay_e2e::{
    Bucket, Mount, Opened, Setup, Tree, Worker, as_stranger, ended, eventually, is_long_run, is_mounted, once, reading,
    signal, skipped,
};
use forebay_handover::{Difference, Held, Identity, NotTaken, Order, Refusal, take};
use forebay_testkit::bound;
use rustix::process::Signal;

const SOON: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
/// More names than one page of a listing has.
const NAMES: usize = 1_500;

struct Served {
    bucket: Bucket,
    tree: Tree,
    /// In its own process, where the mount is `forebay mount`.
    _worker: Option<Worker>,
    mount: Mount,
}

fn tree_in(bucket: &Bucket) -> Tree {
    let mut tree = Tree::of_equal_files(3, 9 * MIB + 777);
    for number in 0..NAMES {
        tree.add(&format!("wide/{number:05}"), 10);
    }
    tree.put_into(bucket, "");
    tree
}

/// `forebay mount` of a worker: it is handed over before the process that serves it lets go of anything.
fn mount_of_worker() -> Served {
    let bucket = Bucket::new();
    let tree = tree_in(&bucket);
    let worker = Setup::of(&bucket).worker(&bucket);
    let mount = Setup::of_user().mount([&worker]);
    Served { bucket, tree, _worker: Some(worker), mount }
}

/// `forebay up`: the process that serves it lets go of everything first.
fn up() -> Served {
    let bucket = Bucket::new();
    let tree = tree_in(&bucket);
    let mount = Setup::of(&bucket).up(&bucket);
    Served { bucket, tree, _worker: None, mount }
}

/// Another process takes over, and the one before ends. How long the command took.
#[track_caller]
fn replace(mount: &mut Mount) -> Duration {
    let (before, started) = (mount.pid(), Instant::now());
    let _ = mount.replace(&[]).succeeded();
    let took = started.elapsed();
    assert_ne!(mount.pid(), before);
    eventually("the process before has ended", SOON, || ended(before));
    assert!(is_mounted(&mount.root()) && !ended(mount.pid()));
    took
}

/// Replaces the process so often while programs read. The longest time that one read took.
#[track_caller]
fn replaced_under_readers(served: &mut Served, times: usize) -> Duration {
    let Served { mount, tree, .. } = served;
    let (root, read) = (mount.root(), tree.file("file00").clone());
    let longest = reading::read_while(&root, &read, 3, |progress| {
        let mut opened = Opened::new(mount, tree, NAMES);
        for round in 0..times {
            progress.reads_on(20);
            replace(mount);
            opened.read_mapping(tree, round);
            opened.read_names(7);
        }
        progress.reads_on(20);
        opened.finish(tree);
    });
    tree.verify(&root);
    longest
}

/// Where the process that serves the mount is asked for it.
fn handover_socket(mount: &Mount) -> PathBuf {
    let file = mount.pid_file();
    let name = file.file_stem().expect("the name of the mount").to_string_lossy();
    let hash = name.rsplit('-').next().expect("the hash of the mountpoint");
    file.parent().expect("the run directory").join("private").join(format!("{hash}.handover.sock"))
}

/// > When another process takes the mount over with `--replace`, files, directories and mappings that are open go on, and no read fails.
#[test]
fn readers_of_a_mount_notice_nothing_of_its_replacement() {
    let mut served = mount_of_worker();
    let longest = replaced_under_readers(&mut served, 5);
    // What one read waits for on two busy processors; that the pause itself is short, the log says.
    assert!(longest < Duration::from_secs(20), "a read took {longest:?}");
    let log = served.mount.log_text();
    assert!(log.contains("taken over from another process") && !log.contains("panic"), "{log}");
}

#[test]
fn readers_of_up_wait_for_the_next_worker_and_get_their_bytes() {
    let mut served = up();
    replaced_under_readers(&mut served, 3);
    let log = served.mount.log_text();
    assert!(!log.contains("panic"), "{log}");
}

/// > If the new process of a mount that is let go of first fails to start, the one before is started again, and what is open goes on.
#[test]
fn up_is_started_again_when_the_process_that_was_to_replace_it_fails() {
    let mut served = up();
    let before = served.mount.pid();
    let file = served.tree.file("file00").clone();
    let mut open = File::open(served.mount.path("file00")).unwrap();
    open.read_exact(&mut [0; 4096]).unwrap();
    // It is opened when the process before has let go of everything.
    let failed = served.mount.replace(&["-o", "security.audit.file=/dev/null/below"]);
    assert_ne!(failed.code, Some(0), "{}", failed.text());
    eventually("the process before has ended", SOON, || ended(before));
    let again = once("the mount is served again", SOON, || served.mount.served_by());
    assert_ne!(again, before);
    let mut rest = Vec::new();
    open.read_to_end(&mut rest).unwrap();
    assert_eq!(rest.len() as u64, file.size - 4096);
    assert_eq!(file.data.first_difference(4096, &rest), None);
    served.tree.verify(&served.mount.root());
    assert!(served.mount.log_text().contains("this process is started again"), "{}", served.mount.log_text());
    drop(open);
    let _ = served.mount.ask(&["umount"]).succeeded();
    eventually("the mount has ended", SOON, || ended(again) && !is_mounted(&served.mount.root()));
}

#[test]
fn a_hundred_replacements_cost_no_reader_a_byte() {
    if !is_long_run() {
        return;
    }
    let mut served = mount_of_worker();
    let longest = replaced_under_readers(&mut served, 100);
    assert!(longest < bound(Duration::from_secs(1), Duration::from_secs(20)), "a read took {longest:?}");
    println!("the longest of all reads: {longest:?}");
    let mut served = up();
    replaced_under_readers(&mut served, 30);
}

#[test]
fn umount_ends_what_was_replaced_and_its_files_are_gone() {
    for mut served in [mount_of_worker(), up()] {
        replace(&mut served.mount);
        served.tree.verify(&served.mount.root());
        let (pid, pid_file) = (served.mount.pid(), served.mount.pid_file());
        assert_eq!(fs::read_to_string(&pid_file).unwrap().trim(), pid.to_string());
        assert!(served.mount.own_stats()["fuse"]["read_bytes"].as_u64() > Some(0));
        let _ = served.mount.ask(&["umount"]).succeeded();
        assert!(ended(pid) && !is_mounted(&served.mount.root()) && !pid_file.exists());
    }
}

#[test]
fn a_mount_that_no_process_serves_is_mounted_by_replace_as_ever() {
    let bucket = Bucket::new();
    let tree = tree_in(&bucket);
    let mut mount = Setup::of(&bucket).prepare_up(&bucket.url());
    let _ = mount.replace(&[]).succeeded();
    tree.verify(&mount.root());
    mount.kill();
    let _ = mount.replace(&[]).succeeded();
    tree.verify(&mount.root());
}

#[test]
fn options_that_a_mount_keeps_for_ever_are_compared_and_others_may_change() {
    let mut served = mount_of_worker();
    let mount = &mut served.mount;
    let before = mount.pid();
    mount.replace(&["--read-only"]).failed(2, &["--read-only is false, and would be true"]);
    mount.replace(&["-o", "posix.file_mode=0600"]).failed(2, &["posix.file_mode is 0o644, and would be 0o600"]);
    mount.replace(&["-o", "fuse.max_read=64KiB"]).failed(2, &["fuse.max_read"]);
    assert!(!ended(before));
    served.tree.verify(&mount.root());
    let _ = mount.replace(&["-o", "fuse.threads=5", "-o", "fuse.spin=0"]).succeeded();
    served.tree.verify(&mount.root());
}

/// Whoever looks into it waits for a process to serve the mount.
#[test]
fn a_directory_below_the_mountpoint_is_refused_before_anybody_lets_go_of_anything() {
    for mut served in [mount_of_worker(), up()] {
        let mount = &mut served.mount;
        let (before, below) = (mount.pid(), mount.path("drafts"));
        for key in ["write.staging_dir", "client.local.dir"] {
            let option = format!("{key}={}", below.display());
            mount.replace(&["-o", &option, "-o", "client.local.size=64MiB"]).failed(1, &[key, "below the mountpoint"]);
        }
        assert!(!ended(before));
        served.tree.verify(&mount.root());
    }
}

/// A read of the access log waits for a line; nobody who waits for that read does.
#[test]
fn who_reads_the_access_log_goes_on_reading_in_the_next_process() {
    let mut served = mount_of_worker();
    let mut log = File::open(served.mount.path(".accesslog")).unwrap();
    std::thread::scope(|scope| {
        let (seen, is_seen) = std::sync::mpsc::channel();
        let reads = scope.spawn(move || {
            let mut bytes = vec![0; 1 << 16];
            let mut text = String::new();
            while !text.contains("] open (") {
                let length = log.read(&mut bytes).unwrap();
                text.push_str(&String::from_utf8_lossy(&bytes[..length]));
                // Nobody hears it any more at the end.
                let _ = seen.send(());
            }
        });
        is_seen.recv_timeout(SOON).unwrap();
        replace(&mut served.mount);
        served.tree.verify(&served.mount.root());
        reads.join().unwrap();
    });
}

#[test]
fn what_is_served_over_rings_is_refused_by_name() {
    let bucket = Bucket::new();
    let tree = tree_in(&bucket);
    let mut mount = Setup::of(&bucket).option("fuse.io=uring").prepare_up(&bucket.url());
    let started = mount.start();
    if started.code != Some(0) {
        return skipped(&format!("FUSE over io_uring is not to be had: {}", started.text()));
    }
    mount.replace(&[]).failed(2, &["io_uring", "fuse.io=device"]);
    tree.verify(&mount.root());
}

#[test]
fn a_version_that_was_opened_stays_what_it_is_across_replacements() {
    let mut served = mount_of_worker();
    let mount = &mut served.mount;
    let mut file = File::open(mount.path("file00")).unwrap();
    let mut start = vec![0; 4096];
    file.read_exact(&mut start).unwrap();
    replace(mount);
    let old = served.tree.file("file00").clone();
    served.bucket.put("file00", served.tree.file("file01").data, old.size);
    replace(mount);
    // Whatever is not cached any more cannot be read; what can be is of the version that was opened.
    let mut rest = Vec::new();
    let read = file.read_to_end(&mut rest);
    assert_eq!(old.data.first_difference(4096, &rest), None);
    if let Err(error) = read {
        // ESTALE, or EIO of a page.
        assert!(matches!(error.raw_os_error(), Some(116 | 5)), "{error}");
    }
}

/// The mount, as a process has it that takes over and does not serve it yet.
#[track_caller]
fn held(mount: &Mount) -> Held {
    let socket = handover_socket(mount);
    let mut identity = Identity {
        mountpoint: mount.root().display().to_string(),
        namespace: "the cluster forebay".to_owned(),
        read_only: false,
        allow_other: false,
        uid: 0,
        gid: 0,
        file_mode: 0o644,
        directory_mode: 0o755,
        max_read: MIB,
        max_background: 256,
        passthrough: false,
    };
    // What it is in truth, the refusal says.
    for _ in 0..2 {
        let socket = UnixStream::connect(&socket).unwrap();
        match take(socket, identity.clone(), Order::ServeFirst, SOON, &mut |_| {}) {
            Ok(held) => return held,
            Err(NotTaken::Refused(Refusal::Options(differences))) => differences.iter().for_each(|difference| {
                let Difference { name, was, .. } = difference;
                match name.as_str() {
                    "what is mounted" => identity.namespace.clone_from(was),
                    "fuse.allow_other" => identity.allow_other = was == "true",
                    "fuse.max_read" => identity.max_read = was.parse().unwrap(),
                    "fuse.max_background" => identity.max_background = was.parse().unwrap(),
                    _ => panic!("{difference}"),
                }
            }),
            Err(error) => panic!("{error}"),
        }
    }
    panic!("{identity:?} is refused");
}

/// > A process that is told to end in the middle of a replacement takes the mount from nobody: it waits for what comes of that.
#[test]
fn a_process_that_is_told_to_end_when_it_has_given_the_mount_away_does_not_unmount_it() {
    let served = mount_of_worker();
    let (mount, root) = (&served.mount, served.mount.root());
    let before = mount.pid();
    let held = held(mount);
    signal(before, Signal::TERM);
    eventually("it heard that", SOON, || mount.log_text().contains("unmounting"));
    let until = Instant::now() + Duration::from_secs(1);
    while Instant::now() < until {
        assert!(is_mounted(&root) && !ended(before));
        std::thread::sleep(Duration::from_millis(20));
    }
    // The next one gives up: the mount is the old one's again, and ends as it was told.
    drop(held);
    eventually("the process before has ended", SOON, || ended(before));
    assert!(!is_mounted(&root));
}

/// > Told a second time, it ends at once, and leaves the mount to the next one.
#[test]
fn a_process_that_is_told_twice_leaves_the_mount_that_it_has_given_away() {
    let served = mount_of_worker();
    let (mount, root) = (&served.mount, served.mount.root());
    let before = mount.pid();
    let held = held(mount);
    signal(before, Signal::TERM);
    eventually("it heard that", SOON, || mount.log_text().contains("unmounting"));
    signal(before, Signal::TERM);
    eventually("the process before has ended", SOON, || ended(before));
    assert!(is_mounted(&root));
    assert!(mount.log_text().contains("was being given to another process"), "{}", mount.log_text());
    drop(held);
    // Nobody has it any more.
    let _ = mount.ask(&["umount"]);
    assert!(!is_mounted(&root));
}

/// > A new process that is given the mount and does not come to serve it within a minute does not any more: the one before serves on.
#[test]
fn a_mount_is_taken_back_from_a_process_that_does_not_come_to_serve_it() {
    if !is_long_run() {
        return;
    }
    let served = mount_of_worker();
    let mut held = held(&served.mount);
    // It waits until somebody serves again.
    served.tree.verify(&served.mount.root());
    assert_eq!(held.holding.serves(), Err(NotTaken::TakenBack));
    drop(held);
    served.tree.verify(&served.mount.root());
    assert_eq!(served.mount.own_stats()["fuse"]["taken_back"], 1);
    assert!(served.mount.log_text().contains("it is taken back"), "{}", served.mount.log_text());
}

#[test]
fn another_user_does_not_get_to_the_socket_over_which_a_mount_is_taken_over() {
    let served = mount_of_worker();
    let socket = handover_socket(&served.mount);
    assert!(socket.exists());
    let tried = as_stranger(move || UnixStream::connect(&socket).err().map(|error| error.kind()));
    let Some(tried) = tried else { return };
    assert_eq!(tried, Some(ErrorKind::PermissionDenied));
}
