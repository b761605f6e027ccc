//! The node behind a session, on a thread of its own from its start to its end.
//!
//! Whoever waits for a session may give up, be interrupted or be garbage-collected at any time. The node is ended in order all the same:
//! its thread ends it once the session is closed or gone, or once nobody waits for its start any more.

use forebay_client::Client;
use forebay_locks::Mutex;
use forebay_node::NodeBuilder;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::runtime::runtime;

/// A node that runs. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct NodeThread {
    /// Dropped, it tells the thread to end the node.
    stop: Mutex<Option<oneshot::Sender<()>>>,
    ended: CancellationToken,
}

impl NodeThread {
    /// Starts the node that `builder` describes. If the future is dropped, the node ends as soon as it can.
    ///
    /// # Errors
    /// What is wrong with the node, or that there is no thread for it.
    pub(crate) async fn start(builder: NodeBuilder) -> Result<(Self, Client), Error> {
        let handle = runtime()?.handle().clone();
        let (given_up, ended) = (CancellationToken::new(), CancellationToken::new());
        let (tell, told) = oneshot::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let builder = builder.cancelled_by(given_up.clone());
        let given_up = given_up.drop_guard();
        let has_ended = ended.clone().drop_guard();
        let life = move || {
            handle.block_on(live(builder, tell, stopped));
            drop(has_ended);
        };
        let thread = std::thread::Builder::new().name("forebay-node".to_owned()).spawn(life);
        thread.map_err(|error| Error::system("cannot start a thread", &error))?;
        let client = told.await.unwrap_or_else(|_| Err(Error::lost("the start of a node")))?;
        given_up.disarm();
        Ok((Self { stop: Mutex::new(Some(stop)), ended }, client))
    }

    /// Ends the node, and waits until it has ended.
    pub(crate) async fn close(&self) {
        drop(self.stop.lock().take());
        self.ended.cancelled().await;
    }
}

async fn live(builder: NodeBuilder, tell: oneshot::Sender<Result<Client, Error>>, stopped: oneshot::Receiver<()>) {
    let node = match builder.start().await {
        Ok(node) => node,
        Err(error) => {
            // Nobody may listen any more.
            let _ = tell.send(Err(error.into()));
            return;
        }
    };
    let client = node.client().cloned().ok_or_else(|| Error::lost("a client"));
    if tell.send(client).is_ok() {
        // An error is how it is told: the sender was dropped.
        let _ = stopped.await;
    }
    if let Err(error) = node.shutdown().await {
        tracing::warn!(%error, "a node did not end in order");
    }
}
