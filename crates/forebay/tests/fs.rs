//! `forebay fs`: below a mount, and as a path of the namespace with `--workers`.

mod support;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use support::{BIG, Fixture, bytes, eventually, forebay, ran, run, signal, succeed};

/// A fixture with a mount and the prefix of paths below it; and a worker, for paths of the namespace.
fn mounted() -> (Fixture, String) {
    let mut fixture = Fixture::new();
    fixture.must_up(&[]);
    let prefix = fixture.mountpoint().to_str().unwrap().to_owned();
    (fixture, prefix)
}

fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn ls_lists_a_directory_a_tree_and_a_file() {
    let (_fixture, mnt) = mounted();
    let mut names: Vec<String> = succeed(["fs", "ls", &mnt]).lines().map(str::to_owned).collect();
    names.sort();
    assert_eq!(names, ["dir/", "empty", "name with spaces", "small"]);
    let long = succeed(["fs", "ls", "-l", &format!("{mnt}/dir/deep")]);
    assert!(long.starts_with('-') && long.contains("8.58 MiB") && long.ends_with("  big\n"), "{long}");
    let tree = json_lines(&succeed(["fs", "ls", "-R", "--json", &mnt]));
    assert_eq!(tree.len(), 8, "{tree:?}");
    let big = tree.iter().find(|row| row["path"] == format!("{mnt}/dir/deep/big")).unwrap();
    assert_eq!((big["size"].as_u64(), big["kind"].as_str()), (Some(BIG as u64), Some("file")));
    assert_eq!(succeed(["fs", "ls", &format!("{mnt}/small")]), format!("{mnt}/small\n"));
    let several = run(["fs", "ls", &format!("{mnt}/dir"), &format!("{mnt}/missing")]);
    assert_eq!(several.code, 3, "{several:?}");
    assert!(several.out.contains("deep/") && several.err.contains("missing"), "{several:?}");
}

#[test]
fn a_directory_of_many_pages_is_listed_whole() {
    let fixture = {
        let mut fixture = Fixture::new();
        std::fs::create_dir(fixture.source().join("many")).unwrap();
        (0..2500).for_each(|n| fixture.write(&format!("many/{n:05}"), b""));
        fixture.must_up(&[]);
        fixture
    };
    let many = fixture.mountpoint().join("many");
    let listed = succeed(["fs".as_ref(), "ls".as_ref(), many.as_os_str()]);
    assert_eq!(listed.lines().collect::<std::collections::BTreeSet<_>>().len(), 2500);
    let du = json_lines(&succeed(["fs".as_ref(), "du".as_ref(), "--json".as_ref(), many.as_os_str()]));
    assert_eq!((du[0]["files"].as_u64(), du[0]["directories"].as_u64()), (Some(2500), Some(1)));
}

#[test]
fn stat_tells_kind_size_version_and_blocks() {
    let (_fixture, mnt) = mounted();
    let text = succeed(["fs", "stat", &format!("{mnt}/dir/deep/big")]);
    assert!(text.contains("size        9000000 (8.58 MiB)") && text.contains("blocks      3"), "{text}");
    let rows = json_lines(&succeed(["fs", "stat", "--json", "--revalidate", &mnt, &format!("{mnt}/small")]));
    assert_eq!((rows[0]["kind"].as_str(), rows[1]["kind"].as_str()), (Some("directory"), Some("file")));
    assert_eq!(rows[1]["file_id"].as_str().unwrap().len(), 32);
    assert!(rows[1]["origin"].as_str().unwrap().starts_with("file:///"), "{rows:?}");
    let missing = run(["fs", "stat", &format!("{mnt}/missing")]);
    assert_eq!(missing.code, 3, "{missing:?}");
}

#[test]
fn cat_head_and_tail_print_the_right_bytes() {
    let (_fixture, mnt) = mounted();
    let (lines, big) = (format!("{mnt}/name with spaces"), format!("{mnt}/dir/deep/big"));
    let small = format!("{mnt}/small");
    assert_eq!(succeed(["fs", "cat", &small, &lines]), "hello\none\ntwo\nthree\n");
    let whole = forebay().args(["fs", "cat", &big]).output().unwrap();
    assert!(whole.stdout == bytes(BIG), "{:?}", ran(whole));
    assert_eq!(succeed(["fs", "head", "-n", "2", &lines]), "one\ntwo\n");
    assert_eq!(succeed(["fs", "head", "-c", "5", &lines]), "one\nt");
    assert_eq!(succeed(["fs", "tail", "-n", "2", &lines]), "two\nthree\n");
    assert_eq!(succeed(["fs", "tail", "-n", "99", &lines]), "one\ntwo\nthree\n");
    assert_eq!(succeed(["fs", "tail", "-n", "0", &lines]), "");
    assert_eq!(succeed(["fs", "tail", "-c", "3", &lines]), "ee\n");
    assert_eq!(succeed(["fs", "head", &format!("{mnt}/empty")]), "");
    let tail = forebay().args(["fs", "tail", "-c", "5MiB", &big]).output().unwrap();
    assert!(tail.stdout == bytes(BIG)[BIG - (5 << 20)..]);
    let directory = run(["fs", "cat", &mnt, &small]);
    assert_eq!((directory.code, directory.out.as_str()), (2, "hello\n"), "{directory:?}");
    assert!(directory.err.contains("is a directory"), "{directory:?}");
}

