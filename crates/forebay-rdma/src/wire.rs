//! The layout of active messages: [`forebay_transport::wire`]'s headers, and where body and payload go.
//!
//! ```text
//! id 1 hello    header: hello [128] │ UCX major u16 │ minor u16 │ tag u64     data: none
//! id 4 welcome  the same, from the server
//! id 2 request  header: request header [64] │ body, if it fits                data: the body, if it does not
//! id 3 reply    header: reply header [64] │ body, if it fits                  data: the payload, or the body if it does not fit
//! ```
//!
//! The tag is the sender's half of the connection's pass ([`forebay_identity::Pass`]), and zero without one. Headers of requests
//! and replies have one, too, which is looked at before anything else is believed.
//!
//! A body fits when header and body are within [`MAX_HEADER`], or UCX's own limit if that is lower. One that does not
//! fit is sent with its message, never by rendezvous, so that the receiver needs no buffer for it. So bodies of
//! requests have at most 64 KiB here, whatever they ask, and longer ones go over TCP. A reply with a payload has a body
//! that fits: checksums of the sectors of a block, 512 bytes.

use bytes::Bytes;
use forebay_transport::wire::{
    CONNECTION_ID, HEADER_LEN, HELLO_LEN, Hello, MAX_REPLY_BODY, MAX_REQUEST_BODY, ReplyHeader, RequestHeader,
    WireError, tag,
};
use forebay_types::{Failure, FailureKind};
use forebay_ucx::{Data, Version};
use smallvec::SmallVec;

/// The active message that a client sends first.
pub const HELLO: u16 = 1;
/// The active message of a request.
pub const REQUEST: u16 = 2;
/// The active message of a reply.
pub const REPLY: u16 = 3;
/// The active message that answers a hello.
pub const WELCOME: u16 = 4;
/// Bytes of an active message's header, at most.
pub const MAX_HEADER: usize = 2048;
/// Room for the header of a hit without allocating: 64 bytes, and the checksums of the sectors of a block, 512.
const HOT_HEADER: usize = 1024;
/// Bytes of a hello: the one of all transports, UCX's version, and the tag.
pub const UCX_HELLO_LEN: usize = HELLO_LEN + 12;

/// The bytes of our hello on a connection without a pass.
#[must_use]
pub fn hello(ours: &Hello, version: Version) -> [u8; UCX_HELLO_LEN] {
    hello_with(ours, version, 0)
}

/// The bytes of our hello that shows `tag`.
#[must_use]
pub fn hello_with(ours: &Hello, version: Version, tag: u64) -> [u8; UCX_HELLO_LEN] {
    let mut bytes = [0; UCX_HELLO_LEN];
    bytes[..HELLO_LEN].copy_from_slice(&ours.encode());
    bytes[HELLO_LEN..HELLO_LEN + 2].copy_from_slice(&(version.major as u16).to_le_bytes());
    bytes[HELLO_LEN + 2..HELLO_LEN + 4].copy_from_slice(&(version.minor as u16).to_le_bytes());
    bytes[HELLO_LEN + 4..].copy_from_slice(&tag.to_le_bytes());
    bytes
}

/// Why a peer's hello does not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// It is none, or not one that we may talk to.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// It is cut off.
    #[error("its hello has {0} bytes")]
    Length(usize),
    /// Its UCX speaks another dialect: rendezvous between some versions hangs.
    #[error("it runs UCX {theirs_major}.{theirs_minor}, we run {ours}; install the same release on both sides")]
    Ucx {
        /// Its major version.
        theirs_major: u16,
        /// Its minor version.
        theirs_minor: u16,
        /// Ours.
        ours: Version,
    },
}

