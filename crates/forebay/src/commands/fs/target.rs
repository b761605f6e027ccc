//! What the PATHs of `forebay fs` mean.
//!
//! A path below a live mount stands for the file that the mount shows there; its run state says where the workers are.
//! With `--workers`, or with `cluster.workers` or `cluster.etcd.endpoints` in the configuration and no mount around the path,
//! it is a path of the namespace; else, for a path that this machine does not have, a coordinator is looked for as `forebay job` does,
//! and its workers are asked. Either way that is over TCP, or the Unix socket of a `forebay up`, not through the mount.

use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use forebay_client::{Away, Client};
use forebay_cluster::records::members::WorkerRecord;
use forebay_cluster::{Member, Membership as _, Reach, StaticMembership, topology_of};
use forebay_config::{ClusterName, Loaded, RdmaFallback, SharedMemory};
use forebay_fuse::mount_table::{self, MountState};
use forebay_types::{Attr, ByteSize, FileVersion, FsPath};
use serde_json::Value;

use crate::config_args::ConfigArgs;
use crate::coordinator_args::{Coordinator, Known};
use crate::exit::{Exit, Fault};
use crate::logging;
use forebay_node::cluster::{self, Cluster};
use forebay_node::security::Security;
use forebay_node::{clients, control, state};

/// What is registered at start by a command that must use RDMA.
const REGISTERED: ByteSize = ByteSize::mib(64);

/// Which workers to ask.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct WorkersArgs {
    /// Workers to ask; PATH is then a path of the namespace, as in /dir/file
    #[arg(long, value_name = "[NAME=]HOST:PORT,...", value_delimiter = ',')]
    pub(crate) workers: Vec<String>,
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
}

impl WorkersArgs {
    pub(crate) fn load(&self) -> anyhow::Result<Loaded> {
        let workers = (!self.workers.is_empty()).then(|| format!("cluster.workers={}", self.workers.join(",")));
        let loaded = self.config.load(workers)?;
        logging::start_quiet(&loaded.config)?;
        Ok(loaded)
    }
}

/// A file or directory that a command is about.
#[derive(Clone)]
pub(crate) struct Target {
    /// The client of the workers that have it.
    pub(crate) client: Client,
    /// Its path in the namespace.
    pub(crate) path: FsPath,
    /// How the person who asked wrote it.
    pub(crate) shown: Vec<u8>,
    /// Where the process of the mount answers for itself, if it is below a mount and the process does.
    pub(crate) control: Option<PathBuf>,
}

impl Target {
    /// What it is.
    ///
    /// # Errors
    /// Whatever keeps the workers from saying, with the path as it was written.
    pub(crate) async fn stat(&self, revalidate: bool) -> anyhow::Result<Attr> {
        let reply = self.client.stat(&self.path, revalidate).await;
        Ok(reply.map_err(|failure| failure.context(self.shown()))?.attr)
    }

    /// The version of the file that it is.
    ///
    /// # Errors
    /// As [`Target::stat`]; when it is a directory.
    pub(crate) async fn version(&self) -> anyhow::Result<FileVersion> {
        let attr = self.stat(false).await?;
        attr.version().cloned().ok_or_else(|| {
            let next = "give a file; `forebay fs ls` lists the directory";
            Fault::new(Exit::Usage, format!("{} is a directory", self.shown()), next).into()
        })
    }

    /// Its name for messages.
    pub(crate) fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown).into_owned()
    }

    /// The target of `name` in this directory.
    ///
    /// # Errors
    /// When the name cannot be a file's.
    pub(crate) fn join(&self, name: &[u8]) -> anyhow::Result<Self> {
        let mut shown = self.shown.clone();
        if shown.last() != Some(&b'/') {
            shown.push(b'/');
        }
        shown.extend_from_slice(name);
        Ok(Self { client: self.client.clone(), path: self.path.join(name)?, shown, control: self.control.clone() })
    }
}

/// Finds the targets of paths, with one client for all that have the same workers.
pub(crate) struct Targets {
    loaded: Loaded,
    /// Whether workers were named on the command line: then no mount is looked for.
    explicit: bool,
    clients: Vec<KnownClient>,
}

