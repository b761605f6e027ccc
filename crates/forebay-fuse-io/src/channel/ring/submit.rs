//! What a ring thread asks of the kernel, as one small trait with two implementations: a ring of the kernel's here, a fake in tests.
//!
//! Measured when this was written (Linux 6.18, two processors): none of the flags that ring creation has for task work
//! (`SINGLE_ISSUER`, `COOP_TASKRUN`, `DEFER_TASKRUN`) changes a figure by more than noise, so none is set. A registered file gives
//! two to five per cent. The bell is read by the ring: polling it and then reading it costs up to six per cent more.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::squeue::Entry128;
use io_uring::types::{CancelBuilder, Fd, Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode};

use super::entry::Entries;
use super::queue::Command;

/// `FUSE_IO_URING_CMD_REGISTER`.
const REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`.
const COMMIT_AND_FETCH: u32 = 2;
/// No machine has so many processors: the kernel refuses an entry for this queue, and with it does without rings.
const NO_QUEUE: u16 = u16::MAX;
/// What a completion of the bell carries.
const BELL: u64 = u64::MAX;
/// How long the kernel may take to stop listening to the bell.
const CANCEL_WITHIN: Timespec = Timespec::new().sec(1);
/// Completions of the bell and of cancelling it, beside those of entries.
const BESIDE_ENTRIES: usize = 2;

/// What the kernel has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    /// The command of this entry, with this result.
    Entry(u32, i32),
    /// The bell was rung; it is listened to again.
    Bell,
}

/// The kernel's side of one ring thread. Used by that thread alone.
pub(crate) trait Submit {
    /// Gets ready for commands about `entries`, of the mount of `device`; and listens to their bell.
    ///
    /// # Errors
    /// When the kernel does not let us.
    fn begin(&mut self, device: &Arc<OwnedFd>, entries: &Arc<Entries>) -> io::Result<()>;

    /// Queues a command for an entry.
    ///
    /// # Errors
    /// Those of [`Submit::flush`], which it may have to call.
    fn command(&mut self, entry: u32, command: Command) -> io::Result<()>;

    /// Has the kernel take what is queued.
    ///
    /// # Errors
    /// When it cannot; not when it should be tried again, or when a signal came.
    fn flush(&mut self) -> io::Result<()>;

    /// The same, and waits for a completion, or for as long as `within`.
    ///
    /// # Errors
    /// As of [`Submit::flush`].
    fn wait(&mut self, within: Option<Duration>) -> io::Result<()>;

    /// The next completion.
    fn completion(&mut self) -> Option<Completion>;
}

type Ring = IoUring<Entry128, cqueue::Entry>;

fn new_ring(entries: usize) -> io::Result<Ring> {
    let size = (entries + BESIDE_ENTRIES).next_power_of_two();
    let size = u32::try_from(size).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // Twice as many completions fit, and an entry has one at a time: they cannot overflow.
    IoUring::builder().setup_submit_all().build(size)
}

/// A ring of the kernel's.
pub(crate) struct KernelRing {
    ring: Ring,
    /// Kept for as long as the kernel may use their memory.
    entries: Option<Arc<Entries>>,
    device: Option<Arc<OwnedFd>>,
}

impl KernelRing {
    /// A ring for so many entries.
    ///
    /// # Errors
    /// `EPERM` where io_uring is forbidden, `ENOSYS` where it does not exist, `ENOMEM`.
    pub(crate) fn new(entries: usize) -> io::Result<Self> {
        Ok(Self { ring: new_ring(entries)?, entries: None, device: None })
    }

    fn push(&mut self, entry: &Entry128) -> io::Result<()> {
        // SAFETY: all that an entry points to belongs to `entries`, which are kept until the kernel has given them back,
        // or for ever.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            self.flush()?;
        }
        Ok(())
    }

    fn listen(&mut self) -> io::Result<()> {
        let Some(entries) = &self.entries else { return Ok(()) };
        let ready = entries.ready();
        let read = opcode::Read::new(Fd(ready.bell()), ready.counter(), size_of::<u64>() as u32).build();
        self.push(&Entry128::from(read.user_data(BELL)))
    }
}

impl Drop for KernelRing {
    fn drop(&mut self) {
        let Some(entries) = &self.entries else { return };
        let bell = CancelBuilder::user_data(BELL);
        let cancelled = self.ring.submitter().register_sync_cancel(Some(CANCEL_WITHIN), bell);
        if cancelled.is_err_and(|error| error.raw_os_error() != Some(libc::ENOENT)) {
            // The kernel may still write what it reads from the bell.
            std::mem::forget(Arc::clone(entries));
        }
    }
}

impl Submit for KernelRing {
    fn begin(&mut self, device: &Arc<OwnedFd>, entries: &Arc<Entries>) -> io::Result<()> {
        self.ring.submitter().register_files(&[device.as_raw_fd()])?;
        self.device = Some(Arc::clone(device));
        self.entries = Some(Arc::clone(entries));
        self.listen()
    }

    fn command(&mut self, entry: u32, command: Command) -> io::Result<()> {
        let Some(entries) = &self.entries else { return Err(io::Error::from_raw_os_error(libc::EBADF)) };
        let built = match command {
            Command::Register => register(entries.qid(entry), Some(entries.iovecs(entry))),
            Command::Commit => commit(entries.qid(entry), entries.commit_id(entry)),
        };
        self.push(&built.user_data(u64::from(entry)))
    }

    fn flush(&mut self) -> io::Result<()> {
        unless_passing(self.ring.submit())
    }

    fn wait(&mut self, within: Option<Duration>) -> io::Result<()> {
        let Some(within) = within else { return unless_passing(self.ring.submit_and_wait(1)) };
        let timeout = Timespec::from(within);
        match self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&timeout)) {
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => Ok(()),
            submitted => unless_passing(submitted),
        }
    }

    fn completion(&mut self) -> Option<Completion> {
        let completed = self.ring.completion().next()?;
        if completed.user_data() != BELL {
            return Some(Completion::Entry(completed.user_data() as u32, completed.result()));
        }
        // If it cannot be queued the next flush says why.
        let _ = self.listen();
        Some(Completion::Bell)
    }
}

/// What goes by and is to be tried again after the completions were taken.
fn unless_passing(submitted: io::Result<usize>) -> io::Result<()> {
    match submitted {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => Ok(()),
        submitted => submitted.map(drop),
    }
}

/// Has the kernel do without rings, as long as a queue has no entry: it was offered one that makes no sense. Everything goes over
/// `/dev/fuse` then.
///
/// # Errors
/// When not even that could be said.
pub(crate) fn do_without_rings(device: &OwnedFd) -> io::Result<()> {
    let mut ring = new_ring(1)?;
    ring.submitter().register_files(&[device.as_raw_fd()])?;
    // SAFETY: it points to nothing, and is refused before anything would be looked at.
    let pushed = unsafe { ring.submission().push(&register(NO_QUEUE, None)) };
    pushed.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    match ring.completion().next().map(|completed| -completed.result()) {
        Some(libc::EINVAL) => Ok(()),
        // Unmounted meanwhile: nothing goes anywhere.
        Some(number @ 1..) => Err(io::Error::from_raw_os_error(number)),
        _ => Err(io::Error::other("the kernel took an entry for a queue that cannot be")),
    }
}

fn register(qid: u16, iovecs: Option<*const libc::iovec>) -> Entry128 {
    let (address, count) = iovecs.map_or((0, 0), |iovecs| (iovecs as u64, 2));
    let command = opcode::UringCmd80::new(Fixed(0), REGISTER).cmd(command_bytes(qid, 0)).addr(Some(address));
    with_length(command.build(), count)
}

fn commit(qid: u16, id: u64) -> Entry128 {
    opcode::UringCmd80::new(Fixed(0), COMMIT_AND_FETCH).cmd(command_bytes(qid, id)).build()
}

/// `struct fuse_uring_cmd_req`: flags, what is committed, and the queue.
fn command_bytes(qid: u16, commit_id: u64) -> [u8; 80] {
    let mut bytes = [0; 80];
    bytes[8..16].copy_from_slice(&commit_id.to_ne_bytes());
    bytes[16..18].copy_from_slice(&qid.to_ne_bytes());
    bytes
}

/// Sets how many buffers `addr` of a command points to, for which `io_uring` has no setter.
fn with_length(mut entry: Entry128, length: u32) -> Entry128 {
    // SAFETY: an `Entry128` is, in C's layout, the 128 bytes that the kernel reads, and the length lies in them and is aligned:
    // a test compares with where `io_uring` puts the length of a read.
    unsafe { (&raw mut entry).byte_add(offset_of!(SubmissionHead, length)).cast::<u32>().write(length) };
    entry
}

/// How a submission begins.
#[repr(C)]
struct SubmissionHead {
    opcode: u8,
    flags: u8,
    priority: u16,
    descriptor: i32,
    command_or_offset: u64,
    address: u64,
    length: u32,
}

const _: () = assert!(size_of::<Entry128>() == 128 && align_of::<Entry128>() >= align_of::<u32>());

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(entry: &Entry128) -> [u8; 128] {
        // SAFETY: an `Entry128` is 128 bytes, all of them initialised.
        unsafe { std::ptr::from_ref(entry).cast::<[u8; 128]>().read() }
    }

    #[test]
    fn the_length_lies_where_that_of_a_read_does() {
        let read = opcode::Read::new(Fd(3), std::ptr::null_mut(), 0x0102_0304).build();
        let at = offset_of!(SubmissionHead, length);
        assert_eq!(bytes(&Entry128::from(read))[at..at + 4], 0x0102_0304_u32.to_ne_bytes());
    }

    #[test]
    fn a_registration_points_to_both_buffers_of_a_queue() {
        let iovecs = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 2];
        let entry = bytes(&register(0x0506, Some(iovecs.as_ptr())));
        assert_eq!(entry[0], 46, "IORING_OP_URING_CMD");
        assert_eq!(entry[8..12], 1_u32.to_ne_bytes());
        assert_eq!(entry[16..24], (iovecs.as_ptr() as u64).to_ne_bytes());
        assert_eq!(entry[24..28], 2_u32.to_ne_bytes());
        assert_eq!(entry[48..64], [0; 16]);
        assert_eq!(entry[64..66], 0x0506_u16.to_ne_bytes());
        assert_eq!(entry[66..], [0; 62]);
    }

    #[test]
    fn a_commit_names_the_request_and_the_queue() {
        let entry = bytes(&commit(7, 0x0102_0304_0506_0708).user_data(5));
        assert_eq!(entry[8..12], 2_u32.to_ne_bytes());
        assert_eq!(entry[24..28], [0; 4]);
        assert_eq!(entry[32..40], 5_u64.to_ne_bytes());
        assert_eq!(entry[56..64], 0x0102_0304_0506_0708_u64.to_ne_bytes());
        assert_eq!(entry[64..66], 7_u16.to_ne_bytes());
    }
}
