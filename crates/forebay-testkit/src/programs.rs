//! Programs of this workspace as processes of their own, ended on every way out.
//!
//! [`Programs`] finds them; [`S3Process`], [`WorkerProcess`] and [`MountProcess`] are three that run. Each is ended when
//! dropped: asked first, waited for, and killed when it does not listen.

mod mount;
mod s3;
mod worker;

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::ensure;

pub use mount::MountProcess;
pub use s3::S3Process;
pub use worker::WorkerProcess;

/// How long a process may take to end, or to say that it is there.
const PATIENCE: Duration = Duration::from_secs(60);

/// The directory that cargo puts this workspace's programs into.
#[derive(Clone, Debug)]
pub struct Programs {
    directory: PathBuf,
}

impl Programs {
    /// The programs that were built with the one that runs now, which may be a test.
    ///
    /// # Errors
    /// When the system does not say where the running program lies.
    pub fn of_this_build() -> anyhow::Result<Self> {
        let own = std::env::current_exe()?;
        let directory = own.parent().unwrap_or(Path::new("."));
        // Tests lie one directory below.
        let directory = if directory.ends_with("deps") { directory.parent().unwrap_or(directory) } else { directory };
        Ok(Self { directory: directory.to_owned() })
    }

    /// A program, to be given its arguments.
    ///
    /// # Errors
    /// When it was not built.
    pub fn command(&self, name: &str) -> anyhow::Result<Command> {
        let path = self.directory.join(name);
        ensure!(path.exists(), "{} is missing: build it with `cargo build --bin {name}`", path.display());
        Ok(Command::new(path))
    }
}

/// Asks a process to end, waits, and kills it when it does not.
fn end(child: &mut Child) -> std::io::Result<()> {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        // It may have ended by itself: then there is nothing to ask.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait()?.is_none() {
        if Instant::now() > deadline {
            child.kill()?;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
