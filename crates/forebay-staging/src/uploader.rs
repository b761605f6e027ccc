//! Sends parts behind the writers: those that are whole and that were not written to for a while.
//!
//! One task looks at the drafts that have such parts, and sends one of each in turn, as memory for parts becomes free,
//! so that no large file keeps the others waiting.

use std::sync::Arc;
use std::time::Instant;

use crate::send::Next;
use crate::shared::StagingShared;

/// Runs until the mount is closed.
pub(crate) async fn run(shared: Arc<StagingShared>) {
    loop {
        let next = tokio::select! {
            () = shared.closing.cancelled() => return,
            next = pass(&shared) => next,
        };
        let time = async {
            match next {
                Some(next) => tokio::time::sleep_until(next.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shared.closing.cancelled() => return,
            () = shared.wake.notified() => {}
            () = time => {}
        }
    }
}

/// Sends what can go. Returns when to look again.
async fn pass(shared: &Arc<StagingShared>) -> Option<Instant> {
    loop {
        let (mut next, mut sent) = (None, false);
        for draft in shared.take_hot() {
            match draft.next_early(Instant::now()) {
                // When something changes it comes back.
                Next::Never => {}
                Next::Begin => shared.spawn_unhurried(draft.begin_early()),
                Next::At(then) => {
                    shared.keep_hot(&draft);
                    next = Some(next.map_or(then, |before: Instant| before.min(then)));
                }
                Next::Part(number, bytes) => {
                    shared.keep_hot(&draft);
                    let Some(memory) = shared.memory(bytes).await else { continue };
                    if let Some(sending) = draft.start(number, None, memory) {
                        shared.spawn(sending.send_early());
                    }
                    sent = true;
                }
            }
        }
        if !sent {
            return next;
        }
    }
}
