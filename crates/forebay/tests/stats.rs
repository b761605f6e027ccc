//! What `forebay stats` and `forebay profile` show of real mounts and workers.

mod support;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use support::{Fixture, eventually, forebay, ran, signal, succeed};

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// Reads a small file of the mount again and again until it is dropped.
struct Reader(Option<std::thread::JoinHandle<()>>, Arc<AtomicBool>);

impl Reader {
    fn start(fixture: &Fixture) -> Self {
        let (path, stop) = (fixture.mountpoint().join("small"), Arc::new(AtomicBool::new(false)));
        let told = Arc::clone(&stop);
        let reading = std::thread::spawn(move || {
            for round in 0.. {
                if told.load(Ordering::Relaxed) {
                    return;
                }
                // Another name each time: the kernel remembers that one is not there.
                assert!(std::fs::metadata(path.with_file_name(format!("missing{round}"))).is_err());
                assert_eq!(std::fs::read(&path).unwrap(), b"hello\n");
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        Self(Some(reading), stop)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Relaxed);
        if let Some(reading) = self.0.take() {
            let _ = reading.join();
        }
    }
}

#[test]
fn a_mount_is_watched_line_by_line_in_columns_and_as_json() {
    let mut fixture = Fixture::new();
    fixture.must_up(&[]);
    fixture.assert_mounted_files_are_right();
    let mountpoint = fixture.mountpoint().display().to_string();
    let reader = Reader::start(&fixture);
    let table = succeed(["stats", &mountpoint, "--count", "2"]);
    let rows: Vec<&str> = table.lines().collect();
    assert_eq!(rows.len(), 4, "{table}");
    assert!(rows[0].contains("remotecache") && rows[1].contains("get_c"), "{table}");
    assert!(!rows[0].contains("rdma"), "what it does not count is left out: {table}");
    let named = succeed(["stats", &mountpoint, "--count", "1", "--schema", "ufmcreo", "--interval", "0.1"]);
    assert!(named.contains("w_ops"), "and shown where it is asked for: {named}");
    assert!(rows.iter().all(|row| row.chars().count() == rows[0].chars().count()), "{table}");
    let json = lines(&succeed(["stats", &mountpoint, "--json", "--count", "1", "-l", "1", "--schema", "fuo"]));
    assert_eq!(json.len(), 1);
    assert!(
        json[0]["fuse"]["ops"].as_f64().unwrap() > 0.0 && json[0]["fuse"]["p99"].as_f64().unwrap() > 0.0,
        "{json:?}"
    );
    assert!(json[0]["usage"]["mem"].as_f64().unwrap() > 0.0 && json[0]["object"]["get_c"].is_f64(), "{json:?}");
    assert!(json[0]["meta"].is_null());
    drop(reader);
    // What the process says through its sockets is what is in the mount, and is said once.
    let all = lines(&succeed(["stats", &mountpoint, "--all", "--json"]));
    let [worker, own] = &all[..] else { panic!("{all:?}") };
    assert!(own["node"].is_null() && own["process"].is_object() && worker["process"].is_null(), "{all:?}");
    let file: Value =
        serde_json::from_slice(&std::fs::read(fixture.mountpoint().join(".stats.json")).unwrap()).unwrap();
    for pointer in ["/worker/bytes_origin", "/origins/0/counts/requests"] {
        assert_eq!(worker.pointer(pointer), file["node"].pointer(pointer), "{pointer}");
        assert!(worker.pointer(pointer).and_then(Value::as_u64).unwrap() > 0, "{pointer}: {worker}");
    }
    let counters = succeed(["stats", &mountpoint, "--all"]);
    let names: Vec<&str> = counters.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let unique: std::collections::BTreeSet<&str> = names.iter().copied().collect();
    assert_eq!(names.len(), unique.len(), "no counter is printed twice: {counters}");
    assert!(!counters.lines().any(|line| line.ends_with(" 0")), "{counters}");
    let zeros = succeed(["stats", &mountpoint, "--all", "--zeros"]);
    assert!(zeros.lines().any(|line| line.ends_with(" 0")), "{zeros}");
    let text = std::fs::read_to_string(fixture.mountpoint().join(".stats")).unwrap();
    assert!(text.lines().any(|line| line.starts_with("fuse.operations.read.p99_us ")), "{text}");
}

#[test]
fn workers_are_watched_together_and_one_that_is_down_does_not_hide_the_other() {
    let mut fixture = Fixture::new();
    let (killed, first) = fixture.worker(&[]);
    let (_, second) = fixture.worker(&[]);
    fixture.must_mount(&format!("{first},{second}"));
    fixture.assert_mounted_files_are_right();
    let mountpoint = fixture.mountpoint().display().to_string();
    let own = lines(&succeed(["stats", &mountpoint, "--all", "--json"])).pop().unwrap();
    assert!(own["client"]["metadata"]["latency"]["count"].as_u64().unwrap() > 0, "{own}");
    assert!(own["client"]["data"]["bytes_received"].as_u64().unwrap() > 0, "{own}");
    let workers = format!("{first},{second}");
    let watch = || lines(&succeed(["stats", "--workers", &workers, "--json", "--count", "1"]));
    assert!(watch()[0]["usage"]["mem"].as_f64().unwrap() > 0.0);
    signal(fixture.child_pid(killed), Signal::KILL);
    fixture.wait(killed);
    assert!(watch()[0]["object"]["get_c"].is_f64());
    let output = ran(forebay().args(["stats", "127.0.0.1:1", "--count", "1"]).output().unwrap());
    assert!(output.code == 4 && output.err.contains("does not answer"), "{output:?}");
    assert!(output.err.contains("refused") && output.err.contains("next:"), "{output:?}");
}

#[test]
fn a_mount_knows_its_cluster_whoever_asks_for_its_workers() {
    let mut fixture = Fixture::new();
    let (_, worker) = fixture.worker(&["-o", "cluster.name=of-its-own"]);
    fixture.must_mount_with(&worker, &["-o", "cluster.name=of-its-own"]);
    fixture.assert_mounted_files_are_right();
    let mountpoint = fixture.mountpoint().display().to_string();
    let all = lines(&succeed(["stats", &mountpoint, "--all", "--json"]));
    assert!(all.len() == 2 && all[0]["worker"]["bytes_origin"].as_u64() > Some(0), "{all:?}");
    let small = fixture.mountpoint().join("small").display().to_string();
    assert!(succeed(["fs", "stat", &small]).contains("small"));
}

#[test]
fn hits_are_a_part_of_what_was_read() {
    let mut fixture = Fixture::new();
    let (_, worker) = fixture.worker(&[]);
    fixture.must_mount(&worker);
    fixture.assert_mounted_files_are_right();
    let own = lines(&succeed(["stats", &fixture.mountpoint().display().to_string(), "--all", "--json"])).pop().unwrap();
    let count =
        |pointer: &str| own.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("{pointer}: {own}"));
    let here = count("/client/local_memory") + count("/client/buffered");
    let read = count("/fuse/read_bytes");
    assert!(here <= read && count("/client/origin") > 0, "{here} of {read}: {own}");
}

#[test]
fn a_profile_is_made_of_a_mount_and_of_a_saved_log() {
    let mut fixture = Fixture::new();
    fixture.must_up(&[]);
    let mountpoint = fixture.mountpoint();
    let profile = {
        let _reader = Reader::start(&fixture);
        let arguments = ["profile".as_ref(), mountpoint.as_os_str(), "--interval".as_ref(), "1".as_ref()];
        succeed(arguments.into_iter().chain(["--count".as_ref(), "1".as_ref(), "--json".as_ref()]))
    };
    let profile = lines(&profile).remove(0);
    let of = |name: &str| {
        let operations = profile["operations"].as_array().unwrap();
        operations.iter().find(|of| of["operation"] == name).unwrap_or_else(|| panic!("no {name} in {profile}")).clone()
    };
    assert!(of("open")["count"].as_u64().unwrap() > 0 && of("lookup")["errors"].as_u64().unwrap() > 0, "{profile}");

    let saved = fixture.path("access.log");
    let mut cat = std::process::Command::new("cat");
    let mut cat = cat.arg(mountpoint.join(".accesslog")).stdout(Stdio::piped()).spawn().unwrap();
    let mut log = cat.stdout.take().unwrap();
    let mut text = String::new();
    eventually("a line about an open", || {
        std::fs::read(mountpoint.join("small")).unwrap();
        let mut buffer = [0; 4096];
        let n = log.read(&mut buffer).unwrap();
        text.push_str(std::str::from_utf8(&buffer[..n]).unwrap());
        text.contains("] open (") && text.ends_with('\n')
    });
    cat.kill().unwrap();
    cat.wait().unwrap();
    File::create(&saved).unwrap().write_all(text.as_bytes()).unwrap();
    let table = succeed(["profile".as_ref(), saved.as_os_str()]);
    assert!(table.starts_with("operation") && table.lines().any(|line| line.starts_with("open ")), "{table}");
    let nobodys = succeed(["profile".as_ref(), saved.as_os_str(), "--pid".as_ref(), "1".as_ref()]);
    assert_eq!(nobodys.lines().count(), 1, "{nobodys}");
    let missing = ran(forebay().args(["profile", "/no/such/log"]).output().unwrap());
    assert!(missing.code != 0 && missing.err.contains("cannot read /no/such/log"), "{missing:?}");
}

/// What a page of a process says, head and body.
fn get(address: &str, page: &str) -> String {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(stream, "GET {page} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_mount_tells_prometheus_and_stats_over_http() {
    let mut fixture = Fixture::new();
    let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (of_mount, of_worker) = (free(), free());
    let (_, worker) = fixture.worker(&["-o", &format!("worker.web.port={}", of_worker.port())]);
    let (host, port) =
        (format!("client.web.bind.host={}", of_mount.ip()), format!("client.web.port={}", of_mount.port()));
    fixture.must_mount_with(&worker, &["-o", &host, "-o", &port]);
    fixture.assert_mounted_files_are_right();
    let (address, worker) = (of_mount.to_string(), of_worker.to_string());
    assert!(get(&address, "/readyz").starts_with("HTTP/1.1 200"));
    let metrics = get(&address, "/metrics") + &get(&worker, "/metrics");
    for name in ["forebay_fuse_read_bytes_total", "forebay_worker_served_bytes_total", "forebay_origin_requests_total"]
    {
        assert!(metrics.lines().any(|line| line.starts_with(name) && !line.ends_with(" 0.0")), "{name}: {metrics}");
    }
    let address = worker;
    let row = lines(&succeed(["stats", &address, "--json", "--count", "1"])).remove(0);
    assert!(row["usage"]["mem"].as_f64().unwrap() > 0.0 && row["object"]["get"].is_f64(), "{row}");
}
