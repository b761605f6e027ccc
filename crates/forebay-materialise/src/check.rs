//! Every byte again and again: what a restart found before it is used, and what is there once in a while.
//!
//! Bytes that the kernel reads by FUSE passthrough are not checked. So files that stay for long are checked at rest,
//! slowly: one after the other, so many bytes a second.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use forebay_types::{SECTOR_SIZE, SectorChecksums};
use tokio::time::Instant;

use crate::backend::View;
use crate::error::is_lack;
use crate::name::Name;
use crate::record::Record;
use crate::shared::{Checked, LocalShared};
use crate::stats::Counts;

/// Read at once.
const PIECE: u32 = 32 * SECTOR_SIZE;
/// When the next file is looked for after there was too little to open one: descriptors, or memory.
const LATER: Duration = Duration::from_secs(1);

/// Checks one file after the other until the mount is closed.
pub(crate) async fn run(shared: Arc<LocalShared>) {
    while let Some(file) = shared.next_check().await {
        let checked = one(&shared, file).await;
        if checked == Checked::Later {
            tokio::select! {
                () = shared.closing.cancelled() => {}
                () = tokio::time::sleep(LATER) => {}
            }
        }
        shared.checked(file.id, checked);
    }
}

/// Checks one file. A file that is removed meanwhile can be read to its end.
async fn one(shared: &Arc<LocalShared>, name: Name) -> Checked {
    let backend = Arc::clone(&shared.backend);
    let opened = shared.blocking(move || Ok((backend.record(name)?, backend.view(name)?))).await;
    let (record, mut view) = match opened {
        Some(Ok((Some(record), view))) => (record, view),
        Some(Ok((None, _))) => return wrong(name, &"its record is not what was written"),
        Some(Err(error)) => return unread(name, &error),
        None => return Checked::Ended,
    };
    let (start, mut offset) = (Instant::now(), 0);
    while offset < name.size {
        let length = u64::from(PIECE).min(name.size - offset);
        let checksums = checksums_of(&record, offset, length);
        let work = move || {
            let is_right = is_right(&mut *view, offset, length, checksums.as_ref());
            is_right.map(|is_right| (view, is_right))
        };
        match shared.blocking(work).await {
            Some(Ok((read, true))) => view = read,
            Some(Ok((_, false))) => {
                Counts::add(&shared.counts.corrupt_sectors, 1);
                let path = String::from_utf8_lossy(&record.version.path);
                tracing::warn!(file = %name, %path, offset, "a materialised file is no longer what it was, and goes");
                return Checked::Wrong;
            }
            Some(Err(error)) => return unread(name, &error),
            None => return Checked::Ended,
        }
        offset += length;
        Counts::add(&shared.counts.checked_bytes, length);
        let due = start + shared.check_takes(offset);
        tokio::select! {
            () = shared.closing.cancelled() => return Checked::Ended,
            () = tokio::time::sleep_until(due) => {}
        }
    }
    Checked::Right(record.version)
}

fn unread(name: Name, error: &io::Error) -> Checked {
    if is_lack(error) {
        tracing::debug!(file = %name, %error, "a materialised file cannot be checked now");
        return Checked::Later;
    }
    wrong(name, error)
}

fn wrong(name: Name, why: &dyn std::fmt::Display) -> Checked {
    tracing::warn!(file = %name, error = %why, "a materialised file cannot be checked, and goes");
    Checked::Wrong
}

fn checksums_of(record: &Record, offset: u64, length: u64) -> Option<SectorChecksums> {
    let sector = |bytes: u64| u32::try_from(bytes.div_ceil(u64::from(SECTOR_SIZE))).ok();
    record.checksums.slice(sector(offset)?..sector(offset + length)?)
}

fn is_right(view: &mut dyn View, offset: u64, length: u64, checksums: Option<&SectorChecksums>) -> io::Result<bool> {
    let length = usize::try_from(length).map_err(io::Error::other)?;
    let bytes = view.at(offset, length)?;
    Ok(checksums.is_some_and(|checksums| checksums.check(bytes).is_ok()))
}
