//! Workers and mounts as processes of their own, over TCP.

mod support;

use std::path::Path;

use rustix::process::Signal;
use support::{BIG, Fixture, bytes, forebay, is_mounted, is_running, ran, run, signal, succeed};

#[test]
fn a_mount_reads_what_two_workers_serve() {
    let mut fixture = Fixture::new();
    let (_, first) = fixture.worker(&[]);
    let (_, second) = fixture.worker(&[]);
    let pid = fixture.must_mount(&format!("{first},{second}"));
    fixture.assert_mounted_files_are_right();
    let mountpoint = fixture.mountpoint();
    let rows =
        succeed(["fs".as_ref(), "location".as_ref(), "--json".as_ref(), mountpoint.join("dir/deep/big").as_os_str()]);
    let owners = rows.lines().filter(|line| line.contains("\"owner\":true")).count();
    assert_eq!(owners, 3, "{rows}");
    let stats = succeed(["stats".as_ref(), "--all".as_ref(), "--json".as_ref(), mountpoint.as_os_str()]);
    // One of each worker, and the mount's own.
    assert_eq!(stats.lines().count(), 3, "{stats}");
    let own: serde_json::Value = serde_json::from_str(stats.lines().last().unwrap()).unwrap();
    assert!(own["client"]["worker_memory"].as_u64().unwrap() + own["client"]["origin"].as_u64().unwrap() > 0, "{own}");
    succeed(["umount".as_ref(), mountpoint.as_os_str()]);
    assert!(!is_running(pid));
}

#[test]
fn a_worker_that_is_killed_costs_no_read() {
    let mut fixture = Fixture::new();
    let (killed, first) = fixture.worker(&[]);
    let (_, second) = fixture.worker(&[]);
    fixture.must_mount(&format!("{first},{second}"));
    assert_eq!(std::fs::read(fixture.mountpoint().join("small")).unwrap(), b"hello\n");
    signal(fixture.child_pid(killed), Signal::KILL);
    fixture.wait(killed);
    fixture.assert_mounted_files_are_right();
}

#[test]
fn a_worker_ends_cleanly_on_a_signal_and_keeps_its_disk() {
    let mut fixture = Fixture::new();
    let disk = format!("worker.disks={}:64MiB", fixture.path("cache").display());
    let (worker, address) = fixture.worker(&["-o", &disk]);
    let read = |address: &str| succeed(["fs", "cat", "--workers", address, "/small"]);
    assert_eq!(read(&address), "hello\n");
    signal(fixture.child_pid(worker), Signal::TERM);
    assert!(fixture.wait(worker).success());
    // The directory is free for the next one.
    let (_, address) = fixture.worker(&["-o", &disk]);
    assert_eq!(read(&address), "hello\n");
}

#[test]
fn two_workers_on_one_port_or_one_directory_are_refused_by_name() {
    let mut fixture = Fixture::new();
    let disk = format!("worker.disks={}:64MiB", fixture.path("cache").display());
    let (_, address) = fixture.worker(&["-o", &disk]);
    let (_, port) = address.rsplit_once(':').unwrap();
    let second = |more: &str| {
        let mounts = format!("mounts=/=file://{}", fixture.source().display());
        run([
            "worker",
            "-o",
            &mounts,
            "-o",
            "worker.rpc.bind.host=127.0.0.1",
            "-o",
            "worker.memory.size=64MiB",
            "-o",
            more,
        ])
    };
    let on_port = second(&format!("worker.rpc.port={port}"));
    assert_eq!(on_port.code, 6, "{on_port:?}");
    assert!(on_port.err.contains("the port is in use"), "{on_port:?}");
    let on_directory = second(&disk);
    assert_eq!(on_directory.code, 6, "{on_directory:?}");
    assert!(on_directory.err.contains("is in use by"), "{on_directory:?}");
}

#[test]
fn a_worker_listens_on_an_interfaces_address() {
    let mut fixture = Fixture::new();
    let (_, address) = fixture.worker(&["-o", "worker.rpc.bind.device=lo"]);
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    let mounts = format!("mounts=/=file://{}", fixture.source().display());
    let ran = run(["worker", "-o", &mounts, "-o", "worker.rpc.bind.device=nosuch0"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.err.contains("nosuch0") && ran.err.contains("lo"), "{ran:?}");
}

#[test]
fn a_mount_without_any_worker_is_refused() {
    let fixture = Fixture::new();
    let output = forebay()
        .arg("mount")
        .arg(fixture.mountpoint())
        .args(["--workers", "127.0.0.1:1", "-o", &fixture.log_setting()])
        .output()
        .unwrap();
    let ran = ran(output);
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(ran.err.contains("127.0.0.1:1"), "{ran:?}");
    assert!(!is_mounted(&fixture.mountpoint()));
}

#[test]
fn a_worker_with_another_block_size_is_refused_by_name() {
    let mut fixture = Fixture::new();
    let smaller = ["-o", "block.size=1MiB"];
    let (_, address) = fixture.worker(&smaller);
    // The commands and a mount would ask for blocks by number, which stand for other places of the file there.
    let read = run(["fs", "cat", "--workers", &address, "/dir/deep/big"]);
    assert!(read.code != 0 && read.out.is_empty(), "{}", read.err);
    let mount = |more: &[&str]| {
        let mut command = forebay();
        command.arg("mount").arg(fixture.mountpoint()).args(["--workers", &address, "--json"]);
        ran(command.args(["-o", &fixture.log_setting()]).args(more).output().unwrap())
    };
    let refused = mount(&[]);
    assert_eq!(refused.code, 4, "{refused:?}");
    for err in [&read.err, &refused.err] {
        assert!(err.contains("`block.size` is 1MiB, ours is 4MiB") && err.contains("one value"), "{err}");
    }
    assert!(!is_mounted(&fixture.mountpoint()));
    let mounted = mount(&smaller);
    assert_eq!(mounted.code, 0, "{mounted:?}");
    fixture.remember(mounted);
    fixture.assert_mounted_files_are_right();
}

#[test]
fn a_worker_that_is_started_with_another_block_size_serves_nothing_of_its_disk() {
    let mut fixture = Fixture::new();
    let disk = format!("worker.disks={}:64MiB", fixture.path("cache").display());
    for size in ["block.size=1MiB", "block.size=4MiB"] {
        let (worker, address) = fixture.worker(&["-o", &disk, "-o", size]);
        let mut command = forebay();
        command.args(["fs", "cat", "--workers", &address, "-o", size, "/dir/deep/big"]);
        let output = command.output().unwrap();
        assert!(output.status.success() && output.stdout == bytes(BIG), "{size}");
        signal(fixture.child_pid(worker), Signal::TERM);
        assert!(fixture.wait(worker).success());
    }
}

#[test]
fn a_mount_left_dead_by_a_kill_is_repaired() {
    let mut fixture = Fixture::new();
    let (_, address) = fixture.worker(&[]);
    let killed = fixture.must_mount(&address);
    // Its threads may still be about to end, with its lock in their hands.
    signal(killed, Signal::KILL);
    fixture.must_mount(&address);
    fixture.assert_mounted_files_are_right();
    assert!(Path::new(&fixture.mountpoint()).is_dir());
}
