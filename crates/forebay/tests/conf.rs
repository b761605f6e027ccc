//! `forebay conf` on real files.

mod support;

use std::path::Path;

use support::{forebay, ran, run, succeed};

fn file(name: &str, text: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (directory, path)
}

#[test]
fn show_tells_where_each_value_comes_from_in_rising_precedence() {
    let (_directory, config) =
        file("forebay.toml", "block.size = \"1MiB\"\n[worker]\nrpc.port = 1\nmemory.size = \"2GiB\"\n");
    let output = forebay()
        .args(["conf", "show", "--changed", "--json", "--config", &config, "-o", "worker.memory.size=3GiB"])
        .env("FOREBAY_WORKER_RPC_PORT", "2")
        .output()
        .unwrap();
    let ran = ran(output);
    assert_eq!(ran.code, 0, "{ran:?}");
    let rows: Vec<serde_json::Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let row = |key: &str| rows.iter().find(|row| row["key"] == key).unwrap();
    assert_eq!(rows.len(), 3);
    assert_eq!(row("block.size")["origin"], format!("{config}:1"));
    assert_eq!(row("worker.rpc.port")["value"], "2");
    assert_eq!(row("worker.rpc.port")["origin"], "environment FOREBAY_WORKER_RPC_PORT");
    assert_eq!(row("worker.memory.size")["value"], "\"3GiB\"");
}

#[test]
fn show_prints_every_key_as_a_table() {
    let table = succeed(["conf", "show"]);
    assert!(table.starts_with("KEY "), "{table}");
    assert!(table.lines().count() > 50);
    assert!(table.lines().any(|line| line.split_whitespace().eq(["log.file", "(unset)", "default"])), "{table}");
}

#[test]
fn the_file_of_the_environment_is_read() {
    let (_directory, config) = file("forebay.toml", "block.size = \"1MiB\"\n");
    let output = forebay().args(["conf", "show", "--changed"]).env("FOREBAY_CONFIG", &config).output().unwrap();
    assert!(ran(output).out.contains("block.size"));
}

#[test]
fn check_says_good_or_everything_that_is_wrong() {
    let (_directory, good) = file("forebay.toml", "block.size = \"1MiB\"\n");
    assert_eq!(succeed(["conf", "check", &good]), format!("{good}: good, 1 keys set\n"));
    let (_directory, bad) = file("forebay.toml", "block.siez = \"1MiB\"\n\nworker.rpc.port = \"x\"\n");
    let ran = run(["conf", "check", &bad]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains(&format!("{bad}:1: unknown key `block.siez`: did you mean `block.size`?")), "{ran:?}");
    assert!(ran.err.contains(&format!("{bad}:3: bad value for `worker.rpc.port`")), "{ran:?}");
    assert_eq!(run(["conf", "check", "/no/such/file"]).code, 2);
}

#[test]
fn import_prints_a_configuration_that_is_accepted_and_lists_what_it_does_not_know() {
    let properties = "alluxio.worker.rpc.port=30000\nalluxio.no.such.property=1\n";
    let (_directory, properties) = file("alluxio-site.properties", properties);
    let ran = run(["conf", "import", &properties]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.err.contains(":2: alluxio.no.such.property has no counterpart"), "{ran:?}");
    let (_directory, imported) = file("forebay.toml", &ran.out);
    assert!(succeed(["conf", "show", "--changed", "--config", &imported]).contains("worker.rpc.port"));
    let strict = run(["conf", "import", "--strict", &properties]);
    assert_eq!(strict.code, 2, "{strict:?}");
}

/// As it is installed, and with what it shows.
#[test]
fn the_configuration_of_the_packages_is_one() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/packages/forebay.toml");
    succeed(["conf".as_ref(), "check".as_ref(), file.as_os_str()]);
    let text = std::fs::read_to_string(&file).unwrap();
    let is_key = |line: &str| line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '));
    let shown: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix('#')).filter(|line| is_key(line)).collect();
    assert!(shown.len() >= 6, "{shown:?}");
    let directory = tempfile::tempdir().unwrap();
    let all = directory.path().join("forebay.toml");
    std::fs::write(&all, shown.join("\n")).unwrap();
    succeed(["conf".as_ref(), "check".as_ref(), all.as_os_str()]);
}
