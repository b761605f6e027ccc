//! A process that is told to end leaves its mount to the next one, and programs notice nothing: `fuse.on_stop` (ADR 0028). What systemd
//! has of it, `make test-packages` tries.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use forebay_e2e::{
    Bucket, Mount, Opened, Setup, Tree, Worker, can_survive, close, ended, eventually, forebay, is_mounted, once,
    reading, signal,
};
use rustix::process::Signal;

const SOON: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
/// More names than one page of a listing has.
const NAMES: usize = 1_500;
const KEPT: &str = "fuse.survive_crash=true";
const LEAVE: &str = "fuse.on_stop=leave";

struct Served {
    tree: Tree,
    /// In its own process, where the mount is `forebay mount`.
    _worker: Option<Worker>,
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

fn mount_with(setup: Setup) -> Served {
    let bucket = Bucket::new();
    let tree = tree_in(&bucket);
    let worker = Setup::of(&bucket).worker(&bucket);
    let mount = setup.mount([&worker]);
    Served { tree, _worker: Some(worker), mount, bucket }
}

fn mount_of_worker(options: &[&str]) -> Served {
    mount_with(Setup::without_origin().options(options))
}

fn up(options: &[&str]) -> Served {
    let bucket = Bucket::new();
    let tree = tree_in(&bucket);
    let mount = Setup::of(&bucket).options(options).up(&bucket);
    Served { tree, _worker: None, mount, bucket }
}

/// The process that keeps the mount.
#[track_caller]
fn keeper(mount: &Mount) -> u32 {
    let stats = mount.own_stats();
    let pid = stats.pointer("/fuse/kept/process").and_then(serde_json::Value::as_u64);
    pid.and_then(|pid| u32::try_from(pid).ok()).unwrap_or_else(|| panic!("no keeper: {stats}"))
}

/// Tells the process that serves the mount to end. Which one that was.
#[track_caller]
fn tell_to_end(mount: &Mount) -> u32 {
    let told = once("a process serves the mount", SOON, || mount.served_by());
    signal(told, Signal::TERM);
    told
}

/// Waits until another process than this one says that it serves the mount.
#[track_caller]
fn next_after(mount: &Mount, told: u32) {
    other_after(mount, told);
    assert!(is_mounted(&mount.root()));
}

/// The same, of one that may mount anew.
#[track_caller]
fn other_after(mount: &Mount, told: u32) {
    eventually("another process serves the mount", SOON, || mount.served_by().is_some_and(|pid| pid != told));
    eventually("the process before has ended", SOON, || ended(told));
}

/// Has the process leave so often while programs read.
#[track_caller]
fn left_under_readers(served: &Served, times: usize) {
    let Served { mount, tree, .. } = served;
    let (root, read) = (mount.root(), tree.file("file00").clone());
    reading::read_while(&root, &read, 3, |progress| {
        let mut opened = Opened::new(mount, tree, NAMES);
        for round in 0..times {
            progress.reads_on(20);
            next_after(mount, tell_to_end(mount));
            opened.read_mapping(tree, round);
            opened.read_names(7);
        }
        progress.reads_on(20);
        opened.finish(tree);
    });
    tree.verify(&root);
    let log = mount.log_text();
    assert!(log.contains("taken over from a process that left it") && !log.contains("panic"), "{log}");
    assert!(!log.contains("taken over from a process that died"), "{log}");
}

/// > A process that is told to end and leaves its mount (`fuse.on_stop`) leaves it with all that is open: files, directories and mappings
/// > go on in the next process, and no read fails.
#[test]
fn readers_notice_nothing_when_the_process_leaves_its_mount() {
    if can_survive() {
        left_under_readers(&mount_of_worker(&[KEPT, LEAVE]), 4);
        left_under_readers(&up(&[KEPT, LEAVE]), 3);
    }
}

#[test]
fn a_mount_that_was_left_outlives_a_crash_of_the_next_process_and_ends_with_umount() {
    if !can_survive() {
        return;
    }
    let served = mount_of_worker(&[KEPT, LEAVE]);
    let mount = &served.mount;
    let keeper = keeper(mount);
    next_after(mount, tell_to_end(mount));
    let killed = mount.served_by().unwrap();
    signal(killed, Signal::KILL);
    next_after(mount, killed);
    served.tree.verify(&mount.root());
    let pid = mount.served_by().unwrap();
    let _ = mount.ask(&["umount"]).succeeded();
    assert!(!is_mounted(&mount.root()));
    eventually("both have ended", SOON, || ended(pid) && ended(keeper));
    assert_eq!(mount.served_by(), None, "nothing is started again");
}

/// Tells the process to end by this, and waits until nothing is left of the mount.
#[track_caller]
fn unmounts_at(mount: &Mount, by: Signal) {
    let (keeper, pid) = (keeper(mount), mount.pid());
    signal(pid, by);
    eventually("both have ended", SOON, || ended(pid) && ended(keeper));
    assert!(!is_mounted(&mount.root()));
    assert_eq!(mount.served_by(), None, "nothing is started again");
}

#[test]
fn a_mount_is_unmounted_where_nobody_is_known_to_start_the_next_process() {
    if !can_survive() {
        return;
    }
    for options in [&[KEPT][..], &[KEPT, "fuse.on_stop=unmount"]] {
        unmounts_at(&mount_of_worker(options).mount, Signal::TERM);
    }
}

#[test]
fn ctrl_c_unmounts_whatever_the_configuration_says() {
    if can_survive() {
        unmounts_at(&mount_of_worker(&[KEPT, LEAVE]).mount, Signal::INT);
    }
}

#[test]
fn a_mount_that_nobody_would_have_is_unmounted_and_the_log_says_why() {
    let served = mount_of_worker(&[LEAVE]);
    let mut open = File::open(served.mount.path("file00")).unwrap();
    let told = tell_to_end(&served.mount);
    eventually("it is unmounted", SOON, || !is_mounted(&served.mount.root()));
    // A reader may finish, as ever.
    let mut bytes = Vec::new();
    open.read_to_end(&mut bytes).unwrap();
    assert_eq!(served.tree.file("file00").data.first_difference(0, &bytes), None);
    drop(open);
    eventually("it has ended", SOON, || ended(told));
    let log = served.mount.log_text();
    assert!(log.contains("nor a host of keepers"), "{log}");
}

#[test]
fn a_lazy_umount_takes_the_mount_away_also_from_a_process_that_would_leave_it() {
    if !can_survive() {
        return;
    }
    let served = mount_of_worker(&[KEPT, LEAVE]);
    let (keeper, pid) = (keeper(&served.mount), served.mount.pid());
    let open = File::open(served.mount.path("file00")).unwrap();
    std::thread::scope(|scope| {
        let unmounting = scope.spawn(|| served.mount.ask(&["umount", "--lazy"]));
        eventually("it is unmounted", SOON, || !is_mounted(&served.mount.root()));
        drop(open);
        let _ = unmounting.join().unwrap().succeeded();
    });
    eventually("both have ended", SOON, || ended(pid) && ended(keeper));
    assert_eq!(served.mount.served_by(), None, "nothing is started again");
}

/// > A handle that is still open for writing 10 s after that process was told to end fails with `EIO`, also at `close(2)`, and `forebay fs
/// > staged ls` lists what was written.
#[test]
fn what_is_open_for_writing_is_waited_for_and_then_lost_and_listed() {
    if !can_survive() {
        return;
    }
    let served = mount_of_worker(&[KEPT, LEAVE]);
    let mount = &served.mount;
    fs::write(mount.path("done"), "as it was").unwrap();
    let create = |name: &str| OpenOptions::new().write(true).create_new(true).open(mount.path(name)).unwrap();
    let (mut in_time, mut late) = (create("in-time"), create("late"));
    in_time.write_all(b"first").unwrap();
    late.write_all(b"first").unwrap();
    let told = tell_to_end(mount);
    // It serves as ever.
    in_time.write_all(b", second").unwrap();
    close(in_time).unwrap();
    next_after(mount, told);
    assert_eq!(late.write(b"more").unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(late.sync_all().unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(close(late).unwrap_err().raw_os_error(), Some(libc::EIO));
    let staged = mount.staged();
    assert!(staged.iter().any(|file| file.to_string().contains("/late")), "{staged:?}");
    assert!(!staged.iter().any(|file| file.to_string().contains("/in-time")), "{staged:?}");
    assert_eq!(served.bucket.object("in-time"), b"first, second");
    // All else goes on.
    assert_eq!(fs::read_to_string(mount.path("done")).unwrap(), "as it was");
    fs::write(mount.path("later"), "third").unwrap();
    served.tree.verify(&mount.root());
}

#[test]
fn told_a_second_time_it_waits_for_no_writer_and_unmounts() {
    if !can_survive() {
        return;
    }
    let served = mount_of_worker(&[KEPT, LEAVE]);
    let mount = &served.mount;
    let (keeper, mut file) = (keeper(mount), File::create(mount.path("written")).unwrap());
    file.write_all(b"first").unwrap();
    let told = tell_to_end(mount);
    eventually("it heard that", SOON, || mount.log_text().contains("unmounting"));
    signal(told, Signal::TERM);
    eventually("both have ended", SOON, || ended(told) && ended(keeper));
    assert!(!is_mounted(&mount.root()));
    assert_eq!(mount.served_by(), None, "nothing is started again");
}

/// An option that a mount keeps is changed, and the process is started again, as whoever restarts a service does.
#[test]
fn a_next_process_with_other_options_mounts_anew() {
    let run = tempfile::tempdir().unwrap();
    let host = Host::start(&run, None);
    let setup = Setup::without_origin().variable("FOREBAY_RUN_DIR", &run.path().display().to_string());
    let changed = run.path().join("forebay.toml");
    let configure = |max_read: &str| fs::write(&changed, format!("fuse.max_read = \"{max_read}\"\n")).unwrap();
    configure("128KiB");
    let setup = setup.option(LEAVE).variable("FOREBAY_CONFIG", &changed.display().to_string());
    let served = mount_with(setup);
    configure("256KiB");
    other_after(&served.mount, tell_to_end(&served.mount));
    eventually("it is mounted anew", SOON, || served.mount.log_text().matches("ready mountpoint").count() == 2);
    let log = served.mount.log_text();
    assert!(log.contains("it is mounted anew") && log.contains("fuse.max_read"), "{log}");
    served.tree.verify(&served.mount.root());
    drop(host);
}

/// What starts keepers, in a run directory of its own.
struct Host(std::process::Child);

impl Host {
    fn start(run: &tempfile::TempDir, unmount: Option<&std::path::Path>) -> Self {
        let socket = run.path().join("private/keepers.sock");
        let mut command = forebay(&[("FOREBAY_RUN_DIR", run.path().display().to_string())]);
        command.args(["keeper", "--host"]).arg(&socket);
        if let Some(directory) = unmount {
            command.arg("--unmount").arg(directory);
        }
        let host = Self(command.spawn().unwrap());
        eventually("keepers can be had", SOON, || UnixStream::connect(&socket).is_ok());
        host
    }

    fn end(&mut self) {
        signal(self.0.id(), Signal::TERM);
        let status = once("it ends", SOON, || self.0.try_wait().unwrap());
        assert!(status.success(), "{status}");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Without `fuse.survive_crash`, so on any kernel.
#[test]
fn a_host_of_keepers_has_a_mount_that_is_left_and_takes_dead_ones_away_at_its_end() {
    let run = tempfile::tempdir().unwrap();
    let setup = Setup::without_origin().variable("FOREBAY_RUN_DIR", &run.path().display().to_string());
    let served = mount_with(setup.option(LEAVE));
    let root = served.mount.root();
    let mut host = Host::start(&run, root.parent());
    left_under_readers(&served, 3);
    let killed = served.mount.served_by().unwrap();
    signal(killed, Signal::KILL);
    eventually("it is dead", SOON, || ended(killed));
    assert!(is_mounted(&root));
    host.end();
    assert!(!is_mounted(&root));
}

#[test]
fn a_mount_whose_host_has_ended_is_unmounted() {
    let run = tempfile::tempdir().unwrap();
    let setup = Setup::without_origin().variable("FOREBAY_RUN_DIR", &run.path().display().to_string());
    let served = mount_with(setup.option(LEAVE));
    Host::start(&run, None).end();
    let told = tell_to_end(&served.mount);
    eventually("it has ended", SOON, || ended(told));
    assert!(!is_mounted(&served.mount.root()));
}
