//! `forebay doctor` on the machine that the tests run on, whatever that has; with another process of it as the host that is asked.
//! Between two devices of RDMA it runs in `make test-rdma`.

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use forebay_e2e::{Bucket, Cluster, Finished, Setup, eventually, finish, forebay, has_ucx};
use forebay_testkit::ReservedPort;
use serde_json::Value;

fn doctor(environment: &[(&str, String)], arguments: &[&str]) -> Finished {
    let mut command = alone(environment);
    // Port 0: another test's worker must not be in the way.
    let arguments = ["doctor", "-o", "worker.rpc.port=0"].into_iter().chain(arguments.iter().copied());
    finish(command.args(arguments), Duration::from_secs(60))
}

/// The program, which sees no mounts: those of other tests are not well, at times.
fn alone(environment: &[(&str, String)]) -> Command {
    let mut command = forebay(environment);
    // Nothing that is asked here writes to it.
    command.env("FOREBAY_RUN_DIR", "/nonexistent");
    command
}

fn json(finished: &Finished) -> Value {
    let text = finished.text();
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// The check of this section and name, and about this subject if one is given.
fn check<'a>(report: &'a Value, section: &str, name: &str, subject: Option<&str>) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    let is_it = |check: &&Value| {
        let is_about = subject.is_none_or(|subject| check["subject"] == subject);
        check["section"] == section && check["name"] == name && is_about
    };
    checks.iter().find(is_it).unwrap_or_else(|| panic!("no {section} {name} {subject:?} in {checks:#?}"))
}

#[test]
fn a_machine_is_well_as_long_as_nothing_is_asked_of_it() {
    let report = doctor(&[], &[]).succeeded();
    let text = report.text();
    for section in [
        "System",
        "Modules",
        "RDMA devices",
        "UCX",
        "Memory",
        "FUSE",
        "Container",
        "Units",
        "Network",
        "Origin",
        "Cluster",
        "Security",
        "Configuration",
        "Verdicts",
    ] {
        assert!(text.lines().any(|line| line == section), "no {section}: {text}");
    }
    assert!(text.trim_end().ends_with(", 0 fail"), "{text}");
    let report = json(&doctor(&[], &["--json"]).succeeded());
    let count =
        |verdict: &str| report["checks"].as_array().unwrap().iter().filter(|check| check["verdict"] == verdict).count();
    for verdict in ["ok", "info", "warn", "fail"] {
        assert_eq!(report["counts"][verdict], count(verdict), "{verdict}");
    }
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(report["facts"]["system"]["kernel"], kernel.trim());
    let loopback = report["facts"]["interfaces"].as_array().unwrap().iter().find(|interface| interface["name"] == "lo");
    assert_eq!(loopback.unwrap()["addresses"][0]["ip"], "127.0.0.1");
    let is_fuse_there = std::path::Path::new("/dev/fuse").exists();
    assert_eq!(report["facts"]["fuse"]["device"] == "missing", !is_fuse_there);
}

#[test]
fn doctor_and_version_speak_of_the_same_libucp() {
    let version = finish(forebay(&[]).args(["version", "--json"]), Duration::from_secs(60)).succeeded();
    let version = &json(&version)["ucx"];
    let report = json(&doctor(&[], &["--json"]).succeeded());
    let ucx = &report["facts"]["ucx"];
    assert_eq!(version["version"], ucx["version"]);
    assert_eq!(version["path"], ucx["path"]);
    assert_eq!(version["error"], ucx["error"]);
    if version["error"].is_null() {
        assert_eq!(version["transports"], ucx["transports"]);
        let text = finish(forebay(&[]).arg("version"), Duration::from_secs(60)).succeeded().text();
        let line = text.lines().find_map(|line| line.trim().strip_prefix("ucx ")).unwrap().trim().to_owned();
        let report = doctor(&[], &[]).succeeded().text();
        assert!(
            report.lines().any(|other| other.trim().strip_prefix("libucp").is_some_and(|rest| rest.trim() == line))
        );
    }
}

