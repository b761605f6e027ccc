//! What a job asks of the cache, and what comes back.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use forebay_transport::message::{FreeReply, ListReply};
use forebay_types::{Attr, BlockKey, FileId, FileVersion, FsPath};

use crate::cache::{HeldBytes, Loaded};
use crate::jobs::delivery::Delivery;

/// A question that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QuestionId(pub(super) u64);

/// What is asked of the cache. The methods of `CacheAccess`.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the fields are the methods' arguments")]
pub enum Question {
    /// `CacheAccess::stat`.
    Stat { path: FsPath, fresh: bool },
    /// `CacheAccess::list`.
    List { path: FsPath, token: Option<String>, max: u32 },
    /// `CacheAccess::read`.
    Read { version: FileVersion, offset: u64, length: u32 },
    /// `CacheAccess::load_block`.
    Load { version: FileVersion, block: BlockKey, replicas: u8 },
    /// `CacheAccess::coverage`.
    Coverage { version: FileVersion, block: BlockKey, replicas: u8, check: bool },
    /// `CacheAccess::free`.
    Free { files: Arc<[(FileId, u64)]> },
    /// `CacheAccess::free_below`.
    FreeBelow { path: FsPath },
    /// Not of the cache, but of the mounts: they keep this. It may take as long as it likes; [`Job::delivering`](super::Job::delivering) tells how far it is.
    Deliver { path: FsPath },
}

/// What the cache says.
#[derive(Debug)]
pub enum Answer {
    /// To [`Question::Stat`].
    Attributes(Attr),
    /// To [`Question::List`].
    Listed(ListReply),
    /// To [`Question::Read`].
    Bytes(Bytes),
    /// To [`Question::Load`].
    Loaded(Loaded),
    /// To [`Question::Coverage`].
    Held(HeldBytes),
    /// To [`Question::Free`] and [`Question::FreeBelow`].
    Freed(FreeReply),
    /// To [`Question::Deliver`].
    Delivered(Delivery),
}

/// What to do.
#[derive(Debug)]
pub enum Step {
    /// Ask, and bring the answer.
    Ask(QuestionId, Question),
    /// Write [`Job::record`](super::Job::record) down, and say so with [`Job::written`](super::Job::written).
    Checkpoint,
    /// Nothing until an answer comes, or until this time.
    Wait(Option<Instant>),
    /// It is over. The record says how.
    Ended,
}
