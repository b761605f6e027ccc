//! Memory for the parts that are being sent.
//!
//! A part has some megabytes, and the system hands such memory out page by page, clearing each: at 1 GiB/s and more of parts that
//! took a third of the processor time of a write. So it is used again while files are being written, and given back when the last one is closed.

use std::sync::Arc;

use bytes::Bytes;
use forebay_locks::Mutex;

/// Buffers that were used and may be used again: no more bytes than may be on their way at once.
#[derive(Debug)]
pub(crate) struct Buffers {
    most: usize,
    free: Mutex<Vec<Vec<u8>>>,
}

impl Buffers {
    /// Keeps up to `most` bytes.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, free: Mutex::default() })
    }

    /// An empty buffer for `length` bytes.
    pub(crate) fn take(&self, length: usize) -> Vec<u8> {
        let mut free = self.free.lock();
        // Not one that is much larger: a read into it fills it.
        let fitting = free.iter().position(|buffer| (length..=2 * length).contains(&buffer.capacity()));
        match fitting.map(|at| free.swap_remove(at)) {
            Some(buffer) => buffer,
            None => Vec::with_capacity(length),
        }
    }

    /// Bytes whose memory comes back when the last of their users is done.
    pub(crate) fn lend(self: &Arc<Self>, bytes: Vec<u8>) -> Bytes {
        Bytes::from_owner(Lent { bytes, from: Arc::clone(self) })
    }

    /// Gives all of it back to the system.
    pub(crate) fn clear(&self) {
        let freed = std::mem::take(&mut *self.free.lock());
        drop(freed);
    }

    fn give(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let mut free = self.free.lock();
        let kept: usize = free.iter().map(Vec::capacity).sum();
        if buffer.capacity() > 0 && kept + buffer.capacity() <= self.most {
            free.push(buffer);
        }
    }
}

struct Lent {
    bytes: Vec<u8>,
    from: Arc<Buffers>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.from.give(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_and_is_used_again_within_bounds() {
        let buffers = Buffers::new(3000);
        let lent: Vec<Bytes> = (0..4).map(|_| buffers.lend(vec![7; 1000])).collect();
        let address = lent[0].as_ptr();
        let clone = lent[0].clone();
        drop(lent);
        assert_eq!(buffers.free.lock().len(), 3, "the fourth is over the bound");
        drop(clone);
        assert_eq!(buffers.free.lock().len(), 3);
        assert!(buffers.take(1001).capacity() >= 1001);
        let again = buffers.take(1000);
        assert!(again.is_empty() && again.as_ptr() != address);
        buffers.clear();
        assert!(buffers.free.lock().is_empty());
    }
}
