//! System calls on sockets.
//!
//! Both directions tell tokio that a socket is drained (or full) when a call did less than it could have: the next
//! arrival raises a new edge in epoll. That saves the call that would only return EAGAIN.
//!
//! Of a socket with zero-copy sends, tokio does not know whether it takes bytes ([`crate::in_flight`]): it is written to without
//! asking.

use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::{size_of, zeroed};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use forebay_locks::heartbeat::excuse;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

use crate::TcpError;
use crate::zero_copy::Completion;

/// `linux/errqueue.h`, which the libc crate lacks.
const SO_EE_ORIGIN_ZEROCOPY: u8 = 5;
const SO_EE_CODE_ZEROCOPY_COPIED: u8 = 1;

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

/// A connection to the Unix socket at `path`.
pub(crate) async fn connect_unix(path: &Path) -> io::Result<TcpStream> {
    of_unix(UnixStream::connect(path).await?)
}

/// A connection over a Unix socket, in the type that all connections have here. What is done with one is the same for every
/// stream socket: waiting for it, and system calls on its descriptor. It has no addresses, and no options of TCP.
pub(crate) fn of_unix(stream: UnixStream) -> io::Result<TcpStream> {
    TcpStream::from_std(OwnedFd::from(stream.into_std()?).into())
}