#[test]
fn an_origin_that_answers_is_well_and_one_that_does_not_is_a_failure_with_its_code() {
    let bucket = Bucket::new();
    let origin = bucket.url();
    let finished = doctor(&bucket.environment(), &["--json", "--origin", &origin]).succeeded();
    let report = json(&finished);
    assert_eq!(check(&report, "origin", "reachable", Some(&origin))["verdict"], "ok");
    // The server is this machine, and its clock ours.
    assert_eq!(check(&report, "origin", "clock-skew", Some(&origin))["verdict"], "ok");
    let port = ReservedPort::new().unwrap();
    let nobody = format!("http://{}/", port.address());
    let once = ["--json", "-o", "origin.retry.max_attempts=1", "--origin", &nobody];
    let finished = doctor(&[], &once);
    finished.failed(4, &["reachable failed", "next: "]);
    let report = json(&finished);
    let failed = check(&report, "origin", "reachable", Some(&nobody));
    assert!(failed["verdict"] == "fail" && failed["remedy"].is_string(), "{failed}");
}

#[test]
fn a_password_in_a_url_is_refused_and_not_passed_on() {
    let finished = doctor(&[], &["--json", "--origin", "http://me:secret@127.0.0.1:9/"]);
    finished.failed(2, &["reachable failed"]);
    assert!(!finished.text().contains("secret"), "{}", finished.text());
}

#[test]
fn what_the_configuration_asks_for_and_is_not_there_is_a_failure_with_the_names_that_are() {
    let finished = doctor(&[], &["--json", "-o", "worker.rpc.bind.device=nonesuch"]);
    finished.failed(1, &["binding failed"]);
    let report = json(&finished);
    let binding = check(&report, "network", "binding", Some("worker.rpc.bind.device"));
    assert!(binding["remedy"].as_str().unwrap().contains("lo"), "{binding}");
    let finished = doctor(&[], &["--rdma-network", "nonesuch"]);
    assert!(finished.code.is_some_and(|code| code != 0) && finished.text().contains("there is no interface nonesuch"));
}

#[test]
fn a_wrong_configuration_is_told_and_the_machine_looked_at_all_the_same() {
    let finished = doctor(&[], &["--json", "-o", "worker.memory.siz=1GiB"]);
    finished.failed(2, &["settings failed"]);
    let report = json(&finished);
    let settings = check(&report, "configuration", "settings", None);
    assert!(settings["what"].as_str().unwrap().contains("did you mean `worker.memory.size`"), "{settings}");
    assert!(report["facts"]["interfaces"].as_array().is_some_and(|interfaces| !interfaces.is_empty()));
}

#[test]
fn a_machine_that_was_recorded_is_looked_at_with_its_own_settings_and_asked_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let recorded = folder.path().join("node1");
    let recorded = recorded.to_str().unwrap();
    let secret = ("MY_TOKEN", "s3cr3t-of-the-environment".to_owned());
    let live = ["--json", "-o", "worker.rpc.bind.device=nonesuch", "--record", recorded];
    let then = doctor(&[secret], &live);
    then.failed(1, &["binding failed", "recorded to"]);
    let then = json(&then);
    let root = ["doctor", "--json", "--root", recorded];
    let now = finish(forebay(&[]).args(root), Duration::from_secs(60));
    now.failed(1, &["binding failed"]);
    let now = json(&now);
    assert_eq!(now["checks"], then["checks"]);
    assert_eq!(now["facts"]["recording"]["folder"], recorded);
    let mut other = now["facts"].clone();
    other["recording"] = Value::Null;
    assert_eq!(other, then["facts"]);
    let document = std::fs::read_to_string(format!("{recorded}/forebay-doctor.json")).unwrap();
    assert!(!document.contains("s3cr3t"), "{document}");
    let text = finish(forebay(&[]).args(["doctor", "--problems", "--root", recorded]), Duration::from_secs(60));
    let shown = text.text();
    assert!(shown.starts_with("A recorded tree is looked at, and not this machine"), "{shown}");
    assert!(shown.contains("fail  network binding worker.rpc.bind.device") && !shown.contains("\n  ok "), "{shown}");
    // Other settings, and the machine is well.
    let mut command = forebay(&[]);
    command.args(["doctor", "--root", recorded, "-o", "worker.rpc.bind.device=lo"]);
    let _ = finish(&mut command, Duration::from_secs(60)).succeeded();
    doctor(&[], &["--record", recorded]).failed(2, &["it is not empty", "next: "]);
    doctor(&[], &["--root", "/nonexistent"]).failed(3, &["/nonexistent", "next: "]);
    doctor(&[], &["--root", recorded, "--peer", "node2"]).failed(2, &["--root"]);
}

