//! Who may talk to a worker, asked of real processes: `forebay key`, and `security.mode`.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use forebay_e2e::{
    Bucket, Cluster, Finished, Setup, Tree, Worker, beside_tests, eventually, finish, forebay, has_ucx, once,
    ruled_out_by_mode,
};

const SOON: Duration = Duration::from_secs(60);

/// A directory with the key of a cluster, `cluster.key`, as an operator makes it.
fn key() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cluster.key");
    let command = format!("umask 022; {} key create > {}", beside_tests("forebay").display(), path.display());
    let _ = finish(Command::new("sh").args(["-c", &command]), SOON).succeeded();
    (directory, path)
}

/// The line of a key file that holds the secret.
fn secret(key: &Path) -> String {
    std::fs::read_to_string(key).unwrap().lines().nth(1).unwrap().to_owned()
}

fn with_key(key: &Path) -> [String; 2] {
    ["security.mode=key".to_owned(), format!("security.key_file={}", key.display())]
}

/// The certificates that `forebay key issue` wrote into `directory`.
fn with_certificates(directory: &Path) -> [String; 4] {
    let file = |key: &str, name: &str| format!("security.{key}={}", directory.join(name).display());
    let mode = "security.mode=mtls".to_owned();
    [mode, file("cert_file", "tls.crt"), file("cert_key_file", "tls.key"), file("ca_file", "ca.crt")]
}

fn set(setup: Setup, settings: &[String]) -> Setup {
    settings.iter().fold(setup, |setup, setting| setup.option(setting))
}

fn run(arguments: &[&str], settings: &[String]) -> Finished {
    let settings = settings.iter().flat_map(|setting| ["-o", setting]);
    finish(forebay(&[]).args(arguments).args(settings), SOON)
}

/// Lists the root of what `worker` shows.
fn list(worker: &Worker, settings: &[String]) -> Finished {
    run(&["fs", "ls", "/", "--workers", &worker.address().to_string()], settings)
}

#[test]
fn a_key_is_its_owners_alone_and_nothing_shows_it() {
    let (_directory, key) = key();
    assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    let shown = run(&["key", "show"], &with_key(&key)).succeeded().text();
    assert!(shown.trim_end().ends_with("signs") && !shown.contains(&secret(&key)), "{shown}");
    let settings = run(&["conf", "show"], &with_key(&key)).succeeded().text();
    assert!(!settings.contains(&secret(&key)));

    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    run(&["key", "show"], &with_key(&key)).failed(2, &["0644", "chmod 600"]);
    let mut worker = vec!["mounts=/=file:///tmp".to_owned(), "worker.rpc.port=0".to_owned()];
    worker.extend(with_key(&key));
    run(&["worker"], &worker).failed(2, &["0644", "chmod 600"]);
    std::fs::write(&key, "-----BEGIN FOREBAY CLUSTER KEY-----\n").unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    run(&["key", "show"], &with_key(&key)).failed(2, &["does not end"]);
}

#[test]
fn who_has_the_key_reads_and_nobody_else() {
    if ruled_out_by_mode("it is about modes itself") {
        return;
    }
    let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(3, 5 << 20));
    tree.put_into(&bucket, "");
    let ((_ours, key), (_theirs, other)) = (key(), key());
    let worker = set(Setup::of(&bucket), &with_key(&key)).worker(&bucket);
    let mount = set(Setup::without_origin(), &with_key(&key)).mount(std::slice::from_ref(&worker));
    tree.verify_names(&mount.root());
    tree.verify(&mount.root());

    let listed = list(&worker, &with_key(&key)).succeeded().text();
    assert!(listed.contains("file00"), "{listed}");
    for (settings, why, remedy) in [
        (vec![], "it speaks TLS only", "next: set `security.mode`"),
        (with_key(&other).to_vec(), "no authority", "next: `forebay doctor` says"),
    ] {
        let refused = list(&worker, &settings);
        refused.failed(5, &["identities do not fit", why, remedy]);
        assert!(!refused.text().contains("file00"));
    }
    // It says so after the client has heard it.
    eventually("the log tells of it", SOON, || worker.log_text().contains("closed a connection"));
    let log = worker.log_text();
    assert!(!log.contains(&secret(&key)), "{log}");
    // The other way round: who proves who it is talks to nobody who does not.
    let plain = Setup::of(&bucket).worker(&bucket);
    list(&plain, &with_key(&key)).failed(5, &["it does not speak TLS", "next: set `security.mode` there"]);
}