/// Decides whether we may talk to the sender of `bytes`; the tag that it shows.
///
/// # Errors
/// [`HelloError`].
pub fn check_hello(ours: &Hello, version: Version, bytes: &[u8]) -> Result<u64, HelloError> {
    let length = || HelloError::Length(bytes.len());
    let (hello, rest) = bytes.split_first_chunk::<HELLO_LEN>().ok_or_else(length)?;
    // First: one of another release is told so, however long its hello is.
    ours.check(hello)?;
    let rest = <[u8; UCX_HELLO_LEN - HELLO_LEN]>::try_from(rest).map_err(|_| length())?;
    let [a, b, c, d, tag @ ..] = rest;
    let (theirs_major, theirs_minor) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
    if (u64::from(theirs_major), u64::from(theirs_minor)) == (u64::from(version.major), u64::from(version.minor)) {
        Ok(u64::from_le_bytes(tag))
    } else {
        Err(HelloError::Ucx { theirs_major, theirs_minor, ours: version })
    }
}

/// Whether a request may have a body of so many bytes here.
///
/// # Errors
/// [`FailureKind::InvalidArgument`].
pub(crate) fn check_body(length: usize) -> Result<(), Failure> {
    if length <= MAX_REQUEST_BODY as usize {
        return Ok(());
    }
    let message =
        format!("a request body of {length} bytes is over RDMA's limit of {MAX_REQUEST_BODY}; it goes over TCP");
    Err(Failure::new(FailureKind::InvalidArgument, message))
}

/// A message's header, and its body if that does not fit into it.
pub(crate) struct Packed {
    bytes: SmallVec<[u8; HOT_HEADER]>,
    /// What is left for the data.
    pub(crate) rest: Bytes,
}

impl Packed {
    pub(crate) fn new(header: &[u8; HEADER_LEN], body: Bytes, limit: usize) -> Self {
        let mut packed = Self { bytes: SmallVec::from_slice(header), rest: body };
        if HEADER_LEN + packed.rest.len() <= limit.min(MAX_HEADER) {
            packed.bytes.extend_from_slice(&packed.rest);
            packed.rest = Bytes::new();
        }
        packed
    }

    pub(crate) fn header(&self) -> &[u8] {
        &self.bytes
    }
}

/// A received message's header and the body in it; `None` for one that is cut off.
pub(crate) fn unpack(bytes: &[u8]) -> Option<(&[u8; HEADER_LEN], &[u8])> {
    bytes.split_first_chunk()
}

/// Whether the message of a request or a reply with this header shows `expected`.
pub(crate) fn carries(message: &[u8], expected: u64) -> bool {
    unpack(message).is_some_and(|(header, _)| tag(header) == expected)
}

/// The data of a message that was received.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Received<'a> {
    /// All of it.
    Here(&'a [u8]),
    /// Its length: it waits at the sender.
    Announced(usize),
}

impl<'a> From<&Data<'a>> for Received<'a> {
    fn from(data: &Data<'a>) -> Self {
        match data {
            Data::Eager(bytes) => Self::Here(bytes),
            Data::Rendezvous(rendezvous) => Self::Announced(rendezvous.len()),
        }
    }
}

impl Received<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Here(bytes) => bytes.len(),
            Self::Announced(length) => *length,
        }
    }
}

/// Reads a request: its header, and its body.
///
/// # Errors
/// How it breaks the protocol.
pub(crate) fn request(header: &[u8], data: Received<'_>) -> Result<(RequestHeader, Bytes), String> {
    let (header, inline) = unpack(header).ok_or("a request's header is cut off")?;
    let header = RequestHeader::decode(header).map_err(|error| error.to_string())?;
    check_body(header.body_len as usize).map_err(|refused| refused.to_string())?;
    let body = match data {
        Received::Here([]) if inline.len() == header.body_len as usize => Bytes::copy_from_slice(inline),
        Received::Here(bytes) if inline.is_empty() && bytes.len() == header.body_len as usize => {
            Bytes::copy_from_slice(bytes)
        }
        _ => return Err(format!("a body of {} bytes is not where it should be", header.body_len)),
    };
    Ok((header, body))
}

