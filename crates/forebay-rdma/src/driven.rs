//! I/O threads and servers as their owners see them, whichever provider drives the card.
//!
//! UCX ([`IoThread`](crate::IoThread), [`RdmaServer`](crate::RdmaServer)) and verbs
//! ([`VerbsThread`](crate::verbs::VerbsThread), [`VerbsServer`](crate::verbs::VerbsServer)) implement both.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use forebay_memory::Pool;
use forebay_metrics::LatencySnapshot;
use forebay_transport::{Service, Transport};
use forebay_types::ByteSize;

use crate::RdmaError;
use crate::io_thread::IoThreadStats;
use crate::options::{ClientOptions, ServerOptions};
use crate::server::ServerStats;

/// What drives a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Provider {
    /// libibverbs and librdmacm.
    Verbs,
    /// UCX.
    #[default]
    Ucx,
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Verbs => "verbs",
            Self::Ucx => "UCX",
        })
    }
}

/// An I/O thread. It drives what is of one card, and sleeps when there is nothing to do. It ends when it is closed, or with its last
/// holder.
#[async_trait::async_trait]
pub trait Driven: Send + Sync + 'static {
    /// What it drives its card by.
    fn provider(&self) -> Provider;

    /// Its name, for logs: the card's.
    fn name(&self) -> &str;

    /// What it is doing.
    fn stats(&self) -> IoThreadStats;

    /// How much of its pool is registered.
    fn registered(&self) -> ByteSize;

    /// Registers the first `size` bytes of its pool at least. Blocks.
    ///
    /// # Errors
    /// [`RdmaError`]. What was registered stays so.
    fn grow_to(&self, size: ByteSize) -> Result<(), RdmaError>;

    /// Callers may pass pieces of `pool` from now on, for replies to land in.
    fn register(&self, pool: &Pool);

    /// Whether all of `bytes` is registered, so that replies come into them without a copy.
    fn is_registered(&self, bytes: &[u8]) -> bool;

    /// Whether more memory of callers can be registered.
    fn can_register(&self) -> bool;

    /// Registers the frame of callers' memory that `bytes` lie in. Does not wait for it.
    fn register_frame(&self, bytes: &[u8]);

    /// A link to the server at `address`, written `HOST:PORT`. Nothing is connected before its first call.
    fn link(self: Arc<Self>, address: String, options: ClientOptions) -> Arc<dyn Transport>;

    /// Listens as `options` say and has `service` answer; a port that is taken is tried again each second.
    ///
    /// # Errors
    /// [`RdmaError::NotHere`] at once, others after `options.listen_within`.
    async fn listen(
        self: Arc<Self>,
        options: ServerOptions,
        service: Arc<dyn Service>,
    ) -> Result<Arc<dyn Listening>, RdmaError>;

    /// Ends every connection, and waits for the thread.
    async fn close(&self);
}

/// A listening server. It ends with its I/O thread.
#[async_trait::async_trait]
pub trait Listening: Send + Sync + 'static {
    /// The I/O thread that it listens on.
    fn thread(&self) -> Arc<dyn Driven>;

    /// Where it listens.
    fn local_addr(&self) -> SocketAddr;

    /// What it has counted.
    fn stats(&self) -> ServerStats;

    /// How long requests took, from their arrival until their replies were given to what sends them.
    fn latency(&self) -> LatencySnapshot;

    /// Closes every connection, and the I/O thread.
    async fn close(&self);
}
