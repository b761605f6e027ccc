//! `forebay bench rdma` between two processes over loopback: what it prints, what it verifies, and what becomes of a client
//! whose server dies, and of a server that hears garbage. Over real verbs it runs in `make test-rdma`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_e2e::{Finished, finish, forebay, has_ucx, signal};
use rustix::process::Signal;
use serde_json::Value;

/// No run in these tests takes longer, on a loaded machine.
const LIMIT: Duration = Duration::from_secs(600);
/// UCX between two processes of one machine: shared memory, and TCP's loopback.
const SHARED_MEMORY: &str = "sysv,cma,tcp,self";
const LOOPBACK: &str = "tcp,self";

/// What every transport is told: this machine's loopback only.
fn bench(transport: &str) -> Command {
    let mut command = forebay(&[]);
    command.args(["bench", "rdma"]);
    match transport {
        "tcp" => command.args(["--transport", "tcp"]),
        ucx => command.args(["--transports", ucx]).env("UCX_NET_DEVICES", "lo"),
    };
    command
}

/// A server on a free port, killed at the end.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start(transport: &str, more: &[&str]) -> Self {
        let mut command = bench(transport);
        command.args(["--local-ip", "127.0.0.1", "--local-port", "0"]).args(more);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line =
            lines.find_map(|line| line.ok().filter(|line| line.contains("Server running on "))).expect("it runs");
        assert!(line.starts_with("[INFO] ") && line.ends_with(". Press Ctrl+C to exit."), "{line}");
        let address = line.split_once("running on ").unwrap().1.split(' ').next().unwrap().parse().unwrap();
        Self { child, address }
    }

    fn client(&self, transport: &str, arguments: &[&str]) -> Command {
        let mut command = bench(transport);
        let (ip, port) = (self.address.ip().to_string(), self.address.port().to_string());
        command.args(["--remote-ip", &ip, "--remote-port", &port]).args(arguments);
        command
    }

    fn run(&self, transport: &str, arguments: &[&str]) -> Finished {
        finish(&mut self.client(transport, arguments), LIMIT)
    }

    /// Ctrl-C; its exit code.
    fn interrupt(mut self) -> Option<i32> {
        signal(self.child.id(), Signal::INT);
        let until = Instant::now() + Duration::from_secs(30);
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the server does not end");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lines that begin so.
fn count(text: &str, beginning: &str) -> usize {
    text.lines().filter(|line| line.starts_with(beginning)).count()
}

/// Everything that a server can be asked, over one transport; the server serves all of it, and then ends cleanly.
fn everything(transport: &str) {
    let server = Server::start(transport, &[]);
    let basic = server.run(transport, &["--case", "basic"]).succeeded().text();
    for kind in ["WRITE", "READ ", "CACHE"] {
        assert_eq!(count(&basic, &format!("[BASIC - {kind}] Payload: ")), 3, "{basic}");
    }
    for words in ["FOREBAY RDMA BENCHMARK", "[INFO] Test started at: ", "[INFO] Connecting to 127.0.0.1:"] {
        assert!(basic.contains(words), "no {words:?} in {basic}");
    }
    assert!(basic.contains("[INFO] Test Case: basic\n[INFO] Duration: 10 seconds\n"), "{basic}");
    assert!(basic.trim_end().ends_with("=") && basic.contains("ALL TESTS COMPLETED"), "{basic}");
    if transport != "tcp" {
        assert!(basic.contains("[INFO] UCX ") && basic.contains("This is NOT RDMA"), "{basic}");
    }

    // A client each, at once: both take their time, whatever they do in it.
    let latency = ["--case", "latency", "--duration", "1"];
    let stress = ["--case", "stress-read", "--duration", "1", "--numjobs", "2", "--iodepth", "4"];
    let (latency, stress) = std::thread::scope(|scope| {
        let latency = scope.spawn(|| server.run(transport, &latency).succeeded().text());
        let stress = server.run(transport, &stress).succeeded().text();
        (latency.join().unwrap(), stress)
    });
    for kind in ["WRITE", "READ ", "CACHE"] {
        for bytes in ["4096    ", "65536   ", "1048576 "] {
            assert_eq!(
                count(&latency, &format!("[LATENCY - {kind}] Payload: {bytes}Bytes | Iterations: ")),
                1,
                "{latency}"
            );
        }
    }
    assert_eq!(count(&latency, "  -> Min: "), 9, "{latency}");
    assert!(latency.contains(" | P99.9: "), "{latency}");
    assert!(!latency.contains("Zero-Copy"), "what the processors copy is not called zero-copy: {latency}");

    // Each test takes as long as it is told to: three sizes of one kind.
    assert_eq!(count(&stress, "[BANDWIDTH - READ ]"), 3, "{stress}");
    assert_eq!(count(&stress, "[BANDWIDTH - "), 3, "{stress}");
    assert_eq!(count(&stress, "  -> Config: threads=2, inFlightPerThread=4"), 3, "{stress}");
    assert_eq!(count(&stress, "  -> [Live] "), 3, "{stress}");
    assert!(stress.contains("CPU seconds per GiB: client ") && stress.contains(", server "), "{stress}");

    let cache = ["--case", "stress-cache", "--duration", "1", "--size", "100,64KiB", "--cpus", "0"];
    let cache = server.run(transport, &cache).succeeded().text();
    assert_eq!((count(&cache, "[BANDWIDTH - CACHE]"), count(&cache, "[BANDWIDTH - ")), (2, 2), "{cache}");
    assert!(cache.contains("Payload: 100 ") && cache.contains("Payload: 65536 "), "{cache}");

    let counted = ["--case", "latency", "--iters", "1500", "--duration", "1", "--size", "64", "--json"];
    let counted: Value = serde_json::from_slice(&server.run(transport, &counted).succeeded().stdout).unwrap();
    for row in counted["latency"].as_array().unwrap() {
        assert!(row["iterations"] == 1500 && row["p999_us"].is_number(), "{row}");
    }
    let few = ["--case", "latency", "--iters", "5", "--size", "64", "--json"];
    let few: Value = serde_json::from_slice(&server.run(transport, &few).succeeded().stdout).unwrap();
    assert!(few["latency"][0]["p999_us"].is_null(), "five samples have no 99.9th percentile: {few}");

    let sizes = server.run(transport, &["--all-sizes", "--duration", "1", "--json"]).succeeded();
    assert!(sizes.stderr.contains("8388608 "), "what a person reads goes to standard error: {}", sizes.stderr);
    let report: Value = serde_json::from_slice(&sizes.stdout).expect("standard output is one document");
    assert_eq!(report["verified"].as_array().unwrap().len(), 3 * 23);
    for section in ["latency", "bandwidth"] {
        let rows = report[section].as_array().unwrap();
        assert_eq!(rows.len(), 3 * 23, "{section}");
        assert!(rows.iter().all(|row| row["iterations"].as_u64().or(row["operations"].as_u64()) > Some(0)), "{rows:?}");
    }
    assert_eq!(report["transport"], if transport == "tcp" { "tcp" } else { "ucx" });
    assert_eq!(report["ucx"].is_object(), transport != "tcp");
    assert_eq!(server.interrupt(), Some(0));
}

#[test]
fn every_test_passes_over_tcp() {
    everything("tcp");
}

#[test]
fn every_test_passes_over_ucx_with_shared_memory() {
    if has_ucx() {
        everything(SHARED_MEMORY);
    }
}

#[test]
fn ucx_moves_every_byte_over_its_tcp_and_one_server_serves_clients_of_both_transports_at_once() {
    if !has_ucx() {
        return;
    }
    let server = Server::start(LOOPBACK, &["--delay-us", "200"]);
    let arguments = ["--case", "basic", "--json"];
    std::thread::scope(|scope| {
        let runs = [LOOPBACK, "tcp", LOOPBACK].map(|transport| {
            let server = &server;
            scope.spawn(move || server.run(transport, &arguments).succeeded())
        });
        for run in runs {
            let report: Value = serde_json::from_slice(&run.join().unwrap().stdout).unwrap();
            assert_eq!(report["verified"].as_array().unwrap().len(), 9);
            assert_eq!(report["server"]["delay_us"], 200);
        }
    });
}

#[test]
fn a_server_that_hears_garbage_or_loses_clients_serves_the_next_one() {
    let server = Server::start("tcp", &[]);
    let mut silent = Vec::new();
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], b"FOREBAYB\x01\0\0\0\xff\xff\xff\xff", b"FOREB", b""]
    {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.write_all(garbage).unwrap();
        if garbage.len() > 16 {
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            // Closed, or reset because not all of it was read.
            assert!(stream.read(&mut [0; 16]).map_or(true, |read| read == 0), "an answer to garbage");
        }
        silent.push(stream);
    }
    // More clients than there are places, one after the other, each killed in the middle of a test.
    for _ in 0..5 {
        let arguments = ["--case", "stress-read", "--duration", "60", "--numjobs", "2"];
        let mut client = server.client("tcp", &arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("[Live]")), "the test is under way");
        client.kill().unwrap();
        client.wait().unwrap();
    }
    let report = server.run("tcp", &["--case", "basic"]).succeeded();
    assert!(report.text().contains("ALL TESTS COMPLETED"));
    drop(silent);
}

