//! A pool that is registered with a card, in parts.
//!
//! Registering is dear (some 0.2 to 190 µs for each MiB, by page size), so whole pools are registered, once. What is registered
//! belongs to the pool's owner: it is deregistered when the last that uses it has gone, and the pool is unmapped after that.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use forebay_locks::Mutex;
use forebay_memory::{FRAME_SIZE, Pool};
use forebay_types::ByteSize;

use crate::domain::{Domain, Region};
use crate::error::Error;

/// A pool cut into parts of equal size, each registered or not yet.
pub struct Registration {
    // Before the pool: what is registered is deregistered, then unmapped.
    regions: Box<[OnceLock<Region>]>,
    domain: Arc<Domain>,
    base: usize,
    length: usize,
    part: usize,
    registered: AtomicUsize,
    failures: AtomicU64,
    growing: Mutex<()>,
    pool: Pool,
}

impl Registration {
    /// A registration of nothing yet, to be grown in steps of `part`, rounded up to frames of the pool.
    #[must_use]
    pub fn growing(domain: &Arc<Domain>, pool: &Pool, part: ByteSize) -> Self {
        let (base, length) = pool.mapping();
        let part = usize::try_from(part.as_u64()).unwrap_or(usize::MAX).clamp(1, length).next_multiple_of(FRAME_SIZE);
        Self {
            regions: (0..length.div_ceil(part)).map(|_| OnceLock::new()).collect(),
            domain: Arc::clone(domain),
            base: base.as_ptr().expose_provenance(),
            length,
            part,
            registered: AtomicUsize::new(0),
            failures: AtomicU64::new(0),
            growing: Mutex::new(()),
            pool: pool.clone(),
        }
    }

    /// Registers the first `size` bytes at least, for as long as `goes_on`, which is asked before each part and told how much is
    /// registered by then. Blocks while the kernel backs the memory and the card learns of it.
    ///
    /// # Errors
    /// [`Error::Register`]. What was registered stays so.
    pub fn grow_with(&self, size: ByteSize, mut goes_on: impl FnMut(ByteSize) -> bool) -> Result<(), Error> {
        let size = usize::try_from(size.as_u64()).unwrap_or(usize::MAX).min(self.length);
        let _growing = self.growing.lock();
        for index in 0..size.div_ceil(self.part) {
            if !goes_on(self.size()) {
                break;
            }
            self.add(index)?;
        }
        Ok(())
    }

    /// The caller holds `growing`.
    fn add(&self, index: usize) -> Result<(), Error> {
        if self.regions[index].get().is_some() {
            return Ok(());
        }
        let start = index * self.part;
        let length = self.part.min(self.length - start);
        let base = std::ptr::with_exposed_provenance_mut(self.base + start);
        // SAFETY: the part is of the pool's mapping, which this holds. Requests that name it are a queue pair's, which owns the
        // bytes that they name.
        let region = unsafe { Region::register(&self.domain, base, length) }
            .inspect_err(|_| _ = self.failures.fetch_add(1, Ordering::Relaxed))?;
        // It is empty: this is the only place that fills it.
        let _ = self.regions[index].set(region);
        self.registered.fetch_add(length, Ordering::Release);
        Ok(())
    }

    /// How much is registered.
    #[must_use]
    pub fn size(&self) -> ByteSize {
        ByteSize::bytes(self.registered.load(Ordering::Acquire) as u64)
    }

    /// How often registering has failed.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Whether all of `bytes` is registered.
    #[must_use]
    pub fn covers(&self, bytes: &[u8]) -> bool {
        self.region(bytes.as_ptr().addr(), bytes.len()).is_some()
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The domain that it is registered in.
    #[must_use]
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// The part that the byte `offset` of the pool lies in: where it begins in the pool, how many bytes it has, and its region.
    /// `None` when it is not registered.
    pub(crate) fn part_at(&self, offset: usize) -> Option<(usize, usize, &Region)> {
        let index = offset / self.part;
        let region = self.regions.get(index)?.get()?;
        let start = index * self.part;
        Some((start, self.part.min(self.length - start), region))
    }

    /// Where the pool begins.
    pub(crate) fn base(&self) -> usize {
        self.base
    }

    /// The region that holds all of these bytes.
    pub(crate) fn region(&self, address: usize, length: usize) -> Option<&Region> {
        let index = part_of((self.base, self.part), address, length)?;
        self.regions.get(index)?.get()
    }
}

/// The part, of those of `part` bytes from `base` on, that all of the bytes lie in.
fn part_of((base, part): (usize, usize), address: usize, length: usize) -> Option<usize> {
    let offset = address.checked_sub(base)?;
    (offset % part + length <= part).then_some(offset / part)
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes with {}", self.size(), self.length, self.domain.device().name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_lie_in_one_part_or_in_none() {
        let parts = (1000, 64);
        assert_eq!(part_of(parts, 1000, 64), Some(0));
        assert_eq!(part_of(parts, 1064, 1), Some(1));
        assert_eq!(part_of(parts, 1063, 2), None, "they lie in two");
        assert_eq!(part_of(parts, 999, 1), None, "they lie before");
        assert_eq!(part_of(parts, 1000, 65), None);
    }
}
