//! System calls on sockets of packets.
//!
//! A socket is watched for what arrives and for nothing else: of a Unix socket the kernel would tell that it can be written to
//! each time the peer takes a packet from it, and wake us for it. A sender that finds it full, which is rare, waits by a second
//! descriptor that exists for that long.
//!
//! Nothing but the peer's end being closed counts as its end here ([`Socket::is_closed_by_peer`]): an empty packet reads like an
//! end of file, and so does a peer that has closed one direction.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::PidfdFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::inherited::Descriptor;

/// Sessions that the kernel opens before we accept them; one more finds the socket full and tries again later.
const BACKLOG: i32 = 128;
/// `SO_PEERPIDFD`, of `asm-generic/socket.h`.
const PEER_PIDFD: libc::c_int = 77;
const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// A socket of packets.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: AsyncFd<Descriptor>,
}

/// What a socket had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// A packet of so many bytes, which may be more than there was room for.
    Packet(usize),
    /// Nothing more comes.
    End,
}

/// A socket that listens at `path`, where this user alone may connect. What is there goes.
pub(crate) fn listen(path: &Path) -> io::Result<Socket> {
    let fd = open()?;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    rustix::net::bind(&fd, &SocketAddrUnix::new(path)?)?;
    rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR)?;
    rustix::net::listen(&fd, BACKLOG)?;
    Socket::new(fd.into())
}

/// A socket that is connected to the process that listens at `path`. Does not wait. It is this process's alone, and none of those that it
/// forks.
pub(crate) fn connect(path: &Path) -> io::Result<Socket> {
    let fd = Descriptor::closed_in_children(open)?;
    rustix::net::connect(&fd, &SocketAddrUnix::new(path)?)?;
    Socket::new(fd)
}

/// Two ends of one connection, for fuzzers.
#[cfg(feature = "fuzzing")]
pub(crate) fn pair() -> io::Result<(Socket, Socket)> {
    let (one, other) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
    Ok((Socket::new(one.into())?, Socket::new(other.into())?))
}

fn open() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?)
}

impl Socket {
    fn new(fd: Descriptor) -> io::Result<Self> {
        Ok(Self { fd: watch(fd, Interest::READABLE)? })
    }

    /// The next that connects.
    pub(crate) async fn accept(&self) -> io::Result<Self> {
        let accept = |fd: &Descriptor| Ok(rustix::net::accept_with(fd, FLAGS)?);
        Self::new(self.fd.async_io(Interest::READABLE, accept).await?.into())
    }

    /// The process that connected, or listened. Its number is 0 if our namespace knows it by none, for which `rustix` has no value.
    pub(crate) fn peer(&self) -> io::Result<libc::ucred> {
        let nobody = libc::ucred { pid: 0, uid: libc::uid_t::MAX, gid: libc::gid_t::MAX };
        self.about_peer(libc::SO_PEERCRED, nobody)
    }

    /// The user of that process.
    pub(crate) fn peer_user(&self) -> io::Result<u32> {
        Ok(self.peer()?.uid)
    }

    /// Which process connected, or listened, as [`our_process`] is for that one; zero if that is gone, though another has its end of the
    /// socket. `None`: this kernel does not say (it does since Linux 6.5).
    pub(crate) fn peer_process(&self) -> Option<u64> {
        match self.about_peer(PEER_PIDFD, -1 as libc::c_int) {
            Ok(process) if process >= 0 => {
                // SAFETY: the kernel has just opened it for us, and nobody else knows of it.
                let process = unsafe { OwnedFd::from_raw_fd(process) };
                Some(number_of(&process).unwrap_or(0))
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => None,
            _ => Some(0),
        }
    }

    /// An option of the socket about its peer, in place of `value`.
    fn about_peer<T: Copy>(&self, option: libc::c_int, mut value: T) -> io::Result<T> {
        let room = size_of::<T>() as libc::socklen_t;
        let (socket, mut length) = (self.fd.get_ref().as_raw_fd(), room);
        // SAFETY: the kernel writes to `value`, no more than the room that `length` says, and keeps neither. Of the types that it is
        // called with, numbers and structures of numbers, all bytes are values.
        let outcome =
            unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, option, (&raw mut value).cast(), &raw mut length) };
        match outcome {
            0 if length == room => Ok(value),
            0 => Err(ErrorKind::InvalidData.into()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Has the kernel keep no more than about `bytes` that the peer has not taken.
    #[cfg(test)]
    pub(crate) fn narrow(&self, bytes: usize) {
        rustix::net::sockopt::set_socket_send_buffer_size(self.fd.get_ref(), bytes).unwrap();
    }

    /// Waits until there may be something to receive.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        self.fd.readable().await.map(drop)
    }

    /// Waits until there may be room to send.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        writable(self.fd.get_ref()).await
    }

