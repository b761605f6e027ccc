//! The processes of a matrix: a worker, and mounts, of this same program.
//!
//! **Whose configuration.** They are told everything by a file that is made for them, so that they neither join the cluster
//! that this machine is set up for, nor differ from what its network, cards and origins need: of what is configured, the parts
//! about those are taken over, and whatever was said by `-o`.
//!
//! **How they end.** All of them are children of this program, mounts too: see [`super::process`]. Their files are in one directory:
//! see [`super::place`].

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use forebay_benchmark::read::Made;
use forebay_config::{Loaded, Origin};
use forebay_fuse::mount_table;
use forebay_types::ByteSize;
use serde_json::Value;

use super::figures::Figures;
use super::place;
use super::process::{Children, Process};
use crate::exit::{Exit, Fault};

/// What a worker prints, and where.
const LISTENING: &str = "worker listening on ";
/// What a mount logs when it is there.
const READY: &str = " ready mountpoint=";
/// How long a worker may take to listen, and a mount to be there: they take and register their memory.
const START_WITHIN: Duration = Duration::from_secs(120);
/// How often something is looked at that cannot be waited for.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Lines of a log that are shown when a process fails.
const SHOWN: usize = 12;
/// UCX between processes of one machine, without a card. Its listener needs `tcp`.
const WITHOUT_CARD: &str = "sysv,cma,tcp,self";

/// The sections of a configuration that are about this machine, its network and its origins.
const TAKEN: [&str; 7] = ["network.", "ucx.", "origin.", "block.", "client.", "fuse.", "metadata."];
/// And those that an existing cluster wants its clients to have.
const OF_CLUSTER: [&str; 2] = ["cluster.name", "cluster.cache_group"];
/// What this benchmark decides, whatever is configured.
const OURS: [&str; 5] = ["log.", "client.web.", "mounts", "cluster.workers", "cluster.etcd."];

/// Which transport a mount is to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    /// TCP.
    Tcp,
    /// UCX, and nothing else: a mount that cannot fails.
    Ucx,
    /// Verbs, in the same way.
    Verbs,
}

/// What a mount is told that uses verbs, and a worker that it does.
const VERBS: [&str; 2] = ["network.rdma.data.enabled=true", "network.rdma.data.provider=verbs"];

/// Where and how the processes run.
pub(super) struct Site {
    program: PathBuf,
    config: PathBuf,
    /// Settings of both sides when UCX is used.
    ucx: Vec<String>,
    workers: Vec<String>,
    worker: Option<Process>,
    children: Arc<Children>,
    stop: Arc<AtomicBool>,
    /// How many there were.
    mounts: Cell<u32>,
    made: Made,
    directory: PathBuf,
}

/// What a site is made of.
pub(super) struct Options<'a> {
    /// What is configured.
    pub(super) loaded: &'a Loaded,
    /// Workers that exist; none: one is started.
    pub(super) workers: Vec<String>,
    /// Whether this machine has a card.
    pub(super) has_card: bool,
    /// The processes that were started.
    pub(super) children: Arc<Children>,
    /// Set when all of it is to end.
    pub(super) stop: Arc<AtomicBool>,
}

