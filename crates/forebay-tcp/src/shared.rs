//! What the connections of a server have in common.

use std::sync::Arc;

use forebay_transport::Service;
use forebay_transport::wire::Hello;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::connections::Connections;
use crate::in_flight::Counts;
use crate::options::ServerOptions;

/// What they have in common.
pub(crate) struct ServerShared {
    pub(crate) options: ServerOptions,
    pub(crate) service: Arc<dyn Service>,
    /// Where the service is asked what it does not answer at once, and files are read.
    pub(crate) runtime: Handle,
    pub(crate) hello: Hello,
    pub(crate) stop: CancellationToken,
    /// One permit for each request in flight on any connection.
    pub(crate) places: Arc<Semaphore>,
    /// One permit for each byte of a large body.
    pub(crate) memory: Arc<Semaphore>,
    pub(crate) zero_copy: Arc<Counts>,
    pub(crate) connections: Arc<Connections>,
}
