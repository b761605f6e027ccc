//! What a process that serves a mount tells others on this machine: HTTP on a Unix socket beside its run state.
//!
//! `GET /stats` is the client's side: what it read from where, its buffers, and its paths to workers. The socket only tells, so
//! everybody may ask, as everybody may read the run state.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use axum::routing::get;
use axum::{Json, Router};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How long an answer may take: it is made of counters.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Bytes of an answer that are read, at most.
const MOST_BYTES: usize = 4 << 20;

/// The socket, while it is served.
pub(crate) struct Control {
    stop: CancellationToken,
    serving: JoinHandle<std::io::Result<()>>,
}

impl Control {
    /// Serves `report` at `socket`, in the place of whatever a process that was killed left there.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub(crate) fn serve(
        socket: &Path,
        report: impl Fn() -> Value + Clone + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let cannot_make = || format!("cannot listen on {}", socket.display());
        if let Err(error) = std::fs::remove_file(socket)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(error).with_context(cannot_make);
        }
        let listener = UnixListener::bind(socket).with_context(cannot_make)?;
        std::fs::set_permissions(socket, Permissions::from_mode(0o666)).with_context(cannot_make)?;
        let answers = Router::new().route("/stats", get(move || std::future::ready(Json(report()))));
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let serving = tokio::spawn(async move { axum::serve(listener, answers).with_graceful_shutdown(stopped).await });
        Ok(Self { stop, serving })
    }

    /// Ends it; whoever is being answered is not waited for.
    pub(crate) async fn close(self) {
        self.stop.cancel();
        self.serving.abort();
        // Aborted, or ended by itself: nothing is left either way.
        let _ = self.serving.await;
    }
}

/// What the process behind `socket` reports.
///
/// # Errors
/// When it does not answer in time, or with something else.
pub(crate) async fn ask(socket: &Path) -> anyhow::Result<Value> {
    let asking = tokio::time::timeout(ANSWER_WITHIN, get_stats(socket));
    asking
        .await
        .unwrap_or_else(|_| anyhow::bail!("no answer within {ANSWER_WITHIN:?}"))
        .with_context(|| format!("{}", socket.display()))
}

async fn get_stats(socket: &Path) -> anyhow::Result<Value> {
    let stream = UnixStream::connect(socket).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let request = hyper::Request::get("/stats").header(hyper::header::HOST, "localhost").body(Empty::<Bytes>::new())?;
    let answer = async {
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        anyhow::ensure!(status.is_success(), "it answered {status}");
        let body = Limited::new(answer.into_body(), MOST_BYTES).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("the answer broke off: {error}"))?;
        Ok(serde_json::from_slice(&body.to_bytes())?)
    };
    // The connection does its work while it is awaited.
    tokio::select! {
        answer = answer => answer,
        Err(error) = connection => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_report_is_served_until_it_is_closed_and_a_dead_socket_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("m.sock");
        // As a killed process leaves it.
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let control = Control::serve(&socket, || serde_json::json!({ "answer": 42 })).unwrap();
        for _ in 0..2 {
            assert_eq!(ask(&socket).await.unwrap(), serde_json::json!({ "answer": 42 }));
        }
        control.close().await;
        let error = format!("{:#}", ask(&socket).await.unwrap_err());
        assert!(error.contains("m.sock"), "{error}");
    }

    #[tokio::test]
    async fn a_process_that_does_not_answer_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("m.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let closes = async { drop(listener.accept().await.unwrap()) };
        let (asked, ()) = tokio::join!(ask(&socket), closes);
        assert!(asked.is_err());
    }
}
