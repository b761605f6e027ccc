//! What a worker shows: the mounts of the configuration, those that the cluster agreed on, and the policies of both.
//!
//! They may change at any time. A mount that cannot be opened here is told of in the log, answers that it is unavailable, so that
//! other workers are asked, and is tried again; the others are not affected.
//! A mount that has not changed keeps its origin, with its connections and its counters.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use forebay_cluster::records::mounts::{CredentialReference, MOUNTS, MountRecord, is_secret};
use forebay_cluster::records::policies::{HOT, POLICIES, PolicyRecord};
use forebay_config::Loaded;
use forebay_origin::{ListPage, Origin, OriginCounts, OriginOptions, S3Checksum, S3Keys};
use forebay_state::membership::Table;
use forebay_types::{Attr, CachePolicy, Failure, FailureKind, FileVersion, FsPath, PolicyTable};
use forebay_worker::{Namespace, Worker};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::assembly;
use crate::cluster::Cluster;

type Records<T> = watch::Receiver<Option<Arc<BTreeMap<String, T>>>>;

/// Keeps a worker's namespace and policies current.
pub(crate) struct Namespaces {
    stop: CancellationToken,
    following: JoinHandle<()>,
    /// Whether the worker shows what the cluster has told.
    shows: watch::Receiver<bool>,
    mounts: Table<MountRecord>,
    policies: Table<PolicyRecord>,
    hot: Table<PolicyRecord>,
}

/// The mounts of the configuration.
///
/// # Errors
/// When one of them cannot be opened, so that the user who starts a worker learns of it.
pub(crate) fn configured(
    loaded: &Loaded,
    mounts: &[forebay_config::Mount],
) -> anyhow::Result<Vec<(FsPath, Arc<dyn Origin>)>> {
    let open = |mount: &forebay_config::Mount| {
        let origin = assembly::open_origin(loaded, &mount.origin);
        Ok((mount.path.clone(), origin.with_context(|| format!("mount {}", mount.path))?))
    };
    mounts.iter().map(open).collect()
}

impl Namespaces {
    /// Follows what the cluster says; `configured` mounts are there whatever it says.
    pub(crate) fn follow(
        loaded: &Loaded,
        cluster: &Cluster,
        worker: &Arc<Worker>,
        configured: Vec<(FsPath, Arc<dyn Origin>)>,
    ) -> Self {
        let mounts = Table::watch(cluster.store(), MOUNTS, MountRecord::decode);
        let policies = Table::watch(cluster.store(), POLICIES, PolicyRecord::decode);
        let hot = Table::watch(cluster.store(), HOT, PolicyRecord::decode);
        let stop = CancellationToken::new();
        let shown = Shown {
            loaded: loaded.clone(),
            worker: Arc::clone(worker),
            configured,
            opened: BTreeMap::new(),
            misses_any: false,
        };
        let tables = (mounts.records(), policies.records(), hot.records());
        let (show, shows) = watch::channel(false);
        let following = tokio::spawn(follow(shown, tables, show, stop.clone()));
        Self { stop, following, shows, mounts, policies, hot }
    }

    /// Resolves once the worker shows the mounts and policies of the cluster: that they are known is not enough.
    pub(crate) fn told(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut shows = self.shows.clone();
        async move {
            // An error says that this process ends.
            let _ = shows.wait_for(|shows| *shows).await;
        }
    }

    /// Ends the following.
    pub(crate) async fn close(self) {
        self.stop.cancel();
        // It panics only if the worker does, which has been told.
        let _ = self.following.await;
        tokio::join!(self.mounts.close(), self.policies.close(), self.hot.close());
    }
}

/// How long until a mount that cannot be opened is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(10);

/// Stands where a mount cannot be opened here: what is asked of it, another worker may answer.
struct Unopened {
    url: Arc<str>,
    reason: String,
}

