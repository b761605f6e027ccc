//! How much jobs take, of each and of all together.

use std::time::Duration;

use crate::jobs::Limits;

/// How much jobs take.
#[derive(Clone, Copy, Debug)]
pub struct RunnerOptions {
    /// Of each job.
    pub limits: Limits,
    /// Jobs that run at once.
    pub running: usize,
    /// Jobs that may wait for their turn.
    pub waiting: usize,
    /// Requests for blocks that are under way, of all jobs together.
    pub blocks: usize,
    /// Jobs that ended and are remembered, at most.
    pub kept: usize,
    /// How long they are remembered.
    pub kept_for: Duration,
    /// A mount that is to keep files and is away for so long does not come back.
    pub mounts_away: Duration,
}

impl Default for RunnerOptions {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            running: 4,
            waiting: 1000,
            blocks: 128,
            kept: 200,
            kept_for: Duration::from_secs(7 * 24 * 3600),
            mounts_away: Duration::from_secs(30),
        }
    }
}