/// A client of some workers, and what it was made from.
struct KnownClient {
    members: Vec<Member>,
    reach: Reach,
    client: Client,
    /// Who the client is, if it proves that.
    security: Option<Arc<Security>>,
}

impl Targets {
    /// # Errors
    /// When the configuration is wrong.
    pub(crate) fn new(args: &WorkersArgs) -> anyhow::Result<Self> {
        Ok(Self { explicit: !args.workers.is_empty(), ..Self::of(args.load()?) })
    }

    /// Of paths below mounts, with these settings.
    pub(crate) fn of(loaded: Loaded) -> Self {
        Self { loaded, explicit: false, clients: Vec::new() }
    }

    /// The target of `path`.
    ///
    /// # Errors
    /// When it is neither below a live mount nor a path of the namespace of known workers.
    pub(crate) async fn find(&mut self, path: &Path) -> anyhow::Result<Target> {
        let shown = path.as_os_str().as_bytes().to_vec();
        if !self.explicit
            && let Some((mountpoint, below)) = mount_around(path)?
        {
            let state = served_by(&mountpoint)?;
            let path = below.iter().try_fold(FsPath::root(), |path, name| path.join(name))?;
            let client = self.client(members_of(&state).await, Reach::Data, Some(&state)).await?;
            return Ok(Target { client, path, shown, control: state.control });
        }
        let listed = cluster::listed_members(&self.loaded.config);
        if listed.is_empty()
            && let Some(members) = self.members_of_cluster().await?
        {
            let path = FsPath::new(&shown)?;
            return Ok(Target {
                client: self.client(members, Reach::Requests, None).await?,
                path,
                shown,
                control: None,
            });
        }
        if listed.is_empty() {
            let client = match (path.is_absolute() && !path.exists()).then(|| Known::find(&self.loaded, Some(path))) {
                Some(Ok(Known::Mount(state))) => self.client_of_mount(&state).await?,
                Some(Ok(Known::Address(address))) => {
                    // The worker of a `forebay up` on this machine is in no list of a cluster.
                    match state::all().into_iter().find(|state| state.coordinator.as_deref() == Some(&*address)) {
                        Some(state) => self.client_of_mount(&state).await?,
                        None => {
                            let members = self.members_by(&address).await?;
                            self.client(members, Reach::Requests, None).await?
                        }
                    }
                }
                Some(Err(_)) | None => {
                    let what = format!("{} is not below a forebay mount, and no workers are named", path.display());
                    let next = "give a path below a mount (`findmnt -t fuse.forebay` lists them), or name the workers with \
                                `--workers HOST:PORT`, or a coordinator as `coordinator.hostname`";
                    return Err(Fault::new(Exit::Usage, what, next).into());
                }
            };
            return Ok(Target { client, path: FsPath::new(&shown)?, shown, control: None });
        }
        let path = FsPath::new(&shown)?;
        Ok(Target { client: self.client(listed, Reach::Requests, None).await?, path, shown, control: None })
    }

    /// A client of the workers that serve `place`: a mountpoint, or, without one, those of the configuration.
    ///
    /// # Errors
    /// As [`Targets::find`].
    pub(crate) async fn client_of(&mut self, place: Option<&Path>) -> anyhow::Result<Client> {
        let root = Path::new("/");
        match place {
            Some(place) => Ok(self.find(place).await?.client),
            None => Ok(self.find(root).await?.client),
        }
    }

    /// A client of the workers that the mount with this state reads from.
    ///
    /// # Errors
    /// When its memory cannot be had.
    pub(crate) async fn client_of_mount(&mut self, state: &state::RunState) -> anyhow::Result<Client> {
        self.client(members_of(state).await, Reach::Data, Some(state)).await
    }

    /// The settings that it finds targets by.
    pub(crate) fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// Whether workers were named on the command line.
    pub(crate) fn are_workers_named(&self) -> bool {
        self.explicit
    }

    /// The workers of the configured group, if the configuration names a cluster's state.
    async fn members_of_cluster(&self) -> anyhow::Result<Option<Vec<Member>>> {
        let Some(cluster) = Cluster::open(&self.loaded.config, Reach::Requests).await? else { return Ok(None) };
        let told = cluster.told().await;
        let members = cluster.members().topology().ring.members().to_vec();
        cluster.close().await;
        told.map(|()| Some(members))
    }