impl Unopened {
    fn failure(&self) -> Failure {
        Failure::new(FailureKind::Unavailable, format!("{} cannot be opened on this worker: {}", self.url, self.reason))
    }
}

#[async_trait::async_trait]
impl Origin for Unopened {
    fn url(&self) -> &Arc<str> {
        &self.url
    }

    async fn stat(&self, _path: &[u8]) -> Result<Attr, Failure> {
        Err(self.failure())
    }

    async fn list(&self, _path: &[u8], _token: Option<&str>, _max: usize) -> Result<ListPage, Failure> {
        Err(self.failure())
    }

    async fn read(&self, _version: &FileVersion, _range: Range<u64>, _into: &mut [u8]) -> Result<(), Failure> {
        Err(self.failure())
    }

    // It may be one that takes changes, and another worker may have opened it.

    fn takes_changes(&self) -> bool {
        true
    }

    async fn put(&self, _path: &[u8], _bytes: Bytes) -> Result<Attr, Failure> {
        Err(self.failure())
    }

    async fn begin_upload(&self, _path: &[u8]) -> Result<String, Failure> {
        Err(self.failure())
    }

    async fn upload_part(&self, _path: &[u8], _upload: &str, _number: u32, _bytes: Bytes) -> Result<String, Failure> {
        Err(self.failure())
    }

    async fn complete_upload(
        &self,
        _path: &[u8],
        _upload: &str,
        _size: u64,
        _parts: &[String],
    ) -> Result<Attr, Failure> {
        Err(self.failure())
    }

    async fn abort_upload(&self, _path: &[u8], _upload: &str) -> Result<(), Failure> {
        Err(self.failure())
    }

    async fn copy(&self, _from: &[u8], _to: &[u8]) -> Result<Attr, Failure> {
        Err(self.failure())
    }

    async fn remove(&self, _path: &[u8]) -> Result<(), Failure> {
        Err(self.failure())
    }

    async fn make_directory(&self, _path: &[u8]) -> Result<Attr, Failure> {
        Err(self.failure())
    }

    async fn remove_directory(&self, _path: &[u8]) -> Result<(), Failure> {
        Err(self.failure())
    }

    fn counts(&self) -> OriginCounts {
        OriginCounts::default()
    }
}

async fn follow(
    mut shown: Shown,
    (mut mounts, mut policies, mut hot): (Records<MountRecord>, Records<PolicyRecord>, Records<PolicyRecord>),
    show: watch::Sender<bool>,
    stop: CancellationToken,
) {
    let mut shows_mounts = false;
    loop {
        let told = tokio::select! {
            told = mounts.changed() => {
                let records = mounts.borrow_and_update().clone();
                if let Some(records) = records {
                    shown.show(&records).await;
                    shows_mounts = true;
                }
                told
            }
            told = policies.changed() => told,
            told = hot.changed() => told,
            () = tokio::time::sleep(TRY_AGAIN), if shown.misses_any => {
                let records = mounts.borrow().clone();
                if let Some(records) = records {
                    shown.show(&records).await;
                }
                continue;
            }
            () = stop.cancelled() => return,
        };
        if told.is_err() {
            return;
        }
        let (policies, hot) = (policies.borrow_and_update().clone(), hot.borrow_and_update().clone());
        if let Some(policies) = policies {
            shown.worker.set_policies(table(&policies, hot.as_deref())).await;
            show.send_replace(shows_mounts);
        }
    }
}

/// The policies that people made, and where these say nothing of replicas, those of hot files.
fn table(made: &BTreeMap<String, PolicyRecord>, hot: Option<&BTreeMap<String, PolicyRecord>>) -> PolicyTable {
    // Decoded records have policies that are right.
    let of = |record: &PolicyRecord| record.policy().ok();
    let made = PolicyTable::new(made.values().filter_map(of));
    let hot = hot.into_iter().flat_map(BTreeMap::values).filter_map(of);
    let hot = hot.map(|(path, policy)| {
        let wished = made.of(&path);
        let own = made.rules().find(|(prefix, _)| *prefix == path).map(|(_, own)| own.clone()).unwrap_or_default();
        // Never fewer than people asked for.
        let replicas = policy.replicas.max(wished.replicas);
        (path, CachePolicy { replicas, ..own })
    });
    let hot: Vec<_> = hot.collect();
    PolicyTable::new(made.rules().cloned().chain(hot))
}

