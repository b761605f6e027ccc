//! A mountpoint that another process has claimed, and the end of that claim.
//!
//! A process is known by its number, which says nothing in another PID namespace: the driver of a new pod does not see the daemons of
//! the pod before. What both have is the run directory, and a file in it that the process has locked for as long as it lives
//! ([`crate::state`]).

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::state;

/// How often it is looked whether a claim has ended.
const LOOKED_AT_EVERY: Duration = Duration::from_millis(50);

/// The claim of a process on a mountpoint, as others see it.
#[derive(Debug)]
pub struct Claimed(File);

impl Claimed {
    /// That on `mountpoint`, which must be resolved; `None` if no process that lives has it.
    #[must_use]
    pub fn find(mountpoint: &Path) -> Option<Self> {
        let files = state::pid_files(mountpoint).into_iter().filter_map(|path| File::open(path).ok());
        files.map(Self).find(|claimed| !claimed.has_ended())
    }

    /// Waits until that process has ended. Returns whether it has, within `limit`.
    #[must_use]
    pub fn wait_for_end(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while !self.has_ended() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(LOOKED_AT_EVERY);
        }
        true
    }

    /// Of a file system that has no locks nothing is known, and so nothing is waited for.
    fn has_ended(&self) -> bool {
        // Shared with others that look. It is let go of at once: a process that claims the mountpoint does not wait for it.
        let locked = rustix::fs::flock(&self.0, FlockOperation::NonBlockingLockShared);
        if locked.is_ok() {
            let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
        }
        locked != Err(Errno::WOULDBLOCK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Claim;

    #[test]
    fn a_claim_is_waited_for_without_a_look_at_its_process() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Claimed::find(directory.path()).is_none());
        let claim = Claim::take(directory.path()).unwrap();
        let claimed = Claimed::find(directory.path()).unwrap();
        assert!(!claimed.wait_for_end(Duration::ZERO));
        drop(claim);
        assert!(claimed.wait_for_end(Duration::from_secs(60)));
        assert!(Claimed::find(directory.path()).is_none());
        // The next one is another's.
        let _next = Claim::take(directory.path()).unwrap();
        assert!(claimed.wait_for_end(Duration::ZERO));
    }
}
