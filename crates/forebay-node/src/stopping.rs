//! Leaves the mount of a process that is told to end to whoever keeps it: does what [`crate::leaving`] decides.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use forebay_config::OnStop;
use forebay_fuse::{HandOver, MountError, Survival, mount_table};
use forebay_handover::{Identity, Keeps};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::keeping::{self, KeeperProgram};
use crate::leaving::{Action, Event, Leaving};
use crate::unit_job;

/// What it takes to leave the mount of this process.
pub(crate) struct Stopping {
    /// Whether it is to be left.
    pub(crate) on_stop: OnStop,
    /// As the kernel names it.
    pub(crate) mountpoint: PathBuf,
    /// How a keeper starts the next process.
    pub(crate) program: KeeperProgram,
    /// What that must have in common with this one.
    pub(crate) identity: Identity,
    /// Who keeps the mount over a crash, if somebody does.
    pub(crate) keeper: Option<Arc<dyn Keeps>>,
    pub(crate) hand_over: HandOver,
}

impl Stopping {
    /// Leaves the mount, if it is to be left; who has it. It is served until then, and if that comes to nothing, again. `at_once` ends
    /// it, as long as it is not left.
    pub(crate) async fn leave(&self, at_once: &CancellationToken) -> Option<Arc<dyn Keeps>> {
        let (mut leaving, mut action) = Leaving::begin(self.on_stop);
        let mut keeper: Option<Arc<dyn Keeps>> = None;
        loop {
            let event = match action {
                Action::AskManager => unless(at_once, async { Event::Manager(unit_job::ask().await) }).await,
                Action::FindKeeper => match unless_found(at_once, self.find()).await {
                    Some(Ok(found)) => {
                        keeper = Some(found);
                        Event::Found
                    }
                    Some(Err(why)) => Event::NotFound(why),
                    None => Event::AtOnce,
                },
                Action::LookForWriters(at) => unless(at_once, self.writers(at)).await,
                Action::ServeOn(at) => {
                    let hand_over = self.hand_over.clone();
                    match waiting(move || hand_over.resume()).await {
                        Ok(()) => unless(at_once, self.writers(at)).await,
                        Err(why) => Event::NotDrained(why),
                    }
                }
                Action::Drain(within) => {
                    let hand_over = self.hand_over.clone();
                    match waiting(move || hand_over.drain(within).map_err(|why| why.to_string())).await {
                        Ok(Ok(())) if at_once.is_cancelled() => Event::AtOnce,
                        Ok(Ok(())) => Event::Drained,
                        Ok(Err(why)) | Err(why) => Event::NotDrained(why),
                    }
                }
                Action::Keep => match keeper.clone() {
                    Some(keeper) => self.keep(keeper).await,
                    None => Event::NotKept("nobody was found who keeps it".to_owned()),
                },
                Action::Resume(why) => {
                    warn!(why, "the mount cannot be left to the next process: unmounting");
                    let hand_over = self.hand_over.clone();
                    if let Err(error) = waiting(move || hand_over.resume()).await {
                        warn!(error, "serving the mount again failed");
                    }
                    return None;
                }
                Action::Unmount(why) => {
                    if let Some(why) = why {
                        warn!(why, "the mount is not left to the next process, as fuse.on_stop says: unmounting");
                    }
                    return None;
                }
                Action::Leave => {
                    let by = keeper.as_ref().map(|keeper| keeper.name());
                    info!(by, "the mount is kept for the next process");
                    return keeper;
                }
            };
            action = leaving.on(event, Instant::now());
        }
    }

    /// Takes away the mount that was left, after its keeper has ended, too: with this process it would be dead.
    pub(crate) async fn take_away(&self) {
        warn!("the keeper of the mount has ended: unmounting");
        let mountpoint = self.mountpoint.clone();
        match waiting(move || mount_table::unmount(&mountpoint, true)).await {
            // Somebody else was faster.
            Ok(Ok(()) | Err(MountError::NotMounted(_))) => {}
            Ok(Err(error)) => warn!(%error, "a dead mount is left behind"),
            Err(error) => warn!(error, "a dead mount is left behind"),
        }
    }

    /// Whether files are open for writing, at that time.
    async fn writers(&self, at: Instant) -> Event {
        tokio::time::sleep_until(at.into()).await;
        let hand_over = self.hand_over.clone();
        Event::Writers(waiting(move || !hand_over.writers().is_empty()).await.unwrap_or(true))
    }

    /// Who would have the mount after this process has ended; or why nobody.
    async fn find(&self) -> Result<Arc<dyn Keeps>, String> {
        let (hand_over, mountpoint) = (self.hand_over.clone(), self.mountpoint.clone());
        // That of the crash may have ended since, and another one be in its place.
        let (program, keeper) = (self.program.clone(), hand_over.keeper().or_else(|| self.keeper.clone()));
        let find = move || -> Result<Arc<dyn Keeps>, String> {
            if mount_table::listed(&mountpoint).is_none_or(|listed| listed != mountpoint) {
                return Err("it is unmounted already".to_owned());
            }
            if let Some(why) = hand_over.cannot() {
                return Err(why.to_string());
            }
            let keeper = match keeper.filter(|keeper| keeper.is_there()) {
                Some(keeper) => keeper,
                None => keeping::lasting(&mountpoint, &program)
                    .map_err(|error| format!("{error:#}"))?
                    .ok_or("there is neither a service manager that keeps descriptors nor a host of keepers")?,
            };
            if !keeper.is_there() {
                return Err("its keeper has ended".to_owned());
            }
            if keeping::ends_with_us(&*keeper) {
                return Err("its keeper ends with this process, which is the first of its container".to_owned());
            }
            Ok(keeper)
        };
        waiting(find).await?
    }

    async fn keep(&self, keeper: Arc<dyn Keeps>) -> Event {
        let survival = Survival { keeper, identity: self.identity.clone() };
        let hand_over = self.hand_over.clone();
        match waiting(move || hand_over.entrust(&survival)).await {
            Ok(Ok(())) => Event::Kept,
            Ok(Err(error)) => Event::NotKept(error.to_string()),
            Err(why) => Event::NotKept(why),
        }
    }
}

/// What happens, unless this process is to end at once first.
async fn unless(at_once: &CancellationToken, happens: impl Future<Output = Event>) -> Event {
    unless_found(at_once, happens).await.unwrap_or(Event::AtOnce)
}

async fn unless_found<T>(at_once: &CancellationToken, found: impl Future<Output = T>) -> Option<T> {
    at_once.run_until_cancelled(found).await
}

/// What `work` gives, which may wait.
async fn waiting<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())
}
