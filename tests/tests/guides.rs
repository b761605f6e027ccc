//! The commands of `docs/guides/` are run, on hosts with the network cards that the guides speak of, and print what the guides say.
//!
//! A block says by its first line what it is:
//!
//! * `sh worker`, `sh client`, `sh coordinator`: commands, a line each, run as they stand on that host. Each must succeed; `# exit code 2`
//!   behind one says how else it ends. With `server` the command goes on until the next heading, or the next server of that host.
//! * `text`: what the block before it prints; `…` stands for anything. What is not printed yet is waited for.
//! * `toml worker`, `properties worker` and so on: a file, whose name is in its first line.
//! * `sh soft-roce …`: run by `scripts/rdma-guide.sh`, in the virtual machine of `make test-rdma`.
//! * `sh hardware`: needs a real fabric. Here it is only checked that `forebay …` are commands (`crates/forebay/src/cli.rs`).
//! * `sh packages`, `toml packages` and so on: run by `scripts/rootfs-test.sh`, in a Debian with systemd as process 1, after
//!   `make packages`; `sh release` by `scripts/release-test.sh`, among the files of `make release`; `sh image` by
//!   `scripts/image-test.sh`. Here they are only parsed.
//! * `sh kubernetes`, `yaml kubernetes`: run by `scripts/k8s-test.sh`; `deploy.rs` tells what no script runs. Here they are only
//!   parsed, and names in them compared with what Forebay takes. `cert_manager.rs` has certificates issued for a plain `yaml`.
//!
//! Names and addresses of the guides stand for those of the test.

use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use forebay_e2e::{Fio, Host, Network, Relay, beside_tests, finish, forebay, is_root, once, signal, skipped};
use forebay_identity::{Identity, Scope};
use forebay_testkit::{DataSet, Etcd, EtcdSetup};
use rustix::process::Signal;
use yaml_rust2::YamlLoader;

/// A line of a guide takes some ten seconds at most, and five times as long on a busy machine.
const SOON: Duration = Duration::from_secs(120);
const HOSTS: [&str; 3] = ["worker", "client", "coordinator"];
const ELSEWHERE: [&str; 5] = ["hardware", "image", "kubernetes", "packages", "release"];
/// What no host of the guides has to say: less than a gibibyte for each worker, and none of it at once.
const ENVIRONMENT: [(&str, &str); 4] = [
    ("FOREBAY_WORKER_MEMORY_SIZE", "64MiB"),
    ("FOREBAY_WORKER_MEMORY_PREWARM", "false"),
    ("FOREBAY_CLUSTER_LEASE_TTL", "3s"),
    ("FOREBAY_WRITE_MODE", "none"),
];

const ALONE: [&str; 3] = [
    "mount --make-rprivate /",
    "umount --all --lazy --types fuse.forebay",
    "mkdir -p /run/forebay && mount -t tmpfs -o mode=755 tmpfs /run/forebay",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").to_owned()
}

fn guides() -> Vec<(String, String)> {
    let files = std::fs::read_dir(root().join("docs/guides")).expect("the guides").map(|entry| entry.unwrap().path());
    let guides = files.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    guides
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read_to_string(&path).unwrap()))
        .collect()
}

/// A block of a guide.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    /// The words of its first line.
    kind: Vec<String>,
    lines: Vec<String>,
}

/// The blocks of a page, section by section.
fn sections(page: &str) -> Vec<Vec<Block>> {
    let mut sections = vec![Vec::new()];
    let mut open: Option<Block> = None;
    for line in page.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(kind)) => {
                open = Some(Block { kind: kind.split(' ').map(str::to_owned).collect(), lines: Vec::new() });
            }
            (Some(_), Some(_)) => sections.last_mut().expect("one").extend(open.take()),
            (Some(block), None) => block.lines.push(line.to_owned()),
            (None, None) if line.starts_with("## ") => sections.push(Vec::new()),
            (None, None) => {}
        }
    }
    sections
}

impl Block {
    fn is(&self, word: &str) -> bool {
        self.kind.iter().any(|known| known == word)
    }

    /// The host that it is for, if it is for one of this test's.
    fn host(&self) -> Option<&'static str> {
        let is_elsewhere = self.is("soft-roce") || ELSEWHERE.into_iter().any(|place| self.is(place));
        HOSTS.into_iter().find(|host| self.is(host) && !is_elsewhere)
    }
}

