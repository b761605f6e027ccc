//! Who is at the other end of a Unix socket.
//!
//! Asked of the kernel here, and not through rustix: there a process is a number that is never zero, and zero is what the
//! kernel says of a process in a PID namespace that ours does not see, as in another container.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

/// A process that has connected, or that listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its user.
    pub user: u32,
    /// Its number, if our PID namespace has one for it.
    pub process: Option<u32>,
}

/// Who is at the other end of `socket`.
///
/// # Errors
/// The kernel's, as for what is no Unix socket.
pub fn peer_of(socket: impl AsFd) -> io::Result<Peer> {
    let mut told = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let descriptor = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is borrowed for as long as the call takes; `told` is a place for a `ucred`, whose every
    // value is valid, and `length` is its size.
    let status = unsafe {
        libc::getsockopt(descriptor, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut told).cast(), &raw mut length)
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Peer { user: told.uid, process: u32::try_from(told.pid).ok().filter(|process| *process != 0) })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_kernel_says_who_it_is() {
        let (one, _other) = UnixStream::pair().unwrap();
        let ours = Peer { user: rustix::process::geteuid().as_raw(), process: Some(std::process::id()) };
        assert_eq!(peer_of(&one).unwrap(), ours);
        assert!(peer_of(tempfile::tempfile().unwrap()).is_err());
    }
}