    /// The workers that the coordinator at `address` knows.
    async fn members_by(&self, address: &str) -> anyhow::Result<Vec<Member>> {
        let status = Coordinator::at(address, &self.loaded.config)?.cluster().await?;
        let told = status.cluster["members"].as_array().cloned().unwrap_or_default();
        let records = told.into_iter().filter_map(|told| serde_json::from_value::<WorkerRecord>(told).ok());
        let group = self.loaded.config.cluster_cache_group.as_str();
        let of_group: Vec<WorkerRecord> = records.filter(|record| record.group == group).collect();
        Ok(topology_of(&of_group).ring.members().to_vec())
    }

    /// A client of these workers, which are reached so: a mount knows them by their addresses for data, and knows which cluster they are.
    async fn client(
        &mut self,
        members: Vec<Member>,
        reach: Reach,
        mount: Option<&state::RunState>,
    ) -> anyhow::Result<Client> {
        if let Some(known) = self.clients.iter().find(|known| known.members == members && known.reach == reach) {
            return Ok(known.client.clone());
        }
        let mut config = self.loaded.config.clone();
        // These commands read ahead by themselves.
        config.client_prefetch_max_part_number = Some(0);
        config.client_prefetch_file_length_threshold = ByteSize::default();
        // Registering memory, or mapping that of a worker here, would take longer than what they ask for; but where TCP must not
        // carry data it does not.
        config.network_shared_memory = SharedMemory::Off;
        config.network_rdma_metadata_enabled = false;
        config.network_rdma_data_enabled &= config.network_rdma_data_fallback == RdmaFallback::Never;
        let initial = config.network_rdma_data_buffer_pool_initial_size.min(REGISTERED);
        config.network_rdma_data_buffer_pool_initial_size = initial;
        config.network_rdma_data_buffer_pool_prewarm_size = ByteSize::default();
        if let Some(mount) = mount {
            config.block_size = ByteSize::bytes(mount.block_size);
            // One that the mount runs with is a name; what is not there was not told by an older release.
            if let Some(Ok(cluster)) = mount.cluster.clone().map(ClusterName::try_from) {
                config.cluster_name = cluster;
            }
        }
        let membership = Arc::new(StaticMembership::of(members.iter().cloned()));
        let security = Security::of_client(&config, false)?;
        let own = security.as_deref();
        let client = clients::remote_client(&config, reach, membership, None, Away::Fail, own).await?.client;
        self.clients.push(KnownClient { members, reach, client: client.clone(), security });
        Ok(client)
    }

    /// Ends the links to the workers.
    pub(crate) async fn close(self) {
        for KnownClient { client, security, .. } in self.clients {
            client.close().await;
            if let Some(security) = security {
                security.close().await;
            }
        }
    }
}

/// The live mount that `path` is below, and where it is there.
///
/// # Errors
/// When it is below none.
pub(crate) fn mount_of(path: &Path) -> anyhow::Result<(state::RunState, FsPath)> {
    let Some((mountpoint, below)) = mount_around(path)? else {
        let what = format!("{} is not below a forebay mount", path.display());
        let next = "give a path below a mount: `findmnt -t fuse.forebay` lists them";
        return Err(Fault::new(Exit::Usage, what, next).into());
    };
    let path = below.iter().try_fold(FsPath::root(), |path, name| path.join(name))?;
    Ok((served_by(&mountpoint)?, path))
}

fn member(name: &str, address: &str, weight: f64, identity: Option<&str>) -> Member {
    Member { name: name.into(), address: address.into(), weight, identity: identity.map(Arc::from) }
}

/// A member as the process of a mount tells of it.
fn told_member(told: &Value) -> Option<Member> {
    let weight = told["weight"].as_f64()?;
    Some(member(told["name"].as_str()?, told["address"].as_str()?, weight, told["identity"].as_str()))
}