impl Site {
    /// A directory for everything, and the configuration in it.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(super) fn new(options: Options<'_>) -> anyhow::Result<Self> {
        let Options { loaded, workers, has_card, children, stop } = options;
        let program = std::env::current_exe().context("cannot find the program's own file")?;
        let text = configuration(loaded, !workers.is_empty());
        let said = &loaded.config;
        let chosen = !said.network_rdma_data_transports.is_empty()
            || !said.network_rdma_data_network.is_empty()
            || !said.network_rdma_data_bind_device.is_empty();
        // What is called UCX is to be UCX.
        let mut ucx = vec!["network.rdma.data.enabled=true".to_owned(), "network.rdma.data.provider=ucx".to_owned()];
        if !chosen && !has_card {
            ucx.push(format!("network.rdma.data.transports={WITHOUT_CARD}"));
            ucx.push("network.rdma.data.bind.host=127.0.0.1".to_owned());
        }
        let made = place::make()?;
        let (mounts, directory) = (Cell::new(0), made.of_processes());
        let config = directory.join("forebay.toml");
        let site = Self { program, config, ucx, workers, worker: None, children, stop, mounts, made, directory };
        // From here on it is removed, whatever happens.
        std::fs::write(&site.config, text).context("cannot write a configuration")?;
        Ok(site)
    }

    /// The name of all that this run makes.
    pub(super) fn made(&self) -> &Made {
        &self.made
    }

    /// The directory of the origin of a worker that has no other.
    pub(super) fn origin(&self) -> PathBuf {
        self.directory.join("origin")
    }

    /// The number of the worker that was started here.
    pub(super) fn worker_pid(&self) -> Option<u32> {
        self.worker.as_ref().map(Process::pid)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        for (name, _) in std::env::vars_os() {
            // All of it is in the file.
            if name.to_string_lossy().starts_with("FOREBAY_") {
                command.env_remove(&name);
            }
        }
        command.args(arguments).arg("--config").arg(&self.config).stdin(Stdio::null());
        command
    }

    /// Starts a worker of `origin` with this much memory, in place of the one before. It serves UCX, too, if that is wanted.
    ///
    /// # Errors
    /// When it does not start; with what it said.
    pub(super) fn start_worker(&mut self, origin: &str, memory: ByteSize, with: &[Transport]) -> anyhow::Result<()> {
        self.worker = None;
        self.workers.clear();
        let log = self.directory.join("worker.log");
        let log_file = File::create(&log).context("cannot write the worker's log")?;
        let mut settings = vec![
            format!("mounts=/={origin}"),
            format!("worker.memory.size={memory}"),
            // The first reading takes it, which is not measured; taking all of it in the background might be.
            "worker.memory.prewarm=false".to_owned(),
            "worker.rpc.bind.host=127.0.0.1".to_owned(),
            "worker.hostname=127.0.0.1".to_owned(),
            "worker.rpc.port=0".to_owned(),
            "worker.web.port=0".to_owned(),
        ];
        let (with_ucx, with_verbs) = (with.contains(&Transport::Ucx), with.contains(&Transport::Verbs));
        if with_ucx {
            settings.extend(self.ucx.iter().cloned());
        }
        if with_verbs {
            settings.extend(VERBS.map(str::to_owned));
        }
        if with_ucx && with_verbs {
            // The last one counts.
            settings.push("network.rdma.data.provider=auto".to_owned());
        }
        if with_ucx || with_verbs {
            settings.extend(["network.rdma.data.port=0", "network.rdma.metadata.port=0"].map(str::to_owned));
        }
        let mut command = self.command(&["worker"]);
        command.args(settings.iter().flat_map(|setting| ["-o", setting]));
        command.stdout(Stdio::null()).stderr(log_file);
        let mut worker = Process::start(&mut command, &self.children).context("cannot start a worker")?;
        let deadline = Instant::now() + START_WITHIN;
        loop {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let address = text.lines().find_map(|line| line.split_once(LISTENING)?.1.split_whitespace().next());
            if let Some(address) = address {
                self.workers = vec![address.to_owned()];
                self.worker = Some(worker);
                return Ok(());
            }
            if worker.has_ended()? || Instant::now() > deadline {
                let what = format!("the worker does not start; it says:\n{}", tail(&text));
                let next = "mend what it says; `--transports tcp` measures without UCX and verbs";
                return Err(Fault::new(Exit::Failed, what, next).into());
            }
            self.unless_stopped()?;
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Ends the worker.
    pub(super) fn end_worker(&mut self) {
        self.worker = None;
    }

    /// Fails when everything is to end.
    ///
    /// # Errors
    /// The interruption.
    pub(super) fn unless_stopped(&self) -> anyhow::Result<()> {
        anyhow::ensure!(!self.stop.load(Ordering::Relaxed), "interrupted");
        Ok(())
    }

    /// A mount that can be written to, over TCP.
    ///
    /// # Errors
    /// When it cannot mount.
    pub(super) fn writable(&self) -> anyhow::Result<Mount> {
        let staging = format!("write.staging_dir={}", self.directory.join("staging").display());
        let mut mounts = self.start_mounts(1, Transport::Tcp, &["-o", &staging])?;
        mounts.pop().context("no mount was started")
    }

    /// Mounts that read by `transport`, all at once.
    ///
    /// # Errors
    /// When one cannot mount; with what it said.
    pub(super) fn mounts(&self, count: u32, transport: Transport) -> anyhow::Result<Vec<Mount>> {
        self.start_mounts(count, transport, &["--read-only"])
    }

    fn start_mounts(&self, count: u32, transport: Transport, more: &[&str]) -> anyhow::Result<Vec<Mount>> {
        let mut settings = match transport {
            Transport::Tcp => vec!["network.rdma.data.enabled=false".to_owned()],
            Transport::Ucx => [&self.ucx[..], &["network.rdma.data.fallback=never".to_owned()]].concat(),
            Transport::Verbs => {
                VERBS.into_iter().chain(["network.rdma.data.fallback=never"]).map(str::to_owned).collect()
            }
        };
        if transport == Transport::Tcp {
            settings.push("network.rdma.metadata.enabled=false".to_owned());
        }
        // It is about what is sent, and the workers may be on this host.
        settings.push("network.shared_memory=off".to_owned());
        settings.extend(["client.web.port=0", "client.web.bind.host=127.0.0.1", "log.level=info"].map(str::to_owned));
        let mut starting = Vec::new();
        for _ in 0..count {
            let number = self.mounts.replace(self.mounts.get() + 1);
            let path = place::mountpoint(&self.directory, number);
            std::fs::create_dir(&path).context("cannot make a mountpoint")?;
            let errors = File::create(path.with_extension("errors")).context("cannot write a mount's errors")?;
            let mut command = self.command(&["mount"]);
            command.arg(&path).args(["--foreground", "--workers", &self.workers.join(",")]).args(more);
            command.args(settings.iter().flat_map(|setting| ["-o", setting]));
            let mut log_setting = OsString::from("log.file=");
            log_setting.push(path.with_extension("log"));
            command.args([OsStr::new("-o"), &log_setting]).stdout(Stdio::null()).stderr(errors);
            let process = Process::start(&mut command, &self.children).context("cannot start a mount")?;
            starting.push(Mount { path, process: Some(process) });
        }
        for mount in &mut starting {
            self.wait_for(mount)?;
        }
        Ok(starting)
    }

    fn wait_for(&self, mount: &mut Mount) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_WITHIN;
        while !mount.log().contains(READY) {
            if mount.has_ended()? || Instant::now() > deadline {
                let errors = std::fs::read_to_string(mount.path.with_extension("errors")).unwrap_or_default();
                let what = format!("a mount does not start; it says:\n{}", tail(&[mount.log(), errors].concat()));
                return Err(Fault::new(Exit::Failed, what, "mend what it says").into());
            }
            self.unless_stopped()?;
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Seconds of processors that workers have used, by their own account. None where one does not say.
    pub(super) fn workers_seconds(&self) -> Option<Figures> {
        self.of_workers(|counters| counters.pointer("/process/cpu_seconds")?.as_f64())
    }

    /// Bytes that the workers have fetched from their origins.
    pub(super) fn fetched(&self) -> Option<Figures> {
        self.of_workers(|counters| {
            let origins = counters["origins"].as_array()?;
            origins.iter().map(|origin| origin.pointer("/counts/bytes")?.as_f64()).sum()
        })
    }

    fn of_workers(&self, figure: impl Fn(&Value) -> Option<f64>) -> Option<Figures> {
        let mut command = self.command(&["stats", "--all", "--json", "--workers", &self.workers.join(",")]);
        let output = command.stderr(Stdio::null()).output().ok().filter(|output| output.status.success())?;
        let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let of_worker = |line| {
            let counters: Value = serde_json::from_slice(line).ok()?;
            Some((counters["name"].as_str()?.to_owned(), figure(&counters)?))
        };
        let figures: BTreeMap<String, f64> = lines.map(of_worker).collect::<Option<_>>()?;
        (!figures.is_empty()).then_some(Figures(figures))
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.worker = None;
        if let Err(error) = place::remove(&self.directory, Duration::ZERO) {
            tracing::warn!(error = format!("{error:#}"), directory = %self.directory.display(), "not all is removed");
        }
    }
}

/// A mount, which ends when it is dropped.
pub(super) struct Mount {
    path: PathBuf,
    /// The process that serves it, until then.
    process: Option<Process>,
}

impl Mount {
    /// Where the files are.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The process that serves it; 0 when it has ended.
    pub(super) fn pid(&self) -> u32 {
        self.process.as_ref().map_or(0, Process::pid)
    }

    fn has_ended(&mut self) -> anyhow::Result<bool> {
        self.process.as_mut().map_or(Ok(true), Process::has_ended)
    }

    /// What it counts.
    ///
    /// # Errors
    /// When it does not answer.
    pub(super) fn counters(&self) -> anyhow::Result<Value> {
        let file = self.path.join(".stats.json");
        let text = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is not JSON", file.display()))
    }

    /// What it has logged.
    pub(super) fn log(&self) -> String {
        std::fs::read_to_string(self.path.with_extension("log")).unwrap_or_default()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.process = None;
        // One that was killed leaves a dead mount. What cannot be taken away is told when its directory is to go.
        let _ = mount_table::repair(&self.path);
        let _ = std::fs::remove_dir(&self.path);
    }
}

/// The configuration of all processes, as a file.
fn configuration(loaded: &Loaded, existing: bool) -> Vec<u8> {
    let mut text = Vec::new();
    for row in loaded.show() {
        let begins = |with: &[&str]| with.iter().any(|beginning| row.key.starts_with(beginning));
        let said = matches!(row.origin, Origin::Flag { .. });
        let taken = row.origin != Origin::Default && (said || begins(&TAKEN) || (existing && begins(&OF_CLUSTER)));
        if let Some(value) = row.value.as_ref().filter(|_| taken && !begins(&OURS)) {
            // Writing to memory cannot fail.
            let _ = writeln!(text, "{} = {value}", row.key);
        }
    }
    text
}

/// The last lines of a log.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(SHOWN)..].join("\n")
}

#[cfg(test)]
mod tests {
    use forebay_config::{Config, Sources};

    use super::*;

    #[test]
    fn of_what_is_configured_network_and_origin_are_taken_over_and_the_cluster_is_not() {
        let file = "\
cluster.name = \"mine\"
cluster.etcd.endpoints = [\"http://etcd:2379\"]
mounts = [\"/=s3://bucket\"]
worker.disks = [\"/nvme:1TiB\"]
log.level = \"debug\"
network.rdma.data.network = [\"ib0\"]
origin.s3.endpoint = \"http://127.0.0.1:9000\"
client.web.port = 1
";
        let sources = Sources::new().text("test", file).flags(["worker.memory.huge_pages=false", "log.format=json"]);
        let loaded = Config::load(&sources).unwrap();
        let text = |existing| String::from_utf8(configuration(&loaded, existing)).unwrap();
        let mut lines: Vec<String> = text(false).lines().map(str::to_owned).collect();
        lines.sort();
        let expected = [
            "network.rdma.data.network = [\"ib0\"]",
            "origin.s3.endpoint = \"http://127.0.0.1:9000\"",
            "worker.memory.huge_pages = false",
        ];
        assert_eq!(lines, expected);
        assert!(text(true).contains("cluster.name = \"mine\"") && !text(true).contains("etcd"));
        assert!(Config::load(&Sources::new().text("again", text(true))).is_ok());
    }

    #[test]
    fn the_end_of_a_log_is_shown() {
        let log: String = (0..100).map(|line| format!("{line}\n")).collect();
        assert!(tail(&log).starts_with("88\n") && tail(&log).ends_with("\n99"));
        assert_eq!(tail(""), "");
    }
}
