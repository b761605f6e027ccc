//! A mount in the life of its process: what `up` and `mount` have in common.
//!
//! [`begin`] goes to the background when asked to. In the process that stays, [`Place::take`] claims the mountpoint and
//! repairs it, the command puts its parts together, and [`Place::serve`] mounts, says that it is ready, and serves until
//! a signal comes or somebody unmounts.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use forebay_client::Client;
use forebay_cluster::records::mounts::MOUNTS;
use forebay_config::{Config, Loaded, RdmaFallback, WriteMode};
use forebay_fuse::{Mount, MountOptions, ReportSource, Unmounted, mount_table};
use forebay_state::StateStore;
use forebay_state::membership::Members;
use forebay_types::FsPath;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use crate::control::Control;
use crate::exit::{Exit, Fault};
use crate::materialise_requests::MaterialiseRequests;
use crate::output::{self, JsonArg};
use crate::report::{self, Report};
use crate::signals::Signals;
use crate::state::{self, Claim, Role, RunState};
use crate::web::Web;
use crate::{assembly, cluster, daemon, local, logging, process, staged};

/// How long readers that still have files open may finish after a signal, before the process ends and they get errors.
const FINISH_WITHIN: Duration = Duration::from_secs(10);

/// Where a mounting process runs.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StayArgs {
    /// Stay in the foreground and log to standard error
    #[arg(long)]
    pub(crate) foreground: bool,
    #[command(flatten)]
    pub(crate) json: JsonArg,
    /// Set by the process that starts this one in the background
    #[arg(long = "background-child", hide = true)]
    pub(crate) background_child: bool,
}

/// What is told of a mount when it is there.
#[derive(Debug, Serialize, Deserialize)]
struct Summary {
    mountpoint: String,
    source: String,
    pid: u32,
    pid_file: PathBuf,
    log: Option<PathBuf>,
    workers: Vec<String>,
    /// What brings it the kernel's requests.
    io: Option<String>,
    /// Whether data comes over RDMA; nothing for a mount that has its worker in its own process.
    rdma: Option<String>,
    /// Where the coordinator is, if this process has one.
    coordinator: Option<String>,
    /// Where it answers to `/metrics`.
    web: Option<String>,
    /// What was found and put right on the way.
    notes: Vec<String>,
}

/// How this process is to go on.
pub(crate) enum Begun {
    /// A process in the background serves the mount: there is nothing left to do here.
    Done,
    /// This process is to serve it, logging to this file or, without one, to standard error.
    Stay {
        /// The log.
        log: Option<PathBuf>,
    },
}

/// Goes to the background, or starts logging in the process that stays.
///
/// # Errors
/// Those of the process in the background, as its own.
pub(crate) fn begin(stay: &StayArgs, loaded: &Loaded, mountpoint: &Path, doing: &str) -> anyhow::Result<Begun> {
    if stay.foreground {
        logging::start(&loaded.config)?;
        return Ok(Begun::Stay { log: loaded.config.log_file.clone() });
    }
    let log = match &loaded.config.log_file {
        Some(path) => std::path::absolute(path).with_context(|| format!("cannot resolve {}", path.display()))?,
        None => state::default_log(&resolve(mountpoint)?)?,
    };
    if stay.background_child {
        // Standard error is the log: the parent opened it.
        logging::to_stderr(&loaded.config, loaded.config.log_level)?;
        return Ok(Begun::Stay { log: Some(log) });
    }
    let summary: Summary = daemon::start(&log, doing)?;
    summary.notes.iter().for_each(|note| output::say(note));
    summary.print(stay.json.json)?;
    Ok(Begun::Done)
}

impl Summary {
    fn print(&self, json: bool) -> anyhow::Result<()> {
        let mut out = output::stdout();
        if json {
            output::json_line(&mut out, &serde_json::to_value(self)?)?;
        } else {
            writeln!(out, "{} is mounted at {}", self.source, self.mountpoint)?;
            writeln!(out, "  process  {} (pid file {})", self.pid, self.pid_file.display())?;
            if let Some(io) = &self.io {
                writeln!(out, "  served   {io}")?;
            }
            if let Some(rdma) = &self.rdma {
                writeln!(out, "  RDMA     {rdma}")?;
            }
            if let Some(log) = &self.log {
                writeln!(out, "  log      {}", log.display())?;
            }
            if let Some(coordinator) = &self.coordinator {
                writeln!(out, "  web page http://{coordinator}/")?;
            }
            writeln!(out, "  unmount  forebay umount {}", self.mountpoint)?;
        }
        Ok(out.flush()?)
    }
}

