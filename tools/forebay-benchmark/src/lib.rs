//! Benchmarks of mounts: what they measure, how that is judged, and how it is shown.
//!
//! * [`record`]: what was measured, as it is kept (JSON): what everything below reads or writes.
//! * [`posix`]: `fio` on any directory: the plan (pure), its command lines (pure), what fio said (pure), what that means
//!   (pure), and the driver that runs it.
//! * [`read`]: whole files read through a mount, over TCP and over UCX: the study that began it all, done again.
//! * [`spread`]: rounds of the same: their middle, how far apart they are, and how many digits that leaves.
//! * [`report`]: one page with plots, a table as CSV, two records side by side.
//!
//! Nothing here knows of workers or mounts: where a cache is to be filled or emptied, a [`posix::Cache`] does it, which the
//! program brings. So the same measurement runs on any other file system.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod median;
pub mod posix;
pub mod read;
pub mod record;
pub mod report;
pub mod spread;

pub use median::median;
