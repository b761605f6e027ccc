//! The window: a worker's memory, seen by clients on the same host.
//!
//! A worker in another process of the host would send its bytes: a copy into the client's buffers, and then another to the
//! reader. Here it passes the descriptor of its pool, once, and answers a read with where the bytes lie. The client maps the pool,
//! to be read only, and its reply is a view of the worker's memory, as one within a process would be.
//!
//! * [`WindowServer`] is the worker's side: a Unix socket in a directory of its user alone, under a name that follows from the
//!   worker's address ([`socket_path`]);
//! * [`NearTransport`] is the client's: it wraps another transport to the same worker, takes the reads that bring no buffer,
//!   and leaves everything else to the other.
//!
//! What decides is pure and knows no socket: `wire` (what packets mean), `pins` (what is shown, and how much of that there may
//! be), `lease` (when the worker is told what is not looked at any more), `attempts` (when to connect). The rest is the shell around
//! it: a task for each session on either side, in whose place threads that may wait receive what they asked for (`driven`), and
//! system calls in `socket`. Where both ends have to prove who they are, they do so before anything else (`security`, `handshake`,
//! `greeting`). Who was let in, and who was not, `audit` tells.
//!
//! # Why no reader ever sees a wrong byte
//!
//! Bytes of a pool change only when their extent is handed out anew, and that happens only when its last view is gone (invariant
//! 4). So a view in another process has to be one of ours for as long as it lives:
//!
//! 1. *What is told is pinned.* Before the worker says where bytes lie, its session owns the views of the reply
//!    (`pins`). It gives them up for one of two reasons: the client says that it is done, or the kernel says that no
//!    process has the client's end of the socket any more. A session that ends otherwise, with its server, its task or
//!    a panic, forgets them: that memory is lost to the pool, and stays mapped and unchanged for as long as any process
//!    looks at it.
//! 2. *What is seen holds the socket.* A view in the client owns a lease, and the lease owns the socket. So the
//!    client's end is open while there is a view: also after the session failed, after a reply that no caller waited
//!    for, after the transport was closed. It is closed when the last view is gone, or by the kernel when the client's
//!    process is dead, and its threads look at nothing any more.
//! 3. *A lease ends once.* It belongs to the request's number, which is used once in a session, and is shared by the views of a
//!    reply; the last of them to go releases it. A reply whose caller has left is a view that is dropped at once. A release of what
//!    was not shown ends the session, and not what it has shown.
//! 4. *A client can only look.* The mapping is read-only, and so is the descriptor. No other user gets to the
//!    socket (`path`, `listener`), and both sides talk only to their own user and to root, by what the kernel says of
//!    the other: the memory holds what the worker's user may read, and a process that passes memory could take it away.
//!    With identities, both prove them first, on the same socket, and the descriptor is passed to nobody who has not.
//!    And the worker that is seen is the one that is meant: both ways to it name the same instance.
//! 5. *Nothing is believed.* The worker checks that bytes lie in the pool that it passed, the client that places lie in what it
//!    mapped and add up. What does not fit is another way's to read ([`forebay_transport::LinkError::OtherPath`]).
//!
//! The bytes of a view must not be passed to the kernel for longer than the view lives, as zero-copy sends and `vmsplice` do.
//!
//! # What bounds it
//!
//! What clients look at lies in at most half of the pool's frames, and each session may have one reply beyond that, up to half as
//! much again. A reply beyond the bound waits in line for releases, but for 50 ms at most: a client that holds views may be waiting
//! for more itself, or stand still while it holds them. Then its client is sent another way, into a buffer of its own. So a
//! client that lets nothing go costs the others copies, and no failures. Sessions are bounded, those that
//! have not said hello apart, and the requests of each. Hellos and connecting have a deadline, and calls have theirs.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod attempts;
mod audit;
mod call;
mod connection;
mod driven;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod greeting;
mod handshake;
pub mod inherited;
mod known;
mod lease;
mod listener;
mod near;
mod options;
mod path;
mod pins;
mod reach;
mod security;
mod server;
mod session;
mod sessions;
mod socket;
mod unwatched;
mod wire;

pub use near::{NearTransport, WindowReport};
pub use options::{ClientOptions, ServerOptions};
pub use path::{default_directory, socket_path};
pub use security::{ClientSecurity, ServerSecurity};
pub use server::WindowServer;

use std::path::PathBuf;

use forebay_private::{NotOurs, PrivateError};

/// Why a worker's memory could not be opened to clients.
#[derive(Debug, thiserror::Error)]
pub enum WindowError {
    /// The pool is this process's alone.
    #[error("the worker's memory is private to its process")]
    Private,
    /// Others could take the place of the socket.
    #[error(transparent)]
    NotOurs(#[from] NotOurs),
    /// Another socket listens there already.
    #[error(
        "cannot listen at {path}: another process does; stop it (`ss -xlp src {path}` names it) or set \
         `network.shared_memory = off`"
    )]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// The kernel has no room for the path.
    #[error(
        "cannot listen at {path}: the path of a socket has {max} bytes at most, and this one {length}; set \
         `network.shared_memory_dir` to a shorter one",
        max = crate::path::MAX_PATH
    )]
    TooLong {
        /// The socket.
        path: PathBuf,
        /// Bytes in that.
        length: usize,
    },
    /// The kernel refused for another reason.
    #[error("cannot {action} {path}: {error}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which socket, file or directory.
        path: PathBuf,
        /// The kernel's answer.
        error: std::io::Error,
    },
}

impl From<PrivateError> for WindowError {
    fn from(error: PrivateError) -> Self {
        match error {
            PrivateError::NotOurs(not_ours) => Self::NotOurs(not_ours),
            PrivateError::Io { action, path, error } => Self::Io { action, path, error },
        }
    }
}