/// What a worker shows now.
struct Shown {
    loaded: Loaded,
    worker: Arc<Worker>,
    configured: Vec<(FsPath, Arc<dyn Origin>)>,
    /// The origins of the cluster's mounts, by path.
    opened: BTreeMap<FsPath, (MountRecord, Arc<dyn Origin>)>,
    /// Whether one of them cannot be opened.
    misses_any: bool,
}

impl Shown {
    async fn show(&mut self, records: &BTreeMap<String, MountRecord>) {
        let before = std::mem::take(&mut self.opened);
        let mut unopened: Vec<(FsPath, Arc<dyn Origin>)> = Vec::new();
        for record in records.values() {
            let Ok(path) = FsPath::new(&record.path) else { continue };
            if self.configured.iter().any(|(at, _)| *at == path) {
                error!(mount = record.path, "the configuration has a mount at this path: the cluster's is left out");
                continue;
            }
            let kept = before.get(&path).filter(|(known, _)| known == record).map(|(_, origin)| Arc::clone(origin));
            let opened = kept.map_or_else(|| open(&self.loaded, record), Ok);
            match opened {
                Ok(origin) => drop(self.opened.insert(path, (record.clone(), origin))),
                Err(error) => {
                    let reason = format!("{error:#}");
                    error!(mount = record.path, reason, "a mount cannot be opened here, it is tried again");
                    unopened.push((path, Arc::new(Unopened { url: record.origin.as_str().into(), reason })));
                }
            }
        }
        let of_cluster = self.opened.iter().map(|(path, (_, origin))| (path.clone(), Arc::clone(origin)));
        self.misses_any = !unopened.is_empty();
        let all = self.configured.iter().cloned().chain(of_cluster).chain(unopened);
        match Namespace::new(all) {
            Ok(namespace) => {
                info!(mounts = self.configured.len() + self.opened.len(), "the mounts of this worker");
                self.worker.set_namespace(namespace).await;
            }
            // Paths are unlike, so it is one.
            Err(error) => error!(%error, "the mounts stay as they were"),
        }
    }
}

/// The origin of a mount of the cluster.
///
/// # Errors
/// When its URL or its options make no sense here, or a credential is not where its reference says.
pub(crate) fn open(loaded: &Loaded, record: &MountRecord) -> anyhow::Result<Arc<dyn Origin>> {
    if let Some(directory) = record.origin.strip_prefix("file://") {
        within(loaded, Path::new(directory))?;
    }
    Ok(forebay_origin::open(&record.origin, &options(loaded, record)?)?)
}

/// Whether a path of this machine is one that mounts of the cluster may have to do with.
fn within(loaded: &Loaded, path: &Path) -> anyhow::Result<()> {
    let real = path.canonicalize().with_context(|| path.display().to_string())?;
    let allowed = &loaded.config.cluster_mounts_directories;
    let is_below =
        |directory: &String| Path::new(directory).canonicalize().is_ok_and(|directory| real.starts_with(directory));
    anyhow::ensure!(
        allowed.iter().any(is_below),
        "{} is in none of the directories that `cluster.mounts.directories` names on this worker",
        path.display()
    );
    Ok(())
}

