//! The layout of what goes over verbs.
//!
//! ```text
//! frame    0 kind u8 │ 1 flags u8 │ 2 credits u16 │ 4 key u32 │ 8 address u64 │ 16 a message, or the next piece of one
//! offer    0 magic [4] │ 4 version u16 │ 6 credits u16 │ 8 frame length u32 │ 12 features u8 │ 13 mtu u8 │ 14 zero u16 │ 16 client id u64
//! hello    the hello of all transports [128] │ tag u64
//! ```
//!
//! A frame is what one receive takes. A message is a hello, or a header of [`forebay_transport::wire`] and what follows it there: its
//! body, and its payload unless that was written. Its first frame has the whole header, which says how long the message is; the others
//! are of kind [`Kind::More`]. Frames of messages take a credit each, those of credits alone none; any frame returns some.
//!
//! Of a request, key and address say where its payload may be written to; a key of 0 is none. Of a reply, the flag says that it was, or
//! that it went before: of payload in frames of its own (`payload.rs`), address and key say of which call it is, and where it begins.
//!
//! An offer is what both ends tell rdma_cm: how many frames they take, how long, and what else they know (features: 1 is one-sided
//! reads, 2 is payload in messages; then a byte for the largest packet that a client wants, as verbs number them, which a server
//! repeats that does so; what a peer does not know it takes for nothing). InfiniBand leaves 56 bytes for it, and hands out zeros behind
//! it; iWARP leaves more.

use std::num::NonZeroU64;

use forebay_transport::wire::{HELLO_LEN, Hello, WireError};
use forebay_verbs::Remote;

/// Bytes of a frame's own.
pub(crate) const FRAME_HEADER: usize = 16;
/// Bytes of an offer.
pub(crate) const OFFER_LEN: usize = 24;
/// Bytes of a hello.
pub(crate) const VERBS_HELLO_LEN: usize = HELLO_LEN + 8;
/// Payload up to so many bytes goes with its reply, and is copied: less work than a window.
pub(crate) const MAX_INSIDE: u32 = 4096;
/// The shortest frames that a peer may want, which a hello fits into, and a header with what it needs.
const MIN_FRAME: u32 = 256;
/// The longest.
const MAX_FRAME: u32 = 64 << 10;
/// The most frames.
pub(crate) const MAX_CREDITS: u16 = 1024;
/// What both sides must speak. Raised when this layout changes, or what it means.
const VERSION: u16 = 1;

const MAGIC: [u8; 4] = *b"FBVB";
/// The payload was written, or went before.
const WRITTEN: u8 = 1;
/// The feature of an offer: its sender reads the peer's memory by itself, or lets the peer do that.
const ONE_SIDED: u8 = 1;
/// Another: its sender wants payload in messages, or sends it so.
const IN_MESSAGES: u8 = 2;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// What a client says first.
    Hello = 1,
    /// A request, or its beginning.
    Request = 2,
    /// A reply, or its beginning.
    Reply = 3,
    /// What answers a hello.
    Welcome = 4,
    /// Credits, and nothing else.
    Credits = 5,
    /// The next piece of the message that has begun.
    More = 6,
    /// A worker lets its client read a region of its memory ([`forebay_one_sided::Opened`]).
    Opened = 7,
    /// It takes that back, all of it.
    Forget = 8,
    /// The client has forgotten, and reads nothing.
    Forgotten = 9,
    /// A piece of the payload of a reply that follows, where the client's card has no memory windows.
    Payload = 10,
}

impl Kind {
    fn from_wire(number: u8) -> Option<Self> {
        use Kind::*;
        [Hello, Request, Reply, Welcome, Credits, More, Opened, Forget, Forgotten, Payload]
            .into_iter()
            .find(|kind| *kind as u8 == number)
    }
}

/// How a peer breaks the protocol, below its messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    /// Too short for a frame.
    #[error("a frame has {0} bytes")]
    Short(usize),
    /// No frame that this version knows.
    #[error("a frame is of kind {0}, with flags {1:#x}")]
    Kind(u8, u8),
    /// It returned credits that it never had.
    #[error("it returns {0} credits, which it was not given")]
    Credits(u16),
    /// It used one that it had not.
    #[error("it sends without a credit")]
    Overrun,
    /// A piece of nothing, or something else in the middle of a message.
    #[error("a frame of kind {0} comes where it may not")]
    Order(u8),
    /// Less than a header, or more than it said.
    #[error("{0} bytes came where {1} were to come")]
    Length(usize, usize),
    /// A header that is none.
    #[error("{0}")]
    Wire(#[from] WireError),
}