/// A shell on a host, with a view of its own on `/sys` and on what is mounted.
struct Shell {
    child: Child,
    into: ChildStdin,
    lines: Receiver<String>,
    /// Where its relative paths are.
    directory: PathBuf,
    server: Option<Child>,
}

impl Shell {
    fn start(host: &Host, directory: PathBuf) -> Self {
        std::fs::create_dir_all(directory.join("etc")).expect("a directory");
        std::fs::create_dir_all(directory.join("mnt")).expect("a directory");
        // Which sets nothing until the guide says what is in it.
        std::fs::write(directory.join("etc/forebay.toml"), "").expect("a file");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &host.namespace, "bash"]).current_dir(&directory);
        let mut child =
            of_guide(&mut command, &directory).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell");
        let (tell, lines) = channel();
        let out = BufReader::new(child.stdout.take().expect("piped"));
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
        let into = child.stdin.take().expect("piped");
        let mut shell = Self { child, into, lines, directory, server: None };
        // A machine of its own has no other mounts, and nothing in `/run` of those of other tests.
        for line in ALONE {
            let (code, said) = shell.run(line);
            assert_eq!(code, 0, "`{line}`: {said}");
        }
        shell
    }

    /// Runs a line to its end: its exit code, and what it printed.
    fn run(&mut self, line: &str) -> (i32, String) {
        let quoted = line.replace('\'', "'\\''");
        writeln!(
            self.into,
            "timeout -k 5 110 bash -c '{quoted}' </dev/null 2>&1; code=$?; echo; echo \"end of command: $code\""
        )
        .expect("a shell");
        let (mut printed, deadline) = (String::new(), Instant::now() + SOON);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let next = self.lines.recv_timeout(left).unwrap_or_else(|_| panic!("`{line}` does not end: {printed}"));
            match next.strip_prefix("end of command: ") {
                Some(code) => return (code.parse().expect("a number"), printed),
                None => printed = printed + &next + "\n",
            }
        }
    }

    /// Starts what goes on, and waits until it is ready.
    fn serve(&mut self, host: &Host, line: &str) {
        self.end_server();
        let log = self.directory.join("server.log");
        let mut command = Command::new("ip");
        // The shell gives way to the program, so that the program is what is killed.
        command
            .args(["netns", "exec", &host.namespace, "bash", "-c", &format!("exec {line}")])
            .current_dir(&self.directory);
        let out = File::create(&log).expect("a log");
        let command = of_guide(&mut command, &self.directory);
        let command = command.stdin(Stdio::null()).stderr(out.try_clone().expect("a log")).stdout(out);
        let mut server = command.spawn().expect("a server");
        once(&format!("`{line}` is ready"), SOON, || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let ended = server.try_wait().expect("waiting");
            assert!(ended.is_none(), "`{line}` ended: {text}");
            (text.contains("listening on") || text.contains("running on")).then_some(())
        });
        self.server = Some(server);
    }

    fn end_server(&mut self) {
        if let Some(mut server) = self.server.take() {
            signal(server.id(), Signal::TERM);
            once("the server ends", SOON, || server.try_wait().expect("waiting"));
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // What is mounted is in the shell's view only.
        let _ = writeln!(self.into, "umount --lazy {}/mnt 2>/dev/null; exit", self.directory.display());
        let _ = self.child.wait();
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// With the program under test in the search path, and nothing of this machine's configuration.
fn of_guide<'a>(command: &'a mut Command, directory: &Path) -> &'a mut Command {
    let programs = directory.parent().expect("the test's directory").join("bin");
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    command
        .env_clear()
        .env("PATH", path)
        .env("HOME", "/nonexistent")
        .env("FOREBAY_CONFIG", "/dev/null")
        .envs(ENVIRONMENT)
}

