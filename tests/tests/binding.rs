//! Hosts with two network cards each, `eth0` with the default route and `ib0`: what the name of one of them binds. Byte counters of
//! the cards say where the data went, and the tables of sockets that nothing listens or is connected anywhere else.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use forebay_e2e::{
    Finished, Host, Network, Relay, Traffic, eventually, finish, forebay, is_root, once, ruled_out_by_mode, signal,
    skipped,
};
use forebay_testkit::{DataSet, Etcd, EtcdSetup};
use rustix::process::Signal;
use serde_json::Value;

const SIZE: u64 = 24 << 20;
/// What goes over a card that carries no data: neighbours that are looked up, and what is said to etcd and coordinators.
const NEXT_TO_NOTHING: u64 = 512 << 10;
const SOON: Duration = Duration::from_secs(60);
/// Fast enough to hold nothing up.
const LINK: &str = "10gbit";
const CARDS: [&str; 2] = ["eth0", "ib0"];

/// What an Alluxio cluster on IPoIB has in `alluxio-site.properties`: the blocks for workers, clients and the coordinator.
const PROPERTIES: &str = "\
# Bind all worker services to the IB network interface
alluxio.worker.rpc.bind.device=ib0
alluxio.worker.data.bind.device=ib0
alluxio.worker.web.bind.device=ib0
alluxio.worker.rest.bind.device=ib0

# Bind the client data channel to the IB network interface
alluxio.user.network.data.bind.device=ib0

alluxio.coordinator.hostname=coordinator1
";

/// A host with its two cards.
struct TwoCards {
    host: Host,
    ib0: Ipv4Addr,
}

impl TwoCards {
    fn address(&self, card: &str) -> IpAddr {
        if card == "ib0" { self.ib0.into() } else { self.host.address.into() }
    }

    fn traffic(&self) -> [Traffic; 2] {
        CARDS.map(|card| self.host.traffic(card).expect("its counters"))
    }
}

/// Two hosts, or three, and one that reads.
struct Scene {
    // Before the network: what runs on it ends first.
    processes: Vec<Child>,
    mounted: Vec<PathBuf>,
    workers: Vec<TwoCards>,
    reader: TwoCards,
    network: Network,
    data: DataSet,
    directory: tempfile::TempDir,
}

impl Scene {
    fn with_workers(count: usize) -> Option<Self> {
        if ruled_out_by_mode("its processes listen without one") {
            return None;
        }
        if !is_root() {
            skipped("needs root for network namespaces");
            return None;
        }
        let mut network = match Network::new(LINK) {
            Ok(network) => network,
            Err(error) => {
                skipped(&format!("no network of namespaces: {error}"));
                return None;
            }
        };
        let own = network.own();
        let mut add = || {
            let host = network.host(LINK).expect("a host");
            let ib0 = network.second_card(&host, "ib0", LINK).expect("a second card");
            host.ip(&format!("route add default via {own} dev eth0")).expect("a default route");
            TwoCards { host, ib0 }
        };
        let (reader, workers) = (add(), (0..count).map(|_| add()).collect());
        let directory = tempfile::tempdir().expect("a directory");
        let data = DataSet::new(7);
        for name in ["data", "mnt"] {
            std::fs::create_dir(directory.path().join(name)).expect("a directory");
        }
        data.write_file(&directory.path().join("data/file"), SIZE).expect("a file");
        let (processes, mounted) = (Vec::new(), Vec::new());
        Some(Self { processes, mounted, workers, reader, network, data, directory })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The origin: a directory that every host has.
    fn mounts(&self) -> String {
        format!("mounts=/=file://{}", self.path("data").display())
    }

    /// Starts a process on a host that says `… listening on ADDRESS`. What it listens on first.
    fn spawn(&mut self, host: Option<&Host>, name: &str, arguments: &[&str]) -> String {
        let log = self.path(&format!("{name}.log"));
        // Who may talk to whom is for others to test.
        let mut command = forebay(&[("FOREBAY_SECURITY_MODE", "off".to_owned())]);
        command.args(arguments);
        let mut command = host.map_or_else(|| clone(&command), |host| host.running(&command));
        let child = command.stdout(Stdio::null()).stderr(File::create(&log).expect("a log")).spawn();
        self.processes.push(child.expect("starting"));
        once(&format!("{name} listens"), SOON, || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let ended = self.processes.last_mut().and_then(|child| child.try_wait().ok()).flatten();
            assert!(ended.is_none(), "{name} ended: {text}");
            let address = text.lines().find_map(|line| line.split_once(" listening on "))?.1;
            Some(address.split_whitespace().next()?.to_owned())
        })
    }

