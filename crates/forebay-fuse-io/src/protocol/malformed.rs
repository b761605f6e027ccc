//! Why bytes of the kernel are no request, and what the program that made the kernel ask is told.

use crate::errno::Errno;

/// Why a message is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Something is missing.
    #[error("the message is cut short")]
    Short,
    /// The header gives another length than there is.
    #[error("the message is not as long as it says")]
    Length,
    /// A name is empty or has a slash in it.
    #[error("a name is empty or has a slash in it")]
    Name,
    /// A name is longer than a file system allows. Not the kernel's fault: it leaves this to us.
    #[error("a name is too long")]
    LongName,
    /// A time that there is not.
    #[error("a time is out of range")]
    Time,
}

impl Malformed {
    /// What the program is told that made the kernel ask.
    #[must_use]
    pub fn errno(self) -> Errno {
        match self {
            Self::LongName => Errno::ENAMETOOLONG,
            Self::Time => Errno::EINVAL,
            Self::Short | Self::Length | Self::Name => Errno::EIO,
        }
    }
}
