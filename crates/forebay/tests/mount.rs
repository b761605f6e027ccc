//! `up` and `umount` with a real mount of a `file://` origin: background, signals, kills and repairs.

mod support;

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use support::{Fixture, eventually, forebay, is_mounted, is_running, ran, run, signal, succeed};

#[test]
fn a_directory_is_mounted_in_the_background_read_written_and_unmounted() {
    let mut fixture = Fixture::new();
    let ran = fixture.up(&[]);
    assert_eq!(ran.code, 0, "{ran:?}\n{}", fixture.log());
    let summary: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let pid = u32::try_from(summary["pid"].as_u64().unwrap()).unwrap();
    let pid_file = summary["pid_file"].as_str().unwrap();
    assert_eq!(std::fs::read_to_string(pid_file).unwrap().trim(), pid.to_string());
    assert_eq!(summary["mountpoint"].as_str(), fixture.mountpoint().to_str());
    assert_eq!(summary["notes"].as_array().unwrap().len(), 0);
    assert!(is_running(pid));
    fixture.assert_mounted_files_are_right();
    std::fs::write(fixture.mountpoint().join("new"), b"x").unwrap();
    assert_eq!(std::fs::read(fixture.source().join("new")).unwrap(), b"x");

    succeed(["umount".as_ref(), fixture.mountpoint().as_os_str()]);
    assert!(!is_mounted(&fixture.mountpoint()));
    assert!(!is_running(pid), "umount waits for the end of the process");
    assert!(!Path::new(pid_file).exists());
    let log = fixture.log();
    assert!(log.contains("ready") && !log.contains("ERROR"), "{log}");
    let mode = std::fs::metadata(fixture.path("log")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // As if nothing had been there.
    fixture.must_up(&["--read-only"]);
    let refused = std::fs::write(fixture.mountpoint().join("newer"), b"x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
}

#[test]
fn what_is_said_without_json_names_process_log_and_how_to_unmount() {
    let fixture = Fixture::new();
    let output = forebay()
        .arg("up")
        .arg(format!("file://{}", fixture.source().display()))
        .arg(fixture.mountpoint())
        .args(["-o", "worker.memory.size=64MiB", "-o", &fixture.log_setting(), "-o", &fixture.staging_setting()])
        .output()
        .unwrap();
    let ran = ran(output);
    assert_eq!(ran.code, 0, "{ran:?}");
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(
        lines[0],
        format!("file://{} is mounted at {}", fixture.source().display(), fixture.mountpoint().display())
    );
    assert!(lines[1].contains("process") && lines[2].contains("served   over "), "{lines:?}");
    let again = lines[3].trim();
    let is_told =
        again.contains("files that are read twice are served by the kernel itself") || again.contains("off: ");
    assert!(again.starts_with("again ") && is_told, "{lines:?}");
    assert!(lines[4].ends_with(fixture.path("log").to_str().unwrap()), "{lines:?}");
    assert!(lines[5].ends_with(&format!("forebay umount {}", fixture.mountpoint().display())), "{lines:?}");
    succeed(["umount".as_ref(), fixture.mountpoint().as_os_str()]);
}

#[test]
fn without_a_setting_the_log_has_a_place_of_its_own() {
    let fixture = Fixture::new();
    let output = forebay()
        .args(["up", "--json", "--memory", "64MiB"])
        .args([fixture.source(), fixture.mountpoint()])
        .env("XDG_STATE_HOME", fixture.path("state"))
        .output()
        .unwrap();
    let ran = ran(output);
    assert_eq!(ran.code, 0, "{ran:?}");
    let summary: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let log = summary["log"].as_str().unwrap();
    assert!(log.contains("/mnt-") && log.ends_with(".log"), "{log}");
    succeed(["umount".as_ref(), fixture.mountpoint().as_os_str()]);
    assert!(std::fs::read_to_string(log).unwrap().contains("ready"));
    std::fs::remove_file(log).unwrap();
}

#[test]
fn a_mount_left_dead_by_a_kill_is_repaired_by_the_next_one() {
    let mut fixture = Fixture::new();
    let killed = fixture.must_up(&[]);
    signal(killed, Signal::KILL);
    eventually("the kill", || !is_running(killed));
    // A request that is under way while the process dies is aborted; those after it find no server.
    eventually("the mount's death", || {
        let error = std::fs::metadata(fixture.mountpoint()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::NotConnected | ErrorKind::ConnectionAborted), "{error}");
        error.kind() == ErrorKind::NotConnected
    });
    let ls = run(["fs".as_ref(), "ls".as_ref(), fixture.mountpoint().as_os_str()]);
    assert_eq!(ls.code, 4, "{ls:?}");
    assert!(ls.err.contains("is dead"), "{ls:?}");

    let ran = fixture.up(&[]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let said = format!("repaired {}: took away the dead mount of process {killed}", fixture.mountpoint().display());
    assert!(ran.err.contains(&said), "{ran:?}");
    fixture.assert_mounted_files_are_right();
    succeed(["umount".as_ref(), fixture.mountpoint().as_os_str()]);
    assert!(!is_mounted(&fixture.mountpoint()));
}

#[test]
fn a_dead_mount_can_also_just_be_unmounted() {
    let mut fixture = Fixture::new();
    let killed = fixture.must_up(&[]);
    signal(killed, Signal::KILL);
    eventually("the kill", || !is_running(killed));
    let ran = run(["umount".as_ref(), fixture.mountpoint().as_os_str()]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.err.contains("dead mount"), "{ran:?}");
    assert!(!is_mounted(&fixture.mountpoint()));
    let again = run(["umount".as_ref(), fixture.mountpoint().as_os_str()]);
    assert_eq!(again.code, 3, "{again:?}");
    assert!(again.err.contains("nothing is mounted"), "{again:?}");
}

/// It is in another pod, whose run directory this one has, too: its number is nobody's here, and its claim is locked.
#[test]
fn the_end_of_a_process_that_is_not_seen_is_waited_for() {
    let mut fixture = Fixture::new();
    let ran = fixture.up(&[]);
    assert_eq!(ran.code, 0, "{ran:?}\n{}", fixture.log());
    let summary: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let pid_file = Path::new(summary["pid_file"].as_str().unwrap());
    let state_file = pid_file.with_extension("json");
    let mut state: serde_json::Value = serde_json::from_slice(&std::fs::read(&state_file).unwrap()).unwrap();
    state["process_started"] = 1.into();
    let run_directory = tempfile::tempdir().unwrap();
    let there = |path: &Path| run_directory.path().join(path.file_name().unwrap());
    std::fs::write(there(&state_file), state.to_string()).unwrap();
    let claim = File::create(there(pid_file)).unwrap();
    claim.lock().unwrap();
    let mut umount = forebay();
    umount.arg("umount").arg(fixture.mountpoint()).env("FOREBAY_RUN_DIR", run_directory.path());
    let mut umount = umount.spawn().unwrap();
    eventually("the mount is gone", || !is_mounted(&fixture.mountpoint()));
    // However long: it ends within some milliseconds if it does not wait.
    std::thread::sleep(Duration::from_millis(500));
    assert!(umount.try_wait().unwrap().is_none(), "it waits for the claim");
    drop(claim);
    assert!(umount.wait().unwrap().success());
}

#[test]
fn a_live_mount_is_refused_with_the_command_that_unmounts_it() {
    let mut fixture = Fixture::new();
    let first = fixture.must_up(&[]);
    let second = fixture.up(&[]);
    assert_eq!(second.code, 6, "{second:?}");
    assert!(second.err.contains(&format!("already served by process {first}")), "{second:?}");
    assert!(second.err.contains(&format!("forebay umount {}", fixture.mountpoint().display())), "{second:?}");
    fixture.assert_mounted_files_are_right();
}

#[test]
fn of_two_that_mount_at_once_one_succeeds() {
    let mut fixture = Fixture::new();
    let start = || {
        let mut command = forebay();
        command.arg("up").args([fixture.source(), fixture.mountpoint()]).args(["--memory", "64MiB", "--json"]);
        command.args(["-o", &fixture.log_setting()]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let both = [start(), start()].map(|child| ran(child.wait_with_output().unwrap()));
    let mut codes = both.iter().map(|ran| ran.code).collect::<Vec<_>>();
    codes.sort_unstable();
    assert_eq!(codes, [0, 6], "{both:?}");
    both.into_iter().for_each(|ran| drop(fixture.remember(ran)));
    fixture.assert_mounted_files_are_right();
    succeed(["umount".as_ref(), fixture.mountpoint().as_os_str()]);
    assert!(!is_mounted(&fixture.mountpoint()), "nothing was mounted below the mount");
}

#[test]
fn signals_unmount_and_end_the_process() {
    for ending in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut fixture = Fixture::new();
        let pid = fixture.must_up(&[]);
        signal(pid, ending);
        eventually("the end of the process", || !is_running(pid));
        assert!(!is_mounted(&fixture.mountpoint()));
        assert!(fixture.log().contains("unmounting"), "{}", fixture.log());
    }
}

#[test]
fn a_mount_in_use_stays_and_its_user_is_named() {
    let mut fixture = Fixture::new();
    let pid = fixture.must_up(&[]);
    let mut open = File::open(fixture.mountpoint().join("dir/deep/big")).unwrap();
    let busy = run(["umount".as_ref(), fixture.mountpoint().as_os_str()]);
    assert_eq!(busy.code, 6, "{busy:?}");
    assert!(busy.err.contains(&format!("process {}", std::process::id())), "{busy:?}");
    assert!(busy.err.contains("umount --lazy"), "{busy:?}");
    assert!(is_mounted(&fixture.mountpoint()));

    // A reader may finish after a signal.
    signal(pid, Signal::TERM);
    eventually("the mount to be gone", || !is_mounted(&fixture.mountpoint()));
    let mut content = Vec::new();
    open.read_to_end(&mut content).unwrap();
    assert!(content == support::bytes(support::BIG));
    drop(open);
    eventually("the end of the process", || !is_running(pid));
}

#[test]
fn a_second_signal_does_not_wait_for_readers() {
    let mut fixture = Fixture::new();
    let pid = fixture.must_up(&[]);
    let open = File::open(fixture.mountpoint().join("small")).unwrap();
    signal(pid, Signal::INT);
    eventually("the mount to be gone", || !is_mounted(&fixture.mountpoint()));
    assert!(is_running(pid));
    signal(pid, Signal::INT);
    eventually("the end of the process", || !is_running(pid));
    assert!(fixture.log().contains("ending at once"), "{}", fixture.log());
    drop(open);
}

#[test]
fn a_mount_that_is_in_use_for_a_moment_is_unmounted() {
    let mut fixture = Fixture::new();
    fixture.must_up(&[]);
    let file = File::open(fixture.mountpoint().join("small")).unwrap();
    let mountpoint = fixture.mountpoint();
    let began = Instant::now();
    let umount = forebay().arg("umount").arg(&mountpoint).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    drop(file);
    let held = began.elapsed();
    let umount = ran(umount.wait_with_output().unwrap());
    // It tries for two seconds. On a busy machine the moment may last longer, and then it may give up by right.
    if umount.code == 0 || held < Duration::from_secs(2) {
        assert_eq!(umount.code, 0, "after {held:?}: {umount:?}");
        assert!(!is_mounted(&mountpoint));
    } else {
        assert_eq!(umount.code, 6, "after {held:?}: {umount:?}");
    }
}

#[test]
fn a_lazy_unmount_works_while_a_file_is_open() {
    let mut fixture = Fixture::new();
    let pid = fixture.must_up(&[]);
    let open = File::open(fixture.mountpoint().join("small")).unwrap();
    let mut umount = forebay().args(["umount", "--lazy"]).arg(fixture.mountpoint()).spawn().unwrap();
    eventually("the mount to be gone", || !is_mounted(&fixture.mountpoint()));
    drop(open);
    assert!(umount.wait().unwrap().success());
    assert!(!is_running(pid));
}

/// Whether the process `waiter` sleeps, and holds the process `other`.
fn waits_for(waiter: u32, other: u32) -> bool {
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let process = Path::new("/proc").join(waiter.to_string());
    let held = format!("Pid:\t{other}");
    let mut descriptors = std::fs::read_dir(process.join("fdinfo")).into_iter().flatten().flatten();
    let holds = descriptors.any(|entry| read(entry.path()).lines().any(|line| line == held));
    holds && read(process.join("stat")).contains(") S ")
}

/// It may upload what was written.
#[test]
fn a_process_whose_mount_is_gone_is_waited_for_and_told_to_end_only_with_lazy() {
    for lazy in [false, true] {
        let mut fixture = Fixture::new();
        let pid = fixture.must_up(&[]);
        let open = File::open(fixture.mountpoint().join("small")).unwrap();
        detach(&fixture, &["-l"], &["-u", "-z"]);
        assert!(!is_mounted(&fixture.mountpoint()));
        let mut umount = forebay();
        umount.arg("umount").args(lazy.then_some("--lazy")).arg(fixture.mountpoint());
        let mut umount = umount.spawn().unwrap();
        eventually("it is waited for", || waits_for(umount.id(), pid));
        if lazy {
            eventually("it is told", || fixture.log().contains("unmounting"));
        }
        drop(open);
        assert!(umount.wait().unwrap().success());
        assert!(!is_running(pid));
        assert_eq!(fixture.log().contains("unmounted from outside"), !lazy, "{}", fixture.log());
    }
}

/// Has the system take away what is mounted.
fn detach(fixture: &Fixture, by_root: &[&str], by_user: &[&str]) {
    let is_root = rustix::process::geteuid().is_root();
    let (program, arguments) = if is_root { ("umount", by_root) } else { ("fusermount3", by_user) };
    assert!(Command::new(program).args(arguments).arg(fixture.mountpoint()).status().unwrap().success());
}

#[test]
fn an_unmount_from_outside_ends_the_process() {
    let mut fixture = Fixture::new();
    let pid = fixture.must_up(&[]);
    detach(&fixture, &[], &["-u"]);
    eventually("the end of the process", || !is_running(pid));
    assert!(fixture.log().contains("unmounted from outside"), "{}", fixture.log());
}

#[test]
fn in_the_foreground_it_logs_to_standard_error_and_ends_with_code_0() {
    let mut fixture = Fixture::new();
    let mut command = forebay();
    command.arg("up").args([fixture.source(), fixture.mountpoint()]).args(["--foreground", "--memory", "64MiB"]);
    command.stderr(File::create(fixture.path("stderr")).unwrap());
    let child = fixture.spawn(command);
    let stderr = || std::fs::read_to_string(fixture.path("stderr")).unwrap();
    eventually("the mount", || stderr().contains("ready"));
    fixture.assert_mounted_files_are_right();
    signal(fixture.child_pid(child), Signal::INT);
    assert!(fixture.wait(child).success());
    assert!(!is_mounted(&fixture.mountpoint()));
}

#[test]
fn the_error_of_the_process_in_the_background_is_the_commands_own() {
    let mut fixture = Fixture::new();
    let file = fixture.path("file");
    std::fs::write(&file, b"").unwrap();
    let disk = format!("{}:64MiB", file.display());
    let ran = fixture.up(&["--disk", &disk]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.err.contains("is not a directory"), "{ran:?}");
    assert!(!is_mounted(&fixture.mountpoint()));
    assert!(fixture.log().contains("is not a directory"), "{}", fixture.log());
    // Nothing stays claimed.
    fixture.must_up(&[]);
}

#[test]
fn blocks_on_disk_are_found_again_by_the_next_process() {
    let mut fixture = Fixture::new();
    let disk = format!("{}:64MiB", fixture.path("cache").display());
    fixture.must_up(&["--disk", &disk]);
    fixture.assert_mounted_files_are_right();
    let flushed = || stats(&fixture)["store"]["disk_queue_bytes"] == 0;
    eventually("blocks on disk", flushed);
    succeed(["umount".as_ref(), fixture.mountpoint().as_os_str()]);
    fixture.must_up(&["--disk", &disk]);
    fixture.assert_mounted_files_are_right();
    let stats = stats(&fixture);
    assert!(stats["worker"]["bytes_disk"].as_u64().unwrap() > 0, "{stats}");
}

fn stats(fixture: &Fixture) -> serde_json::Value {
    let line = succeed(["stats".as_ref(), "--all".as_ref(), "--json".as_ref(), fixture.mountpoint().as_os_str()]);
    serde_json::from_str(line.lines().next().unwrap()).unwrap()
}
