//! What went wrong, in a form that crosses the wire and ends as an `errno`.

use std::fmt;

/// The kind of a failure: what a program can act on. The numbers are part of the wire protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
#[non_exhaustive]
pub enum FailureKind {
    /// No such file or directory.
    NotFound = 1,
    /// A path component is a file.
    NotADirectory = 2,
    /// A file was wanted, this is a directory.
    IsADirectory = 3,
    /// The origin or the file system refused access.
    PermissionDenied = 4,
    /// The object is no longer the version that the handle is pinned to.
    VersionChanged = 5,
    /// The origin or a peer cannot be reached or is failing; another try or another peer may work.
    Unavailable = 6,
    /// A deadline passed.
    TimedOut = 7,
    /// Bytes were not what their checksum or length said.
    Corrupt = 8,
    /// The request makes no sense: out of range, malformed, unknown.
    InvalidArgument = 9,
    /// The mount does not take writes.
    ReadOnly = 10,
    /// A configured bound (memory, queue) is reached and did not free up in time.
    OutOfResources = 11,
    /// This peer or origin cannot do that.
    Unsupported = 12,
    /// The worker lacks the file version's description; ask again with it attached.
    NeedsDescription = 13,
    /// A name is longer than a file system allows.
    NameTooLong = 14,
    /// A fault of ours.
    Internal = 15,
    /// The worker does not hold these bytes, and was asked for nothing but what it holds.
    NotCached = 16,
    /// There is something of that name.
    Exists = 17,
    /// The directory has names in it.
    NotEmpty = 18,
    /// There is no room to stage what is written.
    NoSpace = 19,
    /// Larger than the origin takes.
    TooLarge = 20,
    /// This is not possible with what an object store keeps: hard links, modes, special files.
    NotPermitted = 21,
    /// From one origin to another.
    CrossDevice = 22,
    /// The worker has just started and does not know yet what is mounted, or is about to end: it will be ready, or the one that takes
    /// its place, and another may be.
    NotReady = 23,
}

impl FailureKind {
    /// The kind with this wire number; an unknown one, from a newer peer, is [`FailureKind::Internal`].
    #[must_use]
    pub fn from_wire(number: u16) -> Self {
        use FailureKind::*;
        const KINDS: [FailureKind; 23] = [
            NotFound,
            NotADirectory,
            IsADirectory,
            PermissionDenied,
            VersionChanged,
            Unavailable,
            TimedOut,
            Corrupt,
            InvalidArgument,
            ReadOnly,
            OutOfResources,
            Unsupported,
            NeedsDescription,
            NameTooLong,
            Internal,
            NotCached,
            Exists,
            NotEmpty,
            NoSpace,
            TooLarge,
            NotPermitted,
            CrossDevice,
            NotReady,
        ];
        KINDS.into_iter().find(|kind| *kind as u16 == number).unwrap_or(Internal)
    }

    /// The `errno` that a POSIX program sees.
    #[must_use]
    pub fn errno(self) -> i32 {
        match self {
            Self::NotFound => libc::ENOENT,
            Self::NotADirectory => libc::ENOTDIR,
            Self::IsADirectory => libc::EISDIR,
            Self::PermissionDenied => libc::EACCES,
            Self::VersionChanged => libc::ESTALE,
            Self::TimedOut => libc::ETIMEDOUT,
            Self::InvalidArgument => libc::EINVAL,
            Self::ReadOnly => libc::EROFS,
            Self::OutOfResources => libc::ENOMEM,
            Self::Unsupported => libc::EOPNOTSUPP,
            Self::NameTooLong => libc::ENAMETOOLONG,
            Self::Exists => libc::EEXIST,
            Self::NotEmpty => libc::ENOTEMPTY,
            Self::NoSpace => libc::ENOSPC,
            Self::TooLarge => libc::EFBIG,
            Self::NotPermitted => libc::EPERM,
            Self::CrossDevice => libc::EXDEV,
            Self::Unavailable
            | Self::Corrupt
            | Self::NeedsDescription
            | Self::Internal
            | Self::NotCached
            | Self::NotReady => libc::EIO,
        }
    }

    /// Whether another peer, or the same one a little later, may answer where this one could not.
    #[must_use]
    pub fn is_transient(self) -> bool {
        matches!(
            self,
            Self::Unavailable | Self::TimedOut | Self::Corrupt | Self::OutOfResources | Self::Internal | Self::NotReady
        )
    }
}

/// A failure and the sentence that a person reads about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    kind: FailureKind,
    message: Box<str>,
}

impl Failure {
    /// A failure of `kind`; `message` names the thing that failed, lowercase, no full stop.
    pub fn new(kind: FailureKind, message: impl Into<Box<str>>) -> Self {
        Self { kind, message: message.into() }
    }

    /// A failure as a peer tells it. Its sentence may be anything, as that of an origin behind it: control characters are escaped, for
    /// it goes into logs and to terminals.
    #[must_use]
    pub fn of_peer(kind: FailureKind, message: &[u8]) -> Self {
        let message = String::from_utf8_lossy(message);
        if !message.contains(char::is_control) {
            return Self::new(kind, message);
        }
        let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
        Self::new(kind, message.chars().map(escape).collect::<String>())
    }

    /// What a program can act on.
    #[must_use]
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// What a person reads.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The same failure with `context: ` before its message.
    #[must_use]
    pub fn context(self, context: impl fmt::Display) -> Self {
        Self { kind: self.kind, message: format!("{context}: {}", self.message).into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_survives_the_wire() {
        for number in 1..=22 {
            assert_eq!(FailureKind::from_wire(number) as u16, number);
        }
        assert_eq!(FailureKind::from_wire(9999), FailureKind::Internal);
    }

    #[test]
    fn a_changed_object_is_estale() {
        assert_eq!(FailureKind::VersionChanged.errno(), libc::ESTALE);
        assert!(!FailureKind::VersionChanged.is_transient());
    }

    #[test]
    fn a_failure_of_a_peer_controls_no_terminal_and_keeps_its_words() {
        let told = |message: &[u8]| Failure::of_peer(FailureKind::Internal, message).message().to_owned();
        let sentence = "größe: \"it\" isn't `there`\\";
        assert_eq!(told(sentence.as_bytes()), sentence);
        assert_eq!(told(b"one\ntwo\x1b[2J\xff\xc2\x9b"), "one\\ntwo\\u{1b}[2J\u{fffd}\\u{9b}");
    }
}
