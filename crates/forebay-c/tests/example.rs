//! The example in C is compiled with the header, linked with the library, and run.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use forebay_testkit::skipped;

/// Where cargo puts the library that this program is tested with: beside the program.
fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// The example, compiled; none where there is no compiler.
fn compiled(directory: &Path) -> Option<PathBuf> {
    let (root, program) = (Path::new(env!("CARGO_MANIFEST_DIR")), directory.join("read"));
    let output = Command::new("cc")
        .args(["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"])
        .arg(root.join("include"))
        .arg(root.join("examples/read.c"))
        .arg("-L")
        .arg(libraries())
        .args(["-lforebay_c", "-o"])
        .arg(&program)
        .output()
        .ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

fn run(program: &Path, origin: &Path, path: &str) -> Output {
    let configuration = origin.join("none.toml");
    std::fs::write(&configuration, "").unwrap();
    let mut command = Command::new(program);
    // Of the tests, and no settings.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"FOREBAY_")) {
        command.env_remove(name);
    }
    command
        .arg(origin)
        .arg(path)
        .env("LD_LIBRARY_PATH", libraries())
        .env("FOREBAY_CONFIG", configuration)
        .output()
        .unwrap()
}

#[test]
fn the_example_reads_a_file_in_every_way_and_says_why_it_cannot() {
    let (directory, origin) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let Some(program) = compiled(directory.path()) else { return skipped("there is no C compiler, `cc`") };
    std::fs::write(origin.path().join("labels.txt"), "read from C\n").unwrap();
    let output = run(&program, origin.path(), "/labels.txt");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    for line in ["/labels.txt 12", "read 12 of 12", "got 6 and 6", "twice equal", "view equal", "read from C"] {
        assert!(said.lines().any(|said| said == line), "{line}: {said}");
    }
    let missing = run(&program, origin.path(), "/missing");
    let words = String::from_utf8_lossy(&missing.stderr);
    assert_eq!(missing.status.code(), Some(1));
    assert!(words.starts_with("open: /missing: ") && words.contains("(errno 2)"), "{words}");
}