    fn worker(&mut self, at: usize, more: &[&str]) -> String {
        let (host, mounts) = (self.workers[at].host.clone(), self.mounts());
        let name = format!("worker{at}");
        let fixed = ["worker", "-o", "worker.memory.prewarm=false", "-o", "worker.memory.size=128MiB", "-o", &mounts];
        self.spawn(Some(&host), &name, &[&fixed[..], more].concat())
    }

    fn try_mount(&mut self, more: &[&str]) -> Finished {
        let root = self.path("mnt");
        let log = format!("log.file={}", self.path("mount.log").display());
        let mut command = forebay(&[("FOREBAY_SECURITY_MODE", "off".to_owned())]);
        command.arg("mount").arg(&root).args(["-o", &log, "-o", "write.mode=none"]).args(more);
        self.mounted.push(root);
        finish(&mut self.reader.host.running(&command), SOON)
    }

    fn mount(&mut self, more: &[&str]) {
        let _ = self.try_mount(more).succeeded();
    }

    fn unmount(&mut self) {
        let mut command = forebay(&[]);
        command.arg("umount").arg(self.path("mnt"));
        let _ = finish(&mut command, SOON).succeeded();
        self.mounted.clear();
    }

    fn end_processes(&mut self) {
        for child in &mut self.processes {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.processes.clear();
    }

    fn read_all(&self) {
        let read = std::fs::read(self.path("mnt/file")).expect("reading");
        assert_eq!(read.len() as u64, SIZE);
        assert_eq!(self.data.first_difference(0, &read), None);
    }

    /// Everything on this host that listens or is connected does so at the named card.
    fn assert_only_at(&self, place: &TwoCards, card: &str) {
        let sockets = place.host.sockets().expect("its sockets");
        let expected = place.address(card);
        assert!(!sockets.is_empty());
        for socket in sockets {
            assert_eq!(socket.local.ip(), expected, "{card}: {socket:?}");
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for entry in std::fs::read_dir(self.directory.path()).into_iter().flatten().flatten() {
                if entry.path().extension().is_some_and(|extension| extension == "log") {
                    let log = std::fs::read_to_string(entry.path()).unwrap_or_default();
                    eprintln!("--- {}\n{log}", entry.path().display());
                }
            }
        }
        for root in &self.mounted {
            let _ = Command::new("umount").arg("--lazy").arg(root).stderr(Stdio::null()).status();
        }
        // What serves the mount; its sockets keep the namespace alive.
        let users = Command::new("ip").args(["netns", "pids", &self.reader.host.namespace]).output();
        for pid in users.map(|users| String::from_utf8_lossy(&users.stdout).into_owned()).unwrap_or_default().lines() {
            if let Ok(pid) = pid.trim().parse() {
                signal(pid, Signal::KILL);
            }
        }
        self.end_processes();
    }
}

fn clone(command: &Command) -> Command {
    let mut same = Command::new(command.get_program());
    same.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => same.env(name, value),
            None => same.env_remove(name),
        };
    }
    same
}

/// What went through each card since `before`.
fn since(before: [Traffic; 2], now: [Traffic; 2]) -> [Traffic; 2] {
    let less =
        |at: usize| Traffic { received: now[at].received - before[at].received, sent: now[at].sent - before[at].sent };
    [less(0), less(1)]
}

