//! Serves the router over HTTP: connections are bounded, slow heads are cut off, and closing waits for answers under
//! way.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Connections at once. Who comes when all are taken waits.
const CONNECTIONS: usize = 512;
/// How long the head of a request may take to arrive; an idle connection is closed after it, too.
const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// How long answers under way are waited for at the end.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// How long nobody is taken after the system refused to take one, as when there are no descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// The server, while it serves. Dropping it ends it, too, without waiting.
#[derive(Debug)]
pub(crate) struct Server {
    stop: CancellationToken,
    serving: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start(listener: TcpListener, router: Router) -> Self {
        let stop = CancellationToken::new();
        let serving = tokio::spawn(serve(listener, router, stop.clone()));
        Self { stop, serving: Some(serving) }
    }

    pub(crate) async fn close(mut self) {
        self.stop.cancel();
        if let Some(serving) = self.serving.take() {
            // It does not panic, and nobody else cancels it.
            let _ = serving.await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    let (places, connections) = (Arc::new(Semaphore::new(CONNECTIONS)), TaskTracker::new());
    while let Some((stream, place)) = next(&listener, &places, &stop).await {
        connections.spawn(connection(stream, place, router.clone(), stop.clone()));
    }
    connections.close();
    connections.wait().await;
}

/// The next connection; `None` when it is time to stop.
async fn next(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
    stop: &CancellationToken,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    loop {
        let accepted = async {
            let place = Arc::clone(places).acquire_owned().await.ok()?;
            Some((listener.accept().await, place))
        };
        let (accepted, place) = tokio::select! {
            accepted = accepted => accepted?,
            () = stop.cancelled() => return None,
        };
        match accepted {
            Ok((stream, _)) => return Some((stream, place)),
            Err(error) => {
                tracing::warn!(%error, "no connection is taken for a moment");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, _place: OwnedSemaphorePermit, router: Router, stop: CancellationToken) {
    let service = TowerToHyperService::new(router);
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = stop.cancelled() => {
            served.as_mut().graceful_shutdown();
            tokio::time::timeout(LAST_ANSWERS, served).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended badly");
    }
}
