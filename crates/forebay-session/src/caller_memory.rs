//! Memory of the caller's, for bytes to be written to.

use std::ptr::NonNull;

/// Memory that somebody else owns: a buffer of the host language, pinned memory of a GPU's driver, anything with an address.
///
/// Bytes are only ever copied to it, by the future that holds it; no reference to it is made. So the caller may look at it meanwhile
/// through pointers of its own, and sees what has come so far.
#[derive(Debug)]
pub struct CallerMemory {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: it is a right to write, and whoever made it vouches for the memory whatever thread does so.
unsafe impl Send for CallerMemory {}

impl CallerMemory {
    /// The `length` bytes at `start`.
    ///
    /// # Safety
    /// They stay allocated and may be written to by any thread until this is dropped. What Rust code reads or writes there meanwhile, it
    /// does through raw pointers, and only if it can bear bytes that change.
    #[must_use]
    pub unsafe fn new(start: NonNull<u8>, length: usize) -> Self {
        Self { start, length }
    }

    /// How many bytes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Copies `bytes` to where the memory is, `at` bytes from its start. What would lie beyond its end is left out.
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        let room = self.length.saturating_sub(at);
        let length = bytes.len().min(room);
        if length > 0 {
            // SAFETY: `at + length` is within the memory, which is allocated and writable as `new` demands. `bytes` is a borrow of other
            // memory: a borrow of this one would be a reference that `new` forbids.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(at), length) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_beyond_the_end() {
        let mut bytes = [0_u8; 8];
        let start = NonNull::new(bytes.as_mut_ptr()).unwrap();
        // SAFETY: the first six bytes of an array that outlives it and is not looked at until then.
        let mut memory = unsafe { CallerMemory::new(start, 6) };
        memory.write(4, &[1, 2, 3, 4]);
        memory.write(6, &[9]);
        memory.write(usize::MAX, &[9]);
        assert_eq!((memory.len(), memory.is_empty()), (6, false));
        assert_eq!(bytes, [0, 0, 0, 0, 1, 2, 0, 0]);
    }
}
