//! The S3 endpoint of a process: what the configuration says of it, and what it needs from the rest.
//!
//! It reads and writes with the process's client. Who may, it judges itself: the client shows workers who this process
//! is, and not who signed a request. So it follows the access lists of the cluster's mounts, as workers do, and the
//! list of the denied.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_client::Client;
use forebay_cluster::records::mounts::{MOUNTS, MountRecord};
use forebay_config::{Config, Loaded, WriteMode};
use forebay_identity::{DeniedFile, Identity};
use forebay_locks::RwLock;
use forebay_metrics::{Access, Readiness};
use forebay_s3::{AccessLists, Buckets, Denies, Endpoint, EndpointOptions, Keyring, is_bucket_name};
use forebay_state::membership::Table;
use forebay_types::{AccessList, Failure, FailureKind, FsPath};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::info;

use crate::audit::AuditLog;
use crate::binding;
use crate::cluster::Cluster;
use crate::error::{Exit, Fault};
use crate::reloading::look_after;
use crate::security::{self, Security};

/// Where an endpoint listens that no setting gives a port.
const PORT: u16 = 9000;
/// What it is called where a process says what it lacks.
const PART: &str = "s3";
/// What those are called that it reads from.
const WORKERS: &str = "workers";
/// How often they are asked for a sign of life, and how long that is waited for.
const PINGS_EVERY: Duration = Duration::from_secs(2);
const PING_WITHIN: Duration = Duration::from_secs(5);
/// Why it answers nobody yet.
const UNKNOWN: &str = "it is not known yet what is mounted, and for whom";
/// The bucket of an origin that has no name which a bucket can have.
const UNNAMED: &str = "data";

/// An S3 endpoint that serves.
pub(crate) struct S3 {
    endpoint: Endpoint,
    mounts: Option<Table<MountRecord>>,
    /// Who it is, where its client is nobody.
    security: Option<Arc<Security>>,
    /// What it follows: mounts, and the file of keys. Aborted with it.
    following: JoinSet<()>,
}

/// What an endpoint is given by the process that it is in.
pub(crate) struct Given<'a> {
    pub(crate) client: Client,
    pub(crate) cluster: Option<&'a Cluster>,
    pub(crate) audit: Option<&'a AuditLog>,
    /// Who the process is to those who connect, if it has said so already.
    pub(crate) security: Option<Arc<Security>>,
    /// The origin that is the whole namespace, if one is.
    pub(crate) origin: Option<String>,
}

/// Where an endpoint listens.
///
/// # Errors
/// When the host has no address.
pub(crate) fn address(config: &Config) -> anyhow::Result<SocketAddr> {
    binding::s3_address(config, config.s3_port.unwrap_or(PORT))
}

impl S3 {
    /// Serves what `given` reads. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When there are no keys, or it cannot listen.
    pub(crate) async fn start(loaded: &Loaded, given: Given<'_>) -> anyhow::Result<Self> {
        let config = &loaded.config;
        let keys = Arc::new(keyring(config)?);
        let security = match given.security {
            Some(security) => Some(security),
            None => Security::of_client(config, false)?,
        };
        let access = security.as_deref().map_or_else(|| Ok(Access::everybody()), Security::tls)?;
        let mut following = JoinSet::new();
        let denies: Denies = match (security.as_deref(), config.security_denied_file.as_deref()) {
            (Some(security), _) => Arc::new(security.denies()),
            (None, Some(path)) => {
                let denied = denied(path)?;
                let looked_after = Arc::clone(&denied);
                following.spawn(look_after("the list of the denied", move || looked_after.look()));
                Arc::new(move |identity: &Identity| denied.denies(identity))
            }
            (None, None) => Arc::new(|_: &Identity| false),
        };
        let mounts = given.cluster.map(|cluster| Table::watch(cluster.store(), MOUNTS, MountRecord::decode));
        let lists = Arc::new(Lists::new(config, mounts.is_some()));
        if let Some(mounts) = &mounts {
            following.spawn(follow(mounts.records(), Arc::clone(&lists)));
        }
        let looked_after = Arc::clone(&keys);
        following.spawn(look_after("keys of the S3 endpoint", move || looked_after.look()));
        let address = address(config)?;
        let cannot = |error| {
            let what = format!("the S3 endpoint cannot listen at {address}: {error}");
            Fault::new(Exit::Busy, what, "choose another port with `s3.port`, or 0 for a free one")
        };
        let listener = TcpListener::bind(address).await.map_err(cannot)?;
        let options = EndpointOptions {
            keys,
            lists,
            denies,
            buckets: buckets(config, given.origin.as_deref()),
            domains: config.s3_domains.iter().map(|domain| domain.as_str().to_owned()).collect(),
            connections: config.s3_connections as usize,
            memory: config.s3_memory_size.as_u64(),
            part_size: config.write_part_size.as_u64(),
            writes: config.write_mode != WriteMode::None,
            audit: given.audit.map(AuditLog::auditing),
        };
        let endpoint = Endpoint::start(listener, given.client, access, options).map_err(cannot)?;
        info!(address = %endpoint.local_addr(), tls = security.is_some(), "S3 endpoint listening");
        Ok(Self { endpoint, mounts, security, following })
    }

