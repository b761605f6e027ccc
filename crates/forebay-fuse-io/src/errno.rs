//! The errors that the kernel takes.

use std::fmt;
use std::io;
use std::num::NonZeroU16;

/// An error that a request is answered with: 1 to 511.
///
/// The kernel takes no other number. Over `/dev/fuse` it refuses such an answer before it has looked for the request, whose
/// program then waits for ever; so there is none by construction, and what is no error number becomes `EIO`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(NonZeroU16);

impl Errno {
    /// Interrupted.
    pub const EINTR: Self = Self::new(libc::EINTR);
    /// An input or output error: whatever has no number of its own.
    pub const EIO: Self = Self::new(libc::EIO);
    /// Not permitted.
    pub const EPERM: Self = Self::new(libc::EPERM);
    /// No such name.
    pub const ENOENT: Self = Self::new(libc::ENOENT);
    /// Not an open handle.
    pub const EBADF: Self = Self::new(libc::EBADF);
    /// Try again.
    pub const EAGAIN: Self = Self::new(libc::EAGAIN);
    /// No memory.
    pub const ENOMEM: Self = Self::new(libc::ENOMEM);
    /// No access.
    pub const EACCES: Self = Self::new(libc::EACCES);
    /// In use.
    pub const EBUSY: Self = Self::new(libc::EBUSY);
    /// There is something of that name.
    pub const EEXIST: Self = Self::new(libc::EEXIST);
    /// A file where a directory was wanted.
    pub const ENOTDIR: Self = Self::new(libc::ENOTDIR);
    /// A directory where a file was wanted.
    pub const EISDIR: Self = Self::new(libc::EISDIR);
    /// What is asked makes no sense.
    pub const EINVAL: Self = Self::new(libc::EINVAL);
    /// Too many files are open.
    pub const EMFILE: Self = Self::new(libc::EMFILE);
    /// The buffer is too small.
    pub const ERANGE: Self = Self::new(libc::ERANGE);
    /// Nothing can be changed here.
    pub const EROFS: Self = Self::new(libc::EROFS);
    /// A name is too long.
    pub const ENAMETOOLONG: Self = Self::new(libc::ENAMETOOLONG);
    /// There is no such operation. The kernel remembers it of most, and asks no more.
    pub const ENOSYS: Self = Self::new(libc::ENOSYS);
    /// The operation is not possible on this.
    pub const EOPNOTSUPP: Self = Self::new(libc::EOPNOTSUPP);
    /// No extended attribute of that name.
    pub const ENODATA: Self = Self::new(libc::ENODATA);
    /// There is no connection.
    pub const ENOTCONN: Self = Self::new(libc::ENOTCONN);
    /// The deadline passed.
    pub const ETIMEDOUT: Self = Self::new(libc::ETIMEDOUT);
    /// The handle or the name is of a version that is no more.
    pub const ESTALE: Self = Self::new(libc::ESTALE);

    /// The error of this number; `EIO` if there is none.
    #[must_use]
    pub const fn new(number: i32) -> Self {
        const EIO: u16 = libc::EIO as u16;
        const LAST: i32 = 511;
        let number = if number < 1 || number > LAST { EIO } else { number as u16 };
        match NonZeroU16::new(number) {
            Some(number) => Self(number),
            // It is not 0: see above.
            None => Self(NonZeroU16::MIN),
        }
    }

    /// Its number, a positive one.
    #[must_use]
    pub const fn number(self) -> i32 {
        self.0.get() as i32
    }
}

impl From<Errno> for i32 {
    fn from(errno: Errno) -> Self {
        errno.number()
    }
}

impl From<&io::Error> for Errno {
    fn from(error: &io::Error) -> Self {
        Self::new(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({})", self.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.number()).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_kernel_takes_is_an_error() {
        for number in 1..=511 {
            assert_eq!(Errno::new(number).number(), number);
        }
        for number in [0, -1, -libc::ENOENT, 512, 513, 65_536 + 2, i32::MAX, i32::MIN] {
            assert_eq!(Errno::new(number), Errno::EIO, "{number}");
        }
    }

    #[test]
    fn an_io_error_without_a_number_is_an_io_error() {
        assert_eq!(Errno::from(&io::Error::from_raw_os_error(libc::ENOSPC)).number(), libc::ENOSPC);
        assert_eq!(Errno::from(&io::Error::other("no number")), Errno::EIO);
    }
}