/// Sets what every connection wants. `dead_after`: how long a peer's host may acknowledge nothing.
///
/// Buffer sizes stay the kernel's, which grows them with the bandwidth-delay product: on loopback none of 256 KiB to
/// 2 MiB measured better than the noise of the machine, and a fixed size would limit a long or fast path.
pub(crate) fn tune(stream: &TcpStream, dead_after: Duration) -> io::Result<()> {
    let socket = SockRef::from(stream);
    if socket.domain()? == Domain::UNIX {
        // What is sent is there, and the kernel closes what a dead peer had.
        return Ok(());
    }
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

/// Whether it is plain that `peer` is on this host. A peer in another network namespace of it is found out by a probe.
pub(crate) fn is_here(stream: &TcpStream, peer: SocketAddr) -> bool {
    let peer = peer.ip().to_canonical();
    peer.is_loopback() || stream.local_addr().is_ok_and(|ours| ours.ip().to_canonical() == peer)
}

/// Receives into `buffers`, without waiting. `Ok(0)` is the end of the stream.
pub(crate) fn receive(stream: &TcpStream, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    let room: usize = buffers.iter().map(|buffer| buffer.len()).sum();
    transfer(stream, Interest::READABLE, room, || rustix::io::retry_on_intr(|| rustix::io::readv(stream, buffers)))
}

/// Sends `slices`, without waiting. `more` says that the rest of a message follows at once.
pub(crate) fn send(stream: &TcpStream, slices: &[IoSlice<'_>], more: bool) -> io::Result<usize> {
    let wanted: usize = slices.iter().map(|slice| slice.len()).sum();
    transfer(stream, Interest::WRITABLE, wanted, || send_unasked(stream, slices, flags(more)))
}

/// The flags of a send. `more` as in [`send`].
pub(crate) fn flags(more: bool) -> SendFlags {
    if more { SendFlags::NOSIGNAL | SendFlags::MORE } else { SendFlags::NOSIGNAL }
}

/// The flag of a send whose bytes the kernel does not copy.
pub(crate) fn zero_copy() -> SendFlags {
    // The bits of a C `int` as those of an unsigned one.
    SendFlags::from_bits_retain(libc::MSG_ZEROCOPY as u32)
}

/// Sends `slices` whatever tokio takes the socket for, if it knows of it, without waiting.
pub(crate) fn send_unasked(stream: &impl AsFd, slices: &[IoSlice<'_>], flags: SendFlags) -> rustix::io::Result<usize> {
    let mut control = SendAncillaryBuffer::default();
    rustix::io::retry_on_intr(|| rustix::net::sendmsg(stream, slices, &mut control, flags | SendFlags::DONTWAIT))
}

/// Has the kernel send `count` bytes of `file` from `offset`, without waiting for the socket; it does wait for the disk.
/// `Ok(0)` is the end of the file.
pub(crate) fn send_file(stream: &TcpStream, file: &File, offset: u64, count: usize) -> io::Result<usize> {
    // The kernel may do less than it could have, so that says nothing about the socket.
    stream.try_io(Interest::WRITABLE, || send_file_unasked(stream, file, offset, count))
}

/// The same whatever tokio takes the socket for.
pub(crate) fn send_file_unasked(stream: &TcpStream, file: &File, offset: u64, count: usize) -> io::Result<usize> {
    // A slow disk is no reason to end the process, though it holds up all connections of the thread.
    let _excuse = excuse();
    let mut offset = offset;
    Ok(rustix::io::retry_on_intr(|| rustix::fs::sendfile(stream, file, Some(&mut offset), count))?)
}

/// Lets sends have [`zero_copy`].
pub(crate) fn allow_zero_copy(stream: &TcpStream) -> io::Result<()> {
    let on: libc::c_int = 1;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value is `length` bytes that live during the call; the descriptor is open.
    match unsafe {
        libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ZEROCOPY, (&raw const on).cast(), length)
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The next completion that is here, if one is.
pub(crate) fn completion(stream: &TcpStream) -> io::Result<Option<Completion>> {
    loop {
        // Room for what there is of each message: the kernel's account and an address. In words, as control messages are aligned.
        let mut control = [0u64; 16];
        // SAFETY: all of it may be zero: no name, no slices, no control messages.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        // SAFETY: the message names only `control`, which lives during the call, with its size; the descriptor is open.
        if unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut message, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) } < 0 {
            match io::Error::last_os_error() {
                error if error.kind() == ErrorKind::Interrupted => continue,
                error if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                error => return Err(error),
            }
        }
        // SAFETY: the kernel filled in `message`, whose control buffer still lives.
        let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        if header.is_null() {
            continue;
        }
        // SAFETY: it is not null, and then the kernel put a whole header, with what it heads, into the aligned buffer. Any bytes
        // make such an account; it is read only when there are as many.
        let (family, account) = unsafe {
            let length = libc::CMSG_LEN(size_of::<libc::sock_extended_err>() as libc::c_uint) as usize;
            if ((*header).cmsg_len as usize) < length {
                continue;
            }
            let account = libc::CMSG_DATA(header).cast::<libc::sock_extended_err>().read_unaligned();
            (((*header).cmsg_level, (*header).cmsg_type), account)
        };
        let of_the_socket = matches!(family, (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR));
        if of_the_socket && account.ee_errno == 0 && account.ee_origin == SO_EE_ORIGIN_ZEROCOPY {
            let copied = account.ee_code & SO_EE_CODE_ZEROCOPY_COPIED != 0;
            return Ok(Some(Completion { first: account.ee_info, last: account.ee_data, copied }));
        }
    }
}

/// An epoll descriptor with `stream` alone, which is readable when the socket takes more or has completions.
pub(crate) fn watch_sending(stream: &TcpStream) -> io::Result<OwnedFd> {
    let watch = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    // Completions count as errors, of which epoll tells unasked.
    epoll::add(&watch, stream, epoll::EventData::new_u64(0), epoll::EventFlags::OUT | epoll::EventFlags::ET)?;
    Ok(watch)
}

/// What a descriptor of [`watch_sending`] tells.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct News {
    /// The socket takes more, or fails at once.
    pub(crate) room: bool,
    /// There are completions, or an error of the socket.
    pub(crate) errors: bool,
}

/// What happened since it was last asked.
pub(crate) fn news(watch: BorrowedFd<'_>) -> io::Result<News> {
    let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }];
    let at_once = Timespec::default();
    let count = match epoll::wait(watch, &mut events[..], Some(&at_once)) {
        Ok(count) => count,
        // Nothing is known: as if there were both, so that what sends is told how much room there is, and what collects how little.
        Err(Errno::INTR) => return Ok(News { room: true, errors: true }),
        Err(error) => return Err(error.into()),
    };
    let flags = events.first().filter(|_| count > 0).map_or(epoll::EventFlags::empty(), |event| event.flags);
    let room = flags.intersects(epoll::EventFlags::OUT | epoll::EventFlags::HUP);
    Ok(News { room, errors: flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP) })
}

/// Resets the connection: the kernel drops what it has not sent, and completes it. The socket stays, and with it its completions.
pub(crate) fn reset(stream: &TcpStream) -> io::Result<()> {
    Ok(rustix::net::connect_unspec(stream)?)
}

/// Sends no more after what was sent.
pub(crate) fn finish(stream: &TcpStream) -> io::Result<()> {
    SockRef::from(stream).shutdown(std::net::Shutdown::Write)
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
