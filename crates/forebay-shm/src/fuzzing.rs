//! What a fuzzer feeds to the decoders of packets. What they take is written again, and must read as the same. How a session begins is
//! in [`handshake`].

pub mod handshake;

use forebay_memory::Place;
use forebay_transport::wire::MAX_REQUEST_BODY;

use crate::wire::{
    Answered, Asked, GREETING_LEN, Greeting, MAX_ANSWERED, MAX_ASKED, MAX_PLACES, MAX_RELEASES, put_elsewhere,
    put_failure, put_releases, put_reply,
};

/// A worker receives `packet` from a client.
///
/// # Panics
/// When what it reads is not what the packet says.
pub fn asked(packet: &[u8]) {
    // The socket gives no more.
    let packet = &packet[..packet.len().min(MAX_ASKED)];
    let Ok(asked) = Asked::decode(packet) else { return };
    let ids: Vec<u64> = asked.releases().collect();
    assert!(ids.len() <= MAX_RELEASES && (asked.request.is_some() || !ids.is_empty()));
    let mut written = Vec::new();
    put_releases(&mut written, &ids);
    if let Some((header, body)) = &asked.request {
        assert!(body.len() == header.body_len as usize && body.len() <= MAX_REQUEST_BODY as usize);
        written.extend_from_slice(&header.encode());
        written.extend_from_slice(body);
    }
    assert_eq!(written.len(), packet.len(), "nothing of it is passed over");
    assert_eq!(Asked::decode(&written).as_ref(), Ok(&asked));
}

/// A client receives `packet` from a worker.
///
/// # Panics
/// As [`asked`]; also when the places of a payload do not add up to it.
pub fn answered(packet: &[u8]) {
    let packet = &packet[..packet.len().min(MAX_ANSWERED)];
    let Ok(answered) = Answered::decode(packet) else { return };
    let header = &answered.header;
    let places: Vec<Place> = answered.places().collect();
    let shown: u64 = places.iter().map(|place| u64::from(place.length)).sum();
    assert!(places.len() <= MAX_PLACES && answered.body.len() == header.body_len as usize);
    assert!(answered.lies_elsewhere() || shown == u64::from(header.payload_len));
    let mut written = Vec::new();
    match header.failure(answered.body) {
        // Its text is cut where it would be no text, and what is none is replaced.
        Some(failure) => {
            put_failure(&mut written, header.id, &failure);
            let again = Answered::decode(&written);
            let kind = again.as_ref().ok().and_then(|again| again.header.failure(again.body)).map(|again| again.kind());
            assert_eq!(kind, Some(failure.kind()));
        }
        None if answered.lies_elsewhere() => {
            put_elsewhere(&mut written, header.id, header.payload_len);
            assert!(Answered::decode(&written).is_ok_and(|again| again.lies_elsewhere()));
        }
        None => {
            put_reply(&mut written, header.id, header.provenance, answered.body, &places);
            let again = Answered::decode(&written);
            let said = again.as_ref().map(|again| (&again.header, again.body, again.places().collect::<Vec<_>>()));
            assert_eq!(said, Ok((header, answered.body, places)));
        }
    }
}

/// A client receives `packet` as a worker's first one.
///
/// # Panics
/// As [`asked`].
pub fn greeting(packet: &[u8]) {
    let greeting = Greeting::decode(packet);
    assert_eq!(greeting.is_ok(), packet.len() == GREETING_LEN);
    if let Ok(greeting) = greeting {
        assert_eq!(Greeting::decode(&greeting.encode()), Ok(greeting));
    }
}