#[test]
fn a_key_is_opened_as_a_worker_opens_it_and_is_in_no_report_or_recording() {
    let folder = tempfile::tempdir().unwrap();
    let (key, recorded) = (folder.path().join("cluster.key"), folder.path().join("node1"));
    let create = || finish(forebay(&[]).args(["key", "create"]), Duration::from_secs(60)).succeeded().text();
    let write = |text: &str, mode: u32| {
        std::fs::write(&key, text).unwrap();
        std::fs::set_permissions(&key, Permissions::from_mode(mode)).unwrap();
    };
    let (first, second) = (create(), create());
    let file = key.to_str().unwrap();
    let setting = format!("security.key_file={file}");
    let arguments = ["--json", "-o", "security.mode=key", "-o", &setting];
    let look = |more: &[&str]| doctor(&[], &[&arguments[..], more].concat());

    let missing = look(&[]);
    missing.failed(1, &["file failed"]);
    let remedy = check(&json(&missing), "security", "file", Some(file))["remedy"].clone();
    assert!(remedy.as_str().unwrap().contains("forebay key create"), "{remedy}");
    write(&first, 0o644);
    let open = look(&[]);
    open.failed(1, &["file failed"]);
    let open = json(&open);
    assert_eq!(check(&open, "security", "file", Some(file))["remedy"], format!("chmod 600 {file}"));

    write(&first, 0o600);
    let good = json(&look(&[]).succeeded());
    let shown = finish(forebay(&[]).args(["key", "show", "-o", &setting]), Duration::from_secs(60)).succeeded().text();
    let fingerprint = shown.split_whitespace().next().unwrap();
    let keys = check(&good, "security", "keys", Some(file));
    assert!(keys["verdict"] == "ok" && keys["what"].as_str().unwrap().starts_with(fingerprint), "{keys}");
    let identity = check(&good, "security", "identity", None);
    assert!(identity["what"].as_str().unwrap().starts_with("spiffe://forebay/forebay/forebay/"), "{identity}");
    // What keeps the clock of the machine that tests run on is its own affair.
    assert!(["ok", "warn"].contains(&check(&good, "security", "clock", None)["verdict"].as_str().unwrap()));

    write(&format!("{first}{second}"), 0o600);
    let finished = look(&["--record", recorded.to_str().unwrap()]).succeeded();
    let both = json(&finished);
    assert_eq!(check(&both, "security", "keys", Some(file))["verdict"], "warn");
    let document = std::fs::read_to_string(recorded.join("forebay-doctor.json")).unwrap();
    assert!(document.contains(fingerprint), "{document}");
    let is_copied = recorded.join(file.trim_start_matches('/')).exists();
    assert!(!is_copied, "a secret is not recorded");
    for secret in [&first, &second].map(|pem| pem.lines().nth(1).unwrap()) {
        assert!(!document.contains(secret) && !finished.text().contains(secret), "{document}");
    }
    let root = ["doctor", "--json", "--root", recorded.to_str().unwrap()];
    let then = json(&finish(forebay(&[]).args(root), Duration::from_secs(60)).succeeded());
    assert_eq!(then["checks"], both["checks"]);
}