/// The hosts of a guide, and what its names stand for.
struct Scene {
    shells: BTreeMap<&'static str, Shell>,
    hosts: BTreeMap<&'static str, Host>,
    names: Vec<(&'static str, String)>,
    has_etcd: bool,
    _etcd: Option<(Etcd, Relay)>,
    _network: Network,
    directory: tempfile::TempDir,
}

impl Scene {
    fn new() -> std::io::Result<Self> {
        let mut network = Network::new("10gbit")?;
        let directory = tempfile::tempdir()?;
        std::fs::create_dir(directory.path().join("bin"))?;
        std::os::unix::fs::symlink(forebay(&[]).get_program(), directory.path().join("bin/forebay"))?;
        // What the guides copy from node1: from the directory of the worker to that of the host that asks.
        let copy =
            "#!/bin/sh\nset -e\nfrom=${2#node1:}\ncp \"$1\" \"$(echo \"$from\" | sed s,/client/,/worker/,)\" \"$3\"\n";
        std::fs::write(directory.path().join("bin/scp"), copy)?;
        std::fs::set_permissions(directory.path().join("bin/scp"), Permissions::from_mode(0o755))?;
        DataSet::new(1).write_file(&directory.path().join("data/model.safetensors"), 3 << 20)?;
        let (mut hosts, mut shells) = (BTreeMap::new(), BTreeMap::new());
        let mut names = Vec::new();
        for (name, [eth0, ib0]) in
            HOSTS.into_iter().zip([["10.0.0.1", "10.1.0.1"], ["10.0.0.2", "10.1.0.2"], ["coordinator1", ""]])
        {
            let host = network.host("10gbit")?;
            names.push((eth0, host.address.to_string()));
            if !ib0.is_empty() {
                names.push((ib0, network.second_card(&host, "ib0", "10gbit")?.to_string()));
            }
            shells.insert(name, Shell::start(&host, directory.path().join(name)));
            hosts.insert(name, host);
        }
        let etcd = Etcd::start(&EtcdSetup::default()).expect("etcd").map(|etcd| {
            let member = etcd.endpoints()[0].rsplit('/').next().expect("an address").parse().expect("an address");
            let relay = Relay::start(network.own(), member).expect("a relay");
            (etcd, relay)
        });
        if let Some((_, relay)) = &etcd {
            names.push(("etcd1:2379", relay.address().to_string()));
        } else {
            skipped("the parts of the guides with etcd: it is not installed (apt-get install etcd-server)");
        }
        names.push(("s3://bucket/prefix", format!("file://{}", directory.path().join("data").display())));
        Ok(Self { shells, hosts, names, has_etcd: etcd.is_some(), _etcd: etcd, _network: network, directory })
    }

    /// A text of the guide with the names that things have here.
    fn here(&self, host: &str, text: &str) -> String {
        let place = self.directory.path().join(host);
        let places = [("/etc/forebay", place.join("etc")), ("/mnt/data", place.join("mnt"))];
        let places = places.iter().map(|(guides, ours)| (*guides, ours.display().to_string()));
        places
            .chain(self.names.iter().cloned())
            .fold(text.to_owned(), |text, (guides, ours)| text.replace(guides, &ours))
    }