/// The beginning of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) kind: Kind,
    pub(crate) is_written: bool,
    pub(crate) credits: u16,
    pub(crate) remote: Remote,
}

impl FrameHeader {
    /// Where the peer may write, if it may.
    pub(crate) fn window(&self) -> Option<Remote> {
        (self.remote.key != 0).then_some(self.remote)
    }

    pub(crate) fn encode(&self) -> [u8; FRAME_HEADER] {
        let mut bytes = [0; FRAME_HEADER];
        bytes[0] = self.kind as u8;
        bytes[1] = if self.is_written { WRITTEN } else { 0 };
        bytes[2..4].copy_from_slice(&self.credits.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.remote.key.to_le_bytes());
        bytes[8..].copy_from_slice(&self.remote.address.to_le_bytes());
        bytes
    }

    /// Reads a frame: its header, and what it carries.
    ///
    /// # Errors
    /// [`FrameError::Short`], [`FrameError::Kind`].
    pub(crate) fn decode(frame: &[u8]) -> Result<(Self, &[u8]), FrameError> {
        let (header, rest) = frame.split_first_chunk::<FRAME_HEADER>().ok_or(FrameError::Short(frame.len()))?;
        let [kind, flags, c0, c1, k0, k1, k2, k3, address @ ..] = *header;
        let known = Kind::from_wire(kind).filter(|_| flags & !WRITTEN == 0);
        let kind = known.ok_or(FrameError::Kind(kind, flags))?;
        let remote = Remote { address: u64::from_le_bytes(address), key: u32::from_le_bytes([k0, k1, k2, k3]) };
        let header = Self { kind, is_written: flags & WRITTEN != 0, credits: u16::from_le_bytes([c0, c1]), remote };
        Ok((header, rest))
    }
}

/// What one end takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Frames that the other end may send before it hears more.
    pub(crate) credits: u16,
    /// Bytes of the longest.
    pub(crate) frame_length: u32,
    /// Of a client that is admitted: what it said that it would come with.
    pub(crate) client_id: Option<NonZeroU64>,
    /// Of a client: it reads the worker's memory by itself. Of a worker: it lets clients do so.
    pub(crate) one_sided: bool,
    /// Of a client: its card has no memory windows, so payload has to come in messages. Of a worker: it does.
    pub(crate) in_messages: bool,
    /// Bytes of the largest packet. Of a client: it wants no larger ones. Of a worker: there will be none.
    pub(crate) mtu: Option<u16>,
}

impl Offer {
    pub(crate) fn encode(&self) -> [u8; OFFER_LEN] {
        let mut bytes = [0; OFFER_LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.credits.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.frame_length.to_le_bytes());
        bytes[12] = if self.one_sided { ONE_SIDED } else { 0 } | if self.in_messages { IN_MESSAGES } else { 0 };
        bytes[13] = self.mtu.map_or(0, mtu_number);
        bytes[16..].copy_from_slice(&self.client_id.map_or(0, NonZeroU64::get).to_le_bytes());
        bytes
    }

    /// Reads what a peer told rdma_cm.
    ///
    /// # Errors
    /// Why we cannot talk to it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let stranger = || "it does not speak Forebay's protocol over verbs".to_owned();
        let (bytes, _) = bytes.split_first_chunk::<OFFER_LEN>().ok_or_else(stranger)?;
        let [m0, m1, m2, m3, v0, v1, c0, c1, l0, l1, l2, l3, features, mtu, _, _, client_id @ ..] = *bytes;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(stranger());
        }
        let version = u16::from_le_bytes([v0, v1]);
        if version != VERSION {
            return Err(format!(
                "it speaks version {version} over verbs, we speak {VERSION}; run the same release on both sides"
            ));
        }
        let (credits, frame_length) = (u16::from_le_bytes([c0, c1]), u32::from_le_bytes([l0, l1, l2, l3]));
        if !(2..=MAX_CREDITS).contains(&credits) || !(MIN_FRAME..=MAX_FRAME).contains(&frame_length) {
            return Err(format!("it takes {credits} frames of {frame_length} bytes, which makes no sense"));
        }
        let client_id = NonZeroU64::new(u64::from_le_bytes(client_id));
        let (one_sided, in_messages) = (features & ONE_SIDED != 0, features & IN_MESSAGES != 0);
        Ok(Self { credits, frame_length, client_id, one_sided, in_messages, mtu: mtu_bytes(mtu) })
    }
}

/// A packet's size as verbs number them (`enum ibv_mtu`): 1 is 256 bytes, 5 is 4096.
fn mtu_number(bytes: u16) -> u8 {
    // 1 to 5.
    (bytes.clamp(256, 4096).ilog2() - 7) as u8
}

