//! A pipe through which a thread on `/dev/fuse` answers long reads: pages are lent to the kernel, which copies from them.
//!
//! Of an answer that is written the kernel looks up each page by itself, and copies from it before it looks up the next.
//! `vmsplice(2)` looks up many at once. There are as many copies, and less between them: measured with a server that does nothing,
//! reads of 512 KiB take 8 to 9 % less time, and processor time, than when they are written.
//!
//! Nothing of ours stays with the kernel. What a pipe holds is moved into the page cache, where a reader would see what becomes of
//! it later, only if it was given away (`SPLICE_F_GIFT`) and is to be moved (`SPLICE_F_MOVE`). Neither is asked for: it is copied,
//! and the pipe is empty when `splice(2)` returns.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::FileType;
use rustix::io::Errno;
use tracing::debug;

/// The shortest answer that it is worth three calls in the place of one.
pub(crate) const MIN: usize = 64 << 10;
/// Bytes that a pipe is to hold: as many pages of them as there are places. The first needs CAP_SYS_RESOURCE, or a higher
/// `/proc/sys/fs/pipe-max-size`; with it a read of 1 MiB fits, whose header takes one place more.
const SIZES: [i32; 2] = [2 << 20, 1 << 20];
/// Pipes of a mount: what all pipes of a user hold is limited (`/proc/sys/fs/pipe-user-pages-soft`), and others need some.
pub(crate) const MAX: usize = 16;

/// A pipe, empty between any two answers.
#[derive(Debug)]
pub(crate) struct Pipe {
    out: OwnedFd,
    into: OwnedFd,
    /// How many pages it holds.
    places: usize,
    page: usize,
    /// Something may be left in it: it is not used any more.
    is_spoilt: AtomicBool,
}

impl Pipe {
    /// One for answers to `device`. `None` where a pipe may not be so large, or that is no device: a socket that stands in for one
    /// would be sent an answer in pieces.
    pub(crate) fn to(device: impl AsFd) -> Option<Self> {
        let stat = rustix::fs::fstat(device).ok()?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::CharacterDevice {
            return None;
        }
        Self::new()
    }

    fn new() -> Option<Self> {
        let mut ends = [0; 2];
        // SAFETY: it writes two numbers to `ends`.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return None;
        }
        // SAFETY: both were just opened, and nothing else owns them.
        let [out, into] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
        // SAFETY: it reads a number.
        let resized = |size: i32| unsafe { libc::fcntl(into.as_raw_fd(), libc::F_SETPIPE_SZ, size) };
        let size = SIZES.into_iter().map(resized).find(|size| *size > 0)?;
        let page = rustix::param::page_size();
        Some(Self { out, into, places: usize::try_from(size).ok()? / page, page, is_spoilt: AtomicBool::new(false) })
    }

    /// Has `device` take an answer that lies in `slices`. `None`: it has to be written, as it does not fit or the kernel would not
    /// have it so.
    pub(crate) fn carry(&self, device: BorrowedFd<'_>, slices: &[IoSlice<'_>]) -> Option<Result<(), Errno>> {
        let places = slices.iter().map(|slice| self.pages_of(slice)).sum::<usize>();
        if places > self.places || self.is_spoilt.load(Ordering::Relaxed) {
            return None;
        }
        let length = slices.iter().map(|slice| slice.len()).sum::<usize>();
        if self.lend(slices) != Some(length) {
            self.spoil();
            return None;
        }
        // SAFETY: both are open; there are no offsets.
        let taken =
            unsafe { libc::splice(self.out.as_raw_fd(), null_mut(), device.as_raw_fd(), null_mut(), length, 0) };
        if taken >= 0 {
            return Some(Ok(()));
        }
        match Errno::from_io_error(&std::io::Error::last_os_error()) {
            // No program waits for the answer any more; the pipe was emptied first.
            Some(Errno::NOENT) => Some(Err(Errno::NOENT)),
            _ => {
                self.spoil();
                None
            }
        }
    }

    fn spoil(&self) {
        debug!(error = %std::io::Error::last_os_error(), "a thread of the mount answers without its pipe from now on");
        self.is_spoilt.store(true, Ordering::Relaxed);
    }

    /// Puts pages into the pipe; how many bytes are in it.
    fn lend(&self, slices: &[IoSlice<'_>]) -> Option<usize> {
        // SAFETY: an `IoSlice` is laid out as an `iovec`. The pages are only read, and not after `carry` has returned;
        // or the pipe is not used any more, and then what it holds is never read.
        let lent = unsafe {
            libc::vmsplice(self.into.as_raw_fd(), slices.as_ptr().cast(), slices.len(), libc::SPLICE_F_NONBLOCK)
        };
        usize::try_from(lent).ok()
    }

    /// How many pages these bytes lie in.
    fn pages_of(&self, bytes: &[u8]) -> usize {
        (bytes.as_ptr() as usize % self.page + bytes.len()).div_ceil(self.page)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read as _, Seek as _};

    use super::*;

    /// What a file gets that stands in for the device.
    fn carried(pipe: &Pipe, slices: &[IoSlice<'_>]) -> Option<Vec<u8>> {
        let mut file = tempfile::tempfile().unwrap();
        pipe.carry(file.as_fd(), slices)?.unwrap();
        let mut bytes = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap();
        Some(bytes)
    }

    #[test]
    fn what_is_carried_is_what_lies_there_wherever_pages_begin() {
        let pipe = Pipe::new().unwrap();
        let bytes: Vec<u8> = (0..600_000).map(|at| (at % 251) as u8).collect();
        for (start, length) in [(0, 1), (1, 4096), (4095, 2), (0, 512 << 10), (77, 512 << 10)] {
            let parts = [&b"header"[..], &bytes[start..start + length / 3], &bytes[start + length / 3..start + length]];
            let slices = parts.map(IoSlice::new);
            assert!(carried(&pipe, &slices).unwrap() == parts.concat(), "{length} from {start}");
        }
    }

    #[test]
    fn what_does_not_fit_is_left_to_be_written_and_what_comes_next_is_carried() {
        let pipe = Pipe::new().unwrap();
        let bytes = vec![7; (pipe.places + 1) * pipe.page];
        assert!(carried(&pipe, &[IoSlice::new(&bytes)]).is_none());
        assert_eq!(carried(&pipe, &[IoSlice::new(&bytes[..9000])]).unwrap(), bytes[..9000]);
    }

    #[test]
    fn a_pipe_that_could_not_be_emptied_is_not_used_again() {
        let pipe = Pipe::new().unwrap();
        let bytes = vec![7; MIN];
        let unwritable = File::open("/dev/null").unwrap();
        assert!(pipe.carry(unwritable.as_fd(), &[IoSlice::new(&bytes)]).is_none());
        assert!(carried(&pipe, &[IoSlice::new(&bytes)]).is_none(), "what is in it would come first");
    }

    #[test]
    fn a_socket_that_stands_in_for_the_device_has_none() {
        let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(Pipe::to(&socket).is_none());
        assert!(Pipe::to(File::open("/dev/null").unwrap()).is_some());
    }
}
