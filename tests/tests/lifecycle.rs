//! The life of a mount: into the background and back out, killed and repaired, as an ordinary user, and in bounded memory.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_e2e::mapping::Mapping;
use forebay_e2e::reading::{self, DirectFile};
use forebay_e2e::{
    Bucket, Finished, Setup, Tree, ended, eventually, finish, forebay, forebay_as, is_long_run, is_mounted, is_root,
    once, resident, resident_shared, ruled_out_by_mode, signal, skipped,
};
use forebay_types::Role;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

fn bucket_with_files() -> (Bucket, Tree) {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(2, 5 * MIB);
    tree.put_into(&bucket, "");
    (bucket, tree)
}

/// `forebay up` of this bucket, up to the mountpoint.
fn up_of(bucket: &Bucket) -> Command {
    let mut command = forebay_as(Role::Worker, "up", &bucket.environment());
    command.args(["up", &bucket.url()]);
    command
}

#[test]
fn up_comes_back_when_the_mount_answers_and_sigterm_takes_all_of_it_away() {
    let (bucket, tree) = bucket_with_files();
    let mount = Setup::of(&bucket).up(&bucket);
    assert!(is_mounted(&mount.root()));
    assert!(!ended(mount.pid()));
    let pid_file = mount.pid_file();
    assert_eq!(std::fs::read_to_string(&pid_file).unwrap().trim(), mount.pid().to_string());
    let state: Value = serde_json::from_slice(&std::fs::read(pid_file.with_extension("json")).unwrap()).unwrap();
    assert_eq!((state["pid"].as_u64(), &state["source"]), (Some(u64::from(mount.pid())), &bucket.url().into()));
    assert_eq!(mount.summary()["log"].as_str().map(Path::new), Some(&*mount.log()));
    assert!(mount.log_text().contains("ready"), "{}", mount.log_text());
    assert_eq!(mount.log().metadata().unwrap().permissions().mode() & 0o077, 0, "the log names objects");
    tree.verify(&mount.root());

    mount.terminate();
    assert!(!is_mounted(&mount.root()));
    assert_eq!(mount.root().read_dir().unwrap().count(), 0, "the mountpoint is an empty directory again");
    assert!(!pid_file.exists() && !pid_file.with_extension("json").exists());
    assert!(!mount.log_text().contains("panic"), "{}", mount.log_text());
}

#[test]
fn umount_waits_until_the_process_has_ended() {
    let (bucket, tree) = bucket_with_files();
    let mount = Setup::of(&bucket).up(&bucket);
    tree.verify(&mount.root());
    let open = std::fs::File::open(mount.path("file00")).unwrap();
    let refused = mount.ask(&["umount"]);
    let holder = format!("process {}", std::process::id());
    refused.failed(6, &["in use", &holder, "--lazy"]);
    drop(open);
    let _ = mount.ask(&["umount"]).succeeded();
    assert!(ended(mount.pid()) && !is_mounted(&mount.root()));
    mount.ask(&["umount"]).failed(3, &[mount.root().to_str().unwrap()]);
}

/// A process that does nothing until this is dropped.
struct Stopped(u32);

impl Stopped {
    fn new(pid: u32) -> Self {
        forebay_testkit::stop_process(pid).unwrap();
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal(self.0, Signal::CONT);
    }
}

