//! The harness works: a quick run on little data measures every section and leaves nothing behind.

use std::path::Path;
use std::process::{Command, Stdio};

/// Why the run cannot be tried here.
fn missing() -> Option<&'static str> {
    let runs = |program: &str| {
        let status = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    if !runs("fio") || !runs("iperf3") {
        return Some("fio or iperf3 is not installed; `make setup` does it");
    }
    if !Path::new("/dev/fuse").exists() {
        return Some("there is no /dev/fuse");
    }
    let built = Path::new(env!("CARGO_BIN_EXE_forebay-bench")).with_file_name("forebay").exists();
    if !built { Some("forebay is not built; `make test` does it") } else { None }
}

/// What needs nothing that another machine may lack.
const SECTIONS: [&str; 13] = [
    "mount",
    "worker",
    "depth",
    "local",
    "remote",
    "shared",
    "small",
    "client",
    "transport",
    "security",
    "cold",
    "amplification",
    "write",
];
/// What needs UCX, whose round trips take seconds on a machine that is busy, or programs of others.
const OTHERS: [&str; 4] = ["mount-rdma", "rdma", "peers", "model"];

#[test]
fn a_quick_run_measures_every_section_and_leaves_nothing_behind() {
    let mut sections = SECTIONS.to_vec();
    if forebay_testkit::is_long_run() {
        sections.extend(OTHERS);
    } else {
        forebay_testkit::skipped(&format!("benchmarks: {}: needs FOREBAY_TEST_LONG=1", OTHERS.join(", ")));
    }
    if let Some(reason) = missing() {
        forebay_testkit::skipped(&format!("benchmarks: {reason}"));
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("report.json");
    let output = Command::new(env!("CARGO_BIN_EXE_forebay-bench"))
        .args(["--quick", "--size", "16MiB", "--time", "50ms", "--dir"])
        .arg(directory.path())
        .arg("--json")
        .arg(&json)
        .args(sections.iter().flat_map(|section| ["--only", section]))
        // File systems of others are measured where they are installed, not tried here: they would take minutes.
        .env_remove("FOREBAY_CACHE")
        .env_remove("FOREBAY_TEST_LONG")
        .env("XDG_CACHE_HOME", directory.path().join("cache"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");

    let tables = String::from_utf8(output.stdout).unwrap();
    for title in [
        "Targets",
        "Mount, `forebay up`, warm",
        "Processor time, `forebay up`, warm",
        "Mount, separate worker over TCP, warm",
        "Depth",
        "Remote",
        "Shared files",
        "Small files",
        "Client library, warm",
        "Integrity of reads from memory",
        "TCP transport",
        "Security of TCP",
        "Admissions",
        "Cold",
        "Read amplification, cold",
        "Read amplification, warm, over TCP",
        "Writing",
        "Memory",
    ] {
        assert!(tables.contains(&format!("### {title}\n")), "{title} is missing in\n{tables}");
    }
    assert!(!tables.contains("NaN"), "{tables}");

    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    // A section that was skipped said so, and has no table and no samples.
    let optional: [(&str, &str, &[&str], usize); 5] = [
        ("local", "materialised files", &["Materialised files"], 1),
        (
            "rdma",
            "the RDMA transport",
            &["UCX transport against ucx_perftest", "UCX transport against TCP", "Connections"],
            2,
        ),
        ("mount-rdma", "a mount over UCX", &["Mount, separate worker, shared memory, warm"], 1),
        ("peers", "no other file system", &["Against other file systems, warm"], 1),
        ("model", "loading a model: no Python", &["Loading a model"], 1),
    ];
    // `amplification` counts bytes, and `local` may be skipped.
    let mut measured = SECTIONS.len() - 2;
    for (section, name, titles, samples) in optional {
        if !sections.contains(&section) {
            continue;
        }
        if let Some(line) = said.lines().find(|line| line.contains(&format!("skipped: {name}"))) {
            forebay_testkit::skipped(&format!(
                "benchmarks: {}",
                line.trim_start_matches("==> ").trim_start_matches("skipped: ")
            ));
            continue;
        }
        measured += samples;
        for title in titles {
            assert!(tables.contains(&format!("### {title}\n")), "{title} is missing in\n{tables}");
        }
    }
    assert_eq!(report["samples"].as_array().unwrap().len(), measured, "{said}");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let at = directory.path().to_str().unwrap();
    assert!(!mounts.contains(at), "a mount was left behind: {mounts}");
    let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["report.json"]);
}
