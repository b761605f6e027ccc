//! A mount in the life of its process: mounted, found by commands, and ended.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use forebay_client::Client;
use forebay_cluster::records::mounts::MOUNTS;
use forebay_config::{Config, Loaded, RdmaFallback, WriteMode};
use forebay_fuse::{HandOver, Mount, MountError, MountOptions, ReportSource, Successor, Survival, Unmounted};
use forebay_handover::{Given, Held, Identity, Keeps, spend};
use forebay_metrics::Readiness;
use forebay_state::StateStore;
use forebay_state::membership::Members;
use forebay_types::FsPath;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::clients::LinkReports;
use crate::control::{Asked, Control};
use crate::error::{Exit, Fault};
use crate::keeping::Left;
use crate::local::Automatic;
use crate::materialise_requests::MaterialiseRequests;
use crate::mountpoint::Place;
use crate::page::PageToken;
use crate::report::{self, Report};
use crate::state::{Role, RunState};
use crate::web::Web;
use crate::{assembly, cluster, local, staged};

/// How long readers that still have files open may finish, before the process ends and they get errors.
const FINISH_WITHIN: Duration = Duration::from_secs(10);

/// What is to be mounted.
pub(crate) struct Offer {
    /// Whose namespace.
    pub(crate) client: Client,
    /// What `df` shows as the source.
    pub(crate) source: String,
    /// Where others reach the workers.
    pub(crate) workers: Vec<String>,
    /// Their names in the certificates that they show, by address, where these are known.
    pub(crate) identities: BTreeMap<String, String>,
    /// The command that mounts.
    pub(crate) role: Role,
    /// The name of the worker in this process, in its cluster.
    pub(crate) node: Option<String>,
    /// The members of the cluster, where they may change.
    pub(crate) members: Option<Arc<Members>>,
    /// Where the coordinator in this process is reached.
    pub(crate) coordinator: Option<String>,
    /// The URL of its web page, with what that demands.
    pub(crate) page: Option<String>,
    /// Where the S3 endpoint in this process listens.
    pub(crate) s3: Option<String>,
    /// What the pages of a standalone node demand; without, it has none.
    pub(crate) token: Option<PageToken>,
    /// The state of the cluster, where jobs write what mounts are to keep.
    pub(crate) state: Option<Arc<dyn StateStore>>,
    /// What this process reports besides what the mount and its client do.
    pub(crate) report: ReportSource,
    /// What is counted of the client's links.
    pub(crate) links: LinkReports,
    /// Where the process logs, if that is a file.
    pub(crate) log: Option<PathBuf>,
    /// Where materialised files have their room from if no size of theirs is set.
    pub(crate) room: Automatic,
}

/// What is told of a mount when it is there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MountSummary {
    /// Where it is mounted.
    pub mountpoint: String,
    /// What `df` shows as its source.
    pub source: String,
    /// The process that serves it.
    pub pid: u32,
    /// The file with that process's id.
    pub pid_file: PathBuf,
    /// Where it logs; `None`: to its standard error.
    pub log: Option<PathBuf>,
    /// Where others reach its workers.
    pub workers: Vec<String>,
    /// What brings it the kernel's requests.
    pub io: Option<String>,
    /// Whether the kernel serves files by itself that are read again, or why not.
    #[serde(default)]
    pub passthrough: Option<String>,
    /// Whether data comes over RDMA; nothing for a mount that has its worker in its own process.
    pub rdma: Option<String>,
    /// Where the coordinator is, if this process has one: `HOST:PORT`, or `unix:PATH`.
    pub coordinator: Option<String>,
    /// The URL of its web page. Whoever has it may do everything there: it is for the one who asked for the page.
    #[serde(default)]
    pub page: Option<String>,
    /// Where the S3 endpoint is, if this process has one.
    #[serde(default)]
    pub s3: Option<String>,
    /// Where it answers to `/metrics`.
    pub web: Option<String>,
    /// What was found and put right on the way.
    pub notes: Vec<String>,
}

