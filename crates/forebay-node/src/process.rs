//! The end of another process.
//!
//! A number is another process's once the first one has ended and was waited for: who looks now and sends a signal later holds on to the
//! process itself.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

/// One process, and none that gets its number later.
#[derive(Debug)]
pub struct Process(Held);

#[derive(Debug)]
enum Held {
    Process(OwnedFd),
    /// There was none of that number.
    Nothing,
    /// The system does not let us hold it.
    Unknown,
}

impl Process {
    /// The process that has the number `pid` now. Whether it is the one that is meant is to be asked afterwards: if it is then, it was.
    #[must_use]
    pub fn of(pid: u32) -> Self {
        let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Self(Held::Nothing) };
        Self(match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => Held::Process(descriptor),
            Err(Errno::SRCH) => Held::Nothing,
            Err(_) => Held::Unknown,
        })
    }

    /// Asks it to end (SIGTERM). Nothing happens if it has ended.
    pub fn ask_to_end(&self) {
        self.send(Signal::TERM);
    }

    /// Ends it (SIGKILL). Nothing happens if it has ended.
    pub fn kill(&self) {
        self.send(Signal::KILL);
    }

    fn send(&self, signal: Signal) {
        if let Held::Process(descriptor) = &self.0 {
            // An error means that it has ended meanwhile.
            let _ = rustix::process::pidfd_send_signal(descriptor, signal);
        }
    }

    /// Waits until it has ended. Returns whether it has, within `limit`.
    #[must_use]
    pub fn wait_for_end(&self, limit: Duration) -> bool {
        let descriptor = match &self.0 {
            Held::Process(descriptor) => descriptor,
            Held::Nothing => return true,
            Held::Unknown => return false,
        };
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(left) = Timespec::try_from(left) else { return false };
            let mut descriptors = [PollFd::new(descriptor, PollFlags::IN)];
            match rustix::event::poll(&mut descriptors, Some(&left)) {
                Ok(ready) => return ready > 0,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }
}

/// Waits until process `pid` has ended. Returns whether it has, within `limit`.
pub fn wait_for_end(pid: u32, limit: Duration) -> bool {
    Process::of(pid).wait_for_end(limit)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

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

    #[test]
    fn a_process_that_is_held_is_asked_to_end_and_is_itself_when_it_is_buried() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of(child.id());
        assert!(!process.wait_for_end(Duration::ZERO));
        process.ask_to_end();
        assert!(process.wait_for_end(Duration::from_secs(60)));
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
        // Its number may be another one's by now: that one is not waited for, and gets no signal.
        assert!(process.wait_for_end(Duration::ZERO));
        let Held::Process(descriptor) = &process.0 else { panic!("there was one: {process:?}") };
        assert_eq!(rustix::process::pidfd_send_signal(descriptor, Signal::TERM), Err(Errno::SRCH));
        process.ask_to_end();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        Process::of(child.id()).kill();
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
        let nothing = Process::of(u32::MAX);
        nothing.ask_to_end();
        assert!(nothing.wait_for_end(Duration::ZERO));
    }
}