/// The data went out of `worker` and into `reader` through the named card, and next to nothing through the other.
fn assert_carried(named: &str, [worker, reader]: [[Traffic; 2]; 2]) {
    for (at, card) in CARDS.into_iter().enumerate() {
        let (sent, received) = (worker[at].sent, reader[at].received);
        if card == named {
            assert!(sent > SIZE && received > SIZE, "{card}: {sent} bytes sent, {received} received");
            assert!(sent < SIZE * 3 / 2 && received < SIZE * 3 / 2, "{card}: {sent} sent, {received} received");
        } else {
            let all = [worker[at].sent, worker[at].received, reader[at].sent, reader[at].received];
            assert!(all.iter().sum::<u64>() < NEXT_TO_NOTHING, "{card} is not {named}: {all:?}");
        }
    }
}

#[test]
fn data_flows_over_the_named_card_only_whichever_that_is() {
    let Some(mut scene) = Scene::with_workers(1) else { return };
    let properties = scene.path("alluxio-site.properties");
    let imported = |scene: &Scene, card: &str| {
        std::fs::write(&properties, PROPERTIES.replace("ib0", card)).expect("the properties");
        let toml = finish(forebay(&[]).args(["conf", "import", "--strict"]).arg(&properties), SOON).succeeded();
        let file = scene.path(&format!("{card}.toml"));
        std::fs::write(&file, toml.stdout).expect("the configuration");
        vec!["--config".to_owned(), file.display().to_string()]
    };
    let group = |card: &str| vec!["-o".to_owned(), format!("network.group_network={card}")];
    let cases = [
        ("ib0", imported(&scene, "ib0")),
        ("eth0", imported(&scene, "eth0")),
        ("ib0", group("ib0")),
        ("eth0", group("eth0")),
    ];
    for (card, settings) in cases {
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let listening = scene.worker(0, &settings);
        assert_eq!(listening, format!("{}:29999", scene.workers[0].address(card)));
        scene.mount(&[&settings[..], &["--workers", &listening, "-o", "client.web.bind.host=127.0.0.1"]].concat());
        let before = [scene.workers[0].traffic(), scene.reader.traffic()];
        scene.read_all();
        let after = [scene.workers[0].traffic(), scene.reader.traffic()];
        assert_carried(card, [since(before[0], after[0]), since(before[1], after[1])]);
        // Requests and data, `/metrics` and `/stats`.
        scene.assert_only_at(&scene.workers[0], card);
        let ports = scene.workers[0].host.sockets().expect("its sockets");
        let listens = |port: u16| ports.iter().any(|socket| socket.remote.is_none() && socket.local.port() == port);
        assert!(listens(29999) && listens(30000), "{ports:?}");
        let reader = scene.reader.host.sockets().expect("its sockets");
        let connected: Vec<_> = reader.iter().filter(|socket| socket.remote.is_some()).collect();
        assert!(!connected.is_empty());
        assert!(connected.iter().all(|socket| socket.local.ip() == scene.reader.address(card)), "{connected:?}");
        scene.unmount();
        scene.end_processes();
    }
}