    /// Where it listens.
    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.endpoint.local_addr()
    }

    /// Has `readiness` say that it cannot serve for as long as it does not know what is mounted, and for whom.
    pub(crate) fn tell(&mut self, readiness: Readiness) {
        let Some(mounts) = &self.mounts else { return };
        let mut records = mounts.records();
        readiness.missing(PART, UNKNOWN);
        self.following.spawn(async move {
            // An error says that this process ends.
            if records.wait_for(Option::is_some).await.is_ok() {
                readiness.there(PART);
            }
        });
    }

    /// Has `readiness` say that it cannot serve for as long as no worker of `client`'s gives a sign of life.
    pub(crate) fn tell_of_workers(&mut self, readiness: Readiness, client: Client) {
        readiness.missing(WORKERS, "none has answered yet");
        self.following.spawn(async move {
            loop {
                match tokio::time::timeout(PING_WITHIN, client.ping()).await {
                    Ok(Ok(())) => readiness.there(WORKERS),
                    Ok(Err(failure)) => readiness.missing(WORKERS, failure.to_string()),
                    Err(_) => readiness.missing(WORKERS, "none answers"),
                }
                tokio::time::sleep(PINGS_EVERY).await;
            }
        });
    }

    /// What it counts.
    pub(crate) fn reporter(&self) -> impl Fn() -> Value + Send + Sync + 'static {
        self.endpoint.reporter()
    }

    /// Ends it. Answers under way may finish, for a moment.
    pub(crate) async fn close(mut self) {
        self.endpoint.close().await;
        self.following.shutdown().await;
        if let Some(mounts) = self.mounts {
            mounts.close().await;
        }
        // Closed twice where it is the client's, too: the second time nothing is left to be ended.
        if let Some(security) = self.security {
            security.close().await;
        }
    }
}

fn keyring(config: &Config) -> anyhow::Result<Keyring> {
    let scope = security::scope(config)?;
    let missing = || {
        let next = "run `forebay key s3 --role reader --client team-a > FILE`, which only you can read, and name it \
                    with `-o s3.credentials_file=FILE`";
        Fault::new(Exit::Usage, "the S3 endpoint has no keys that requests could be signed with", next)
    };
    let file: &Path = config.s3_credentials_file.as_deref().ok_or_else(missing)?;
    let unusable = |error: forebay_s3::KeyringError| Fault::without_remedy(Exit::Usage, error.to_string());
    Ok(Keyring::open(file, scope).map_err(unusable)?)
}

/// Those whose keys are not taken, where no identity of this process looks after that.
fn denied(path: &Path) -> Result<Arc<DeniedFile>, Fault> {
    let next = "write an identity on each line of it, or none, or unset `security.denied_file`";
    let unusable = |error: forebay_identity::LoadError| Fault::new(Exit::Usage, error.to_string(), next);
    DeniedFile::open(path).map(Arc::new).map_err(unusable)
}

/// The buckets of the configuration; or the one that is the whole namespace, where an origin is mounted at its root.
fn buckets(config: &Config, origin: Option<&str>) -> Buckets {
    if !config.s3_buckets.is_empty() {
        return Buckets::new(config.s3_buckets.iter().map(|bucket| (bucket.name.clone(), bucket.path.clone())));
    }
    let at_root = config.mounts.iter().find(|mount| mount.path.is_root()).map(|mount| mount.origin.as_str());
    let whole = origin.or(at_root).map(|origin| (name_of(origin), FsPath::root()));
    Buckets::new(whole)
}

/// The name of a bucket for an origin: that of its own, if it has one.
fn name_of(origin: &str) -> String {
    let (scheme, rest) = origin.split_once("://").unwrap_or_default();
    let name = rest.split('/').next().unwrap_or_default();
    let is_bucket = matches!(scheme, "s3" | "gs" | "az") && is_bucket_name(name);
    if is_bucket { name.to_owned() } else { UNNAMED.to_owned() }
}

/// The access lists of mounts, by where they are.
struct Lists {
    /// Mounts of the configuration: they stand before the cluster's, and are for all whose role may.
    configured: Vec<FsPath>,
    /// Those of the cluster; `None` before it has told them.
    of_cluster: RwLock<Option<Vec<MountOfCluster>>>,
}

/// Where it is, and its list if it has one.
type MountOfCluster = (FsPath, Option<Arc<AccessList>>);

impl Lists {
    /// `in_cluster`: there may be mounts that are not in the configuration.
    fn new(config: &Config, in_cluster: bool) -> Self {
        let configured = config.mounts.iter().map(|mount| mount.path.clone()).collect();
        Self { configured, of_cluster: RwLock::new((!in_cluster).then(Vec::new)) }
    }

