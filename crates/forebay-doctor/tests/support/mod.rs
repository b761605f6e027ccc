//! Recorded trees, and verdicts by name.

#![allow(dead_code, reason = "each test program uses its part")]

use std::fs;
use std::path::Path;

use forebay_config::{Config, Sources};
use forebay_doctor::facts::{Address, Standing, Ucx};
use forebay_doctor::{Check, Facts, Outside, Root, Verdict, checks};

/// Makes the files of a recording in `folder`. A line is `path: content`, with `\n` and `\t` in the content,
/// `path -> target` for a symbolic link, `path/` for a folder, or a `#` comment.
pub(crate) fn expand(recording: &str, folder: &Path) {
    for line in recording.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(path) = line.strip_suffix('/') {
            fs::create_dir_all(folder.join(path)).unwrap();
            continue;
        }
        let link = line.split_once(" -> ");
        let file = line.split_once(": ").or_else(|| line.strip_suffix(':').map(|path| (path, "")));
        let (path, _) = link.or(file).unwrap_or_else(|| panic!("not a line of a recording: {line}"));
        fs::create_dir_all(folder.join(path).parent().unwrap()).unwrap();
        match (link, file) {
            (Some((path, target)), _) => std::os::unix::fs::symlink(target, folder.join(path)).unwrap(),
            (None, Some((path, content))) => {
                fs::write(folder.join(path), content.replace("\\n", "\n").replace("\\t", "\t")).unwrap();
            }
            (None, None) => unreachable!("one of them gave the path"),
        }
    }
}

/// The facts of the recording `tree`, on a machine with these addresses (`ib0=10.0.0.1/24`) and this UCX.
pub(crate) fn facts(tree: &str, addresses: &[&str], ucx: Ucx) -> Facts {
    facts_with(tree, addresses, Outside { ucx, ..Outside::default() })
}

/// The same with what no file tells.
pub(crate) fn facts_with(tree: &str, addresses: &[&str], outside: Outside) -> Facts {
    let recording = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trees").join(tree).with_extension("tree");
    let folder = tempfile::tempdir().unwrap();
    expand(&fs::read_to_string(recording).unwrap(), folder.path());
    let address = |text: &&str| {
        let (interface, address) = text.split_once('=').unwrap();
        let (ip, prefix) = address.split_once('/').unwrap();
        let (ip, prefix) = (ip.parse().unwrap(), prefix.parse().unwrap());
        (interface.to_owned(), Address { ip, prefix, standing: Standing::Own })
    };
    let outside = Outside {
        addresses: addresses.iter().map(address).collect(),
        search_path: vec!["/usr/local/bin".into(), "/usr/bin".into()],
        ports: vec![29999, 59999],
        ..outside
    };
    Facts::gather(&Root::new(folder.path()), outside)
}

/// A UCX of this version whose modules for verbs are loaded and that offers `resources`.
pub(crate) fn ucx(version: &str, resources: &[&str]) -> Ucx {
    let module = |name: &str| forebay_doctor::facts::UcxModule { name: name.to_owned(), is_loaded: true };
    let found = Ucx {
        path: Some("/usr/lib/libucp.so.0".to_owned()),
        version: Some(version.to_owned()),
        modules: vec![module("ib"), module("rdmacm")],
        ..Ucx::default()
    };
    let resource = |name: &&str| {
        let (transport, device) = name.split_once('/').unwrap();
        forebay_ucx::Resource { transport: transport.to_owned(), device: device.to_owned() }
    };
    found.offering(&resources.iter().map(resource).collect::<Vec<_>>())
}

/// The defaults with these settings.
pub(crate) fn config(settings: &[&str]) -> Config {
    Config::load(&Sources::new().flags(settings.iter().copied())).unwrap().config
}

/// RDMA is asked for.
pub(crate) const RDMA: &str = "network.rdma.data.enabled=true";

/// The check called `SECTION NAME` or `SECTION NAME SUBJECT`, of which there must be one.
#[track_caller]
pub(crate) fn find(facts: &Facts, config: &Config, name: &str) -> Check {
    let checks = checks::check(facts, config);
    let mut found = checks.iter().filter(|check| is_named(check, name));
    let check = found.next().unwrap_or_else(|| panic!("no {name} in {checks:#?}"));
    assert_eq!(found.next(), None, "{name} is there twice");
    check.clone()
}

/// Its verdict; whatever is not well must have a remedy.
#[track_caller]
pub(crate) fn verdict(facts: &Facts, config: &Config, name: &str) -> Verdict {
    let check = find(facts, config, name);
    assert!(check.verdict < Verdict::Warn || check.remedy.is_some(), "no remedy: {check:?}");
    check.verdict
}

/// Whether there is a check called `SECTION NAME` or `SECTION NAME SUBJECT`.
pub(crate) fn is_there(facts: &Facts, config: &Config, name: &str) -> bool {
    checks::check(facts, config).iter().any(|check| is_named(check, name))
}

fn is_named(check: &Check, name: &str) -> bool {
    let short = format!("{} {}", check.section.name(), check.name);
    short == name || check.subject.as_ref().is_some_and(|subject| format!("{short} {subject}") == name)
}
