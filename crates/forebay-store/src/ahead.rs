//! Taking a pool's memory from the kernel ahead of its use, beside those that use it.
//!
//! The kernel clears what it gives, and that takes a processor. Who fills the pool meanwhile may need it: on two of them a cold read of
//! 256 MiB took 1.15 times as long beside a thread that took memory as fast as it got any as without one (ADR 0037). So for as long as
//! the pool fills, that thread rests for most of the time, and while others want the processors: who reads a file that the kernel
//! serves by itself is seen by nothing else. When neither is so, as where the origin is far, memory is taken at full speed.
//!
//! A lower priority would do the same, but for readers that wait for the very frame which a thread without a processor is taking.

use std::thread;
use std::time::{Duration, Instant};

use forebay_memory::Pool;
use rustix::time::{ClockId, clock_gettime};
use tokio_util::sync::CancellationToken;

/// How long to rest while the pool fills, in times of what the last frame took.
const RESTS: u32 = 7;
/// At most so long. Where the host gives memory slowly, a frame takes tens of milliseconds.
const MAX_REST: Duration = Duration::from_millis(500);
/// How often to look whether to stop while resting: whoever stops it waits for that.
const LOOK: Duration = Duration::from_millis(20);

/// When to rest. Pure.
#[derive(Debug)]
struct Pace {
    /// What was in use of the pool before the last frame.
    used: u64,
}

impl Pace {
    /// How long to rest after a frame that took so long, of which a processor had the thread for `worked`, with so much of the pool in
    /// use by now.
    fn rest(&mut self, used: u64, took: Duration, worked: Duration) -> Duration {
        let fills = used > self.used;
        self.used = used;
        // More than a fifth of it went by waiting for a processor.
        let is_busy = took.saturating_mul(4) > worked.saturating_mul(5);
        if fills || is_busy { took.saturating_mul(RESTS).min(MAX_REST) } else { Duration::ZERO }
    }
}

/// For how long processors have had this thread so far.
fn worked() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

/// Sleeps for so long, or until it is told to stop.
fn sleep(mut rest: Duration, stop: &CancellationToken) {
    while !rest.is_zero() && !stop.is_cancelled() {
        let slice = rest.min(LOOK);
        thread::sleep(slice);
        rest -= slice;
    }
}

/// Has the kernel back all of `pool`, until it is told to stop. Blocks.
pub(crate) fn take(pool: &Pool, stop: &CancellationToken) {
    let mut pace = Pace { used: pool.used() };
    let (mut began, mut worked_before) = (Instant::now(), worked());
    let goes_on = || {
        sleep(pace.rest(pool.used(), began.elapsed(), worked().saturating_sub(worked_before)), stop);
        (began, worked_before) = (Instant::now(), worked());
        !stop.is_cancelled()
    };
    if let Err(error) = pool.warm_up(pool.capacity(), goes_on) {
        tracing::warn!(%error, "cannot have all of the cache's memory now");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rests_while_the_pool_fills_and_while_others_want_the_processors_and_never_for_long() {
        let mut pace = Pace { used: 10 };
        let took = Duration::from_millis(2);
        assert_eq!(pace.rest(10, took, took), Duration::ZERO, "nobody needs the processor");
        assert_eq!(pace.rest(11, took, took), 7 * took);
        assert_eq!(pace.rest(11, took, took), Duration::ZERO);
        assert_eq!(pace.rest(5, took, took), Duration::ZERO, "it was evicted");
        assert_eq!(pace.rest(5, took, took * 9 / 10), Duration::ZERO, "an interrupt");
        assert_eq!(pace.rest(5, took, took / 2), 7 * took, "another thread had it");
        assert_eq!(pace.rest(6, Duration::from_secs(60), Duration::ZERO), MAX_REST);
        assert_eq!(pace.rest(7, Duration::MAX, Duration::MAX), MAX_REST);
    }

    #[test]
    fn a_rest_ends_when_it_is_told_to_stop() {
        let stop = CancellationToken::new();
        let sleeper = thread::spawn({
            let stop = stop.clone();
            move || sleep(Duration::from_secs(3600), &stop)
        });
        stop.cancel();
        sleeper.join().expect("the sleeper does not panic");
    }

    #[test]
    fn only_the_time_that_a_processor_had_the_thread_counts() {
        let before = worked();
        thread::sleep(Duration::from_millis(20));
        assert!(worked() - before < Duration::from_millis(15));
        while worked() - before < Duration::from_millis(15) {
            std::hint::spin_loop();
        }
    }
}
