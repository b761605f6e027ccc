//! What a fuzzer feeds to both ends of the control connection, and to those of plain sockets.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use forebay_memory::FRAME_SIZE;

use crate::plan::AREA_FRAMES;
use crate::wire::{
    Answer, HEADER_LEN, Offer, Region, Request, StreamRequest, UcxOffer, VerbsOffer, ask, decode, encode, length,
};

/// A server receives `stream`: control messages, one after the other.
///
/// # Panics
/// When a message that it takes is not written again as one that it takes.
pub fn asked(mut stream: &[u8]) {
    while let Some((header, rest)) = stream.split_first_chunk::<HEADER_LEN>() {
        let Ok(length) = length(header) else { return };
        assert!(length <= 64 << 10);
        let Some((body, rest)) = rest.split_at_checked(length) else { return };
        let Ok(request) = decode::<Request>(body) else { return };
        let written = encode(&request);
        assert_eq!(decode(&written[HEADER_LEN..]), Ok(request));
        stream = rest;
    }
}

/// A client asks, and receives `stream`.
///
/// # Panics
/// When an offer that it takes has more frames than there may be.
pub fn answered(stream: &[u8], wants_ucx: bool) {
    let peer = SocketAddr::from(([127, 0, 0, 1], 1));
    let request = Request::Open { ucx: wants_ucx.then(|| "1.20.0".to_owned()) };
    let Ok(answer) = ask(&mut Peer(stream), peer, &request) else { return };
    if let Answer::Opened(offer) = &answer
        && offer.check(wants_ucx).is_ok()
    {
        assert!((1..=64).contains(&offer.blocks) && offer.ucx.is_some() == wants_ucx);
    }
    assert_eq!(decode(&encode(&answer)[HEADER_LEN..]), Ok(answer));
}

/// A server with `blocks` frames receives `bytes` over a plain socket.
///
/// # Panics
/// When it takes a request for memory that it does not have.
pub fn stream(bytes: &[u8; StreamRequest::LEN], blocks: u32) {
    let Some(request) = StreamRequest::decode(bytes, blocks) else { return };
    let place = request.place;
    let frames = if request.region == Region::Area { AREA_FRAMES as u32 } else { blocks };
    assert!(place.frame < frames && u64::from(place.offset) + u64::from(place.length) <= FRAME_SIZE as u64);
    assert!(!request.writes || request.region == Region::Area);
    assert_eq!(StreamRequest::decode(&request.encode(), blocks), Some(request));
}

/// Bytes of a request over a plain socket.
pub const STREAM_LEN: usize = StreamRequest::LEN;

struct Peer<'a>(&'a [u8]);

impl Read for Peer<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Peer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Messages of both sides, to begin with: requests; and offers without and with UCX, and other answers.
#[must_use]
pub fn samples() -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let offer = |ucx: bool| {
        let keys = |count: usize| vec![vec![7; 40]; count];
        let ucx = ucx.then(|| UcxOffer { version: "1.20.0".into(), port: 3, blocks: keys(4), area: keys(AREA_FRAMES) });
        let at = |port| SocketAddr::from(([10, 0, 0, 1], port));
        let verbs = ucx.is_some().then(|| VerbsOffer { cache: at(7), memory: Some(at(8)) });
        let (session, version, delay) = (9, "0.1.0".to_owned(), Duration::from_micros(7));
        Answer::Opened(Offer { session, version, delay, blocks: 4, cache_port: 5, ucx, verbs })
    };
    let requests = [Request::Open { ucx: Some("1.20.0".into()) }, Request::Usage, Request::Stream { session: 9 }];
    let usage = Answer::Usage { cpu: Duration::from_millis(1), sessions: 2 };
    let answers = [offer(false), offer(true), usage, Answer::Streaming, Answer::Refused("no".into())];
    (requests.iter().map(encode).collect(), answers.iter().map(encode).collect())
}
