//! A mount outlives a crash of its process: `kill -9`, while programs read (ADR 0028).

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay_e2e::{
    Bucket, Mount, Opened, Setup, Tree, Worker, as_stranger, can_survive, close, ended, eventually, is_long_run,
    is_mounted, once, reading, signal,
};
use rand::Rng as _;
use rustix::process::Signal;

const SOON: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
/// More names than one page of a listing has.
const NAMES: usize = 1_500;
const KEPT: &str = "fuse.survive_crash=true";

struct Served {
    tree: Tree,
    /// In its own process, where the mount is `forebay mount`.
    worker: Option<Worker>,
    mount: Mount,
    bucket: Bucket,
}

fn tree_in(bucket: &Bucket) -> Tree {
    let mut tree = Tree::of_equal_files(3, 9 * MIB + 777);
    for number in 0..NAMES {
        tree.add(&format!("wide/{number:05}"), 10);
    }
    tree.put_into(bucket, "");
    tree
}

fn mount_of_worker() -> Served {
    let bucket = Bucket::new();
    let tree = tree_in(&bucket);
    let worker = Setup::of(&bucket).worker(&bucket);
    let mount = Setup::of_user().option(KEPT).mount([&worker]);
    Served { tree, worker: Some(worker), mount, bucket }
}

fn up() -> Served {
    let bucket = Bucket::new();
    let tree = tree_in(&bucket);
    let mount = Setup::of(&bucket).option(KEPT).up(&bucket);
    Served { tree, worker: None, mount, bucket }
}

/// The process that keeps the mount.
#[track_caller]
fn keeper(mount: &Mount) -> u32 {
    let stats = mount.own_stats();
    let pid = stats.pointer("/fuse/kept/process").and_then(serde_json::Value::as_u64);
    pid.and_then(|pid| u32::try_from(pid).ok()).unwrap_or_else(|| panic!("no keeper: {stats}"))
}

/// Kills the process that serves the mount, and waits until another one says that it does.
#[track_caller]
fn kill(mount: &Mount) {
    let killed = once("a process serves the mount", SOON, || mount.served_by());
    signal(killed, Signal::KILL);
    eventually("another process serves the mount", SOON, || mount.served_by().is_some_and(|pid| pid != killed));
}

/// Kills the process so often, at any point, while programs read.
#[track_caller]
fn killed_under_readers(served: &Served, times: usize) {
    let Served { mount, tree, .. } = served;
    let (root, read) = (mount.root(), tree.file("file00").clone());
    reading::read_while(&root, &read, 3, |progress| {
        let mut opened = Opened::new(mount, tree, NAMES);
        for round in 0..times {
            progress.reads_on(rand::rng().random_range(1..60));
            // One that serves for a while now and then, so that it is not taken for one that dies whenever it serves.
            let until = Instant::now() + Duration::from_millis(1_200);
            while round % 3 == 2 && Instant::now() < until {
                progress.reads_on(1);
            }
            kill(mount);
            opened.read_mapping(tree, round);
            opened.read_names(7);
        }
        progress.reads_on(20);
        opened.finish(tree);
    });
    tree.verify(&root);
    let log = mount.log_text();
    assert!(log.contains("taken over from a process that died") && !log.contains("panic"), "{log}");
}

/// > With `fuse.survive_crash`, files, directories and mappings that are open go on when the mount's process is killed, and no read
/// > fails.
#[test]
fn readers_of_a_mount_notice_nothing_when_its_process_is_killed() {
    if can_survive() {
        killed_under_readers(&mount_of_worker(), 5);
    }
}

#[test]
fn readers_of_up_wait_for_the_next_worker_when_its_process_is_killed() {
    if can_survive() {
        killed_under_readers(&up(), 3);
    }
}

#[test]
fn a_hundred_kills_at_random_points_cost_no_reader_a_byte() {
    if is_long_run() && can_survive() {
        killed_under_readers(&mount_of_worker(), 100);
        killed_under_readers(&up(), 20);
    }
}

#[test]
fn a_read_that_a_process_had_taken_when_it_was_killed_is_answered_by_the_next_one() {
    if !can_survive() {
        return;
    }
    let served = mount_of_worker();
    let (mount, worker) = (&served.mount, served.worker.as_ref().unwrap());
    let file = served.tree.file("file01").clone();
    let mut open = File::open(mount.path("file01")).unwrap();
    let killed = mount.served_by().unwrap();
    worker.freeze();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut bytes = vec![0; 100_000];
            open.read_exact(&mut bytes).unwrap();
            bytes
        });
        eventually("a read waits", SOON, || mount.log_text().contains("no worker can be reached"));
        signal(killed, Signal::KILL);
        worker.thaw();
        assert_eq!(file.data.first_difference(0, &reader.join().unwrap()), None);
    });
}

#[test]
fn umount_ends_what_was_killed_and_its_keeper() {
    if !can_survive() {
        return;
    }
    for served in [mount_of_worker(), up()] {
        let mount = &served.mount;
        let keeper = keeper(mount);
        kill(mount);
        served.tree.verify(&mount.root());
        let pid = mount.served_by().unwrap();
        let _ = mount.ask(&["umount"]).succeeded();
        assert!(!is_mounted(&mount.root()));
        eventually("both have ended", SOON, || ended(pid) && ended(keeper));
        assert_eq!(mount.served_by(), None, "nothing is started again");
    }
}

