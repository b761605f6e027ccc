//! What coordinators write for each other: who is there, who leads, and the jobs.

/// The key that the coordinator which leads holds under a lease.
pub const LEADER: &str = "leader";
/// Under which key prefix coordinators register: `coordinators/NAME`, the name as one segment.
pub const COORDINATORS: &str = "coordinators/";
/// Under which key prefix jobs are written down: `jobs/ID`.
pub const JOBS: &str = "jobs/";