#[test]
fn a_tenant_with_a_readers_certificate_reads_and_changes_nothing() {
    let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(1, 1 << 20));
    tree.put_into(&bucket, "");
    let (directory, key) = key();
    let worker = set(Setup::of(&bucket), &with_key(&key)).worker(&bucket);
    let issue = |role: &str| {
        let output = directory.path().join(role);
        let path = output.to_str().unwrap();
        let issued = ["key", "issue", "--role", role, "--client", "team-a", "--output", path];
        let told = run(&issued, &with_key(&key)).succeeded().text();
        assert!(told.contains(&format!("spiffe://forebay/forebay/forebay/{role}/team-a")), "{told}");
        run(&issued, &with_key(&key)).failed(6, &["cannot make the directory"]);
        with_certificates(&output)
    };
    let mode = |path: PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let (reader, writer) = (issue("reader"), issue("writer"));
    assert_eq!((mode(directory.path().join("reader")), mode(directory.path().join("reader/tls.key"))), (0o700, 0o600));

    let mount = |settings: &[String]| set(Setup::without_origin(), settings).mount(std::slice::from_ref(&worker));
    let (theirs, ours) = (mount(&reader), mount(&writer));
    tree.verify(&theirs.root());
    let mut planted = std::fs::File::create(theirs.path("planted")).unwrap();
    let error = planted.write_all(b"x").and_then(|()| planted.sync_all()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{error}");
    assert!(std::fs::remove_file(theirs.path("file00")).is_err());
    std::fs::write(ours.path("made"), "y").unwrap();
    assert_eq!(bucket.object("made"), b"y");
    assert!(!bucket.path_of("planted").exists() && bucket.path_of("file00").exists());

    // Nor is a tenant a worker, wherever it listens.
    let impostor = set(Setup::of(&bucket), &reader).worker(&bucket);
    list(&impostor, &with_key(&key)).failed(5, &["listens there, and not the worker", "next: see which certificate"]);
}

#[test]
fn programs_on_the_mount_of_a_tenant_that_is_locked_out_are_denied() {
    let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(1, 1 << 20));
    tree.put_into(&bucket, "");
    let (directory, key) = key();
    let output = directory.path().join("team-a");
    let issued = ["key", "issue", "--role", "reader", "--client", "team-a", "--output", output.to_str().unwrap()];
    let _ = run(&issued, &with_key(&key)).succeeded();
    let denied = directory.path().join("denied");
    std::fs::write(&denied, "").unwrap();
    let mut settings = with_key(&key).to_vec();
    settings.push(format!("security.denied_file={}", denied.display()));
    let worker = set(Setup::of(&bucket), &settings).worker(&bucket);
    let tenant = with_certificates(&output);
    let mount = set(Setup::without_origin(), &tenant).mount(std::slice::from_ref(&worker));
    tree.verify(&mount.root());

    std::fs::write(&denied, "spiffe://forebay/forebay/forebay/reader/team-a\n").unwrap();
    // Names that nobody has asked for before, of which no cache knows anything.
    let mut names = (0..).map(|number| mount.path(&format!("absent{number}")));
    eventually("programs are told", SOON, || {
        let asked = names.next().and_then(|name| std::fs::metadata(name).err());
        asked.is_some_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
    });
    list(&worker, &tenant).failed(5, &["the certificate of this process", "next: its log says why"]);
    let _ = list(&worker, &with_key(&key)).succeeded();
}

