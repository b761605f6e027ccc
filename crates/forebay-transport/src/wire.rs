//! The layout of messages on a byte stream or in an active message. Little-endian throughout.
//!
//! Both sides first send a [`Hello`] of 128 bytes. Then a request is a header of 64 bytes and its body; a reply is a
//! header of 64 bytes, its body and its payload. A header ends with the CRC32C of what precedes it: a stream that got out
//! of step, or a peer that speaks something else, is noticed at once and never believed about a length.
//!
//! Request id 0 is the connection's own ([`CONNECTION_ID`]): a ping carries it, and a reply that carries it says that the
//! peer is alive, asked or not; as a failure it says why the peer is about to close the connection. One of kind
//! [`FailureKind::NotReady`] promises that the peer has looked at no request that it did not answer before: they may be
//! made again, over another connection, whatever they ask for. A client sends a ping with its hello: the answer tells it
//! that it was taken, or why not.
//!
//! ```text
//! request  0 magic u16 │ 2 op u8 │ 3 flags u8 │ 4 body length u32 │ 8 request id u64 │ 16 file id [16]
//!          32 block index u64 │ 40 offset u32 │ 44 length u32 │ 48 deadline ms u32 │ 52 tag u64 │ 60 crc u32
//! reply    0 magic u16 │ 2 status u16 │ 4 body length u32 │ 8 request id u64 │ 16 payload length u32
//!          20 from memory u32 │ 24 from disk u32 │ 28 from origin u32 │ 32 location [20] │ 52 tag u64 │ 60 crc u32
//! hello    0 magic [8] │ 8 protocol u16 │ 10 zero [6] │ 16 cluster [48] │ 64 version [32] │ 96 block size u32
//!          100 zero [24] │ 124 crc u32
//! ```
//!
//! The tag is zero but where whatever carries a message lets its sender say which connection it belongs to, as UCX does: then
//! it shows that the sender knows that connection's secret ([`set_tag`]).
//!
//! The location of a reply is zero but where its receiver asked for one and can use it ([`crate::located`]).

use std::time::Duration;

use bytes::Bytes;
use forebay_types::{BlockKey, ByteSize, Failure, FailureKind, FileId, crc32c};

pub use crate::limits::{
    MAX_BODY_BESIDE_PAYLOAD, MAX_CHANGE_BODY, MAX_PART, MAX_PAYLOAD, MAX_REPLY_BODY, MAX_REQUEST_BODY, MAX_UPLOAD_BODY,
};
use crate::op::{Flags, Op};
use crate::reply::Provenance;
use crate::request::Request;

/// Bytes in a request or reply header.
pub const HEADER_LEN: usize = 64;
/// Bytes in a hello.
pub const HELLO_LEN: usize = 128;
/// The request id of messages about the connection itself; calls count from 1.
pub const CONNECTION_ID: u64 = 0;
/// What both sides must speak. Raised when the layout or the meaning of a field changes.
pub const PROTOCOL: u16 = 7;

const REQUEST_MAGIC: u16 = u16::from_le_bytes(*b"FQ");
const REPLY_MAGIC: u16 = u16::from_le_bytes(*b"FA");
const HELLO_MAGIC: [u8; 8] = *b"FOREBAY\0";
/// Bytes of a cluster's name in a hello.
const CLUSTER_LEN: usize = 48;
const VERSION_LEN: usize = 32;
/// Where the tag is in the header of a request, and of a reply.
const TAG_AT: usize = 52;

/// Why bytes were not a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Not the magic number: not a Forebay peer, or out of step.
    #[error("it does not speak Forebay's protocol (starts with {0:02x?})")]
    Magic(Vec<u8>),
    /// The header's checksum is wrong.
    #[error("a header's checksum is wrong")]
    Checksum,
    /// An operation that this version does not know.
    #[error("unknown operation {0}")]
    Op(u8),
    /// A length beyond what the protocol allows.
    #[error("a {what} of {length} bytes is over the limit of {limit}")]
    Length {
        /// Which length.
        what: &'static str,
        /// What was sent.
        length: u32,
        /// What is allowed.
        limit: u32,
    },
    /// Another protocol version.
    #[error("it speaks protocol {theirs} (forebay {version}), we speak {PROTOCOL}; run the same release on both sides")]
    Protocol {
        /// Its protocol version.
        theirs: u16,
        /// Its release.
        version: String,
    },
    /// A member of another cluster.
    #[error("it belongs to cluster `{theirs}`, we to `{ours}`; check `cluster.name` and the address")]
    Cluster {
        /// Its cluster.
        theirs: String,
        /// Ours.
        ours: String,
    },
    /// A member that cuts files into blocks of another size: a block's number means another place of the file to it.
    #[error("its `block.size` is {theirs}, ours is {ours}; set `block.size` to one value for the whole cluster")]
    BlockSize {
        /// Its block size.
        theirs: ByteSize,
        /// Ours.
        ours: ByteSize,
    },
}

