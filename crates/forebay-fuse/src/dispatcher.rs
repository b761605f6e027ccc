//! What the kernel's requests are handed to, and what all of its parts need: those that read or ask ([`crate::dispatch`]) and those that
//! change something ([`crate::write_requests`]).

use std::sync::Arc;

use forebay_fuse_io::{Header, Opened, OpenedFlags};

use crate::access_log::{Seen, What};
use crate::opening::writes;
use crate::pinned::{How, Pinned};
use crate::serving::MountShared;

/// What the kernel's requests are handed to.
pub(crate) struct Dispatcher {
    pub(crate) shared: Arc<MountShared>,
}

impl Dispatcher {
    pub(crate) fn new(shared: Arc<MountShared>) -> Self {
        Self { shared }
    }

    pub(crate) fn shared(&self) -> Arc<MountShared> {
        Arc::clone(&self.shared)
    }

    /// What the access log says of a request, if the log has a reader.
    #[inline]
    pub(crate) fn seen(&self, header: &Header, what: impl FnOnce() -> What) -> Option<Seen> {
        self.shared.virtual_files.log().seen(header, what)
    }
}

/// What the kernel is told of a handle. Its pages stay right: an inode is one version, or what is being written, which comes
/// through the kernel. `O_DIRECT` needs no flag of ours: the kernel honours it.
pub(crate) fn opened_as(handle: u64, flags: i32, how: &How) -> Opened<'_> {
    let cached = match how {
        How::Cached => OpenedFlags::KEEP_CACHE,
        // There is nothing in a cache that could be kept, and the kernel takes this flag for a mistake.
        How::Passed(_) => OpenedFlags::empty(),
        How::Direct(_) => OpenedFlags::DIRECT_IO,
    };
    // What is only read has nothing to flush: close(2) costs no round trip.
    let flushed = if writes(flags) { OpenedFlags::empty() } else { OpenedFlags::NOFLUSH };
    Opened { handle, flags: cached | flushed, backing: how.backing().map(|pinned| Pinned::backing(pinned)) }
}