/// A worker at an address of neither network, that both lead to: which of them is taken is the reader's choice alone.
#[test]
fn where_both_cards_lead_to_a_worker_the_readers_own_setting_decides() {
    const ELSEWHERE: &str = "198.51.100.7";
    let Some(mut scene) = Scene::with_workers(1) else { return };
    let (worker, reader) = (&scene.workers[0], &scene.reader);
    worker.host.ip(&format!("address add {ELSEWHERE}/32 dev lo")).expect("an address");
    reader.host.ip(&format!("route add {ELSEWHERE} via {} dev eth0", worker.host.address)).expect("a route");
    let by_source = [
        format!("rule add from {} lookup 7", reader.ib0),
        format!("route add {ELSEWHERE} via {} dev ib0 table 7", worker.ib0),
    ];
    if let Some(error) = by_source.iter().find_map(|command| reader.host.ip(command).err()) {
        return skipped(&format!("no routing by source: {error}"));
    }
    let listening = scene.worker(0, &["-o", &format!("worker.rpc.bind.host={ELSEWHERE}")]);
    assert_eq!(listening, format!("{ELSEWHERE}:29999"));
    for (card, key) in [
        ("eth0", "log.level=info"),
        ("ib0", "client.network.data.bind.device=ib0"),
        ("ib0", "network.group_network=ib0"),
    ] {
        scene.mount(&["--workers", &listening, "-o", key]);
        let before = [scene.workers[0].traffic(), scene.reader.traffic()];
        scene.read_all();
        let after = [scene.workers[0].traffic(), scene.reader.traffic()];
        assert_carried(card, [since(before[0], after[0]), since(before[1], after[1])]);
        scene.unmount();
    }
}

/// A worker that only this machine may read from tells nobody else its counters either, before somebody has said who may ask.
#[test]
fn pages_on_a_card_wait_for_a_mode_as_data_does() {
    let Some(scene) = Scene::with_workers(1) else { return };
    let mounts = scene.mounts();
    let settings = [mounts.as_str(), "worker.rpc.bind.host=127.0.0.1", "worker.web.bind.device=ib0"];
    let mut command = forebay(&[]);
    command.arg("worker").args(settings.iter().flat_map(|setting| ["-o", setting]));
    let refused = finish(&mut scene.workers[0].host.running(&command), SOON);
    refused.failed(2, &[&format!("would listen at {}:30000", scene.workers[0].ib0), "`security.mode` is not set"]);
}

#[test]
fn the_groups_network_is_that_of_metrics_and_of_the_coordinator_too() {
    let Some(mut scene) = Scene::with_workers(1) else { return };
    let group = ["-o", "network.group_network=ib0"];
    let worker = scene.worker(0, &group);
    let reader = scene.reader.host.clone();
    let state = format!("coordinator.state_dir={}", scene.path("state").display());
    let workers = format!("cluster.workers={worker}");
    let command = [&["coordinator", "-o", &state, "-o", &workers][..], &group].concat();
    let coordinator = scene.spawn(Some(&reader), "coordinator", &command);
    assert_eq!(coordinator, format!("{}:19999", scene.reader.ib0));
    // A mount's pages are for its own machine, unless they are for all.
    let opened = ["--workers", &worker, "-o", "client.web.bind.host=0.0.0.0"];
    scene.mount(&[&group[..], &opened].concat());
    scene.read_all();
    for place in [&scene.workers[0], &scene.reader] {
        scene.assert_only_at(place, "ib0");
    }
    // Commands, too: from the other host, over the same card.
    let environment = [("FOREBAY_NETWORK_GROUP_NETWORK", "ib0".to_owned())];
    let mut status = forebay(&environment);
    status.args(["cluster", "status", "--coordinator", &coordinator]);
    let before = scene.workers[0].traffic();
    let _ = finish(&mut scene.workers[0].host.running(&status), SOON).succeeded();
    let asked = since(before, scene.workers[0].traffic());
    assert!(asked[1].received > 0 && asked[0].received < 4096, "{asked:?}");
}

