//! How much processor time this process has used.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Processor time of all threads of this process since it started, in user space and in the kernel: what `getrusage` says,
/// to the nanosecond.
pub(crate) fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    // Never negative: it is a time that has passed.
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