/// The workers that a mount reads from, with their weights, as its process knows them now; as it knew them when it mounted, if
/// it does not say.
async fn members_of(state: &state::RunState) -> Vec<Member> {
    let told = match &state.control {
        Some(control) => control::ask(control).await.ok(),
        None => None,
    };
    let told = told.as_ref().and_then(|report| report["cluster"]["members"].as_array());
    let members: Vec<Member> = told.into_iter().flatten().filter_map(told_member).collect();
    let identity = |address: &String| state.identities.get(address).map(String::as_str);
    // The worker in the mount's own process has no address there; the run state has.
    match state.role {
        // As the mount's own client names it.
        state::Role::Up => state.workers.iter().map(|address| member(clients::LOCAL, address, 1.0, None)).collect(),
        state::Role::Mount if members.is_empty() => {
            state.workers.iter().map(|address| member(address, address, 1.0, identity(address))).collect()
        }
        state::Role::Mount => members,
    }
}

/// The state of the live process behind `mountpoint`.
fn served_by(mountpoint: &Path) -> anyhow::Result<state::RunState> {
    if let Some(state) = state::find(mountpoint).filter(state::RunState::is_alive) {
        return Ok(state);
    }
    let what = format!("{} is mounted, but its run state is not to be found: who mounted it?", mountpoint.display());
    Err(Fault::new(Exit::NotFound, what, "name the workers with `--workers HOST:PORT`, and a path of the namespace")
        .into())
}

/// The mount of ours that `path` lies in, and the names that lead from there to it.
fn mount_around(path: &Path) -> anyhow::Result<Option<(PathBuf, Vec<Vec<u8>>)>> {
    let path = std::path::absolute(path).with_context(|| format!("cannot resolve {}", path.display()))?;
    for place in path.ancestors() {
        // What does not exist, or may not be looked at, is not where a mount is.
        match mount_table::inspect(place) {
            Ok(MountState::Forebay { .. }) => {
                let mountpoint = place.canonicalize().with_context(|| format!("cannot resolve {}", place.display()))?;
                return Ok(Some((mountpoint, names_below(&path, place))));
            }
            Ok(MountState::Dead { .. }) => {
                let what = format!("the mount at {} is dead: its process was killed", place.display());
                let next = format!("mount it again, or clean up with `forebay umount {}`", place.display());
                return Err(Fault::new(Exit::Unavailable, what, next).into());
            }
            Ok(MountState::NotMounted | MountState::Other { .. }) | Err(_) => {}
        }
    }
    Ok(None)
}

/// The names between `place` and `path`. What is mounted has no links, so `..` only undoes the name before it.
pub(crate) fn names_below(path: &Path, place: &Path) -> Vec<Vec<u8>> {
    let below = path.strip_prefix(place).unwrap_or(Path::new(""));
    let mut names = Vec::new();
    for component in below.components() {
        match component {
            Component::Normal(name) => names.push(name.to_owned().into_vec()),
            Component::ParentDir => {
                names.pop();
            }
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_below_a_mountpoint_are_those_of_the_namespace() {
        let names = names_below(Path::new("/mnt/a/./b/../c d"), Path::new("/mnt"));
        assert_eq!(names, [b"a".to_vec(), b"c d".to_vec()]);
        assert!(names_below(Path::new("/mnt"), Path::new("/mnt")).is_empty());
    }

    /// A command below a mount asks whom the mount would ask, and nobody else who listens there.
    #[tokio::test]
    async fn the_names_of_a_mounts_workers_are_those_of_its_commands() {
        let state = serde_json::json!({
            "pid": 1, "process_started": 1, "role": "mount", "mountpoint": "/mnt/a", "source": "forebay://a:1,b:1",
            "workers": ["a:1", "b:1"], "identities": { "a:1": "w1" }, "block_size": 1, "log": null, "since": "",
            "version": "",
        });
        let members = members_of(&serde_json::from_value(state).unwrap()).await;
        let identities: Vec<_> = members.iter().map(|member| (&*member.address, member.identity.as_deref())).collect();
        assert_eq!(identities, [("a:1", Some("w1")), ("b:1", None)]);

        let told = serde_json::json!({ "name": "w", "address": "a:1", "weight": 2.0, "identity": "w1" });
        assert_eq!(told_member(&told), Some(member("w", "a:1", 2.0, Some("w1"))));
        let of_an_older_release = serde_json::json!({ "name": "w", "address": "a:1", "weight": 2.0 });
        assert_eq!(told_member(&of_an_older_release), Some(member("w", "a:1", 2.0, None)));
    }

    #[test]
    fn a_path_outside_of_every_mount_is_in_none() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(mount_around(&directory.path().join("missing/file")).unwrap(), None);
    }
}
