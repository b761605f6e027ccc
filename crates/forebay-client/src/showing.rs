//! Having a worker on this host show bytes ahead of their readers, and letting go of what was shown ([`crate::views`]).

use std::sync::Arc;

use forebay_transport::{Flags, Payload, Provenance};
use forebay_types::{BlockKey, Failure, FileVersion};
use tokio::time::Instant;

use crate::shared::ClientShared;
use crate::views::{Added, STAYS};

/// The part of a worker's memory that one client has it show ahead of its readers, at most.
const PART: u64 = 8;

/// How many times as much may be shown as readers may be ahead by: each looks at parts of two blocks more than lie ahead of it.
/// With less, what was shown would go before it is read, and be asked for twice.
const LEEWAY: u64 = 2;

/// Has the worker on this host that owns a block show bytes of it ahead of their reader; where it had them from.
///
/// # Errors
/// When no worker could deliver them.
pub(crate) async fn show(
    shared: &Arc<ClientShared>,
    version: &FileVersion,
    key: BlockKey,
    offset: u32,
    length: u32,
) -> Result<Provenance, Failure> {
    let buffers = shared.engine.store();
    let reply = shared.router.read(version, key, offset, length, Flags::default(), buffers).await?;
    shared.stats.delivered(reply.provenance);
    let Payload::Shared(spans) = reply.payload else {
        // It landed in a buffer: the worker is not to be seen any more, or has no more to show.
        shared.views.clear();
        return Ok(reply.provenance);
    };
    let most = shared.router.routes().memory_seen() / PART / u64::from(shared.options.block_size);
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    if shared.views.add(key, offset, spans, most, Instant::now()) == Added::First {
        let client = Arc::clone(shared);
        shared.tasks.spawn_on(async move { sweep(&client).await }, &shared.runtime);
    }
    Ok(reply.provenance)
}

/// How many bytes all readers together may be ahead by.
pub(crate) fn ahead_at_most(shared: &ClientShared) -> u64 {
    shared.options.prefetch_budget.min(shared.router.routes_seen().ahead(PART * LEEWAY))
}

async fn sweep(shared: &ClientShared) {
    loop {
        // Over when the client is closed.
        let _ = tokio::time::timeout(STAYS, shared.views.cleared()).await;
        if !shared.views.sweep(Instant::now()) {
            break;
        }
    }
}
