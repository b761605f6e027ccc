//! The layout of packets. Pure. Little-endian throughout; the headers of requests and replies are [`forebay_transport::wire`]'s.
//!
//! The client speaks first: its hello. The worker answers with its own, and with it the descriptor of its memory. With identities both
//! hellos go within TLS ([`crate::handshake`]), and behind each the number of the process that says it. Then a
//! packet of the client is a request, or releases, or releases with a request behind them, so that a reader that goes on costs one
//! packet for each read and no more; a packet of the worker is a reply, whose payload is not sent but pointed at.
//!
//! ```text
//! hello     0 hello [128] │ 128 length of the memory u64 │ 136 requests at once u32 │ 140 zero u32 │ 144 instance u64
//!                                                                                                     (the client's: its first 128)
//! releases  0 magic u16 │ 2 count u16 │ 4 zero u32 │ 8 request ids u64 × count
//! request   0 header [64] │ 64 body
//! reply     0 header [64] │ 64 body │ places × (0 offset u64 │ 8 length u32 │ 12 zero u32)
//! process   0 number u64, or zero: only within TLS
//! ```
//!
//! The lengths of a reply's places add up to its payload's. A payload without any place *lies elsewhere*: not in the memory that
//! was passed, or in too many pieces; the client is to ask for it another way. A reply of id 0, a failure, is the worker's reason
//! for ending the session, which it may also give instead of its hello.

use std::fmt;

use forebay_memory::Place;
use forebay_transport::wire::{
    CONNECTION_ID, HEADER_LEN, HELLO_LEN, MAX_BODY_BESIDE_PAYLOAD, MAX_REQUEST_BODY, ReplyHeader, RequestHeader,
    WireError,
};
use forebay_transport::{Op, Provenance};
use forebay_types::{Failure, FailureKind};

/// Bytes in the worker's hello.
pub(crate) const GREETING_LEN: usize = HELLO_LEN + 24;
/// The most places in one reply: a block of 4 MiB whose sectors of 32 KiB lie all apart needs 128. With them a reply fits a page.
pub(crate) const MAX_PLACES: usize = 160;
/// The most ids in one packet.
pub(crate) const MAX_RELEASES: usize = 64;
/// The longest packet of a client.
pub(crate) const MAX_ASKED: usize = RELEASES_LEN + 8 * MAX_RELEASES + HEADER_LEN + MAX_REQUEST_BODY as usize;
/// The longest packet of a worker.
pub(crate) const MAX_ANSWERED: usize = HEADER_LEN + MAX_BODY_BESIDE_PAYLOAD as usize + PLACE_LEN * MAX_PLACES;

const RELEASES_MAGIC: [u8; 2] = *b"FR";
const RELEASES_LEN: usize = 8;
const PLACE_LEN: usize = 16;

/// Why a packet is none of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    /// Its header.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// What follows its header.
    #[error("{what} of {length} bytes has {found}")]
    Length {
        /// What.
        what: &'static str,
        /// What its header says.
        length: usize,
        /// What there is.
        found: usize,
    },
    /// Its size.
    #[error("a packet of {0} bytes is no message")]
    Size(usize),
    /// What is released.
    #[error("{0} releases in one packet")]
    Releases(usize),
    /// Where a payload lies.
    #[error("a payload of {length} bytes lies in {places} places of {found} bytes together")]
    Places {
        /// Bytes of payload.
        length: u32,
        /// How many places.
        places: usize,
        /// Their bytes.
        found: u64,
    },
}

/// The worker's hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    /// The hello that all transports share, to be checked.
    pub(crate) hello: [u8; HELLO_LEN],
    /// Bytes of the memory.
    pub(crate) length: u64,
    /// How many requests it answers at once.
    pub(crate) max_requests: u32,
    /// Which worker it is, as it says elsewhere, too.
    pub(crate) instance: u64,
}

