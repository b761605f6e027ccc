//! The end of another process.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};

/// Waits until process `pid` has ended. Returns whether it has, within `limit`.
pub fn wait_for_end(pid: u32, limit: Duration) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return true };
    let descriptor: OwnedFd = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(descriptor) => descriptor,
        Err(error) => return error == rustix::io::Errno::SRCH,
    };
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok(left) = Timespec::try_from(left) else { return false };
        let mut descriptors = [PollFd::new(&descriptor, PollFlags::IN)];
        match rustix::event::poll(&mut descriptors, Some(&left)) {
            Ok(ready) => return ready > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_metrics::process_started;

    #[test]
    fn the_end_of_a_process_is_waited_for() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!wait_for_end(child.id(), Duration::from_millis(1)));
        child.kill().unwrap();
        assert!(wait_for_end(child.id(), Duration::from_secs(10)));
        assert_eq!(process_started(child.id()), None, "it is dead, also before it is buried");
        child.wait().unwrap();
        assert!(wait_for_end(child.id(), Duration::ZERO));
    }
}
