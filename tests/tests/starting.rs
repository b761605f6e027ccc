//! What a process is told before it starts, rather than what becomes of it: memory, ports and disks that cannot be had.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use forebay_e2e::reading;
use forebay_e2e::{Bucket, Cluster, Finished, Setup, Tree, eventually, finish, forebay_as, once, skipped};
use forebay_types::Role;

/// A start that is refused is refused at once; with room for a busy machine.
const AT_ONCE: Duration = Duration::from_secs(30);

/// Runs `forebay worker` with these settings to its end.
fn worker(settings: &[&str]) -> Finished {
    finish(&mut worker_command(settings), AT_ONCE)
}

fn worker_command(settings: &[&str]) -> Command {
    let mut command = forebay_as(Role::Worker, "worker", &[]);
    command.arg("worker");
    let common = ["mounts=/=file:///", "worker.rpc.bind.host=127.0.0.1", "worker.web.port=0", "worker.rpc.port=0"];
    for setting in common.iter().chain(settings) {
        command.args(["-o", setting]);
    }
    command
}

#[test]
fn memory_that_no_machine_has_stops_the_start_with_its_key_and_what_to_do() {
    let refused = worker(&["worker.memory.size=900TiB"]);
    refused.failed(2, &["worker.memory.size is 900TiB", "the machine has", "next: lower worker.memory.size"]);
    let directory = tempfile::tempdir().unwrap();
    let mount = |settings: &[&str]| {
        let mut command = forebay_as(Role::Writer, "mount", &[]);
        command.args(["mount", "--workers", "127.0.0.1:9"]).arg(directory.path());
        for setting in settings.iter().chain(&["network.rdma.data.enabled=true"]) {
            command.args(["-o", setting]);
        }
        finish(&mut command, AT_ONCE)
    };
    let most = "network.rdma.data.buffer_pool.max_size=900TiB";
    mount(&[most]).failed(2, &["network.rdma.data.buffer_pool.max_size is 900TiB", "next: lower"]);
    let fraction = mount(&["network.rdma.data.buffer_pool.max_size=1.5"]);
    fraction.failed(2, &["buffer_pool.max_size", "`1.5` is not a whole number of bytes"]);
}

/// A control group of 64 MiB of memory, where this process may make one; removed in the end.
struct Group(PathBuf);