#[test]
fn a_mount_that_was_replaced_outlives_a_crash_of_the_next_process() {
    if !can_survive() {
        return;
    }
    for mut served in [mount_of_worker(), up()] {
        let before = keeper(&served.mount);
        let _ = served.mount.replace(&[]).succeeded();
        assert_eq!(keeper(&served.mount), before, "it is the keeper of the mount");
        killed_under_readers(&served, 2);
        let _ = served.mount.replace(&[]).succeeded();
        served.tree.verify(&served.mount.root());
    }
}

/// > A handle that was open for writing when the mount's process was killed fails with `EIO`, also at `close(2)`, and `forebay fs staged
/// > ls` lists what was written.
#[test]
fn what_was_being_written_when_the_process_was_killed_fails_and_is_listed() {
    if !can_survive() {
        return;
    }
    let served = mount_of_worker();
    let mount = &served.mount;
    fs::write(mount.path("done"), "as it was").unwrap();
    let mut file = OpenOptions::new().write(true).create_new(true).open(mount.path("written")).unwrap();
    file.write_all(b"first").unwrap();
    let mut changed = OpenOptions::new().read(true).write(true).open(mount.path("done")).unwrap();
    changed.write_all(b"not").unwrap();
    kill(mount);
    for file in [&mut file, &mut changed] {
        assert_eq!(file.write(b"more").unwrap_err().raw_os_error(), Some(libc::EIO));
        assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(libc::EIO));
    }
    assert_eq!(close(file).unwrap_err().raw_os_error(), Some(libc::EIO));
    drop(changed);
    assert_eq!(fs::read_to_string(mount.path("done")).unwrap(), "as it was");
    // The kernel believes a name for a moment.
    let is_gone = || fs::metadata(mount.path("written")).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    eventually("a name that the origin never had is gone", SOON, is_gone);
    let staged = mount.staged();
    assert!(staged.iter().any(|file| file.to_string().contains("/written")), "{staged:?}");
    // All else goes on.
    fs::write(mount.path("written"), "second").unwrap();
    assert_eq!(served.bucket.object("written"), b"second");
}

#[test]
fn without_a_keeper_that_lives_a_killed_mount_is_dead_and_mounted_again_as_ever() {
    if !can_survive() {
        return;
    }
    let mut served = mount_of_worker();
    let keeper = keeper(&served.mount);
    // It would have another keeper in a second.
    forebay_testkit::stop_process(served.mount.pid()).expect("the mount's process stops");
    signal(keeper, Signal::KILL);
    eventually("the keeper is dead", SOON, || ended(keeper));
    served.mount.kill();
    let error = fs::metadata(served.mount.path("file00")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotConnected, "{error}");
    let _ = served.mount.start().succeeded();
    served.tree.verify(&served.mount.root());
    kill(&served.mount);
    served.tree.verify(&served.mount.root());
}

#[test]
fn a_keeper_that_is_killed_is_started_again_and_has_what_the_one_before_had() {
    if !can_survive() {
        return;
    }
    let served = mount_of_worker();
    let mount = &served.mount;
    for round in 1..=2 {
        let before = keeper(mount);
        signal(before, Signal::KILL);
        eventually("another keeper has the mount", SOON, || {
            let kept = mount.own_stats()["fuse"]["kept"].clone();
            kept["renewed"].as_u64() == Some(round) && kept["there"] == true
        });
        assert_ne!(keeper(mount), before);
        served.tree.verify(&mount.root());
    }
    let last = keeper(mount);
    killed_under_readers(&served, 2);
    let pid = mount.served_by().unwrap();
    let _ = mount.ask(&["umount"]).succeeded();
    eventually("all have ended", SOON, || ended(pid) && ended(last));
}

#[test]
fn what_is_served_over_rings_cannot_outlive_a_crash_and_is_refused_by_name() {
    let bucket = Bucket::new();
    let mut mount = Setup::of(&bucket).options(&[KEPT, "fuse.io=uring"]).prepare_up(&bucket.url());
    mount.start().failed(2, &["io_uring", "fuse.io=device"]);
}

#[test]
fn another_user_does_not_get_to_the_socket_of_a_keeper() {
    if !can_survive() {
        return;
    }
    let served = mount_of_worker();
    let directory = served.mount.pid_file().parent().expect("the run directory").join("private");
    let is_socket = |path: &PathBuf| path.to_string_lossy().ends_with(".keeper.sock");
    let names = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
    let sockets: Vec<PathBuf> = names.filter(is_socket).collect();
    assert!(!sockets.is_empty(), "{}", directory.display());
    let tried = as_stranger(move || {
        let connect = |socket: &PathBuf| UnixStream::connect(socket).err().map(|error| error.kind());
        sockets.iter().map(connect).collect::<Vec<_>>()
    });
    let Some(tried) = tried else { return };
    assert!(tried.iter().all(|refused| *refused == Some(ErrorKind::PermissionDenied)), "{tried:?}");
}
