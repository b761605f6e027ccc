//! Memory of another process that a device may register.
//!
//! A device that registered memory goes on with the pages that it was told of, whatever the mapping shows later. So that is only safe where
//! the mapping shows the same pages for as long as it is there. A pool that lends frames ([`SpanMut::lend`](crate::SpanMut::lend)) gives
//! pages away and gets others; a device would then read what is not the pool's any more. A file that is sealed cannot lend. Which is
//! which is seen when the memory is mapped ([`Window::map`](crate::Window::map)).

use std::ptr::NonNull;
use std::sync::Arc;

use crate::region::Region;

/// A mapping whose pages stay. It stays mapped for as long as this is held.
#[derive(Clone, Debug)]
pub struct Registrable {
    region: Arc<Region>,
}

impl Registrable {
    /// That of `region`, if its pages stay.
    pub(crate) fn of(region: &Arc<Region>) -> Option<Self> {
        region.is_steady().then(|| Self { region: Arc::clone(region) })
    }

    /// Where it begins. The memory is to be read only.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.region.base()
    }

    /// Its bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.region.length()
    }

    /// Whether there is nobody else who holds the mapping: no window and no view, so that there will be no more.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        Arc::strong_count(&self.region) == 1
    }
}