#[test]
fn tail_agrees_with_coreutils_on_lines_that_cross_reads() {
    let (fixture, mnt) = mounted();
    // Lines of growing length, so that they cross the steps of the reader anywhere; the last has no newline.
    let text: String = (0..1500).map(|n| format!("{}\n", "x".repeat(n))).collect::<String>() + "end";
    fixture.write("lines", text.as_bytes());
    let path = format!("{mnt}/lines");
    for count in ["1", "2", "700", "1499", "1500", "1501", "1502"] {
        let expected = Command::new("tail").args(["-n", count]).arg(fixture.source().join("lines")).output().unwrap();
        assert_eq!(succeed(["fs", "tail", "-n", count, &path]).as_bytes(), expected.stdout, "tail -n {count}");
        let expected = Command::new("head").args(["-n", count]).arg(fixture.source().join("lines")).output().unwrap();
        assert_eq!(succeed(["fs", "head", "-n", count, &path]).as_bytes(), expected.stdout, "head -n {count}");
    }
}

#[test]
fn a_reader_that_goes_away_ends_cat_in_silence() {
    let (_fixture, mnt) = mounted();
    let mut child = forebay()
        .args(["fs", "cat", &format!("{mnt}/dir/deep/big")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let ran = ran(child.wait_with_output().unwrap());
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
}

#[test]
fn get_copies_a_file_and_a_tree() {
    let (fixture, mnt) = mounted();
    let dest = fixture.path("dest");
    std::fs::create_dir(&dest).unwrap();
    let dest = dest.to_str().unwrap();
    let big = format!("{mnt}/dir/deep/big");
    succeed(["fs", "get", &big, dest]);
    assert!(std::fs::read(format!("{dest}/big")).unwrap() == bytes(BIG));
    let (copied, origin) = (Path::new(dest).join("big"), fixture.source().join("dir/deep/big"));
    let modified = |path: &Path| path.metadata().unwrap().modified().unwrap();
    assert_eq!(modified(&copied), modified(&origin));
    assert_ne!(copied.metadata().unwrap().permissions().mode() & 0o044, 0, "readable as a new file is");
    succeed(["fs", "get", &format!("{mnt}/small"), &format!("{dest}/renamed")]);
    assert_eq!(std::fs::read(format!("{dest}/renamed")).unwrap(), b"hello\n");
    let summary = json_lines(&succeed(["fs", "get", "--json", "--jobs", "2", &mnt, &format!("{dest}/tree")]));
    assert_eq!((summary[0]["files"].as_u64(), summary[0]["bytes"].as_u64()), (Some(5), Some(BIG as u64 + 25)));
    let diff = Command::new("diff").arg("-r").arg(fixture.source()).arg(format!("{dest}/tree")).output().unwrap();
    assert!(diff.status.success(), "{}", String::from_utf8_lossy(&diff.stdout));
    let nowhere = run(["fs", "get", &big, "/no/such/place"]);
    assert_eq!(nowhere.code, 3, "{nowhere:?}");
    let missing = run(["fs", "get", &format!("{mnt}/missing"), dest]);
    assert_eq!(missing.code, 3, "{missing:?}");
    let left: Vec<_> = std::fs::read_dir(dest).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with('.')), "{left:?}");
}

#[test]
fn an_interrupted_get_leaves_nothing_behind() {
    let (fixture, mnt) = mounted();
    // Long enough that it is never done before the signal, and takes no room.
    std::fs::File::create(fixture.source().join("huge")).unwrap().set_len(1 << 40).unwrap();
    let dest = fixture.path("dest");
    std::fs::create_dir(&dest).unwrap();
    let names = || std::fs::read_dir(&dest).unwrap().map(|entry| entry.unwrap()).collect::<Vec<_>>();
    let huge = format!("{mnt}/huge");
    let child = forebay().args(["fs", "get", &huge]).arg(&dest).stderr(Stdio::piped()).spawn().unwrap();
    eventually("the first bytes", || {
        names().iter().any(|entry| entry.metadata().is_ok_and(|metadata| metadata.len() > 0))
    });
    signal(child.id(), Signal::INT);
    let ran = ran(child.wait_with_output().unwrap());
    assert_eq!(ran.code, 130, "{ran:?}");
    assert!(names().is_empty(), "{:?}", names());
}

#[test]
fn du_sums_up_a_tree() {
    let (_fixture, mnt) = mounted();
    let rows = json_lines(&succeed(["fs", "du", "--json", &mnt]));
    assert_eq!(rows[0]["bytes"].as_u64(), Some(BIG as u64 + 25));
    assert_eq!((rows[0]["files"].as_u64(), rows[0]["directories"].as_u64()), (Some(5), Some(3)));
    let text = succeed(["fs", "du", "-b", &mnt]);
    assert!(text.contains("9000025") && text.contains("5 files"), "{text}");
}