/// The bytes of that number; `None` for one that stands for none.
fn mtu_bytes(number: u8) -> Option<u16> {
    (1..=5).contains(&number).then(|| 128 << number)
}

/// The bytes of our hello that shows `tag`; 0 without a pass.
pub(crate) fn hello(ours: &Hello, tag: u64) -> [u8; VERBS_HELLO_LEN] {
    let mut bytes = [0; VERBS_HELLO_LEN];
    bytes[..HELLO_LEN].copy_from_slice(&ours.encode());
    bytes[HELLO_LEN..].copy_from_slice(&tag.to_le_bytes());
    bytes
}

/// Decides whether we may talk to the sender of `bytes`; the tag that it shows.
///
/// # Errors
/// Why not.
pub(crate) fn check_hello(ours: &Hello, bytes: &[u8]) -> Result<u64, String> {
    let length = || format!("its hello has {} bytes", bytes.len());
    let (hello, rest) = bytes.split_first_chunk::<HELLO_LEN>().ok_or_else(length)?;
    // First: one of another release is told so, however long its hello is.
    ours.check(hello).map_err(|error| error.to_string())?;
    <[u8; 8]>::try_from(rest).map(u64::from_le_bytes).map_err(|_| length())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::MAX_BLOCK_SIZE;
    use proptest::prelude::*;

    const OFFER: Offer = Offer {
        credits: 32,
        frame_length: 1024,
        client_id: NonZeroU64::new(7),
        one_sided: true,
        in_messages: false,
        mtu: Some(2048),
    };

    #[test]
    fn an_offer_comes_back_as_it_went_whatever_zeros_follow() {
        let mut bytes = OFFER.encode().to_vec();
        bytes.resize(56, 0);
        assert_eq!(Offer::decode(&bytes), Ok(OFFER));
        let unadmitted = Offer { client_id: None, one_sided: false, in_messages: true, mtu: None, ..OFFER };
        assert_eq!(Offer::decode(&unadmitted.encode()), Ok(unadmitted));
        let unknown = {
            let mut bytes = unadmitted.encode();
            bytes[12] |= 0xfc;
            bytes
        };
        assert_eq!(Offer::decode(&unknown), Ok(unadmitted), "what a later release knows is nothing to this one");
    }

    #[test]
    fn an_offer_that_makes_no_sense_is_refused_in_words() {
        let with = |at: usize, bytes: &[u8]| {
            let mut offer = OFFER.encode();
            offer[at..at + bytes.len()].copy_from_slice(bytes);
            Offer::decode(&offer).unwrap_err()
        };
        assert!(with(0, b"HTTP").contains("does not speak"));
        assert!(with(4, &[9, 0]).contains("version 9"));
        for (at, bytes) in [(6, &[0, 0][..]), (6, &[1, 0]), (6, &[0xff, 0xff]), (8, &[0; 4]), (8, &[0xff; 4])] {
            assert!(with(at, bytes).contains("makes no sense"), "{bytes:?} at {at}");
        }
        assert!(Offer::decode(&[0; OFFER_LEN - 1]).is_err() && Offer::decode(&[]).is_err());
    }

    #[test]
    fn a_hello_is_taken_from_members_of_the_same_cluster_alone() {
        let ours = Hello::ours("prod", MAX_BLOCK_SIZE);
        assert_eq!(check_hello(&ours, &hello(&ours, 1 << 40)), Ok(1 << 40));
        let theirs = Hello::ours("staging", MAX_BLOCK_SIZE);
        assert!(check_hello(&ours, &hello(&theirs, 0)).unwrap_err().contains("staging"));
        for length in [0, HELLO_LEN - 1, HELLO_LEN, VERBS_HELLO_LEN - 1] {
            assert!(check_hello(&ours, &hello(&ours, 0)[..length]).unwrap_err().contains(&length.to_string()));
        }
    }

    proptest! {
        #[test]
        fn a_header_comes_back_as_it_went(
            kind in 1u8..=10,
            is_written in any::<bool>(),
            credits in any::<u16>(),
            (address, key) in any::<(u64, u32)>(),
            rest in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let kind = Kind::from_wire(kind).unwrap();
            let header = FrameHeader { kind, is_written, credits, remote: Remote { address, key } };
            let frame = [&header.encode()[..], &rest].concat();
            prop_assert_eq!(FrameHeader::decode(&frame), Ok((header, &rest[..])));
        }

        #[test]
        fn no_bytes_make_the_readers_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = (FrameHeader::decode(&bytes), Offer::decode(&bytes));
            let _ = check_hello(&Hello::ours("prod", MAX_BLOCK_SIZE), &bytes);
        }
    }
}
