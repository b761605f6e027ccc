//! Gives what a mount lives by to a keeper, before the first request is taken.

use std::io;
use std::sync::Arc;

use forebay_fuse_io::Session;
use forebay_handover::Kept;
use tracing::info;

use crate::dispatcher::Dispatcher;
use crate::handover::capture_without_drafts;
use crate::keeping::{Keeping, Survival};
use crate::serving::MountShared;

/// The protocol of Linux 6.9, which hands out again what a process had taken that is gone.
pub(crate) const RESENDS: (u32, u32) = (7, 40);

/// From now on the mount that `session` is to serve outlives a crash of this process. Nothing is under way, and nothing changes.
///
/// # Errors
/// When it cannot be kept: requests would come over rings, the kernel is too old, or the keeper does not take it.
pub(crate) fn keep(session: &mut Session<Dispatcher>, shared: &MountShared, survival: &Survival) -> io::Result<()> {
    let agreed = session.agreed();
    if agreed.kernel < RESENDS {
        return Err(io::Error::other("that needs Linux 6.9"));
    }
    let (connection, clones) = session.descriptors().map_err(|error| match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => io::Error::other("it is served over io_uring, and rings end with their process"),
        _ => error,
    })?;
    let state = capture_without_drafts(&shared.files, &shared.virtual_files, &agreed).map_err(io::Error::other)?;
    let journal = shared.files.journal.clone();
    let memory = journal.begin(&state, &survival.identity)?;
    let what = Kept { memory, connection, clones };
    info!(by = survival.keeper.name(), descriptors = what.clones.len() + 2, "the mount is kept over a crash");
    shared.keep(Keeping::begin(Arc::clone(&survival.keeper), journal, what)?);
    Ok(())
}
