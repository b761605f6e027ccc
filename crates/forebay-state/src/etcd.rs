//! The store of a cluster: etcd.
//!
//! Keys lie under `/forebay/<cluster>/`. Every operation goes to one member; one that does not answer is passed over for
//! the next. What was certainly not carried out is tried again within the deadline; a commit whose answer was lost is
//! not, since it may have happened.
//!
//! * `members`: which member to ask, and the clients of each;
//! * `failure`: what etcd's errors mean;
//! * `backoff`: when to try again (pure);
//! * `keyspace`: reading and writing the keys of one cluster;
//! * `lease`, `watch`: the tasks behind leases and watches;
//! * `tls`, `rotation` (pure), `renewal`: the certificate files, which may be replaced at any time.

mod backoff;
mod failure;
mod kept;
mod keyspace;
mod lease;
mod members;
mod options;
mod renewal;
mod rotation;
mod tls;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use etcd_client::Client;
use forebay_cluster::records;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::{Committed, Entry, Lease, Snapshot, StateError, StateStore, Transaction, Watch, key};
use keyspace::Keyspace;
use members::{Members, Repeat};
pub use options::{EtcdOptions, EtcdUser};
pub use renewal::EtcdCertificates;
use renewal::Renewal;

/// How many updates a watcher may lag before the store stops reading more for it.
const WATCH_CAPACITY: usize = 16;

/// A [`StateStore`] in etcd.
#[derive(Debug)]
pub struct EtcdStore {
    keyspace: Arc<Keyspace>,
    certificates: Arc<EtcdCertificates>,
    tasks: TaskTracker,
    closing: CancellationToken,
}

impl EtcdStore {
    /// A store that connects when it is first used. Must be called within a tokio runtime if `options` name certificate
    /// files: a task reads them again, and has the store use them when they have changed.
    ///
    /// # Errors
    /// `Options` for what cannot be used: no endpoints, a file that cannot be read, a certificate and a key that do not go
    /// together, a password that would leave the machine in clear, a cluster name with a slash.
    pub fn new(options: EtcdOptions) -> Result<Self, StateError> {
        let root = records::root(options.checked_cluster()?);
        let paths = options.tls_paths();
        let used = paths.load()?;
        let members = Members::new(&options, options.connect_options(&used))?;
        let store = Self {
            keyspace: Arc::new(Keyspace { members, root }),
            certificates: Arc::default(),
            tasks: TaskTracker::new(),
            closing: CancellationToken::new(),
        };
        if paths.are_any() {
            let (keyspace, told) = (Arc::clone(&store.keyspace), Arc::clone(&store.certificates));
            store.follow(Renewal { keyspace, options, paths, used, told });
        }
        Ok(store)
    }

    /// What became of the certificate files that changed.
    #[must_use]
    pub fn certificates(&self) -> &Arc<EtcdCertificates> {
        &self.certificates
    }

    fn follow(&self, renewal: Renewal) {
        let closing = self.closing.clone();
        self.tasks.spawn(async move { closing.run_until_cancelled(renewal.follow()).await });
    }

    fn check_open(&self) -> Result<(), StateError> {
        if self.closing.is_cancelled() {
            return Err(StateError::Closed { store: self.describe() });
        }
        Ok(())
    }
}

#[async_trait::async_trait]
impl StateStore for EtcdStore {
    async fn get(&self, key: &str) -> Result<Option<Entry>, StateError> {
        self.check_open()?;
        key::check(key)?;
        let full = self.keyspace.full(key);
        let get = |mut client: Client| {
            let full = full.clone();
            async move { client.get(full, None).await }
        };
        let found = self.keyspace.members.call(Repeat::Always, get).await;
        let mut found = found.map_err(|failure| self.keyspace.members.error(&format!("read `{key}`"), failure))?;
        Ok(found.take_kvs().into_iter().next().map(|pair| self.keyspace.entry(pair)))
    }

    async fn list(&self, prefix: &str) -> Result<Snapshot, StateError> {
        self.check_open()?;
        self.keyspace.list(prefix).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Committed, StateError> {
        self.check_open()?;
        transaction.check()?;
        self.keyspace.commit(transaction).await
    }

    async fn lease(&self, ttl: Duration) -> Result<Lease, StateError> {
        self.check_open()?;
        lease::take(&self.keyspace, ttl, &self.tasks, &self.closing).await
    }

    fn watch(&self, prefix: &str) -> Watch {
        let (sender, watch) = Watch::new(WATCH_CAPACITY);
        let (keyspace, closing, prefix) = (Arc::clone(&self.keyspace), self.closing.clone(), prefix.to_owned());
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = closing.cancelled() => {}
                () = sender.closed() => {}
                () = watch::serve(&keyspace, &prefix, &sender) => {}
            }
        });
        watch
    }

    fn describe(&self) -> String {
        self.keyspace.members.name().to_owned()
    }

    async fn close(&self) {
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.keyspace.members.disconnect().await;
    }
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        // Leases are still revoked, in the background.
        self.closing.cancel();
    }
}
