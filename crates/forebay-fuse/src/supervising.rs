//! Serves a mount to its end, by the thread that supervises the others, and ends what is left then.

use forebay_fuse_io::{Session, Stopped};
use tracing::{info, warn};

use crate::dispatcher::Dispatcher;
use crate::handing::{Decision, Decisions};
use crate::keeping::Keeping;
use crate::serving::MountShared;
use crate::stale::StaleNames;

/// How this process came not to serve the mount any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// There is no mount any more.
    Ended,
    /// Another process serves it.
    Succeeded,
    /// A keeper has it.
    Entrusted,
}

/// Serves until the kernel ends the mount, or another process has it; then ends everything else.
pub(crate) fn supervise(
    session: Session<Dispatcher>,
    decisions: &Decisions,
    shared: &MountShared,
    stale: &StaleNames,
) -> Finish {
    let finish = serve_and_pause(session, decisions);
    shared.ended.cancel();
    shared.kept().into_iter().for_each(Keeping::forget);
    shared.tasks.close();
    shared.aside.close();
    stale.end();
    // Cancelled tasks end at their next step, and those of a runtime that shuts down are dropped.
    shared.runtime.block_on(async {
        shared.tasks.wait().await;
        shared.aside.wait().await;
        shared.files.close_staging().await;
    });
    match finish {
        Finish::Ended => info!("the mount has ended"),
        Finish::Succeeded => info!("another process serves the mount"),
        Finish::Entrusted => info!("the mount is kept for the next process"),
    }
    finish
}

/// Serves until this process does not any more.
fn serve_and_pause(mut session: Session<Dispatcher>, decisions: &Decisions) -> Finish {
    loop {
        match session.serve() {
            Ok(Stopped::Paused) => {}
            Ok(Stopped::Ended) => return Finish::Ended,
            Err(error) => {
                warn!(%error, "a thread that serves the mount failed");
                return Finish::Ended;
            }
        }
        match decisions.wait() {
            Some(Decision::Serve) => {}
            Some(Decision::Leave) => {
                session.leave();
                return Finish::Succeeded;
            }
            Some(Decision::Entrust) => {
                session.leave();
                return Finish::Entrusted;
            }
            // Whoever had it paused has dropped it, and taken it away.
            None => return Finish::Ended,
        }
    }
}
