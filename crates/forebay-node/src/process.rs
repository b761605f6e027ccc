//! Whether another process still runs.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};

/// When a process started, in clock ticks since boot; `None` when there is none of that number, or only what its parent has
/// not buried yet: in a container, that may be for ever.
pub fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    started_field(&stat)
}

/// Field 22 of `/proc/PID/stat`. The second is the name, in parentheses, and may hold spaces and parentheses.
fn started_field(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") { None } else { fields.nth(18)?.parse().ok() }
}

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

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let fields: Vec<String> = (4..=25).map(|field| field.to_string()).collect();
        assert_eq!(started_field(&format!("7 (a) b (c)) S {}", fields.join(" "))), Some(22));
        assert_eq!(started_field(&format!("7 (a) Z {}", fields.join(" "))), None);
        assert_eq!(started_field("7 (a"), None);
        assert!(started(std::process::id()).is_some());
        assert_eq!(started(u32::MAX), None);
    }

    #[test]
    fn the_end_of_a_process_is_waited_for() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!wait_for_end(child.id(), Duration::from_millis(1)));
        child.kill().unwrap();
        assert!(wait_for_end(child.id(), Duration::from_secs(10)));
        assert_eq!(started(child.id()), None, "it is dead, also before it is buried");
        child.wait().unwrap();
        assert!(wait_for_end(child.id(), Duration::ZERO));
    }
}
