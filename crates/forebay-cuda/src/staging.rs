//! Buffers that a device copies from: pinned memory, of which each is used again.
//!
//! A buffer is made when none is free, registered once, and goes back to the ring when its [`StagingBuffer`] is dropped. Who copies from one
//! keeps that until the copy has ended. So there are as many as were ever in use at once: about one for each slot of the
//! [`Pipeline`](crate::Pipeline).

use std::ptr::NonNull;
use std::sync::Arc;

use forebay_locks::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::error::Error;

/// Bytes of a buffer, and the most of a piece: a block, by default.
pub const STAGING_SIZE: usize = 4 << 20;

/// Memory for a device to read, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Pinned {
    base: NonNull<u8>,
}

// SAFETY: it is plain memory that stays mapped until drop. Who writes to it is decided by `StagingBuffer`, of which there is one.
unsafe impl Send for Pinned {}
// SAFETY: as above; it has nothing but an address to give.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// New memory, not registered.
    ///
    /// # Errors
    /// When the system has none.
    pub(crate) fn new() -> Result<Self, Error> {
        let refused =
            |error: rustix::io::Errno| Error::System { what: "take memory to copy from", reason: error.to_string() };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no existing memory.
        let base =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), STAGING_SIZE, protection, MapFlags::PRIVATE) };
        let base = base.map_err(refused)?;
        // A forked child must not have it: the first of the two to write would get another page, and if that is this process, the device
        // would go on with the old one.
        // SAFETY: the range is the mapping just made; its contents stay as they are.
        let kept = unsafe { rustix::mm::madvise(base, STAGING_SIZE, Advice::LinuxDontFork) };
        let pinned = NonNull::new(base.cast()).map(|base| Self { base }).ok_or(rustix::io::Errno::NOMEM);
        kept.and(pinned).map_err(refused)
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: the range is the whole mapping, and nobody has its address any more. An error would mean that it was not mapped.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), STAGING_SIZE) };
    }
}

/// The buffers that are free.
#[derive(Debug, Default)]
pub(crate) struct Ring(Mutex<Vec<Arc<Pinned>>>);

impl Ring {
    /// A free one.
    pub(crate) fn take(self: &Arc<Self>) -> Option<StagingBuffer> {
        let memory = self.0.lock().pop()?;
        Some(self.buffer(memory))
    }

    /// `memory`, which nobody else writes to or copies from, as a buffer of this ring.
    pub(crate) fn buffer(self: &Arc<Self>, memory: Arc<Pinned>) -> StagingBuffer {
        StagingBuffer { memory, length: 0, ring: Arc::clone(self) }
    }
}

/// The only right to write to a pinned buffer, and to copy from it.
#[derive(Debug)]
pub struct StagingBuffer {
    memory: Arc<Pinned>,
    length: usize,
    ring: Arc<Ring>,
}

impl StagingBuffer {
    /// Copies `parts` into it, one behind the other; false, and part of them, if they are more than it has room for.
    pub fn fill<'a>(&mut self, parts: impl Iterator<Item = &'a [u8]>) -> bool {
        self.length = 0;
        for part in parts {
            if part.len() > STAGING_SIZE - self.length {
                return false;
            }
            // SAFETY: it ends within the buffer, as was just seen, and this is the only right to write there. A borrow of the buffer's bytes
            // is given to nobody, so `part` lies elsewhere.
            unsafe {
                let to = self.memory.base().as_ptr().add(self.length);
                std::ptr::copy_nonoverlapping(part.as_ptr(), to, part.len());
            }
            self.length += part.len();
        }
        true
    }

    /// What is to be copied: where it begins, and how many bytes.
    pub(crate) fn filled(&self) -> (NonNull<u8>, usize) {
        (self.memory.base(), self.length)
    }
}

impl Drop for StagingBuffer {
    fn drop(&mut self) {
        self.ring.0.lock().push(Arc::clone(&self.memory));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_and_never_twice_at_once() {
        let ring = Arc::new(Ring::default());
        assert!(ring.take().is_none());
        let mut first = ring.buffer(Arc::new(Pinned::new().unwrap()));
        assert!(ring.take().is_none());
        assert!(first.fill([&b"ab"[..], b"c"].into_iter()));
        let (start, length) = first.filled();
        // SAFETY: three bytes of the buffer, which is not written to.
        assert_eq!(unsafe { std::slice::from_raw_parts(start.as_ptr(), length) }, b"abc");
        drop(first);
        let again = ring.take().unwrap();
        assert_eq!(again.filled().0, start);
        assert!(ring.take().is_none());
    }

    #[test]
    fn no_more_is_written_than_there_is_room_for() {
        let ring = Arc::new(Ring::default());
        let mut buffer = ring.buffer(Arc::new(Pinned::new().unwrap()));
        let bytes = vec![7; STAGING_SIZE];
        assert!(buffer.fill([&bytes[..]].into_iter()) && !buffer.fill([&bytes[..], b"x"].into_iter()));
    }
}
