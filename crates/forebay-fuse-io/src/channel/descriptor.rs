//! A descriptor of `/dev/fuse`: what is read from it, written to it and asked of it.
//!
//! A message is one `read(2)`, and one `writev(2)` or `splice(2)`, whole. An answer goes to a descriptor of the connection on which its request
//! was read; a clone has a queue of its own in the kernel for what it has read and not answered.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{self, Ioctl, IoctlOutput, Opcode, Setter};
use tracing::{debug, warn};

use crate::channel::pipe::{MIN, Pipe};
use crate::errno::Errno;
use crate::protocol::abi::ioctl::{BACKING_CLOSE, BACKING_OPEN, CLONE};
use crate::protocol::encode;

const DEVICE: &str = "/dev/fuse";

/// A descriptor of `/dev/fuse` that belongs to a mount.
#[derive(Debug)]
pub(crate) struct Descriptor(OwnedFd);

impl Descriptor {
    pub(crate) fn new(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    /// Another descriptor of the same mount, with a queue of its own.
    ///
    /// # Errors
    /// When `/dev/fuse` may not be opened, as by most users.
    pub(crate) fn with_own_queue(&self) -> io::Result<Self> {
        let fresh = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        // A descriptor is never negative.
        let of = self.0.as_raw_fd() as u32;
        // SAFETY: this is how the kernel defines the command: it reads a `u32`, the number of a descriptor, which is open.
        unsafe { ioctl::ioctl(&fresh, Setter::<{ CLONE as Opcode }, u32>::new(of)) }?;
        Ok(Self(fresh))
    }

    /// Another descriptor of the same mount: with a queue of its own where that may be had.
    ///
    /// # Errors
    /// When there are too many descriptors.
    pub(crate) fn another(&self) -> io::Result<Self> {
        self.with_own_queue().or_else(|_| self.0.try_clone().map(Self))
    }

    /// Another descriptor of the same mount, with a queue of its own, that does not wait for messages.
    ///
    /// # Errors
    /// As of [`Descriptor::with_own_queue`].
    pub(crate) fn impatient(&self) -> io::Result<Self> {
        let own = self.with_own_queue()?;
        rustix::fs::fcntl_setfl(&own.0, OFlags::RDWR | OFlags::NONBLOCK)?;
        Ok(own)
    }

    /// The next message: how many bytes of `buffer` it takes. Waits for one.
    ///
    /// # Errors
    /// `ENODEV` when there is no mount any more; those of `read(2)`.
    #[inline]
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match rustix::io::read(&self.0, buffer) {
            // No message is empty: this is how a socket ends that stands in for the device.
            Ok(0) => Err(rustix::io::Errno::NODEV.into()),
            read => Ok(read?),
        }
    }

    /// Writes one message.
    ///
    /// # Errors
    /// Those of `write(2)`: the kernel takes a message whole or not at all.
    pub(crate) fn write(&self, message: &[u8]) -> io::Result<()> {
        rustix::io::write(&self.0, message)?;
        Ok(())
    }

    /// Answers the request `unique`, with bytes from where they lie. That the kernel does not take the answer is logged: there is
    /// nothing to be done about it.
    #[inline]
    pub(crate) fn answer(&self, unique: u64, outcome: Result<&[&[u8]], Errno>) {
        self.answer_through(None, unique, outcome);
    }

    /// The same, through `pipe` where the answer is long.
    #[inline]
    pub(crate) fn answer_through(&self, pipe: Option<&Pipe>, unique: u64, outcome: Result<&[&[u8]], Errno>) {
        /// Enough for a read of two spans.
        const FEW: usize = 4;
        let parts = outcome.unwrap_or_default();
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        let pipe = pipe.filter(|_| length >= MIN);
        let header = encode::header(unique, outcome.map(|_| length));
        if parts.len() < FEW {
            let mut slices = [IoSlice::new(&header), IoSlice::new(&[]), IoSlice::new(&[]), IoSlice::new(&[])];
            for (slice, part) in slices.iter_mut().skip(1).zip(parts) {
                *slice = IoSlice::new(part);
            }
            self.send(pipe, unique, slices.get(..=parts.len()).unwrap_or_default());
        } else {
            let slices: Vec<_> = std::iter::once(&*header).chain(parts.iter().copied()).map(IoSlice::new).collect();
            self.send(pipe, unique, &slices);
        }
    }

