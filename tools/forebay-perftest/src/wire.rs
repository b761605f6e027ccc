//! What passes over the control connection, and over the plain sockets that READ and WRITE use without UCX.
//!
//! ```text
//! control message   magic [8] │ version u16 │ zero u16 │ length u32 │ postcard [length]
//! stream request    op u8 │ region u8 │ zero u16 │ frame u32 │ offset u32 │ length u32 │ payload of a WRITE [length]
//! stream answer     payload of a READ [length], or one byte for a WRITE
//! ```
//!
//! All numbers are little-endian. A client's first message says what the connection is for; after [`Request::Open`] it may
//! ask on, after [`Request::Stream`] the connection carries stream requests. The session lasts as long as its control
//! connection. Everything is checked before it is used: magic and version before the length, the length before memory is
//! taken, and the decoder looks at what is there.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use forebay_memory::FRAME_SIZE;
use forebay_types::FileId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::plan::{AREA_FRAMES, Place};

/// The cluster that the cache's client and server name to each other: members of real ones are refused.
pub(crate) const BENCH_CLUSTER: &str = "forebay-bench";
/// The file that the cache's blocks belong to.
pub(crate) const BENCH_FILE: FileId = FileId(*b"forebay rdma bcm");
/// The active message that a client sends first over UCX; its header is the session.
pub(crate) const GREETING: u16 = 1;
/// The server's answer to it, after which both are connected.
pub(crate) const WELCOME: u16 = 2;

const MAGIC: [u8; 8] = *b"FOREBAYB";
const VERSION: u16 = 4;
/// Bytes before a control message.
pub(crate) const HEADER_LEN: usize = 16;
/// Bytes of a control message at most: an offer with a hundred memory keys has some ten thousand.
const MAX_MESSAGE: u32 = 64 << 10;
/// Frames that a server may offer: more is none of ours.
const MAX_FRAMES: usize = 64;

/// What a client asks over the control connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// A session. With UCX's version when it is to be used.
    Open { ucx: Option<String> },
    /// The processor time that the server has used.
    Usage,
    /// This connection is to carry stream requests of the session.
    Stream { session: u64 },
}

/// What the server answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// The session.
    Opened(Offer),
    /// Processor time since the server started, and how many sessions there are.
    Usage { cpu: Duration, sessions: u32 },
    /// Stream requests may come.
    Streaming,
    /// It will not; the reason, with a remedy.
    Refused(String),
}

/// What a client gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// What streams and endpoints name.
    pub(crate) session: u64,
    /// Forebay's version.
    pub(crate) version: String,
    /// The delay that the server adds.
    pub(crate) delay: Duration,
    /// Frames to read from.
    pub(crate) blocks: u32,
    /// Where the cache's server of the transport listens.
    pub(crate) cache_port: u16,
    /// With UCX.
    pub(crate) ucx: Option<UcxOffer>,
    /// With verbs.
    pub(crate) verbs: Option<VerbsOffer>,
}

/// Where a server listens by verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VerbsOffer {
    /// The cache's server.
    pub(crate) cache: SocketAddr,
    /// What has memory for READ and WRITE. `None`: its card has no memory windows to show it through.
    pub(crate) memory: Option<SocketAddr>,
}

/// What a client says first over a queue pair of READ and WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VerbsGreeting {
    pub(crate) session: u64,
    /// It is going to write, too.
    pub(crate) writes: bool,
}

impl VerbsGreeting {
    pub(crate) const LEN: usize = 9;

    pub(crate) fn encode(self) -> [u8; Self::LEN] {
        let [s0, s1, s2, s3, s4, s5, s6, s7] = self.session.to_le_bytes();
        [s0, s1, s2, s3, s4, s5, s6, s7, self.writes.into()]
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let [session @ .., writes] = *bytes.first_chunk::<{ Self::LEN }>()?;
        (bytes.len() == Self::LEN && writes <= 1)
            .then(|| Self { session: u64::from_le_bytes(session), writes: writes == 1 })
    }
}

/// What a server says over a queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum VerbsAnswer {
    /// There is more to come.
    More,
    /// Its memory.
    Memory(VerbsMemory),
    /// It will not; the reason, with a remedy.
    Refused(String),
}