/// Whether a process waits in the kernel, and its mappings cannot be listed.
fn has_locked_memory(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    if !status.lines().any(|line| line.starts_with("State:\tD")) {
        return false;
    }
    let mut list = Command::new("ls").arg(format!("/proc/{pid}/map_files")).stdout(Stdio::null()).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(1);
    while list.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            list.kill().unwrap();
            list.wait().unwrap();
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

/// A program that looks at the mappings of a process waits as long as the kernel has the lock of its address space.
#[test]
fn umount_of_a_mount_in_use_does_not_wait_for_a_process_that_another_mount_holds_up() {
    let (bucket, _) = bucket_with_files();
    let mount = Setup::of(&bucket).up(&bucket);
    let staging = tempfile::tempdir().unwrap();
    let writable = format!("write.staging_dir={}", staging.path().display());
    let hung = Setup::of(&bucket).option(&writable).up(&bucket);
    std::fs::write(hung.path("written"), [0; 4096]).unwrap();
    std::thread::scope(|scope| {
        let (stuck, stopped, replaced) = once("the kernel has the lock of one that waits", SOON, || {
            let stuck = Arc::new(Mapping::writable(&hung.path("written"), 4096).unwrap());
            stuck.write(0, b"x").unwrap();
            let stopped = Stopped::new(hung.pid());
            let replacing = Arc::clone(&stuck);
            let replaced = scope.spawn(move || replacing.replace());
            eventually("it waits or is done", SOON, || replaced.is_finished() || has_locked_memory(stuck.pid()));
            // The kernel may have written the page back by itself before, and then there is nothing to wait for.
            (!replaced.is_finished()).then_some((stuck, stopped, replaced))
        });

        let mapping = Mapping::of(&mount.path("file00"), 4096).unwrap();
        let began = Instant::now();
        mount.ask(&["umount"]).failed(6, &["in use", &format!("process {}", mapping.pid()), "--lazy"]);
        println!("refused after {:?}, beside process {}", began.elapsed(), stuck.pid());
        assert!(!replaced.is_finished(), "it was held up all the time");
        drop(mapping);
        drop(stopped);
        replaced.join().unwrap().unwrap();
    });
    let _ = mount.ask(&["umount"]).succeeded();
}

#[test]
fn in_the_foreground_ctrl_c_unmounts() {
    let (bucket, tree) = bucket_with_files();
    let directory = tempfile::tempdir().unwrap();
    let mut child = up_of(&bucket)
        .arg(directory.path())
        .args(["--foreground", "--memory", "64MiB"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually("it is mounted", SOON, || is_mounted(directory.path()));
    tree.verify(directory.path());
    signal(child.id(), Signal::INT);
    let status = once("it ends", SOON, || child.try_wait().unwrap());
    assert!(status.success(), "{status}");
    assert!(!is_mounted(directory.path()));
}

#[test]
fn a_mount_left_dead_is_repaired_by_the_next_one_on_the_same_place() {
    let (bucket, tree) = bucket_with_files();
    let mut mount = Setup::of(&bucket).up(&bucket);
    let killed = mount.pid();
    mount.kill();
    // A request that is under way while the process dies is aborted; those after it find no server.
    let dead = || mount.root().read_dir().unwrap_err().kind() == std::io::ErrorKind::NotConnected;
    eventually("the mount is dead", SOON, dead);
    let repaired = mount.start().succeeded();
    assert!(repaired.stderr.contains("repaired") && repaired.stderr.contains(&killed.to_string()), "{repaired:?}");
    tree.verify(&mount.root());

    mount.kill();
    let cleaned = mount.ask(&["umount"]).succeeded();
    assert!(cleaned.stderr.contains("dead mount"), "{cleaned:?}");
    assert!(!is_mounted(&mount.root()) && !mount.pid_file().exists());
}

#[test]
fn a_reader_of_a_mount_that_is_killed_gets_an_error_and_does_not_hang() {
    let (bucket, tree) = bucket_with_files();
    let mount = Setup::of(&bucket).up(&bucket);
    let file = tree.file("file00");
    let open = DirectFile::open(&mount.path("file00")).unwrap();
    open.verify(&mount.path("file00"), file.data, file.size, 0, 4096);
    assert_eq!(mount.path("file01").metadata().unwrap().len(), file.size);
    bucket.proxy().set_latency(Duration::from_secs(60));
    std::thread::scope(|scope| {
        let asked = bucket.gets();
        let reader = scope.spawn(|| DirectFile::open(&mount.path("file01")).and_then(|file| file.read_at(MIB, 4096)));
        eventually("the read waits for the origin", SOON, || bucket.gets() > asked);
        mount.kill();
        eventually("the reader is told", SOON, || reader.is_finished());
        assert!(reader.join().unwrap().is_err());
    });
    assert!(open.read_at(0, 4096).is_err());
    bucket.proxy().heal();
}

#[test]
fn a_second_mount_on_one_place_is_refused_and_the_first_one_stays() {
    let (bucket, tree) = bucket_with_files();
    let mount = Setup::of(&bucket).up(&bucket);
    let second = finish(up_of(&bucket).arg(mount.root()).args(["--memory", "64MiB"]), SOON);
    second.failed(6, &[mount.root().to_str().unwrap(), &mount.pid().to_string(), "forebay umount"]);
    tree.verify(&mount.root());
}

#[test]
fn a_mountpoint_that_is_not_there_or_no_directory_is_refused() {
    let (bucket, _) = bucket_with_files();
    let up = |mountpoint: &Path| finish(up_of(&bucket).arg(mountpoint), SOON);
    up(Path::new("/no/such/place")).failed(3, &["/no/such/place", "mkdir -p"]);
    let file = tempfile::NamedTempFile::new().unwrap();
    up(file.path()).failed(2, &[file.path().to_str().unwrap(), "not a directory"]);
}

/// `nobody`, on every Linux.
const NOBODY: u32 = 65_534;

/// A mount namespace in which `/dev/fuse` is for everyone, as it is on most machines: it is for root only in some
/// containers. It goes away, mounts included, with the processes in it.
struct Namespace {
    holder: Child,
    home: TempDir,
}

impl Namespace {
    /// `Err` says why it cannot be had.
    fn new() -> Result<Self, String> {
        if !is_root() {
            return Err("only root can become another user for this test".to_owned());
        }
        let home = tempfile::tempdir().unwrap();
        let node = home.path().join("fuse");
        // Copies of the mounts of other tests would keep them from ending.
        let script = format!(
            "umount --all --lazy --types fuse.forebay; mknod -m 666 {node} c 10 229 && mount --bind {node} /dev/fuse && fusermount3 --version && exec sleep 600",
            node = node.display()
        );
        let holder = Command::new("unshare")
            .args(["--mount", "--propagation", "slave", "sh", "-c", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let mut namespace = Self { holder: holder.map_err(|error| format!("no unshare: {error}"))?, home };
        std::os::unix::fs::chown(namespace.home.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        let comm = format!("/proc/{}/comm", namespace.holder.id());
        let is_ready = once("the namespace is ready", SOON, || {
            let ended = namespace.holder.try_wait().unwrap().is_some();
            let ready = std::fs::read_to_string(&comm).is_ok_and(|name| name.trim() == "sleep");
            (ended || ready).then_some(ready)
        });
        if !is_ready {
            return Err("a mount namespace, mknod or fusermount3 cannot be had".to_owned());
        }
        let version = namespace.run(forebay(&[]).arg("version"));
        if version.code != Some(0) {
            return Err(format!("another user cannot run the binary: {}", version.stderr));
        }
        Ok(namespace)
    }

    /// Runs a program in it, as `nobody`.
    fn run(&self, command: &mut Command) -> Finished {
        let (id, holder) = (NOBODY.to_string(), self.holder.id().to_string());
        let mut wrapped = Command::new("nsenter");
        wrapped.args([
            "--target",
            &holder,
            "--mount",
            "setpriv",
            "--reuid",
            &id,
            "--regid",
            &id,
            "--clear-groups",
            "--",
        ]);
        wrapped.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => wrapped.env(name, value),
                None => wrapped.env_remove(name),
            };
        }
        wrapped.env("HOME", self.home.path()).env("XDG_RUNTIME_DIR", self.home.path());
        finish(&mut wrapped, SOON)
    }

    fn has_mount(&self, path: &Path) -> bool {
        let table = std::fs::read_to_string(format!("/proc/{}/mounts", self.holder.id())).unwrap();
        table.lines().any(|line| line.split(' ').nth(1) == path.to_str())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

#[test]
fn an_ordinary_user_mounts_reads_writes_and_unmounts() {
    if ruled_out_by_mode("another user may not read the key") {
        return;
    }
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(reason) => return skipped(&format!("mounting as a user: {reason}")),
    };
    let (bucket, tree) = bucket_with_files();
    let home = namespace.home.path();
    let mountpoint = home.join("mnt");
    std::fs::create_dir(&mountpoint).unwrap();
    std::os::unix::fs::chown(&mountpoint, Some(NOBODY), Some(NOBODY)).unwrap();
    let summary = namespace.run(up_of(&bucket).arg(&mountpoint).args(["--json", "--memory", "64MiB"]));
    let summary: Value = serde_json::from_slice(&summary.succeeded().stdout).unwrap();
    // Ended also when an assertion fails.
    let process = EndOnDrop(summary["pid"].as_u64().unwrap() as u32);
    assert!(namespace.has_mount(&mountpoint));
    for file in &tree.files {
        let cat = namespace.run(Command::new("cat").arg(mountpoint.join(&file.path))).succeeded();
        assert_eq!(cat.stdout.len() as u64, file.size);
        assert_eq!(file.data.first_difference(0, &cat.stdout), None, "{}", file.path);
    }
    let copied =
        namespace.run(Command::new("cp").arg(mountpoint.join("file00")).arg(mountpoint.join("copy"))).succeeded();
    assert_eq!(tree.file("file00").data.first_difference(0, &bucket.object("copy")), None, "{copied:?}");
    assert!(home.join(".local/state/forebay/staging").is_dir());
    for path in [&summary["pid_file"], &summary["log"]] {
        assert!(path.as_str().is_some_and(|path| Path::new(path).starts_with(home)), "{summary}");
    }
    let _ = namespace.run(forebay(&[]).arg("umount").arg(&mountpoint)).succeeded();
    assert!(ended(process.0) && !namespace.has_mount(&mountpoint));

    // A mount of root is seen, and what it stages is not the user's business: nothing fails unless it is asked for.
    let of_root = Setup::of(&bucket).memory("64MiB").up(&bucket);
    let _ = namespace.run(forebay(&[]).args(["fs", "staged", "ls"])).succeeded();
    namespace.run(forebay(&[]).args(["fs", "staged", "ls"]).arg(of_root.root())).failed(5, &["Permission denied"]);
    drop(of_root);

    // And what a killed process leaves, its user can repair.
    let mut up = up_of(&bucket);
    let up = up.arg(&mountpoint).args(["--json", "--memory", "64MiB"]);
    let pid_of = |finished: Finished| {
        let summary: Value = serde_json::from_slice(&finished.succeeded().stdout).unwrap();
        EndOnDrop(summary["pid"].as_u64().unwrap() as u32)
    };
    let first = pid_of(namespace.run(up));
    signal(first.0, Signal::KILL);
    eventually("it is killed", SOON, || ended(first.0));
    let _second = pid_of(namespace.run(up));
    let cat = namespace.run(Command::new("cat").arg(mountpoint.join("file00"))).succeeded();
    assert_eq!(tree.file("file00").data.first_difference(0, &cat.stdout), None);
    let _ = namespace.run(forebay(&[]).arg("umount").arg(&mountpoint)).succeeded();
}

struct EndOnDrop(u32);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        if !ended(self.0) {
            signal(self.0, Signal::KILL);
        }
    }
}

/// Code, stacks, tables, buffers of connections: what a process takes besides its configured memory.
const ALLOWANCE: u64 = 96 * MIB;

/// Reads files of `times` times the size of the cache, sent by the worker or not, and compares what the processes take with what they
/// may.
fn verify_memory_is_bounded(times: usize, shared_memory: &str) {
    const CACHE: u64 = 64 * MIB;
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(times, CACHE);
    tree.put_into(&bucket, "");
    let worker = Setup::of(&bucket).memory("64MiB").worker(&bucket);
    let mount = Setup::without_origin().option(&format!("network.shared_memory={shared_memory}")).mount([&worker]);
    let mut taken = Vec::new();
    for file in &tree.files {
        reading::verify(&mount.path(&file.path), file.data, file.size);
        reading::forget_pages(&mount.path(&file.path));
        // The worker's memory is also that of a mount that it is shared with.
        let shared = resident_shared(mount.pid());
        assert!(shared < CACHE + 8 * MIB, "{shared} bytes are shared with the mount");
        taken.push([resident(worker.pid()), resident(mount.pid()) - shared]);
    }
    for processes in &taken {
        assert!(processes.iter().all(|bytes| *bytes > 0 && *bytes < CACHE + ALLOWANCE), "resident: {taken:?}");
    }
    let (first, last) = (taken[0], taken[taken.len() - 1]);
    // A mount that shares a worker's memory takes its own only when a read goes past that, whenever that is: the bound above
    // holds for it, and has room for all of it.
    let grown = if shared_memory == "off" { 0..2 } else { 0..1 };
    for at in grown {
        assert!(last[at] < first[at] + 32 * MIB, "it grows: {taken:?}");
    }
    println!("resident after each {} MiB, worker and mount: {taken:?}", CACHE / MIB);
}

#[test]
fn memory_stays_bounded_while_three_times_the_cache_is_read() {
    verify_memory_is_bounded(3, "off");
    verify_memory_is_bounded(3, "auto");
}

#[test]
fn memory_stays_bounded_while_thirty_times_the_cache_is_read() {
    if is_long_run() {
        verify_memory_is_bounded(30, "off");
        verify_memory_is_bounded(30, "auto");
    }
}