    #[inline]
    fn send(&self, pipe: Option<&Pipe>, unique: u64, slices: &[IoSlice<'_>]) {
        let carried = pipe.and_then(|pipe| pipe.carry(self.as_fd(), slices));
        let sent = carried.unwrap_or_else(|| rustix::io::writev(&self.0, slices).map(drop));
        if let Err(errno) = sent {
            not_taken(unique, errno);
        }
    }

    /// Lets `file` be passed through; gives its number.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_ADMIN, `EOPNOTSUPP` or `ENOTTY` from a kernel that cannot, `EINVAL` when INIT did not agree on it.
    pub(crate) fn open_backing(&self, file: BorrowedFd<'_>) -> io::Result<u32> {
        let map = BackingMap { descriptor: file.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: `BackingMap` says what the command reads.
        Ok(unsafe { ioctl::ioctl(&self.0, map) }?)
    }

    /// Ends that.
    ///
    /// # Errors
    /// `ENOENT` when there is no such number.
    pub(crate) fn close_backing(&self, id: u32) -> io::Result<()> {
        // SAFETY: this is how the kernel defines the command: it reads a `u32`, and any number will do.
        unsafe { ioctl::ioctl(&self.0, Setter::<{ BACKING_CLOSE as Opcode }, u32>::new(id)) }?;
        Ok(())
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What `BACKING_OPEN` reads. It answers with the number.
#[repr(C)]
struct BackingMap {
    descriptor: i32,
    flags: u32,
    padding: u64,
}

// SAFETY: the command reads 16 bytes, writes none and returns a positive number or an error.
unsafe impl Ioctl for BackingMap {
    type Output = u32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        BACKING_OPEN as Opcode
    }

    fn as_ptr(&mut self) -> *mut rustix::ffi::c_void {
        (&raw mut *self).cast()
    }

    // SAFETY: the pointer is not looked at, so any will do.
    unsafe fn output_from_ptr(output: IoctlOutput, _: *mut rustix::ffi::c_void) -> rustix::io::Result<u32> {
        // Not negative: that would have been an error.
        Ok(output as u32)
    }
}

#[cold]
fn not_taken(unique: u64, errno: rustix::io::Errno) {
    use rustix::io::Errno;
    match errno {
        // The program was killed, or the mount ended.
        Errno::NOENT | Errno::NODEV | Errno::NOTCONN | Errno::PIPE => {
            debug!(unique, %errno, "nobody waits for an answer")
        }
        errno => warn!(unique, %errno, "the kernel does not take an answer"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (Descriptor, OwnedFd) {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        (Descriptor::new(ours), theirs)
    }

    #[test]
    fn an_answer_is_one_message_in_however_many_parts_it_lies() {
        let (device, kernel) = pair();
        for parts in 0..10u8 {
            let bytes: Vec<Vec<u8>> = (0..parts).map(|part| vec![part; 3]).collect();
            let slices: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
            device.answer(7, Ok(&slices));
            let mut message = [0; 100];
            let length = rustix::io::read(&kernel, &mut message).unwrap();
            assert_eq!(length, 16 + 3 * usize::from(parts));
            assert_eq!(message[..4], (length as u32).to_ne_bytes());
            assert_eq!(message[8..16], 7u64.to_ne_bytes());
            assert_eq!(message[16..length], bytes.concat());
        }
        device.answer(8, Err(Errno::ENOENT));
        let mut message = [0; 100];
        assert_eq!(rustix::io::read(&kernel, &mut message).unwrap(), 16);
        assert_eq!(message[4..8], (-libc::ENOENT).to_ne_bytes());
    }

    #[test]
    fn the_end_of_a_stand_in_is_the_end_of_a_mount() {
        let (device, kernel) = pair();
        drop(kernel);
        assert_eq!(device.read(&mut [0; 10]).unwrap_err().raw_os_error(), Some(libc::ENODEV));
        // The peer that would get the answer is gone, which is only logged.
        device.answer(1, Ok(&[]));
    }

    #[test]
    fn what_is_no_fuse_device_has_no_backing_files() {
        let (device, kernel) = pair();
        assert!(device.open_backing(kernel.as_fd()).is_err());
        assert!(device.close_backing(1).is_err());
        assert!(device.with_own_queue().is_err());
        assert!(device.another().is_ok());
    }
}
