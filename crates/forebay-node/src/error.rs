//! What an embedder or a user learns of an error: what failed, what to do next, and a class that programs can act on.
//!
//! The crates below give typed errors whose message names the thing and, after `; `, the remedy. [`UserError::from`] finds
//! the first cause whose class it knows, and makes of it a code that scripts can act on and the two lines.

mod class;
mod exit;

use std::fmt;
use std::io;

use forebay_config::ConfigErrors;
use forebay_types::{Failure, FailureKind, PathError};
use serde::{Deserialize, Serialize};

pub use exit::Exit;

/// An error of this crate's own, or of a command's: with its code and its remedy.
#[derive(Debug)]
pub struct Fault {
    exit: Exit,
    what: String,
    next: Option<String>,
}

impl Fault {
    /// `what` failed; `next` says what to do about it.
    pub fn new(exit: Exit, what: impl Into<String>, next: impl Into<String>) -> Self {
        Self { exit, what: what.into(), next: Some(next.into()) }
    }

    /// `what` failed, and nothing is to be done next.
    pub fn without_remedy(exit: Exit, what: impl Into<String>) -> Self {
        Self { exit, what: what.into(), next: None }
    }

    /// A signal ended the work: nothing is to be done next.
    pub fn interrupted(signal: &str) -> Self {
        Self { exit: Exit::Interrupted, what: format!("interrupted by {signal}"), next: None }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Fault {}

/// An error as a person reads it: one line what failed, one line what to do next. Crosses the pipe from a process in the background to the one that started it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserError {
    /// The exit code.
    pub exit: Exit,
    /// What failed: a line, or a line for each problem of a configuration.
    pub what: String,
    /// What to do next.
    pub next: Option<String>,
}

impl fmt::Display for UserError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for UserError {}

impl From<&anyhow::Error> for UserError {
    fn from(error: &anyhow::Error) -> Self {
        let mut contexts = Vec::new();
        for cause in error.chain() {
            if let Some(user_error) = Self::of(cause) {
                contexts.push(user_error.what);
                return Self { what: contexts.join(": "), ..user_error };
            }
            contexts.push(cause.to_string());
        }
        Self { exit: Exit::Failed, what: contexts.join(": "), next: None }
    }
}

impl UserError {
    fn of(cause: &(dyn std::error::Error + 'static)) -> Option<Self> {
        if let Some(user_error) = cause.downcast_ref::<Self>() {
            return Some(user_error.clone());
        }
        if let Some(fault) = cause.downcast_ref::<Fault>() {
            return Some(Self { exit: fault.exit, what: fault.what.clone(), next: fault.next.clone() });
        }
        if let Some(errors) = cause.downcast_ref::<ConfigErrors>() {
            let next = "correct it; `forebay conf show` lists every key and where its value comes from";
            return Some(Self { exit: Exit::Usage, what: errors.to_string(), next: Some(next.to_owned()) });
        }
        if let Some(failure) = cause.downcast_ref::<Failure>() {
            let (exit, next) = of_kind(failure.kind());
            return Some(Self::with_remedy(exit, failure.message(), next));
        }
        if let Some(error) = cause.downcast_ref::<io::Error>() {
            let (exit, next) = of_io(error.kind());
            return Some(Self { exit, what: error.to_string(), next: next.map(str::to_owned) });
        }
        if let Some(error) = cause.downcast_ref::<PathError>() {
            let next = "give an absolute path of the namespace, as in `/dir/file`, or a path under a mount";
            return Some(Self { exit: Exit::Usage, what: error.to_string(), next: Some(next.to_owned()) });
        }
        let class = class::of(cause)?;
        let message = cause.to_string();
        let (what, next) = message.rsplit_once(class.separator).unzip();
        let what = what.map_or_else(|| message.clone(), str::to_owned);
        Some(Self { exit: class.exit, what, next: next.map(str::to_owned) })
    }

    /// Takes `; remedy` off the message; `otherwise` stands in where the message has none.
    fn with_remedy(exit: Exit, message: &str, otherwise: Option<&str>) -> Self {
        match message.split_once("; ") {
            Some((what, next)) => Self { exit, what: what.to_owned(), next: Some(next.to_owned()) },
            None => Self { exit, what: message.to_owned(), next: otherwise.map(str::to_owned) },
        }
    }
}

fn of_kind(kind: FailureKind) -> (Exit, Option<&'static str>) {
    match kind {
        FailureKind::NotFound => (Exit::NotFound, Some("check the name; `forebay fs ls` shows what is there")),
        FailureKind::NotADirectory => (Exit::Usage, Some("give a directory")),
        FailureKind::IsADirectory => (Exit::Usage, Some("give a file; `forebay fs ls` lists the directory")),
        FailureKind::InvalidArgument | FailureKind::NameTooLong => (Exit::Usage, None),
        FailureKind::PermissionDenied => {
            (Exit::Denied, Some("check the credentials that the worker runs with, and what they allow"))
        }
        FailureKind::ReadOnly => {
            (Exit::Denied, Some("workers with `write.mode = \"none\"` take no writes, nor does every origin"))
        }
        FailureKind::Exists | FailureKind::NotEmpty => (Exit::Busy, None),
        FailureKind::NoSpace => (Exit::Failed, Some("free some space, or raise `write.staging_size`")),
        FailureKind::Unavailable | FailureKind::TimedOut => {
            (Exit::Unavailable, Some("check that the workers run and that they reach the origin, then try again"))
        }
        FailureKind::VersionChanged => (Exit::Failed, Some("the object was replaced meanwhile: run the command again")),
        FailureKind::OutOfResources => {
            (Exit::Unavailable, Some("try again, or give more memory (`worker.memory.size`)"))
        }
        _ => (Exit::Failed, None),
    }
}

fn of_io(kind: io::ErrorKind) -> (Exit, Option<&'static str>) {
    match kind {
        io::ErrorKind::NotFound => (Exit::NotFound, Some("check the path")),
        io::ErrorKind::PermissionDenied => (Exit::Denied, Some("run it as a user who may do that")),
        io::ErrorKind::TimedOut => (Exit::Unavailable, Some("try again")),
        io::ErrorKind::StorageFull => (Exit::Failed, Some("free some space")),
        _ => (Exit::Failed, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn a_failure_is_told_with_its_context_its_remedy_and_its_code() {
        let failure = Failure::new(FailureKind::PermissionDenied, "s3://b: access denied; check the policy");
        let error = Err::<(), _>(failure).context("cannot read /x").unwrap_err();
        let user_error = UserError::from(&error);
        assert_eq!(user_error.exit, Exit::Denied);
        assert_eq!(user_error.what, "cannot read /x: s3://b: access denied");
        assert_eq!(user_error.next.as_deref(), Some("check the policy"));
    }

    #[test]
    fn what_was_told_once_is_told_the_same_again() {
        let user_error = UserError { exit: Exit::Busy, what: "a".into(), next: Some("b".into()) };
        assert_eq!(UserError::from(&anyhow::Error::new(user_error.clone())), user_error);
    }
}