/// On the worker's machine a mount proves who it is at the socket of its memory, too, and sees no more of that once it is denied.
#[test]
fn a_mount_sees_the_memory_of_its_worker_until_it_is_denied() {
    let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(1, 8 << 20));
    tree.put_into(&bucket, "");
    let (directory, key) = key();
    let output = directory.path().join("team-a");
    let issued = ["key", "issue", "--role", "reader", "--client", "team-a", "--output", output.to_str().unwrap()];
    let _ = run(&issued, &with_key(&key)).succeeded();
    let denied = directory.path().join("denied");
    std::fs::write(&denied, "").unwrap();
    let sockets = format!("network.shared_memory_dir={}", directory.path().join("sockets").display());
    let sharing = ["network.shared_memory=on", sockets.as_str()];
    let setup = Setup::of(&bucket).options(&sharing).option("worker.memory.prewarm=false");
    let denying = format!("security.denied_file={}", denied.display());
    let log = directory.path().join("audit.jsonl");
    let audit = format!("security.audit.file={}", log.display());
    let worker = set(setup, &with_key(&key)).options(&[&denying, &audit]).worker(&bucket);
    let mount = |settings: &[String]| {
        let setup = Setup::without_origin().option("client.memory.size=8MiB").options(&sharing);
        set(setup, settings).mount(std::slice::from_ref(&worker))
    };
    let (theirs, ours) = (mount(&with_certificates(&output)), mount(&with_key(&key)));
    let state = |mount: &forebay_e2e::Mount| {
        mount.own_stats()["window"]["workers"][0]["state"].as_str().unwrap_or_default().to_owned()
    };
    for mount in [&theirs, &ours] {
        eventually("the mount sees the worker's memory", SOON, || {
            tree.verify(&mount.root());
            state(mount) == "open"
        });
    }
    assert_eq!((worker.counter("/window/connections"), worker.counter("/unauthenticated_connections")), (2, 0));

    std::fs::write(&denied, "spiffe://forebay/forebay/forebay/reader/team-a\n").unwrap();
    eventually("its session ends", SOON, || state(&theirs) != "open" && worker.counter("/window/connections") == 1);
    eventually("the log says who was denied", SOON, || worker.log_text().contains("reader/team-a` is denied"));
    for outcome in ["allowed", "refused"] {
        let is_it = |event: &serde_json::Value| {
            let peer = event["peer"].as_str().unwrap_or_default();
            event["operation"] == "see-memory"
                && event["identity"] == "spiffe://forebay/forebay/forebay/reader/team-a"
                && peer.starts_with("uid=")
                && peer.contains(",pid=")
                && event["outcome"] == outcome
        };
        eventually("who sees the memory is recorded", SOON, || audited(&log).iter().any(is_it));
    }
    tree.verify(&ours.root());
    assert_eq!(state(&ours), "open");
}

/// The whole lines of an audit log.
fn audited(log: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(log).unwrap();
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole.map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

#[test]
fn who_did_what_to_which_path_is_recorded_and_never_the_key() {
    let (bucket, (directory, key)) = (Bucket::new(), key());
    let log = directory.path().join("audit.jsonl");
    let audit = format!("security.audit.file={}", log.display());
    let mut worker = set(Setup::of(&bucket), &with_key(&key)).option(&audit).worker(&bucket);
    let mount = |role: &str| {
        let output = directory.path().join(role);
        let issued = ["key", "issue", "--role", role, "--client", "team-a", "--output", output.to_str().unwrap()];
        let _ = run(&issued, &with_key(&key)).succeeded();
        set(Setup::without_origin(), &with_certificates(&output)).mount(std::slice::from_ref(&worker))
    };
    let (theirs, ours) = (mount("reader"), mount("writer"));
    let mut planted = std::fs::File::create(theirs.path("planted")).unwrap();
    assert!(planted.write_all(b"x").and_then(|()| planted.sync_all()).is_err());
    drop(planted);
    std::fs::write(ours.path("made"), "y").unwrap();
    assert_eq!(bucket.object("made"), b"y");
    assert_ne!(list(&worker, &[]).code, Some(0));

    let has = |operation: &str, role: &str, path: &str, outcome: &str| {
        let identity = format!("spiffe://forebay/forebay/forebay/{role}/team-a");
        let is_it = |event: &serde_json::Value| {
            event["operation"] == operation
                && event["identity"] == *identity
                && event["path"] == path
                && event["outcome"] == outcome
        };
        audited(&log).iter().any(is_it)
    };
    eventually("the refused write is recorded", SOON, || has("upload", "reader", "/planted", "refused"));
    eventually("the write is recorded", SOON, || has("upload", "writer", "/made", "allowed"));
    eventually("who proved nothing is recorded", SOON, || {
        audited(&log).iter().any(|event| event["identity"].is_null() && event["outcome"] == "refused")
    });
    // Lines of two workers would be in each other's way.
    let mut second = vec!["mounts=/=file:///tmp".to_owned(), "worker.rpc.port=0".to_owned(), audit];
    second.extend(with_key(&key));
    run(&["worker"], &second).failed(2, &["security.audit.file", "another process writes to"]);

    drop((theirs, ours));
    worker.terminate();
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.ends_with('\n') && !text.contains(&secret(&key)) && !text.contains("PRIVATE KEY"), "{text}");
    assert_eq!(std::fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o600);
}