#[test]
fn in_a_cluster_data_has_a_card_of_its_own_and_the_coordinator_needs_only_the_other() {
    let Some(mut scene) = Scene::with_workers(2) else { return };
    let Some(etcd) = Etcd::start(&EtcdSetup::default()).expect("etcd") else {
        return skipped("etcd is not installed (apt-get install etcd-server)");
    };
    let member = etcd.endpoints()[0].rsplit('/').next().expect("an address").parse().expect("an address");
    let own = scene.network.own();
    let relay = Relay::start(own, member).expect("a relay");
    let etcd_url = format!("http://{}", relay.address());
    // No worker leaves this ring because it had no processor for a moment.
    let cluster = ["--etcd", &etcd_url, "-o", "cluster.lease_ttl=60s", "-o", "block.size=1MiB"];
    let cards = ["-o", "worker.rpc.bind.device=eth0", "-o", "worker.data.bind.device=ib0"];
    for (at, name) in ["worker.name=w0", "worker.name=w1"].into_iter().enumerate() {
        let listening = scene.worker(at, &[&cluster[..], &cards, &["-o", name]].concat());
        assert_eq!(listening, format!("{}:29999", scene.workers[at].host.address), "that for requests is told first");
    }
    // The test's own process is on the network of `eth0` only. A file that all share may name the clients' card all the same.
    let clients = ["-o", "client.network.data.bind.device=ib0"];
    let at = format!("coordinator.bind.host={own}");
    let command = [&["coordinator", "-o", &at, "-o", "coordinator.port=0"][..], &cluster, &clients].concat();
    let coordinator = scene.spawn(None, "coordinator", &command);
    let ask = |arguments: &[&str]| finish(forebay(&[]).args(arguments).args(["--coordinator", &coordinator]), SOON);
    let members = || {
        let status: Value = serde_json::from_str(&ask(&["cluster", "status", "--json"]).text()).unwrap_or_default();
        status["cluster"]["members"].as_array().cloned().unwrap_or_default()
    };
    eventually("both workers are there", SOON, || {
        members().iter().filter(|member| member["state"] == "active").count() == 2
    });
    for (member, place) in members().iter().zip(&scene.workers) {
        let addresses = &member["addresses"];
        assert_eq!(addresses["rpc"], format!("{}:29999", place.host.address), "{member}");
        assert_eq!(addresses["tcp_data"][0], format!("{}:29999", place.ib0), "{member}");
        assert_eq!(addresses["web"], format!("{}:30000", place.host.address), "{member}");
    }
    // Its own client may hear of the second one only while it loads.
    let _ = ask(&["job", "load", "--path", "/", "--submit", "--watch"]).succeeded();

    // So with commands, of which this one asks the workers itself.
    let endpoints = format!("cluster.etcd.endpoints={etcd_url}");
    let list = ["fs", "ls", "/", "-o", &endpoints, "-o", "block.size=1MiB"];
    let listed = finish(forebay(&[]).args(list).args(clients), SOON).succeeded();
    assert!(listed.text().contains("file"), "{}", listed.text());

    scene.mount(&[&cluster[..], &clients].concat());
    let traffic = |scene: &Scene| {
        let workers = scene.workers.iter().map(TwoCards::traffic);
        let workers = workers.fold([Traffic::default(); 2], |sum, one| {
            [0, 1]
                .map(|at| Traffic { received: sum[at].received + one[at].received, sent: sum[at].sent + one[at].sent })
        });
        [workers, scene.reader.traffic()]
    };
    let before = traffic(&scene);
    scene.read_all();
    let after = traffic(&scene);
    assert_carried("ib0", [since(before[0], after[0]), since(before[1], after[1])]);

    // What a worker hands over goes from worker to worker.
    let before = [scene.workers[0].traffic(), scene.workers[1].traffic()];
    let _ = ask(&["cluster", "drain", "w0"]).succeeded();
    let moved = [0, 1].map(|at| since(before[at], scene.workers[at].traffic()));
    let expected = SIZE / 5;
    assert!(moved[0][1].sent > expected && moved[1][1].received > expected, "some half of the blocks: {moved:?}");
    assert!(moved[0][0].sent + moved[1][0].sent < NEXT_TO_NOTHING, "{moved:?}");
    scene.read_all();
    scene.unmount();
}

