//! Suites that others wrote to test file systems: `fsx`, and `pjdfstest` but for what an object store cannot keep.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use forebay_e2e::{Bucket, Setup, finish, installed, is_long_run, is_root, skipped};

/// When a suite has hung: with nothing else to do they take a minute.
const LIMIT: Duration = Duration::from_secs(800);
/// Files that are written while the mount is replaced.
const FILES: usize = 8;
/// Each operation, and how often.
const OPERATIONS: &str = include_str!("../fsx.toml");

/// When what was written through a mapping is taken to the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mapped {
    /// By an msync(2) right after it.
    AtOnce,
    /// Whenever something else does: the kernel holds it until then.
    Later,
}

/// Random operations on one file of a mount. What is in it at the end must be at the origin.
fn exercise(operations: u32, seed: u32, mapped: Mapped, settings: &[&str], limit: Duration) {
    let Some(fsx) = installed("fsx") else { return };
    let bucket = Bucket::new();
    let mount = Setup::of(&bucket).options(settings).up(&bucket);
    operate(&fsx, &mount.path("fsx"), operations, seed, mapped, limit);
    assert!(bucket.object("fsx") == std::fs::read(mount.path("fsx")).unwrap());
}

/// Random operations on a file, by a process of its own.
fn operate(fsx: &Path, file: &Path, operations: u32, seed: u32, mapped: Mapped, limit: Duration) {
    let directory = tempfile::tempdir().unwrap();
    let configuration = directory.path().join("fsx.toml");
    std::fs::write(&configuration, format!("nomsyncafterwrite = {}\n{OPERATIONS}", mapped == Mapped::Later)).unwrap();
    let mut command = Command::new(fsx);
    command.args(["-q", "-N", &operations.to_string(), "-S", &seed.to_string(), "-f"]).arg(configuration);
    command.arg("-P").arg(directory.path()).arg(file);
    let finished = finish(&mut command, limit);
    assert_eq!(finished.code, Some(0), "seed {seed}: {}\n{}", finished.text(), finished.stderr);
    assert!(finished.text().contains("All operations completed A-OK!"), "{finished:?}");
    println!("{operations} operations in {:?}", finished.took);
}

#[test]
fn a_hundred_thousand_random_operations_on_a_file_read_back_as_they_should() {
    exercise(100_000, 5, Mapped::Later, &[], LIMIT);
}

#[test]
fn ten_thousand_random_operations_that_sync_what_they_write_through_mappings() {
    exercise(10_000, 6, Mapped::AtOnce, &[], LIMIT);
}

#[test]
fn ten_thousand_random_operations_where_the_kernel_reads_materialised_copies() {
    let eager = ["client.local.size=256MiB", "client.local.min_opens=1", "client.local.first_open_size=64MiB"];
    exercise(10_000, 7, Mapped::Later, &eager, LIMIT);
}

#[test]
fn ten_thousand_random_operations_over_the_device_and_over_io_uring() {
    for channel in channels() {
        exercise(10_000, 8, Mapped::Later, &[channel], LIMIT);
    }
}

/// Each file is written by a process of its own, and between two of them the next process of the mount takes over, which was asked to
/// while one wrote.
#[test]
fn random_operations_on_files_while_the_mount_is_replaced_again_and_again() {
    let Some(fsx) = installed("fsx") else { return };
    let bucket = Bucket::new();
    let worker = Setup::of(&bucket).worker(&bucket);
    let mut mount = Setup::of_user().mount([&worker]);
    let files: Vec<_> = (0..FILES).map(|number| mount.path(&format!("fsx{number}"))).collect();
    let mut replaced = 0;
    std::thread::scope(|scope| {
        let written = scope.spawn(|| {
            for (seed, file) in (20..).zip(&files) {
                operate(&fsx, file, 2_000, seed, Mapped::Later, LIMIT);
                // It is looked for open files again and again.
                std::thread::sleep(Duration::from_millis(300));
            }
        });
        while !written.is_finished() {
            let _ = mount.replace(&[]).succeeded();
            replaced += 1;
        }
        written.join().unwrap();
    });
    assert!(replaced >= FILES / 2, "{replaced}");
    for (number, file) in files.iter().enumerate() {
        assert!(bucket.object(&format!("fsx{number}")) == std::fs::read(file).unwrap(), "{number}");
    }
}

#[test]
fn random_operations_for_long() {
    if !is_long_run() {
        return;
    }
    for channel in channels() {
        for seed in 1..=4 {
            exercise(100_000, seed, Mapped::Later, &["write.staging_size=128MiB", channel], LIMIT);
            exercise(30_000, seed, Mapped::AtOnce, &[channel], LIMIT);
        }
    }
}

/// The settings that have the kernel's requests come in each of the ways that there are here.
fn channels() -> Vec<&'static str> {
    let offered = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    if offered.is_ok_and(|offered| offered.trim() == "Y") {
        return vec!["fuse.io=device", "fuse.io=uring"];
    }
    skipped("FUSE over io_uring is switched off: echo Y > /sys/module/fuse/parameters/enable_uring");
    vec!["fuse.io=device"]
}

/// These may pass or fail, for the time of a file at the origin, which is in whole seconds: it matters whether a second begins
/// meanwhile, and whether the origin has a file before its time is looked at.
const AS_TIME_PASSES: [&str; 7] = [
    "chmod::failed_chmod_unchanged_ctime::regular",
    "link::unchanged_ctime_fails::regular",
    "open::open_trunc",
    "rename::unchanged_ctime_failed::regular",
    "truncate::unchanged_ctime_failed",
    "truncate::update_ctime_success",
    "utimensat::utime_now",
];

#[test]
fn system_calls_do_what_posix_says_but_for_what_is_excluded_with_its_reason() {
    let Some(pjdfstest) = installed("pjdfstest") else { return };
    if !is_root() {
        return skipped("pjdfstest changes users, which takes root");
    }
    for channel in channels() {
        check_calls(&pjdfstest, channel);
    }
}

fn check_calls(pjdfstest: &Path, channel: &str) {
    let bucket = Bucket::new();
    let mount = Setup::of(&bucket).option(channel).up(&bucket);
    let configuration = Path::new(env!("CARGO_MANIFEST_DIR")).join("pjdfstest.toml");
    let mut command = Command::new(pjdfstest);
    command.arg("-c").arg(configuration).arg("-p").arg(mount.root()).env("NO_COLOR", "1");
    let finished = finish(&mut command, LIMIT);
    let text = finished.text();
    let wrong = |line: &&str| {
        let name = line.split_whitespace().next().unwrap_or_default();
        (line.ends_with("FAILED") || line.ends_with("PASSED UNEXPECTEDLY")) && !AS_TIME_PASSES.contains(&name)
    };
    let wrong: Vec<&str> = text.lines().filter(wrong).collect();
    let is_well = wrong.is_empty() && text.contains("Summary: ");
    assert!(is_well, "{channel}: {}\n{text}\n{}", wrong.join("\n"), finished.stderr);
    println!("{}", text.lines().last().unwrap_or_default());
}