/// Beyond the machine, nothing listens before somebody has said who may.
#[test]
fn nothing_listens_to_the_network_before_a_mode_is_set() {
    if ruled_out_by_mode("it is about modes itself") {
        return;
    }
    let worker = ["mounts=/=file:///tmp", "worker.rpc.port=0"].map(str::to_owned);
    run(&["worker"], &worker).failed(2, &["would listen at 0.0.0.0:0", "forebay key create >", "security.mode=key"]);
    let over_rdma = ["worker.rpc.bind.host=127.0.0.1", "network.rdma.data.enabled=true"].map(str::to_owned);
    let refused = run(&["worker"], &[worker, over_rdma].concat());
    refused.failed(2, &["would listen at 0.0.0.0:", "network.rdma.data.bind.host=127.0.0.1", "security.mode=key"]);
    let coordinator = ["cluster.etcd.endpoints=http://127.0.0.1:9", "coordinator.port=0"].map(str::to_owned);
    run(&["coordinator"], &coordinator).failed(2, &["would listen at 0.0.0.0:0", "coordinator.bind.host=127.0.0.1"]);
}

/// First all accept both, then all prove who they are, then nothing else is accepted: nobody is ever turned away.
#[test]
fn a_running_cluster_goes_from_no_proof_to_proof() {
    let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(1, 1 << 20));
    tree.put_into(&bucket, "");
    let (_directory, key) = key();
    let file = format!("security.key_file={}", key.display());
    let with = |settings: &[&str]| {
        let settings = settings.iter().map(|setting| (*setting).to_owned());
        settings.chain([file.clone()]).collect::<Vec<_>>()
    };
    let (off, both, proves) = (
        with(&["security.mode=off"]),
        with(&["security.mode=off", "security.accept=off,key"]),
        with(&["security.mode=key", "security.accept=off,key"]),
    );
    for accepting in [&both, &proves] {
        let worker = set(Setup::of(&bucket), accepting).worker(&bucket);
        for client in [&off, &both, &proves] {
            let listed = list(&worker, client).succeeded().text();
            assert!(listed.contains("file00"), "{listed}");
        }
        let mount = set(Setup::without_origin(), &off).mount(std::slice::from_ref(&worker));
        tree.verify(&mount.root());
        assert!(worker.counter("/unauthenticated_connections") > 0);
    }
    let worker = set(Setup::of(&bucket), &with_key(&key)).worker(&bucket);
    let _ = list(&worker, &proves).succeeded();
    list(&worker, &off).failed(5, &["it speaks TLS only"]);
    // An operator who leaves out what is there now is told.
    let wrong = with(&["security.mode=key", "security.accept=off"]);
    list(&worker, &wrong).failed(2, &["`security.accept` does not have `key`"]);
}

