//! Records of mounts that somebody else wrote, over REST or past it: what they ask for, they do not get, and the mount
//! says why.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_e2e::{Cluster, Worker, eventually};
use forebay_testkit::{CannedResponse, CannedServer};

const SOON: Duration = Duration::from_secs(60);
/// What is in the environment of the worker for other programs and other servers.
const CANARY: &str = "canary-that-stays-on-its-machine";
/// Where it is: in a variable of its own, and where SDKs look for keys.
const CANARIES: [&str; 4] = ["CANARY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];
/// Options that would send it: of these, the secret key alone would not be sent as it is.
const KEYS: [(&str, &str); 3] =
    [("s3.access_key_id", "env:CANARY"), ("s3.secret_access_key", "env:CANARY"), ("s3.session_token", "env:CANARY")];

/// An S3 server that keeps all that it is sent.
struct Server {
    server: CannedServer,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(answer: CannedResponse) -> Self {
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let kept = Arc::clone(&heard);
        let server = CannedServer::start(move |request| {
            kept.lock().unwrap().push(format!("{request:?}"));
            answer.clone()
        });
        Self { server: server.expect("a server"), heard }
    }

    fn url(&self) -> String {
        self.server.url()
    }

    /// All requests, with their headers and bodies.
    fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }
}

/// A worker with the canary in its environment, whose operator lets mounts name this server, and use variables that are
/// not the canary's.
fn worker(cluster: &Cluster, listed: &Server) -> Worker {
    let setup = cluster.setup().memory("128MiB").option(&format!("cluster.mounts.endpoints={}", listed.url()));
    CANARIES.into_iter().fold(setup, |setup, name| setup.variable(name, CANARY)).member("w1")
}

/// Waits until the worker says of this mount, to those who ask for a file of it and in its log, what is wrong with it.
#[track_caller]
fn says_why(worker: &Worker, mount: &str, why: &str) {
    eventually(&format!("the worker says {why:?} of {mount}"), SOON, || {
        let answer = worker.ask(&["fs", "stat", &format!("{mount}/file")]);
        answer.code != Some(0) && answer.stderr.contains(why) && answer.stderr.contains(&format!("the mount {mount}:"))
    });
    let log = worker.log_text();
    assert!(log.contains(why) && !log.contains(CANARY), "{log}");
}

#[test]
fn no_record_has_a_worker_send_its_environment_to_a_server_of_the_records_choice() {
    let Some(cluster) = Cluster::start(1) else { return };
    let (attacker, listed) = (Server::start(CannedResponse::new(404, "")), Server::start(CannedResponse::new(404, "")));
    let coordinator = cluster.coordinator();
    let worker = worker(&cluster, &listed);
    coordinator.wait_for_active(&["w1"]);

    // The coordinator does not know what the workers' operators list: it takes the mount, and no worker opens it.
    let asked = KEYS.map(|(name, value)| format!("{name}={value}"));
    let endpoint = format!("s3.endpoint={}", attacker.url());
    let mut command = vec!["mounts", "add", "/stolen", "s3://stolen", "-o", &endpoint];
    command.extend(asked.iter().flat_map(|option| ["-o", option.as_str()]));
    let _ = coordinator.ask(&command).succeeded();
    says_why(&worker, "/stolen", "cluster.mounts.endpoints");

    let (theirs, ours) = (attacker.url(), listed.url());
    let smuggle = |path: &str, endpoint: &str, more: &[(&str, &str)]| {
        let options = [&[("s3.endpoint", endpoint)], more].concat();
        cluster.smuggle_mount(path, &format!("s3:/{path}"), &options);
    };
    smuggle("/unsigned", &theirs, &[("s3.anonymous", "true")]);
    says_why(&worker, "/unsigned", "cluster.mounts.endpoints");
    cluster.smuggle_mount("/page", &format!("{theirs}/page"), &[]);
    says_why(&worker, "/page", "cluster.mounts.endpoints");
    // At a server that is listed, variables that are not are no more to be had, nor are the worker's own keys.
    smuggle("/bought", &ours, &KEYS);
    says_why(&worker, "/bought", "cluster.mounts.environment");
    smuggle("/ambient", &ours, &[]);
    says_why(&worker, "/ambient", "no credentials");
    smuggle("/role", &ours, &[("s3.access_key_id", "role"), ("s3.secret_access_key", "role")]);
    says_why(&worker, "/role", "no credentials");
    smuggle("/profile", &ours, &[("s3.profile", "default")]);
    says_why(&worker, "/profile", "a profile is for");
    // A region is no place for a host, nor is a scheme in capitals a way past the list of directories.
    cluster.smuggle_mount("/region", "s3://region", &[("s3.region", "x.evil.example/#")]);
    says_why(&worker, "/region", "not the name of a region");
    cluster.smuggle_mount("/etc", "FILE:///etc", &[]);
    says_why(&worker, "/etc", "cluster.mounts.directories");

    assert_eq!(attacker.heard(), Vec::<String>::new(), "a worker spoke to a server that is not listed");
    assert_eq!(listed.heard(), Vec::<String>::new(), "no mount at the server that is listed could be opened");
}

#[test]
fn a_server_that_is_listed_hears_nothing_of_the_environment_and_sends_no_worker_elsewhere() {
    let Some(cluster) = Cluster::start(1) else { return };
    let inside = Server::start(CannedResponse::new(200, "of this machine alone"));
    let elsewhere = format!("{}/latest/meta-data/", inside.url());
    let listed = Server::start(CannedResponse::new(307, "").with("location", elsewhere));
    let worker = worker(&cluster, &listed);
    let url = listed.url();
    cluster.smuggle_mount("/public", "s3://public", &[("s3.endpoint", &url), ("s3.anonymous", "true")]);
    cluster.smuggle_mount("/page", &format!("{url}/page"), &[]);
    let (id, secret) = (("s3.access_key_id", "env:ORIGIN_KEY"), ("s3.secret_access_key", "env:ORIGIN_SECRET"));
    cluster.smuggle_mount("/signed", "s3://signed", &[("s3.endpoint", &url), id, secret]);
    for mount in ["/public", "/page", "/signed"] {
        eventually(&format!("the server is asked about {mount}"), SOON, || {
            let answer = worker.ask(&["fs", "stat", &format!("{mount}/file")]);
            answer.code != Some(0) && listed.heard().iter().any(|request| request.contains(mount))
        });
    }
    for request in listed.heard() {
        assert!(!request.contains(CANARY), "{request}");
        assert!(!request.contains(&cluster.secret()), "a secret key signs, and is not sent: {request}");
        let is_signed = request.contains("authorization");
        assert_eq!(is_signed, request.contains("/signed"), "{request}");
    }
    assert_eq!(inside.heard(), Vec::<String>::new(), "a worker followed a redirect");
}