/// A mount that is served.
pub(crate) struct Mounted {
    mount: Mount,
    control: Option<Control>,
    requests: Option<MaterialiseRequests>,
    web: Option<Web>,
    staging: Option<PathBuf>,
    summary: MountSummary,
}

impl Mounted {
    /// Serves what commands ask of the mount that [`mount`] made at `place`, and publishes how they find it.
    ///
    /// # Errors
    /// When that cannot be published.
    pub(crate) async fn start(mount: Mount, place: &Place, offer: &Offer, loaded: &Loaded) -> anyhow::Result<Self> {
        let staging = staging(&loaded.config)?;
        let (socket, asked) = match offer.role {
            Role::Up => (place.claim.private_sockets().control.clone(), Asked::ByOwner),
            Role::Mount => (place.claim.control_socket(), Asked::ByAll),
        };
        let passthrough = local::told(mount.local_files().as_ref(), &loaded.config, &offer.room);
        let local = local::Answerer::new(mount.local_files(), &loaded.config, &offer.room);
        let control = Control::serve(&socket, asked, mount.reporter(), mount.refresher(), local);
        if let Err(error) = &control {
            warn!(error = format!("{error:#}"), "`forebay stats` will not show this mount's own counters");
        }
        let requests = materialise_requests(place, offer, loaded, &mount);
        let web = match (offer.role, &offer.token) {
            (Role::Up, None) => None,
            (_, token) => Web::of_mount(loaded, mount.reporter(), token.as_ref()).await,
        };
        let report = Report::of(&mount.reporter()()).unwrap_or_default();
        let notes = place.notes.iter().cloned().chain(nothing_mounted(offer, &loaded.config).await).collect();
        let summary = MountSummary {
            mountpoint: place.mountpoint().display().to_string(),
            source: offer.source.clone(),
            pid: std::process::id(),
            pid_file: place.claim.pid_file().to_owned(),
            log: offer.log.clone(),
            workers: offer.workers.clone(),
            io: report.fuse.and_then(|fuse| fuse.io).map(|io| io.to_string()),
            passthrough: Some(passthrough),
            rdma: (offer.role == Role::Mount).then(|| rdma_in_use(&loaded.config, report.rdma.as_ref())),
            coordinator: offer.coordinator.clone(),
            page: offer.page.clone(),
            s3: offer.s3.clone(),
            web: web.as_ref().map(|web| web.advertised.clone()),
            notes,
        };
        let mounted = Self { mount, control: control.ok(), requests, web, staging, summary };
        match mounted.publish(place, offer, loaded, socket) {
            Ok(()) => Ok(mounted),
            Err(error) => {
                // That it cannot be found is what is told.
                let _ = mounted.close(&CancellationToken::new()).await;
                Err(error)
            }
        }
    }

    /// What its `/readyz` says is missing, where it has one.
    pub(crate) fn readiness(&self) -> Option<Readiness> {
        self.web.as_ref().map(Web::readiness)
    }

    /// Publishes the run state.
    fn publish(&self, place: &Place, offer: &Offer, loaded: &Loaded, socket: PathBuf) -> anyhow::Result<()> {
        let MountSummary { mountpoint, source, pid, log, workers, coordinator, web, rdma, passthrough, .. } =
            self.summary.clone();
        let listed = workers.join(",");
        place.claim.publish(&RunState {
            pid,
            process_started: forebay_metrics::process_started(pid).unwrap_or_default(),
            role: offer.role,
            mountpoint: mountpoint.clone(),
            source: source.clone(),
            workers,
            identities: offer.identities.clone(),
            coordinator,
            web,
            control: self.control.is_some().then_some(socket),
            staging: self.staging.clone(),
            cluster: Some(loaded.config.cluster_name.as_str().to_owned()),
            node: offer.node.clone(),
            block_size: loaded.config.block_size.as_u64(),
            log,
            since: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        })?;
        info!(mountpoint, source, workers = listed, rdma, passthrough, "ready");
        Ok(())
    }

    /// What is told of it.
    pub(crate) fn summary(&self) -> &MountSummary {
        &self.summary
    }

    /// What it takes to give it to another process.
    pub(crate) fn hand_over(&self) -> HandOver {
        self.mount.hand_over()
    }

