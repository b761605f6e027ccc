//! The codes that a process ends with, which scripts act on.

use serde::{Deserialize, Serialize};

/// How the process ends when it did not succeed. The numbers are documented in `docs/CLI.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Something else failed.
    Failed = 1,
    /// The command line or the configuration is wrong.
    Usage = 2,
    /// No such file, mount or process.
    NotFound = 3,
    /// A worker or an origin cannot be reached or did not answer in time; another try may work.
    Unavailable = 4,
    /// The system or the origin refused access.
    Denied = 5,
    /// Something is in the way: already mounted, or still in use.
    Busy = 6,
    /// A job loaded everything, and some of it was evicted again meanwhile.
    Evicted = 7,
    /// A job failed: some of it could not be done.
    JobFailed = 8,
    /// A job was stopped.
    JobStopped = 9,
    /// A job has not ended.
    JobNotEnded = 10,
    /// Interrupted by a signal.
    Interrupted = 130,
}

/// The documentation of the codes, for `--help`.
pub(crate) const CODES: &str = "\
Exit codes:
  0    done
  1    something failed that has no code of its own
  2    the command line or the configuration is wrong
  3    no such file, mount or process
  4    a worker or the origin cannot be reached or did not answer in time; another try may work
  5    permission denied, by the system or by the origin
  6    in the way: already mounted, or still in use
  7    a job succeeded, and some of what it loaded was evicted again meanwhile
  8    a job failed: some of it could not be done
  9    a job was stopped
  10   a job has not ended
  130  interrupted";
