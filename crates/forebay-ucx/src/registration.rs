//! Registered memory: what a NIC may read and write without help.
//!
//! Registering is dear (some 0.2 to 190 µs for each MiB, by page size), so whole pools are registered, once. A
//! registration belongs to its context and is undone with it, not before: no operation can find its memory deregistered
//! under it, and none needs to count references.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use forebay_locks::Mutex;
use forebay_memory::{FRAME_SIZE, Pool, SpanMut};
use forebay_types::ByteSize;
use forebay_ucx_sys as sys;

use crate::context::Context;
use crate::error::{Error, Status};
use crate::memlock::LockLimit;

/// A pool that is registered with a context, wholly or in part. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Registration {
    pub(crate) context: Context,
    mapped: Arc<Mapped>,
}

/// A pool cut into parts of equal size, each registered or not yet.
pub(crate) struct Mapped {
    /// Keeps the mapping alive until it is deregistered.
    _pool: Pool,
    base: usize,
    length: usize,
    part: usize,
    handles: Box<[AtomicPtr<sys::ucp_mem>]>,
    /// How many bytes are registered.
    registered: AtomicUsize,
    growing: Mutex<()>,
    failures: AtomicU64,
}

impl Registration {
    /// Registers the whole of `pool`, which backs it with memory.
    ///
    /// # Errors
    /// [`Error::LockedMemory`] when `ulimit -l` is too small, [`Error::Register`].
    pub fn whole(context: &Context, pool: &Pool) -> Result<Self, Error> {
        let registration = Self::growing(context, pool, pool.capacity());
        registration.grow_to(pool.capacity())?;
        Ok(registration)
    }

    /// A registration of nothing yet, to be grown in steps of `part`, rounded up to frames of the pool, from its start
    /// ([`Registration::grow_to`]) or here and there ([`Registration::add`]). Operations on memory beyond work too, as on
    /// any that is not registered, and cost more.
    #[must_use]
    pub fn growing(context: &Context, pool: &Pool, part: ByteSize) -> Self {
        let (base, length) = pool.mapping();
        let part = usize::try_from(part.as_u64()).unwrap_or(usize::MAX).clamp(1, length);
        let part = part.next_multiple_of(FRAME_SIZE);
        let mapped = Arc::new(Mapped {
            _pool: pool.clone(),
            base: base.as_ptr().expose_provenance(),
            length,
            part,
            handles: (0..length.div_ceil(part)).map(|_| AtomicPtr::default()).collect(),
            registered: AtomicUsize::new(0),
            growing: Mutex::new(()),
            failures: AtomicU64::new(0),
        });
        context.shared.mapped.lock().push(Arc::clone(&mapped));
        Self { context: context.clone(), mapped }
    }

    /// Registers the first `size` bytes at least; no effect on what is registered already. Blocks while the kernel backs
    /// the memory and the NIC learns of it.
    ///
    /// # Errors
    /// [`Error::LockedMemory`] when `ulimit -l` is too small, [`Error::Register`]. What was registered stays so.
    pub fn grow_to(&self, size: ByteSize) -> Result<(), Error> {
        self.grow_with(size, |_| true)
    }

    /// The same, for as long as `goes_on`, which is asked before each part and told how much is registered by then.
    ///
    /// # Errors
    /// As [`Registration::grow_to`].
    pub fn grow_with(&self, size: ByteSize, mut goes_on: impl FnMut(ByteSize) -> bool) -> Result<(), Error> {
        let mapped = &self.mapped;
        let size = usize::try_from(size.as_u64()).unwrap_or(usize::MAX).min(mapped.length);
        let _growing = mapped.growing.lock();
        for index in 0..size.div_ceil(mapped.part) {
            if !goes_on(self.size()) {
                break;
            }
            mapped.register(&self.context, index)?;
        }
        Ok(())
    }

    /// Registers one part, wherever it lies; no effect when it is registered already, or there is none such. Blocks as
    /// [`Registration::grow_to`] does.
    ///
    /// # Errors
    /// As [`Registration::grow_to`].
    pub fn add(&self, part: usize) -> Result<(), Error> {
        let _growing = self.mapped.growing.lock();
        self.mapped.register(&self.context, part).map(|_| ())
    }

    /// The number of the part that all of `bytes` lie in, registered or not.
    #[must_use]
    pub fn part_of(&self, bytes: &[u8]) -> Option<usize> {
        self.mapped.part_of(bytes.as_ptr().addr(), bytes.len())
    }

