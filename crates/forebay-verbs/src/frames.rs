//! Buffers of messages: memory of a queue pair's own, in frames of equal size.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::domain::{Domain, Region};
use crate::error::Error;

/// What it is aligned to.
const PAGE: usize = 4096;

/// Registered frames. Which of them the card may touch is known to the queue pair that owns this.
pub(crate) struct Frames {
    // Before the memory is freed.
    region: Option<Region>,
    base: NonNull<u8>,
    layout: Layout,
    length: usize,
    count: u32,
}

// SAFETY: the memory is this one's alone, and belongs to no thread.
unsafe impl Send for Frames {}

impl Frames {
    /// `count` frames of `length` bytes each; at least one of one byte.
    ///
    /// # Errors
    /// [`Error::Register`]; [`Error::Refused`] when there is no memory.
    pub(crate) fn new(domain: &Arc<Domain>, count: u32, length: usize) -> Result<Self, Error> {
        let (count, length) = (count.max(1), length.max(1));
        let no_memory = || Error::Refused { what: "make buffers for messages", reason: "no memory".to_owned() };
        let size = length.checked_mul(count as usize).ok_or_else(no_memory)?;
        // Whole pages: those that are registered may be kept from children, who look at what else would lie in the last one.
        let pages = size.checked_next_multiple_of(PAGE).ok_or_else(no_memory)?;
        let layout = Layout::from_size_align(pages, PAGE).map_err(|_| no_memory())?;
        // SAFETY: the layout has a size, as there is a byte.
        let base = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).ok_or_else(no_memory)?;
        let mut frames = Self { region: None, base, layout, length, count };
        // SAFETY: the memory is this one's until it is dropped, and the region before it.
        frames.region = Some(unsafe { Region::register(domain, base.as_ptr(), size) }?);
        Ok(frames)
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of one.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    pub(crate) fn lkey(&self) -> u32 {
        self.region.as_ref().map_or(0, Region::lkey)
    }

    /// Where frame `index` is.
    ///
    /// # Panics
    /// When there is no such frame.
    pub(crate) fn at(&self, index: u32) -> NonNull<u8> {
        assert!(index < self.count, "frame {index} of {}", self.count);
        // SAFETY: the frame lies in the memory.
        unsafe { self.base.add(index as usize * self.length) }
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        drop(self.region.take());
        // SAFETY: it was allocated with this layout, and is freed once.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), self.layout) };
    }
}