impl Greeting {
    pub(crate) fn encode(&self) -> [u8; GREETING_LEN] {
        let mut bytes = [0; GREETING_LEN];
        bytes[..HELLO_LEN].copy_from_slice(&self.hello);
        bytes[HELLO_LEN..HELLO_LEN + 8].copy_from_slice(&self.length.to_le_bytes());
        bytes[HELLO_LEN + 8..HELLO_LEN + 12].copy_from_slice(&self.max_requests.to_le_bytes());
        bytes[HELLO_LEN + 16..].copy_from_slice(&self.instance.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(packet: &[u8]) -> Result<Self, Malformed> {
        let bytes: &[u8; GREETING_LEN] = packet.try_into().map_err(|_| Malformed::Size(packet.len()))?;
        let mut hello = [0; HELLO_LEN];
        hello.copy_from_slice(&bytes[..HELLO_LEN]);
        let (length, instance) = (u64_at(bytes, HELLO_LEN), u64_at(bytes, HELLO_LEN + 16));
        Ok(Self { hello, length, max_requests: u32_at(bytes, HELLO_LEN + 8), instance })
    }
}

/// Appends a message that releases `ids`, of which there are at most [`MAX_RELEASES`]; nothing for none.
pub(crate) fn put_releases(packet: &mut impl Extend<u8>, ids: &[u64]) {
    let ids = &ids[..ids.len().min(MAX_RELEASES)];
    if ids.is_empty() {
        return;
    }
    packet.extend(RELEASES_MAGIC);
    packet.extend((ids.len() as u16).to_le_bytes());
    packet.extend([0; 4]);
    ids.iter().for_each(|id| packet.extend(id.to_le_bytes()));
}

/// A packet of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked<'a> {
    releases: &'a [u8],
    /// The request, and its body.
    pub(crate) request: Option<(RequestHeader, &'a [u8])>,
}

impl<'a> Asked<'a> {
    /// Reads a packet.
    ///
    /// # Errors
    /// [`Malformed`]; its sender is not to be listened to.
    pub(crate) fn decode(packet: &'a [u8]) -> Result<Self, Malformed> {
        let (releases, rest) = match packet {
            [a, b, low, high, ..] if [*a, *b] == RELEASES_MAGIC => {
                let count = usize::from(u16::from_le_bytes([*low, *high]));
                let end = RELEASES_LEN + 8 * count;
                if count == 0 || count > MAX_RELEASES || end > packet.len() {
                    return Err(Malformed::Releases(count));
                }
                (&packet[RELEASES_LEN..end], &packet[end..])
            }
            _ => (&packet[..0], packet),
        };
        if rest.is_empty() && !releases.is_empty() {
            return Ok(Self { releases, request: None });
        }
        let (header, body) = rest.split_first_chunk().ok_or(Malformed::Size(packet.len()))?;
        let header = RequestHeader::decode(header)?;
        let (length, found) = (header.body_len as usize, body.len());
        if length != found {
            return Err(Malformed::Length { what: "a request with a body", length, found });
        }
        Ok(Self { releases, request: Some((header, body)) })
    }

    /// What is released.
    pub(crate) fn releases(&self) -> impl Iterator<Item = u64> {
        self.releases.chunks_exact(8).map(|id| u64_at(id, 0))
    }
}

/// Writes a reply. Its payload's length is that of all places.
pub(crate) fn put_reply(packet: &mut Vec<u8>, id: u64, provenance: Provenance, body: &[u8], places: &[Place]) {
    let length = places.iter().map(|place| place.length).sum();
    put(packet, &ReplyHeader { id, failure: None, body_len: body.len() as u32, payload_len: length, provenance }, body);
    for place in places {
        packet.extend_from_slice(&place.offset.to_le_bytes());
        packet.extend_from_slice(&place.length.to_le_bytes());
        packet.extend_from_slice(&[0; 4]);
    }
}

/// Writes that the payload lies elsewhere.
pub(crate) fn put_elsewhere(packet: &mut Vec<u8>, id: u64, length: u32) {
    let provenance = Provenance::default();
    put(packet, &ReplyHeader { id, failure: None, body_len: 0, payload_len: length, provenance }, &[]);
}

/// Writes a failure, its message cut to what a reply has room for.
pub(crate) fn put_failure(packet: &mut Vec<u8>, id: u64, failure: &Failure) {
    let message = failure.message();
    let mut end = message.len().min(MAX_BODY_BESIDE_PAYLOAD as usize);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    let (kind, provenance) = (Some(failure.kind()), Provenance::default());
    let header = ReplyHeader { id, failure: kind, body_len: end as u32, payload_len: 0, provenance };
    put(packet, &header, &message.as_bytes()[..end]);
}

/// Writes why the session ends.
pub(crate) fn goodbye(kind: FailureKind, reason: &dyn fmt::Display) -> Vec<u8> {
    let mut packet = Vec::new();
    put_failure(&mut packet, CONNECTION_ID, &Failure::new(kind, reason.to_string()));
    packet
}

fn put(packet: &mut Vec<u8>, header: &ReplyHeader, body: &[u8]) {
    packet.clear();
    packet.extend_from_slice(&header.encode());
    packet.extend_from_slice(body);
}

/// A packet of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answered<'a> {
    pub(crate) header: ReplyHeader,
    pub(crate) body: &'a [u8],
    places: &'a [u8],
}

impl<'a> Answered<'a> {
    /// Reads a packet.
    ///
    /// # Errors
    /// [`Malformed`]; its sender is not to be listened to.
    pub(crate) fn decode(packet: &'a [u8]) -> Result<Self, Malformed> {
        let (header, rest) = packet.split_first_chunk().ok_or(Malformed::Size(packet.len()))?;
        let header = ReplyHeader::decode(header)?;
        let (length, found) = (header.body_len as usize, rest.len());
        let Some((body, places)) = rest.split_at_checked(length) else {
            return Err(Malformed::Length { what: "a reply with a body", length, found });
        };
        let answered = Self { header, body, places };
        let (count, found) = (answered.places().count(), answered.places().map(|place| u64::from(place.length)).sum());
        let length = answered.header.payload_len;
        let adds_up = found == u64::from(length) || answered.lies_elsewhere();
        if !adds_up || places.len() != count * PLACE_LEN || count > MAX_PLACES {
            return Err(Malformed::Places { length, places: count, found });
        }
        Ok(answered)
    }