#[test]
fn a_card_that_has_only_addresses_of_ipv6_is_one_like_any_other() {
    if !std::path::Path::new("/proc/net/if_inet6").exists() {
        return skipped("the kernel has no IPv6");
    }
    let Some(mut scene) = Scene::with_workers(1) else { return };
    for (place, address) in [(&scene.workers[0], "fd00:1::1"), (&scene.reader, "fd00:1::2")] {
        place.host.ip("address flush dev ib0 scope global").expect("taking the address away");
        if let Err(error) = place.host.ip(&format!("-6 address add {address}/64 dev ib0 nodad")) {
            return skipped(&format!("no addresses of IPv6: {error}"));
        }
    }
    let binding = ["-o", "worker.rpc.bind.device=ib0", "-o", "client.network.data.bind.device=ib0"];
    let listening = scene.worker(0, &binding);
    assert_eq!(listening, "[fd00:1::1]:29999");
    scene.mount(&[&binding[..], &["--workers", &listening]].concat());
    let before = [scene.workers[0].traffic(), scene.reader.traffic()];
    scene.read_all();
    let after = [scene.workers[0].traffic(), scene.reader.traffic()];
    assert_carried("ib0", [since(before[0], after[0]), since(before[1], after[1])]);
    scene.unmount();
}

/// What a failover or the system itself adds to a card comes and goes.
#[test]
fn a_card_is_known_by_its_own_address_whatever_is_added_to_it() {
    let Some(mut scene) = Scene::with_workers(1) else { return };
    let place = &scene.workers[0];
    let [a, b, c, _] = place.ib0.octets();
    // Both are smaller: one more in the same subnet, and one of none.
    for added in [format!("{a}.{b}.{c}.1/24"), "10.0.0.1/32".to_owned()] {
        place.host.ip(&format!("address add {added} dev ib0")).expect("an address");
    }
    let expected = format!("{}:29999", place.ib0);
    assert_eq!(scene.worker(0, &["-o", "worker.rpc.bind.device=ib0"]), expected);
}

#[test]
fn a_card_that_cannot_be_bound_to_stops_every_command_with_those_that_can() {
    let Some(scene) = Scene::with_workers(1) else { return };
    let place = &scene.workers[0];
    let (mounts, root) = (scene.mounts(), scene.path("mnt").display().to_string());
    let origin = scene.path("data").display().to_string();
    let right = format!("eth0 ({})", place.host.address);
    let refused = |command: &[&str], key: &str, card: &str, what: &[&str]| {
        let mut starting = forebay(&[]);
        starting.args(command).args(["-o", &format!("{key}={card}")]);
        let finished = finish(&mut place.host.running(&starting), SOON);
        finished.failed(2, &[key, card, &right, "lo (127.0.0.1)"]);
        finished.failed(2, what);
    };
    let worker = ["worker", "-o", &mounts];
    for key in ["rpc", "data", "web", "rest"] {
        refused(&worker, &format!("worker.{key}.bind.device"), "ib7", &["there is no network interface", "ib0 ("]);
    }
    let mount = ["mount", &root, "--workers", "198.51.100.1:29999"];
    for key in ["client.network.data.bind.device", "network.group_network"] {
        refused(&mount, key, "IB0", &["case-sensitive"]);
    }
    for command in [&["up", &origin, &root][..], &["coordinator"], &worker, &["fs", "ls", "--workers", "h:1", "/"]] {
        refused(command, "network.group_network", "ib7", &["there is no network interface"]);
    }
    let environment = [("FOREBAY_NETWORK_GROUP_NETWORK", "ib7".to_owned())];
    let mut jobs = forebay(&environment);
    jobs.args(["job", "list", "--coordinator", "198.51.100.1:19999"]);
    finish(&mut place.host.running(&jobs), SOON).failed(2, &["network.group_network", "ib7", &right]);
    place.host.ip("address flush dev ib0").expect("taking the addresses away");
    refused(&worker, "worker.rpc.bind.device", "ib0", &["has no address", "ip addr add"]);
    place.host.ip(&format!("address add {}/24 dev ib0", place.ib0)).expect("an address");
    place.host.ip("link set ib0 down").expect("taking it down");
    refused(&worker, "worker.data.bind.device", "ib0", &["is down", "ip link set ib0 up"]);
    refused(&mount, "client.network.data.bind.device", "ib0", &["is down"]);
}
