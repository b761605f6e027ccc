//! What a node is to run, once it is checked.

use std::path::PathBuf;
use std::time::Duration;

use forebay_config::Loaded;
use forebay_handover::Order;
use forebay_store::Prewarm;

use crate::keeping::KeeperProgram;
use crate::page::Page;

/// What is to run, checked.
pub(crate) struct Plan {
    pub(crate) loaded: Loaded,
    pub(crate) worker: bool,
    pub(crate) client: bool,
    pub(crate) coordinator: bool,
    pub(crate) s3: bool,
    /// The origin of a node that is a cluster of its own.
    pub(crate) standalone: Option<String>,
    /// Whether such a node without a mount keeps its coordinator's state in memory.
    pub(crate) state_in_memory: bool,
    /// The web page of such a node.
    pub(crate) page: Page,
    /// When such a node takes its memory.
    pub(crate) prewarm_alone: Prewarm,
    pub(crate) mountpoint: Option<PathBuf>,
    /// Whether it takes the mount over from the process that serves it, and how long it waits for writers.
    pub(crate) replaces: Option<Duration>,
    /// How a process is started that keeps the mount over a crash of this one; `None`: none is looked for.
    pub(crate) keeper: Option<KeeperProgram>,
    pub(crate) log: Option<PathBuf>,
}

impl Plan {
    /// What is shown where it is mounted, as a process that takes over knows it.
    pub(crate) fn namespace(&self) -> String {
        let cluster = || format!("the cluster {}", self.loaded.config.cluster_name.as_str());
        self.standalone.clone().unwrap_or_else(cluster)
    }

    /// Whether the memory of a worker is lent to files of the mount in its process: where no size of theirs is set.
    pub(crate) fn lends(&self) -> bool {
        let config = &self.loaded.config;
        self.mountpoint.is_some() && config.client_local_size.is_none() && config.client_local_dir.is_none()
    }

    /// What goes first when a mount is taken over: what only one process can have is to be let go of before.
    pub(crate) fn order(&self) -> Order {
        let has_directory = self.loaded.config.client_local_dir.is_some();
        let listens = self.worker || self.coordinator || self.s3;
        let is_alone = self.standalone.is_some() || listens || has_directory;
        if is_alone { Order::ReleaseFirst } else { Order::ServeFirst }
    }
}
