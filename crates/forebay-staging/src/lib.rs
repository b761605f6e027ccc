//! Files that are being written: on the local disk first, and from there to the origin, whole or not at all.
//!
//! A file that is open for writing is a [`Draft`]. What is written to it lies in a *staged file* of the staging
//! directory, and is read from there; what was never written comes from the version that the draft began as. It reaches
//! the origin when it is synced (fsync and close): small files with one put, larger ones as an upload in parts. Parts
//! that are whole and quiet go while the file is still being written, so that little is left to do at the end. A sync
//! that fails keeps everything for the next; a draft that cannot be synced at all stays in the directory, for people:
//! [`staged`], [`retry`], [`drop_staged`].
//!
//! What a process stages is bounded. Writers that find no room wait for it; it comes from what the origin has already.
//!
//! Pure, without I/O and without a clock:
//!
//! * `ranges`, `content`: where each byte is;
//! * `schedule`, `parts`: how a file is cut into parts, and what became of each;
//! * `space`: how much may be staged, and which writers wait.
//!
//! The shell around them:
//!
//! * `staging`, `draft`: what a directory and a file are asked; `read`, `change`, `lifecycle`, `sync`: how it is answered;
//! * `shared`, `state`, `staged_file`: what drafts share, what is known of each, and what is written down of that;
//! * `send`, `uploader`, `buffers`: parts on their way, those that go early, and the memory that they are in;
//! * `room`, `reclaim`: waiting for room, and making it;
//! * `journal`, `record`, `process`: the staging directory, what is written down in it, and whose it is;
//! * `report`: what is counted;
//! * `recover`, `left`: what is found there, and what is done about it;
//! * `handing`: drafts that go on in another process.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod buffers;
mod content;
mod draft;
mod edit;
mod error;
mod handing;
mod journal;
mod left;
mod lifecycle;
mod options;
mod parts;
mod process;
mod ranges;
mod read;
mod reclaim;
mod record;
mod recover;
mod remote;
mod report;
mod room;
mod schedule;
mod send;
mod shared;
mod space;
mod staged_file;
mod staging;
mod state;
mod sync;
mod uploader;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

pub use draft::Draft;
pub use error::StagingError;
pub use handing::{Handing, adopt, is_in};
pub use left::{RetryOptions, Staged, StagedState, drop_staged, retry, staged};
pub use options::StagingOptions;
pub use remote::{Base, Remote};
pub use report::{DraftCounts, SpaceCounts, StagingReport, UploadCounts};
pub use schedule::Schedule;
pub use staging::Staging;
pub use sync::Held;

/// The most bytes in one part.
pub const MAX_PART: u32 = 64 << 20;
