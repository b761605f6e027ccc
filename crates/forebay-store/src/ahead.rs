//! Taking a pool's memory from the kernel ahead of its use, beside those that use it.
//!
//! The kernel clears what it gives, and that takes a processor. Who fills the pool meanwhile may need it: on two of them a cold read of
//! 256 MiB took 1.15 times as long beside a thread that took memory as fast as it got any as without one (ADR 0037). So for as long as
//! the pool fills, that thread rests for most of the time, and while others want the processors: who reads a file that the kernel
//! serves by itself is seen by nothing else. And while others want to map memory or to give it back, as programs do that read into
//! memory of their own: for that the kernel has one lock a process (`mmap_lock`), which whoever takes memory holds for a whole frame,
//! and has again before who waits for it is awake. When none of that is so, as where the origin is far, memory is taken at full speed.
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
    /// How long to rest after a frame that took so long, for which the thread `ran` so, with so much of the pool in use by now.
    fn rest(&mut self, used: u64, took: Duration, ran: &Ran) -> Duration {
        let fills = used > self.used;
        self.used = used;
        // More than a fifth of it went by waiting for a processor.
        let is_busy = took.saturating_mul(4) > ran.worked.saturating_mul(5);
        // Who waits for the kernel's lock for longer than a few milliseconds gets it next, and this thread had to wait, too.
        let is_contended = ran.waits > 0;
        if fills || is_busy || is_contended { took.saturating_mul(RESTS).min(MAX_REST) } else { Duration::ZERO }
    }
}

/// What became of this thread.
#[derive(Clone, Copy, Debug, Default)]
struct Ran {
    /// For how long a processor had it.
    worked: Duration,
    /// How often it gave up its processor to wait for something: `ru_nvcsw` of getrusage(2).
    waits: u64,
}

impl Ran {
    /// Since it began.
    fn so_far() -> Self {
        let worked = clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default();
        // SAFETY: all of it is integers, for which zero is a value.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: `usage` is valid for writes. It fails for nothing but another pointer or another `who`; it stays zero then.
        unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
        Self { worked, waits: usage.ru_nvcsw.try_into().unwrap_or_default() }
    }

    fn since(self, before: Self) -> Self {
        let Self { worked, waits } = before;
        Self { worked: self.worked.saturating_sub(worked), waits: self.waits.saturating_sub(waits) }
    }
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
    let (mut began, mut before) = (Instant::now(), Ran::so_far());
    let goes_on = || {
        sleep(pace.rest(pool.used(), began.elapsed(), &Ran::so_far().since(before)), stop);
        (began, before) = (Instant::now(), Ran::so_far());
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
    fn it_rests_while_the_pool_fills_and_while_others_want_what_it_holds_and_never_for_long() {
        let mut pace = Pace { used: 10 };
        let took = Duration::from_millis(2);
        let all = Ran { worked: took, waits: 0 };
        assert_eq!(pace.rest(10, took, &all), Duration::ZERO, "nobody needs the processor");
        assert_eq!(pace.rest(11, took, &all), 7 * took);
        assert_eq!(pace.rest(11, took, &all), Duration::ZERO);
        assert_eq!(pace.rest(5, took, &all), Duration::ZERO, "it was evicted");
        assert_eq!(pace.rest(5, took, &Ran { worked: took * 9 / 10, waits: 0 }), Duration::ZERO, "an interrupt");
        assert_eq!(pace.rest(5, took, &Ran { worked: took / 2, waits: 0 }), 7 * took, "another thread had it");
        assert_eq!(pace.rest(5, took, &Ran { worked: took, waits: 1 }), 7 * took, "another thread had the lock");
        assert_eq!(pace.rest(6, Duration::from_secs(60), &Ran::default()), MAX_REST);
        assert_eq!(pace.rest(7, Duration::MAX, &Ran { worked: Duration::MAX, waits: u64::MAX }), MAX_REST);
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
    fn only_the_time_that_a_processor_had_the_thread_counts_and_how_often_it_waited() {
        let before = Ran::so_far();
        thread::sleep(Duration::from_millis(20));
        let slept = Ran::so_far().since(before);
        assert!(slept.worked < Duration::from_millis(15) && slept.waits >= 1, "{slept:?}");
        while Ran::so_far().since(before).worked < Duration::from_millis(15) {
            std::hint::spin_loop();
        }
    }
}
