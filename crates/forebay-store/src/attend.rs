//! Looking after the disks: does each of them answer, and if it hung, does it answer again? And is everything forgotten on it
//! that was removed?

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::core::Core;

/// How often at most, and at least, a disk is looked at.
const EVERY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Looks after one disk until it is told to stop.
pub(crate) async fn run(core: Arc<Core>, disk: usize, stop: CancellationToken) {
    let Some(slab) = core.slabs.get(disk) else { return };
    let limit = slab.read_timeout();
    // Without a limit it is waited for, however long that takes.
    let is_waited_for = limit.is_zero();
    let every = if is_waited_for { EVERY.1 } else { (limit / 4).clamp(EVERY.0, EVERY.1) };
    let attending = async {
        loop {
            tokio::time::sleep(every).await;
            if !is_waited_for {
                slab.attend(&core.pool).await;
            }
            if slab.is_out() {
                continue;
            }
            // What was removed while it hung, or failed, must not be found by a restart.
            slab.take_unburied().into_iter().for_each(|extent| core.queue.bury(extent));
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = attending => {}
    }
}