    /// Waits until it was unmounted from outside, or another process serves it.
    pub(crate) async fn ended(&self) {
        self.mount.wait().await;
    }

    /// Ends while another process may serve the mount, so without unmounting.
    ///
    /// # Errors
    /// Always: if that process dies, too, the mount is dead.
    pub(crate) async fn abandon(self) -> anyhow::Result<()> {
        self.mount.abandon();
        let MountSummary { mountpoint, .. } = self.summary.clone();
        let at_once = CancellationToken::new();
        at_once.cancel();
        self.close(&at_once).await?;
        let what = format!("{mountpoint} was being given to another process, which did not say that it serves it");
        let remedy = format!("look whether it does; if not: forebay umount {mountpoint}, and mount it again");
        Err(Fault::new(Exit::Failed, what, remedy).into())
    }

    /// Unmounts. Readers may finish for a while; `at_once` ends that.
    ///
    /// # Errors
    /// When it cannot be unmounted. The rest is ended all the same.
    pub(crate) async fn close(self, at_once: &CancellationToken) -> anyhow::Result<()> {
        if let Some(web) = &self.web {
            web.missing("mount", "it is being unmounted");
        }
        let unmounted = unmount(self.mount, at_once).await;
        if let Some(requests) = self.requests {
            requests.close().await;
        }
        let MountSummary { source, mountpoint, .. } = &self.summary;
        if let Some(left) = staged::left_behind(self.staging.as_deref(), source, mountpoint) {
            warn!("{left}");
        }
        if let Some(control) = self.control {
            control.close().await;
        }
        if let Some(web) = self.web {
            web.close().await;
        }
        unmounted
    }
}

async fn unmount(mut mount: Mount, at_once: &CancellationToken) -> anyhow::Result<()> {
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
        () = at_once.cancelled() => Ok(()),
    }
}

/// Follows what jobs want the mount to keep, if it keeps files and there is a cluster to tell of them.
fn materialise_requests(place: &Place, offer: &Offer, loaded: &Loaded, mount: &Mount) -> Option<MaterialiseRequests> {
    let (store, files) = (Arc::clone(offer.state.as_ref()?), mount.local_files()?);
    // What such a mount takes by itself is a small share of its machine, for what is read there: a job that wants models on all nodes
    // would fail for want of room.
    let is_small = loaded.config.client_local_size.is_none() && matches!(offer.room, Automatic::Own);
    if is_small || files.why_off().is_some() {
        return None;
    }
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let name = format!("{host}:{}", place.mountpoint().display());
    Some(MaterialiseRequests::follow(store, name, loaded.config.cluster_lease_ttl, files))
}

/// Where what is written waits for the origin, if anything is.
///
/// # Errors
/// When no directory for it can be made.
pub(crate) fn staging(config: &Config) -> anyhow::Result<Option<PathBuf>> {
    match config.write_mode {
        WriteMode::Through => staged::directory(config).map(Some),
        WriteMode::None => Ok(None),
    }
}

/// Mounts at `mountpoint`; with `survival`, for longer than this process may live.
///
/// # Errors
/// When the workers do not answer, or it cannot be mounted.
pub(crate) async fn mount(
    mountpoint: &Path,
    offer: &Offer,
    loaded: &Loaded,
    survival: Option<Survival>,
) -> anyhow::Result<Mount> {
    let options = MountOptions { survival, ..options(mountpoint, offer, loaded).await? };
    let (client, mountpoint) = (offer.client.clone(), mountpoint.to_owned());
    let runtime = tokio::runtime::Handle::current();
    let started = tokio::task::spawn_blocking(move || Mount::start(client, runtime, &mountpoint, &options)).await;
    Ok(started.context("mounting panicked")??)
}

