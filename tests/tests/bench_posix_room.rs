//! `forebay bench posix` where there is not enough room in the cache, and what is freed of files that are gone.

use std::path::Path;
use std::time::Duration;

use forebay_e2e::{Bucket, Fio, Mount, Setup, Tmpfs, bench, finish, forebay, is_root, run_bench as run, skipped};
use forebay_testkit::DataSet;
use serde_json::Value;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(600);
const SOON: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// A bucket, mounted by `forebay up`.
fn mounted() -> Option<(Bucket, Mount)> {
    Fio::find()?;
    let bucket = Bucket::new();
    let mount = Setup::of(&bucket).memory("64MiB").up(&bucket);
    Some((bucket, mount))
}

#[test]
fn what_the_cache_does_not_hold_is_refused_or_made_smaller_before_it_is_written() {
    let Some((_bucket, mount)) = mounted() else { return };
    let results = TempDir::new().unwrap();
    let output = results.path().join("results");
    let large = ["--layouts", "single", "--states", "warm", "--size", "60MiB"];
    run(&mount.root(), &output, &large)
        .failed(2, &["the cache of forebay keeps 51 MiB of files", "--size make 60 MiB", "worker.memory.size"]);
    assert!(!mount.path("forebay-bench").exists() && !output.exists());
    run(&mount.root(), &output, &["--budget", "5MiB"])
        .failed(2, &["14 MiB are to be written, and --budget allows 5.0 MiB"]);
    // These sizes are not asked for.
    let mut command = forebay(&[]);
    command.args(["bench", "posix"]).arg(mount.root()).arg("--output").arg(&output);
    command.args(["--dry-run", "--states", "warm", "--layouts", "single,multiple", "--numjobs", "1,2"]);
    let shown = finish(&mut command, LIMIT).succeeded();
    assert!(shown.stderr.contains("so that less is read: single 32.00 MiB rather than 1.00 GiB"), "{}", shown.stderr);
    let lines = shown.text();
    assert!(lines.contains("--size=33554432") && !lines.contains("--size=1073741824"), "{lines}");
    assert!(
        lines.contains("[section-1]") && lines.contains("cat > "),
        "job files are shown with what is in them: {lines}"
    );
}

#[test]
fn what_is_removed_through_the_mount_can_still_be_freed_by_its_path() {
    let Some((bucket, mount)) = mounted() else { return };
    bucket.put("testdata/a", DataSet::new(1), 4 * MIB);
    assert_eq!(std::fs::read(mount.path("testdata/a")).unwrap().len() as u64, 4 * MIB);
    let coordinator = mount.summary()["coordinator"].as_str().expect("it has one").to_owned();
    // A path of the namespace is found as `forebay job` finds it: as if no other test had a mount on this machine.
    let alone = TempDir::new().unwrap();
    let run_state = Path::new(mount.summary()["pid_file"].as_str().unwrap()).with_extension("json");
    std::fs::copy(&run_state, alone.path().join("mount.json")).unwrap();
    let mut stat = forebay(&[("FOREBAY_RUN_DIR", alone.path().display().to_string())]);
    stat.args(["fs", "stat", "/testdata/a"]);
    assert!(finish(&mut stat, SOON).succeeded().text().contains("4194304"));
    std::fs::remove_file(mount.path("testdata/a")).unwrap();
    let free = |path: &str| {
        let mut command = forebay(&[]);
        command.args(["job", "free", "--path", path, "--submit", "--watch", "--format", "json"]);
        finish(command.args(["--coordinator", &coordinator]), SOON)
    };
    let freed = free("/testdata").succeeded().text();
    let job: Value = serde_json::from_str(freed.lines().last().unwrap()).unwrap();
    assert_eq!(job["progress"]["freed_bytes"], 4 * MIB, "{job:#}");
    let mut nothing = forebay(&[]);
    nothing.args(["job", "free", "--path", "/testdata", "--submit", "--watch", "--coordinator", &coordinator]);
    let nothing = finish(&mut nothing, SOON);
    assert!(nothing.text().contains("NOT_FOUND: ") && !nothing.text().contains('…'), "{}", nothing.text());
}

