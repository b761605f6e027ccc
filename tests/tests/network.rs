//! A cluster on hosts of its own, with links of limited speed and readers that never rest: workers come, leave and die, and so
//! does etcd. No reader gets an error or a wrong byte, and what each event costs is measured: the table of "A cluster that changes" in
//! `docs/benchmarks/cluster.md`, printed by `FOREBAY_TEST_LONG=1 cargo test -p forebay-e2e --test network -- --nocapture`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_e2e::reading::DirectFile;
use forebay_e2e::{
    Bucket, Finished, Host, Network, Relay, Tree, eventually, finish, forebay, is_long_run, is_root, once,
    ruled_out_by_mode, signal, skipped,
};
use forebay_testkit::{Etcd, EtcdSetup};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use rustix::process::Signal;
use serde_json::Value;

const FILES: usize = 24;
const SIZE: u64 = 8 << 20;
const BLOCK: u64 = 1 << 20;
const READERS: u64 = 3;
/// One worker's link; the reader's is four times as fast, the origin's half.
const LINK: &str = "400mbit";
const SOON: Duration = Duration::from_secs(60);
const LEASE: &str = "cluster.lease_ttl=3s";

/// A process that is killed when it is dropped.
struct Process(Option<Child>);

impl Process {
    fn pid(&self) -> u32 {
        self.0.as_ref().expect("it runs").id()
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn terminate(&mut self) {
        signal(self.pid(), Signal::TERM);
        let mut child = self.0.take().expect("it runs");
        let status = once("it ends", SOON, || child.try_wait().expect("waiting"));
        assert!(status.success(), "{status}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

struct Cluster {
    network: Network,
    bucket: Bucket,
    origin: Relay,
    state: Relay,
    etcd: Etcd,
    directory: tempfile::TempDir,
    workers: BTreeMap<String, Process>,
    coordinator: Option<Process>,
    coordinator_at: String,
    client: Host,
}

impl Cluster {
    fn start() -> Option<Self> {
        if ruled_out_by_mode("its processes listen without one") {
            return None;
        }
        if !is_root() {
            skipped("needs root for network namespaces");
            return None;
        }
        let mut network = match Network::new("200mbit") {
            Ok(network) => network,
            Err(error) => {
                skipped(&format!("no network of namespaces: {error}"));
                return None;
            }
        };
        let Some(etcd) = Etcd::start(&EtcdSetup::default()).expect("etcd") else {
            skipped("etcd is not installed (apt-get install etcd-server)");
            return None;
        };
        let bucket = Bucket::new();
        let own = network.own();
        let origin = Relay::start(own, bucket.proxy().address()).expect("a relay");
        let member = etcd.endpoints()[0].rsplit('/').next().expect("an address").parse().expect("an address");
        let state = Relay::start(own, member).expect("a relay");
        let client = network.host("1600mbit").expect("a host");
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(directory.path().join("mnt")).expect("the mountpoint");
        let (workers, coordinator_at) = (BTreeMap::new(), String::new());
        let coordinator = None;
        Some(Self { network, bucket, origin, state, etcd, directory, workers, coordinator, coordinator_at, client })
    }

    fn etcd(&self) -> String {
        format!("http://{}", self.state.address())
    }

    fn environment(&self) -> Vec<(&'static str, String)> {
        let mut environment = self.bucket.environment();
        // Who may talk to whom is for others to test.
        environment.push(("FOREBAY_SECURITY_MODE", "off".to_owned()));
        for (name, value) in &mut environment {
            if *name == "AWS_ENDPOINT_URL" {
                *value = format!("http://{}", self.origin.address());
            }
        }
        environment
    }

    fn root(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    fn log(&self, name: &str) -> PathBuf {
        self.directory.path().join(format!("{name}.log"))
    }

    fn spawn(&self, host: &Host, name: &str, arguments: &[&str]) -> Process {
        let mut command = forebay(&self.environment());
        command.args(arguments);
        let mut command = host.running(&command);
        let log = std::fs::File::options().create(true).append(true).open(self.log(name)).expect("a log");
        command.stdout(Stdio::null()).stderr(log);
        Process(Some(command.spawn().expect("starting")))
    }

    /// Starts a worker on a host of its own.
    fn worker(&mut self, name: &str) {
        let host = self.network.host(LINK).expect("a host");
        let (named, at) = (format!("worker.name={name}"), format!("worker.rpc.bind.host={}", host.address));
        let etcd = self.etcd();
        let arguments = [
            "worker",
            "--etcd",
            &etcd,
            "-o",
            &named,
            "-o",
            &at,
            "-o",
            "worker.memory.size=256MiB",
            "-o",
            LEASE,
            "-o",
            "block.size=1MiB",
            "-o",
            "worker.web.port=0",
            "-o",
            "origin.allow_http=true",
            "-o",
            "worker.memory.prewarm=false",
        ];
        let process = self.spawn(&host, name, &arguments);
        self.workers.insert(name.to_owned(), process);
    }

    fn coordinator(&mut self) {
        let own = self.network.own();
        let (etcd, at) = (self.etcd(), format!("coordinator.bind.host={own}"));
        let command = [
            "coordinator",
            "--etcd",
            &etcd,
            "-o",
            &at,
            "-o",
            "coordinator.port=0",
            "-o",
            LEASE,
            "-o",
            "block.size=1MiB",
        ];
        let mut started = forebay(&self.environment());
        let log = std::fs::File::create(self.log("coordinator")).expect("a log");
        let child = started.args(command).stdout(Stdio::null()).stderr(log).spawn().expect("starting");
        self.coordinator = Some(Process(Some(child)));
        self.coordinator_at = once("the coordinator listens", SOON, || {
            let log = std::fs::read_to_string(self.log("coordinator")).unwrap_or_default();
            let address = log.lines().find_map(|line| line.split_once("coordinator listening on "))?.1;
            Some(address.trim().to_owned())
        });
    }

    fn mount(&self) {
        let etcd = self.etcd();
        let mut command = forebay(&[]);
        command.arg("mount").arg(self.root()).args(["--etcd", &etcd, "-o", "block.size=1MiB"]);
        command.args(["-o", "client.memory.size=32MiB", "-o", "network.tcp.keepalive=500ms"]);
        command.args(["-o", "network.tcp.dead_after=2s", "-o", "client.web.port=0", "-o", LEASE]);
        command.args(["-o", &format!("log.file={}", self.log("mount").display())]);
        let _ = finish(&mut self.client.running(&command), SOON).succeeded();
    }

    fn ask(&self, arguments: &[&str]) -> Finished {
        let mut command = forebay(&[]);
        finish(command.args(arguments).args(["--coordinator", &self.coordinator_at]), SOON * 2)
    }

    /// Waits until the workers in the ring are these.
    fn wait_for_ring(&self, expected: &[&str]) {
        let mut last = Value::Null;
        let what = format!("the ring is {expected:?}");
        eventually(&what, SOON, || {
            let status = self.ask(&["cluster", "status", "--json"]).text();
            last = serde_json::from_str(&status).unwrap_or_default();
            let members = last["cluster"]["members"].as_array().cloned().unwrap_or_default();
            let active = members.iter().filter(|member| member["state"] == "active");
            let mut names: Vec<_> = active.filter_map(|member| member["name"].as_str()).collect();
            names.sort_unstable();
            names == expected
        });
    }

    /// The owner of each block.
    fn owners(&self) -> BTreeMap<(usize, u64), String> {
        let mut owners = BTreeMap::new();
        for file in 0..FILES {
            let path = self.root().join(format!("data/file{file:02}"));
            let mut command = forebay(&[]);
            command.args(["fs", "location", "--json"]).arg(path);
            let rows = finish(&mut self.client.running(&command), SOON).succeeded().text();
            for row in rows.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
                if row["owner"] == true {
                    let block = row["block"].as_u64().expect("a block");
                    owners.insert((file, block), row["worker"].as_str().unwrap_or_default().to_owned());
                }
            }
        }
        owners
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for entry in std::fs::read_dir(self.directory.path()).into_iter().flatten().flatten() {
                if entry.path().extension().is_some_and(|extension| extension == "log") {
                    let log = std::fs::read_to_string(entry.path()).unwrap_or_default();
                    eprintln!("--- {}\n{log}", entry.path().display());
                }
            }
        }
        let mut command = Command::new("umount");
        let _ = command.arg("--lazy").arg(self.root()).stderr(Stdio::null()).status();
        // What serves the mount ends when it is gone; its socket in the namespace keeps that alive until then.
        let users = Command::new("ip").args(["netns", "pids", &self.client.namespace]).output();
        for pid in users.map(|users| String::from_utf8_lossy(&users.stdout).into_owned()).unwrap_or_default().lines() {
            if let Ok(pid) = pid.trim().parse() {
                signal(pid, Signal::KILL);
            }
        }
    }
}

/// What the readers count.
#[derive(Default)]
struct Load {
    bytes: AtomicU64,
    reads: AtomicU64,
    longest: Mutex<Duration>,
    errors: Mutex<Vec<String>>,
    stop: AtomicBool,
}

/// Reads at random places and checks every byte, until told to stop.
fn read(load: &Load, root: &Path, tree: &Tree, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let open = |file: &forebay_e2e::TreeFile| DirectFile::open(&root.join("data").join(&file.path)).expect("opening");
    let files: Vec<DirectFile> = tree.files.iter().map(open).collect();
    while !load.stop.load(Ordering::Relaxed) {
        let at = random.random_range(0..files.len());
        let offset = random.random_range(0..SIZE / BLOCK * 4) * (BLOCK / 4);
        let begun = Instant::now();
        match files[at].read_at(offset, (BLOCK / 4) as usize) {
            Ok(bytes) => {
                if let Some(wrong) = tree.files[at].data.first_difference(offset, &bytes) {
                    load.errors.lock().unwrap().push(format!("a wrong byte at {wrong} of file {at}"));
                }
                load.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                load.reads.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => load.errors.lock().unwrap().push(format!("file {at} at {offset}: {error}")),
        }
        let mut longest = load.longest.lock().unwrap();
        *longest = (*longest).max(begun.elapsed());
    }
}

/// What was before an event.
struct Before {
    what: &'static str,
    owners: BTreeMap<(usize, u64), String>,
    gets: u64,
    bytes: u64,
    read: u64,
    at: Instant,
}

fn before(cluster: &Cluster, load: &Load, what: &'static str) -> Before {
    *load.longest.lock().unwrap() = Duration::ZERO;
    let counts = cluster.bucket.proxy().counts();
    Before {
        what,
        owners: cluster.owners(),
        gets: counts.object_gets,
        bytes: counts.bytes,
        read: load.bytes.load(Ordering::Relaxed),
        at: Instant::now(),
    }
}

/// One event: a row of the table. Which blocks moved, in percent, and what more the origin was asked for.
struct After {
    moved: f64,
    gets: u64,
    /// Of all the data, in percent.
    fetched: f64,
}

impl Before {
    /// Lets the readers come by every block, and adds up.
    fn after(self, cluster: &Cluster, load: &Load) -> After {
        let owners = cluster.owners();
        let target = load.reads.load(Ordering::Relaxed) + 4 * FILES as u64 * (SIZE / BLOCK) * 2;
        eventually("the readers go on", SOON * 2, || load.reads.load(Ordering::Relaxed) >= target);
        let counts = cluster.bucket.proxy().counts();
        let moved = owners.iter().filter(|(block, owner)| self.owners.get(*block) != Some(owner)).count();
        let moved = 100.0 * moved as f64 / owners.len() as f64;
        let (gets, bytes) = (counts.object_gets - self.gets, counts.bytes - self.bytes);
        let rate = (load.bytes.load(Ordering::Relaxed) - self.read) as f64 / self.at.elapsed().as_secs_f64() / 1e6;
        let longest = *load.longest.lock().unwrap();
        let blocks = owners.len();
        println!(
            "| {} | {moved:.1} % of {blocks} | {gets} ({:.1} MB) | {rate:.0} MB/s | {:.0} ms | {} |",
            self.what,
            bytes as f64 / 1e6,
            longest.as_secs_f64() * 1e3,
            load.errors.lock().unwrap().len(),
        );
        assert!(load.errors.lock().unwrap().is_empty(), "{:?}", load.errors.lock().unwrap());
        After { moved, gets, fetched: 100.0 * bytes as f64 / (FILES as u64 * SIZE) as f64 }
    }
}

#[test]
fn workers_come_leave_and_die_and_etcd_too_and_no_reader_gets_an_error() {
    if !is_long_run() {
        return;
    }
    let Some(mut cluster) = Cluster::start() else { return };
    let tree = Tree::of_equal_files(FILES, SIZE);
    tree.put_into(&cluster.bucket, "");
    cluster.coordinator();
    for name in ["w1", "w2", "w3"] {
        cluster.worker(name);
    }
    let url = cluster.bucket.url();
    let _ = cluster.ask(&["mounts", "add", "/data", &url]).succeeded();
    cluster.wait_for_ring(&["w1", "w2", "w3"]);
    let _ = cluster.ask(&["job", "load", "--path", "/data", "--submit", "--watch"]).succeeded();
    cluster.mount();
    let load = Load::default();
    let root = cluster.root();
    println!("| event | blocks that moved | more GETs of the origin | read meanwhile | longest read | errors |");
    println!("| --- | --- | --- | --- | --- | --- |");
    std::thread::scope(|scope| {
        for seed in 0..READERS {
            let (load, root, tree) = (&load, &root, &tree);
            scope.spawn(move || read(load, root, tree, seed));
        }
        let events = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| events(&mut cluster, &load)));
        load.stop.store(true, Ordering::Relaxed);
        if let Err(panic) = events {
            std::panic::resume_unwind(panic);
        }
    });
}

fn events(cluster: &mut Cluster, load: &Load) {
    let calm = before(cluster, load, "none, 3 workers").after(cluster, load);
    assert_eq!((calm.moved, calm.gets), (0.0, 0));

    let event = before(cluster, load, "a 4th worker joins");
    cluster.worker("w4");
    cluster.wait_for_ring(&["w1", "w2", "w3", "w4"]);
    let joined = event.after(cluster, load);
    assert!((10.0..45.0).contains(&joined.moved), "{}", joined.moved);
    assert!(joined.fetched < 2.0, "{} %", joined.fetched);

    let event = before(cluster, load, "a worker is drained and stopped");
    let _ = cluster.ask(&["cluster", "drain", "w1"]).succeeded();
    cluster.workers.get_mut("w1").expect("w1").terminate();
    cluster.wait_for_ring(&["w2", "w3", "w4"]);
    let drained = event.after(cluster, load);
    assert!(drained.fetched < 2.0, "{} %", drained.fetched);

    let event = before(cluster, load, "etcd is killed for 8 s");
    cluster.etcd.kill(0).expect("killing etcd");
    std::thread::sleep(Duration::from_secs(8));
    cluster.etcd.restart(0).expect("starting etcd");
    cluster.wait_for_ring(&["w2", "w3", "w4"]);
    let without = event.after(cluster, load);
    assert!(without.moved == 0.0 && without.fetched < 1.0, "{} %", without.fetched);

    let event = before(cluster, load, "a worker is killed");
    cluster.workers.get_mut("w2").expect("w2").kill();
    cluster.wait_for_ring(&["w3", "w4"]);
    let killed = event.after(cluster, load);
    assert!(killed.fetched < killed.moved * 1.2, "what it held comes from the origin, once: {} %", killed.fetched);

    let event = before(cluster, load, "it comes back, empty");
    cluster.worker("w2");
    cluster.wait_for_ring(&["w2", "w3", "w4"]);
    let back = event.after(cluster, load);
    // Blocks that were not read as a whole since it died come whole from the origin.
    assert!(back.fetched < back.moved * 0.5, "{} %", back.fetched);
}