/// The mountpoint as the kernel names it, also when a dead mount is there.
///
/// # Errors
/// When it does not exist.
pub(crate) fn resolve(mountpoint: &Path) -> anyhow::Result<PathBuf> {
    let absolute =
        std::path::absolute(mountpoint).with_context(|| format!("cannot resolve {}", mountpoint.display()))?;
    match (absolute.canonicalize(), absolute.parent(), absolute.file_name()) {
        (Ok(path), _, _) => Ok(path),
        (Err(error), _, _) if error.kind() == std::io::ErrorKind::NotFound => {
            let what = format!("mountpoint {} does not exist", mountpoint.display());
            Err(Fault::new(Exit::NotFound, what, format!("create it with `mkdir -p {}`", mountpoint.display())).into())
        }
        // A dead mount cannot be looked at, but the directory that it is in can.
        (Err(error), Some(parent), Some(name))
            if matches!(error.kind(), std::io::ErrorKind::NotConnected | std::io::ErrorKind::ConnectionAborted) =>
        {
            let parent = parent.canonicalize().with_context(|| format!("cannot resolve {}", parent.display()))?;
            Ok(parent.join(name))
        }
        (Err(error), _, _) => Err(error).with_context(|| format!("cannot resolve {}", mountpoint.display())),
    }
}

/// A mountpoint that is this process's to mount on.
pub(crate) struct Place {
    mountpoint: PathBuf,
    claim: Claim,
    notes: Vec<String>,
}

/// Where a mount is found besides its mountpoint, and how it is served.
#[derive(Clone)]
struct Places {
    /// Where it answers for itself.
    control: Option<PathBuf>,
    /// Where it stages what is written.
    staging: Option<PathBuf>,
    /// Where it answers to `/metrics`.
    web: Option<String>,
    /// Where it logs.
    log: Option<PathBuf>,
    /// What brings it the kernel's requests.
    io: Option<String>,
    /// Whether data comes over RDMA.
    rdma: Option<String>,
}

/// What is to be mounted.
pub(crate) struct Offer {
    /// Whose namespace.
    pub(crate) client: Client,
    /// What `df` shows as the source.
    pub(crate) source: String,
    /// Where others reach the workers.
    pub(crate) workers: Vec<String>,
    /// The command that mounts.
    pub(crate) role: Role,
    /// The name of the worker in this process, in its cluster.
    pub(crate) node: Option<String>,
    /// Who is in the cluster, where that may change.
    pub(crate) members: Option<Arc<Members>>,
    /// Where the coordinator in this process is reached.
    pub(crate) coordinator: Option<String>,
    /// The state of the cluster, where jobs write what mounts are to keep.
    pub(crate) state: Option<Arc<dyn StateStore>>,
    /// What this process reports besides what the mount and its client do.
    pub(crate) report: ReportSource,
}

impl Place {
    /// Claims `mountpoint`, and takes away what a killed process left there.
    ///
    /// # Errors
    /// When it does not exist, or somebody serves it.
    pub(crate) fn take(mountpoint: &Path) -> anyhow::Result<Self> {
        let mountpoint = resolve(mountpoint)?;
        let claim = Claim::take(&mountpoint)?;
        let mut notes = Vec::new();
        let was = |claim: &Claim| match &claim.left_behind {
            Some(left) => format!("process {}, which was killed", left.pid),
            None => "a process that was killed".to_owned(),
        };
        if mount_table::repair(&mountpoint)? {
            notes.push(format!("repaired {}: took away the dead mount of {}", mountpoint.display(), was(&claim)));
        } else if claim.left_behind.is_some() {
            notes.push(format!("cleaned up after {} and had served {}", was(&claim), mountpoint.display()));
        }
        for note in &notes {
            warn!("{note}");
        }
        Ok(Self { mountpoint, claim, notes })
    }