    /// Into how many parts the pool is cut.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.mapped.handles.len()
    }

    /// How often registering has failed.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.mapped.failures.load(Ordering::Relaxed)
    }

    /// How much is registered.
    #[must_use]
    pub fn size(&self) -> ByteSize {
        ByteSize::bytes(self.mapped.registered.load(Ordering::Acquire) as u64)
    }

    /// Whether all of `bytes` is registered, in one part.
    #[must_use]
    pub fn covers(&self, bytes: &[u8]) -> bool {
        !self.handle(bytes.as_ptr().addr(), bytes.len()).is_null()
    }

    /// Lets peers that are given its key read and write `span`, one-sidedly.
    ///
    /// A NIC checks accesses against the registered part, not against the span: give keys to trusted peers only, and
    /// expose memory of a pool of its own. The span is freed with the context, since no peer can be made to forget a key.
    ///
    /// # Errors
    /// [`Error::NotRegistered`] when the span lies outside.
    pub fn expose(&self, mut span: SpanMut) -> Result<Exposed, Error> {
        if !self.covers(&span) {
            return Err(Error::NotRegistered);
        }
        let (base, length) = (span.as_mut_ptr(), span.len());
        self.context.shared.exposed.lock().push(span);
        Ok(Exposed { registration: self.clone(), base, length })
    }

    /// The handle of the part that holds all of these bytes; null when there is none.
    pub(crate) fn handle(&self, address: usize, length: usize) -> sys::ucp_mem_h {
        let part = self.mapped.part_of(address, length);
        part.map_or(std::ptr::null_mut(), |part| self.mapped.handles[part].load(Ordering::Acquire))
    }
}

impl Mapped {
    /// Registers part `index`; false when it is, or there is none. The caller holds `growing`.
    fn register(&self, context: &Context, index: usize) -> Result<bool, Error> {
        let Some(place) = self.handles.get(index).filter(|place| place.load(Ordering::Relaxed).is_null()) else {
            return Ok(false);
        };
        let start = index * self.part;
        let length = self.part.min(self.length - start);
        let handle = map(context, self.base + start, length)
            .inspect_err(|_| _ = self.failures.fetch_add(1, Ordering::Relaxed))?;
        place.store(handle, Ordering::Release);
        self.registered.fetch_add(length, Ordering::Release);
        Ok(true)
    }

    fn part_of(&self, address: usize, length: usize) -> Option<usize> {
        let offset = address.checked_sub(self.base)?;
        let index = offset / self.part;
        (index < self.handles.len() && offset % self.part + length <= self.part).then_some(index)
    }

    /// Undoes the registration; `context` is the one that it was made with.
    pub(crate) fn deregister(&self, ucp: &sys::Ucp, context: sys::ucp_context_h) {
        for handle in &self.handles {
            let handle = handle.swap(std::ptr::null_mut(), Ordering::AcqRel);
            if !handle.is_null() {
                // SAFETY: the handle is of this context and was taken, so it is unmapped once; no worker of the context
                // is left that could use it. A failure leaves the memory pinned, about which nothing can be done.
                let _ = unsafe { (ucp.ucp_mem_unmap)(context, handle) };
            }
        }
    }
}

impl std::fmt::Debug for Mapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} bytes", self.registered.load(Ordering::Relaxed), self.length)
    }
}

fn map(context: &Context, address: usize, length: usize) -> Result<sys::ucp_mem_h, Error> {
    let address = std::ptr::with_exposed_provenance_mut::<c_void>(address);
    // SAFETY: integers and nullable pointers, for which zero is a value; the mask says which of them count.
    let mut params: sys::ucp_mem_map_params_t = unsafe { std::mem::zeroed() };
    params.field_mask = (sys::UCP_MEM_MAP_PARAM_FIELD_ADDRESS
        | sys::UCP_MEM_MAP_PARAM_FIELD_LENGTH
        | sys::UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE)
        .into();
    params.address = address;
    params.length = length;
    params.memory_type = sys::UCS_MEMORY_TYPE_HOST;
    let mut handle = std::ptr::null_mut();
    let ucp = context.shared.library.ucp();
    // SAFETY: the range is of a pool's mapping, which the registration keeps alive until it is undone.
    let status = unsafe { (ucp.ucp_mem_map)(context.shared.handle, &params, &mut handle) };
    if status == sys::UCS_OK {
        return Ok(handle);
    }
    Err(refusal(length as u64, LockLimit::now(), Status(status)))
}

