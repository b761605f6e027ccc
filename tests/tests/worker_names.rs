//! Which worker is at an address, asked of real processes: names in a list, and a certificate with another name.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use forebay_e2e::{Bucket, Finished, Setup, Tree, Worker, beside_tests, eventually, finish, forebay};

const SOON: Duration = Duration::from_secs(60);
/// What is said where another one listens.
const NOT_W2: &str = "listens there, and not the worker `w2`";

/// A directory with the key of a cluster, and the key.
fn key() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cluster.key");
    let command = format!("{} key create > {}", beside_tests("forebay").display(), path.display());
    let _ = finish(Command::new("sh").args(["-c", &command]), SOON).succeeded();
    (directory, path)
}

fn with_key(key: &Path) -> [String; 2] {
    ["security.mode=key".to_owned(), format!("security.key_file={}", key.display())]
}

fn set(setup: Setup, settings: &[String]) -> Setup {
    settings.iter().fold(setup, |setup, setting| setup.option(setting))
}

fn run(arguments: &[&str], settings: &[String]) -> Finished {
    let settings = settings.iter().flat_map(|setting| ["-o", setting]);
    finish(forebay(&[]).args(arguments).args(settings), SOON)
}

/// Lists the root of what the worker of this name shows at the address of `worker`.
fn list(name: &str, worker: &Worker, key: &Path) -> Finished {
    run(&["fs", "ls", "/", "--workers", &format!("{name}={}", worker.address())], &with_key(key))
}

#[test]
fn a_list_that_names_another_worker_at_an_address_gets_no_byte_from_there() {
    let (bucket, tree) = (Bucket::new(), Tree::of_equal_files(2, 2 << 20));
    tree.put_into(&bucket, "");
    let (_directory, key) = key();
    let w1 = set(Setup::of(&bucket), &with_key(&key)).option("worker.name=w1").worker(&bucket);
    let refused = list("w2", &w1, &key);
    refused.failed(5, &["worker/w1", NOT_W2]);
    assert!(!refused.text().contains("file00"));

    let mount = |name: &str| {
        let entry = format!("{name}={}", w1.address());
        set(Setup::without_origin(), &with_key(&key)).prepare_mount(&entry)
    };
    let refused = mount("w2").start();
    assert!(refused.code != Some(0) && refused.stderr.contains(NOT_W2), "{}", refused.stderr);
    assert_eq!(w1.bytes_served(), 0);

    let mut named = mount("w1");
    let _ = named.start().succeeded();
    tree.verify(&named.root());
    // Commands below it ask whom it asks.
    let root = named.root();
    let listed = run(&["fs", "ls", root.to_str().unwrap()], &with_key(&key)).succeeded().text();
    assert!(listed.contains("file00"), "{listed}");
    assert!(list("w1", &w1, &key).succeeded().text().contains("file00"));
}

#[test]
fn a_worker_whose_certificate_becomes_anothers_is_who_it_was_until_it_is_started_again() {
    let bucket = Bucket::new();
    Tree::of_equal_files(1, 1 << 20).put_into(&bucket, "");
    let (directory, key) = key();
    let certificates = directory.path().join("tls");
    let issue = |name: &str, more: &[&str]| {
        let arguments = ["key", "issue", "--role", "worker", "--client", name, "--output"];
        let arguments = [&arguments[..], &[certificates.to_str().unwrap()], more].concat();
        let _ = run(&arguments, &with_key(&key)).succeeded();
    };
    issue("w1", &[]);
    let file = |key: &str, name: &str| format!("security.{key}={}", certificates.join(name).display());
    let files = [file("cert_file", "tls.crt"), file("cert_key_file", "tls.key"), file("ca_file", "ca.crt")];
    let mut worker = set(Setup::of(&bucket), &files).option("security.mode=mtls").worker(&bucket);
    let _ = list("w1", &worker, &key).succeeded();

    issue("w2", &["--replace"]);
    eventually("the log says what to do", SOON, || worker.log_text().contains("restart it to be the other"));
    let _ = list("w1", &worker, &key).succeeded();
    list("w2", &worker, &key).failed(5, &["worker/w1", NOT_W2]);

    worker.terminate();
    worker.start_again();
    let _ = list("w2", &worker, &key).succeeded();
    list("w1", &worker, &key).failed(5, &["worker/w2", "and not the worker `w1`"]);
}