    /// Runs a section. What its servers are is gone after it.
    fn run(&mut self, blocks: &[Block]) {
        let mut before: Option<(&'static str, &str, String)> = None;
        for block in blocks {
            let Some(host) = block.host() else {
                if block.is("text")
                    && let Some((host, line, printed)) = before.take()
                {
                    self.expect(host, line, printed, &block.lines);
                }
                before = None;
                continue;
            };
            if !block.is("sh") {
                let name = block.lines[0].strip_prefix("# ").expect("a file's name in its first line");
                let file = self.shells[host].directory.join(self.here(host, name));
                let text = self.here(host, &block.lines.join("\n"));
                std::fs::write(&file, text + "\n").expect("a file");
                continue;
            }
            let mut printed = String::new();
            for line in block.lines.iter().filter(|line| !line.is_empty()) {
                let (command, remark) = line.split_once(" # ").unwrap_or((line, ""));
                let command = self.here(host, command.trim());
                let shell = self.shells.get_mut(host).expect("a shell");
                if block.is("server") {
                    shell.serve(&self.hosts[host], &command);
                    continue;
                }
                let expected = remark.trim().strip_prefix("exit code ").map_or(0, |code| code.parse().expect("a code"));
                let (code, said) = shell.run(&command);
                assert_eq!(code, expected, "{host}: `{command}`: {said}");
                printed += &said;
            }
            before = block.lines.last().map(|line| (host, line.as_str(), printed));
        }
        self.shells.values_mut().for_each(Shell::end_server);
    }

    /// Waits until `line`, which printed this, has printed what is expected.
    fn expect(&mut self, host: &'static str, line: &str, mut printed: String, expected: &[String]) {
        let expected: Vec<String> = expected.iter().map(|line| self.here(host, line)).collect();
        let command = self.here(host, line.split(" # ").next().unwrap_or(line).trim());
        let shell = self.shells.get_mut(host).expect("a shell");
        let deadline = Instant::now() + SOON;
        while let Some(missing) = expected.iter().find(|expected| !has_line(&printed, expected)) {
            assert!(Instant::now() < deadline, "{host}: `{command}` does not print `{missing}`: {printed}");
            printed += &shell.run(&command).1;
        }
    }
}

/// Whether a line of `printed` has all parts of `expected`, in order.
fn has_line(printed: &str, expected: &str) -> bool {
    let parts: Vec<&str> = expected.split('…').collect();
    printed.lines().any(|line| {
        let mut rest = line;
        parts.iter().all(|part| match rest.find(part.trim()) {
            Some(at) => {
                rest = &rest[at + part.trim().len()..];
                true
            }
            None => false,
        })
    })
}

fn run(guide: &str) {
    if !is_root() {
        return skipped("needs root for network namespaces");
    }
    let mut scene = match Scene::new() {
        Ok(scene) => scene,
        Err(error) => return skipped(&format!("no network of namespaces: {error}")),
    };
    let (_, page) = guides().into_iter().find(|(name, _)| name == guide).expect("the guide");
    for section in sections(&page) {
        let needs_etcd = section.iter().any(|block| block.lines.iter().any(|line| line.contains("etcd1:2379")));
        if !needs_etcd || scene.has_etcd {
            scene.run(&section);
        }
    }
}

#[test]
fn the_guide_to_ipoib_does_what_it_says() {
    run("ipoib.md");
}

#[test]
fn the_guide_to_measuring_does_what_it_says() {
    if Fio::find().is_some() {
        run("benchmarking.md");
    }
}

#[test]
fn the_guide_to_rdma_does_what_it_says() {
    run("rdma.md");
}

#[test]
fn the_guide_to_security_does_what_it_says() {
    run("security.md");
}

#[test]
fn the_guide_to_cert_manager_does_what_it_says_without_kubernetes() {
    run("cert-manager.md");
}

#[test]
fn the_guide_to_upgrading_does_what_it_says() {
    run("upgrading.md");
}

#[test]
fn the_commands_for_trouble_and_of_the_checklist_work() {
    ["troubleshooting.md", "gpu-node.md"].into_iter().for_each(run);
}

#[test]
fn every_block_of_the_guides_says_where_it_is_run() {
    let guides = guides();
    assert!(guides.len() >= 4);
    for (guide, page) in guides {
        for block in sections(&page).iter().flatten() {
            let first = block.kind[0].as_str();
            assert!(["sh", "text", "toml", "properties", "ini", "yaml"].contains(&first), "{guide}: {block:?}");
            let is_elsewhere = ELSEWHERE.into_iter().any(|place| block.is(place));
            let is_run = is_elsewhere || HOSTS.iter().any(|host| block.is(host));
            assert!(is_run || matches!(first, "text" | "ini" | "yaml"), "{guide}: {block:?}");
            assert!(!block.is("server") || block.lines.len() == 1, "{guide}: {block:?}");
        }
    }
}

#[test]
fn every_file_in_the_guides_is_a_configuration() {
    let directory = tempfile::tempdir().unwrap();
    for (guide, page) in guides() {
        for block in sections(&page).iter().flatten().filter(|block| block.is("toml")) {
            let file = directory.path().join("forebay.toml");
            std::fs::write(&file, block.lines.join("\n")).unwrap();
            let checked = finish(forebay(&[]).args(["conf", "check"]).arg(&file), SOON);
            assert_eq!(checked.code, Some(0), "{guide}: {block:?}: {}", checked.stderr);
        }
    }
}

/// Certificates of the guide are for identities of the cluster, and commands are about files that it shows.
#[test]
fn what_the_guide_has_cert_manager_do_is_what_forebay_takes() {
    let (_, page) = guides().into_iter().find(|(name, _)| name == "cert-manager.md").expect("the guide");
    let blocks: Vec<Block> = sections(&page).into_iter().flatten().collect();
    let ours = Scope::new("forebay", "forebay").unwrap();
    let is_ours = |name: &str| name.parse::<Identity>().is_ok_and(|identity| *identity.scope() == ours);
    let (mut files, mut roles) = (Vec::new(), Vec::new());
    for block in blocks.iter().filter(|block| block.is("yaml")) {
        files.push(block.lines[0].strip_prefix("# ").expect("a file's name in its first line"));
        for document in YamlLoader::load_from_str(&block.lines.join("\n")).expect("YAML") {
            let certificate = &document["spec"];
            let is_authority = certificate["isCA"].as_bool() == Some(true);
            for uri in certificate["uris"].as_vec().into_iter().flatten() {
                let uri = uri.as_str().expect("a URI");
                // What an authority is named for is what its identities begin with.
                assert!(if is_authority { is_ours(&format!("{uri}/anybody")) } else { is_ours(uri) }, "{uri}");
                roles.extend((!is_authority).then(|| uri.split('/').nth(5).unwrap_or_default().to_owned()));
            }
            if !certificate["uris"].is_badvalue() && !is_authority {
                let usages: Vec<_> = certificate["usages"].as_vec().into_iter().flatten().collect();
                for needed in ["digital signature", "client auth", "server auth"] {
                    assert!(usages.iter().any(|usage| usage.as_str() == Some(needed)), "{usages:?}");
                }
            }
        }
    }
    assert_eq!(roles, ["worker", "coordinator", "admin", "reader", "reader"]);
    for line in blocks.iter().filter(|block| block.is("sh") && block.is("kubernetes")).flat_map(|block| &block.lines) {
        assert!(line.starts_with("kubectl "), "{line}");
        assert_eq!(finish(Command::new("bash").args(["-n", "-c", line]), SOON).code, Some(0), "{line}");
        let applied = line.split(" -f ").nth(1).and_then(|after| after.split(' ').next());
        assert!(applied.is_none_or(|file| files.contains(&file)), "{line}: {files:?}");
    }
}

/// All that is in the files of a directory.
fn sources(directory: &Path) -> String {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let text = |path: PathBuf| if path.is_dir() { sources(&path) } else { std::fs::read_to_string(path).unwrap() };
    entries.map(text).collect()
}

/// The second column of every table of these guides has names of checks of `forebay doctor`, as its report prints them.
#[test]
fn every_check_that_a_guide_names_is_one_of_the_doctors() {
    let with_checks = |(name, _): &(String, String)| matches!(name.as_str(), "troubleshooting.md" | "gpu-node.md");
    let pages: String = guides().into_iter().filter(with_checks).map(|(_, page)| page).collect();
    let sources = sources(&root().join("crates/forebay-doctor/src/checks"));
    let sections = "system rdma ucx memory fuse container units network origin cluster security configuration peer";
    let mut named = 0;
    for row in pages.lines().filter(|line| line.starts_with("| ") && !line.contains("| check |")) {
        let row = row.replace("\\|", "/");
        let column = row.split('|').nth(2).expect("a second column");
        for check in column.split('`').skip(1).step_by(2) {
            let (section, name) = check.split_once(' ').expect("a section and a name");
            assert!(
                sections.split(' ').any(|known| known == section) && sources.contains(&format!("\"{name}\"")),
                "no check `{check}`: {row}"
            );
            named += 1;
        }
    }
    assert!(named > 40, "{named}");
}

#[test]
fn expectations_may_leave_things_out() {
    assert!(has_line("a\nESTAB 0 0 10.1.0.2:5 10.1.0.1:29999\n", "10.1.0.2:…10.1.0.1:29999"));
    assert!(!has_line("10.1.0.1:29999 10.1.0.2:5", "10.1.0.2:…10.1.0.1:29999"));
    let page = "# t\n```sh worker\na # exit code 2\n```\n## next\n```sh hardware\nb\n```\n";
    let sections = sections(page);
    assert_eq!((sections.len(), sections[0][0].host(), sections[1][0].host()), (2, Some("worker"), None));
    assert_eq!(beside_tests("forebay").file_name().unwrap(), "forebay");
}
