//! `docs/guides/cert-manager.md` with what cert-manager makes of its manifests.
//!
//! cert-manager's own code issues here, without a Kubernetes, and the directories of Secrets are written as the kubelet
//! writes them (`tests/cert-manager/main.go`). That takes Go, and modules from the network, so it is for long runs.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use forebay_e2e::{
    Bucket, Finished, Setup, Tree, Worker, eventually, finish, forebay, is_long_run, once, ruled_out_by_mode, skipped,
};
use toml_edit::DocumentMut;

const SOON: Duration = Duration::from_secs(60);
/// Modules may have to be fetched first, and all that cert-manager is made of compiled.
const BUILT_WITHIN: Duration = Duration::from_secs(1200);
const HOUR: u64 = 3600;
const TEAM_A: &str = "spiffe://forebay/forebay/forebay/reader/team-a";

/// The blocks of the guide that begin so, each with its first line.
fn blocks(kind: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guides/cert-manager.md");
    let guide = std::fs::read_to_string(path).unwrap();
    let fence = format!("```{kind}\n");
    let of_kind = guide.split(fence.as_str()).skip(1);
    of_kind.map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// All manifests of the guide.
fn manifests() -> String {
    blocks("yaml").join("---\n")
}

/// When a certificate was issued, when cert-manager would renew it, and when it ends: in seconds since 1970.
#[derive(Debug)]
struct Issued {
    from: u64,
    renewal: u64,
    until: u64,
}

/// cert-manager, the Secrets that it made, and the list of those that are denied.
struct CertManager {
    program: PathBuf,
    directory: tempfile::TempDir,
}

impl CertManager {
    /// Says so where it cannot be tried.
    fn start() -> Option<Self> {
        static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
        if !is_long_run() || ruled_out_by_mode("it is about modes itself") {
            return None;
        }
        let program = BUILT.get_or_init(Self::build).clone()?;
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("identities"), "# nobody\n").unwrap();
        Some(Self { program, directory })
    }

    fn build() -> Option<PathBuf> {
        if Command::new("go").arg("version").stdout(Stdio::null()).status().is_err() {
            skipped("cert-manager: it takes Go to build it");
            return None;
        }
        let modules = finish(go().args(["list", "-deps", "."]), BUILT_WITHIN);
        if modules.code != Some(0) {
            skipped(&format!("cert-manager: {}", modules.stderr.lines().last().unwrap_or_default()));
            return None;
        }
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cert-manager");
        let _ = finish(go().args(["build", "-o"]).arg(&program).arg("."), BUILT_WITHIN).succeeded();
        Some(program)
    }

    /// Issues what manifests ask for and is not there, and what is named in any case. By NAMESPACE/CERTIFICATE.
    fn issue(&self, manifests: &str, renewed: &[&str]) -> BTreeMap<String, Issued> {
        let path = self.directory.path().join("manifests.yaml");
        std::fs::write(&path, manifests).unwrap();
        let mut command = Command::new(&self.program);
        command.arg(self.directory.path().join("secrets")).args(renewed).stdin(File::open(path).unwrap());
        let told = finish(&mut command, SOON).succeeded().text();
        let issued = told.lines().map(|line| {
            let words: Vec<_> = line.split(' ').collect();
            let [name, from, renewal, until] = words[..] else { panic!("{line}") };
            let [from, renewal, until] = [from, renewal, until].map(|time| time.parse().unwrap());
            (name.to_owned(), Issued { from, renewal, until })
        });
        issued.collect()
    }

    fn secret(&self, secret: &str) -> PathBuf {
        self.directory.path().join("secrets").join(secret)
    }

    fn denied(&self) -> PathBuf {
        self.directory.path().join("identities")
    }

    /// Puts these authorities, NAMESPACE/SECRET, into the file that a `ConfigMap` is in a pod, all at once.
    fn believe(&self, authorities: &[&str]) {
        let certificate = |secret: &&str| std::fs::read_to_string(self.secret(secret).join("tls.crt")).unwrap();
        let beside = self.directory.path().join("ca.crt.new");
        std::fs::write(&beside, authorities.iter().map(certificate).collect::<String>()).unwrap();
        std::fs::rename(beside, self.bundle()).unwrap();
    }

    fn bundle(&self) -> PathBuf {
        self.directory.path().join("ca.crt")
    }

    /// Those settings, with the authorities of that file in the place of the Secret's.
    fn with_bundle(&self, secret: &str) -> Vec<String> {
        let mut settings = self.settings(secret);
        settings.push(format!("security.ca_file={}", self.bundle().display()));
        settings
    }

    /// The settings of the guide for a process that has this Secret, NAMESPACE/SECRET, mounted.
    fn settings(&self, secret: &str) -> Vec<String> {
        let [file] = &blocks("toml kubernetes")[..] else { panic!("one file of settings in the guide") };
        let file = file.replace("/etc/forebay/tls", &self.secret(secret).display().to_string());
        let file = file.replace("/etc/forebay/denied", &self.directory.path().display().to_string());
        let file: DocumentMut = file.parse().unwrap();
        let settings = file["security"].as_table().expect("a table").iter();
        settings.map(|(key, value)| format!("security.{key}={}", value.as_str().expect("a text"))).collect()
    }
}

