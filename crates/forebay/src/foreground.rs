//! A node in the foreground, as systemd and Kubernetes want it.

use forebay_node::{NodeAddresses, NodeBuilder};
use tracing::{info, warn};

use crate::service::Service;
use crate::signals::{self, Signals};

/// Serves until a signal asks for the end; `say` says where, as soon as it listens. A second signal ends it at once.
///
/// # Errors
/// Those of the node, and the interruption of its start.
pub(crate) async fn serve(node: NodeBuilder, say: impl FnOnce(NodeAddresses)) -> anyhow::Result<()> {
    let mut signals = Signals::take()?;
    let service = Service::of_environment();
    let node = signals::start(&mut signals, node).await?;
    say(node.addresses());
    let signal = service.follow(node.ready(), signals.next()).await;
    info!(signal, "ending");
    service.ends();
    tokio::select! {
        ended = node.shutdown() => {
            ended?;
            info!("ended");
        }
        signal = signals.next() => warn!(signal, "ending at once"),
    }
    Ok(())
}
