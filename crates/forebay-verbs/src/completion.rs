//! Completion queues: which requests have ended. They tell of their entries through a channel, whose descriptor can be waited for.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_verbs_sys as sys;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::device::Device;
use crate::error::{Error, by_result, refused};
use crate::readiness::Readiness;

/// How many entries are taken at once.
const BATCH: usize = 32;

/// Makes a descriptor of a library's return instead of wait.
pub(crate) fn set_nonblocking(fd: RawFd) -> Result<(), Error> {
    // SAFETY: the caller has the library's descriptor, which is open, and this borrows it no longer than the caller has it.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    let set = fcntl_getfl(fd).and_then(|flags| fcntl_setfl(fd, flags | OFlags::NONBLOCK));
    set.map_err(|error| Error::Refused { what: "wait for events of RDMA", reason: error.to_string() })
}

/// What completion queues tell of their entries through.
pub struct CompletionChannel {
    device: Arc<Device>,
    channel: *mut sys::ibv_comp_channel,
}

// SAFETY: a channel may be used by several threads at once, as the library promises; it is ended by its last owner.
unsafe impl Send for CompletionChannel {}
// SAFETY: as above.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    /// One for queues of `device`.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn new(device: &Arc<Device>) -> Result<Arc<Self>, Error> {
        // SAFETY: the context is open as long as the device lives.
        let channel = unsafe { (device.library.verbs.ibv_create_comp_channel)(device.context) };
        if channel.is_null() {
            return Err(refused("make a channel of completions"));
        }
        let this = Self { device: Arc::clone(device), channel };
        set_nonblocking(this.as_raw_fd())?;
        Ok(Arc::new(this))
    }

    /// What tells when an armed queue has got an entry.
    ///
    /// # Errors
    /// [`Error::Refused`] outside of a runtime.
    pub fn readiness(self: &Arc<Self>) -> Result<Readiness<Self>, Error> {
        // SAFETY: the library closes the descriptor with the channel.
        unsafe { Readiness::of(self) }
    }

    /// Takes all events that there are, so that the descriptor is not readable until the next one.
    pub fn take_events(&self) {
        let verbs = self.device.library.verbs;
        let (mut queue, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel is alive, and there are places for the answer.
        while unsafe { (verbs.ibv_get_cq_event)(self.channel, &raw mut queue, &raw mut context) } == 0 {
            // SAFETY: an event is of a queue that lives: ending one takes its events with it, and waits for those that were taken here.
            unsafe { (verbs.ibv_ack_cq_events)(queue, 1) };
        }
    }
}

impl AsRawFd for CompletionChannel {
    /// Readable when an armed queue has got an entry.
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the channel is alive.
        unsafe { (*self.channel).fd }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: its queues hold it, so none is left.
        unsafe { (self.device.library.verbs.ibv_destroy_comp_channel)(self.channel) };
    }
}

/// A request that has ended. Each is handed out once.
#[derive(Debug)]
pub struct Completion(pub(crate) sys::ibv_wc);

impl Completion {
    /// The number of its queue pair.
    #[must_use]
    pub fn queue_pair(&self) -> u32 {
        self.0.qp_num
    }
}

/// A queue of them. One that overflows is lost with all its queue pairs, so each of those reserves its entries.
pub struct CompletionQueue {
    channel: Arc<CompletionChannel>,
    cq: *mut sys::ibv_cq,
    entries: usize,
    reserved: AtomicUsize,
}

// SAFETY: a queue may be polled and armed by several threads at once, as the library promises; it is ended by its last owner.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// One with room for so many entries, or as many as the card allows.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn new(channel: &Arc<CompletionChannel>, entries: usize) -> Result<Arc<Self>, Error> {
        let device = &channel.device;
        let entries = entries.clamp(1, device.max_entries).min(i32::MAX as usize);
        // SAFETY: the context and the channel are alive; it has one interrupt at least.
        let cq = unsafe {
            (device.library.verbs.ibv_create_cq)(
                device.context,
                entries as i32,
                std::ptr::null_mut(),
                channel.channel,
                0,
            )
        };
        if cq.is_null() {
            return Err(refused("make a completion queue"));
        }
        Ok(Arc::new(Self { channel: Arc::clone(channel), cq, entries, reserved: AtomicUsize::new(0) }))
    }

    /// Whether there is room for so many entries more.
    #[must_use]
    pub fn has_room(&self, entries: usize) -> bool {
        self.entries - self.reserved.load(Ordering::Relaxed) >= entries
    }

    /// Appends what has ended, up to a batch of it; how many that are.
    ///
    /// # Errors
    /// [`Error::Refused`]: the queue is lost.
    pub fn poll(&self, into: &mut Vec<Completion>) -> Result<usize, Error> {
        let mut entries = [sys::ibv_wc::default(); BATCH];
        // SAFETY: the queue is alive, and there is room for so many.
        let polled = unsafe { sys::ibv_poll_cq(self.cq, BATCH as i32, entries.as_mut_ptr()) };
        let lost = |_| Error::Refused { what: "poll a completion queue", reason: format!("the library says {polled}") };
        let polled = usize::try_from(polled).map_err(lost)?;
        into.extend(entries.into_iter().take(polled).map(Completion));
        Ok(polled)
    }

    /// Has the channel tell of the next entry. What came before this may be told of, or not: poll once more.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn arm(&self) -> Result<(), Error> {
        // SAFETY: the queue is alive.
        by_result("arm a completion queue", unsafe { sys::ibv_req_notify_cq(self.cq, 0) })
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_cq {
        self.cq
    }

    /// Takes so many entries, if there is room for them.
    #[must_use]
    pub(crate) fn reserve(&self, entries: usize) -> bool {
        let taken = |reserved: usize| reserved.checked_add(entries).filter(|reserved| *reserved <= self.entries);
        self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }

    /// Gives back what was taken.
    pub(crate) fn release(&self, entries: usize) {
        self.reserved.fetch_sub(entries, Ordering::Relaxed);
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: its queue pairs hold it, so none is left; its events were acknowledged as they were taken.
        unsafe { (self.channel.device.library.verbs.ibv_destroy_cq)(self.cq) };
    }
}