#[test]
fn checksums_are_those_that_sha256sum_checks() {
    let (fixture, mnt) = mounted();
    let checksums = succeed(["fs", "checksum", &mnt]);
    assert_eq!(checksums.lines().count(), 5, "{checksums}");
    std::fs::write(fixture.path("checksums"), &checksums).unwrap();
    let check = Command::new("sha256sum").arg("-c").arg(fixture.path("checksums")).output().unwrap();
    assert!(check.status.success(), "{check:?}");
    let crc = succeed(["fs", "checksum", "-a", "crc32c", &format!("{mnt}/empty")]);
    assert_eq!(crc, format!("00000000  {mnt}/empty\n"));
    let rows = json_lines(&succeed(["fs", "checksum", "-a", "blake3", "--json", &format!("{mnt}/small")]));
    assert_eq!(rows[0]["algorithm"], "blake3");
    assert_eq!(rows[0]["checksum"].as_str().unwrap().len(), 64);
}

#[test]
fn location_shows_what_of_each_block_is_cached_where() {
    let (_fixture, mnt) = mounted();
    let big = format!("{mnt}/dir/deep/big");
    let states = |rows: &[Value]| rows.iter().map(|row| row["state"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    let cold = json_lines(&succeed(["fs", "location", "--json", &big]));
    assert_eq!(states(&cold), ["none", "none", "none"]);
    assert_eq!(cold[2]["length"].as_u64(), Some(BIG as u64 - (8 << 20)));
    succeed(["fs", "head", "-c", "10", &big]);
    let first = json_lines(&succeed(["fs", "location", "--json", &big]));
    assert_eq!(states(&first), ["partial", "none", "none"]);
    assert_eq!(first[0]["memory"][0]["offset"], 0);
    forebay().args(["fs", "cat", &big]).output().unwrap();
    let warm = json_lines(&succeed(["fs", "location", "--json", &big]));
    assert_eq!(states(&warm), ["cached", "cached", "cached"]);
    assert!(warm.iter().all(|row| row["owner"] == true));
    let table = succeed(["fs", "location", &big]);
    assert_eq!(table.lines().count(), 4, "{table}");
    assert!(table.lines().skip(1).all(|line| line.contains("owner  cached   all")), "{table}");
}

#[test]
fn paths_of_the_namespace_are_asked_of_named_workers() {
    let mut fixture = Fixture::new();
    let (_, address) = fixture.worker(&[]);
    assert_eq!(succeed(["fs", "cat", "--workers", &address, "/small"]), "hello\n");
    let workers = format!("cluster.workers={address}");
    assert_eq!(succeed(["fs", "cat", "-o", &workers, "/small"]), "hello\n");
    let json = json_lines(&succeed(["stats", "--workers", &address, "--all", "--json"]));
    assert_eq!(json[0]["name"].as_str(), Some(address.as_str()));
    assert!(json[0]["worker"]["requests"]["read"].as_u64().unwrap() > 0, "{json:?}");
    assert!(succeed(["stats", "--all", "-o", &workers]).contains("worker.bytes_memory"));
}

#[test]
fn a_path_below_a_mount_may_be_relative_and_go_through_a_link() {
    let (fixture, mnt) = mounted();
    let link = fixture.path("link");
    std::os::unix::fs::symlink(&mnt, &link).unwrap();
    assert_eq!(succeed(["fs".as_ref(), "cat".as_ref(), link.join("dir/../small").as_os_str()]), "hello\n");
    let output = forebay().args(["fs", "cat", "../small"]).current_dir(format!("{mnt}/dir")).output().unwrap();
    assert_eq!(ran(output).out, "hello\n");
}

#[test]
fn names_that_are_not_text_survive() {
    let fixture = {
        let mut fixture = Fixture::new();
        let name = OsString::from_vec(b"odd\xff\nname".to_vec());
        std::fs::write(fixture.source().join("dir").join(name), b"odd").unwrap();
        fixture.must_up(&[]);
        fixture
    };
    let directory = fixture.mountpoint().join("dir");
    let rows = json_lines(&succeed(["fs".as_ref(), "ls".as_ref(), "--json".as_ref(), directory.as_os_str()]));
    let odd = rows.iter().find(|row| row.get("path_hex").is_some()).unwrap();
    assert!(odd["path_hex"].as_str().unwrap().ends_with("6f6464ff0a6e616d65"), "{odd}");
    let listed = forebay().args(["fs", "ls"]).arg(&directory).output().unwrap().stdout;
    assert!(listed.windows(9).any(|window| window == b"odd\xff\nname"[..9].to_vec()));
    let path = directory.join(OsString::from_vec(b"odd\xff\nname".to_vec()));
    assert_eq!(succeed(["fs".as_ref(), "cat".as_ref(), path.as_os_str()]), "odd");
    let checksums = forebay().args(["fs", "checksum"]).arg(&directory).output().unwrap().stdout;
    std::fs::write(fixture.path("checksums"), checksums).unwrap();
    let check = Command::new("sha256sum").arg("-c").arg(fixture.path("checksums")).output().unwrap();
    assert!(check.status.success(), "{check:?}");
}
