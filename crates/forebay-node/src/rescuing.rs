//! A mount that this process has let go of, and that the next one does not come to serve: it is kept, and this process started again.
//!
//! What the mount needs may be free only with the end of this process, so it does not serve again itself: a keeper starts it once more
//! as it was started. Where somebody else starts it, as a service manager, the mount is kept for that one.

use std::path::PathBuf;

use anyhow::Context as _;
use forebay_handover::{Given, Identity, Journal, Kept};

use crate::error::{Exit, Fault};
use crate::keeping::{self, KeeperProgram};

/// What it takes to have the mount kept.
pub(crate) struct Rescue {
    /// As the kernel names it.
    pub(crate) mountpoint: PathBuf,
    /// How a keeper is started, and what it starts.
    pub(crate) program: KeeperProgram,
    /// What the next process must have in common with this one.
    pub(crate) identity: Identity,
}

impl Rescue {
    /// Leaves the mount to a keeper. When this process ends, the next one is started. May wait.
    ///
    /// # Errors
    /// When there is no keeper, or it would end with this process.
    pub(crate) fn keep(&self, given: Given) -> anyhow::Result<()> {
        let memory = Journal::leave(&given.state, &self.identity).context("there is no memory for the state")?;
        let kept = Kept { memory, connection: given.connection, clones: Vec::new() };
        // One may be there: that of this process, or one that the next process has started for itself.
        let keeper = keeping::present(&self.mountpoint, self.program.clone())?;
        if keeping::ends_with_us(&*keeper) {
            let what = "the keeper ends with this process, which is the first of its container";
            return Err(Fault::without_remedy(Exit::Failed, what).into());
        }
        keeper.keep(&kept).context("the keeper does not take it")
    }
}