    /// Where it is.
    pub(crate) fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Mounts, and serves until the mount has ended.
    ///
    /// # Errors
    /// When the workers do not answer, or it cannot be mounted.
    pub(crate) async fn serve(
        &self,
        offer: &Offer,
        loaded: &Loaded,
        log: Option<PathBuf>,
        in_background: bool,
        signals: &mut Signals,
    ) -> anyhow::Result<()> {
        let staging = match loaded.config.write_mode {
            WriteMode::Through => Some(staged::directory(&loaded.config)?),
            WriteMode::None => None,
        };
        let mount = signals.unless_any(self.mount(offer, loaded, staging.clone())).await?;
        let socket = self.claim.control_socket();
        let local = local::Answerer::new(mount.local_files(), &loaded.config);
        let control = Control::serve(&socket, mount.reporter(), mount.refresher(), local);
        if let Err(error) = &control {
            warn!(error = format!("{error:#}"), "`forebay stats` will not show this mount's own counters");
        }
        let requests = self.materialise_requests(offer, loaded, &mount);
        let web = Web::of_mount(loaded, mount.reporter()).await;
        let advertised = web.as_ref().map(|web| web.advertised.clone());
        let report = Report::of(&mount.reporter()()).unwrap_or_default();
        let io = report.fuse.and_then(|fuse| fuse.io).map(|io| io.to_string());
        let rdma = (offer.role == Role::Mount).then(|| rdma_in_use(&loaded.config, report.rdma.as_ref()));
        let places = Places { control: control.is_ok().then_some(socket), staging, web: advertised, log, io, rdma };
        let notes = self.notes.iter().cloned().chain(nothing_mounted(offer, &loaded.config).await).collect();
        self.announce(offer, loaded, &places, notes, in_background)?;
        tokio::select! {
            () = mount.wait() => info!("unmounted from outside"),
            signal = signals.next() => {
                info!(signal, "unmounting");
                if let Some(web) = &web {
                    web.missing("mount", "it is being unmounted");
                }
                end(mount, signals).await?;
            }
        }
        if let Some(requests) = requests {
            requests.close().await;
        }
        let mountpoint = self.mountpoint.display().to_string();
        if let Some(left) = staged::left_behind(places.staging.as_deref(), &offer.source, &mountpoint) {
            warn!("{left}");
        }
        if let Ok(control) = control {
            control.close().await;
        }
        if let Some(web) = web {
            web.close().await;
        }
        Ok(())
    }

    /// Follows what jobs want the mount to keep, if it keeps files and there is a cluster to tell of them.
    fn materialise_requests(&self, offer: &Offer, loaded: &Loaded, mount: &Mount) -> Option<MaterialiseRequests> {
        let (store, files) = (Arc::clone(offer.state.as_ref()?), mount.local_files()?);
        if files.why_off().is_some() {
            return None;
        }
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let name = format!("{host}:{}", self.mountpoint.display());
        Some(MaterialiseRequests::follow(store, name, loaded.config.cluster_lease_ttl, files))
    }

    async fn mount(&self, offer: &Offer, loaded: &Loaded, staging: Option<PathBuf>) -> anyhow::Result<Mount> {
        // An origin that refuses us is better met here than in the first program that reads.
        let root = offer.client.list(&FsPath::root(), None, 1, false).await;
        root.map_err(|failure| failure.context("cannot list the root"))?;
        let options = assembly::mount_options(loaded, offer.source.clone());
        let (counted, known, members) = (offer.report.clone(), offer.client.clone(), offer.members.clone());
        let report = ReportSource::new(move || {
            let mut report = counted.report();
            report["cluster"] = cluster::report(&known.topology(), members.as_deref());
            report
        });
        let owner = staged::owner(&offer.source, &self.mountpoint.display().to_string());
        let writing = staging.map(|directory| assembly::writing_options(&loaded.config, directory, owner));
        let local = local::options(&loaded.config, &self.mountpoint);
        let options = MountOptions { report, writing, local, ..options };
        let (client, mountpoint) = (offer.client.clone(), self.mountpoint.clone());
        let runtime = tokio::runtime::Handle::current();
        let started = tokio::task::spawn_blocking(move || Mount::start(client, runtime, &mountpoint, &options)).await;
        Ok(started.context("mounting panicked")??)
    }

    /// Publishes the run state, and tells the process that waits for us.
    fn announce(
        &self,
        offer: &Offer,
        loaded: &Loaded,
        places: &Places,
        notes: Vec<String>,
        in_background: bool,
    ) -> anyhow::Result<()> {
        let Places { control, staging, web, log, io, rdma } = places.clone();
        let pid = std::process::id();
        let mountpoint = self.mountpoint.display().to_string();
        self.claim.publish(&RunState {
            pid,
            process_started: process::started(pid).unwrap_or_default(),
            role: offer.role,
            mountpoint: mountpoint.clone(),
            source: offer.source.clone(),
            workers: offer.workers.clone(),
            coordinator: offer.coordinator.clone(),
            web: web.clone(),
            control,
            staging,
            cluster: Some(loaded.config.cluster_name.as_str().to_owned()),
            node: offer.node.clone(),
            block_size: loaded.config.block_size.as_u64(),
            log: log.clone(),
            since: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        })?;
        let workers = offer.workers.join(",");
        info!(mountpoint, source = offer.source, workers, rdma, "ready");
        if in_background {
            let (source, workers) = (offer.source.clone(), offer.workers.clone());
            let pid_file = self.claim.pid_file().to_owned();
            let coordinator = offer.coordinator.clone();
            daemon::ready(&Summary {
                mountpoint,
                source,
                pid,
                pid_file,
                log,
                workers,
                io,
                rdma,
                coordinator,
                web,
                notes,
            })?;
        }
        Ok(())
    }
}