#[test]
fn a_certificate_is_opened_as_a_worker_opens_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let create = finish(forebay(&[]).args(["key", "create"]), Duration::from_secs(60)).succeeded().text();
    std::fs::write(path("cluster.key"), create).unwrap();
    std::fs::set_permissions(path("cluster.key"), Permissions::from_mode(0o600)).unwrap();
    let (key, team) = (format!("security.key_file={}", path("cluster.key")), path("team-a"));
    let issue = ["key", "issue", "--role", "reader", "--client", "team-a", "--output", &team, "-o", &key];
    let _ = finish(forebay(&[]).args(issue), Duration::from_secs(60)).succeeded();
    let settings = [("cert_file", "tls.crt"), ("cert_key_file", "tls.key"), ("ca_file", "ca.crt")];
    let settings = settings.map(|(key, name)| format!("security.{key}={team}/{name}"));
    let mut arguments = vec!["--json", "-o", "security.mode=mtls"];
    arguments.extend(settings.iter().flat_map(|setting| ["-o", setting.as_str()]));
    let report = json(&doctor(&[], &arguments).succeeded());
    let certificate = check(&report, "security", "certificate", Some(format!("{team}/tls.crt").as_str()));
    assert!(certificate["verdict"] == "ok" && certificate["what"].as_str().unwrap().contains("of 90 days"));
    assert_eq!(check(&report, "security", "role", None)["verdict"], "info", "a reader, and write.mode is its default");

    std::fs::remove_file(format!("{team}/tls.key")).unwrap();
    let finished = doctor(&[], &arguments);
    finished.failed(1, &["file failed"]);
    let report = json(&finished);
    let missing = check(&report, "security", "file", Some(format!("{team}/tls.key").as_str()));
    assert_eq!(missing["what"], "it is not there");
}

#[test]
fn a_port_that_is_taken_is_told_with_who_has_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("worker.rpc.port={}", listener.local_addr().unwrap().port());
    let mounts = format!("mounts=/=file://{}", std::env::temp_dir().display());
    let arguments = ["doctor", "--json", "-o", &port, "-o", &mounts];
    let finished = finish(alone(&[]).args(arguments), Duration::from_secs(60));
    finished.failed(1, &["port failed"]);
    let report = json(&finished);
    let taken = check(&report, "network", "port", Some("worker.rpc.port"));
    // This test's process has it.
    let expected = format!("(process {})", std::process::id());
    assert!(taken["what"].as_str().unwrap().contains(&expected), "{taken}");
}

/// UCX between two processes of this machine: as RDMA is asked for, and by software.
const UCX: [&str; 4] = ["-o", "network.rdma.data.enabled=true", "-o", "network.rdma.data.transports=tcp,self"];

/// `forebay bench rdma` on a free port, killed at the end.
struct BenchServer {
    child: Child,
    address: SocketAddr,
}

impl BenchServer {
    fn start(transport: &[&str]) -> Self {
        let mut command = forebay(&[]);
        command.args(["bench", "rdma", "--local-ip", "127.0.0.1", "--local-port", "0"]).args(transport);
        let mut child = command.env("UCX_NET_DEVICES", "lo").stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let running = |line: std::io::Result<String>| {
            let line = line.ok()?;
            line.split_once("Server running on ")?.1.split(' ').next()?.parse().ok()
        };
        let address = lines.find_map(running).expect("it runs");
        Self { child, address }
    }
}

impl Drop for BenchServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asks `peer`; UCX is to stay on loopback.
fn ask_peer(peer: &str, arguments: &[&str]) -> Finished {
    let mut command = alone(&[("UCX_NET_DEVICES", "lo".to_owned())]);
    command.args(["doctor", "--json", "--peer", peer]).args(arguments);
    finish(&mut command, Duration::from_secs(180))
}

/// The verdict on this check of the peer.
fn of_peer<'a>(report: &'a Value, name: &str, subject: &str) -> (&'a str, &'a str) {
    let check = check(report, "peer", name, Some(subject));
    (check["verdict"].as_str().unwrap(), check["what"].as_str().unwrap())
}