#[test]
fn a_server_that_dies_in_the_middle_of_a_test_is_a_clean_error() {
    let transports = if has_ucx() { vec!["tcp", LOOPBACK] } else { vec!["tcp"] };
    for transport in transports {
        let mut server = Server::start(transport, &[]);
        let arguments = ["--case", "stress-read", "--duration", "60", "--numjobs", "1"];
        let mut client = server.client(transport, &arguments);
        let mut client = client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("[Live]")), "the test is under way");
        server.child.kill().unwrap();
        let killed = Instant::now();
        assert_eq!(client.wait().unwrap().code(), Some(4), "over {transport}");
        assert!(killed.elapsed() < Duration::from_secs(40), "{:?} over {transport}", killed.elapsed());
        let mut told = String::new();
        client.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        assert!(told.contains("was lost") && told.contains("next: "), "over {transport}: {told}");
    }
}

#[test]
fn the_ports_that_a_firewall_must_open_are_fixed_and_named() {
    // All at once, so that they are three different ones; the benchmark's follow each other.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().min(65_000);
    let first = free.to_string();
    let mut command = bench("tcp");
    command.args(["--local-ip", "127.0.0.1", "--local-port", "0", "--data-ports", &first]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let named =
        lines.find_map(|line| line.ok().filter(|line| line.contains("Clients need the ports"))).expect("it runs");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(named.ends_with(&format!(", {first}")), "{named}");
}

#[test]
fn a_card_of_the_configuration_that_is_not_there_is_refused_and_no_other_one_is_measured() {
    let arguments = ["bench", "rdma", "--remote-ip", "127.0.0.1", "-o", "network.rdma.data.network=nope0"];
    finish(forebay(&[]).args(arguments), LIMIT).failed(2, &["there is no network interface `nope0`", "--devices"]);
}

#[test]
fn what_cannot_be_is_said_with_the_flag_and_the_remedy() {
    let server = Server::start("tcp", &[]);
    let port = server.address.port().to_string();
    let taken = ["--local-ip", "127.0.0.1", "--local-port", &port];
    finish(bench("tcp").args(taken), LIMIT).failed(6, &["cannot listen on", "--local-port"]);
    // An address of documentation (RFC 5737): no machine's own.
    let elsewhere = ["--local-ip", "192.0.2.77", "--local-port", "0"];
    finish(bench("tcp").args(elsewhere), LIMIT)
        .failed(2, &["192.0.2.77 is no address of this machine", "127.0.0.1 (lo)"]);
    server
        .run("tcp", &["--local-ip", "192.0.2.77"])
        .failed(2, &["192.0.2.77 is no address of this machine", "127.0.0.1 (lo)"]);
    server.run("tcp", &["--numjobs", "0"]).failed(2, &["--numjobs", "-1"]);
    server.run("tcp", &["--numjobs", "128", "--iodepth", "1024"]).failed(2, &["--iodepth 1024", "next: "]);
    server.run("tcp", &["--size", "9MiB"]).failed(2, &["--size", "8MiB"]);
    server.run("tcp", &["--cpus", "1000"]).failed(2, &["processor 1000", "lscpu"]);
    server.run("tcp", &["--mode", "server"]).failed(2, &["--mode server", "--remote-ip"]);
    finish(bench("tcp").args(["--mode", "client"]), LIMIT).failed(2, &["--mode client", "--remote-ip"]);
    let nobody = ["--remote-ip", "127.0.0.1", "--remote-port", "1"];
    finish(bench("tcp").args(nobody), LIMIT).failed(4, &["cannot connect to 127.0.0.1:1", "forebay bench rdma"]);
    if has_ucx() {
        let no_card = ["bench", "rdma", "--local-ip", "127.0.0.1", "--local-port", "0", "--devices", "mlx5_77:1"];
        finish(forebay(&[]).args(no_card), LIMIT).failed(2, &["mlx5_77:1", "ucx_info -d"]);
        server.run(LOOPBACK, &[]).failed(1, &["refused", "without UCX", "restart it"]);
    }
}
