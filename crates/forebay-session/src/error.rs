//! What a program learns of an error: the errno that a file would have given, what failed, what to do about it, and where.

use std::fmt;
use std::io;

use forebay_node::UserError;
use forebay_node::error::Exit;
use forebay_types::{Failure, FailureKind, PathError};

/// Whether the call was wrong, or the world was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// An argument or a setting makes no sense: the same call never succeeds.
    Argument,
    /// What a file or the system would answer, with an errno.
    System,
    /// What is used was made by the process that this one was forked from.
    Inherited,
}

/// An error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Its class.
    pub class: ErrorClass,
    /// Its errno.
    pub errno: i32,
    /// What failed, in one line; of a configuration, a line for each problem.
    pub what: String,
    /// What to do about it.
    pub next: Option<String>,
    /// The path that it is about, as the caller wrote it.
    pub path: Option<Vec<u8>>,
}

impl Error {
    /// A call that makes no sense.
    pub fn argument(what: impl Into<String>, next: impl Into<String>) -> Self {
        Self {
            class: ErrorClass::Argument,
            errno: libc::EINVAL,
            what: what.into(),
            next: Some(next.into()),
            path: None,
        }
    }

    /// The system refused something.
    pub fn system(what: &str, error: &io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Self { class: ErrorClass::System, errno, what: format!("{what}: {error}"), next: None, path: None }
    }

    /// `what`, such as `view`, was made before a fork, and this is the child.
    #[must_use]
    pub fn inherited(what: &str) -> Self {
        let what = format!("this {what} was made by the process that this one was forked from");
        let next = "make it again here, or start processes with `spawn` or `forkserver`";
        Self { class: ErrorClass::Inherited, errno: libc::ESTALE, what, next: Some(next.to_owned()), path: None }
    }

    /// A task of the runtime panicked, or the process ends.
    #[must_use]
    pub fn lost(what: &str) -> Self {
        let next = "this is a fault of forebay's, please report it";
        let what = format!("{what} was given up");
        Self { class: ErrorClass::System, errno: libc::EIO, what, next: Some(next.to_owned()), path: None }
    }

    /// A file was wanted, and `path` is none.
    pub(crate) fn is_a_directory(path: &[u8]) -> Self {
        let what = format!("{} is a directory", String::from_utf8_lossy(path));
        Self::from(Failure::new(FailureKind::IsADirectory, what)).about(path)
    }

    /// Whether there is nothing of the name, or a file where a directory would have to be.
    pub(crate) fn is_of_no_name(&self) -> bool {
        matches!(self.errno, libc::ENOENT | libc::ENOTDIR)
    }

    /// The same, with the path that it is about.
    #[must_use]
    pub fn about(self, path: &[u8]) -> Self {
        Self { path: Some(path.to_owned()), ..self }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.next {
            Some(next) => write!(f, "{}; {next}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

impl std::error::Error for Error {}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let errno = failure.kind().errno();
        let UserError { what, next, .. } = UserError::from(&anyhow::Error::new(failure));
        Self { class: ErrorClass::System, errno, what, next, path: None }
    }
}

impl From<UserError> for Error {
    fn from(error: UserError) -> Self {
        let UserError { exit, what, next } = error;
        let (class, errno) = match exit {
            Exit::Usage => (ErrorClass::Argument, libc::EINVAL),
            Exit::NotFound => (ErrorClass::System, libc::ENOENT),
            Exit::Unavailable => (ErrorClass::System, libc::ETIMEDOUT),
            Exit::Denied => (ErrorClass::System, libc::EACCES),
            Exit::Busy => (ErrorClass::System, libc::EBUSY),
            Exit::Interrupted => (ErrorClass::System, libc::EINTR),
            _ => (ErrorClass::System, libc::EIO),
        };
        Self { class, errno, what, next, path: None }
    }
}

impl From<PathError> for Error {
    fn from(error: PathError) -> Self {
        let errno = if matches!(error, PathError::NameTooLong(_)) { libc::ENAMETOOLONG } else { libc::EINVAL };
        let next = "give an absolute path of the namespace, as in `/dir/file`";
        let what = error.to_string();
        Self { class: ErrorClass::System, errno, what, next: Some(next.to_owned()), path: None }
    }
}

impl From<forebay_cuda::Error> for Error {
    fn from(error: forebay_cuda::Error) -> Self {
        // Its words end with what to do, where something is to be done.
        Self { class: ErrorClass::System, errno: error.errno(), what: error.to_string(), next: None, path: None }
    }
}

#[cfg(test)]
mod tests {
    use forebay_types::FsPath;

    use super::*;

    #[test]
    fn an_error_has_errno_remedy_and_path() {
        let failure = Failure::new(FailureKind::PermissionDenied, "s3://b: access denied; check the policy");
        let error = Error::from(failure).about(b"/x");
        assert_eq!((error.errno, error.class), (libc::EACCES, ErrorClass::System));
        assert_eq!(error.to_string(), "s3://b: access denied; check the policy");
        assert_eq!(error.path.as_deref(), Some(&b"/x"[..]));
        let error = Error::from(Failure::new(FailureKind::NotFound, "no /x"));
        assert!(error.errno == libc::ENOENT && error.to_string().contains("; check the name"), "{error}");
    }

    #[test]
    fn settings_that_make_no_sense_are_an_argument_and_what_is_in_the_way_is_not() {
        let of = |exit| Error::from(UserError { exit, what: "w".into(), next: None });
        assert_eq!(of(Exit::Usage).class, ErrorClass::Argument);
        assert_eq!((of(Exit::Busy).class, of(Exit::Busy).errno), (ErrorClass::System, libc::EBUSY));
        let relative = Error::from(FsPath::new("a").unwrap_err());
        assert!(relative.errno == libc::EINVAL && relative.next.is_some());
    }
}
