//! The examples in C are compiled with the header, linked with the library, and run.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use forebay_testkit::skipped;

/// Where cargo puts the library that this program is tested with: beside the program.
fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// An example, compiled; none where there is no compiler.
fn compiled(name: &str, directory: &Path) -> Option<PathBuf> {
    let (root, program) = (Path::new(env!("CARGO_MANIFEST_DIR")), directory.join(name));
    let output = Command::new("cc")
        .args(["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"])
        .arg(root.join("include"))
        .arg(root.join("examples").join(name).with_extension("c"))
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
    let (configuration, temporary) = (origin.join("none.toml"), tempfile::tempdir().unwrap());
    std::fs::write(&configuration, "").unwrap();
    let mut command = Command::new(program);
    // Of the tests, and no settings.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"FOREBAY_")) {
        command.env_remove(name);
    }
    let output = command
        .arg(origin)
        .arg(path)
        .env("LD_LIBRARY_PATH", libraries())
        .env("FOREBAY_CONFIG", configuration)
        .env("TMPDIR", temporary.path())
        .output()
        .unwrap();
    // Also where it just exits, with its client.
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0, "it leaves something behind");
    output
}

/// What a program said that succeeded, of which each of these is a line.
fn said(output: &Output, lines: &[&str]) {
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    for line in lines {
        assert!(said.lines().any(|said| said == *line), "{line}: {said}");
    }
}

#[test]
fn the_example_reads_a_file_in_every_way_and_says_why_it_cannot() {
    let (directory, origin) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let Some(program) = compiled("read", directory.path()) else { return skipped("there is no C compiler, `cc`") };
    std::fs::write(origin.path().join("labels.txt"), "read from C\n").unwrap();
    let output = run(&program, origin.path(), "/labels.txt");
    said(&output, &["/labels.txt 12", "read 12 of 12", "got 6 and 6", "twice equal", "view equal", "read from C"]);
    let missing = run(&program, origin.path(), "/missing");
    let words = String::from_utf8_lossy(&missing.stderr);
    assert_eq!(missing.status.code(), Some(1));
    assert!(words.starts_with("open: /missing: ") && words.contains("(errno 2)"), "{words}");
}

#[test]
fn the_example_writes_a_file_in_every_way_and_is_told_when_it_is_read() {
    let (directory, origin) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let Some(program) = compiled("write", directory.path()) else { return skipped("there is no C compiler, `cc`") };
    let output = run(&program, origin.path(), "/new/hello.txt");
    let wanted: String = (0..1000).map(|number| format!("line {number}\n")).collect();
    let size = wanted.len();
    let lines = [
        "put 16".to_owned(),
        "it is there already".to_owned(),
        "before 16".to_owned(),
        format!("after {size}"),
        format!("given up {size}"),
        format!("got {size} of {size}"),
        "first and last: line 0, line 999".to_owned(),
    ];
    said(&output, &lines.each_ref().map(String::as_str));
    assert_eq!(std::fs::read_to_string(origin.path().join("new/hello.txt")).unwrap(), wanted);
    // It is to be a new one.
    let again = run(&program, origin.path(), "/new/hello.txt");
    let words = String::from_utf8_lossy(&again.stderr);
    assert_eq!(again.status.code(), Some(1));
    assert!(words.starts_with("put: /new/hello.txt: ") && words.contains("(errno 17)"), "{words}");
    let is_a_directory = run(&program, origin.path(), "/new");
    assert_eq!(is_a_directory.status.code(), Some(1), "{}", String::from_utf8_lossy(&is_a_directory.stdout));
}