    /// The descriptor, which the runtime does not watch any more.
    pub(crate) fn into_unwatched(self) -> Descriptor {
        self.fd.into_inner()
    }

    /// The next packet.
    pub(crate) async fn next(&self, buffer: &mut [u8]) -> io::Result<Received> {
        loop {
            self.readable().await?;
            match self.receive(buffer, |_| false) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                received => return received,
            }
        }
    }

    /// The next packet, and the descriptor that came with it.
    pub(crate) async fn next_with_descriptor(&self, buffer: &mut [u8]) -> io::Result<(Received, Option<OwnedFd>)> {
        loop {
            self.readable().await?;
            match self.receive_with_descriptor(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                received => return received,
            }
        }
    }

    /// Receives one packet, without waiting. `is_last`: asked once there was one, whether another is not to be expected before
    /// something else is sent; then the socket is taken for drained, which saves the call that would say so.
    pub(crate) fn receive(&self, buffer: &mut [u8], is_last: impl FnOnce(&[u8]) -> bool) -> io::Result<Received> {
        receive_watched(&self.fd, buffer, is_last)
    }

    /// Receives one packet, and the descriptor that came with it, without waiting.
    pub(crate) fn receive_with_descriptor(&self, buffer: &mut [u8]) -> io::Result<(Received, Option<OwnedFd>)> {
        self.fd.try_io(Interest::READABLE, |fd| {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::TRUNC | RecvFlags::CMSG_CLOEXEC;
            let mut receive = || rustix::net::recvmsg(fd, &mut [IoSliceMut::new(buffer)], &mut control, flags);
            let received = match receive() {
                // The peer closed its end before it had received everything. What it said before is there, after this.
                Err(Errno::CONNRESET) => receive()?,
                received => received?,
            };
            let mut descriptors = control.drain().filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            });
            // Descriptors that were not asked for are closed here.
            let descriptor = descriptors.by_ref().flatten().next();
            descriptors.for_each(drop);
            if received.bytes == 0 && hangs_up(fd.as_fd(), PollFlags::RDHUP)? {
                return Ok((Received::End, None));
            }
            let is_whole = !received.flags.contains(ReturnFlags::CTRUNC);
            Ok((Received::Packet(received.bytes), descriptor.filter(|_| is_whole)))
        })
    }

    /// Sends `slices` as one packet, without waiting.
    pub(crate) fn send(&self, slices: &[IoSlice<'_>]) -> io::Result<()> {
        send(self.fd.get_ref(), slices)
    }

    /// Sends a packet and a descriptor with it, without waiting.
    pub(crate) fn send_with_descriptor(&self, packet: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [descriptor];
        if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(ErrorKind::InvalidInput.into());
        }
        send_by(self.fd.get_ref(), &[IoSlice::new(packet)], &mut control)
    }

    /// Sends a packet, and a descriptor with it if there is one, as soon as there is room.
    pub(crate) async fn send_when_writable(&self, packet: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        loop {
            let sent = match descriptor {
                Some(descriptor) => self.send_with_descriptor(packet, descriptor),
                None => self.send(&[IoSlice::new(packet)]),
            };
            match sent {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.writable().await?,
                sent => return sent,
            }
        }
    }

    /// Says that nothing more will be sent, and goes on to hear what the peer has to say.
    pub(crate) fn end_sending(&self) {
        // It fails when the peer is gone.
        let _ = rustix::net::shutdown(self.fd.get_ref(), Shutdown::Write);
    }

    /// Whether the peer's end is closed for good: no process has it any more. Two sides that have each closed their own direction look
    /// the same, so our clients never do that.
    pub(crate) fn is_closed_by_peer(&self) -> bool {
        hangs_up(self.fd.get_ref().as_fd(), PollFlags::empty()).unwrap_or(false)
    }
}