    /// Whether there is a payload, and no places for it.
    pub(crate) fn lies_elsewhere(&self) -> bool {
        self.header.failure.is_none() && self.header.payload_len > 0 && self.places.is_empty()
    }

    /// Where the payload lies.
    pub(crate) fn places(&self) -> impl Iterator<Item = Place> {
        self.places.chunks_exact(PLACE_LEN).map(|place| Place { offset: u64_at(place, 0), length: u32_at(place, 8) })
    }
}

/// Whether reads alone, and the question whether one lives, are what `op` is about.
pub(crate) fn is_served(op: Op) -> bool {
    matches!(op, Op::Read | Op::Ping)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use bytes::Bytes;
    use forebay_transport::Request;
    use forebay_types::{BlockKey, FileId};
    use proptest::prelude::*;

    fn request(id: u64, body: &[u8]) -> Vec<u8> {
        let block = BlockKey { file: FileId([3; 16]), index: 4 };
        let request = Request::on_block(Op::Read, block, 5, 6, Duration::from_secs(7));
        let request = request.with_body(Bytes::copy_from_slice(body));
        [&RequestHeader::of(id, &request).encode()[..], body].concat()
    }

    proptest! {
        #[test]
        fn packets_survive_the_wire(
            ids in prop::collection::vec(any::<u64>(), 0..MAX_RELEASES),
            body in prop::collection::vec(any::<u8>(), 0..200),
            places in prop::collection::vec((any::<u64>(), 1u32..10_000), 0..MAX_PLACES),
            asks: bool,
        ) {
            let mut packet = Vec::new();
            put_releases(&mut packet, &ids);
            if asks || ids.is_empty() {
                packet.extend(request(9, &body));
            }
            let asked = Asked::decode(&packet).unwrap();
            prop_assert_eq!(asked.releases().collect::<Vec<_>>(), ids.clone());
            let got = asked.request.map(|(header, body)| (header.id, body.to_vec()));
            prop_assert_eq!(got, (asks || ids.is_empty()).then(|| (9, body.clone())));

            let places: Vec<Place> = places.into_iter().map(|(offset, length)| Place { offset, length }).collect();
            let provenance = Provenance { memory: 1, disk: 2, origin: 3 };
            put_reply(&mut packet, 11, provenance, &body, &places);
            let answered = Answered::decode(&packet).unwrap();
            prop_assert_eq!((answered.header.id, answered.header.provenance), (11, provenance));
            prop_assert!(answered.body == body && !answered.lies_elsewhere());
            prop_assert_eq!(answered.places().collect::<Vec<_>>(), places);
        }

        #[test]
        fn no_bytes_make_the_decoders_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            start in prop_oneof![Just(0), 1u8..4],
            cut in any::<prop::sample::Index>(),
        ) {
            let mut packet = Vec::new();
            match start {
                1 => put_releases(&mut packet, &[1, 2, 3]),
                2 => packet = request(1, &bytes),
                3 => put_reply(&mut packet, 1, Provenance::default(), &bytes, &[Place { offset: 1, length: 2 }]),
                _ => {}
            }
            packet.extend(&bytes);
            packet.truncate(cut.index(packet.len() + 1));
            let _ = Asked::decode(&packet).map(|asked| asked.releases().count());
            let _ = Answered::decode(&packet).map(|answered| answered.places().count());
            let _ = Greeting::decode(&packet);
        }
    }

