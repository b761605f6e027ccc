//! A socket of packets that the runtime watches only while a task wants it to.
//!
//! A client's task watches it ([`Watch`]) while it receives. While threads wait for their answers themselves it does not, or the runtime
//! would be woken for each of them. To send and to receive needs no watch.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::inherited::Descriptor;
use crate::socket::{Received, Socket, receive, receive_watched, send, writable};

/// See above.
#[derive(Debug)]
pub(crate) struct Unwatched {
    fd: Descriptor,
}

/// The runtime watches for what arrives, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    fd: AsyncFd<BorrowedFd<'a>>,
}

impl From<Socket> for Unwatched {
    fn from(socket: Socket) -> Self {
        Self { fd: socket.into_unwatched() }
    }
}

impl Unwatched {
    /// Has the runtime watch it. What has arrived already counts.
    pub(crate) fn watch(&self) -> io::Result<Watch<'_>> {
        // SAFETY: a `Descriptor` is the same open descriptor for as long as it lives, and it is borrowed for as long as the watch lives.
        Ok(Watch { fd: unsafe { AsyncFd::register_with_interest(self.fd.as_fd(), Interest::READABLE) }? })
    }

    /// Receives one packet, without waiting.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        receive(self.fd.as_fd(), buffer)
    }

    /// Sends `slices` as one packet, without waiting.
    pub(crate) fn send(&self, slices: &[IoSlice<'_>]) -> io::Result<()> {
        send(&self.fd, slices)
    }

    /// Waits until there may be room to send.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        writable(&self.fd).await
    }

    /// Has the calling thread sleep until something arrives, for that long at most.
    pub(crate) fn sleep(&self, at_most: Duration) {
        let timeout = Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: i64::from(at_most.subsec_nanos()) };
        // If it fails, or a signal comes, there is one look more.
        let _ = poll(&mut [PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::IN)], Some(&timeout));
    }
}

impl Watch<'_> {
    /// Waits until there may be something to receive.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        self.fd.readable().await.map(drop)
    }

    /// As [`Socket::receive`].
    pub(crate) fn receive(&self, buffer: &mut [u8], is_last: impl FnOnce(&[u8]) -> bool) -> io::Result<Received> {
        receive_watched(&self.fd, buffer, is_last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn what_arrives_while_nobody_watches_is_there_for_a_thread_and_for_the_next_watch() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = socket::listen(&path).unwrap();
        let ours = Unwatched::from(socket::connect(&path).unwrap());
        let peer = listener.accept().await.unwrap();
        let mut buffer = [0; 16];
        assert_eq!(ours.receive(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        peer.send(&[IoSlice::new(b"one")]).unwrap();
        ours.sleep(LONG);
        assert_eq!(ours.receive(&mut buffer).unwrap(), Received::Packet(3));

        peer.send(&[IoSlice::new(b"two")]).unwrap();
        let watch = ours.watch().unwrap();
        tokio::time::timeout(LONG, watch.readable()).await.unwrap().unwrap();
        assert_eq!(watch.receive(&mut buffer, |_| true).unwrap(), Received::Packet(3));
        peer.send(&[IoSlice::new(b"again")]).unwrap();
        tokio::time::timeout(LONG, watch.readable()).await.unwrap().unwrap();
        assert_eq!(watch.receive(&mut buffer, |_| false).unwrap(), Received::Packet(5));
        drop(watch);

        drop(peer);
        ours.sleep(LONG);
        assert_eq!(ours.receive(&mut buffer).unwrap(), Received::End);
        let watch = ours.watch().unwrap();
        tokio::time::timeout(LONG, watch.readable()).await.unwrap().unwrap();
    }
}
