//! `forebay up` and `forebay mount` in the background.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;

use super::{PATIENCE, Programs};

/// A mount and the process that serves it; both end when dropped.
pub struct MountProcess {
    programs: Programs,
    mountpoint: PathBuf,
    pid: u32,
    /// Names the process for as long as this lives, whatever becomes of its number.
    process: OwnedFd,
    mounted: bool,
}

impl MountProcess {
    /// `forebay up ORIGIN MOUNTPOINT`, with `arguments` after it. The mountpoint is made if need be, and the log is
    /// beside it.
    ///
    /// # Errors
    /// When it was not built or cannot mount.
    pub fn up(
        programs: &Programs,
        origin: &str,
        mountpoint: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        environment: impl IntoIterator<Item = (impl AsRef<OsStr>, impl AsRef<OsStr>)>,
    ) -> anyhow::Result<Self> {
        Self::start(programs, [OsStr::new("up"), OsStr::new(origin)], mountpoint, arguments, environment)
    }

    /// `forebay mount MOUNTPOINT --workers WORKERS`, with `arguments` after it. Mountpoint and log as for
    /// [`MountProcess::up`].
    ///
    /// # Errors
    /// When it was not built or cannot mount.
    pub fn mount(
        programs: &Programs,
        workers: &[String],
        mountpoint: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> anyhow::Result<Self> {
        let workers = [OsString::from("--workers"), workers.join(",").into()];
        let arguments = workers.into_iter().chain(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        Self::start(programs, [OsStr::new("mount")], mountpoint, arguments, std::iter::empty::<(&str, &str)>())
    }

    fn start<const N: usize>(
        programs: &Programs,
        command: [&OsStr; N],
        mountpoint: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        environment: impl IntoIterator<Item = (impl AsRef<OsStr>, impl AsRef<OsStr>)>,
    ) -> anyhow::Result<Self> {
        std::fs::create_dir_all(mountpoint)?;
        let mut log = OsString::from("log.file=");
        log.push(mountpoint.with_extension("log"));
        let output = programs
            .command("forebay")?
            .args(command)
            .arg(mountpoint)
            .args(arguments)
            .arg("-o")
            .arg(log)
            .arg("--json")
            .envs(environment)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .context("cannot start forebay")?;
        ensure!(output.status.success(), "`forebay {}` failed", command.join(OsStr::new(" ")).display());
        let summary: Value = serde_json::from_slice(&output.stdout).context("what `forebay` says with --json")?;
        let pid = summary["pid"].as_u64().and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.and_then(Pid::from_raw).context("`forebay … --json` names no process")?;
        let process = pidfd_open(pid, PidfdFlags::empty()).context("the process that mounts has ended")?;
        let (programs, mountpoint) = (programs.clone(), mountpoint.to_owned());
        Ok(Self { programs, mountpoint, pid: pid.as_raw_nonzero().get().unsigned_abs(), process, mounted: true })
    }

    /// Where the files are.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.mountpoint
    }

    /// The process that serves it.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// What `forebay stats --all --json` says: the counters of the first worker.
    ///
    /// # Errors
    /// When the worker does not answer.
    pub fn stats(&self) -> anyhow::Result<Value> {
        let output =
            self.programs.command("forebay")?.args(["stats", "--all", "--json"]).arg(&self.mountpoint).output()?;
        ensure!(output.status.success(), "`forebay stats` failed: {}", String::from_utf8_lossy(&output.stderr));
        let first = output.stdout.split(|byte| *byte == b'\n').next().unwrap_or_default();
        serde_json::from_slice(first).context("what `forebay stats --all --json` says")
    }

    /// Unmounts, and waits until the process has ended.
    ///
    /// # Errors
    /// When it is in use, or the process does not end.
    pub fn unmount(mut self) -> anyhow::Result<()> {
        self.mounted = false;
        let output = self.programs.command("forebay")?.arg("umount").arg(&self.mountpoint).output()?;
        ensure!(output.status.success(), "`forebay umount` failed: {}", String::from_utf8_lossy(&output.stderr));
        ensure!(self.has_ended(), "the process {} still runs after its mount has gone", self.pid);
        Ok(())
    }

    fn has_ended(&self) -> bool {
        let deadline = Timespec { tv_sec: PATIENCE.as_secs().try_into().unwrap_or(1), tv_nsec: 0 };
        matches!(poll(&mut [PollFd::new(&self.process, PollFlags::IN)], Some(&deadline)), Ok(1))
    }
}

impl Drop for MountProcess {
    fn drop(&mut self) {
        if self.mounted {
            let umount = self.programs.command("forebay").and_then(|mut forebay| {
                Ok(forebay.args(["umount", "--lazy"]).arg(&self.mountpoint).stderr(Stdio::inherit()).status()?)
            });
            if let Err(error) = umount {
                eprintln!("cannot unmount {}: {error}", self.mountpoint.display());
            }
        }
        if !self.has_ended() {
            // A reader would wait for ever for a process that neither serves nor ends.
            let _ = pidfd_send_signal(&self.process, Signal::KILL);
        }
    }
}