/// Whether a mount of the cluster can be opened on any worker: all that can be told without its credentials.
///
/// # Errors
/// A sentence about what to change.
pub(crate) fn check(loaded: &Loaded, record: &MountRecord) -> Result<(), String> {
    let public = record.options.iter().filter(|(name, _)| !is_secret(name));
    let public = public.map(|(name, value)| (name.clone(), value.clone())).collect();
    let public = MountRecord { options: public, ..record.clone() };
    if let Some(unknown) = record.options.keys().find(|name| is_secret(name) && !KEYS.contains(&name.as_str())) {
        return Err(unknown_option(unknown));
    }
    // A directory may be on the workers and not here.
    if record.origin.starts_with("file://") {
        return options(loaded, &public).map(|_| ()).map_err(|error| format!("{error:#}"));
    }
    open(loaded, &public).map(|_| ()).map_err(|error| format!("{error:#}"))
}

const ID: &str = "s3.access_key_id";
const SECRET: &str = "s3.secret_access_key";
const TOKEN: &str = "s3.session_token";
const KEYS: [&str; 3] = [ID, SECRET, TOKEN];

fn unknown_option(name: &str) -> String {
    format!(
        "mounts have no option `{name}`; there are s3.endpoint, s3.region, s3.profile, s3.path_style, s3.anonymous, \
         s3.checksum, allow_http, {ID}, {SECRET} and {TOKEN}"
    )
}

fn options(loaded: &Loaded, record: &MountRecord) -> anyhow::Result<OriginOptions> {
    let mut options = assembly::origin_options(loaded);
    let mut keys = BTreeMap::new();
    for (name, value) in &record.options {
        let truth = || match value.as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(anyhow::anyhow!("the option {name} of the mount {} is neither `true` nor `false`", record.path)),
        };
        match name.as_str() {
            "s3.endpoint" => options.s3.endpoint = Some(value.clone()),
            "s3.region" => options.s3.region = Some(value.clone()),
            "s3.profile" => options.s3.profile = Some(value.clone()),
            "s3.path_style" => options.s3.path_style = Some(truth()?),
            "s3.anonymous" => options.s3.anonymous = truth()?,
            "s3.checksum" => {
                let Some(checksum) = S3Checksum::named(value) else {
                    anyhow::bail!(
                        "the option {name} of the mount {} is none of `{}`",
                        record.path,
                        S3Checksum::NAMES.join("`, `")
                    )
                };
                options.s3.checksum = checksum;
            }
            "allow_http" => options.allow_http = truth()?,
            name if KEYS.contains(&name) => {
                if let Some(key) = secret(loaded, name, value)? {
                    keys.insert(name.to_owned(), key);
                }
            }
            name => anyhow::bail!(unknown_option(name)),
        }
    }
    let session_token = keys.remove(TOKEN);
    options.s3.keys = match (keys.remove(ID), keys.remove(SECRET)) {
        (Some(access_key_id), Some(secret_access_key)) => {
            let source = format!("the options of the mount {}", record.path);
            Some(S3Keys { access_key_id, secret_access_key, session_token, source })
        }
        (None, None) => None,
        _ => anyhow::bail!("the mount {} has only one of {ID} and {SECRET}", record.path),
    };
    Ok(options)
}

/// The credential that a reference leads to; `None` for the machine's role.
fn secret(loaded: &Loaded, name: &str, reference: &str) -> anyhow::Result<Option<String>> {
    let found = match CredentialReference::parse(reference) {
        None => anyhow::bail!("the option {name} is no reference to a credential"),
        Some(CredentialReference::Role) => return Ok(None),
        Some(CredentialReference::Environment(variable)) => {
            std::env::var(&variable).with_context(|| format!("{name}: the variable {variable} of the environment"))?
        }
        Some(CredentialReference::File(path)) => {
            within(loaded, &path).with_context(|| name.to_owned())?;
            read(&path).with_context(|| format!("{name}: {}", path.display()))?
        }
    };
    Ok(Some(found))
}

fn read(path: &Path) -> anyhow::Result<String> {
    Ok(std::fs::read_to_string(path)?.trim().to_owned())
}

#[cfg(test)]
mod tests;
