//! System calls on sockets.
//!
//! Both directions tell tokio that a socket is drained (or full) when a call did less than it could have: the next
//! arrival raises a new edge in epoll. That saves the call that would only return EAGAIN.

use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendFlags};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::TcpError;

/// Connections that the kernel completes before we accept them: a whole cluster of clients may start at once.
const BACKLOG: i32 = 4096;

/// A listening socket on `address`.
pub(crate) fn listen(address: SocketAddr) -> Result<std::net::TcpListener, TcpError> {
    let open = || -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        // Otherwise a restarted worker could not have its port while old connections are in TIME_WAIT.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket)
    };
    open().map(Into::into).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => TcpError::AddressInUse { address },
        _ => TcpError::Listen { address, error },
    })
}

/// Sets what every connection wants. `dead_after`: how long a peer's host may acknowledge nothing.
///
/// Buffer sizes stay the kernel's, which grows them with the bandwidth-delay product: on loopback none of 256 KiB to
/// 2 MiB measured better than the noise of the machine, and a fixed size would limit a long or fast path.
pub(crate) fn tune(stream: &TcpStream, dead_after: Duration) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    // The kernel counts these in whole seconds.
    let second = Duration::from_secs(1);
    let (idle, interval) = (dead_after.max(second), (dead_after / 3).max(second));
    let probes = TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(3);
    socket.set_tcp_keepalive(&probes)?;
    // The kernel counts time in front of a closed window, too, and a busy peer may close it for a while.
    socket.set_tcp_user_timeout(Some(dead_after * 5))
}

/// Lets the peer take no bytes for as long as `patience`.
pub(crate) fn bear_closed_window(stream: &TcpStream, patience: Duration) -> io::Result<()> {
    SockRef::from(stream).set_tcp_user_timeout(Some(patience))
}

/// Receives into `buffers`, without waiting. `Ok(0)` is the end of the stream.
pub(crate) fn receive(stream: &TcpStream, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    let room: usize = buffers.iter().map(|buffer| buffer.len()).sum();
    transfer(stream, Interest::READABLE, room, || rustix::io::retry_on_intr(|| rustix::io::readv(stream, buffers)))
}

/// Sends `slices`, without waiting. `more` says that the rest of a message follows at once.
pub(crate) fn send(stream: &TcpStream, slices: &[IoSlice<'_>], more: bool) -> io::Result<usize> {
    let flags = if more { SendFlags::NOSIGNAL | SendFlags::MORE } else { SendFlags::NOSIGNAL };
    let wanted: usize = slices.iter().map(|slice| slice.len()).sum();
    transfer(stream, Interest::WRITABLE, wanted, || {
        let mut control = SendAncillaryBuffer::default();
        rustix::io::retry_on_intr(|| rustix::net::sendmsg(stream, slices, &mut control, flags))
    })
}

/// Has the kernel send `count` bytes of `file` from `offset`, without waiting for the socket; it does wait for the disk.
/// `Ok(0)` is the end of the file.
pub(crate) fn send_file(stream: &TcpStream, file: &File, offset: u64, count: usize) -> io::Result<usize> {
    // The kernel may do less than it could have, so that says nothing about the socket.
    stream.try_io(Interest::WRITABLE, || {
        let mut offset = offset;
        Ok(rustix::io::retry_on_intr(|| rustix::fs::sendfile(stream, file, Some(&mut offset), count))?)
    })
}

fn transfer(
    stream: &TcpStream,
    interest: Interest,
    wanted: usize,
    mut call: impl FnMut() -> rustix::io::Result<usize>,
) -> io::Result<usize> {
    let mut partial = None;
    let outcome = stream.try_io(interest, || {
        let done = call()?;
        if done == 0 || done == wanted {
            return Ok(done);
        }
        partial = Some(done);
        Err(ErrorKind::WouldBlock.into())
    });
    partial.map_or(outcome, Ok)
}
