//! What `make demo` runs, on a small bucket.

use std::process::Command;
use std::time::Duration;

use forebay_e2e::{beside_tests, finish};

#[test]
fn the_demonstration_reads_back_every_byte_and_leaves_nothing_behind() {
    let work = tempfile::tempdir().unwrap();
    let mut demo = Command::new(beside_tests("forebay-demo"));
    demo.args(["--large", "48MiB", "--small", "100", "--memory", "256MiB"]).arg("--dir").arg(work.path());
    // The program refuses variables that it does not know.
    demo.env_remove("FOREBAY_TEST_LONG").env_remove("FOREBAY_TEST_SECURITY");
    let finished = finish(&mut demo, Duration::from_secs(120)).succeeded();
    let text = finished.text();
    assert!(text.contains("Every checksum is that of the source."), "{text}");
    let row = |pass: &str| text.lines().find(|line| line.starts_with(pass)).map(str::to_owned).expect(pass);
    assert!(row("cold").contains(" 0.0%") && row("warm").contains(" 100.0%"), "{text}");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(work.path().to_str().unwrap()), "nothing stays mounted");
    assert_eq!(std::fs::read_dir(work.path()).unwrap().count(), 0, "nothing is left in the directory");
}
