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
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Sessions that the kernel opens before we accept them; one more finds the socket full and tries again later.
const BACKLOG: i32 = 128;
const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// A socket of packets.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: AsyncFd<OwnedFd>,
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
    Socket::new(fd)
}

/// A socket that is connected to the process that listens at `path`. Does not wait.
pub(crate) fn connect(path: &Path) -> io::Result<Socket> {
    let fd = open()?;
    rustix::net::connect(&fd, &SocketAddrUnix::new(path)?)?;
    Socket::new(fd)
}

fn open() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?)
}

impl Socket {
    fn new(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { fd: watch(fd, Interest::READABLE)? })
    }

    /// The next that connects.
    pub(crate) async fn accept(&self) -> io::Result<Self> {
        let accept = |fd: &OwnedFd| Ok(rustix::net::accept_with(fd, FLAGS)?);
        Self::new(self.fd.async_io(Interest::READABLE, accept).await?)
    }

    /// The user of the process that connected, or listened.
    pub(crate) fn peer_user(&self) -> io::Result<u32> {
        Ok(rustix::net::sockopt::socket_peercred(self.fd.get_ref())?.uid.as_raw())
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
        let second = rustix::io::fcntl_dupfd_cloexec(self.fd.get_ref(), 0)?;
        watch(second, Interest::WRITABLE)?.writable().await.map(drop)
    }

    /// Receives one packet, without waiting. `is_last`: asked once there was one, whether another is not to be expected before
    /// something else is sent; then the socket is taken for drained, which saves the call that would say so.
    pub(crate) fn receive(&self, buffer: &mut [u8], is_last: impl FnOnce(&[u8]) -> bool) -> io::Result<Received> {
        let mut last = None;
        let outcome = self.fd.try_io(Interest::READABLE, |fd| {
            let receive = || rustix::net::recv(fd, &mut *buffer, RecvFlags::TRUNC);
            let (_, length) = rustix::io::retry_on_intr(receive)?;
            if length == 0 {
                return Ok(if hangs_up(fd, PollFlags::RDHUP)? { Received::End } else { Received::Packet(0) });
            }
            let received = Received::Packet(length);
            if buffer.get(..length).is_some_and(is_last) {
                last = Some(received);
                return Err(ErrorKind::WouldBlock.into());
            }
            Ok(received)
        });
        match last {
            Some(received) => Ok(received),
            // The peer closed its end before it had received everything.
            None if matches!(&outcome, Err(error) if error.kind() == ErrorKind::ConnectionReset) => Ok(Received::End),
            None => outcome,
        }
    }

    /// Receives one packet, and the descriptor that came with it, without waiting.
    pub(crate) fn receive_with_descriptor(&self, buffer: &mut [u8]) -> io::Result<(Received, Option<OwnedFd>)> {
        self.fd.try_io(Interest::READABLE, |fd| {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::TRUNC | RecvFlags::CMSG_CLOEXEC;
            let received = rustix::net::recvmsg(fd, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
            let mut descriptors = control.drain().filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            });
            // Descriptors that were not asked for are closed here.
            let descriptor = descriptors.by_ref().flatten().next();
            descriptors.for_each(drop);
            if received.bytes == 0 && hangs_up(fd, PollFlags::RDHUP)? {
                return Ok((Received::End, None));
            }
            let is_whole = !received.flags.contains(ReturnFlags::CTRUNC);
            Ok((Received::Packet(received.bytes), descriptor.filter(|_| is_whole)))
        })
    }

    /// Sends `slices` as one packet, without waiting.
    pub(crate) fn send(&self, slices: &[IoSlice<'_>]) -> io::Result<()> {
        self.send_by(slices, &mut SendAncillaryBuffer::default())
    }

    /// Sends a packet and a descriptor with it, without waiting.
    pub(crate) fn send_with_descriptor(&self, packet: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [descriptor];
        if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(ErrorKind::InvalidInput.into());
        }
        self.send_by(&[IoSlice::new(packet)], &mut control)
    }

    fn send_by(&self, slices: &[IoSlice<'_>], control: &mut SendAncillaryBuffer<'_, '_, '_>) -> io::Result<()> {
        let fd = self.fd.get_ref();
        // A packet is sent as a whole or not at all.
        rustix::io::retry_on_intr(|| rustix::net::sendmsg(fd, slices, control, SendFlags::NOSIGNAL))?;
        Ok(())
    }

    /// Says that nothing more will be sent, and goes on to hear what the peer has to say.
    pub(crate) fn end_sending(&self) {
        // It fails when the peer is gone.
        let _ = rustix::net::shutdown(self.fd.get_ref(), Shutdown::Write);
    }

    /// Whether the peer's end is closed for good: no process has it any more. Two sides that have each closed their own direction look
    /// the same, so our clients never do that.
    pub(crate) fn is_closed_by_peer(&self) -> bool {
        hangs_up(self.fd.get_ref(), PollFlags::empty()).unwrap_or(false)
    }
}

fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is the same open descriptor for as long as it lives, and no other code gets at it to replace
    // it.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}

/// Whether the peer has closed its end, or one of the directions in `also`.
fn hangs_up(fd: &OwnedFd, also: PollFlags) -> io::Result<bool> {
    let mut polled = [PollFd::from_borrowed_fd(fd.as_fd(), also)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::io::retry_on_intr(|| poll(&mut polled, Some(&at_once)))?;
    Ok(polled[0].revents().intersects(PollFlags::HUP.union(also)))
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
        assert!(server.is_closed_by_peer());
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
        assert!(client.is_closed_by_peer());
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
