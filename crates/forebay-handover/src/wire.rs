//! Messages and descriptors over a Unix socket.
//!
//! A message is a header (its length, the number of the protocol, how many descriptors come with it) and postcard. Descriptors go
//! with the header's first byte, so whoever has the header has them. What a peer sends is bounded, and descriptors that were
//! not announced are closed.

use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::message::PROTOCOL;

/// Bytes of a message, at most: options and some paths.
const MAX_MESSAGE: u32 = 256 << 10;
/// The number of what is said to keepers and launchers. They are not started anew with a new version, so it is not the one of the
/// hand-over, which may go up.
const KEEPERS: u16 = 1;
/// Descriptors of a message, at most.
const MAX_DESCRIPTORS: usize = 8;
const HEADER: usize = 8;
/// How long the rest of a message may take, and how long one may take to be sent.
const WITHIN: Duration = Duration::from_secs(10);

/// A socket to the other process.
#[derive(Debug)]
pub(crate) struct Wire {
    socket: UnixStream,
    /// The number of what is said over it.
    protocol: u16,
}

/// Why nothing was sent or received.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    /// The other process has ended the connection.
    #[error("the connection has ended")]
    Closed,
    /// It speaks another protocol.
    #[error("the other process speaks version {0} of the hand-over")]
    Protocol(u16),
    /// It sends what makes no sense.
    #[error("the other process sends what makes no sense: {0}")]
    Nonsense(&'static str),
    /// The kernel refuses.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<rustix::io::Errno> for WireError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// What comes first.
struct Header {
    length: u32,
    protocol: u16,
    descriptors: u16,
}

impl Header {
    fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.protocol.to_le_bytes());
        bytes[6..].copy_from_slice(&self.descriptors.to_le_bytes());
        bytes
    }

    fn decode([a, b, c, d, e, f, g, h]: [u8; HEADER]) -> Self {
        let (length, protocol) = (u32::from_le_bytes([a, b, c, d]), u16::from_le_bytes([e, f]));
        Self { length, protocol, descriptors: u16::from_le_bytes([g, h]) }
    }
}

impl Wire {
    /// Over `socket`, which waits from now on: to or from a keeper, or a launcher.
    pub(crate) fn new(socket: UnixStream) -> io::Result<Self> {
        Self::speaking(KEEPERS, socket)
    }

    /// Over `socket`, which waits from now on: between the two processes of a hand-over.
    pub(crate) fn of_hand_over(socket: UnixStream) -> io::Result<Self> {
        Self::speaking(PROTOCOL, socket)
    }