/// Reads a reply: its header, its body, and whether the data is its payload.
///
/// # Errors
/// How it breaks the protocol.
pub(crate) fn reply(header: &[u8], data: Received<'_>) -> Result<(ReplyHeader, Bytes, bool), String> {
    let (header, inline) = unpack(header).ok_or("a reply's header is cut off")?;
    let header = ReplyHeader::decode(header).map_err(|error| error.to_string())?;
    let (body, has_payload) = body_of_reply(&header, inline, data)?;
    if has_payload && (header.id == CONNECTION_ID || header.failure.is_some()) {
        return Err(format!("a reply of {} bytes has nothing to bring", header.payload_len));
    }
    Ok((header, body, has_payload))
}

/// Where a reply's body and payload are.
fn body_of_reply(header: &ReplyHeader, inline: &[u8], data: Received<'_>) -> Result<(Bytes, bool), String> {
    let (body_len, payload_len) = (header.body_len as usize, header.payload_len as usize);
    if inline.len() == body_len {
        if data.len() != payload_len {
            return Err(format!("a reply of {payload_len} bytes came with {}", data.len()));
        }
        return Ok((Bytes::copy_from_slice(inline), payload_len > 0));
    }
    match data {
        Received::Here(bytes) if inline.is_empty() && payload_len == 0 && bytes.len() == body_len => {
            Ok((Bytes::copy_from_slice(bytes), false))
        }
        _ => Err(format!("a body of {body_len} bytes (at most {MAX_REPLY_BODY}) is not where it should be")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_transport::wire::set_tag;
    use forebay_types::MAX_BLOCK_SIZE;

    const VERSION: Version = Version { major: 1, minor: 20, patch: 0 };

    #[test]
    fn a_hello_is_taken_from_the_same_ucx_only() {
        let ours = Hello::ours("prod", MAX_BLOCK_SIZE);
        let bytes = hello(&ours, VERSION);
        assert_eq!(check_hello(&ours, VERSION, &bytes), Ok(0));
        assert_eq!(check_hello(&ours, Version { patch: 3, ..VERSION }, &bytes), Ok(0));
        assert_eq!(check_hello(&ours, VERSION, &hello_with(&ours, VERSION, 1 << 40)), Ok(1 << 40));
        let error = check_hello(&ours, Version { minor: 13, ..VERSION }, &bytes).unwrap_err().to_string();
        assert!(error.contains("1.20") && error.contains("1.13"), "{error}");
        for other in [Hello::ours("staging", MAX_BLOCK_SIZE), Hello::ours("prod", MAX_BLOCK_SIZE / 4)] {
            assert!(matches!(check_hello(&other, VERSION, &bytes), Err(HelloError::Wire(_))));
        }
        for length in [0, 10, HELLO_LEN, UCX_HELLO_LEN - 1] {
            assert_eq!(check_hello(&ours, VERSION, &bytes[..length]), Err(HelloError::Length(length)));
        }
        assert!(check_hello(&ours, VERSION, &[bytes.as_slice(), &[0]].concat()).is_err());
    }

    #[test]
    fn a_body_goes_into_the_header_when_it_fits() {
        let header = [7; HEADER_LEN];
        let small = Packed::new(&header, Bytes::from(vec![1; 500]), 4096);
        assert_eq!((small.header().len(), small.rest.len()), (HEADER_LEN + 500, 0));
        assert_eq!(unpack(small.header()), Some((&header, &[1; 500][..])));
        for (length, limit) in [(MAX_HEADER, 8192), (500, 256)] {
            let large = Packed::new(&header, Bytes::from(vec![1; length]), limit);
            assert_eq!((large.header(), large.rest.len()), (&header[..], length));
        }
        assert_eq!(unpack(&header[..63]), None);
    }

    #[test]
    fn a_message_shows_its_tag_or_is_of_somebody_else() {
        let mut header = [0; HEADER_LEN];
        assert!(carries(&header, 0) && !carries(&header, 5));
        set_tag(&mut header, 5);
        assert!(carries(&header, 5) && carries(&[&header[..], b"body"].concat(), 5));
        assert!(!carries(&header, 4) && !carries(&header[..63], 5) && !carries(&[], 0));
    }
}
