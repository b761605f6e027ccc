//! Taking a pool's memory from the kernel ahead of its use, beside those that use it.
//!
//! The kernel clears what it gives, and that takes a processor. Who fills the pool meanwhile may need it: on two of them a cold read of
//! 256 MiB took 1.15 times as long beside a thread that took memory as fast as it got any as without one (ADR 0037). So for as long as
//! the pool fills, that thread rests for most of the time. When it does not, as where the origin is far, memory is taken at full speed.

use std::thread;
use std::time::{Duration, Instant};

use forebay_memory::Pool;
use tokio_util::sync::CancellationToken;

/// How long to rest while the pool fills, in times of what the last frame took.
const RESTS: u32 = 7;
/// At most so long: whoever stops it waits for that.
const MAX_REST: Duration = Duration::from_millis(50);

/// When to rest. Pure.
#[derive(Debug)]
struct Pace {
    /// What was in use of the pool before the last frame.
    used: u64,
}

impl Pace {
    /// How long to rest after a frame that took so long, with so much of the pool in use by now.
    fn rest(&mut self, used: u64, took: Duration) -> Duration {
        let fills = used > self.used;
        self.used = used;
        if fills { took.saturating_mul(RESTS).min(MAX_REST) } else { Duration::ZERO }
    }
}

/// Has the kernel back all of `pool`, until it is told to stop. Blocks.
pub(crate) fn take(pool: &Pool, stop: &CancellationToken) {
    let (mut pace, mut began) = (Pace { used: pool.used() }, Instant::now());
    let goes_on = || {
        thread::sleep(pace.rest(pool.used(), began.elapsed()));
        began = Instant::now();
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
    fn it_rests_while_the_pool_fills_and_never_for_long() {
        let mut pace = Pace { used: 10 };
        let took = Duration::from_millis(2);
        assert_eq!(pace.rest(10, took), Duration::ZERO, "nobody needs the processor");
        assert_eq!(pace.rest(11, took), 7 * took);
        assert_eq!(pace.rest(11, took), Duration::ZERO);
        assert_eq!(pace.rest(5, took), Duration::ZERO, "it was evicted");
        assert_eq!(pace.rest(6, Duration::from_secs(60)), MAX_REST);
        assert_eq!(pace.rest(7, Duration::MAX), MAX_REST);
    }
}