/// That the cluster shows nothing yet, which a person who mounts it takes for an empty bucket.
async fn nothing_mounted(offer: &Offer, config: &Config) -> Option<String> {
    let state = offer.state.as_ref().filter(|_| offer.role == Role::Mount)?;
    // Workers may show mounts of their own configuration. A state that does not answer says nothing.
    let shown = offer.client.list(&FsPath::root(), None, 1, false).await.ok()?;
    let mounts = state.list(MOUNTS).await.ok()?;
    if !shown.entries.is_empty() || !mounts.entries.is_empty() {
        return None;
    }
    let note = format!(
        "nothing is mounted in the cluster {} yet: show a bucket with `forebay mounts add /s3 s3://BUCKET/PREFIX`",
        config.cluster_name.as_str()
    );
    warn!("{note}");
    Some(note)
}

/// Whether data comes over RDMA, from the workers that have been asked so far.
fn rdma_in_use(config: &Config, report: Option<&report::Rdma>) -> String {
    if !config.network_rdma_data_enabled {
        return "not used: data goes over TCP (`--rdma-network INTERFACE` turns it on)".to_owned();
    }
    let workers = report.map(|report| report.workers.as_slice()).unwrap_or_default();
    let paths: Vec<&report::Path> = workers.iter().flat_map(|worker| &worker.data).filter(|path| path.rdma).collect();
    let mut up: Vec<&str> = paths.iter().filter(|path| path.up).map(|path| path.path.as_str()).collect();
    up.sort_unstable();
    up.dedup();
    if !up.is_empty() {
        return format!("used: {}", up.join(", "));
    }
    let cause = paths.iter().find_map(|path| path.cause.as_deref()).unwrap_or("the workers do not offer it");
    match config.network_rdma_data_fallback {
        RdmaFallback::Never => format!("down, and reads fail, as network.rdma.data.fallback is \"never\": {cause}"),
        RdmaFallback::Auto | RdmaFallback::TcpAtStart => format!("not used, data goes over TCP: {cause}"),
    }
}

/// Unmounts. Readers may finish for a while; a second signal ends that.
async fn end(mut mount: Mount, signals: &mut Signals) -> anyhow::Result<()> {
    let finish = async {
        if mount.unmount().await? == Unmounted::Detached
            && tokio::time::timeout(FINISH_WITHIN, mount.wait()).await.is_err()
        {
            warn!("files are still open below the mount: their readers get errors from now on");
        }
        anyhow::Ok(())
    };
    tokio::select! {
        finished = finish => finished,
        signal = signals.next() => {
            warn!(signal, "ending at once");
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_says_whether_rdma_is_in_use_and_why_not() {
        let report = |up: bool| {
            let tcp = report::Path { path: "tcp".to_owned(), rdma: false, up: true, cause: None };
            let cause = (!up).then(|| "no route".to_owned());
            let card = report::Path { path: "mlx5_0:1".to_owned(), rdma: true, up, cause };
            let data = vec![card, tcp];
            report::Rdma {
                workers: vec![report::WorkerPaths { worker: "node1:29999".to_owned(), data }],
                ..Default::default()
            }
        };
        let mut config = Config::default();
        assert!(rdma_in_use(&config, Some(&report(true))).starts_with("not used: data goes over TCP"));
        config.network_rdma_data_enabled = true;
        assert_eq!(rdma_in_use(&config, Some(&report(true))), "used: mlx5_0:1");
        assert_eq!(rdma_in_use(&config, Some(&report(false))), "not used, data goes over TCP: no route");
        assert!(rdma_in_use(&config, None).ends_with("the workers do not offer it"));
        config.network_rdma_data_fallback = RdmaFallback::Never;
        assert!(rdma_in_use(&config, Some(&report(false))).contains("reads fail"));
    }
}
