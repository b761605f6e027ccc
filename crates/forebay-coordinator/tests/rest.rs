//! Coordinators over a real state store and real sockets, as the command line and others meet them.

mod support;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use forebay_cluster::grants::Role;
use forebay_cluster::records::members::{WORKERS, WorkerRecord};
use forebay_coordinator::api::{Mount, MountAcl, Policy};
use forebay_coordinator::jobs::{FreeSpec, JobKind, JobSpec, JobState, LoadSpec};
use forebay_coordinator::{ApiClient, Coordinator, CoordinatorOptions, Window};
use forebay_state::{StateStore, Transaction};
use serde_json::Value;

use support::{Cluster, PATIENCE, View, bare, end, leads, load, path, refusal, until};

#[tokio::test]
async fn a_job_is_submitted_watched_listed_and_found_again() {
    let cluster = Cluster::new().await;
    let (coordinator, client) = cluster.coordinator("one").await;
    leads(&coordinator).await;
    let submitted = client.submit(&load()).await.unwrap();
    assert!(submitted.created);
    let job = end(&client, &submitted.job.id).await;
    assert_eq!((job.state, job.progress.audited.files, job.exit_code), (JobState::Succeeded, 20, 0));
    let found = client.jobs(Some(&path("/s3")), Some(JobKind::Load)).await.unwrap();
    assert_eq!(found[0].id, job.id);
    assert!(client.latest_job(&JobSpec::Free(FreeSpec::new(path("/s3")))).await.unwrap().is_none());
    assert!(client.job("none").await.unwrap_err().is_not_found());
    let gone = client.submit(&JobSpec::Load(LoadSpec::new(path("/gone")))).await.unwrap();
    assert_eq!(end(&client, &gone.job.id).await.failures.causes[0].kind, "NOT_FOUND");
    coordinator.close().await;
}

#[tokio::test]
async fn a_job_of_an_index_file_is_not_that_of_the_file_itself() {
    let cluster = Cluster::new().await;
    let (coordinator, client) = cluster.coordinator("one").await;
    leads(&coordinator).await;
    let of = |index_file| JobSpec::Load(LoadSpec { index_file, ..LoadSpec::new(path("/s3/f01")) });
    let of_file = client.submit(&of(false)).await.unwrap().job;
    let of_index = client.submit(&of(true)).await.unwrap().job;
    for (index_file, job) in [(false, of_file), (true, of_index)] {
        let found = client.latest_job(&of(index_file)).await.unwrap().expect("it is listed");
        assert_eq!(found.id, job.id, "{index_file}");
    }
    coordinator.close().await;
}

#[tokio::test]
async fn what_a_coordinator_writes_is_what_it_is_granted() {
    let cluster = Cluster::new().await;
    let (coordinator, client) = cluster.coordinator("one").await;
    leads(&coordinator).await;
    let record = WorkerRecord { name: "w1".into(), group: "default".into(), ..WorkerRecord::default() };
    let write = Transaction::new().put(WorkerRecord::key("default", "w1"), record.encode());
    cluster.store.commit(write).await.unwrap();
    client.drain("w1").await.unwrap();
    client
        .add_mount(&Mount { path: "/s3".into(), origin: "s3://bucket".into(), options: [].into(), acl: None })
        .await
        .unwrap();
    client.set_policy(&Policy { path: "/s3".into(), pin: Some(true), ..Policy::default() }).await.unwrap();
    let submitted = client.submit(&load()).await.unwrap();
    end(&client, &submitted.job.id).await;
    let registered = until(|| async {
        let entries = cluster.store.list("").await.unwrap().entries;
        let keys: Vec<String> = entries.into_iter().map(|entry| entry.key).collect();
        keys.iter().any(|key| key.starts_with("coordinators/")).then_some(keys)
    });
    let written = registered.await;
    assert!(written.len() >= 8, "{written:?}");
    for key in written.iter().filter(|key| !key.starts_with(WORKERS)) {
        assert!(Role::Coordinator.may_write(key), "{key} is not granted");
        assert!(!Role::Worker.may_write(key) && !Role::Mount.may_write(key), "{key}");
    }
    coordinator.close().await;
}

