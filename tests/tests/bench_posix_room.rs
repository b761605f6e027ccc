//! `forebay bench posix` where there is not enough room in the cache, and what is freed of files that are gone.

use std::time::Duration;

use forebay_e2e::{Bucket, Fio, Mount, Setup, finish, forebay, run_bench as run};
use forebay_testkit::DataSet;
use serde_json::Value;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(150);
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
    // Nobody asked for these sizes.
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
    // A path of the namespace is found as `forebay job` finds it.
    let (host, port) = coordinator.rsplit_once(':').unwrap();
    let named = [format!("coordinator.hostname={host}"), format!("coordinator.port={port}")];
    let mut stat = forebay(&[]);
    stat.args(["fs", "stat", "/testdata/a", "-o", &named[0], "-o", &named[1]]);
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
