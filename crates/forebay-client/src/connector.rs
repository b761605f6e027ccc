//! The way from a member of the cluster to a link to it, so that the client knows no transport by name.

use std::sync::Arc;

use forebay_cluster::Member;
use forebay_memory::Pool;
use forebay_transport::Transport;
use futures::future::BoxFuture;

/// Makes links to workers. A link is made when the member is first seen and connects when it is first used.
pub trait Connector: Send + Sync + 'static {
    /// A link to `member`.
    fn connect(&self, member: &Member) -> Arc<dyn Transport>;

    /// Callers' buffers ([`crate::CallerBuffer`]) are pieces of `memory` from now on, which may be registered with network cards.
    /// It is let go when the links have ended.
    fn register(&self, _memory: &Pool) {}

    /// Whether `buffer` is registered with all network cards that a reply may come over, so that the reply is fetched into it and
    /// not copied. Called for each buffer, before the call: what is asked about often may be registered because of that.
    fn is_registered(&self, _buffer: &[u8]) -> bool {
        false
    }

    /// Ends what the links share. They are closed before.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}
