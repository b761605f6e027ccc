//! What a fuzzer feeds to the readers of active messages. What becomes of the calls that they answer is in [`answers`], and who is
//! accepted in [`admission`]; frames over verbs have a module of their own, [`crate::verbs::fuzzing`].

pub mod admission;
pub mod answers;

use bytes::Bytes;
use forebay_transport::wire::{
    CONNECTION_ID, HEADER_LEN, Hello, MAX_REQUEST_BODY, ReplyHeader, RequestHeader, set_tag, tag,
};
use forebay_ucx::Version;

use crate::wire::{self, Packed, Received, UCX_HELLO_LEN, check_hello};

/// Data of an active message.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// It came with the header.
    Eager(&'a [u8]),
    /// So many bytes wait at the sender.
    Rendezvous(usize),
}

impl<'a> From<Data<'a>> for Received<'a> {
    fn from(data: Data<'a>) -> Self {
        match data {
            Data::Eager(bytes) => Self::Here(bytes),
            Data::Rendezvous(length) => Self::Announced(length),
        }
    }
}

/// A member of cluster `ours` is told `hello`.
///
/// # Panics
/// When it takes what it would not say itself.
pub fn hello(ours: &Hello, major: u16, minor: u16, hello: &[u8]) {
    let version = Version { major: major.into(), minor: minor.into(), patch: 0 };
    if let Ok(tag) = check_hello(ours, version, hello) {
        assert_eq!(hello.len(), UCX_HELLO_LEN);
        assert_eq!(check_hello(ours, version, &wire::hello_with(ours, version, tag)), Ok(tag));
    }
}

/// A message with this header arrives on a connection whose peer shows `expected`.
///
/// # Panics
/// When it is taken for a message of that connection and is of another, or the other way round; when a tag says anything else.
pub fn shows(header: &[u8], expected: u64) {
    let first = header.first_chunk::<HEADER_LEN>();
    assert_eq!(wire::carries(header, expected), first.is_some_and(|header| tag(header) == expected));
    let Some(first) = first else { return };
    let mut tagged = *first;
    set_tag(&mut tagged, expected);
    assert!(wire::carries(&tagged, expected) && !wire::carries(&tagged, !expected));
    if let Ok(request) = RequestHeader::decode(first) {
        assert_eq!(RequestHeader::decode(&tagged), Ok(request));
    }
    if let Ok(reply) = ReplyHeader::decode(first) {
        assert_eq!(ReplyHeader::decode(&tagged), Ok(reply));
    }
}

/// A server receives a request.
///
/// # Panics
/// When what it reads is not what was sent, or is beyond the limits of RDMA.
pub fn request(header: &[u8], data: Data<'_>) {
    let Ok((read, body)) = wire::request(header, data.into()) else { return };
    assert!(body.len() == read.body_len as usize && body.len() <= MAX_REQUEST_BODY as usize);
    let again = packed(&read.encode(), body.clone());
    assert_eq!(wire::request(again.header(), Received::Here(&again.rest)), Ok((read, body)));
}

/// A client receives a reply.
///
/// # Panics
/// As [`request`]; also when a failure has a payload.
pub fn reply(header: &[u8], data: Data<'_>) {
    let Ok((read, body, has_payload)) = wire::reply(header, data.into()) else { return };
    assert_eq!((body.len(), has_payload), (read.body_len as usize, read.payload_len > 0));
    assert!(!has_payload || read.id != CONNECTION_ID && read.failure.is_none());
    let again = packed(&read.encode(), body.clone());
    if again.rest.is_empty() {
        let data = Received::Announced(read.payload_len as usize);
        assert_eq!(wire::reply(again.header(), data), Ok((read, body, has_payload)));
    } else if !has_payload {
        assert_eq!(wire::reply(again.header(), Received::Here(&again.rest)), Ok((read, body, has_payload)));
    }
}

fn packed(header: &[u8; HEADER_LEN], body: Bytes) -> Packed {
    Packed::new(header, body, wire::MAX_HEADER)
}
