//! A node that runs: where it is reached, when it is ready, and how it ends.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_client::Client;
use forebay_handover::Keeps;
use tokio_util::sync::CancellationToken;

use crate::audit::AuditLog;
use crate::cluster::Cluster;
use crate::coordinating::Coordinating;
use crate::direct::Direct;
use crate::error::{Exit, Fault, UserError};
use crate::handover::Handover;
use crate::keeper_watcher::KeeperWatcher;
use crate::mounted::{MountSummary, Mounted};
use crate::mountpoint::Place;
use crate::s3::S3;
use crate::security::Security;
use crate::stopping::Stopping;
use crate::web::Web;
use crate::worker_node::WorkerNode;

/// What runs in this process. To be ended by [`Node::shutdown`]: dropping it gives no blocks to others and waits for no
/// other process.
pub struct Node {
    parts: Parts,
    at_once: CancellationToken,
}

/// Where a node is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAddresses {
    /// Where its worker listens, for requests first.
    pub worker: Vec<SocketAddr>,
    /// Where others reach the pages of its worker, such as `/metrics`.
    pub worker_web: Option<String>,
    /// Where its coordinator listens, if that is an address.
    pub coordinator: Option<SocketAddr>,
    /// The URL of its coordinator's web page, with the token that a standalone node demands.
    pub page: Option<String>,
    /// Where it is mounted.
    pub mountpoint: Option<PathBuf>,
    /// Where its S3 endpoint listens.
    pub s3: Option<SocketAddr>,
}

impl Node {
    pub(crate) fn of(parts: Parts) -> Self {
        Self { parts, at_once: CancellationToken::new() }
    }

    /// Where it is reached.
    #[must_use]
    pub fn addresses(&self) -> NodeAddresses {
        let Parts { worker, web, coordinating, place, s3, .. } = &self.parts;
        NodeAddresses {
            worker: worker.iter().flat_map(WorkerNode::addresses).collect(),
            worker_web: web.as_ref().map(|web| web.advertised.clone()),
            coordinator: coordinating.as_ref().and_then(Coordinating::address),
            page: coordinating.as_ref().and_then(Coordinating::page),
            mountpoint: place.as_ref().map(|place| place.mountpoint().to_owned()),
            s3: s3.as_ref().map(S3::local_addr),
        }
    }

    /// Its client, if it has one: with [`client`](crate::NodeBuilder::client), [`mount`](crate::NodeBuilder::mount) and
    /// [`standalone`](crate::NodeBuilder::standalone).
    #[must_use]
    pub fn client(&self) -> Option<&Client> {
        self.parts.client.as_ref()
    }

    /// What is told of its mount.
    #[must_use]
    pub fn mount(&self) -> Option<&MountSummary> {
        self.parts.mounted.as_ref().map(Mounted::summary)
    }

    /// Waits until its worker is registered in its cluster and shows what is mounted there, and until its coordinator, or another one
    /// of its cluster, leads. For as long as the cluster's state cannot be reached, that is not so: give it a time limit.
    pub async fn ready(&self) {
        if let Some(worker) = &self.parts.worker {
            worker.standing().await;
        }
        if let Some(coordinating) = &self.parts.coordinating {
            coordinating.is_led().await;
        }
    }

    /// The process that serves its mount instead, so that it has ended here.
    #[must_use]
    pub fn successor(&self) -> Option<u32> {
        self.parts.handover.as_ref().and_then(Handover::successor)
    }

    /// Waits until its mount was unmounted from outside, or another process serves it; without one, for ever.
    pub async fn ended(&self) {
        match &self.parts.mounted {
            Some(mounted) => mounted.ended().await,
            None => std::future::pending().await,
        }
    }

    /// Once this is cancelled, [`Node::shutdown`] no longer waits for processes that have files open in the mount.
    #[must_use]
    pub fn at_once(&self) -> CancellationToken {
        self.at_once.clone()
    }

    /// Unmounts, gives jobs and blocks to others, and ends. Processes that have files open have 10 s. A mount that another process
    /// serves stays.
    ///
    /// # Errors
    /// When it cannot be unmounted. The rest is ended all the same.
    pub async fn shutdown(self) -> Result<(), UserError> {
        self.parts.close(&self.at_once).await.map_err(|error| UserError::from(&error))
    }

    /// As [`Node::shutdown`], when a service manager asks for the end: where `fuse.on_stop` says so, the mount is left to whoever has it
    /// until the next process comes, and what programs have open goes on then. [`Node::at_once`] unmounts instead, until it is left.
    ///
    /// # Errors
    /// As of [`Node::shutdown`].
    pub async fn stop(self) -> Result<(), UserError> {
        self.parts.stop(&self.at_once).await.map_err(|error| UserError::from(&error))
    }
}

