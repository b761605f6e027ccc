//! Waiting for completions and events on a thread that has no runtime.

use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::cm::EventChannel;
use crate::completion::CompletionChannel;
use crate::error::Error;

/// Returns when an armed queue has got an entry, or `within` is over.
///
/// # Errors
/// [`Error::Refused`].
pub fn wait_for_completion(completions: &CompletionChannel, within: Duration) -> Result<(), Error> {
    // SAFETY: the library closes the descriptor with the channel, which is borrowed for longer than this.
    let completed = unsafe { BorrowedFd::borrow_raw(completions.as_raw_fd()) };
    wait_for(&mut [PollFd::new(&completed, PollFlags::IN)], within)
}

/// Returns when an armed queue has got an entry, or rdma_cm has an event, or `within` is over.
///
/// # Errors
/// [`Error::Refused`].
pub fn wait_for_either(completions: &CompletionChannel, events: &EventChannel, within: Duration) -> Result<(), Error> {
    // SAFETY: the library closes the descriptor with the channel, which is borrowed for longer than this.
    let completed = unsafe { BorrowedFd::borrow_raw(completions.as_raw_fd()) };
    // SAFETY: as above.
    let told = unsafe { BorrowedFd::borrow_raw(events.as_raw_fd()) };
    wait_for(&mut [PollFd::new(&completed, PollFlags::IN), PollFd::new(&told, PollFlags::IN)], within)
}

fn wait_for(descriptors: &mut [PollFd<'_>], within: Duration) -> Result<(), Error> {
    let limit = Timespec { tv_sec: within.as_secs().min(3600) as i64, tv_nsec: within.subsec_nanos().into() };
    match poll(descriptors, Some(&limit)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(Error::Refused { what: "wait for a card", reason: error.to_string() }),
    }
}
