//! Starts a process of `forebay keeper`, and waits until it listens.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{Pid, PidfdFlags};
use tracing::{info, warn};

use crate::error::{Exit, Fault};
use crate::handover::{connect, is_nobody};

/// How long a keeper may take until it listens.
const LISTENS_WITHIN: Duration = Duration::from_secs(10);
const LOOKED_AT_EVERY: Duration = Duration::from_millis(10);

/// A connection to a new keeper at `socket`, which ends with our container, if we are in one, and its process. It has the next processes
/// started by whoever listens at `launcher`, or starts them itself.
///
/// # Errors
/// When it cannot be started, ends at once, or does not listen within [`LISTENS_WITHIN`]: it is killed then.
pub(crate) fn start(program: &Path, socket: &Path, launcher: Option<&Path>) -> anyhow::Result<(UnixStream, OwnedFd)> {
    let mut command = Command::new(program);
    command.arg("keeper").arg("--socket").arg(socket);
    if let Some(launcher) = launcher {
        command.arg("--launcher").arg(launcher);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut keeper = command.spawn().with_context(|| format!("cannot start {} keeper", program.display()))?;
    // Before anybody waits for it: until then its number is no other process's.
    let process = rustix::process::pidfd_open(Pid::from_child(&keeper), PidfdFlags::empty());
    let connected = listening(&mut keeper, socket);
    if connected.is_err() || process.is_err() {
        let _ = keeper.kill();
    }
    let pid = keeper.id();
    // Somebody has to wait for it.
    let waiting = thread::Builder::new().name("forebay-keeper".to_owned()).spawn(move || match keeper.wait() {
        Ok(status) if status.success() => info!(pid, "a keeper has ended"),
        ended => warn!(pid, ?ended, "a keeper has ended: its mount ends if the process that serves it is killed"),
    });
    waiting.context("cannot start a thread")?;
    info!(pid, socket = %socket.display(), listens = connected.is_ok(), "a keeper was started");
    Ok((connected?, process.context("cannot get hold of the keeper's process")?))
}

/// A connection to a keeper that was just started.
fn listening(keeper: &mut Child, socket: &Path) -> anyhow::Result<UnixStream> {
    let until = Instant::now() + LISTENS_WITHIN;
    loop {
        match connect(socket) {
            Err(error) if !is_nobody(&error, || true) => return Err(error),
            Ok(stream) => return Ok(stream),
            Err(_) => {}
        }
        if let Some(status) = keeper.try_wait().context("cannot wait for the keeper")? {
            let what = format!("the keeper of the mount ended at once ({status})");
            return Err(Fault::new(Exit::Failed, what, "see the log").into());
        }
        if Instant::now() >= until {
            let what = format!("the keeper of the mount does not listen at {}", socket.display());
            return Err(Fault::new(Exit::Failed, what, "see the log").into());
        }
        thread::sleep(LOOKED_AT_EVERY);
    }
}