/// Makes ready to serve the mount that another process serves at `mountpoint`, or served.
///
/// # Errors
/// When the workers do not answer, or a directory cannot be used.
pub(crate) async fn prepare(
    mountpoint: &Path,
    offer: &Offer,
    loaded: &Loaded,
    survival: Option<Survival>,
) -> anyhow::Result<Successor> {
    let options = MountOptions { survival, ..options(mountpoint, offer, loaded).await? };
    let (client, mountpoint) = (offer.client.clone(), mountpoint.to_owned());
    let runtime = tokio::runtime::Handle::current();
    let preparing = move || Successor::prepare(client, runtime, &mountpoint, &options);
    Ok(tokio::task::spawn_blocking(preparing).await.context("preparing the mount panicked")??)
}

/// Serves what `held` has of the process before, and waits until that one has let go of everything else.
///
/// # Errors
/// When it cannot be served: the process before serves on then, if it can.
pub(crate) async fn succeed(successor: Successor, held: Held) -> anyhow::Result<Mount> {
    let serving = move || {
        // The last one that goes: by its end the process before learns that nobody serves.
        let Held { state, connection, written, mut holding } = held;
        let mount = successor.serve(Given { state, connection, written }, || holding.serves())?;
        let released = holding.released();
        mount.keep_again();
        mount.answers()?;
        Ok::<_, MountError>((mount, released))
    };
    let (mount, released) = tokio::task::spawn_blocking(serving).await.context("serving the mount panicked")??;
    if let Err(why) = released {
        warn!(%why, "the mount is served");
    }
    Ok(mount)
}

/// Serves what is left of the mount of a process that has ended. `released`: who kept it, and is to keep it no more.
///
/// # Errors
/// When it cannot be served: it is kept, for another try.
pub(crate) async fn recover(
    successor: Successor,
    left: Left,
    released: Option<Arc<dyn Keeps>>,
) -> anyhow::Result<Mount> {
    let serving = move || {
        let memory = left.kept.memory.try_clone();
        let memory = memory.map_err(|error| MountError::Io { action: "duplicate a descriptor".to_owned(), error })?;
        // Before the first answer: from then on the state that is kept is older than what the kernel knows. Whoever keeps it may not
        // hear of that in time.
        let begins = move || {
            let Some(keeper) = released else { return };
            if let Err(error) = spend(&memory) {
                warn!(%error, "what was left of the mount may be taken once more");
            }
            keeper.forget();
        };
        let mount = successor.recover(left.state, left.kept, begins)?;
        mount.answers()?;
        Ok::<_, MountError>(mount)
    };
    Ok(tokio::task::spawn_blocking(serving).await.context("serving the mount panicked")??)
}

/// What a process must have in common with the one that serves the mount at `mountpoint`, which shows `namespace`.
pub(crate) fn identity(mountpoint: &Path, namespace: &str, loaded: &Loaded) -> Identity {
    let config = &loaded.config;
    let identity = assembly::mount_options(loaded, String::new()).identity(mountpoint, namespace);
    Identity {
        read_only: config.write_mode == WriteMode::None,
        // What nobody set may be off in the process before, as in one of a version that had it off: then it stays off until the next
        // mount, and nothing that is open suffers.
        passthrough: config.client_local_size.is_some_and(|size| size.as_u64() > 0),
        ..identity
    }
}

/// The options of a mount at `mountpoint`, when workers answer.
async fn options(mountpoint: &Path, offer: &Offer, loaded: &Loaded) -> anyhow::Result<MountOptions> {
    let staging = staging(&loaded.config)?;
    // An origin that refuses us is better met here than in the first program that reads.
    let root = offer.client.list(&FsPath::root(), None, 1, false).await;
    root.map_err(|failure| failure.context("cannot list the root"))?;
    let options = assembly::mount_options(loaded, offer.source.clone());
    let (counted, known, members) = (offer.report.clone(), offer.client.clone(), offer.members.clone());
    let links = offer.links.clone();
    let report = ReportSource::new(move || {
        let mut report = counted.report();
        report["cluster"] = cluster::report(&known.topology(), members.as_deref());
        links.add_to(&mut report);
        report
    });
    let owner = staged::owner(&offer.source, &mountpoint.display().to_string());
    let writing = staging.map(|directory| assembly::writing_options(&loaded.config, directory, owner));
    let local = local::options(&loaded.config, mountpoint, &offer.room);
    Ok(MountOptions { report, writing, local, ..options })
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