#[test]
fn a_key_is_replaced_while_all_go_on() {
    let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(2, 2 << 20));
    tree.put_into(&bucket, "");
    let ((_ours, path), (_new, next)) = (key(), key());
    let (old, new) = (std::fs::read_to_string(&path).unwrap(), std::fs::read_to_string(&next).unwrap());
    let worker = set(Setup::of(&bucket), &with_key(&path)).worker(&bucket);
    let settings = with_key(&path);
    let mount =
        set(Setup::without_origin().option("client.memory.size=8MiB"), &settings).mount(std::slice::from_ref(&worker));
    let replace = |text: &str| {
        let beside = path.with_extension("new");
        std::fs::write(&beside, text).unwrap();
        std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::rename(&beside, &path).unwrap();
    };
    assert_eq!(list(&worker, &with_key(&next)).code, Some(5));
    // Half a file changes nothing.
    replace(&old[..40]);
    eventually("it is told", SOON, || worker.log_text().contains("previous ones stay in use"));
    tree.verify(&mount.root());
    replace(&format!("{old}{new}"));
    replace(&format!("{new}{old}"));
    eventually("who has the new key only is let in", SOON, || list(&worker, &with_key(&next)).code == Some(0));
    tree.verify(&mount.root());
    replace(&new);
    eventually("who has the old key only is not", SOON, || {
        std::fs::write(&next, &old).unwrap();
        list(&worker, &with_key(&next)).code == Some(5)
    });
    tree.verify(&mount.root());
}

/// The key stays where certificates are issued: no node has it.
#[test]
fn certificates_alone_make_a_cluster_and_are_replaced_while_it_runs() {
    let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(2, 1 << 20));
    tree.put_into(&bucket, "");
    let (directory, key) = key();
    let issue = |role: &str, more: &[&str]| {
        let output = directory.path().join(role);
        let path = output.to_str().unwrap();
        let issued = ["key", "issue", "--role", role, "--client", "one", "--output", path];
        let _ = run(&[&issued[..], more].concat(), &with_key(&key)).succeeded();
        with_certificates(&output)
    };
    let (of_worker, of_reader, of_admin) = (issue("worker", &[]), issue("reader", &[]), issue("admin", &[]));
    let worker = set(Setup::of(&bucket), &of_worker).worker(&bucket);
    let mount =
        set(Setup::without_origin().option("client.memory.size=8MiB"), &of_reader).mount(std::slice::from_ref(&worker));
    tree.verify(&mount.root());

    let address = worker.address().to_string();
    let left = || {
        let told = once("the worker tells its counters", SOON, || {
            let asked = run(&["stats", "--all", "--json", "--workers", &address], &of_admin);
            (asked.code == Some(0)).then_some(asked.stdout)
        });
        let counters: serde_json::Value = serde_json::from_slice(&told).expect("counters as JSON");
        counters["security"]["certificate_expires_seconds"].as_u64().unwrap_or_else(|| panic!("{counters}"))
    };
    let two_hours = 2 * 3600;
    assert!(left() > two_hours);
    issue("worker", &["--replace", "--lifetime", "2h"]);
    issue("reader", &["--replace"]);
    eventually("the worker takes its new certificate up", SOON, || left() <= two_hours);
    tree.verify(&mount.root());
    assert!(list(&worker, &of_reader).succeeded().text().contains("file00"));
}

