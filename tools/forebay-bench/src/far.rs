//! A worker that is some time away: every request waits so long before it is answered, as behind a network with that round trip.
//!
//! Nothing is slower otherwise. A proxy that holds back bytes would copy each of them twice more, on the processors that are
//! measured, and a kernel that delays packets (`tc netem`) is not everywhere. So this is the worker of `forebay worker` with one
//! more service in front of it, in a process of its own.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use forebay_tcp::{ServerOptions, TcpServer};
use forebay_transport::{Request, Response, Service};
use forebay_types::{ByteSize, Failure, FailureKind, MAX_BLOCK_SIZE, format_duration, parse_duration};
use tokio::sync::oneshot;

use crate::fixture::Fixture;
use crate::library::{self, Checks};
use crate::server::{ServerProcess, until_end};

/// The cluster that `forebay mount` is in.
const CLUSTER: &str = "forebay";

/// Starts one for the bucket, with room for all of it.
///
/// # Errors
/// When it does not listen.
pub(crate) fn start(fixture: &Fixture, delay: Duration) -> anyhow::Result<ServerProcess> {
    let arguments =
        [fixture.bucket().into_os_string(), fixture.memory().to_string().into(), format_duration(delay).into()];
    ServerProcess::spawn("serve-worker", &arguments)
}

/// What it is started with.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The directory that it caches
    directory: PathBuf,
    /// Its memory
    memory: ByteSize,
    /// How far away it is
    #[arg(value_parser = parse_duration)]
    delay: Duration,
}

/// Serves until standard input ends.
///
/// # Errors
/// When it cannot listen.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let Arguments { directory, memory, delay } = arguments;
    let runtime = tokio::runtime::Runtime::new()?;
    let line = Line::start(*delay)?;
    runtime.block_on(serve(directory, *memory, line))
}

async fn serve(directory: &Path, memory: ByteSize, line: Line) -> anyhow::Result<()> {
    let (worker, store) = library::worker(directory, memory, Checks::Default).await?;
    let service = Arc::new(Far { near: Arc::clone(&worker) as Arc<dyn Service>, line });
    let options = ServerOptions::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), CLUSTER, MAX_BLOCK_SIZE);
    let server = TcpServer::bind(options, service)?;
    let address = server.local_addr();
    tokio::task::spawn_blocking(move || until_end(address)).await??;
    server.close().await;
    worker.close().await;
    drop(worker);
    store.close().await;
    Ok(())
}

/// The service in front.
struct Far {
    near: Arc<dyn Service>,
    line: Line,
}

#[async_trait::async_trait]
impl Service for Far {
    async fn handle(&self, request: Request, takes_files: bool) -> Result<Response, Failure> {
        self.line.wait().await?;
        match self.near.try_handle(&request) {
            Some(response) => Ok(response),
            None => self.near.handle(request, takes_files).await,
        }
    }
}

/// Lets every request through after the same time, in the order that they came in. A thread that sleeps is more exact
/// than tokio's timer, which counts milliseconds.
struct Line {
    delay: Duration,
    enter: mpsc::Sender<(Instant, oneshot::Sender<()>)>,
}

impl Line {
    fn start(delay: Duration) -> anyhow::Result<Self> {
        let (enter, entered) = mpsc::channel::<(Instant, oneshot::Sender<()>)>();
        let serve = move || {
            // By default the kernel may wake a thread 50 µs late. If that stays so, the line is a little longer.
            let _ = rustix::thread::set_current_timer_slack(NonZero::new(1));
            for (due, leave) in entered {
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                // A receiver that is gone needs no word.
                let _ = leave.send(());
            }
        };
        std::thread::Builder::new().name("line".to_owned()).spawn(serve).context("cannot start a thread")?;
        Ok(Self { delay, enter })
    }

    async fn wait(&self) -> Result<(), Failure> {
        if self.delay.is_zero() {
            return Ok(());
        }
        let (leave, left) = oneshot::channel();
        let ended = || Failure::new(FailureKind::Internal, "the line to this worker has ended");
        self.enter.send((Instant::now() + self.delay, leave)).map_err(|_| ended())?;
        left.await.map_err(|_| ended())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn everybody_waits_as_long_and_all_of_them_at_once() {
        let delay = Duration::from_millis(500);
        let line = Line::start(delay).unwrap();
        let began = Instant::now();
        futures::future::try_join_all((0..20).map(|_| line.wait())).await.unwrap();
        let took = began.elapsed();
        assert!(took >= delay, "{took:?}");
        // One after the other they would have taken twenty times as long.
        assert!(took < 15 * delay, "{took:?}");
    }
}
