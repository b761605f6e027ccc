//! Keys and tokens are looked for wherever others can look: in logs, in etcd, in counters and settings, among
//! processes.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use forebay_e2e::{Cluster, Tree};
use forebay_testkit::ReservedPort;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConnection, StreamOwned};

use crate::strangers::{HTTP, presenting};
use crate::{Keys, SOON, run, set};

/// The answer to somebody who has no certificate and shows this token.
fn page(keys: &Keys, address: SocketAddr, page: &str, token: &str) -> String {
    let tcp = TcpStream::connect(address).unwrap();
    tcp.set_read_timeout(Some(SOON)).unwrap();
    let (config, name) = (Arc::new(presenting(keys, None, HTTP)), ServerName::try_from("listener").unwrap());
    let mut stream = StreamOwned::new(ClientConnection::new(config, name).unwrap(), tcp);
    write!(stream, "GET {page} HTTP/1.0\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// What `ps` shows of all processes: their arguments and, to their user, their environment.
fn processes() -> String {
    let entries = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let of_process = |place: &Path| place.file_name().is_some_and(|name| name.as_encoded_bytes()[0].is_ascii_digit());
    // One that has ended meanwhile shows nothing.
    let shown = |place: &Path| ["cmdline", "environ"].map(|name| std::fs::read(place.join(name)).unwrap_or_default());
    let all = entries.filter(|place| of_process(place)).flat_map(|place| shown(&place)).collect::<Vec<_>>().concat();
    String::from_utf8_lossy(&all).into_owned()
}

#[test]
fn no_secret_is_in_a_log_a_record_a_counter_a_setting_or_a_list_of_processes() {
    let Some(cluster) = Cluster::start(1) else { return };
    let (keys, tree, web) = (Keys::new(), Tree::of_equal_files(2, 1 << 20), ReservedPort::new().unwrap());
    tree.put_into(&cluster.bucket, "");
    keys.make("token", "token");
    keys.make("metrics-token", "token");
    let tokens = [("token_file", "token"), ("metrics_token_file", "metrics-token")];
    let tokens = tokens.map(|(key, name)| format!("security.{key}={}", keys.path(name).display()));
    let settings = [keys.settings(), tokens.to_vec()].concat();

    let setup = || cluster.setup().option("log.level=debug");
    let coordinator = set(setup(), &settings).coordinator();
    let worker = set(setup().memory("128MiB"), &settings).option(&format!("worker.web.port={}", web.address().port()));
    let worker = worker.member("w1");
    coordinator.wait_for_active(&["w1"]);
    coordinator.add_mount(&cluster, "/s3");
    worker.wait_for("/s3");
    let mount = set(setup().option("client.memory.size=8MiB"), &keys.settings()).mount_cluster();
    tree.verify(&mount.path("s3"));
    assert_eq!(coordinator.job("load", "/s3", &[]).0, 0);

    let [admin, scrapes] = ["token", "metrics-token"].map(|name| keys.text(name).trim().to_owned());
    let of_worker = SocketAddr::from(([127, 0, 0, 1], web.address().port()));
    let mut pages = Vec::new();
    for address in [coordinator.address().parse().unwrap(), of_worker] {
        for (path, token, status) in [
            ("/stats", &*admin, " 200 "),
            ("/metrics", &scrapes, " 200 "),
            ("/metrics", &admin[1..], " 401 "),
            (&format!("/stats?token={admin}"), &scrapes[1..], " 401 "),
        ] {
            let answer = page(&keys, address, path, token);
            assert!(answer.lines().next().is_some_and(|line| line.contains(status)), "{path}: {answer}");
            pages.push(answer);
        }
    }
    let shown = processes();
    assert!(shown.contains(keys.key().to_str().unwrap()), "it shows where the key is");
    assert!(worker.log_text().contains("DEBUG") && coordinator.log_text().contains("DEBUG"));
    let records = cluster.state();
    assert!(records.keys().any(|key| key.contains("/workers/")));

    let settings = run(&["conf", "show"], &settings).succeeded().text();
    let places = [
        ("the coordinator's log", coordinator.log_text()),
        ("the worker's log", worker.log_text()),
        ("the mount's log", mount.log_text()),
        ("etcd", records.into_iter().flat_map(|(key, value)| [key, value]).collect()),
        ("pages", pages.concat()),
        ("counters", format!("{} {}", worker.stats(), mount.own_stats())),
        ("settings", settings),
        ("the list of processes", shown),
    ];
    let secret = keys.text("cluster.key").lines().nth(1).expect("the secret").to_owned();
    for (what, text) in places {
        assert!(!text.is_empty(), "{what}");
        for secret in [&secret, &admin, &scrapes] {
            // Half of one would be worth a search for the rest.
            let (first, second) = secret.split_at(secret.len() / 2);
            assert!(!text.contains(first) && !text.contains(second), "a secret is in {what}");
        }
    }
}