/// Memory that one queue pair reaches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VerbsMemory {
    /// The key for reading all of it.
    pub(crate) read_key: u32,
    /// Where each frame to read from begins.
    pub(crate) blocks: Vec<u64>,
    /// Where each frame to write to does, and the key for that.
    pub(crate) area: Vec<(u64, u32)>,
}

impl VerbsMemory {
    /// Whether it can be what a client gets that writes, or does not.
    pub(crate) fn check(&self, blocks: u32, writes: bool) -> Result<(), String> {
        let areas = if writes { AREA_FRAMES } else { 0 };
        if self.blocks.len() == blocks as usize && self.area.len() == areas {
            return Ok(());
        }
        Err(format!("it offers {} and {} frames by verbs", self.blocks.len(), self.area.len()))
    }
}

/// The bytes of an answer over a queue pair.
pub(crate) fn encode_verbs(answer: &VerbsAnswer) -> Vec<u8> {
    // As in `encode`.
    postcard::to_stdvec(answer).unwrap_or_default()
}

/// Memory for one-sided access.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UcxOffer {
    /// The server's UCX.
    pub(crate) version: String,
    /// Where its UCX listens.
    pub(crate) port: u16,
    /// The key of each frame to read from.
    pub(crate) blocks: Vec<Vec<u8>>,
    /// The key of each frame to write to.
    pub(crate) area: Vec<Vec<u8>>,
}

/// Why bytes are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    #[error("it sent something else")]
    Magic,
    #[error("it speaks version {0} of the benchmark's protocol, not {VERSION}")]
    Version(u16),
    #[error("it sent a message of {0} bytes, over {MAX_MESSAGE}")]
    Length(u32),
    #[error("it sent a message that makes no sense: {0}")]
    Body(String),
}

/// The bytes of a message.
pub(crate) fn encode(message: &impl Serialize) -> Vec<u8> {
    // postcard fails only for sequences of unknown length and for writers that fail; a `Vec` is neither.
    let body = postcard::to_stdvec(message).unwrap_or_default();
    let mut bytes = Vec::with_capacity(HEADER_LEN + body.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&[0; 2]);
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

/// How long the message is that follows this header.
pub(crate) fn length(header: &[u8; HEADER_LEN]) -> Result<usize, WireError> {
    let [.., v0, v1, _, _, l0, l1, l2, l3] = *header;
    if header[..8] != MAGIC {
        return Err(WireError::Magic);
    }
    match (u16::from_le_bytes([v0, v1]), u32::from_le_bytes([l0, l1, l2, l3])) {
        (VERSION, length @ ..=MAX_MESSAGE) => Ok(length as usize),
        (VERSION, length) => Err(WireError::Length(length)),
        (version, _) => Err(WireError::Version(version)),
    }
}

/// The message in these bytes.
pub(crate) fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, WireError> {
    postcard::from_bytes(body).map_err(|error| WireError::Body(error.to_string()))
}

/// Sends `request` to `peer` and waits for the answer, as long as the socket's limits allow.
pub(crate) fn ask(stream: &mut (impl Read + Write), peer: SocketAddr, request: &Request) -> Result<Answer, Error> {
    let lost = |error: io::Error| {
        let reason = match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "it does not answer".to_owned(),
            io::ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
            _ => error.to_string(),
        };
        Error::Lost { address: peer, reason }
    };
    let protocol = |error: WireError| Error::Protocol { address: peer, reason: error.to_string() };
    stream.write_all(&encode(request)).map_err(lost)?;
    let mut header = [0; HEADER_LEN];
    stream.read_exact(&mut header).map_err(lost)?;
    let mut body = vec![0; length(&header).map_err(protocol)?];
    stream.read_exact(&mut body).map_err(lost)?;
    match decode(&body).map_err(protocol)? {
        Answer::Refused(reason) => Err(Error::Refused { address: peer, reason }),
        answer => Ok(answer),
    }
}

impl Offer {
    /// Why the offer cannot be one to a client that asked for UCX, or not.
    pub(crate) fn check(&self, wants_ucx: bool) -> Result<(), String> {
        if self.blocks == 0 || self.blocks as usize > MAX_FRAMES || self.cache_port == 0 {
            return Err(format!("it offers {} blocks on port {}", self.blocks, self.cache_port));
        }
        match (&self.ucx, wants_ucx) {
            (None, false) => Ok(()),
            (Some(ucx), true) => {
                let keys = [ucx.blocks.len(), ucx.area.len()];
                let right = keys == [self.blocks as usize, AREA_FRAMES] && ucx.port != 0;
                let [blocks, area] = keys;
                right.then_some(()).ok_or_else(|| format!("it offers {blocks} and {area} keys on port {}", ucx.port))
            }
            (None, true) => Err("it offers no UCX".to_owned()),
            (Some(_), false) => Err("it offers UCX, which nobody asked for".to_owned()),
        }
    }
}

