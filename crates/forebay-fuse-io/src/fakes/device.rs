//! A kernel at the other end of a socket. Like `/dev/fuse`, a socket of sequenced packets hands over one message a read and takes
//! one a write.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair, sockopt};

use super::{Answered, FakeKernel, SOON, about, encode, init};
use crate::protocol::abi::{IN_HEADER, OUT_HEADER, opcode};
use crate::protocol::request::Header;
use crate::reply::Dispatch;
use crate::session::{Session, SessionOptions};

/// The largest message that is expected of us: a read of 1 MiB.
const MAX: usize = (1 << 20) + 4096;

/// A mount over a socket.
pub(crate) struct FakeDevice {
    wire: Wire,
    session: JoinHandle<io::Result<()>>,
}

/// The kernel's end of the socket.
pub(crate) struct Wire {
    socket: OwnedFd,
    latest: u64,
    answers: HashMap<u64, Answered>,
    notifications: VecDeque<(i32, Vec<u8>)>,
}

impl Wire {
    /// A socket, and the end of it that a session takes for the device.
    pub(crate) fn new() -> (Self, OwnedFd) {
        let (kernel, device) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        for end in [&kernel, &device] {
            // More than that only root gets; tests keep their messages below what others get.
            let _ = sockopt::set_socket_send_buffer_size_force(end, 4 * MAX);
        }
        (Self { socket: kernel, latest: 0, answers: HashMap::new(), notifications: VecDeque::new() }, device)
    }

    /// Sends one message.
    pub(crate) fn send(&mut self, header: Header, head: &[u8], tail: &[u8]) -> u64 {
        self.latest += 2;
        self.send_as(Header { unique: self.latest, ..header }, head, tail)
    }

    pub(crate) fn send_as(&mut self, header: Header, head: &[u8], tail: &[u8]) -> u64 {
        let length = (IN_HEADER + head.len() + tail.len()) as u32;
        let message = [&encode(&Header { length, ..header }), head, tail].concat();
        assert_eq!(rustix::io::write(&self.socket, &message).unwrap(), message.len());
        header.unique
    }

    /// Takes messages until there is the answer to `unique`.
    pub(crate) fn answer(&mut self, unique: u64) -> Answered {
        let until = Instant::now() + SOON;
        loop {
            if let Some(answer) = self.answers.remove(&unique) {
                return answer;
            }
            self.take(until);
        }
    }

    pub(crate) fn notification(&mut self) -> (i32, Vec<u8>) {
        let until = Instant::now() + SOON;
        loop {
            if let Some(notification) = self.notifications.pop_front() {
                return notification;
            }
            self.take(until);
        }
    }

    fn take(&mut self, until: Instant) {
        assert!(self.is_readable(until), "there is no answer");
        let mut message = vec![0; MAX];
        let length = rustix::io::read(&self.socket, &mut message).unwrap();
        assert!(length >= OUT_HEADER, "{length} bytes are no answer");
        message.truncate(length);
        let body = message.split_off(OUT_HEADER);
        let field = |at: usize| u32::from_ne_bytes(message[at..at + 4].try_into().unwrap());
        assert_eq!(field(0) as usize, length, "an answer says its length");
        let (code, unique) = (field(4) as i32, u64::from_ne_bytes(message[8..16].try_into().unwrap()));
        if unique == 0 {
            self.notifications.push_back((code, body));
            return;
        }
        assert!((-511..=0).contains(&code), "the kernel takes no error {code}");
        assert!(code == 0 || body.is_empty(), "nothing follows an error");
        assert!(self.answers.insert(unique, Answered { error: -code, body }).is_none(), "{unique} is answered twice");
    }

    fn is_readable(&self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).unwrap();
        poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&left)).unwrap() > 0
    }

    /// Ends the connection.
    pub(crate) fn end(&self) {
        shutdown(&self.socket, Shutdown::Both).unwrap();
    }
}

impl FakeKernel for FakeDevice {
    fn start<D: Dispatch>(dispatch: Arc<D>, options: &SessionOptions) -> Self {
        let (mut wire, device) = Wire::new();
        let unique = wire.send(about(opcode::INIT, 0), &init(0), &[]);
        let session = Session::start(device, dispatch, options).unwrap();
        assert_eq!(wire.answer(unique).body.len(), 64);
        Self { wire, session: thread::spawn(move || session.run()) }
    }

    fn request(&mut self, header: Header, head: &[u8], tail: &[u8]) -> u64 {
        self.wire.send(header, head, tail)
    }

    fn tell(&mut self, header: Header, head: &[u8], tail: &[u8]) {
        self.wire.send(header, head, tail);
    }

    fn reply(&mut self, unique: u64) -> Answered {
        self.wire.answer(unique)
    }

    fn abort(self) -> io::Result<()> {
        self.wire.end();
        self.session.join().unwrap()
    }
}
