//! Starts the keeper of a mount again when it has ended: does what [`crate::keeper_watch`] decides.

use std::path::PathBuf;
use std::time::Instant;

use forebay_fuse::HandOver;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::keeper_watch::{Action, Event, KeeperWatch};
use crate::keeping::{self, KeeperProgram};

/// Watches the keeper of a mount for as long as this process serves that.
pub(crate) struct KeeperWatcher {
    stop: CancellationToken,
    watching: JoinHandle<()>,
}

impl KeeperWatcher {
    /// Watches that of `mount`, which is at `mountpoint`, as the kernel names it. Another one is had as `program` says.
    pub(crate) fn start(mountpoint: PathBuf, program: KeeperProgram, mount: HandOver) -> Self {
        let stop = CancellationToken::new();
        let watcher = Watching { of_host: keeping::has_host(&mountpoint), mountpoint, program, mount };
        let stopped = stop.clone();
        let watching = tokio::spawn(async move {
            // What is being started then is given nothing, and ends.
            let _ = stopped.run_until_cancelled(watcher.watch()).await;
        });
        Self { stop, watching }
    }

    /// Watches no more.
    pub(crate) async fn close(self) {
        self.stop.cancel();
        if let Err(error) = self.watching.await {
            warn!(%error, "watching the keeper of the mount panicked");
        }
    }
}

struct Watching {
    mountpoint: PathBuf,
    program: KeeperProgram,
    mount: HandOver,
    /// Whether keepers are had of a host.
    of_host: bool,
}

impl Watching {
    async fn watch(&self) {
        let (mut watch, mut action) = KeeperWatch::begin(Instant::now());
        loop {
            let event = match action {
                Action::Look(at) => {
                    tokio::time::sleep_until(at.into()).await;
                    Event::Looked(!self.mount.lacks_keeper())
                }
                Action::Start => {
                    self.renew().await;
                    Event::Tried
                }
            };
            action = watch.on(event, Instant::now());
        }
    }

    async fn renew(&self) {
        let (mountpoint, program, of_host) = (self.mountpoint.clone(), self.program.clone(), self.of_host);
        let mount = self.mount.clone();
        let renewing = move || -> anyhow::Result<bool> {
            let keeper = keeping::another(&mountpoint, program, of_host)?;
            Ok(mount.renew(keeper)?)
        };
        match tokio::task::spawn_blocking(renewing).await {
            Ok(Ok(true)) => info!("the keeper of the mount has ended, and another one has it"),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => warn!(
                error = format!("{error:#}"),
                "the keeper of the mount has ended, and there is no other yet: the mount ends if this process is killed"
            ),
            Err(error) => warn!(%error, "starting a keeper panicked"),
        }
    }
}
