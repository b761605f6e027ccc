//! A mount by a program of others, which runs in the foreground as a child of this one.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::process::with_descendants;

/// How long it may take to mount.
const MOUNT_WITHIN: Duration = Duration::from_secs(30);
/// How long it may take to end.
const END_WITHIN: Duration = Duration::from_secs(20);
/// How often it is looked for.
const LOOK: Duration = Duration::from_millis(10);

/// The mount and its processes.
pub(crate) struct Foreign {
    mountpoint: PathBuf,
    child: Child,
    /// The child and what it has started, whatever becomes of their numbers.
    family: Vec<OwnedFd>,
    mounted: bool,
}

impl Foreign {
    /// Runs `command`, which mounts at `mountpoint` and stays in the foreground. What it says goes to `log`. Gives the processes
    /// that serve it, too.
    ///
    /// # Errors
    /// When it does not mount.
    pub(crate) fn start(mut command: Command, mountpoint: &Path, log: &Path) -> anyhow::Result<(Self, Vec<u32>)> {
        std::fs::create_dir_all(mountpoint)?;
        let output = std::fs::File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let name = command.get_program().display().to_string();
        // Ctrl-C is for this program, which ends the others when it has ended its measurement.
        let child = command.process_group(0).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).spawn();
        let child = child.with_context(|| format!("cannot start {name}"))?;
        let mut foreign = Self { mountpoint: mountpoint.to_owned(), child, family: Vec::new(), mounted: false };
        let deadline = Instant::now() + MOUNT_WITHIN;
        while !foreign.is_mounted()? {
            let ended = foreign.child.try_wait()?;
            if ended.is_some() || Instant::now() > deadline {
                let said = std::fs::read_to_string(log).unwrap_or_default();
                let last = said.lines().rev().take(5).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>();
                bail!("{name} did not mount {}:\n{}", mountpoint.display(), last.join("\n"));
            }
            std::thread::sleep(LOOK);
        }
        foreign.mounted = true;
        let pids = with_descendants(foreign.child.id());
        let open = |pid: &u32| pidfd_open(Pid::from_raw(i32::try_from(*pid).ok()?)?, PidfdFlags::empty()).ok();
        foreign.family = pids.iter().filter_map(open).collect();
        Ok((foreign, pids))
    }

    fn is_mounted(&self) -> anyhow::Result<bool> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").context("cannot read /proc/self/mountinfo")?;
        let path = std::fs::canonicalize(&self.mountpoint).unwrap_or_else(|_| self.mountpoint.clone());
        let path = path.display().to_string();
        Ok(mounts.lines().any(|line| line.split(' ').nth(4) == Some(path.as_str())))
    }

    /// Unmounts, and waits until all of its processes have ended.
    ///
    /// # Errors
    /// When it is in use.
    pub(crate) fn unmount(mut self) -> anyhow::Result<()> {
        self.mounted = false;
        let output = Command::new("umount").arg(&self.mountpoint).output().context("cannot run umount")?;
        let said = String::from_utf8_lossy(&output.stderr);
        // What follows ends it all the same.
        anyhow::ensure!(output.status.success(), "cannot unmount {}: {}", self.mountpoint.display(), said.trim());
        Ok(())
    }

    fn end(&mut self) {
        for process in &self.family {
            if has_ended(process, END_WITHIN) {
                continue;
            }
            let _ = pidfd_send_signal(process, Signal::TERM);
            if !has_ended(process, END_WITHIN) {
                let _ = pidfd_send_signal(process, Signal::KILL);
            }
        }
        if self.family.is_empty() {
            // It never came to mount.
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// Waits for a process to end.
fn has_ended(process: &OwnedFd, within: Duration) -> bool {
    let deadline = Timespec { tv_sec: within.as_secs().try_into().unwrap_or(1), tv_nsec: 0 };
    matches!(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&deadline)), Ok(1))
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if self.mounted || self.is_mounted().unwrap_or(false) {
            let status = Command::new("umount").arg("--lazy").arg(&self.mountpoint).status();
            if let Err(error) = status {
                eprintln!("cannot unmount {}: {error}", self.mountpoint.display());
            }
        }
        self.end();
    }
}
