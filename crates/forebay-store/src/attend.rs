//! Looking after the disks: does each of them answer, and if it hung, does it answer again?

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
    if limit.is_zero() {
        // It is waited for, however long that takes.
        return;
    }
    let every = (limit / 4).clamp(EVERY.0, EVERY.1);
    let attending = async {
        loop {
            tokio::time::sleep(every).await;
            slab.attend(&core.pool).await;
            if slab.is_out() {
                continue;
            }
            // What was removed while it hung must not be found by a restart.
            slab.take_unburied().into_iter().for_each(|extent| core.queue.bury(extent));
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = attending => {}
    }
}
