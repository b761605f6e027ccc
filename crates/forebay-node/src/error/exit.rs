//! The classes of errors, which are the codes that a process ends with.

use serde::{Deserialize, Serialize};

/// The class of an error, and what the process ends with because of it. The numbers are documented in `docs/EXIT_CODES.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum Exit {
    /// Something else failed.
    Failed = 1,
    /// The command line or the configuration is wrong.
    Usage = 2,
    /// No such file, mount or process.
    NotFound = 3,
    /// A worker or an origin cannot be reached or did not answer in time; another try may work.
    Unavailable = 4,
    /// The system, the origin or a worker refused access.
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