/// What a peer says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The protocol that it speaks.
    pub protocol: u16,
    /// The cluster that it belongs to; cut to 48 bytes.
    pub cluster: String,
    /// Its release, for messages; cut to 32 bytes.
    pub version: String,
    /// How many bytes of a file it calls a block.
    pub block_size: u32,
}

impl Hello {
    /// The hello of a member of `cluster` whose blocks are of `block_size` bytes.
    #[must_use]
    pub fn ours(cluster: &str, block_size: u32) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { protocol: PROTOCOL, cluster: cluster.to_owned(), version, block_size }
    }

    /// The bytes to send.
    #[must_use]
    pub fn encode(&self) -> [u8; HELLO_LEN] {
        let mut bytes = [0; HELLO_LEN];
        bytes[..8].copy_from_slice(&HELLO_MAGIC);
        bytes[8..10].copy_from_slice(&self.protocol.to_le_bytes());
        put_text(&mut bytes[16..16 + CLUSTER_LEN], &self.cluster);
        put_text(&mut bytes[64..64 + VERSION_LEN], &self.version);
        bytes[96..100].copy_from_slice(&self.block_size.to_le_bytes());
        seal(&mut bytes);
        bytes
    }

    /// Reads a peer's hello and decides whether we may talk.
    ///
    /// # Errors
    /// [`WireError`] saying what does not match, by name and version.
    pub fn check(&self, bytes: &[u8; HELLO_LEN]) -> Result<Self, WireError> {
        if bytes[..8] != HELLO_MAGIC {
            return Err(WireError::Magic(bytes[..8].to_vec()));
        }
        check_seal(bytes)?;
        let theirs = Self {
            protocol: u16_at(bytes, 8),
            cluster: text_of(&bytes[16..16 + CLUSTER_LEN]),
            version: text_of(&bytes[64..64 + VERSION_LEN]),
            block_size: u32_at(bytes, 96),
        };
        if theirs.protocol != self.protocol {
            return Err(WireError::Protocol { theirs: theirs.protocol, version: shown(&theirs.version) });
        }
        let mut ours = [0; CLUSTER_LEN];
        put_text(&mut ours, &self.cluster);
        if theirs.cluster != text_of(&ours) {
            return Err(WireError::Cluster { theirs: shown(&theirs.cluster), ours: self.cluster.clone() });
        }
        // No value stands for any size: a peer that does not say its block size cannot be asked for a block.
        if theirs.block_size != self.block_size {
            let size = |bytes| ByteSize::bytes(u64::from(bytes));
            return Err(WireError::BlockSize { theirs: size(theirs.block_size), ours: size(self.block_size) });
        }
        Ok(theirs)
    }
}

/// A request's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// The caller's number for it, echoed in the reply.
    pub id: u64,
    /// What is asked.
    pub op: Op,
    /// How to treat it.
    pub flags: Flags,
    /// The block.
    pub block: BlockKey,
    /// Where in the block, in bytes.
    pub offset: u32,
    /// How many bytes.
    pub length: u32,
    /// How long the caller waits; sent in whole milliseconds, rounded up.
    pub deadline: Duration,
    /// Bytes of body that follow.
    pub body_len: u32,
}

impl RequestHeader {
    /// The header of `request`.
    #[must_use]
    pub fn of(id: u64, request: &Request) -> Self {
        Self {
            id,
            op: request.op,
            flags: request.flags,
            block: request.block,
            offset: request.offset,
            length: request.length,
            deadline: request.deadline,
            body_len: u32::try_from(request.body_len()).unwrap_or(u32::MAX),
        }
    }

    /// The request with `body`, of a caller who has proved nothing.
    #[must_use]
    pub fn with_body(self, body: Bytes) -> Request {
        let Self { op, flags, block, offset, length, deadline, .. } = self;
        Request { flags, body, ..Request::on_block(op, block, offset, length, deadline) }
    }