/// Receives one packet, without waiting.
pub(crate) fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    match rustix::io::retry_on_intr(|| rustix::net::recv(fd, &mut *buffer, RecvFlags::TRUNC)) {
        Ok((_, 0)) => Ok(if hangs_up(fd, PollFlags::RDHUP)? { Received::End } else { Received::Packet(0) }),
        Ok((_, length)) => Ok(Received::Packet(length)),
        // The peer closed its end before it had received everything.
        Err(Errno::CONNRESET) => Ok(Received::End),
        Err(error) => Err(error.into()),
    }
}

/// The same of a socket that the runtime watches, as [`Socket::receive`].
pub(crate) fn receive_watched<D: AsFd + AsRawFd>(
    fd: &AsyncFd<D>,
    buffer: &mut [u8],
    is_last: impl FnOnce(&[u8]) -> bool,
) -> io::Result<Received> {
    let mut last = None;
    let outcome = fd.try_io(Interest::READABLE, |fd| {
        let received = receive(fd.as_fd(), &mut *buffer)?;
        if let Received::Packet(length @ 1..) = received
            && buffer.get(..length).is_some_and(is_last)
        {
            last = Some(received);
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(received)
    });
    last.map_or(outcome, Ok)
}

/// Sends `slices` as one packet, without waiting.
pub(crate) fn send(fd: &Descriptor, slices: &[IoSlice<'_>]) -> io::Result<()> {
    send_by(fd, slices, &mut SendAncillaryBuffer::default())
}

fn send_by(fd: &Descriptor, slices: &[IoSlice<'_>], control: &mut SendAncillaryBuffer<'_, '_, '_>) -> io::Result<()> {
    // A packet is sent as a whole or not at all.
    rustix::io::retry_on_intr(|| rustix::net::sendmsg(fd, slices, control, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Waits until there may be room to send.
pub(crate) async fn writable(fd: &Descriptor) -> io::Result<()> {
    let second = fd.duplicate()?;
    watch(second, Interest::WRITABLE)?.writable().await.map(drop)
}

fn watch(fd: Descriptor, interest: Interest) -> io::Result<AsyncFd<Descriptor>> {
    // SAFETY: a `Descriptor` is the same open descriptor for as long as it lives, and no other code gets at it to replace
    // it.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}

/// Whether the peer has closed its end, or one of the directions in `also`.
fn hangs_up(fd: BorrowedFd<'_>, also: PollFlags) -> io::Result<bool> {
    let mut polled = [PollFd::from_borrowed_fd(fd, also)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::io::retry_on_intr(|| poll(&mut polled, Some(&at_once)))?;
    Ok(polled[0].revents().intersects(PollFlags::HUP.union(also)))
}

/// A number that this process has and no other one while it lives, whatever namespaces either is in; zero where there is none. Before
/// Linux 6.9 all processes have the same.
pub(crate) fn our_process() -> u64 {
    let process = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty());
    process.ok().and_then(|process| number_of(&process)).unwrap_or(0)
}

fn number_of(process: &OwnedFd) -> Option<u64> {
    rustix::fs::fstat(process).ok().map(|file| file.st_ino)
}

/// Whether a process that says that it is `said` is the one that the kernel has `seen` at its socket, as far as both are known.
pub(crate) fn is_process(seen: Option<u64>, said: u64) -> bool {
    said == 0 || seen.is_none_or(|seen| seen == said)
}

#[cfg(test)]
impl Socket {
    /// Waits until the peer's end is closed: a child that another test has forked may have it for a moment longer.
    pub(crate) async fn until_closed_by_peer(&self) {
        let begun = std::time::Instant::now();
        while !self.is_closed_by_peer() {
            assert!(begun.elapsed() < std::time::Duration::from_secs(30), "it stays open");
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_private::our_user;

    use super::*;

    async fn pair() -> (Socket, Socket) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = listen(&path).unwrap();
        let client = connect(&path).unwrap();
        (client, listener.accept().await.unwrap())
    }

    async fn receive(socket: &Socket, buffer: &mut [u8]) -> Received {
        loop {
            socket.readable().await.unwrap();
            match socket.receive(buffer, |_| false) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                received => return received.unwrap(),
            }
        }
    }

    #[tokio::test]
    async fn the_kernel_says_who_is_there() {
        let (client, server) = pair().await;
        assert_eq!((client.peer_user().unwrap(), server.peer_user().unwrap()), (our_user(), our_user()));
        assert_eq!(u32::try_from(server.peer().unwrap().pid), Ok(std::process::id()));
    }

    #[tokio::test]
    async fn a_process_is_the_one_that_it_says_and_another_is_not() {
        let (client, server) = pair().await;
        let ours = our_process();
        assert!(is_process(client.peer_process(), ours) && is_process(server.peer_process(), ours));
        assert!(is_process(Some(1), 1) && is_process(None, 1) && is_process(Some(1), 0) && !is_process(Some(1), 2));
        assert!(!is_process(Some(0), 1), "it is gone");
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let theirs = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok().and_then(|it| number_of(&it));
        child.kill().unwrap();
        child.wait().unwrap();
        // A kernel that is too old does not tell them apart, or does not say.
        let is_told_apart = theirs.is_some_and(|theirs| theirs != ours) && client.peer_process().is_some();
        assert_eq!(is_process(client.peer_process(), theirs.unwrap_or(0)), !is_told_apart);
    }

    #[tokio::test]
    async fn what_a_peer_said_is_heard_though_it_left_with_something_unread() {
        let (client, server) = pair().await;
        client.send(&[IoSlice::new(b"unread")]).unwrap();
        server.send(&[IoSlice::new(b"bye")]).unwrap();
        drop(server);
        let mut buffer = [0; 8];
        assert_eq!(client.next_with_descriptor(&mut buffer).await.unwrap().0, Received::Packet(3));
        assert_eq!(client.next_with_descriptor(&mut buffer).await.unwrap().0, Received::End);
    }

    #[tokio::test]
    async fn packets_keep_their_ends_and_an_empty_one_is_not_the_end() {
        let (client, server) = pair().await;
        let mut buffer = [0; 8];
        client.send(&[IoSlice::new(b"ab"), IoSlice::new(b"c")]).unwrap();
        client.send(&[]).unwrap();
        client.send(&[IoSlice::new(&[7; 100])]).unwrap();
        assert_eq!((receive(&server, &mut buffer).await, &buffer[..3]), (Received::Packet(3), &b"abc"[..]));
        assert_eq!(receive(&server, &mut buffer).await, Received::Packet(0));
        assert_eq!(receive(&server, &mut buffer).await, Received::Packet(100));
        assert!(!server.is_closed_by_peer());
        drop(client);
        assert_eq!(receive(&server, &mut buffer).await, Received::End);
        server.until_closed_by_peer().await;
    }

    #[tokio::test]
    async fn a_side_that_sends_no_more_still_hears_and_is_not_taken_for_closed() {
        let (client, server) = pair().await;
        let mut buffer = [0; 8];
        server.end_sending();
        assert_eq!(receive(&client, &mut buffer).await, Received::End);
        assert!(!client.is_closed_by_peer());
        client.send(&[IoSlice::new(b"bye")]).unwrap();
        assert_eq!(receive(&server, &mut buffer).await, Received::Packet(3));
        // Something is left unread at an end that is closed.
        client.send(&[IoSlice::new(b"bye")]).unwrap();
        drop(server);
        client.until_closed_by_peer().await;
        assert_eq!(receive(&client, &mut buffer).await, Received::End);
    }

    #[tokio::test]
    async fn a_full_socket_can_be_waited_for() {
        let (client, server) = pair().await;
        let (mut sent, mut buffer) = (0, [0; 8]);
        while client.send(&[IoSlice::new(&[1; 1000])]).is_ok() {
            sent += 1;
        }
        let draining = async {
            for _ in 0..sent {
                assert_eq!(receive(&server, &mut buffer).await, Received::Packet(1000));
            }
        };
        let (writable, ()) = tokio::join!(client.writable(), draining);
        writable.unwrap();
        client.send(&[IoSlice::new(&[1; 1000])]).unwrap();
    }
}