#[tokio::test]
async fn mounts_come_and_go_and_credentials_are_refused_without_being_told() {
    let cluster = Cluster::new().await;
    let (coordinator, client) = cluster.coordinator("one").await;
    let mount = |path: &str, origin: &str, options: &[(&str, &str)]| Mount {
        path: path.into(),
        origin: origin.into(),
        options: options.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
        acl: None,
    };
    let s3 = mount("/s3", "s3://bucket/prefix", &[("s3.secret_access_key", "env:SECRET"), ("s3.region", "eu")]);
    assert_eq!(client.add_mount(&s3).await.unwrap(), s3);
    assert_eq!(client.add_mount(&s3).await.unwrap(), s3, "the same again is no error");
    let other = client.add_mount(&mount("/s3", "s3://other", &[])).await.unwrap_err();
    assert_eq!(refusal(other).0, 409);
    let secret = client.add_mount(&mount("/x", "s3://b", &[("s3.secret_access_key", "hunter2")])).await.unwrap_err();
    assert!(!format!("{secret} {secret:?}").contains("hunter2"));
    assert!(refusal(secret).2.contains("never stored in clear"));
    let odd = client.add_mount(&mount("/x", "gopher://b", &[])).await.unwrap_err();
    assert_eq!(refusal(odd), (400, "INVALID_ARGUMENT".into(), "no origin has this scheme".into()));
    let misplaced = br#"{"path":"/x","origin":"s3://b","options":"hunter2"}"#.to_vec();
    let (status, text) = bare(&coordinator, "POST", "/api/v1/mounts", Some(("application/json", misplaced))).await;
    assert!(status == 400 && !text.contains("hunter2"), "{text}");
    assert_eq!(client.mounts().await.unwrap(), [s3]);
    client.remove_mount(&path("/s3")).await.unwrap();
    assert!(client.remove_mount(&path("/s3")).await.unwrap_err().is_not_found());
    coordinator.close().await;
}

#[tokio::test]
async fn an_access_list_is_replaced_and_never_taken_away_by_those_who_do_not_mention_it() {
    let cluster = Cluster::new().await;
    let (coordinator, client) = cluster.coordinator("one").await;
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let mount = |read: &[&str], write: &[&str]| Mount {
        path: "/s3".into(),
        origin: "s3://bucket".into(),
        options: BTreeMap::new(),
        acl: Some(MountAcl { read: names(read), write: names(write) }),
    };
    let open = Mount { acl: None, ..mount(&[], &[]) };
    let listed = mount(&["team-a", "batch-*"], &["loader"]);
    assert_eq!(client.add_mount(&listed).await.unwrap(), listed);
    assert_eq!(client.add_mount(&listed).await.unwrap(), listed, "the same again is no error");
    let (status, _, message) = refusal(client.add_mount(&open).await.unwrap_err());
    assert!(status == 409 && message.contains("has an access list"), "{message}");
    let elsewhere = Mount { origin: "s3://other".into(), ..mount(&["team-b"], &[]) };
    assert_eq!(refusal(client.add_mount(&elsewhere).await.unwrap_err()).0, 409);
    let (status, _, message) = refusal(client.add_mount(&mount(&["team a"], &[])).await.unwrap_err());
    assert!(status == 400 && message.contains("`team a` cannot be in an access list"), "{message}");
    assert_eq!(client.mounts().await.unwrap(), std::slice::from_ref(&listed));
    let replaced = mount(&[], &["team-b"]);
    assert_eq!(client.add_mount(&replaced).await.unwrap(), replaced);
    assert_eq!(client.mounts().await.unwrap(), [replaced]);
    client.remove_mount(&path("/s3")).await.unwrap();
    assert_eq!(client.add_mount(&open).await.unwrap(), open);
    assert_eq!(client.add_mount(&listed).await.unwrap(), listed, "a mount that is open gets one");
    coordinator.close().await;
}