    /// The bytes to send.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..2].copy_from_slice(&REQUEST_MAGIC.to_le_bytes());
        bytes[2] = self.op as u8;
        bytes[3] = self.flags.0;
        bytes[4..8].copy_from_slice(&self.body_len.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.block.file.0);
        bytes[32..40].copy_from_slice(&self.block.index.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.offset.to_le_bytes());
        bytes[44..48].copy_from_slice(&self.length.to_le_bytes());
        // Rounded up: a caller that waits half a millisecond must not be told that its time is over on arrival.
        let millis = u32::try_from(self.deadline.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX);
        bytes[48..52].copy_from_slice(&millis.to_le_bytes());
        seal(&mut bytes);
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// [`WireError`]; after one, the stream cannot be trusted and must be closed.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, WireError> {
        check_magic(bytes, REQUEST_MAGIC)?;
        let op = Op::from_wire(bytes[2]).ok_or(WireError::Op(bytes[2]))?;
        let body_len = limited("request body", u32_at(bytes, 4), op.max_body())?;
        let length = limited("read", u32_at(bytes, 44), MAX_PAYLOAD)?;
        let mut file = [0; 16];
        file.copy_from_slice(&bytes[16..32]);
        Ok(Self {
            id: u64_at(bytes, 8),
            op,
            flags: Flags(bytes[3]),
            block: BlockKey { file: FileId(file), index: u64_at(bytes, 32) },
            offset: u32_at(bytes, 40),
            length,
            deadline: Duration::from_millis(u64::from(u32_at(bytes, 48))),
            body_len,
        })
    }
}

/// A reply's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyHeader {
    /// The request that it answers.
    pub id: u64,
    /// `None` for success. Of a failure the body is the message.
    pub failure: Option<FailureKind>,
    /// Bytes of body that follow.
    pub body_len: u32,
    /// Bytes of payload that follow the body.
    pub payload_len: u32,
    /// Where the payload came from.
    pub provenance: Provenance,
}

impl ReplyHeader {
    /// The bytes to send.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..2].copy_from_slice(&REPLY_MAGIC.to_le_bytes());
        let status = self.failure.map_or(0, |kind| kind as u16);
        bytes[2..4].copy_from_slice(&status.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.body_len.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.payload_len.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.provenance.memory.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.provenance.disk.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.provenance.origin.to_le_bytes());
        seal(&mut bytes);
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// [`WireError`]; after one, the stream cannot be trusted and must be closed.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, WireError> {
        check_magic(bytes, REPLY_MAGIC)?;
        let status = u16_at(bytes, 2);
        Ok(Self {
            id: u64_at(bytes, 8),
            failure: (status != 0).then(|| FailureKind::from_wire(status)),
            body_len: limited("reply body", u32_at(bytes, 4), MAX_REPLY_BODY)?,
            payload_len: limited("payload", u32_at(bytes, 16), MAX_PAYLOAD)?,
            provenance: Provenance { memory: u32_at(bytes, 20), disk: u32_at(bytes, 24), origin: u32_at(bytes, 28) },
        })
    }

    /// The failure that this header and its body are, if they are one.
    #[must_use]
    pub fn failure(&self, body: &[u8]) -> Option<Failure> {
        self.failure.map(|kind| Failure::of_peer(kind, body))
    }
}

/// Writes `tag` into the header of a request or a reply.
pub fn set_tag(header: &mut [u8; HEADER_LEN], tag: u64) {
    header[TAG_AT..TAG_AT + 8].copy_from_slice(&tag.to_le_bytes());
    seal(header);
}

/// The tag of a header, which may be of anybody and anything else.
#[must_use]
pub fn tag(header: &[u8; HEADER_LEN]) -> u64 {
    u64_at(header, TAG_AT)
}

fn check_magic(bytes: &[u8; HEADER_LEN], magic: u16) -> Result<(), WireError> {
    if u16_at(bytes, 0) != magic {
        return Err(WireError::Magic(bytes[..8].to_vec()));
    }
    check_seal(bytes)
}

fn limited(what: &'static str, length: u32, limit: u32) -> Result<u32, WireError> {
    if length <= limit { Ok(length) } else { Err(WireError::Length { what, length, limit }) }
}

/// Writes the checksum of a header, or of a hello, behind it.
pub(crate) fn seal<const N: usize>(bytes: &mut [u8; N]) {
    let crc = crc32c(&bytes[..N - 4]);
    bytes[N - 4..].copy_from_slice(&crc.to_le_bytes());
}

