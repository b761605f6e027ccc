//! What of a store is shown to a reader. It is judged where the bytes are found, so that judging costs no look of its own.

use forebay_memory::{Span, Spans};
use forebay_one_sided::Location;
use forebay_types::{BlockKey, SectorChecksums};

use crate::core::Core;
use crate::{read, sealer};

/// See [`Store::shown`](crate::Store::shown).
#[derive(Clone, Copy)]
pub struct Shown<'a, F> {
    pub(crate) core: &'a Core,
    pub(crate) admits: F,
}

impl<F: Fn(Option<u32>) -> bool> Shown<'_, F> {
    /// As [`Store::try_read`](crate::Store::try_read).
    #[must_use]
    pub fn try_read(&self, key: &BlockKey, offset: u32, length: u32) -> Option<Spans> {
        read::try_read(self.core, key, offset, length, &self.admits)
    }

    /// As [`Store::try_look`](crate::Store::try_look).
    pub fn try_look<R>(&self, key: &BlockKey, offset: u32, length: u32, look: impl FnOnce(&[&[u8]]) -> R) -> Option<R> {
        read::try_look(self.core, key, offset, length, &self.admits, look)
    }

    /// As [`Store::is_in_memory`](crate::Store::is_in_memory).
    #[must_use]
    pub fn is_in_memory(&self, key: &BlockKey, offset: u32, length: u32) -> bool {
        read::is_in_memory(self.core, key, offset, length, &self.admits)
    }

    /// As [`Store::try_read_checksummed`](crate::Store::try_read_checksummed).
    #[must_use]
    pub fn try_read_checksummed(&self, key: &BlockKey, offset: u32, length: u32) -> Option<(Span, SectorChecksums)> {
        read::try_read_checksummed(self.core, key, offset, length, &self.admits)
    }

    /// Where the bytes lie, if one run in memory has them all and they may be read there. A run that is asked for often enough
    /// is made ready for that, soon after.
    #[must_use]
    pub fn locate(&self, key: &BlockKey, offset: u32, length: u32) -> Option<Location> {
        sealer::locate(self.core, key, offset, length, &self.admits)
    }
}
