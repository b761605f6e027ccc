//! What a worker shows: the mounts of the configuration, those that the cluster agreed on, and the policies of both.
//!
//! They may change at any time. A mount that cannot be opened here is told of in the log, answers that it is unavailable, so that
//! other workers are asked, and is tried again; the others are not affected. Nor are they by one that hangs, as a directory of a network
//! file system may: it is opened on a thread of its own.
//! A mount that has not changed keeps its origin, with its connections and its counters. What a mount of the cluster may
//! ask for is in `namespaces/opening.rs`.
//!
//! The access list of a mount comes with its record. Where nobody proves who they are, it lets nobody in from outside.

mod opening;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use forebay_cluster::records::mounts::{MOUNTS, MountRecord};
use forebay_cluster::records::policies::{HOT, POLICIES, PolicyRecord};
use forebay_config::{Loaded, SecurityMode};
use forebay_origin::{ListPage, Origin, OriginCounts};
use forebay_state::membership::Table;
use forebay_types::{
    AccessList, Attr, CachePolicy, Failure, FailureKind, FilePart, FileVersion, FsPath, PartPage, PolicyTable,
    UploadMarker, UploadPage,
};
use forebay_worker::{Namespace, Worker};
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

pub(crate) use opening::check;

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
        let shown = Shown::new(loaded.clone(), Arc::clone(worker), configured);
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
/// How long one is waited for while it is opened.
const OPENS_WITHIN: Duration = Duration::from_secs(3);