    fn replace(&self, records: &BTreeMap<String, MountRecord>) {
        let mounts = records.values().filter_map(|record| {
            let path = FsPath::new(&record.path).ok().filter(|path| !self.configured.contains(path))?;
            Some((path, record.access().map(Arc::new)))
        });
        let mounts = mounts.collect();
        *self.of_cluster.write() = Some(mounts);
    }
}

impl AccessLists for Lists {
    fn list_of(&self, path: &FsPath) -> Result<Option<Arc<AccessList>>, Failure> {
        let known = self.of_cluster.read();
        let Some(known) = &*known else {
            return Err(Failure::new(FailureKind::NotReady, UNKNOWN));
        };
        let leads_to = |mount: &FsPath| path.relative_to(mount).map(|_| mount.as_bytes().len());
        let configured = self.configured.iter().filter_map(leads_to).max();
        let of_cluster = known.iter().filter_map(|(mount, list)| Some((leads_to(mount)?, list)));
        let nearest = of_cluster.max_by_key(|(length, _)| *length);
        Ok(nearest
            .filter(|(length, _)| configured.is_none_or(|configured| configured < *length))
            .and_then(|(_, list)| list.clone()))
    }
}

/// Keeps the lists current until it is aborted.
async fn follow(mut records: watch::Receiver<Option<Arc<BTreeMap<String, MountRecord>>>>, lists: Arc<Lists>) {
    loop {
        let told = records.borrow_and_update().clone();
        if let Some(told) = told {
            lists.replace(&told);
        }
        // An error says that this process ends.
        if records.changed().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_cluster::records::mounts::AclRecord;
    use forebay_config::Sources;

    use super::*;

    fn config(settings: &[&str]) -> Config {
        Config::load(&Sources::new().flags(settings.iter().copied())).unwrap().config
    }

    fn path(text: &str) -> FsPath {
        FsPath::new(text).unwrap()
    }

    #[test]
    fn buckets_are_those_of_the_configuration_or_the_one_origin() {
        let listed = Buckets::new([("sets".to_owned(), path("/a"))]);
        assert_eq!(buckets(&config(&["s3.buckets=sets=/a"]), Some("s3://b")), listed);
        let whole = |name: &str| Buckets::new([(name.to_owned(), FsPath::root())]);
        assert_eq!(buckets(&config(&[]), Some("s3://b/prefix")), whole("b"));
        assert_eq!(buckets(&config(&[]), Some("file:///srv/data")), whole(UNNAMED));
        assert_eq!(buckets(&config(&["mounts=/=s3://root/p"]), None), whole("root"));
        assert_eq!(buckets(&config(&["mounts=/s3=s3://root/p"]), None), Buckets::default());
    }

    #[test]
    fn the_list_of_the_nearest_mount_counts_and_none_before_it_is_known() {
        let record = |path: &str, readers: Option<&str>| {
            let acl = readers.map(|reader| AclRecord { read: vec![reader.to_owned()], write: Vec::new() });
            let record =
                MountRecord { path: path.to_owned(), origin: "s3://b".to_owned(), options: BTreeMap::new(), acl };
            (path.to_owned(), record)
        };
        let lists = Lists::new(&config(&["mounts=/own=s3://own"]), true);
        let refused = lists.list_of(&path("/a")).unwrap_err();
        assert_eq!(refused.kind(), FailureKind::NotReady);
        let records =
            [record("/", Some("root")), record("/a", None), record("/a/b", Some("deep")), record("/own", Some("x"))];
        lists.replace(&BTreeMap::from(records));
        let may = |at: &str, name: &str| lists.list_of(&path(at)).unwrap().is_none_or(|list| list.may_read(name));
        assert!(may("/c", "root") && !may("/c", "deep"));
        assert!(may("/a/c", "anybody") && may("/a", "anybody"));
        assert!(may("/a/b/c", "deep") && !may("/a/b", "root"));
        assert!(may("/abc", "root") && !may("/abc", "deep"), "names are compared whole");
        assert!(may("/own/file", "anybody"), "the configuration's mount stands before the cluster's");
        let alone = Lists::new(&config(&[]), false);
        assert!(alone.list_of(&path("/a")).unwrap().is_none());
    }

    #[test]
    fn who_is_denied_is_so_without_a_mode_too_and_a_list_that_cannot_be_read_stops_the_start() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("denied");
        assert!(denied(&path).is_err());
        std::fs::write(&path, "spiffe://forebay/forebay/forebay/reader/gone\n").unwrap();
        let file = denied(&path).unwrap();
        assert!(file.denies(&"spiffe://forebay/forebay/forebay/reader/gone".parse().unwrap()));
        assert!(!file.denies(&"spiffe://forebay/forebay/forebay/reader/here".parse().unwrap()));
    }

    #[test]
    fn an_endpoint_without_keys_says_how_to_make_one() {
        let refused = keyring(&config(&[])).unwrap_err();
        let fault = crate::error::UserError::from(&refused);
        assert!(fault.next.is_some_and(|next| next.contains("forebay key s3")), "{refused}");
    }
}
