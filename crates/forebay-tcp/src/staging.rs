//! Received bytes that were not asked for yet: headers, short bodies, and the beginnings of payloads.

/// Bytes of staging for each connection. Four replies of 4 KiB fit, so one call receives several of them; what a large
/// payload leaves here, and is copied once more, stays below 2 % of a MiB.
const STAGING: usize = 16 << 10;

/// A buffer that is filled at its end and emptied at its start.
#[derive(Debug)]
pub(crate) struct Staging {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Staging {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; STAGING].into(), start: 0, end: 0 }
    }

    /// Where to receive to. Never empty while fewer than [`STAGING`] bytes wait.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        &mut self.bytes[self.end..]
    }

    /// `count` bytes were received into [`Staging::space`].
    pub(crate) fn received(&mut self, count: usize) {
        self.end = (self.end + count).min(self.bytes.len());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The next `N` bytes, if there are as many.
    pub(crate) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let taken = self.bytes[self.start..self.end].first_chunk::<N>().copied()?;
        self.start += N;
        Some(taken)
    }

    /// Moves what there is, at most as much as fits, to the front of `target`.
    pub(crate) fn move_to(&mut self, target: &mut [u8]) -> usize {
        let count = target.len().min(self.end - self.start);
        target[..count].copy_from_slice(&self.bytes[self.start..self.start + count]);
        self.start += count;
        count
    }
}
