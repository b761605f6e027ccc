//! The command line as a whole: help, its documentation, exit codes and error texts.

mod support;

use std::path::Path;

use support::{forebay, ran, run, succeed};

/// Every command, parents before children, as the help lists them.
fn commands() -> Vec<Vec<String>> {
    let mut found = vec![Vec::new()];
    let mut at = 0;
    while at < found.len() {
        let command: Vec<String> = found[at].clone();
        let help = help(&command);
        let listed = help.split("Commands:\n").nth(1).and_then(|rest| rest.split("\n\n").next()).unwrap_or_default();
        for line in listed.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   ")) {
            let name = line.split_whitespace().next().unwrap();
            if name != "help" {
                found.push(command.iter().map(String::as_str).chain([name]).map(str::to_owned).collect());
            }
        }
        at += 1;
    }
    found
}

fn help(command: &[String]) -> String {
    // The width of the terminal that the tests happen to run in must not matter.
    let output = forebay().args(command).arg("--help").env("COLUMNS", "100").output().unwrap();
    let ran = ran(output);
    assert_eq!(ran.code, 0, "{command:?}: {ran:?}");
    ran.out
}

#[test]
fn every_command_has_help_with_an_example() {
    let commands = commands();
    for expected in [
        "up",
        "worker",
        "mount",
        "umount",
        "fs ls",
        "fs location",
        "fs staged retry",
        "conf import",
        "version",
        "completions",
    ] {
        assert!(commands.iter().any(|command| command.join(" ") == expected), "{expected}: {commands:?}");
    }
    for command in commands {
        let help = help(&command);
        let example = format!("forebay {}", command.join(" "));
        let examples = help.split("Example:\n").nth(1).unwrap_or_else(|| panic!("{command:?} has no example"));
        assert!(examples.contains(example.trim()), "{command:?}: {examples}");
    }
}

