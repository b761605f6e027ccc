//! `forebay doctor` on the machine that the tests run on, whatever that has.

use std::net::TcpListener;
use std::time::Duration;

use forebay_e2e::{Bucket, Finished, finish, forebay};
use serde_json::Value;

fn doctor(environment: &[(&str, String)], arguments: &[&str]) -> Finished {
    let mut command = forebay(environment);
    // Port 0: another test's worker must not be in the way.
    let arguments = ["doctor", "-o", "worker.rpc.port=0"].into_iter().chain(arguments.iter().copied());
    finish(command.args(arguments), Duration::from_secs(60))
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
    for section in ["System", "RDMA devices", "UCX", "Memory", "FUSE", "Network", "Origin", "Configuration", "Verdicts"]
    {
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
    assert_eq!(check(&json(&finished), "origin", "reachable", Some(&origin))["verdict"], "ok");
    // A port that was free a moment ago.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = format!("http://{free}/");
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
fn a_port_that_is_taken_is_told_with_who_has_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("worker.rpc.port={}", listener.local_addr().unwrap().port());
    let mounts = format!("mounts=/=file://{}", std::env::temp_dir().display());
    let arguments = ["doctor", "--json", "-o", &port, "-o", &mounts];
    let finished = finish(forebay(&[]).args(arguments), Duration::from_secs(60));
    finished.failed(1, &["port failed"]);
    let report = json(&finished);
    let taken = check(&report, "network", "port", Some("worker.rpc.port"));
    // This test is who.
    let expected = format!("(process {})", std::process::id());
    assert!(taken["what"].as_str().unwrap().contains(&expected), "{taken}");
}