fn check_seal<const N: usize>(bytes: &[u8; N]) -> Result<(), WireError> {
    if u32_at(bytes, N - 4) == crc32c(&bytes[..N - 4]) { Ok(()) } else { Err(WireError::Checksum) }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

fn put_text(field: &mut [u8], text: &str) {
    let mut length = text.len().min(field.len());
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    field[..length].copy_from_slice(&text.as_bytes()[..length]);
}

fn text_of(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

/// A peer's text on one line of a log, whatever is in it: whoever connects can say hello.
fn shown(text: &str) -> String {
    text.chars().flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::MAX_BLOCK_SIZE;
    use proptest::prelude::*;

    fn header() -> RequestHeader {
        RequestHeader {
            id: 7,
            op: Op::Read,
            flags: Flags::REVALIDATE,
            block: BlockKey { file: FileId([9; 16]), index: u64::MAX },
            offset: 1,
            length: MAX_PAYLOAD,
            deadline: Duration::from_millis(1234),
            body_len: MAX_REQUEST_BODY,
        }
    }

    #[test]
    fn headers_survive_the_wire() {
        assert_eq!(RequestHeader::decode(&header().encode()), Ok(header()));
        let reply = ReplyHeader {
            id: u64::MAX,
            failure: Some(FailureKind::VersionChanged),
            body_len: 3,
            payload_len: 4096,
            provenance: Provenance { memory: 1, disk: 2, origin: 3 },
        };
        assert_eq!(ReplyHeader::decode(&reply.encode()), Ok(reply));
    }

    #[test]
    fn a_tag_goes_with_a_header_and_changes_nothing_else_of_it() {
        let mut request = header().encode();
        assert_eq!(tag(&request), 0);
        set_tag(&mut request, u64::MAX - 1);
        assert_eq!((tag(&request), RequestHeader::decode(&request)), (u64::MAX - 1, Ok(header())));
        let of = ReplyHeader { id: 1, failure: None, body_len: 2, payload_len: 3, provenance: Provenance::default() };
        let mut reply = of.encode();
        set_tag(&mut reply, 9);
        assert_eq!((tag(&reply), ReplyHeader::decode(&reply)), (9, Ok(of)));
    }

    #[test]
    fn a_length_over_the_limit_is_refused_before_anything_is_read() {
        let huge = RequestHeader { body_len: u32::MAX, ..header() };
        assert!(matches!(RequestHeader::decode(&huge.encode()), Err(WireError::Length { .. })));
        let huge = RequestHeader { length: MAX_PAYLOAD + 1, ..header() };
        assert!(matches!(RequestHeader::decode(&huge.encode()), Err(WireError::Length { .. })));
    }

    #[test]
    fn a_stranger_another_version_and_another_cluster_are_refused_by_name() {
        let ours = Hello::ours("prod", MAX_BLOCK_SIZE);
        assert_eq!(ours.check(&ours.encode()), Ok(ours.clone()));
        let mut http = [b' '; HELLO_LEN];
        http[..8].copy_from_slice(b"GET / HT");
        assert!(matches!(ours.check(&http), Err(WireError::Magic(_))));
        let other = Hello { protocol: 99, version: "9.9.9".into(), ..ours.clone() };
        let message = ours.check(&other.encode()).unwrap_err().to_string();
        assert!(message.contains("protocol 9") && message.contains("9.9.9"), "{message}");
        let other = Hello::ours("staging", MAX_BLOCK_SIZE);
        let message = ours.check(&other.encode()).unwrap_err().to_string();
        assert!(message.contains("staging") && message.contains("prod"), "{message}");
        let long = Hello::ours(&"é".repeat(60), MAX_BLOCK_SIZE);
        assert!(long.check(&long.encode()).is_ok());
    }

    #[test]
    fn another_block_size_is_refused_and_none_stands_for_any() {
        let size = |bytes: u32| Hello::ours("prod", bytes);
        let message = size(MAX_BLOCK_SIZE).check(&size(1 << 20).encode()).unwrap_err().to_string();
        assert!(message.contains("1MiB") && message.contains("4MiB") && message.contains("`block.size`"), "{message}");
        for (ours, theirs) in [(1 << 20, MAX_BLOCK_SIZE), (MAX_BLOCK_SIZE, 0), (0, MAX_BLOCK_SIZE)] {
            let refused = size(ours).check(&size(theirs).encode());
            assert!(matches!(refused, Err(WireError::BlockSize { .. })), "{refused:?}");
        }
    }

    #[test]
    fn a_stranger_writes_no_line_of_a_log() {
        let ours = Hello::ours("prod", MAX_BLOCK_SIZE);
        let other = Hello::ours("x\n\u{1b}[2J", MAX_BLOCK_SIZE);
        let newer = Hello { protocol: PROTOCOL + 1, version: "1\n2".to_owned(), ..ours.clone() };
        for theirs in [other, newer] {
            let told = ours.check(&theirs.encode()).unwrap_err().to_string();
            assert!(!told.contains(char::is_control), "{told:?}");
        }
    }

    proptest! {
        #[test]
        fn a_flipped_bit_in_a_header_is_noticed(bit in 0..HEADER_LEN * 8) {
            let mut bytes = header().encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(RequestHeader::decode(&bytes).is_err());
        }

        #[test]
        fn no_bytes_make_the_decoders_panic(bytes: [u8; 32], tail: [u8; 32]) {
            let mut all = [0; HEADER_LEN];
            all[..32].copy_from_slice(&bytes);
            all[32..].copy_from_slice(&tail);
            seal(&mut all);
            let _ = RequestHeader::decode(&all);
            let _ = ReplyHeader::decode(&all);
        }
    }
}
