//! Processes that are stopped for a while, as if they hung.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Signal};

/// How long a process may take to stop: it waits for a processor first.
const WITHIN: Duration = Duration::from_secs(60);

/// Stops process `pid` (`SIGSTOP`), and waits until all its threads stand still.
///
/// The signal alone does not do that: the kernel gives it to one of the threads, which must run to stop the others. On a busy machine these
/// go on for milliseconds, and answer what is sent to them.
///
/// # Errors
/// When there is no such process, or it does not stop.
pub fn stop_process(pid: u32) -> anyhow::Result<()> {
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw).context("no such process")?;
    rustix::process::kill_process(process, Signal::STOP).with_context(|| format!("stopping process {pid}"))?;
    let deadline = Instant::now() + WITHIN;
    while !stands_still(pid)? {
        ensure!(Instant::now() < deadline, "process {pid} does not stop within {WITHIN:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Whether each thread of process `pid` is stopped (proc(5): `T` in `/proc/PID/task/TID/stat`), or has ended.
fn stands_still(pid: u32) -> anyhow::Result<bool> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).with_context(|| format!("process {pid} has ended"))?;
    for thread in threads {
        // One that ends meanwhile has no state.
        let Ok(stat) = thread.and_then(|thread| std::fs::read_to_string(thread.path().join("stat"))) else { continue };
        // The name is in brackets, and may have some itself.
        let state = stat.rsplit_once(") ").and_then(|(_, fields)| fields.chars().next());
        if !matches!(state, Some('T' | 'Z' | 'X')) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_is_stopped_when_it_is_said_to_be() {
        let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).stdout(Stdio::null()).spawn().unwrap();
        let is_still = || stands_still(child.id()).unwrap();
        let before = is_still();
        let stopped = stop_process(child.id());
        let after = is_still();
        child.kill().unwrap();
        child.wait().unwrap();
        stopped.unwrap();
        assert_eq!((before, after), (false, true));
        assert!(stop_process(0).is_err());
    }
}
