//! What can be wrong with keys, certificates and names, said to the one who can mend it.

use std::path::PathBuf;

use crate::name::{Identity, NameError};
use crate::secret_file::FileError;
use forebay_types::Role;

/// Why a cluster key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Its file is not read.
    #[error(transparent)]
    File(#[from] FileError),
    /// Its file holds something else.
    #[error("{path}: {reason}; `forebay key create` makes a key file", path = path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What it holds.
        reason: &'static str,
    },
    /// The system gave no random numbers.
    #[error("the system has no random numbers to make a key of")]
    Random,
}

/// Why a file of tokens cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// It is not read.
    #[error(transparent)]
    File(#[from] FileError),
    /// It holds something else.
    #[error("{path}: {reason}; `forebay key token` makes a token", path = path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What it holds.
        reason: &'static str,
    },
    /// The system gave no random numbers.
    #[error("the system has no random numbers to make a token of")]
    Random,
}

/// Why a certificate was not made.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// It would be for no name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// It would end before it begins, or lie outside of what certificates can say.
    #[error("a certificate cannot be valid for this time")]
    Time,
    /// The libraries refuse.
    #[error("a certificate cannot be made: {0}")]
    Library(String),
}

/// Why a certificate of this process cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The cluster key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A file of certificates, or of those that are denied.
    #[error(transparent)]
    File(#[from] FileError),
    /// The key of the cluster made none.
    #[error(transparent)]
    Issue(#[from] IssueError),
    /// What is in a file is not what belongs there.
    #[error("{path}: {reason}", path = path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Certificate and key are of two pairs: one of the two files may be about to be replaced.
    #[error("{certificate} and {key} are no pair", certificate = certificate.display(), key = key.display())]
    Pair {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// The certificate is not one that others would believe.
    #[error("{path} would be refused by others: {reason}", path = path.display())]
    Refused {
        /// The certificate's file.
        path: PathBuf,
        /// Why.
        reason: IdentityError,
    },
    /// The certificate is good, and of somebody else than this process has been so far.
    #[error(
        "{path} is for `{found}`, and this process is `{identity}` as long as it runs: restart it to be the other",
        path = path.display()
    )]
    Renamed {
        /// The certificate's file.
        path: PathBuf,
        /// Whom the certificate names.
        found: Box<Identity>,
        /// Who the process is.
        identity: Box<Identity>,
    },
}

/// Why somebody is not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// There is no certificate.
    #[error("it has no certificate")]
    Missing,
    /// What it sent is no certificate.
    #[error("its certificate cannot be read")]
    Malformed,
    /// The certificate has no name of a URI, or several.
    #[error("its certificate has {0} URIs for names, and must have one")]
    Names(usize),
    /// The name is not one of Forebay.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The name is of another cluster or another trust domain.
    #[error("`{0}` is of another cluster")]
    Stranger(Box<Identity>),
    /// No authority that may speak for its role vouches for it.
    #[error("no authority for role {role} of this cluster signed the certificate of `{name}`", role = .0.role(), name = .0)]
    Authority(Box<Identity>),
    /// The certificate's time is over.
    #[error("the certificate of `{0}` has expired: is it renewed, and are both clocks right?")]
    Expired(Box<Identity>),
    /// The certificate's time has not come.
    #[error("the certificate of `{0}` is not valid yet: are both clocks right?")]
    NotYet(Box<Identity>),
    /// The chain is not sound, or is for another purpose.
    #[error("the certificate of `{0}` does not hold: {1}")]
    Chain(Box<Identity>, String),
    /// It is on the list of those that are denied.
    #[error("`{0}` is denied")]
    Denied(Box<Identity>),
    /// It is believed, and is not the one that was meant.
    #[error("`{0}` listens there, and no {1}")]
    Role(Box<Identity>, Role),
}

/// Why there is no pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PassError {
    /// The system has no random numbers.
    #[error("the system gives no random numbers")]
    Random,
    /// The client has no id.
    #[error("a client id of 0 stands for none")]
    ClientId,
    /// There are too many.
    #[error("{0} passes of this worker wait to be used; ask again in ten seconds")]
    Full(usize),
    /// There are too many for this identity.
    #[error("{0} passes of this identity wait to be used; ask again in ten seconds")]
    FullOfOne(usize),
}