    #[test]
    fn what_does_not_add_up_is_no_message() {
        let mut packet = Vec::new();
        let place = Place { offset: 0, length: 10 };
        put_reply(&mut packet, 1, Provenance::default(), b"body", &[place, place]);
        assert!(Answered::decode(&packet).is_ok());
        for end in [packet.len() - 1, packet.len() - PLACE_LEN, HEADER_LEN + 3, HEADER_LEN - 1, 0] {
            assert!(Answered::decode(&packet[..end]).is_err(), "{end}");
        }
        put_reply(&mut packet, 1, Provenance::default(), b"", &vec![place; MAX_PLACES + 1]);
        assert!(matches!(Answered::decode(&packet), Err(Malformed::Places { .. })));
        put_failure(&mut packet, 1, &Failure::new(FailureKind::Internal, "x"));
        packet.extend([1; PLACE_LEN]);
        assert!(Answered::decode(&packet).is_err());
        let (none, many) = ([b"FR".as_slice(), &[0; 6]].concat(), [b"FR".as_slice(), &[255; 6]].concat());
        for bad in [&none[..], &many, b"", b"GET / HTTP/1.1", &request(1, b"abc")[..HEADER_LEN + 2]] {
            assert!(Asked::decode(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_payload_may_lie_elsewhere_and_a_long_reason_is_cut() {
        let mut packet = Vec::new();
        put_elsewhere(&mut packet, 5, 100);
        assert!(Answered::decode(&packet).unwrap().lies_elsewhere());
        put_failure(&mut packet, 5, &Failure::new(FailureKind::Internal, "é".repeat(5000)));
        let answered = Answered::decode(&packet).unwrap();
        assert_eq!(answered.header.failure(answered.body).unwrap().message(), "é".repeat(480));
        assert!(packet.len() <= MAX_ANSWERED);
    }

    #[test]
    fn a_greeting_survives_the_wire() {
        let greeting = Greeting { hello: [7; HELLO_LEN], length: 1 << 40, max_requests: 9, instance: u64::MAX - 5 };
        assert_eq!(Greeting::decode(&greeting.encode()), Ok(greeting));
        assert_eq!(Greeting::decode(&[0; HELLO_LEN]), Err(Malformed::Size(HELLO_LEN)));
    }
}
