//! Memory windows of type 2: each lets the peer of one queue pair write to one buffer, until that peer says that it has.
//!
//! A window is bound to a buffer by a work request, under a key whose lowest byte is new each time. The peer ends the key's use
//! with the message that follows what it wrote, and the card tells so in the message's completion. From then on nothing reaches
//! the buffer any more, and it is its owner's again. What the peer does not end stays here until the queue pair was destroyed.

use std::sync::Arc;

use forebay_memory::SpanMut;
use forebay_verbs_sys as sys;

use crate::domain::{Domain, Region};
use crate::error::{Error, refused};
use crate::registration::Registration;

/// The windows of a queue pair.
pub(crate) struct Windows {
    domain: Arc<Domain>,
    windows: Vec<Window>,
    free: Vec<usize>,
    max: usize,
}

struct Window {
    raw: *mut sys::ibv_mw,
    key: u32,
    lent: Option<Lent>,
}

// SAFETY: a window belongs to no thread, and its owner alone uses it.
unsafe impl Send for Window {}

/// A buffer that the peer may write to.
struct Lent {
    /// That of the buffer alone, if it lies in none that is registered.
    region: Option<Region>,
    span: SpanMut,
}

impl Windows {
    /// `max` of them, each made when it is first used.
    pub(crate) fn new(domain: &Arc<Domain>, max: usize) -> Self {
        Self { domain: Arc::clone(domain), windows: Vec::new(), free: Vec::new(), max }
    }

    /// Whether [`Windows::lend`] finds one.
    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty() || self.windows.len() < self.max
    }

    /// Takes `span` for the peer to write to. Nothing is bound yet: see [`Windows::binding`]. The window, and its key.
    ///
    /// # Errors
    /// When there is no window, or the buffer cannot be registered.
    pub(crate) fn lend(&mut self, span: SpanMut, registration: &Registration) -> Result<(usize, u32), Error> {
        let is_registered = registration.region(span.pointer().addr().get(), span.len()).is_some();
        // SAFETY: the buffer is mapped as long as the span lives, which is longer than this; requests name what is lent here.
        let own = || unsafe { Region::register(&self.domain, span.pointer().as_ptr(), span.len()) };
        let region = if is_registered { None } else { Some(own()?) };
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.make()?,
        };
        let window = &mut self.windows[index];
        window.key = next_key(window.key);
        window.lent = Some(Lent { region, span });
        Ok((index, window.key))
    }

    fn make(&mut self) -> Result<usize, Error> {
        if self.windows.len() >= self.max {
            let reason = format!("all {} are in use", self.max);
            return Err(Error::Refused { what: "take a memory window", reason });
        }
        // SAFETY: the domain is alive.
        let raw = unsafe { sys::ibv_alloc_mw(self.domain.pd, sys::IBV_MW_TYPE_2) };
        if raw.is_null() {
            return Err(refused("make a memory window"));
        }
        // SAFETY: it is alive.
        let key = unsafe { (*raw).rkey };
        self.windows.push(Window { raw, key, lent: None });
        Ok(self.windows.len() - 1)
    }

    /// What binds window `index` to what is lent in it.
    pub(crate) fn binding(&self, index: usize, registration: &Registration) -> Option<sys::ibv_bind> {
        let window = self.windows.get(index)?;
        let Lent { span, region } = window.lent.as_ref()?;
        let (address, length) = (span.pointer().addr().get(), span.len());
        let region = region.as_ref().or_else(|| registration.region(address, length))?;
        let bind_info = sys::ibv_mw_bind_info {
            mr: region.raw(),
            addr: address as u64,
            length: length as u64,
            mw_access_flags: sys::IBV_ACCESS_REMOTE_WRITE,
        };
        Some(sys::ibv_bind { mw: window.raw, rkey: window.key, bind_info })
    }

    /// The request that binds window `index` was posted.
    pub(crate) fn bound(&self, index: usize) {
        if let Some(window) = self.windows.get(index) {
            // SAFETY: the window is alive; the library leaves this to its owner.
            unsafe { (*window.raw).rkey = window.key };
        }
    }

    /// The card says that the use of `key` has ended: what was lent in window `index`, if that is its key.
    pub(crate) fn take_back(&mut self, index: usize, key: u32) -> Option<SpanMut> {
        let window = self.windows.get_mut(index).filter(|window| window.key == key)?;
        let Lent { span, region } = window.lent.take()?;
        self.free.push(index);
        // Nothing is bound to it any more.
        drop(region);
        Some(span)
    }

    /// What was lent in window `index`. Of a queue pair that is gone: the window is ended, and not made again.
    pub(crate) fn take_out(&mut self, index: usize) -> Option<SpanMut> {
        let window = self.windows.get_mut(index)?;
        let Lent { span, region } = window.lent.take()?;
        let Window { raw, .. } = self.windows.swap_remove(index);
        end(raw);
        drop(region);
        Some(span)
    }
}

impl Drop for Windows {
    /// The queue pair is gone: no peer reaches anything any more.
    fn drop(&mut self) {
        for window in &mut self.windows {
            end(window.raw);
            drop(window.lent.take());
        }
    }
}

/// Ends a window that its owner has no more.
fn end(window: *mut sys::ibv_mw) {
    // SAFETY: it is alive, and ended once. A failure leaks it; the region that it is bound to then stays, too, and its pages
    // stay pinned.
    unsafe { sys::ibv_dealloc_mw(window) };
}

/// The key that a window has next: the lowest byte is its owner's.
fn next_key(key: u32) -> u32 {
    (key & !0xff) | (key.wrapping_add(1) & 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_keeps_its_number_and_changes_its_key() {
        assert_eq!(next_key(0x1234_5600), 0x1234_5601);
        assert_eq!(next_key(0x1234_56ff), 0x1234_5600, "the number stays");
        let mut keys: Vec<_> = std::iter::successors(Some(7), |key| Some(next_key(*key))).take(256).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 256, "a key comes back as late as it can");
    }
}