#[test]
fn docs_cli_md_is_what_the_help_says() {
    let mut text = "\
# Command line

<!-- Made by crates/forebay/tests/cli.rs from the program's own help: FOREBAY_BLESS=1 cargo test -p forebay --test cli -->

Data goes to standard output, everything else to standard error. With `--json`, each record is one JSON object on a line
of its own. A name that is not UTF-8 is shown as well as it can be, and exactly in a field of the same name with `_hex`
after it.

An error is told in two lines: what failed, and what to do next. Where a command is about several things, it goes on
after one that failed, and ends with that one's exit code. The codes are listed below, in the help of `forebay` itself.

Settings come from the configuration file (`--config`, else `$FOREBAY_CONFIG`, else `/etc/forebay/forebay.toml`), the
environment (`FOREBAY_WORKER_MEMORY_SIZE`) and `-o worker.memory.size=4GiB`, in rising precedence;
[forebay.example.toml](forebay.example.toml) documents every key. `FOREBAY_LOG` refines the log, as in
`info,forebay_origin=debug`.

`forebay up` and `forebay mount` record what they serve in the run directory: `/run/forebay` for root,
`$XDG_RUNTIME_DIR/forebay` for other users, or else `/tmp/forebay-UID`. If `$FOREBAY_RUN_DIR` is set, it is the only
one: mounts of other run directories are then not seen. In `private` there are the sockets of `forebay up`, those of
keepers, and those over which `--replace` takes mounts over: their user and root get to them alone. Logs are in
`/var/log/forebay` or `~/.local/state/forebay`, unless `log.file` names another file. Data that was written and is not uploaded yet is in `/var/lib/forebay/staging` or
`~/.local/state/forebay/staging`, unless `write.staging_dir` names another directory. It outlives the process;
`forebay fs staged` lists, uploads or drops it. SIGTERM, SIGINT and SIGHUP unmount and end the process: readers that
have files open may finish for 10 seconds, and a second signal ends that wait. After SIGTERM, the mount may be left to the
next process instead, as `fuse.on_stop` says.
"
    .to_owned();
    for command in commands() {
        let name = ["forebay".to_owned()].into_iter().chain(command.iter().cloned()).collect::<Vec<_>>().join(" ");
        let help = help(&command).lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
        text.push_str(&format!("\n## {name}\n\n```text\n{}\n```\n", help.trim_end()));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/CLI.md");
    if std::env::var_os("FOREBAY_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == text, "docs/CLI.md is old: FOREBAY_BLESS=1 cargo test -p forebay --test cli renews it");
}

#[test]
fn a_command_line_that_makes_no_sense_ends_with_code_2() {
    for arguments in
        [&["no-such-command"][..], &["up"], &["fs", "ls"], &["fs", "head", "-c", "x", "/f"], &["mount", "/"]]
    {
        let ran = run(arguments);
        assert_eq!(ran.code, 2, "{arguments:?}: {ran:?}");
        assert!(ran.out.is_empty());
    }
}

#[test]
fn an_error_is_two_lines_what_failed_and_what_next() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing");
    let missing = missing.to_str().unwrap();
    let user = ["-o", "cluster.etcd.user=forebay", "-o", "cluster.etcd.password_file=/dev/null"];
    let with_password =
        [&["coordinator", "--etcd", "http://etcd1:2379", "-o", "security.mode=off"][..], &user].concat();
    for (arguments, code, what, next) in [
        (vec!["umount", missing], 3, "nothing is mounted at", "findmnt"),
        (vec!["umount", "/proc"], 2, "not of forebay", "umount"),
        (vec!["up", missing, "/"], 3, "neither a URL nor a directory", "s3://bucket/prefix"),
        (vec!["up", "/", missing], 3, "does not exist", "mkdir -p"),
        (vec!["up", "ftp://host/x", "/mnt", "--foreground"], 2, "no origin has the scheme `ftp`", "s3, gs"),
        (vec!["mount", "/"], 2, "no workers are named", "--workers"),
        (vec!["worker"], 2, "`mounts` is empty", "mounts=/=s3://"),
        (vec!["coordinator"], 2, "would listen at 0.0.0.0:19999, beyond this machine", "forebay key create >"),
        (with_password, 2, "`cluster.etcd.password_file`", "configuration"),
        (vec!["fs", "staged", "ls", missing], 3, "does not exist", "mkdir -p"),
        (vec!["fs", "staged", "retry", "00"], 3, "nothing is staged as 00", "fs staged ls"),
        (vec!["fs", "refresh", "--workers", "127.0.0.1:1", "/"], 4, "127.0.0.1:1", "workers run"),
        (vec!["fs", "cat", "missing"], 2, "not below a forebay mount", "--workers"),
        (vec!["fs", "cat", "relative", "--workers", "127.0.0.1:1"], 2, "`relative` is not absolute", "absolute path"),
        (vec!["fs", "ls", "--workers", "127.0.0.1:1", "/"], 4, "cannot connect to 127.0.0.1:1", "workers run"),
        (vec!["conf", "import", missing], 3, "cannot read", "check the path"),
        (vec!["conf", "show", "-o", "worker.memory.siz=1GiB"], 2, "did you mean `worker.memory.size`", "conf show"),
    ] {
        let ran = run(&arguments);
        assert_eq!(ran.code, code, "{arguments:?}: {ran:?}");
        let lines: Vec<&str> = ran.err.lines().filter(|line| !line.contains(" WARN ")).collect();
        assert_eq!(lines.len(), 2, "{arguments:?}: {ran:?}");
        assert!(lines[0].starts_with("forebay: ") && lines[0].contains(what), "{arguments:?}: {ran:?}");
        assert!(lines[1].starts_with("  next: ") && lines[1].contains(next), "{arguments:?}: {ran:?}");
    }
}

#[test]
fn a_filter_for_the_log_that_makes_no_sense_is_refused() {
    let output = forebay().args(["fs", "ls", "--workers", "h:1", "/"]).env("FOREBAY_LOG", "a=b=c").output().unwrap();
    let ran = ran(output);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.err.contains("FOREBAY_LOG"), "{ran:?}");
}

#[test]
fn the_version_says_what_it_is_for_people_and_for_programs() {
    let text = succeed(["version"]);
    assert!(text.starts_with(concat!("forebay ", env!("CARGO_PKG_VERSION"))), "{text}");
    let json: serde_json::Value = serde_json::from_str(&succeed(["version", "--json"])).unwrap();
    assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
    assert!(json["target"].as_str().unwrap().contains("linux"));
    assert_eq!(json["transports"], serde_json::json!(["local", "tcp", "ucx", "verbs"]));
    assert!(text.contains("\n  verbs       "), "{text}");
    let verbs = &json["verbs"];
    match verbs["error"].as_str() {
        Some(error) => assert!(error.contains("cannot load lib") && error.contains("install"), "{error}"),
        None => assert!(verbs["libibverbs"].is_string() && verbs["devices"].is_array(), "{verbs}"),
    }
    assert_eq!(succeed(["--version"]).trim(), concat!("forebay ", env!("CARGO_PKG_VERSION")));
}

#[test]
fn shells_get_completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(succeed(["completions", shell]).contains("umount"), "{shell}");
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let directory = tempfile::tempdir().unwrap();
    succeed(["man".as_ref(), directory.path().as_os_str()]);
    let page = |command: &[String]| {
        let words: Vec<&str> = std::iter::once("forebay").chain(command.iter().map(String::as_str)).collect();
        std::fs::read_to_string(directory.path().join(format!("{}.1", words.join("-")))).unwrap_or_default()
    };
    for command in commands() {
        assert!(page(&command).contains(".SH NAME"), "{command:?}");
    }
    assert_eq!(page(&["mount-helper".to_owned()]), "", "what packages call is no command for people");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = forebay()
        .args(["conf", "show", "--json"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let ran = ran(child.wait_with_output().unwrap());
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
}
