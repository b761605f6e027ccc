//! `forebay keeper`: has what a mount lives by while no process serves it.
//!
//! A mount with `fuse.survive_crash` starts one, or finds it. It holds descriptors and memory and understands neither; it starts the
//! process of the mount again where that was in the background; and it ends with the mount. With `--host` it starts keepers for others.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use forebay_config::Config;
use forebay_node::{keepers, keeping};
use tracing::{debug, warn};

use crate::signals::Signals;
use crate::{logging, runtime};

/// How long mounts may come to be served by nobody when a host ends: longer than a process takes to leave one. Shorter than what
/// Kubernetes gives a pod.
const UNMOUNTED_WITHIN: Duration = Duration::from_secs(20);

/// Keep a mount while the process that serves it is started again
///
/// A mount with fuse.survive_crash starts this command by itself: there is nothing to be done by hand. The keeper holds
/// the kernel's connection and the state of the mount. When the process of the mount is killed, programs that use the
/// mount wait, and the keeper gives what it holds to the next process. It starts that process if the mount was in the
/// background. If none serves the mount for 5 minutes, or the mount is unmounted, the keeper ends. With --host the command
/// starts keepers for all processes of this run directory, so that no keeper ends with them, as in another container.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("where").required(true).args(["socket", "host"]))]
#[command(after_help = "\
Example:
  forebay mount /mnt/data --workers node1:29999 -o fuse.survive_crash=true     # starts a keeper
  forebay keeper --socket /run/forebay/private/0123456789ab.keeper.sock
  forebay keeper --host /run/forebay/private/keepers.sock --launcher /run/forebay/private/launcher.sock")]
pub(crate) struct Args {
    /// Where processes of the mount reach it
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Where processes ask for keepers: private/keepers.sock in the run directory
    #[arg(long, value_name = "PATH")]
    host: Option<PathBuf>,
    /// Where a process listens that starts those of mounts, as `forebay csi` does [default: keepers start them]
    #[arg(long, value_name = "PATH")]
    launcher: Option<PathBuf>,
    /// With --host: a directory below which, at the end, what nobody serves is unmounted
    #[arg(long, value_name = "DIRECTORY", requires = "host")]
    unmount: Option<PathBuf>,
}

/// Runs it.
///
/// # Errors
/// When it cannot listen, or another keeper does.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let [socket, host, launcher] = [&args.socket, &args.host, &args.launcher].map(|path| path.as_deref().map(absolute));
    let [socket, host, launcher] = [socket.transpose()?, host.transpose()?, launcher.transpose()?];
    logging::to_stderr(&Config::default(), Config::default().log_level)?;
    on_its_own();
    match (socket, host) {
        (Some(socket), _) => runtime::on_one_thread(keeping::keep(&socket, launcher)),
        (None, Some(host)) => {
            let unmount = args.unmount.as_deref().map(absolute).transpose()?;
            runtime::on_one_thread(start_for_others(&host, launcher.as_deref(), unmount))
        }
        // The group of both is required.
        (None, None) => Ok(()),
    }
}

fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("cannot resolve {}", path.display()))
}

async fn start_for_others(host: &Path, launcher: Option<&Path>, unmount: Option<PathBuf>) -> anyhow::Result<()> {
    let mut signals = Signals::take()?;
    let end = async {
        let signal = signals.next().await;
        warn!(signal, "ending: in a container keepers end, too, and their mounts are kept no more");
    };
    let keepers = keepers::host(host, launcher, end).await?;
    let Some(directory) = unmount else { return Ok(()) };
    let unmounting = move || {
        keepers.end();
        keepers::unmount_unserved(&directory, UNMOUNTED_WITHIN)
    };
    tokio::task::spawn_blocking(unmounting).await.context("unmounting panicked")?
}

/// What happens to a terminal does not reach it, nor does it keep a directory in use; and there is no reason to end it for its memory.
fn on_its_own() {
    // It fails for the first of its session, which is on its own already.
    if let Err(error) = rustix::process::setsid() {
        debug!(%error, "no session of its own");
    }
    let done =
        std::env::set_current_dir(Path::new("/")).and_then(|()| std::fs::write("/proc/self/oom_score_adj", "-500"));
    if let Err(error) = done {
        debug!(%error, "only root makes it the last to be ended when memory is short");
    }
}
