//! Starting again what serves a mount, for its keeper, or for a driver whose pod is replaced by this one (ADR 0028, ADR 0030).
//!
//! A keeper is in a pod of its own, in which no daemon could run. When a daemon has died it asks here, and what it asks for
//! is the command line and the environment that this driver, or the one before it, once gave that daemon. One that had the driver's
//! own credentials gets those that the driver has by now.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_handover::Restart;
use forebay_private::{PrivateError, PrivateListener};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::volume::{OF_DRIVER, is_of_cloud};

/// The name of the socket, next to that of the keepers' host.
const NAME: &str = "launcher.sock";
/// How long no connection is accepted after the system refused to accept one.
const PAUSE: Duration = Duration::from_millis(100);

/// Where the launcher of the driver listens that relies on the host of keepers at `keepers`.
pub(crate) fn beside(keepers: &Path) -> PathBuf {
    keepers.with_file_name(NAME)
}

/// Starts daemons for keepers.
#[derive(Debug)]
pub(crate) struct Launcher {
    listener: PrivateListener,
}

impl Launcher {
    /// Listens next to the host of keepers. To be called in a runtime.
    ///
    /// # Errors
    /// When it cannot.
    pub(crate) fn beside(keepers: &Path) -> Result<Self, PrivateError> {
        Ok(Self { listener: PrivateListener::bind(&beside(keepers))? })
    }

    /// The number of its socket's file.
    pub(crate) fn inode(&self) -> u64 {
        self.listener.inode()
    }

    /// Starts what is asked for, until `ending`.
    pub(crate) async fn serve(self, ending: CancellationToken) {
        loop {
            let accepted = tokio::select! {
                () = ending.cancelled() => return,
                accepted = self.listener.accept() => accepted.and_then(UnixStream::into_std),
            };
            match accepted {
                Ok(stream) => spawn(stream),
                Err(error) => {
                    warn!(%error, "cannot accept a connection of a keeper");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

/// A thread for each daemon, as long as that lives. Nobody waits for it at the end.
fn spawn(stream: std::os::unix::net::UnixStream) {
    let launching = move || {
        if let Err(error) = forebay_handover::launch(stream, renewed) {
            warn!(%error, "a keeper is not understood");
        }
    };
    let spawned: io::Result<_> = std::thread::Builder::new().name("forebay-launch".to_owned()).spawn(launching);
    if let Err(error) = spawned {
        // The keeper hears that the connection has ended, and asks again.
        warn!(%error, "no thread for a daemon");
    }
}

/// As it is to be started by this driver.
fn renewed(restart: Restart) -> Restart {
    if restart.has_variable(OF_DRIVER) { restart.with_own(is_of_cloud) } else { restart }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_keeper_finds_it_next_to_its_host_and_what_makes_no_sense_ends_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let keepers = directory.path().join("private/keepers.sock");
        let launcher = Launcher::beside(&keepers).unwrap();
        let ending = CancellationToken::new();
        let serving = tokio::spawn(launcher.serve(ending.clone()));
        for _ in 0..2 {
            let stream = UnixStream::connect(keepers.with_file_name("launcher.sock")).await.unwrap();
            stream.writable().await.unwrap();
            stream.try_write(&[0xff; 16]).unwrap();
            stream.readable().await.unwrap();
            assert!(matches!(stream.try_read(&mut [0; 1]), Ok(0) | Err(_)));
        }
        ending.cancel();
        serving.await.unwrap();
        assert!(!keepers.with_file_name("launcher.sock").exists());
    }
}
