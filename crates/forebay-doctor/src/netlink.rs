//! Netlink: the kernel's answers that no file has. Which way a packet takes, which addresses
//! an interface has, and what listens through rdma_cm.
//!
//! A request and its answer are messages of a fixed header, a fixed part and attributes. What is here takes them apart
//! without trusting a length in them; what they mean is the business of [`crate::facts`].

use std::io;
use std::time::Duration;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

/// How long the kernel may take: it answers while the request is sent.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// The kernel sends no more at once.
const MAX_BYTES: usize = 64 << 10;
/// Bytes of answers that are looked at, at most.
const MAX_ANSWER: usize = 4 << 20;
const HEADER: usize = 16;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// `NLM_F_ROOT | NLM_F_MATCH`: all there are.
const DUMP: u16 = 0x300;
/// `NLMSG_ERROR` and `NLMSG_DONE`.
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// An attribute that holds attributes, and one in the network's order of bytes: flags of its kind.
const KIND: u16 = 0x3fff;

/// A question: its kind, the fixed part, and attributes.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    kind: u16,
    flags: u16,
    body: Vec<u8>,
}

impl Question {
    /// One of this kind with this fixed part.
    pub(crate) fn new(kind: u16, fixed: &[u8]) -> Self {
        Self { kind, flags: REQUEST, body: fixed.to_vec() }
    }

    /// For all there are, and not one.
    pub(crate) fn all(mut self) -> Self {
        self.flags |= DUMP;
        self
    }

    /// With this attribute.
    pub(crate) fn with(mut self, kind: u16, value: &[u8]) -> Self {
        // No attribute of ours is longer than an address.
        let length = u16::try_from(value.len() + 4).unwrap_or(4);
        self.body.extend_from_slice(&length.to_ne_bytes());
        self.body.extend_from_slice(&kind.to_ne_bytes());
        self.body.extend_from_slice(value);
        self.body.resize(self.body.len().next_multiple_of(4), 0);
        self
    }

    fn encode(&self) -> Vec<u8> {
        let length = u32::try_from(HEADER + self.body.len()).unwrap_or(u32::MAX);
        let mut bytes = Vec::with_capacity(HEADER + self.body.len());
        bytes.extend_from_slice(&length.to_ne_bytes());
        bytes.extend_from_slice(&self.kind.to_ne_bytes());
        bytes.extend_from_slice(&self.flags.to_ne_bytes());
        // Number and sender: one question, one socket.
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// Asks the kernel: what follows the header of each message that it answers with. `protocol` is that of routes where none is
/// given.
pub(crate) fn ask(protocol: Option<Protocol>, question: &Question) -> io::Result<Vec<Vec<u8>>> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_WITHIN))?;
    sendto(&socket, &question.encode(), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let (mut answers, mut total) = (Vec::new(), 0);
    let mut buffer = vec![0; MAX_BYTES];
    loop {
        let (_, received) = recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        total += received;
        let bytes = buffer.get(..received).unwrap_or_default();
        let is_last = take_apart(bytes, &mut answers)?;
        // One question has one answer, unless it was for all.
        if is_last || received == 0 || total > MAX_ANSWER || question.flags & DUMP == 0 {
            return Ok(answers);
        }
    }
}

/// Adds the bodies of the messages in `bytes` to `answers`; whether the last of them ends the answer.
fn take_apart(mut bytes: &[u8], answers: &mut Vec<Vec<u8>>) -> io::Result<bool> {
    while let Some((header, _)) = bytes.split_first_chunk::<HEADER>() {
        let [l0, l1, l2, l3, k0, k1, ..] = *header;
        let length = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
        let Some(body) = bytes.get(HEADER..length) else { return Ok(true) };
        match u16::from_ne_bytes([k0, k1]) {
            DONE => return Ok(true),
            ERROR => {
                let code = body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
                return if code == 0 { Ok(true) } else { Err(io::Error::from_raw_os_error(code.saturating_neg())) };
            }
            _ => answers.push(body.to_vec()),
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// The attributes in `bytes`, each with its kind; what is cut off is left out.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let [l0, l1, k0, k1] = *bytes.first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([k0, k1]) & KIND, value))
    })
}

/// The first attribute of this kind in `bytes`.
pub(crate) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// The number in the attribute of this kind.
pub(crate) fn number(bytes: &[u8], kind: u16) -> Option<u32> {
    attribute(bytes, kind)?.first_chunk().map(|number| u32::from_ne_bytes(*number))
}

/// The text in the attribute of this kind, which ends with a zero.
pub(crate) fn text(bytes: &[u8], kind: u16) -> Option<String> {
    let value = attribute(bytes, kind)?;
    Some(String::from_utf8_lossy(value.split(|byte| *byte == 0).next()?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_in_comes_out_and_what_is_cut_off_does_not() {
        let question = Question::new(26, &[0; 12]).with(1, &[10, 0, 0, 1]).with(2, b"name\0").all();
        let bytes = question.encode();
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(u32::from_ne_bytes(*bytes.first_chunk().unwrap()) as usize, bytes.len());
        let body = &bytes[HEADER + 12..];
        assert_eq!(
            (number(body, 1), text(body, 2).as_deref()),
            (Some(u32::from_ne_bytes([10, 0, 0, 1])), Some("name"))
        );
        assert_eq!((attribute(body, 3), number(body, 3), text(body, 7)), (None, None, None));
        for end in 0..body.len() {
            // Never more than there is, and never for ever.
            assert!(attributes(&body[..end]).count() <= 2, "{end}");
        }
        assert_eq!(attributes(&[0, 0, 1, 0, 5, 0, 1, 0]).count(), 0, "shorter than its own header");
    }

    #[test]
    fn messages_are_taken_apart_until_the_last_and_an_error_is_one() {
        let message = |kind: u16, body: &[u8]| Question { kind, flags: 0, body: body.to_vec() }.encode();
        let mut answers = Vec::new();
        let two = [message(24, &[1; 8]), message(24, &[2; 4])].concat();
        assert!(!take_apart(&two, &mut answers).unwrap());
        assert_eq!(answers, [vec![1; 8], vec![2; 4]]);
        assert!(take_apart(&message(DONE, &[]), &mut answers).unwrap());
        assert!(take_apart(&message(ERROR, &[0; 4]), &mut answers).unwrap(), "an acknowledgement");
        let refused = message(ERROR, &(-libc::EPERM).to_ne_bytes());
        assert_eq!(take_apart(&refused, &mut answers).unwrap_err().raw_os_error(), Some(libc::EPERM));
        let too_long = [&100_u32.to_ne_bytes()[..], &[0; 12]].concat();
        assert!(take_apart(&too_long, &mut answers).unwrap());
        assert!(!take_apart(&[1, 2, 3], &mut answers).unwrap());
        assert_eq!(answers.len(), 2);
    }
}
