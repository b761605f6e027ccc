//! `client.origin.direct`: what reads the origins for a mount while no worker can be reached.
//!
//! It is a worker without a server that caches next to nothing and asks the origins about names each time. It shows what a worker
//! would: the mounts of the configuration and those that the cluster agreed on, with the credentials of this process.

use std::sync::Arc;

use forebay_client::Away;
use forebay_config::{Config, Loaded};
use forebay_memory::Sharing;
use forebay_store::{Prewarm, Store};
use forebay_transport::{LocalTransport, Service};
use forebay_types::ByteSize;
use forebay_worker::Worker;

use crate::assembly;
use crate::cluster::Cluster;
use crate::error::{Exit, Fault};
use crate::namespaces::{self, Namespaces};

/// See above.
pub(crate) struct Direct {
    store: Store,
    worker: Arc<Worker>,
    namespaces: Option<Namespaces>,
}

impl Direct {
    /// One for a mount with this configuration, if that wants one.
    ///
    /// # Errors
    /// When there is no origin to read, or its memory cannot be had.
    pub(crate) async fn start(loaded: &Loaded, cluster: Option<&Cluster>) -> anyhow::Result<Option<Self>> {
        let config = &loaded.config;
        if !config.client_origin_direct {
            return Ok(None);
        }
        if cluster.is_none() && config.mounts.is_empty() {
            let what = "client.origin.direct: the mount has no origin to read: `mounts` is empty";
            let next = "name what the workers show in `forebay.toml` or with `-o mounts=/=s3://bucket/prefix`, or the cluster with `--etcd`";
            return Err(Fault::new(Exit::Usage, what, next).into());
        }
        let mounts = namespaces::configured(loaded, &config.mounts)?;
        let store =
            assembly::worker_store(&modest(config), Vec::new(), Prewarm::AsFilled, Sharing::Private, false).await?;
        let worker = match assembly::worker(&modest(config), store.clone(), mounts.clone(), cluster.is_some()) {
            Ok(worker) => worker,
            Err(error) => {
                store.close().await;
                return Err(error);
            }
        };
        let namespaces = cluster.map(|cluster| Namespaces::follow(loaded, cluster, &worker, mounts));
        // What it does not know yet, it would say is not there.
        if let Some(namespaces) = &namespaces {
            namespaces.told().await;
        }
        Ok(Some(Self { store, worker, namespaces }))
    }

    /// What becomes of the mount's requests while no worker can be reached.
    pub(crate) fn away(&self) -> Away {
        Away::Origin(Arc::new(LocalTransport::new(Arc::clone(&self.worker) as Arc<dyn Service>)))
    }

    /// Ends it.
    pub(crate) async fn close(self) {
        if let Some(namespaces) = self.namespaces {
            namespaces.close().await;
        }
        self.worker.close().await;
        drop(self.worker);
        self.store.close().await;
    }
}

/// Memory for blocks on their way alone, and names that are asked for each time: workers know of changes that this one does not.
fn modest(config: &Config) -> Config {
    Config {
        worker_memory_size: ByteSize::bytes(0),
        metadata_ttl: std::time::Duration::ZERO,
        write_mode: forebay_config::WriteMode::None,
        ..config.clone()
    }
}