/// Why peers of these versions of UCX cannot talk; `None` when they can.
pub(crate) fn ucx_mismatch(ours: &str, theirs: &str) -> Option<String> {
    let release = |version: &str| {
        let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
        Some((parts.next()??, parts.next()??))
    };
    (release(ours).is_none() || release(ours) != release(theirs)).then(|| {
        let theirs: String = theirs.chars().filter(|c| !c.is_control()).take(40).collect();
        format!(
            "one side runs UCX {ours}, the other {theirs}; install the same release on both, or use --transport tcp"
        )
    })
}

/// Which memory a stream request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Region {
    /// Frames to read from, the same for everyone.
    Blocks,
    /// The session's own frames to write to; without UCX, the connection's.
    Area,
}

/// A request over plain sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamRequest {
    /// Whether its payload follows, to be written.
    pub(crate) writes: bool,
    pub(crate) region: Region,
    pub(crate) place: Place,
}

impl StreamRequest {
    pub(crate) const LEN: usize = 16;

    pub(crate) fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = u8::from(self.writes);
        bytes[1] = u8::from(self.region == Region::Area);
        bytes[4..8].copy_from_slice(&self.place.frame.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.place.offset.to_le_bytes());
        bytes[12..].copy_from_slice(&self.place.length.to_le_bytes());
        bytes
    }

    /// The request in these bytes if it is one for a server with `blocks` frames to read from.
    pub(crate) fn decode(bytes: &[u8; Self::LEN], blocks: u32) -> Option<Self> {
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (writes, region) = match (bytes[0], bytes[1]) {
            (0, 0) => (false, Region::Blocks),
            (0, 1) => (false, Region::Area),
            (1, 1) => (true, Region::Area),
            _ => return None,
        };
        let place = Place { frame: number(4), offset: number(8), length: number(12) };
        let frames = if region == Region::Blocks { blocks } else { AREA_FRAMES as u32 };
        let end = place.offset.checked_add(place.length)?;
        (place.frame < frames && end as usize <= FRAME_SIZE).then_some(Self { writes, region, place })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn offer(ucx: bool) -> Offer {
        let verbs = ucx.then(|| VerbsOffer {
            cache: SocketAddr::from(([10, 0, 0, 1], 7)),
            memory: Some(SocketAddr::from(([10, 0, 0, 1], 8))),
        });
        let ucx = ucx.then(|| UcxOffer {
            version: "1.13.1".into(),
            port: 3,
            blocks: vec![vec![1; 40]; 4],
            area: vec![vec![2]; AREA_FRAMES],
        });
        Offer {
            session: u64::MAX,
            version: "0.1.0".into(),
            delay: Duration::from_micros(7),
            blocks: 4,
            cache_port: 5,
            ucx,
            verbs,
        }
    }

    /// What a peer sends, and where what we send goes.
    struct Peer<'a>(&'a [u8], Vec<u8>);

    impl Read for Peer<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.0.read(into)
        }
    }

    impl Write for Peer<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn answered(bytes: &[u8]) -> Result<Answer, Error> {
        ask(&mut Peer(bytes, Vec::new()), "127.0.0.1:20600".parse().unwrap(), &Request::Usage)
    }

    #[test]
    fn messages_survive_the_wire() {
        for answer in [Answer::Opened(offer(true)), Answer::Opened(offer(false)), Answer::Streaming] {
            assert_eq!(answered(&encode(&answer)).unwrap(), answer);
        }
        let mut peer = Peer(&[], Vec::new());
        let _ = ask(&mut peer, "127.0.0.1:20600".parse().unwrap(), &Request::Open { ucx: Some("1.13.1".into()) });
        let header = peer.1.first_chunk().unwrap();
        assert_eq!(length(header), Ok(peer.1.len() - HEADER_LEN));
        assert_eq!(decode(&peer.1[HEADER_LEN..]), Ok(Request::Open { ucx: Some("1.13.1".into()) }));
    }

    #[test]
    fn what_is_wrong_with_a_peer_is_said() {
        let text = |bytes: &[u8]| answered(bytes).unwrap_err().to_string();
        let refused = text(&encode(&Answer::Refused("it is full; wait".into())));
        assert_eq!(refused, "127.0.0.1:20600 refused: it is full; wait");
        assert!(text(b"HTTP/1.1 400 Bad Request\r\n").contains("something else"));
        assert!(text(&[]).contains("closed the connection"));
        let mut other = encode(&Answer::Streaming);
        other[8] = 9;
        assert!(text(&other).contains("version 9"));
        let mut huge = encode(&Answer::Streaming);
        huge[12..16].fill(0xff);
        assert!(text(&huge).contains("over 65536"));
        let mut cut = encode(&Answer::Opened(offer(true)));
        cut[12] = 5;
        cut[13] = 0;
        assert!(text(&cut).contains("makes no sense"));
    }

    #[test]
    fn an_offer_must_be_one_that_was_asked_for() {
        assert_eq!((offer(true).check(true), offer(false).check(false)), (Ok(()), Ok(())));
        assert!(offer(true).check(false).is_err() && offer(false).check(true).is_err());
        assert!(Offer { blocks: 5, ..offer(true) }.check(true).is_err());
        assert!(Offer { blocks: 0, ..offer(false) }.check(false).is_err());
        assert!(Offer { blocks: 1 << 30, ..offer(false) }.check(false).is_err());
    }

    #[test]
    fn greetings_and_memory_survive_a_queue_pair() {
        for greeting in [VerbsGreeting { session: u64::MAX, writes: true }, VerbsGreeting { session: 7, writes: false }]
        {
            assert_eq!(VerbsGreeting::decode(&greeting.encode()), Some(greeting));
        }
        for bad in [&[][..], &[0; 8], &[0; 10], &[0, 0, 0, 0, 0, 0, 0, 0, 2]] {
            assert_eq!(VerbsGreeting::decode(bad), None, "{bad:?}");
        }
        let memory = VerbsMemory { read_key: 7, blocks: vec![1 << 40; 4], area: vec![(1 << 41, 9); AREA_FRAMES] };
        let answer = VerbsAnswer::Memory(memory.clone());
        assert_eq!(decode(&encode_verbs(&answer)), Ok(answer));
        assert_eq!((memory.check(4, true), memory.check(4, false).is_err()), (Ok(()), true));
        assert!(memory.check(3, true).is_err());
    }

    #[test]
    fn only_equal_releases_of_ucx_talk_to_each_other() {
        assert_eq!(ucx_mismatch("1.13.1", "1.13.0"), None);
        for theirs in ["1.20.0", "2.13.1", "", "x", "1.13\n"] {
            assert!(ucx_mismatch("1.13.1", theirs).is_some_and(|text| text.contains("--transport tcp")), "{theirs}");
        }
    }

    #[test]
    fn stream_requests_are_within_their_memory() {
        let request = |writes, region, frame, offset, length| StreamRequest {
            writes,
            region,
            place: Place { frame, offset, length },
        };
        let decoded = |request: StreamRequest| StreamRequest::decode(&request.encode(), 4);
        let frame = FRAME_SIZE as u32;
        for good in [request(false, Region::Blocks, 3, frame - 1, 1), request(true, Region::Area, 0, 0, frame)] {
            assert_eq!(decoded(good), Some(good));
        }
        for bad in [
            request(false, Region::Blocks, 4, 0, 1),
            request(false, Region::Blocks, 0, 1, frame),
            request(false, Region::Area, AREA_FRAMES as u32, 0, 1),
            request(true, Region::Blocks, 0, 0, 1),
            request(false, Region::Blocks, 0, u32::MAX, u32::MAX),
        ] {
            assert_eq!(decoded(bad), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoders_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode::<Request>(&bytes);
            let _ = decode::<Answer>(&bytes);
            let _ = answered(&bytes);
            if let Some(header) = bytes.first_chunk() {
                let _ = length(header);
            }
            if let Some(request) = bytes.first_chunk().and_then(|bytes| StreamRequest::decode(bytes, 4)) {
                prop_assert!((request.place.offset + request.place.length) as usize <= FRAME_SIZE);
            }
        }
    }
}