#[tokio::test]
async fn what_a_process_mounts_by_itself_is_listed_and_cannot_be_removed() {
    let cluster = Cluster::new().await;
    let mut options = CoordinatorOptions::new("one", "127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap(), "9.9.9");
    let own = Mount { path: "/".into(), origin: "file:///srv".into(), options: BTreeMap::new(), acl: None };
    options.mounts = vec![own.clone()];
    let (store, cache) = (Arc::clone(&cluster.store), Arc::clone(&cluster.cache));
    let coordinator = Coordinator::start(options, store, cache, Arc::new(View)).await.unwrap();
    let client = ApiClient::new(&coordinator.address().unwrap().to_string()).unwrap();
    let list = client.all_mounts().await.unwrap();
    assert_eq!((list.mounts, list.configured), (vec![], vec![own]));
    let (status, _, message) = refusal(client.remove_mount(&path("/")).await.unwrap_err());
    assert!(status == 409 && message.contains("configuration"), "{message}");
    coordinator.close().await;
}

#[tokio::test]
async fn an_origin_is_mounted_twice_only_with_the_same_options() {
    let cluster = Cluster::new().await;
    // Without a check of its embedder's.
    let start = async |name: &str| {
        let options = CoordinatorOptions::new(name, "127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap(), "9.9.9");
        let (store, cache) = (Arc::clone(&cluster.store), Arc::clone(&cluster.cache));
        let coordinator = Coordinator::start(options, store, cache, Arc::new(View)).await.unwrap();
        let client = ApiClient::new(&coordinator.address().unwrap().to_string()).unwrap();
        (coordinator, client)
    };
    let ((one, at_one), (two, at_two)) = tokio::join!(start("one"), start("two"));
    let mount = |path: &str, origin: &str, endpoint: &str| {
        let options = [("s3.endpoint".to_owned(), endpoint.to_owned())].into();
        Mount { path: path.into(), origin: origin.into(), options, acl: None }
    };
    at_one.add_mount(&mount("/a", "s3://bucket", "http://one:9000")).await.unwrap();
    at_one.add_mount(&mount("/b", "s3://bucket/", "http://one:9000")).await.unwrap();
    at_one.add_mount(&mount("/c", "s3://bucket/c", "http://two:9000")).await.unwrap();
    let refused = at_one.add_mount(&mount("/d", "s3://bucket", "http://two:9000")).await.unwrap_err();
    assert!(refused.to_string().contains("remove the mount at /a first"), "{refused}");
    let (status, _, message) = refusal(refused);
    assert!(status == 409 && message.contains("mounted at /a with other options"), "{message}");
    assert!(!message.contains("http://"), "{message}");
    for spelled in ["S3://bucket", "s3://bucket/x/..", "s3://bucket/%2e/", "s3://bucket "] {
        let refused = at_one.add_mount(&mount("/d", spelled, "http://two:9000")).await.unwrap_err();
        assert_eq!(refusal(refused).0, 409, "{spelled}");
    }
    // Of two at once, at two coordinators, one is refused.
    for round in 0..10 {
        let origin = format!("s3://round-{round}");
        let (first, second) =
            (mount(&format!("/x{round}"), &origin, "http://x"), mount(&format!("/y{round}"), &origin, "http://y"));
        let (first, second) = tokio::join!(at_one.add_mount(&first), at_two.add_mount(&second));
        assert!(first.is_ok() != second.is_ok(), "{first:?} {second:?}");
        assert_eq!(refusal(first.and(second).unwrap_err()).0, 409);
    }
    one.close().await;
    two.close().await;
}

#[tokio::test]
async fn policies_are_checked_set_and_removed() {
    let cluster = Cluster::new().await;
    let (coordinator, client) = cluster.coordinator("one").await;
    let policy = |ttl: &str| Policy { path: "/s3/a b".into(), metadata_ttl: Some(ttl.into()), ..Policy::default() };
    let set = client.set_policy(&policy("300s")).await.unwrap();
    assert_eq!(set.metadata_ttl.as_deref(), Some("5m"));
    let refused = refusal(client.set_policy(&policy("soon")).await.unwrap_err());
    assert!(refused.0 == 400 && refused.2.starts_with("metadata_ttl:"), "{refused:?}");
    assert_eq!(client.policies().await.unwrap(), [set]);
    client.remove_policy(&path("/s3/a b")).await.unwrap();
    assert!(client.remove_policy(&path("/s3/a b")).await.unwrap_err().is_not_found());
    coordinator.close().await;
}

#[tokio::test]
async fn a_worker_that_is_known_can_be_asked_to_leave_and_taken_back() {
    let cluster = Cluster::new().await;
    let (coordinator, client) = cluster.coordinator("one").await;
    let record = WorkerRecord { name: "w1".into(), group: "default".into(), ..WorkerRecord::default() };
    let write = Transaction::new().put(WorkerRecord::key("default", "w1"), record.encode());
    cluster.store.commit(write).await.unwrap();
    assert!(client.drain("w9").await.unwrap_err().is_not_found());
    assert_eq!(client.drain("w1").await.unwrap().worker, "w1");
    assert!(cluster.store.get("drains/w1").await.unwrap().is_some());
    let absent = async || {
        let status = client.cluster().await.unwrap();
        status.absent_drains.into_iter().map(|drain| drain.worker).collect::<Vec<String>>()
    };
    assert!(absent().await.is_empty(), "it is there");
    cluster.store.commit(Transaction::new().delete(WorkerRecord::key("default", "w1"))).await.unwrap();
    assert_eq!(absent().await, ["w1"], "it is gone, and its drain is not");
    client.undrain("w1").await.unwrap();
    assert!(absent().await.is_empty());
    assert!(client.undrain("w1").await.unwrap_err().is_not_found());
    coordinator.close().await;
}

#[tokio::test]
async fn eyes_see_the_cluster_the_workers_and_the_plots() {
    let cluster = Cluster::new().await;
    let (coordinator, client) = cluster.coordinator("one").await;
    leads(&coordinator).await;
    let status = client.cluster().await.unwrap();
    assert_eq!((status.version.as_str(), status.state_store.reachable), ("9.9.9", true));
    assert_eq!(status.cluster["members"][0]["name"], "w1");
    assert_eq!(status.warnings, ["<b>w2</b> is away"]);
    let stats = until(|| async { Some(client.stats().await.unwrap()).filter(|stats| stats.as_of_ms > 0) }).await;
    assert_eq!(stats.workers[0].name, "w1");
    assert_eq!(client.series(Window::Recent).await.unwrap().step_seconds, 5);
    assert_eq!(client.series(Window::Day).await.unwrap().step_seconds, 120);
    assert_eq!(client.version().await.unwrap().version, "9.9.9");
    assert_eq!(bare(&coordinator, "GET", "/healthz", None).await.0, 200);
    let (status, text) = bare(&coordinator, "GET", "/readyz", None).await;
    assert_eq!(status, 200, "{text}");
    let (status, document) = bare(&coordinator, "GET", "/api/v1/openapi.json", None).await;
    assert_eq!((status, document), (200, forebay_coordinator::api::openapi_json()));
    coordinator.close().await;
}

#[tokio::test]
async fn without_its_state_store_a_coordinator_lives_is_not_ready_and_says_why() {
    let cluster = Cluster::new().await;
    let (coordinator, client) = cluster.coordinator("one").await;
    leads(&coordinator).await;
    cluster.store.close().await;
    assert_eq!(bare(&coordinator, "GET", "/healthz", None).await.0, 200);
    let (status, text) = bare(&coordinator, "GET", "/readyz", None).await;
    let checks: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (status, checks["ready"].as_bool(), checks["checks"][0]["ok"].as_bool()),
        (503, Some(false), Some(false))
    );
    let status = client.cluster().await.unwrap();
    assert!(!status.state_store.reachable);
    assert!(status.warnings[0].contains("last known is in use"), "{:?}", status.warnings);
    coordinator.close().await;
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_in_one_form() {
    let cluster = Cluster::new().await;
    let (coordinator, _) = cluster.coordinator("one").await;
    leads(&coordinator).await;
    let json = |text: &str| Some(("application/json", text.as_bytes().to_vec()));
    let cases = [
        ("GET", "/nowhere", None, 404, "NOT_FOUND"),
        ("GET", "/api/v1/nowhere", None, 404, "NOT_FOUND"),
        ("DELETE", "/api/v1/jobs", None, 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/api/v1/jobs", None, 415, "UNSUPPORTED_MEDIA_TYPE"),
        ("POST", "/api/v1/jobs", Some(("text/plain", b"{}".to_vec())), 415, "UNSUPPORTED_MEDIA_TYPE"),
        ("POST", "/api/v1/jobs", json("{"), 400, "INVALID_ARGUMENT"),
        ("POST", "/api/v1/jobs", json(r#"{"kind":"load","path":"s3"}"#), 400, "INVALID_ARGUMENT"),
        ("POST", "/api/v1/jobs", json(r#"{"kind":"load","path":"/s3","replicas":99}"#), 400, "INVALID_ARGUMENT"),
        ("POST", "/api/v1/jobs", Some(("application/json", vec![b' '; 100_000])), 413, "TOO_LARGE"),
        ("GET", "/api/v1/jobs?kind=steal", None, 400, "INVALID_ARGUMENT"),
        ("GET", "/api/v1/series?window=year", None, 400, "INVALID_ARGUMENT"),
        ("DELETE", "/api/v1/mounts?path=relative", None, 400, "INVALID_ARGUMENT"),
        ("GET", "/api/v1/jobs/%FF", None, 400, "INVALID_ARGUMENT"),
    ];
    for (method, at, body, status, code) in cases {
        let (found, text) = bare(&coordinator, method, at, body).await;
        let fault: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{method} {at}: {error}: {text}"));
        assert_eq!((found, fault["error"]["code"].as_str()), (status, Some(code)), "{method} {at}: {text}");
        for part in ["message", "remedy"] {
            assert!(fault["error"][part].as_str().is_some_and(|text| !text.is_empty()), "{method} {at}: {text}");
        }
    }
    coordinator.close().await;
}

#[tokio::test]
async fn a_coordinator_answers_to_the_name_that_others_send_its_clients_to_and_says_what_else_may_be_set() {
    let cluster = Cluster::new().await;
    let mut options = CoordinatorOptions::new("one", "127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap(), "9.9.9");
    options.advertise = Some("coordinator1:19999".to_owned());
    let (store, cache) = (Arc::clone(&cluster.store), Arc::clone(&cluster.cache));
    let coordinator = Coordinator::start(options, store, cache, Arc::new(View)).await.unwrap();
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    for (host, status, code) in [("coordinator1:19999", 200, None), ("evil.example:19999", 421, Some("MISDIRECTED"))] {
        let url = format!("http://{}/api/v1/version", coordinator.address().unwrap());
        let response = http.get(url).header("host", host).timeout(PATIENCE).send().await.unwrap();
        assert_eq!(response.status(), status, "{host}");
        let answer: Value = response.json().await.unwrap();
        assert_eq!(answer["error"]["code"].as_str(), code, "{answer}");
        let remedy = answer["error"]["remedy"].as_str().unwrap_or_default();
        assert_eq!(remedy.contains("network.http.hosts"), code.is_some(), "{answer}");
    }
    leads(&coordinator).await;
    let is_ready = coordinator.readiness();
    until(|| async { is_ready().await.then_some(()) }).await;
    cluster.store.close().await;
    assert!(!is_ready().await);
    coordinator.close().await;
}

#[tokio::test]
async fn the_page_is_served_with_nothing_from_elsewhere() {
    let cluster = Cluster::new().await;
    let (coordinator, _) = cluster.coordinator("one").await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut types = BTreeMap::new();
    for at in ["/", "/forebay.css", "/forebay.js"] {
        let response = http.get(format!("http://{}{at}", coordinator.address().unwrap())).send().await.unwrap();
        assert_eq!(response.status(), 200);
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        assert!(header("content-security-policy").starts_with("default-src 'none'"));
        assert_eq!(header("x-content-type-options"), "nosniff");
        types.insert(at, header("content-type"));
        let text = response.text().await.unwrap();
        let elsewhere = text.replace("http://www.w3.org/2000/svg", "");
        assert!(!elsewhere.contains("://") && !elsewhere.contains("innerHTML"), "{at}");
    }
    assert_eq!(types["/forebay.js"], "text/javascript; charset=utf-8");
    coordinator.close().await;
}

/// Raises this process's limit of descriptors to `descriptors`, if it is lower.
fn allow(descriptors: u64) -> bool {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < descriptors) {
        limit.current = Some(descriptors);
        return setrlimit(Resource::Nofile, limit).is_ok();
    }
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_many_connections_stand_idle_a_request_is_answered() {
    if !allow(4096) {
        // Past the test harness, which shows what it captured of failed tests only.
        return drop(writeln!(std::io::stderr(), "skipped: this process may not have 4096 descriptors"));
    }
    let cluster = Cluster::new().await;
    let (coordinator, client) = cluster.coordinator("one").await;
    leads(&coordinator).await;
    // Half of them have asked something, and keep their connection as browsers do.
    let mut idle = Vec::new();
    for number in 0..1000 {
        let mut stream = tokio::net::TcpStream::connect(coordinator.address().unwrap()).await.unwrap();
        if number % 2 == 0 {
            use tokio::io::AsyncWriteExt as _;
            stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        }
        idle.push(stream);
    }
    let began = tokio::time::Instant::now();
    let jobs = tokio::time::timeout(PATIENCE, client.jobs(None, None)).await.expect("no place is made for a request");
    assert!(jobs.is_ok(), "{jobs:?}");
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "it waited until the others were too old: {:?}",
        began.elapsed()
    );
    drop(idle);
    coordinator.close().await;
}
