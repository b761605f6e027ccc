//! What a process that serves a mount tells others on this machine: whoever connects to a Unix socket beside its run state is
//! sent a JSON object and the end.
//!
//! It is the client's side: what it read from where, its buffers, and its paths to workers. The socket only tells, so everybody
//! may ask, as everybody may read the run state; and nobody can keep it busy, for places and time are bounded.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long an answer may take: it is made of counters.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Bytes of an answer that are read, at most.
const MOST_BYTES: u64 = 4 << 20;
/// Answers under way at once. Who comes when all are taken is sent away.
const PLACES: usize = 16;
/// How long nobody is taken after the system refused to take one, as when there are no descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// The socket, while it is served. Dropping it ends it, too, without waiting.
pub(crate) struct Control {
    stop: CancellationToken,
    serving: Option<JoinHandle<()>>,
}

impl Control {
    /// Serves `report` at `socket`, in the place of whatever a process that was killed left there.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub(crate) fn serve(socket: &Path, report: impl Fn() -> Value + Send + Sync + 'static) -> anyhow::Result<Self> {
        let cannot_make = || format!("cannot listen on {}", socket.display());
        if let Err(error) = std::fs::remove_file(socket)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(error).with_context(cannot_make);
        }
        let listener = UnixListener::bind(socket).with_context(cannot_make)?;
        std::fs::set_permissions(socket, Permissions::from_mode(0o666)).with_context(cannot_make)?;
        let stop = CancellationToken::new();
        let serving = tokio::spawn(serve(listener, report, stop.clone()));
        Ok(Self { stop, serving: Some(serving) })
    }

    /// Ends it, answers under way included.
    pub(crate) async fn close(mut self) {
        self.stop.cancel();
        if let Some(serving) = self.serving.take() {
            // It panics only if `report` does, which has been told.
            let _ = serving.await;
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn serve(listener: UnixListener, report: impl Fn() -> Value, stop: CancellationToken) {
    let (places, answers) = (Arc::new(Semaphore::new(PLACES)), TaskTracker::new());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        let Ok((mut stream, _)) = accepted else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        let (text, stop) = (report().to_string(), stop.clone());
        answers.spawn(async move {
            let _place = place;
            let answer = async {
                // Who asked may have left.
                let _ = stream.write_all(text.as_bytes()).await;
                let _ = stream.shutdown().await;
            };
            tokio::select! {
                _ = tokio::time::timeout(ANSWER_WITHIN, answer) => {}
                () = stop.cancelled() => {}
            }
        });
    }
    answers.close();
    answers.wait().await;
}

/// What the process behind `socket` reports.
///
/// # Errors
/// When it does not answer in time, or with something else.
pub(crate) async fn ask(socket: &Path) -> anyhow::Result<Value> {
    let answer = async {
        let mut text = Vec::new();
        UnixStream::connect(socket).await?.take(MOST_BYTES).read_to_end(&mut text).await?;
        anyhow::ensure!(!text.is_empty(), "it is busy with others; try again");
        Ok(serde_json::from_slice(&text)?)
    };
    let answer = tokio::time::timeout(ANSWER_WITHIN, answer).await;
    let answer = answer.unwrap_or_else(|_| anyhow::bail!("no answer within {ANSWER_WITHIN:?}"));
    answer.with_context(|| format!("the process behind {} does not answer", socket.display()))
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

    #[tokio::test]
    async fn those_who_ask_and_do_not_listen_take_no_more_than_their_places() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("m.sock");
        // More than a socket's buffer holds.
        let control = Control::serve(&socket, || Value::String("x".repeat(2 << 20))).unwrap();
        let mut deaf = Vec::new();
        for _ in 0..3 * PLACES {
            deaf.push(UnixStream::connect(&socket).await.unwrap());
        }
        let error = format!("{:#}", ask(&socket).await.unwrap_err());
        assert!(error.contains("busy") || error.contains("reset"), "{error}");
        let files = std::fs::read_dir("/proc/self/fd").unwrap().count();
        assert!(files < 3 * PLACES + 2 * PLACES + 64, "{files} descriptors");
        drop(deaf);
        let patience = tokio::time::Instant::now() + ANSWER_WITHIN;
        while ask(&socket).await.is_err() {
            assert!(tokio::time::Instant::now() < patience, "it does not answer any more");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let before_closing = UnixStream::connect(&socket).await.unwrap();
        control.close().await;
        drop(before_closing);
    }
}