/// A fio that fills a disk up to some MiB right before it writes, as other programs do that write meanwhile.
fn crowded(place: &TempDir, disk: &std::path::Path, free: u64) -> String {
    let (program, path) = (place.path().join("fio"), std::env::var("PATH").unwrap());
    let real = std::env::split_paths(&path).map(|below| below.join("fio")).find(|fio| fio.is_file()).unwrap();
    let (filler, real) = (disk.join("filler").display().to_string(), real.display().to_string());
    let fill = format!("cat /dev/zero >'{filler}' 2>/dev/null; truncate -s -{}  '{filler}'", free * MIB);
    std::fs::write(&program, format!("#!/bin/sh\ncase \"$*\" in *--rw=write*) {fill};; esac\nexec '{real}' \"$@\"\n"))
        .unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    format!("{}:{path}", place.path().display())
}

#[test]
fn a_disk_that_becomes_full_while_the_data_is_written_is_the_cause_that_is_named() {
    let Some(_) = Fio::find() else { return };
    if !is_root() {
        return skipped("mounting a tmpfs needs root");
    }
    let fails = |mount: &Mount, disk: &Tmpfs, told: &[&str]| {
        let results = TempDir::new().unwrap();
        let output = results.path().join("results");
        let one =
            ["--layouts", "single", "--states", "warm", "--accesses", "sequential", "--numjobs", "1", "--size", "8MiB"];
        let path = crowded(&results, &disk.path(), 3);
        let failed = finish(bench(&mount.root(), &output, &one).env("PATH", path), LIMIT);
        let file = mount.path("forebay-bench/single/single").display().to_string();
        failed.failed(1, &[&[&*file, "no space left on device", "make room"], told].concat());
        assert!(
            failed.stderr.contains("all of it is removed") && !failed.stderr.contains("left: "),
            "{}",
            failed.stderr
        );
        assert!(!failed.stderr.contains("has no files in it"), "{}", failed.stderr);
        assert!(!mount.path("forebay-bench").exists());
    };

    // Of the origin, where nothing notices before the file is synced: the mount knows where that is.
    let origin = Tmpfs::new("40m").unwrap();
    let below = origin.path().join("bucket");
    std::fs::create_dir(&below).unwrap();
    let url = format!("file://{}", below.display());
    let mount = Setup::without_origin().memory("64MiB").up_url(&url);
    fails(&mount, &origin, &["cannot upload /forebay-bench/single/single", &url, "No space left on device"]);
    assert_eq!(std::fs::read_dir(&below).unwrap().count(), 0, "nothing is left at the origin");
    assert_eq!(mount.staged(), Vec::<Value>::new());

    // Where it is staged.
    let staging = Tmpfs::new("40m").unwrap();
    let bucket = Bucket::new();
    let directory = format!("write.staging_dir={}", staging.path().join("staged").display());
    let mount = Setup::of(&bucket).memory("64MiB").option(&directory).up(&bucket);
    fails(&mount, &staging, &[]);
    assert_eq!(std::fs::read_dir(staging.path().join("staged")).unwrap().count(), 0);
}

#[test]
fn directories_that_share_a_disk_share_its_room() {
    let Some(_) = Fio::find() else { return };
    if !is_root() {
        return skipped("mounting a tmpfs needs root");
    }
    let (disk, results) = (Tmpfs::new("40m").unwrap(), TempDir::new().unwrap());
    let [one, other] = ["one", "other"].map(|name| disk.path().join(name));
    [&one, &other].into_iter().for_each(|directory| std::fs::create_dir(directory).unwrap());
    let against = other.display().to_string();
    let sizes = ["--against", &against, "--layouts", "single", "--states", "warm", "--buffered", "--size"];
    let output = results.path().join("results");
    run(&one, &output, &[&sizes[..], &["24MiB"]].concat()).failed(
        2,
        &["is one file system for several directories: it has room for 40 MiB, and the data takes 48 MiB there"],
    );
    assert!(!one.join("forebay-bench").exists() && !other.join("forebay-bench").exists());
}
