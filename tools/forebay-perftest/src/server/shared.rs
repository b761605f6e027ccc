//! What the tasks of a server share.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::server::service::Blocks;
use crate::server::sessions::Sessions;
use crate::wire::VerbsOffer;

/// What the tasks share.
pub(super) struct ServerShared {
    pub(super) delay: Duration,
    pub(super) stop: CancellationToken,
    pub(super) sessions: Arc<Sessions>,
    pub(super) blocks: Arc<Blocks>,
    pub(super) tcp_port: u16,
    pub(super) ucx: Option<UcxPorts>,
    pub(super) verbs: Option<VerbsOffer>,
    pub(super) connections: Arc<Semaphore>,
    pub(super) streams: Arc<Semaphore>,
}

/// What clients are told of UCX.
pub(super) struct UcxPorts {
    pub(super) version: String,
    pub(super) port: u16,
    pub(super) cache_port: u16,
    pub(super) blocks: Vec<Vec<u8>>,
    pub(super) areas: Vec<Vec<Vec<u8>>>,
}