/// Go, where the sources are, with modules as `go.sum` has them.
fn go() -> Command {
    let mut go = Command::new("go");
    go.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("cert-manager"));
    go.env("GOFLAGS", "-mod=readonly").env("GOTOOLCHAIN", "local").env("CGO_ENABLED", "0").stdin(Stdio::null());
    go
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

/// What `forebay doctor` says of security: a check a line, with its verdict.
fn doctor(settings: &[String]) -> Vec<String> {
    let report = run(&["doctor", "--json"], settings);
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
    let checks = report["checks"].as_array().expect("checks").iter().filter(|check| check["section"] == "security");
    checks
        .map(|check| ["name", "verdict", "what"].map(|key| check[key].as_str().unwrap_or_default()).join(" "))
        .collect()
}

#[test]
fn what_cert_manager_issues_for_the_guide_is_taken_and_renewed_while_all_go_on() {
    let Some(cert_manager) = CertManager::start() else { return };
    let issued = cert_manager.issue(&manifests(), &[]);
    assert_eq!(issued.len(), 8, "{issued:?}");
    for (name, issued) in &issued {
        let days = if name.ends_with("authority") || name.ends_with("-readers") { 3650 } else { 7 };
        assert_eq!(issued.until - issued.from, days * 24 * HOUR, "{name}: {issued:?}");
        // As `docs/guides/cert-manager.md` says of the others, and its default for authorities.
        let left = if days == 7 { 56 * HOUR } else { days * 24 * HOUR / 3 };
        assert_eq!(issued.until - issued.renewal, left, "{name}: {issued:?}");
    }
    for (secret, identity) in [("worker-tls", "worker/workers"), ("coordinator-tls", "coordinator/coordinators")] {
        let found = doctor(&cert_manager.settings(&format!("forebay/{secret}")));
        let count = |start: &str| found.iter().filter(|check| check.starts_with(start)).count();
        let known = format!("identity ok spiffe://forebay/forebay/forebay/{identity}");
        // The certificate, and that of the authority.
        assert_eq!((count(&known), count("certificate ok"), count("file")), (1, 2, 0), "{found:#?}");
    }

    let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(1, 1 << 20));
    tree.put_into(&bucket, "");
    let [of_worker, of_admin, mut of_team_a] =
        ["worker-tls", "admin-tls", "team-a-tls"].map(|secret| cert_manager.settings(&format!("forebay/{secret}")));
    // Who is locked out does not look after the list.
    of_team_a.retain(|setting| !setting.starts_with("security.denied_file"));
    let worker = set(Setup::of(&bucket), &of_worker).worker(&bucket);
    let expected =
        blocks("sh kubernetes").join("").lines().find_map(|line| Some(line.split_once("| grep '")?.1.to_owned()));
    let expected = expected.expect("what the log of a worker says");
    assert!(worker.log_text().contains(expected.trim_end_matches('\'')), "{expected}: {}", worker.log_text());
    let mount = set(Setup::without_origin().option("client.memory.size=8MiB"), &of_team_a);
    let mount = mount.mount(std::slice::from_ref(&worker));
    tree.verify(&mount.root());
    for settings in [&of_admin, &of_team_a] {
        assert!(list(&worker, settings).succeeded().text().contains("file00"));
    }
    list(&worker, &["security.mode=off".to_owned()]).failed(5, &["it speaks TLS only"]);

    let address = worker.address().to_string();
    let left = || {
        let told = once("the worker tells its counters", SOON, || {
            let asked = run(&["stats", "--all", "--json", "--workers", &address], &of_admin);
            (asked.code == Some(0)).then_some(asked.stdout)
        });
        let counters: serde_json::Value = serde_json::from_slice(&told).expect("counters as JSON");
        counters["security"]["certificate_expires_seconds"].as_u64().unwrap_or_else(|| panic!("{counters}"))
    };
    assert!(left() > 100 * HOUR);
    let shorter = manifests().replace("duration: 168h", "duration: 100h");
    let all = ["forebay/authority", "forebay/worker", "forebay/team-a"];
    assert_eq!(cert_manager.issue(&shorter, &all).len(), 3);
    eventually("the worker takes its new certificate up", SOON, || left() <= 100 * HOUR);
    tree.verify(&mount.root());
    // The authority is a new certificate of the same key: who has not been issued another one since is believed.
    assert!(list(&worker, &of_admin).succeeded().text().contains("file00"));

    std::fs::write(cert_manager.denied(), format!("{TEAM_A}\n")).unwrap();
    eventually("team-a is locked out", SOON, || list(&worker, &of_team_a).code == Some(5));
    assert!(list(&worker, &of_admin).succeeded().text().contains("file00"));
}

