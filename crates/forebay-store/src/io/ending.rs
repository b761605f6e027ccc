//! The end of the threads that read and write a disk.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long what the kernel has of one disk is waited for. More than a disk takes that answers.
const WITHIN: Duration = Duration::from_secs(5);
/// How often a thread is looked at that has not ended yet.
const EVERY: Duration = Duration::from_millis(1);

/// Waits for threads that end when nothing is under way any more, for 5 s. Those of a disk that hangs are left to the end of the
/// process: what the kernel reads and writes is theirs, so that nobody else gets its memory.
pub(super) fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    let until = Instant::now() + WITHIN;
    let mut left = 0_usize;
    for thread in threads {
        while !thread.is_finished() && Instant::now() < until {
            std::thread::sleep(EVERY);
        }
        match thread.is_finished() {
            // An error would be its panic, which has been reported.
            true => _ = thread.join(),
            false => left += 1,
        }
    }
    if left > 0 {
        tracing::warn!(threads = left, "a disk hangs: what the kernel has of it is not waited for");
    }
}
