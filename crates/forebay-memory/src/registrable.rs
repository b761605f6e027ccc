//! Memory of another process that a device may register.
//!
//! A device that registered memory goes on with the pages that it was told of, whatever the mapping shows later. So that is only safe where
//! the mapping shows the same pages for as long as it is there. A pool that lends frames ([`SpanMut::lend`](crate::SpanMut::lend)) gives
//! pages away and gets others; a device would then read what is not the pool's any more. A file that is sealed cannot lend. Which is
//! which is seen when the memory is mapped ([`Window::map`](crate::Window::map)).

use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use crate::region::{Mapped, Region};

/// A mapping whose pages stay. It stays mapped for as long as this is held.
#[derive(Clone, Debug)]
pub struct Registrable {
    base: NonNull<u8>,
    length: usize,
    /// What windows and views hold.
    region: Weak<Region>,
    mapped: Arc<Mapped>,
}

// SAFETY: the address is that of the mapping, which may be held and looked at by any thread.
unsafe impl Send for Registrable {}
// SAFETY: as above.
unsafe impl Sync for Registrable {}

impl Registrable {
    /// That of `region`, if its pages stay.
    pub(crate) fn of(region: &Arc<Region>) -> Option<Self> {
        region.is_steady().then(|| Self {
            base: region.base(),
            length: region.length(),
            region: Arc::downgrade(region),
            mapped: Arc::clone(region.mapped()),
        })
    }

    /// Where it begins. The memory is to be read only.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Its bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Whether nobody reads the memory any more: there is no window and no view, and there will be none, however many hold this.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        self.region.strong_count() == 0
    }

    /// Has the mapping stay for ever: a device may go on with its pages, so nothing else is to be mapped there.
    pub fn leak(&self) {
        std::mem::forget(Arc::clone(&self.mapped));
    }
}
