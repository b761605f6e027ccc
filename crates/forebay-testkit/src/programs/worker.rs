//! `forebay worker` as a process.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;

use anyhow::{Context as _, bail};

use super::{PATIENCE, Programs, end};

/// A running worker; it ends when dropped.
pub struct WorkerProcess {
    child: Child,
    address: SocketAddr,
    /// Passes on what the worker logs.
    log: Option<JoinHandle<()>>,
}

impl WorkerProcess {
    /// Starts a worker on a free port of the loopback interface. `settings` are written `key=value`; one of them is
    /// `mounts`.
    ///
    /// # Errors
    /// When it was not built or does not start.
    pub fn start(
        programs: &Programs,
        settings: impl IntoIterator<Item = impl AsRef<OsStr>>,
        environment: impl IntoIterator<Item = (impl AsRef<OsStr>, impl AsRef<OsStr>)>,
    ) -> anyhow::Result<Self> {
        let mut command = programs.command("forebay")?;
        command.arg("worker").args(["-o", "worker.rpc.bind.host=127.0.0.1", "-o", "worker.rpc.port=0"]);
        for setting in settings {
            command.arg("-o").arg(setting);
        }
        let mut child =
            command.envs(environment).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().context("cannot start it")?;
        let Some(stderr) = child.stderr.take() else { bail!("the worker has no standard error") };
        let (tell, told) = mpsc::channel();
        let log = std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                match line.split_once("worker listening on ").and_then(|(_, address)| address.trim().parse().ok()) {
                    // The receiver is gone once the worker is known to be there.
                    Some(address) => drop(tell.send(address)),
                    None => eprintln!("{line}"),
                }
            }
        });
        match told.recv_timeout(PATIENCE) {
            Ok(address) => Ok(Self { child, address, log: Some(log) }),
            Err(_) => {
                let _ = end(&mut child);
                bail!("the worker did not start; it says why above")
            }
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the worker and waits for it.
    ///
    /// # Errors
    /// When the system refuses to end it.
    pub fn stop(mut self) -> std::io::Result<()> {
        end(&mut self.child)
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = end(&mut self.child);
        // Its end of the pipe is closed, so the thread ends.
        if let Some(log) = self.log.take() {
            let _ = log.join();
        }
    }
}
