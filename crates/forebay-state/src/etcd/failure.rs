//! What etcd's errors mean for us.

use std::error::Error as _;
use std::fmt;

use etcd_client::Error;

/// A failure of one call to one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Certainly not carried out: no connection, or the member had no leader to give it to. Another member may do it.
    NotCarriedOut(String),
    /// The answer was lost, or did not come: it may have been carried out.
    Unknown(String),
    /// Like `Unknown`: nothing came within the deadline.
    TimedOut,
    /// The lease has ended.
    NoSuchLease,
    /// The revision was compacted, or etcd has not come to it.
    NoSuchRevision,
    /// The answer is larger than we accept.
    TooLarge,
    /// etcd said no, and any member would.
    Refused {
        /// What it said.
        reason: String,
        /// What to do.
        remedy: &'static str,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotCarriedOut(reason) | Self::Unknown(reason) | Self::Refused { reason, .. } => reason,
            Self::TimedOut => "nothing came in time",
            Self::NoSuchLease => "the lease has ended",
            Self::NoSuchRevision => "the revision is not there any more, or not yet",
            Self::TooLarge => "the answer is too large",
        })
    }
}

/// What gRPC and etcd mean by these numbers: <https://grpc.io/docs/guides/status-codes/>.
mod code {
    pub(super) const NOT_FOUND: i32 = 5;
    pub(super) const PERMISSION_DENIED: i32 = 7;
    pub(super) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(super) const OUT_OF_RANGE: i32 = 11;
    pub(super) const INVALID_ARGUMENT: i32 = 3;
    pub(super) const FAILED_PRECONDITION: i32 = 9;
    pub(super) const UNAUTHENTICATED: i32 = 16;
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let Error::GRpcStatus(status) = &error else {
            return match &error {
                // Connections are opened before a call is sent.
                Error::TransportError(cause) => Self::NotCarriedOut(causes(cause)),
                Error::LeaseKeepAliveError(_) => Self::NoSuchLease,
                _ => Self::Unknown(error.to_string()),
            };
        };
        let message = status.message();
        match i32::from(status.code()) {
            // The users or their rights changed after our token was made: the next one will do.
            _ if message.contains("no leader") || message.contains("auth store is old") => {
                Self::NotCarriedOut(message.to_owned())
            }
            code::NOT_FOUND if message.contains("lease") => Self::NoSuchLease,
            code::OUT_OF_RANGE if message.contains("required revision") => Self::NoSuchRevision,
            code::OUT_OF_RANGE | code::RESOURCE_EXHAUSTED if message.contains("message length too large") => {
                Self::TooLarge
            }
            code::RESOURCE_EXHAUSTED if message.contains("space") => Self::refused(
                message,
                "etcd's database is full: compact and defragment it, raise its quota, and disarm the alarm",
            ),
            code::PERMISSION_DENIED => {
                Self::refused(message, "grant the etcd user read and write access to the keys under /forebay/")
            }
            code::UNAUTHENTICATED | code::INVALID_ARGUMENT | code::FAILED_PRECONDITION if is_about_users(message) => {
                Self::refused(message, "check the etcd user and its password")
            }
            code::INVALID_ARGUMENT | code::FAILED_PRECONDITION => {
                Self::refused(message, "check etcd's version and limits (--max-txn-ops, --max-request-bytes)")
            }
            _ if was_not_connected(status) => Self::NotCarriedOut(causes(status)),
            _ if status.source().is_none() => Self::Unknown(message.to_owned()),
            _ => Self::Unknown(causes(status)),
        }
    }
}

impl Failure {
    fn refused(message: &str, remedy: &'static str) -> Self {
        Self::Refused { reason: message.to_owned(), remedy }
    }
}

fn is_about_users(message: &str) -> bool {
    ["auth", "user", "password", "token"].iter().any(|word| message.contains(word))
}

/// Whether the failure is that of opening a connection: only that has these kinds of errors below it.
fn was_not_connected(status: &(dyn std::error::Error + 'static)) -> bool {
    use std::io::ErrorKind::{AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkUnreachable};
    let mut next = status.source();
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<std::io::Error>()
            && matches!(error.kind(), AddrNotAvailable | ConnectionRefused | HostUnreachable | NetworkUnreachable)
        {
            return true;
        }
        next = error.source();
    }
    false
}

/// Why a call failed, for people. A transport's own text only says that it did; what happened is below it.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = String::new();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if cause_text != "transport error" && !text.contains(&cause_text) {
            let separator = if text.is_empty() { "" } else { ": " };
            text = format!("{text}{separator}{cause_text}");
        }
        next = cause.source();
    }
    if text.is_empty() { error.to_string() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_person_reads_is_the_cause() {
        #[derive(Debug, thiserror::Error)]
        #[error("transport error")]
        struct Transport(#[source] std::io::Error);

        let refused = || std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        assert_eq!(causes(&Transport(refused())), "connection refused");
        assert!(was_not_connected(&Transport(refused())));
        let broken = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert!(!was_not_connected(&Transport(broken)), "a call may have been sent before");
        assert_eq!(causes(&refused()), "connection refused");
    }
}