/// Why a registration of `size` bytes failed: UCX has the same two words for a limit and for other reasons.
fn refusal(size: u64, locked: LockLimit, status: Status) -> Error {
    let size = ByteSize::bytes(size);
    let may_be_the_limit = [sys::UCS_ERR_IO_ERROR, sys::UCS_ERR_NO_MEMORY].contains(&status.0);
    match locked.check(size) {
        Err(limited) if may_be_the_limit => limited,
        _ => Error::Register { size, status },
    }
}

/// Memory that peers may read and write.
#[derive(Debug)]
pub struct Exposed {
    registration: Registration,
    base: *mut u8,
    length: usize,
}

impl Exposed {
    /// What a peer needs to reach it; see [`crate::RemoteKey::unpack`].
    ///
    /// # Errors
    /// [`Error::Register`] when UCX cannot pack it.
    pub fn key(&self) -> Result<Vec<u8>, Error> {
        let shared = &self.registration.context.shared;
        let ucp = shared.library.ucp();
        let (mut buffer, mut size) = (std::ptr::null_mut(), 0);
        let handle = self.registration.handle(self.base.addr(), self.length);
        // SAFETY: context and handle are alive, and there are places for the answer.
        let status = unsafe { (ucp.ucp_rkey_pack)(shared.handle, handle, &mut buffer, &mut size) };
        if status != sys::UCS_OK {
            return Err(Error::Register { size: ByteSize::bytes(self.length as u64), status: Status(status) });
        }
        let mut key = Vec::with_capacity(crate::remote::KEY_PREFIX + size);
        key.extend_from_slice(&(self.base.addr() as u64).to_le_bytes());
        key.extend_from_slice(&(self.length as u64).to_le_bytes());
        // SAFETY: UCX gave a buffer of `size` bytes, which is released right after and not used again.
        unsafe {
            key.extend_from_slice(std::slice::from_raw_parts(buffer.cast::<u8>(), size));
            (ucp.ucp_rkey_buffer_release)(buffer);
        }
        Ok(key)
    }

    /// Its length in bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Copies from it, starting at `offset`. What peers write meanwhile may or may not be seen.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        let from = self.at(offset, into.len())?;
        // SAFETY: the bytes lie in the span, which the context holds and to which there is no other reference.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Copies into it, starting at `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn write(&mut self, offset: usize, from: &[u8]) -> Result<(), Error> {
        let into = self.at(offset, from.len())?;
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into, from.len()) };
        Ok(())
    }

    fn at(&self, offset: usize, length: usize) -> Result<*mut u8, Error> {
        if offset.checked_add(length).is_none_or(|end| end > self.length) {
            let size = ByteSize::bytes(self.length as u64);
            return Err(Error::OutOfBounds { offset: offset as u64, length, size });
        }
        // SAFETY: `offset` is within the span.
        Ok(unsafe { self.base.add(offset) })
    }
}

// SAFETY: the memory is the context's, which is held; the pointer is only dereferenced by copies that borrow `self`.
unsafe impl Send for Exposed {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_small_a_limit_of_locked_memory_is_named_with_the_remedy() {
        let locked = |limit| LockLimit { limit, pinned: 0 };
        for status in [sys::UCS_ERR_IO_ERROR, sys::UCS_ERR_NO_MEMORY] {
            let text = refusal(1 << 30, locked(Some(8 << 20)), Status(status)).to_string();
            assert!(text.contains("1GiB") && text.contains("8MiB") && text.contains("ulimit -l"), "{text}");
            for limit in [None, Some(64 << 30)] {
                let error = refusal(1 << 30, locked(limit), Status(status));
                assert!(matches!(error, Error::Register { .. }), "{error}");
            }
        }
        let other = refusal(1 << 30, locked(Some(8 << 20)), Status(sys::UCS_ERR_INVALID_PARAM)).to_string();
        assert!(other.contains("invalid parameter"), "{other}");
        // Parts that are registered already count.
        let third = LockLimit { limit: Some(3 << 30), pinned: 2 << 30 };
        assert!(matches!(refusal(2 << 30, third, Status(sys::UCS_ERR_IO_ERROR)), Error::LockedMemory { .. }));
    }
}