#[test]
fn a_peer_with_a_benchmark_server_is_measured_over_tcp_in_both_directions() {
    let server = BenchServer::start(&["--transport", "tcp"]);
    let peer = server.address.to_string();
    let report = json(&ask_peer(&peer, &["-o", "worker.rpc.port=0"]).succeeded());
    let facts = &report["facts"]["peers"][0];
    assert_eq!((&facts["route"]["interface"], &facts["route"]["source"]), (&"lo".into(), &"127.0.0.1".into()));
    assert!(facts["path_mtu"]["delivered"].as_u64() > Some(1500), "{facts}");
    assert_eq!(of_peer(&report, "reachable", &format!("{peer} benchmark")).0, "ok");
    assert_eq!(of_peer(&report, "path-mtu", &peer).0, "ok");
    let tcp = format!("{peer} tcp");
    // How long it takes on a machine that is busy with other tests is its own affair.
    assert!(["ok", "warn"].contains(&of_peer(&report, "latency", &tcp).0));
    let (verdict, what) = of_peer(&report, "bandwidth", &tcp);
    assert!(verdict == "info" && what.contains("to it") && what.contains("from it"), "{what}");
    assert_eq!(of_peer(&report, "counted", &tcp).0, "ok", "the bytes are loopback's");
    let measured = &facts["measured"][0];
    assert!(measured["verified"].as_u64() > Some(0) && measured["moved_bytes"].as_u64() > Some(1 << 20), "{measured}");
    for kind in ["latency", "bandwidth"] {
        assert_eq!(
            measured[kind].as_array().unwrap().len(),
            9,
            "three sizes, each way and as the cache reads: {measured}"
        );
    }
}

#[test]
fn a_peer_is_connected_to_over_ucx_where_rdma_is_asked_for() {
    if !has_ucx() {
        return;
    }
    let server = BenchServer::start(&["--transports", "tcp,self"]);
    let peer = server.address.to_string();
    let arguments = [&UCX[..], &["-o", "worker.rpc.port=0"]].concat();
    let finished = ask_peer(&peer, &arguments);
    let report = json(&finished);
    let ucx = format!("{peer} ucx");
    let (verdict, what) = of_peer(&report, "rdma-connect", &ucx);
    assert!(verdict == "info" && what.contains("by software"), "{what}");
    assert_eq!(of_peer(&report, "bandwidth", &ucx).0, "info");
    assert!(report["facts"]["peers"][0]["measured"][1]["lanes"][0].is_string(), "{report}");
    // A server that has none says so.
    let without = BenchServer::start(&["--transport", "tcp"]);
    let peer = without.address.to_string();
    let finished = ask_peer(&peer, &arguments);
    finished.failed(4, &["rdma-connect failed"]);
    let report = json(&finished);
    let (verdict, what) = of_peer(&report, "rdma-connect", &format!("{peer} ucx"));
    assert!(verdict == "fail" && what.contains("runs without UCX"), "{what}");
    assert!(of_peer(&report, "latency", &format!("{peer} tcp")).1.contains("from it"), "TCP is measured all the same");
}