    fn speaking(protocol: u16, socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(WITHIN))?;
        socket.set_write_timeout(Some(WITHIN))?;
        Ok(Self { socket, protocol })
    }

    /// Sends a message, and descriptors with it.
    pub(crate) fn send<M: Serialize>(&mut self, message: &M, descriptors: &[BorrowedFd<'_>]) -> Result<(), WireError> {
        let body = postcard::to_stdvec(message).map_err(|_| WireError::Nonsense("it cannot be written"))?;
        let too_much = || WireError::Nonsense("it is too long");
        let length = u32::try_from(body.len()).ok().filter(|length| *length <= MAX_MESSAGE).ok_or_else(too_much)?;
        if descriptors.len() > MAX_DESCRIPTORS {
            return Err(too_much());
        }
        // Which is at most that.
        let count = descriptors.len() as u16;
        let header = Header { length, protocol: self.protocol, descriptors: count }.encode();

        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(too_much());
        }
        let bytes = [&header[..], &body].concat();
        let sent = rustix::io::retry_on_intr(|| {
            rustix::net::sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)
        });
        let sent = sent.map_err(gone)?;
        self.socket.write_all(bytes.get(sent..).unwrap_or_default()).map_err(ended)
    }

    /// The next message and the descriptors that came with it; `None` when there is none at that time.
    pub(crate) fn receive<M: DeserializeOwned>(
        &mut self,
        until: Option<Instant>,
    ) -> Result<Option<(M, Vec<OwnedFd>)>, WireError> {
        if !self.is_readable(until)? {
            return Ok(None);
        }
        let (header, descriptors) = self.receive_header()?;
        if header.protocol != self.protocol {
            return Err(WireError::Protocol(header.protocol));
        }
        if header.length > MAX_MESSAGE {
            return Err(WireError::Nonsense("a message is too long"));
        }
        let mut body = vec![0; header.length as usize];
        self.socket.read_exact(&mut body).map_err(ended)?;
        if descriptors.len() != usize::from(header.descriptors) {
            return Err(WireError::Nonsense("descriptors are missing"));
        }
        let read = postcard::take_from_bytes(&body).ok().filter(|(_, left)| left.is_empty());
        let (message, _) = read.ok_or(WireError::Nonsense("a message cannot be read"))?;
        Ok(Some((message, descriptors)))
    }

    /// Takes nothing from the other process any more but what it has sent until now: whatever it sends from now on fails there. After
    /// what was sent before, [`Wire::receive`] finds the end. The kernel does this under the lock under which it queues what is sent,
    /// so each message is on one side of it.
    pub(crate) fn hear_no_more(&self) -> Result<(), WireError> {
        Ok(self.socket.shutdown(Shutdown::Read)?)
    }

    /// Whether there is something to read, or the end, at that time at the latest.
    fn is_readable(&self, until: Option<Instant>) -> Result<bool, WireError> {
        let mut watched = [PollFd::new(&self.socket, PollFlags::IN)];
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            // What is too long for the kernel is a day.
            let left = left.map(|left| Timespec::try_from(left.min(Duration::from_secs(86_400))));
            let left = left.transpose().map_err(|_| WireError::Nonsense("a time is none"))?;
            match poll(&mut watched, left.as_ref()) {
                Err(rustix::io::Errno::INTR) => {}
                ready => return Ok(ready? > 0),
            }
        }
    }

    fn receive_header(&mut self) -> Result<(Header, Vec<OwnedFd>), WireError> {
        let (mut header, mut read, mut descriptors) = ([0; HEADER], 0, Vec::new());
        while read < HEADER {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut rest = [IoSliceMut::new(header.get_mut(read..).unwrap_or_default())];
            let received = rustix::io::retry_on_intr(|| {
                rustix::net::recvmsg(&self.socket, &mut rest, &mut control, RecvFlags::CMSG_CLOEXEC)
            });
            let received = received.map_err(gone)?;
            // Whatever came is closed with this unless it is kept.
            descriptors.extend(control.drain().flat_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
                _ => Vec::new(),
            }));
            // Where the space for them ends is rounded up, so more of them may have come than are taken.
            if received.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > MAX_DESCRIPTORS {
                return Err(WireError::Nonsense("there are too many descriptors"));
            }
            if received.bytes == 0 {
                return Err(WireError::Closed);
            }
            read += received.bytes;
        }
        Ok((Header::decode(header), descriptors))
    }
}

/// For those who play the other process.
#[cfg(feature = "fuzzing")]
impl Wire {
    /// What comes before a message of this length, with which come so many descriptors.
    pub(crate) fn header(&self, length: u32, descriptors: u16) -> [u8; HEADER] {
        Header { length, protocol: self.protocol, descriptors }.encode()
    }
}

fn gone(errno: rustix::io::Errno) -> WireError {
    ended(errno.into())
}