/// Opens the mount of a record. It may block for ever.
type Open = fn(&Loaded, &MountRecord) -> anyhow::Result<Arc<dyn Origin>>;

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

    fn is_open(&self) -> bool {
        false
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

    async fn part(&self, _version: &FileVersion, _number: u32) -> Result<Option<FilePart>, Failure> {
        Err(self.failure())
    }

    // It may be one that takes changes, and another worker may have opened it.

    fn takes_changes(&self) -> bool {
        true
    }

    async fn put(&self, _path: &[u8], _bytes: Bytes) -> Result<Attr, Failure> {
        Err(self.failure())
    }

    async fn create(&self, _path: &[u8], _bytes: Bytes) -> Result<Attr, Failure> {
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

    async fn list_parts(&self, _path: &[u8], _upload: &str, _after: u32, _max: usize) -> Result<PartPage, Failure> {
        Err(self.failure())
    }

    async fn list_uploads(
        &self,
        _prefix: &[u8],
        _after: Option<&UploadMarker>,
        _max: usize,
    ) -> Result<UploadPage, Failure> {
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

/// An origin that is being opened.
type Opening = JoinHandle<anyhow::Result<Arc<dyn Origin>>>;

/// What a worker shows now.
struct Shown {
    loaded: Loaded,
    worker: Arc<Worker>,
    configured: Vec<(FsPath, Arc<dyn Origin>)>,
    /// The origins of the cluster's mounts, by path.
    opened: BTreeMap<FsPath, (MountRecord, Arc<dyn Origin>)>,
    opener: Open,
    /// Those that hang while they are opened, by path.
    opening: BTreeMap<FsPath, (MountRecord, Opening)>,
    /// Whether one of them cannot be opened.
    misses_any: bool,
}

impl Shown {
    fn new(loaded: Loaded, worker: Arc<Worker>, configured: Vec<(FsPath, Arc<dyn Origin>)>) -> Self {
        let (opened, opening) = (BTreeMap::new(), BTreeMap::new());
        Self { loaded, worker, configured, opened, opener: opening::open, opening, misses_any: false }
    }

    async fn show(&mut self, records: &BTreeMap<String, MountRecord>) {
        let before = std::mem::take(&mut self.opened);
        let mut unopened: Vec<(FsPath, Arc<dyn Origin>)> = Vec::new();
        let mut lists: Vec<(FsPath, AccessList)> = Vec::new();
        for record in records.values() {
            let Ok(path) = FsPath::new(&record.path) else { continue };
            if self.configured.iter().any(|(at, _)| *at == path) {
                error!(mount = record.path, "the configuration has a mount at this path: the cluster's is left out");
                continue;
            }
            let known = before.get(&path);
            let kept = known.filter(|(known, _)| known.shows_as(record)).map(|(_, origin)| Arc::clone(origin));
            let opened = match kept {
                Some(origin) => Ok(origin),
                None => self.open(&path, record).await,
            };
            if let Some(configured) = opened.as_ref().ok().and_then(|origin| self.contradicted(record, &**origin)) {
                error!(
                    mount = record.path,
                    origin = record.origin,
                    %configured,
                    "the configuration mounts this origin without the options of this mount, which is left out: \
                     what is cached of one would pass for the other's; remove the options, or one of the mounts"
                );
                continue;
            }
            if let Some(list) = record.access() {
                self.check_list(record, known.map(|(known, _)| known));
                lists.push((path.clone(), list));
            }
            match opened {
                Ok(origin) => drop(self.opened.insert(path, (record.clone(), origin))),
                Err(error) => {
                    let reason = format!("{error:#}");
                    error!(mount = record.path, reason, "a mount cannot be opened here, it is tried again");
                    unopened.push((path, Arc::new(Unopened { url: record.origin.as_str().into(), reason })));
                }
            }
        }
        let is_wanted = |path: &FsPath| records.values().any(|record| record.path.as_bytes() == path.as_bytes());
        self.opening.retain(|path, _| is_wanted(path));
        let of_cluster = self.opened.iter().map(|(path, (_, origin))| (path.clone(), Arc::clone(origin)));
        self.misses_any = !unopened.is_empty();
        let all = self.configured.iter().cloned().chain(of_cluster).chain(unopened);
        match Namespace::new(all) {
            Ok(namespace) => {
                let namespace = assembly::guarded(&self.loaded.config, namespace.with_access(lists));
                info!(mounts = self.configured.len() + self.opened.len(), "the mounts of this worker");
                self.worker.set_namespace(namespace).await;
            }
            // Paths are unlike, so it is one.
            Err(error) => error!(%error, "the mounts stay as they were"),
        }
    }

    /// The origin of a record. One that hangs is not opened once more, which would take one more thread each time: whether it goes on
    /// by now is all that is asked then.
    async fn open(&mut self, path: &FsPath, record: &MountRecord) -> anyhow::Result<Arc<dyn Origin>> {
        let hangs = self.opening.remove(path).filter(|(known, _)| known.shows_as(record));
        let (mut opening, within) = match hangs {
            Some((_, opening)) => (opening, Duration::ZERO),
            None => {
                let (open, loaded, record) = (self.opener, self.loaded.clone(), record.clone());
                (spawn_blocking(move || open(&loaded, &record)), OPENS_WITHIN)
            }
        };
        match tokio::time::timeout(within, &mut opening).await {
            Ok(opened) => opened.context("opening it has failed")?,
            Err(_) => {
                self.opening.insert(path.clone(), (record.clone(), opening));
                anyhow::bail!("opening it hangs: look at its directory, or at the files with its credentials")
            }
        }
    }

    /// The mount of the configuration that reads the same origin in another way, as from another server: a file's
    /// version names its origin by the URL alone. Between two records it is [`MountRecord::contradicts`].
    fn contradicted(&self, record: &MountRecord, origin: &dyn Origin) -> Option<&FsPath> {
        // Options that a record does not have are as in the configuration.
        if record.options.is_empty() {
            return None;
        }
        self.configured.iter().find(|(_, configured)| configured.url() == origin.url()).map(|(at, _)| at)
    }

    /// Says of a list that is new whether it lets anybody in.
    fn check_list(&self, record: &MountRecord, known: Option<&MountRecord>) {
        let is_new = known.is_none_or(|known| known.acl != record.acl);
        if is_new && self.loaded.config.security_mode == SecurityMode::Off {
            warn!(
                mount = record.path,
                "the mount has an access list, and with `security.mode=off` nobody proves to be on it: nobody reads or \
                 changes it over the network until `security.mode` is set"
            );
        }
    }
}

#[cfg(test)]
mod tests;
