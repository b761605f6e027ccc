//! What packages run by themselves: scripts of dpkg and rpm, and of units of systemd.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn packaged(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/packages").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Systemd, where a mount is in the state `$MOUNT`. What it is asked to do goes to the standard error, with how long it is waited for.
const SYSTEMD: &str = r#"
systemctl() {
    case "$*" in
    list-units*activating*) echo 'forebay-mount@mnt-my\x2ddata.service loaded activating start a mount' ;;
    list-units*) ;;
    show*ActiveState*forebay-mount@*) echo "$MOUNT" ;;
    *is-active*) return 3 ;;
    *) echo "$*" >&2 ;;
    esac
}
invoke() { echo "$*" >&2; }
timeout() { printf 'within %s s: ' "$1" >&2; shift; "$@"; }
"#;

/// What a script asks systemd to do, in its order, where a mount is about to start.
fn asked_of_systemd(script: &str, arguments: &[&str]) -> Vec<String> {
    asked_of_systemd_while("activating", script, arguments)
}

/// The same, where it is in the state `mount`.
fn asked_of_systemd_while(mount: &str, script: &str, arguments: &[&str]) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let booted = directory.path().to_str().unwrap();
    // A function of the shell has no dash in its name.
    let script = packaged(script).replace("/run/systemd/system", booted).replace("deb-systemd-invoke", "invoke");
    let script = script.replace("systemd-sysusers", "true").replace("systemd-tmpfiles", "true");
    // A configuration that is there is left alone.
    let script = script.replace("/etc/forebay/forebay.toml", "/dev/null");
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{SYSTEMD}{script}"), "script"]).args(arguments).env("MOUNT", mount);
    let Output { status, stderr, .. } = command.output().unwrap();
    assert!(status.success(), "{status}");
    String::from_utf8(stderr).unwrap().lines().map(str::to_owned).collect()
}

/// What was written goes to the bucket through the worker.
#[test]
fn a_removal_ends_mounts_before_their_worker_also_those_that_wait_for_it() {
    let mount = r"stop forebay-mount@mnt-my\x2ddata.service";
    let worker = "stop forebay-worker.service forebay-coordinator.service";
    assert_eq!(asked_of_systemd("debian/prerm", &["remove"]), [mount, worker]);
    assert!(asked_of_systemd("debian/prerm", &["upgrade", "2.0"]).is_empty());
    let asked = asked_of_systemd("rpm/pre-uninstall.sh", &["0"]);
    let worker = "--quiet disable --now forebay-worker.service forebay-coordinator.service";
    assert_eq!(asked, ["stop forebay-mount@* forebay-up@*", worker]);
    assert!(asked_of_systemd("rpm/pre-uninstall.sh", &["1"]).is_empty());
}

/// Who waits for its etcd is not ready for as long as that is away, and holds up no installation of packages for longer than a minute.
#[test]
fn an_upgrade_restarts_also_what_waits_to_be_ready_and_does_not_wait_for_it_without_an_end() {
    let mount = r"forebay-mount@mnt-my\x2ddata.service";
    let cluster = "within 60 s: try-restart forebay-worker.service forebay-coordinator.service";
    for (state, action) in [
        ("active", Some("reload")),
        ("reloading", Some("reload")),
        ("activating", Some("within 60 s: try-restart")),
        ("failed", None),
    ] {
        for (script, arguments, first) in [
            ("debian/postinst", ["configure", "1.0"].as_slice(), "--system daemon-reload"),
            ("rpm/post-install.sh", ["2"].as_slice(), "daemon-reload"),
        ] {
            let of_mount = action.map(|action| format!("{action} {mount}"));
            let expected = [Some(first.to_owned()), of_mount, Some(cluster.to_owned())];
            let asked = asked_of_systemd_while(state, script, arguments);
            assert_eq!(asked, expected.into_iter().flatten().collect::<Vec<_>>(), "{script}: {state}");
        }
    }
    assert_eq!(asked_of_systemd("debian/postinst", &["configure"]), ["--system daemon-reload"], "an installation");
    assert_eq!(asked_of_systemd("rpm/post-install.sh", &["1"]), ["daemon-reload"], "an installation");
}

/// The command that makes the directory of a unit's mount, with `programs` before those of the system.
fn make_directory(unit: &str, mountpoint: &Path, programs: Option<&Path>) -> Output {
    let text = packaged(&format!("systemd/{unit}"));
    let line = text.lines().find_map(|line| line.strip_prefix("ExecStartPre=-/bin/sh -c '")).unwrap();
    let script = line.strip_suffix("' sh %f").unwrap().replace("$$", "$").replace("%%", "%");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = programs.map(PathBuf::from).into_iter().chain(std::env::split_paths(&path));
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &script, "sh"]).arg(mountpoint);
    command.env("PATH", std::env::join_paths(directories).unwrap()).output().unwrap()
}

/// A mount that systemd keeps has nobody who answers, and under a name with a link in it the kernel's table does not have it.
#[test]
fn the_directory_of_a_mount_is_made_and_not_waited_for_without_an_end() {
    let directory = tempfile::tempdir().unwrap();
    let [text, programs] = ["text", "programs"].map(|name| directory.path().join(name));
    fs::create_dir(&programs).unwrap();
    fs::write(&text, "#!/bin/sh\nexec sleep 60\n").unwrap();
    // By another process: what this one has open for writing, a child of another test has for a moment, too, and then it cannot be run.
    let installed = Command::new("install").args(["-m", "755"]).args([&text, &programs.join("mkdir")]).status();
    assert!(installed.unwrap().success());
    for unit in ["forebay-mount@.service", "forebay-up@.service"] {
        let mountpoint = directory.path().join(unit).join("my data");
        let made = make_directory(unit, &mountpoint, None);
        assert!(made.status.success() && mountpoint.is_dir(), "{made:?}");
        let hung = make_directory(unit, &mountpoint, Some(&programs));
        assert_eq!(hung.status.code(), Some(124), "as of timeout(1): {hung:?}");
    }
}