/// What is the end of the connection is told so.
fn ended(error: io::Error) -> WireError {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    match error.kind() {
        BrokenPipe | ConnectionReset | UnexpectedEof => WireError::Closed,
        _ => WireError::Io(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek as _, SeekFrom};
    use std::os::fd::AsFd as _;

    use super::*;

    fn pair() -> (Wire, Wire) {
        let (one, other) = UnixStream::pair().unwrap();
        (Wire::new(one).unwrap(), Wire::new(other).unwrap())
    }

    #[test]
    fn a_message_comes_with_its_descriptors_and_the_next_one_without() {
        let (mut one, mut other) = pair();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"through the socket").unwrap();
        one.send(&"first".to_owned(), &[file.as_fd(), file.as_fd()]).unwrap();
        one.send(&"x".repeat(100_000), &[]).unwrap();
        let (message, descriptors): (String, _) = other.receive(None).unwrap().unwrap();
        assert_eq!((&*message, descriptors.len()), ("first", 2));
        let mut copy = std::fs::File::from(descriptors.into_iter().next().unwrap());
        let mut text = String::new();
        copy.seek(SeekFrom::Start(0)).unwrap();
        copy.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through the socket");
        let (message, descriptors): (String, _) = other.receive(None).unwrap().unwrap();
        assert_eq!((message.len(), descriptors.len()), (100_000, 0));
    }

    #[test]
    fn who_hears_no_more_has_what_was_sent_before_and_the_other_one_knows_what_was_not() {
        let (mut one, mut other) = pair();
        one.send(&1u32, &[]).unwrap();
        other.send(&2u32, &[]).unwrap();
        other.hear_no_more().unwrap();
        assert!(matches!(one.send(&3u32, &[]), Err(WireError::Closed)));
        assert_eq!(other.receive::<u32>(None).unwrap().unwrap().0, 1);
        assert!(matches!(other.receive::<u32>(None), Err(WireError::Closed)));
        // The other way is open.
        assert_eq!(one.receive::<u32>(None).unwrap().unwrap().0, 2);
        other.send(&4u32, &[]).unwrap();
        assert_eq!(one.receive::<u32>(None).unwrap().unwrap().0, 4);
    }

    #[test]
    fn no_more_descriptors_are_taken_than_a_message_may_have() {
        let file = tempfile::tempfile().unwrap();
        for count in [MAX_DESCRIPTORS, MAX_DESCRIPTORS + 1, MAX_DESCRIPTORS + 2] {
            let (mut ours, theirs) = pair();
            let body = postcard::to_stdvec(&1u32).unwrap();
            let header =
                Header { length: body.len() as u32, protocol: ours.protocol, descriptors: count as u16 }.encode();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS + 2))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let descriptors = vec![file.as_fd(); count];
            assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
            let bytes = [&header[..], &body].concat();
            rustix::net::sendmsg(&theirs.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::empty()).unwrap();
            match ours.receive::<u32>(None) {
                Ok(Some((1, descriptors))) => assert_eq!((count, descriptors.len()), (MAX_DESCRIPTORS, count)),
                refused => {
                    assert!(count > MAX_DESCRIPTORS && matches!(refused, Err(WireError::Nonsense(_))), "{count}")
                }
            }
        }
    }

    #[test]
    fn nothing_is_told_from_the_end() {
        let (mut one, other) = pair();
        assert!(one.receive::<String>(Some(Instant::now())).unwrap().is_none());
        drop(other);
        assert!(matches!(one.receive::<String>(None), Err(WireError::Closed)));
        assert!(matches!(one.send(&1u32, &[]), Err(WireError::Closed)));
    }

    #[test]
    fn what_another_program_sends_is_refused_and_allocates_nothing() {
        let attempt = |bytes: &[u8]| {
            let (mut ours, theirs) = pair();
            (&theirs.socket).write_all(bytes).unwrap();
            drop(theirs);
            ours.receive::<String>(None).unwrap_err()
        };
        assert!(matches!(attempt(&[5, 0, 0, 0, 9, 0, 0, 0]), WireError::Protocol(9)));
        let ours = KEEPERS.to_le_bytes();
        assert!(matches!(attempt(&[255, 255, 255, 255, ours[0], ours[1], 0, 0]), WireError::Nonsense(_)));
        assert!(matches!(attempt(&[1, 0, 0, 0, ours[0], ours[1], 1, 0, 0]), WireError::Nonsense(_)));
        assert!(matches!(attempt(&[2, 0, 0, 0, ours[0], ours[1], 0, 0, 9, 9]), WireError::Nonsense(_)));
        assert!(matches!(attempt(&[2, 0, 0, 0, ours[0], ours[1], 0, 0, 9]), WireError::Closed));
        assert!(matches!(attempt(&[2, 0, 0]), WireError::Closed));
    }
}