/// Whoever can write to etcd has a worker's requests go elsewhere, and gets no request that is not for who listens there: what
/// that costs is availability, and no byte.
#[test]
fn a_record_that_sends_requests_to_another_worker_costs_no_byte() {
    let Some(cluster) = Cluster::start(1) else { return };
    let tree = Tree::of_equal_files(12, 2 << 20);
    tree.put_into(&cluster.bucket, "");
    let (_directory, key) = key();
    let setup = || set(cluster.setup(), &with_key(&key));
    // A lease that lapses on a busy machine would take the record with it, or bring the right one back.
    let worker = |name: &str| setup().option("cluster.lease_ttl=60s").memory("128MiB").member(name);
    let (w1, w2) = (worker("w1"), worker("w2"));
    let coordinator = setup().coordinator();
    coordinator.wait_for_active(&["w1", "w2"]);
    coordinator.add_mount(&cluster, "/s3");
    let mut asking = with_key(&key).to_vec();
    asking.push("block.size=256KiB".to_owned());
    for worker in [&w1, &w2] {
        eventually("the worker shows the mount", SOON, || list(worker, &asking).text().contains("s3"));
    }
    let mount = || setup().option("client.memory.size=8MiB").mount_cluster();
    let before = mount();
    tree.verify(&before.path("s3"));
    assert!(!before.log_text().contains("listens there"), "{}", before.log_text());

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut etcd = cluster.etcd.client(None).await.unwrap();
        let every = etcd_client::GetOptions::new().with_prefix();
        let found = etcd.get("/forebay/", Some(every)).await.unwrap();
        let is_of_w2 = |pair: &&etcd_client::KeyValue| {
            pair.key_str().is_ok_and(|key| key.contains("/workers/") && key.ends_with("/w2"))
        };
        let pair = found.kvs().iter().find(is_of_w2).expect("the record of w2");
        let mut record: serde_json::Value = serde_json::from_slice(pair.value()).unwrap();
        assert!(record["identity"].is_string(), "{record}");
        record["addresses"]["rpc"] = w1.address().to_string().into();
        etcd.put(pair.key(), record.to_string(), None).await.unwrap();
    });
    let after = mount();
    tree.verify(&after.path("s3"));
    let log = after.log_text();
    assert!(log.contains("listens there, and not the worker"), "{log}");
}

#[test]
fn nothing_goes_around_it() {
    if ruled_out_by_mode("it is about modes itself") {
        return;
    }
    let (_directory, key) = key();
    let of = |settings: &[&str]| -> Vec<String> {
        let always = ["mounts=/=file:///tmp", "worker.rpc.bind.host=127.0.0.1", "worker.rpc.port=0"];
        always.iter().chain(settings).map(|setting| (*setting).to_owned()).collect()
    };
    let encrypted = "security.require_encryption=true";
    for (plain, why) in [
        ("network.rdma.data.enabled=true", "over RDMA nothing is encrypted"),
        ("network.rdma.metadata.enabled=true", "over RDMA nothing is encrypted"),
        ("network.rdma.data.one_sided=true", "reads its memory in plain text"),
        ("network.tcp.security=auth", "bytes go in plain text"),
        ("security.accept=off,key", "is talked to in plain text"),
    ] {
        let settings = [of(&[encrypted, plain]), with_key(&key).to_vec()].concat();
        run(&["worker"], &settings).failed(2, &[why, "security.require_encryption"]);
    }
    run(&["worker"], &of(&[encrypted])).failed(2, &["is talked to in plain text", "security.require_encryption"]);
    let settings = [of(&["cluster.name=two words"]), with_key(&key).to_vec()].concat();
    run(&["worker"], &settings).failed(2, &["`two words` is no name within an identity"]);
}

/// A connection over UCX proves nothing itself: each is admitted over TLS.
#[test]
fn who_has_the_key_reads_over_rdma_too() {
    if !has_ucx() {
        return;
    }
    let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(3, 5 << 20));
    tree.put_into(&bucket, "");
    let (_directory, key) = key();
    let over_ucx = [
        "network.shared_memory=off",
        "network.rdma.data.enabled=true",
        "network.rdma.metadata.enabled=true",
        "network.rdma.data.transports=tcp,self",
        "network.rdma.data.buffer_pool.max_size=1GiB",
    ];
    let listen = ["network.rdma.data.bind.host=127.0.0.1", "network.rdma.data.port=0", "network.rdma.metadata.port=0"];
    let worker = set(Setup::of(&bucket).options(&over_ucx).options(&listen), &with_key(&key)).worker(&bucket);
    let mount = Setup::without_origin().options(&over_ucx).option("network.rdma.data.fallback=never");
    let mount = set(mount, &with_key(&key)).mount([&worker]);
    tree.verify_names(&mount.root());
    tree.verify(&mount.root());
    let log = mount.log_text();
    assert!(log.contains("RDMA client connected"), "{log}");
    assert!(!log.contains("RDMA failed"), "{log}");
}