impl Group {
    fn new() -> Option<Self> {
        let name = format!("forebay-test-{}", std::process::id());
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = |controller: &str| {
            let group = groups.lines().find_map(|line| {
                let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
                controllers.split(',').any(|known| known == controller).then_some(group)
            });
            group.map(|group| group.trim_start_matches('/').to_owned())
        };
        let places = [
            own("memory").map(|group| (Path::new("/sys/fs/cgroup/memory").join(group), "memory.limit_in_bytes")),
            own("").map(|group| (Path::new("/sys/fs/cgroup").join(group), "memory.max")),
        ];
        places.into_iter().flatten().find_map(|(parent, limit)| {
            let group = Self(parent.join(&name));
            std::fs::create_dir(&group.0).ok()?;
            std::fs::write(group.0.join(limit), (64 << 20).to_string()).ok()?;
            Some(group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its last process may be on its way out.
        let gone = || std::fs::remove_dir(&self.0).is_ok() || !self.0.exists();
        for _ in 0..100 {
            if gone() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_worker_that_its_control_group_would_have_killed_says_why_it_does_not_start() {
    let Some(group) = Group::new() else {
        return skipped("this process may not make a control group with a limit of memory");
    };
    let command = worker_command(&["worker.memory.size=128MiB"]);
    let mut inside = Command::new("sh");
    inside.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(group.0.join("cgroup.procs"));
    inside.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => inside.env(name, value),
            None => inside.env_remove(name),
        };
    }
    let refused = finish(&mut inside, AT_ONCE);
    refused
        .failed(2, &["worker.memory.size is 128MiB, and its limit here is 64 MiB", "raise the limit of the container"]);
}

#[test]
fn a_port_that_is_taken_is_named_with_its_key_and_a_mount_that_shares_takes_another() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("worker.rpc.port={}", taken.local_addr().unwrap().port());
    let refused = worker(&[&port, "worker.memory.size=64MiB"]);
    refused.failed(6, &["worker.rpc.port: cannot listen on 127.0.0.1", "the port is in use", "or to 0"]);

    let Some(cluster) = Cluster::start(1) else { return };
    // A mount of another test may have it for as long as that runs.
    let take = || std::net::TcpListener::bind("127.0.0.1:29999").ok();
    let _default = once("the default port is taken", 4 * AT_ONCE, take);
    let settings = ["worker.rpc.bind.host=127.0.0.1", "worker.hostname=127.0.0.1", "client.memory.size=8MiB"];
    let shares = cluster.setup().argument("--cache-group", "g").argument("--memory", "64MiB").options(&settings);
    let mount = shares.mount_cluster();
    let moved = || mount.log_text().contains("the default port is taken: a free one is used");
    eventually("the log says that it moved", AT_ONCE, moved);
}

#[test]
fn a_disk_that_is_not_mounted_is_no_directory_that_is_made_and_a_pattern_is_what_is_there() {
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path).display().to_string();
    let missing = worker(&["worker.memory.size=64MiB", &format!("worker.disks={}:64MiB", at("nvme0/forebay"))]);
    missing.failed(3, &[&at("nvme0/forebay"), "what it is in is not there", "mount its disk"]);
    assert!(!root.path().join("nvme0").exists(), "nothing was made");
    let none = worker(&["worker.memory.size=64MiB", &format!("worker.disks={}:64MiB", at("nvme*"))]);
    none.failed(3, &["worker.disks", "no directory matches", "nvme*"]);
    let neither = worker(&["worker.memory.size=0"]);
    neither.failed(2, &["worker.memory.size", "--no-sharing"]);
}

#[test]
fn a_worker_caches_on_disks_alone_and_says_how_it_serves_them() {
    let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(4, 4 << 20));
    tree.put_into(&bucket, "");
    let root = tempfile::tempdir().unwrap();
    let disks = ["nvme0", "nvme1"].map(|name| root.path().join(name));
    disks.iter().for_each(|disk| std::fs::create_dir(disk).unwrap());
    let pattern = root.path().join("nvme*");
    // A disk that answers late on a busy machine is waited for, and the origin is not asked in its place.
    let settings = ["worker.disk.serve=pagecache", "worker.disk.read_timeout=1m"];
    let setup = Setup::of(&bucket).memory("0").disk(&pattern, "64MiB").options(&settings);
    let worker = setup.worker(&bucket);
    let mount = Setup::of_user().mount([&worker]);
    let written = || {
        let stats = worker.stats();
        let disks = stats["store"]["disks"].as_array().unwrap().clone();
        assert!(disks.len() == 2 && disks.iter().all(|disk| disk["serve"] == "pagecache"), "{stats}");
        disks.iter().filter_map(|disk| disk["run_bytes"].as_u64()).sum::<u64>()
    };
    // One after the other: what comes faster than disks take it stays in memory for as long as that has room.
    let mut bytes = 0;
    for file in &tree.files {
        reading::verify(&mount.path(&file.path), file.data, file.size);
        bytes += file.size;
        eventually("it is on the disks", Duration::from_secs(120), || written() >= bytes);
    }
    let gets = bucket.gets();
    tree.verify(&Setup::of_user().mount([&worker]).root());
    assert_eq!(bucket.gets(), gets, "a second reader has it from the cache");
    assert!(worker.log_text().contains("blocks are cached on disk"), "{}", worker.log_text());
    assert!(disks.iter().all(|disk| disk.join("slab").exists()));
}