#[test]
fn a_worker_is_asked_whether_it_lets_us_in_and_each_of_its_cards_is_connected_to() {
    if !has_ucx() {
        return;
    }
    let bucket = Bucket::new();
    let listen = ["network.rdma.data.bind.host=127.0.0.1", "network.rdma.data.port=0"];
    let rdma = [UCX[1], UCX[3]];
    let worker = Setup::of(&bucket).options(&rdma).options(&listen).worker(&bucket);
    let port = format!("worker.rpc.port={}", worker.address().port());
    // A benchmark's server does not run there.
    let nobodys = ReservedPort::new().unwrap();
    let peer = nobodys.address().to_string();
    let arguments = [&UCX[..], &["-o", &port, "-o", "network.rdma.data.port=0"]].concat();
    let report = json(&ask_peer(&peer, &arguments).succeeded());
    assert_eq!(of_peer(&report, "worker", &peer).0, "ok");
    assert_eq!(of_peer(&report, "worker-rdma", &peer).0, "ok");
    assert_eq!(of_peer(&report, "reachable", &format!("{peer} benchmark")).0, "info");
    let listener = &report["facts"]["peers"][0]["worker"]["listeners"][0];
    let address = listener["address"].as_str().unwrap();
    assert_eq!(of_peer(&report, "rdma-connect", &format!("{peer} {address}")).0, "ok", "{listener}");
    assert!(listener["connect_us"].is_u64() && listener["ping_us"].is_u64(), "{listener}");
    // Of another cluster: it is told which worker refused it, and why.
    let other = [&arguments[..], &["-o", "cluster.name=other"]].concat();
    let finished = ask_peer(&peer, &other);
    finished.failed(4, &["worker failed"]);
    let report = json(&finished);
    let (verdict, what) = of_peer(&report, "worker", &peer);
    assert!(verdict == "fail" && what.contains("cluster"), "{what}");
    // A worker that has no RDMA is no failure as long as reads go over TCP.
    let plain = Setup::of(&bucket).worker(&bucket);
    let port = format!("worker.rpc.port={}", plain.address().port());
    let arguments = [&UCX[..], &["-o", &port, "-o", "network.rdma.data.port=0"]].concat();
    let report = json(&ask_peer(&peer, &arguments).succeeded());
    assert_eq!(of_peer(&report, "worker-rdma", &peer).0, "warn");
}

#[test]
fn a_peer_that_is_not_there_is_a_failure_that_says_what_to_start() {
    let port = ReservedPort::new().unwrap();
    let peer = port.address().to_string();
    let finished = ask_peer(&peer, &["-o", "worker.rpc.port=0"]);
    finished.failed(4, &["reachable failed"]);
    let report = json(&finished);
    let (verdict, what) = of_peer(&report, "reachable", &peer);
    assert!(verdict == "fail" && what.contains("nobody listens"), "{what}");
    assert!(check(&report, "peer", "reachable", None)["remedy"].as_str().unwrap().contains("forebay bench rdma"));
    let finished = ask_peer("no such host", &[]);
    finished.failed(4, &["address failed"]);
}

#[test]
fn etcd_and_the_coordinator_are_asked_when_they_are_configured() {
    let ports = [ReservedPort::new().unwrap(), ReservedPort::new().unwrap()];
    let nobody = format!("http://{}", ports[0].address());
    let coordinator = ports[1].address().to_string();
    let arguments = ["--json", "--etcd", &nobody, "--coordinator", &coordinator, "-o", "cluster.etcd.timeout=500ms"];
    let finished = doctor(&[], &arguments);
    finished.failed(4, &["2 checks failed, the first is etcd"]);
    let report = json(&finished);
    for (name, subject) in [("etcd", &nobody), ("coordinator", &coordinator)] {
        let failed = check(&report, "cluster", name, Some(subject));
        assert!(failed["verdict"] == "fail" && failed["remedy"].is_string(), "{failed}");
    }
    let Some(cluster) = Cluster::start(1) else { return };
    let running = cluster.coordinator();
    // It answers before it leads.
    eventually("it leads", Duration::from_secs(60), || running.log_text().contains("this coordinator leads"));
    let (etcd, coordinator) = (cluster.etcd.endpoints().join(","), running.address());
    let arguments = ["--json", "--etcd", &etcd, "--coordinator", &coordinator];
    let report = json(&doctor(&[], &arguments).succeeded());
    let of = |name: &str| check(&report, "cluster", name, None)["verdict"].as_str().unwrap().to_owned();
    assert_eq!((of("coordinator").as_str(), of("leader").as_str()), ("ok", "ok"));
    // A read may take long on a machine that is busy with other tests, and that is told.
    assert!(["ok", "warn"].contains(&of("etcd").as_str()), "{report}");
    let member = &report["facts"]["etcd"][0];
    assert!(member["version"].as_str().is_some_and(|version| version.starts_with("3.")), "{member}");
    assert!(member["leader"].as_str().is_some_and(|leader| leader.ends_with("(this member)")), "{member}");
}