/// All believe both for a while, and nobody is turned away.
#[test]
fn the_key_of_the_authority_is_replaced_while_all_go_on() {
    let Some(cert_manager) = CertManager::start() else { return };
    cert_manager.issue(&manifests(), &[]);
    cert_manager.believe(&["forebay/authority"]);
    let [of_worker, of_admin] =
        ["worker-tls", "admin-tls"].map(|secret| cert_manager.with_bundle(&format!("forebay/{secret}")));
    let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(1, 1 << 20));
    tree.put_into(&bucket, "");
    let worker = set(Setup::of(&bucket), &of_worker).worker(&bucket);
    let goes_on = |what: &str, said: &str, times: usize| {
        eventually(what, SOON, || worker.log_text().matches(said).count() == times);
        assert!(list(&worker, &of_admin).succeeded().text().contains("file00"), "{what}");
    };
    cert_manager.believe(&["forebay/authority", "forebay/next-authority"]);
    goes_on("the worker believes both", "authorities=2", 1);

    let by_next = manifests().replace("ca: {secretName: authority}", "ca: {secretName: next-authority}");
    assert_ne!(by_next, manifests());
    cert_manager.issue(&by_next, &["forebay/worker"]);
    goes_on("the worker has a certificate of the new authority", "authorities=2", 2);
    // As the guide says: a Secret of cert-manager names one authority alone.
    list(&worker, &cert_manager.settings("forebay/admin-tls")).failed(5, &["no authority"]);

    cert_manager.issue(&by_next, &["forebay/admin"]);
    cert_manager.believe(&["forebay/next-authority"]);
    goes_on("the worker believes the new authority alone", "authorities=1", 1);
}

/// The namespace of a tenant makes readers of any name, and nobody else.
#[test]
fn an_authority_of_readers_from_cert_manager_makes_readers_only() {
    let Some(cert_manager) = CertManager::start() else { return };
    let worker_of_tenant = manifests().replace("reader/team-b", "worker/workers");
    assert_ne!(worker_of_tenant, manifests());
    cert_manager.issue(&manifests(), &[]);
    cert_manager.believe(&["forebay/authority", "team-b/forebay-readers"]);
    let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(1, 1 << 20));
    tree.put_into(&bucket, "");
    let worker = set(Setup::of(&bucket), &cert_manager.with_bundle("forebay/worker-tls")).worker(&bucket);
    let of_team_b = cert_manager.with_bundle("team-b/forebay-reader-tls");
    assert!(list(&worker, &of_team_b).succeeded().text().contains("file00"));
    // Who believes its own authority alone does not believe the worker.
    let alone = cert_manager.settings("team-b/forebay-reader-tls");
    list(&worker, &alone).failed(5, &["no authority"]);

    cert_manager.issue(&worker_of_tenant, &["team-b/forebay-reader"]);
    list(&worker, &of_team_b).failed(2, &["no authority for role worker"]);

    // Nor when that of the cluster signed it, and it has to be in no list.
    let signed = "\
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: readers, namespace: forebay}
spec:
  isCA: true
  commonName: Forebay readers
  uris: [\"spiffe://forebay/forebay/forebay/reader\"]
  secretName: readers
  privateKey: {algorithm: ECDSA, size: 256}
  issuerRef: {name: forebay, kind: Issuer}
---
apiVersion: cert-manager.io/v1
kind: Issuer
metadata: {name: readers, namespace: forebay}
spec:
  ca: {secretName: readers}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: below, namespace: forebay}
spec:
  secretName: below-tls
  uris: [\"spiffe://forebay/forebay/forebay/reader/below\"]
  usages: [digital signature, server auth, client auth]
  privateKey: {algorithm: ECDSA, size: 256}
  issuerRef: {name: readers, kind: Issuer}
";
    let below = manifests() + signed;
    cert_manager.issue(&below, &[]);
    let of_below = cert_manager.settings("forebay/below-tls");
    assert!(list(&worker, &of_below).succeeded().text().contains("file00"));
    cert_manager.issue(&below.replace("reader/below", "admin/below"), &["forebay/below"]);
    list(&worker, &of_below).failed(2, &["no authority for role admin"]);
}
