//! The clocks of a coordinator: one that measures how long things take, and one that people read.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The clock of jobs: tokio's, which tests can stop.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Milliseconds since 1970.
pub(crate) fn wall_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
