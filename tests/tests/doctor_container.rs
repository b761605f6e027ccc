//! `forebay doctor` in a container, and what it hears of systemd. Verdicts on pods and units that cannot be had here are the
//! crate's tests.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use forebay_e2e::{Container, Finished, finish, forebay, skipped};
use serde_json::Value;

/// The command, which sees neither mounts nor workers of other tests.
fn doctor(environment: &[(&str, String)]) -> Command {
    let mut command = forebay(environment);
    command.env("FOREBAY_RUN_DIR", "/nonexistent").args(["doctor", "--json", "-o", "worker.rpc.port=0"]);
    command
}

fn json(finished: &Finished) -> Value {
    serde_json::from_slice(&finished.stdout).unwrap()
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
fn a_container_is_told_from_its_host_and_so_is_who_sees_what_is_mounted_in_it() {
    let shared = tempfile::tempdir().unwrap();
    let folder = shared.path().to_str().unwrap();
    let container =
        match Container::privileged(&format!("mount --bind {folder} {folder}; mount --make-shared {folder}")) {
            Ok(container) => container,
            Err(reason) => return skipped(&format!("there can be no container here: {}", reason.trim())),
        };
    let outside = json(&finish(&mut doctor(&[]), Duration::from_secs(60)).succeeded());
    let inside = json(&container.run(&doctor(&[])).succeeded());
    let found = &inside["facts"]["container"];
    let own = &found["namespaces"];
    assert!(found["kind"].is_string() && own["processes"] == true && own["mounts"] == true, "{found}");
    assert_eq!(own["network"], outside["facts"]["container"]["namespaces"]["network"], "it has the host's");
    assert!(
        check(&inside, "container", "processes", None)["what"].as_str().unwrap().contains("all end with process 1 (")
    );
    assert!(found["mounts"]["shared"].as_array().unwrap().contains(&folder.into()), "{found}");
    let seen = check(&inside, "container", "propagation", None);
    assert!(seen["what"].as_str().unwrap().contains(folder), "{seen}");
    for name in ["SYS_ADMIN", "IPC_LOCK", "SYS_RESOURCE"] {
        check(&inside, "container", "capability", Some(name));
    }
}

/// A `systemctl` that is this script, for processes that find `folder` first.
fn be_systemctl(folder: &Path, script: &str) {
    let program = folder.join("systemctl");
    std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn units_are_what_systemd_says_and_one_that_hangs_holds_nothing_up() {
    // Where it runs is told by a folder of `/run`, which is the container's own.
    let container = match Container::privileged("mount -t tmpfs none /run; mkdir -p /run/systemd/system") {
        Ok(container) => container,
        Err(reason) => return skipped(&format!("there can be no container here: {}", reason.trim())),
    };
    let folder = tempfile::tempdir().unwrap();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let command = doctor(&[("PATH", path)]);
    let told = [
        "Id=forebay-worker.service",
        "LoadState=loaded",
        "ActiveState=failed",
        "SubState=failed",
        "Result=oom-kill",
        "Type=notify",
        "WatchdogUSec=0",
        "ExecStart={ path=/usr/bin/forebay ; argv[]=/usr/bin/forebay worker --token=s3cr3t ; }",
    ];
    be_systemctl(folder.path(), &format!("cat <<'END'\n{}\nEND", told.join("\n")));
    let finished = container.run(&command);
    finished.failed(1, &["state failed"]);
    let report = json(&finished);
    let unit = Some("forebay-worker.service");
    let state = check(&report, "units", "state", unit);
    assert!(state["verdict"] == "fail" && state["what"] == "failed (oom-kill)", "{state}");
    assert_eq!(check(&report, "units", "watchdog", unit)["verdict"], "info");
    assert!(!finished.text().contains("s3cr3t"), "{report}");
    for (script, why) in [("exec sleep 600", "no answer within"), ("echo no bus >&2; exit 1", "no bus")] {
        be_systemctl(folder.path(), script);
        let report = json(&container.run(&command).succeeded());
        let skipped = check(&report, "units", "systemd", None);
        assert!(skipped["verdict"] == "info" && skipped["what"].as_str().unwrap().contains(why), "{skipped}");
    }
}