/// What a node is made of, in the order in which it ends.
#[derive(Default)]
pub(crate) struct Parts {
    pub(crate) mounted: Option<Mounted>,
    pub(crate) s3: Option<S3>,
    pub(crate) coordinating: Option<Coordinating>,
    pub(crate) client: Option<Client>,
    /// Who its client is, if it proves that.
    pub(crate) client_security: Option<Arc<Security>>,
    pub(crate) direct: Option<Direct>,
    pub(crate) worker: Option<WorkerNode>,
    pub(crate) web: Option<Web>,
    pub(crate) cluster: Option<Cluster>,
    /// Where its worker and its coordinator record what others ask of them.
    pub(crate) audit: Option<AuditLog>,
    /// The claim of the mountpoint: another process can have it only after everything has ended.
    pub(crate) place: Option<Place>,
    /// Gives the mount to the next process, which waits until this one has ended.
    pub(crate) handover: Option<Handover>,
    /// Leaves the mount to a keeper.
    pub(crate) stopping: Option<Stopping>,
    /// Has the mount kept again when its keeper has ended.
    pub(crate) keeper_watcher: Option<KeeperWatcher>,
}

impl Parts {
    /// Leaves the mount, if it is to be left, and ends the rest; or unmounts, as [`Parts::close`].
    pub(crate) async fn stop(self, at_once: &CancellationToken) -> anyhow::Result<()> {
        let is_ours = self.is_ours(at_once).await;
        let keeper = if is_ours { self.leave(at_once).await } else { None };
        let closed = self.end(is_ours, keeper.as_deref(), at_once).await;
        // Only now is this process dead to its keeper, who may start the next one: that needs what this one had.
        drop(keeper);
        closed
    }

    /// Who has the mount from now on.
    async fn leave(&self, at_once: &CancellationToken) -> Option<Arc<dyn Keeps>> {
        let stopping = self.stopping.as_ref()?;
        match &self.handover {
            Some(handover) if !handover.is_over(at_once).await => None,
            _ => stopping.leave(at_once).await,
        }
    }

    /// Whether it is for this process to say what becomes of the mount: from now on it is given to nobody.
    async fn is_ours(&self, at_once: &CancellationToken) -> bool {
        match &self.handover {
            Some(handover) => handover.settle(at_once).await,
            None => true,
        }
    }

    pub(crate) async fn close(self, at_once: &CancellationToken) -> anyhow::Result<()> {
        let is_ours = self.is_ours(at_once).await;
        self.end(is_ours, None, at_once).await
    }

    /// `keeper`: who has the mount from now on, if it is left.
    async fn end(self, is_ours: bool, keeper: Option<&dyn Keeps>, at_once: &CancellationToken) -> anyhow::Result<()> {
        let unmounted = match self.mounted {
            Some(mounted) if is_ours => mounted.close(at_once).await,
            Some(mounted) => mounted.abandon().await,
            None => Ok(()),
        };
        if let Some(watcher) = self.keeper_watcher {
            watcher.close().await;
        }
        if let Some(s3) = self.s3 {
            s3.close().await;
        }
        if let Some(coordinating) = self.coordinating {
            coordinating.close().await;
        }
        if let Some(client) = self.client {
            client.close().await;
        }
        if let Some(security) = self.client_security {
            security.close().await;
        }
        if let Some(direct) = self.direct {
            direct.close().await;
        }
        if let Some(worker) = self.worker {
            worker.close().await;
        }
        if let Some(web) = self.web {
            web.close().await;
        }
        if let Some(cluster) = self.cluster {
            cluster.close().await;
        }
        if let Some(audit) = self.audit {
            audit.close().await;
        }
        // Before another process can mount there.
        if let Some(stopping) = &self.stopping
            && keeper.is_some_and(|keeper| !keeper.is_there())
        {
            stopping.take_away().await;
        }
        // Before the process that takes the mount over is told that it may start: with these goes what the mount had of the cache.
        drop((self.place, self.stopping));
        let is_served = match self.handover {
            Some(handover) => handover.close(at_once).await,
            None => true,
        };
        unmounted?;
        if is_served {
            return Ok(());
        }
        // A service manager that is to start this process again does so after a failure.
        let what = "the process that was to take the mount over has not come to serve it";
        Err(Fault::new(Exit::Failed, what, "see its log; this process is started again").into())
    }
}
