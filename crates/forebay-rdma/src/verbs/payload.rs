//! Payload in messages, for clients whose card binds no memory windows: what of it is still to go at the worker's end, and where that
//! which comes belongs at the client's. Pure.
//!
//! It goes in frames of its own, each of which says of which call it is and how many bytes of it went before. The reply follows the last
//! of them. A client copies each out of the receive that it came in, into the buffer of a call that it made: a worker says which call,
//! and no address. A reliable connection keeps the order, so a piece that does not begin where the last one has ended breaks the protocol,
//! and no gap is ever taken for payload.

use std::ops::Range;

use forebay_memory::Spans;
use forebay_verbs::Remote;

/// After how many frames of payload a completion is asked for, so that frames come back while others are under way.
const SIGNAL_EVERY: u32 = 4;

/// Payload that is on its way to the peer.
#[derive(Debug)]
pub(crate) struct Leaving {
    call: u64,
    spans: Spans,
    /// The span that goes next, and how much of it went.
    at: usize,
    within: usize,
    /// Bytes that went.
    gone: u32,
    /// Frames that went.
    frames: u32,
}

impl Leaving {
    /// The payload of call `call`: less than 4 GiB, as its header says in so many bits.
    pub(crate) fn new(call: u64, spans: Spans) -> Self {
        let spans = spans.into_iter().filter(|span| !span.is_empty()).collect();
        Self { call, spans, at: 0, within: 0, gone: 0, frames: 0 }
    }

    /// Whether all of it went.
    pub(crate) fn is_gone(&self) -> bool {
        self.at >= self.spans.len()
    }

    /// What the next frame says of what it carries, in the fields that say of requests where something may be written.
    pub(crate) fn place(&self) -> Remote {
        Remote { address: self.call, key: self.gone }
    }

    /// Whether a completion is to be asked for with the next frame.
    pub(crate) fn is_signalled(&self) -> bool {
        (self.frames + 1).is_multiple_of(SIGNAL_EVERY)
    }

    /// Copies what comes next, as much as fits; how much that is.
    pub(crate) fn copy(&mut self, into: &mut [u8]) -> usize {
        let mut copied = 0;
        while copied < into.len()
            && let Some(span) = self.spans.get(self.at)
        {
            let rest = &span[self.within..];
            let length = rest.len().min(into.len() - copied);
            into[copied..copied + length].copy_from_slice(&rest[..length]);
            copied += length;
            self.within += length;
            if self.within == span.len() {
                (self.at, self.within) = (self.at + 1, 0);
            }
        }
        self.gone = self.gone.wrapping_add(copied as u32);
        self.frames = self.frames.wrapping_add(1);
        copied
    }

    /// Frames that it takes, of which each has `room` for so many bytes.
    pub(crate) fn frames(&self, room: usize) -> usize {
        self.spans.iter().map(|span| span.len()).sum::<usize>().div_ceil(room.max(1))
    }
}

/// A piece that has come, where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece<'a> {
    /// Of which call.
    pub(crate) call: u64,
    /// Bytes of its payload that came before, as the peer says.
    pub(crate) offset: u32,
    pub(crate) bytes: &'a [u8],
}

impl<'a> Piece<'a> {
    /// That of a frame which says this.
    pub(crate) fn of(said: Remote, bytes: &'a [u8]) -> Self {
        Self { call: said.address, offset: said.key, bytes }
    }
}

/// How a peer breaks the protocol with payload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PayloadError {
    /// Nobody asked for it.
    #[error("it sends payload of call {0}, which there is not")]
    Call(u64),
    /// A gap, or the same again.
    #[error("payload at byte {offset} comes where byte {came} was to come")]
    Order {
        /// What it says.
        offset: u32,
        /// What has come.
        came: u32,
    },
    /// More than was asked for.
    #[error("it sends {sent} bytes of payload, {limit} were asked for")]
    Limit {
        /// With this piece.
        sent: u64,
        /// What the caller takes.
        limit: u32,
    },
    /// Its reply says otherwise.
    #[error("a reply of {said} bytes follows {came} bytes of payload")]
    Reply {
        /// What it says.
        said: u32,
        /// What has come.
        came: u32,
    },
}

/// Where `piece` belongs in the buffer of its call, of whose payload `came` bytes have come and `limit` may.
///
/// # Errors
/// [`PayloadError::Order`], [`PayloadError::Limit`].
pub(crate) fn place_of(piece: &Piece<'_>, came: u32, limit: u32) -> Result<Range<usize>, PayloadError> {
    if piece.offset != came {
        return Err(PayloadError::Order { offset: piece.offset, came });
    }
    let end = u64::from(came) + piece.bytes.len() as u64;
    if end > u64::from(limit) {
        return Err(PayloadError::Limit { sent: end, limit });
    }
    let start = came as usize;
    Ok(start..start + piece.bytes.len())
}

/// A reply has come that says that so many bytes went before it.
///
/// # Errors
/// [`PayloadError::Reply`].
pub(crate) fn check_reply(said: u32, came: u32) -> Result<(), PayloadError> {
    if said == came { Ok(()) } else { Err(PayloadError::Reply { said, came }) }
}

#[cfg(test)]
mod tests {
    use forebay_memory::Pool;
    use forebay_transport::conformance;
    use proptest::prelude::*;

    use super::*;

    /// Spans of these lengths, whose bytes count on.
    fn spans(pool: &Pool, lengths: &[usize]) -> (Spans, Vec<u8>) {
        let (mut spans, mut whole) = (Spans::new(), Vec::new());
        for length in lengths {
            let mut span = pool.try_alloc(*length).unwrap();
            span.iter_mut().zip(whole.len()..).for_each(|(byte, at)| *byte = (at * 7) as u8);
            let span = span.freeze();
            whole.extend_from_slice(&span);
            spans.push(span);
        }
        (spans, whole)
    }

    #[test]
    fn what_does_not_go_on_where_the_last_piece_ended_has_no_place() {
        let piece = |offset, bytes| Piece { call: 1, offset, bytes };
        assert_eq!(place_of(&piece(10, &[0; 5]), 10, 15), Ok(10..15));
        assert_eq!(place_of(&piece(10, &[0; 6]), 10, 15), Err(PayloadError::Limit { sent: 16, limit: 15 }));
        for offset in [0, 9, 11, u32::MAX] {
            assert_eq!(place_of(&piece(offset, &[0; 1]), 10, 15), Err(PayloadError::Order { offset, came: 10 }));
        }
        let last = place_of(&piece(u32::MAX, &[0; 9]), u32::MAX, u32::MAX);
        assert_eq!(last, Err(PayloadError::Limit { sent: u64::from(u32::MAX) + 9, limit: u32::MAX }));
        assert_eq!((check_reply(0, 0), check_reply(7, 7)), (Ok(()), Ok(())));
        assert_eq!(check_reply(7, 6), Err(PayloadError::Reply { said: 7, came: 6 }));
    }

    #[test]
    fn completions_are_asked_for_now_and_then() {
        let (spans, _) = spans(&conformance::pool(1), &[100]);
        let mut leaving = Leaving::new(1, spans);
        let asked: Vec<_> = (0..10)
            .map(|_| {
                let is_signalled = leaving.is_signalled();
                leaving.copy(&mut [0; 10]);
                is_signalled
            })
            .collect();
        assert_eq!(asked.iter().filter(|is_signalled| **is_signalled).count(), 2);
        assert!(leaving.is_gone());
    }

    proptest! {
        #[test]
        fn whatever_a_payload_is_made_of_it_arrives_whole_and_in_as_many_frames_as_was_said(
            lengths in prop::collection::vec(1usize..5000, 0..20),
            room in 1usize..6000,
            empty in any::<bool>(),
        ) {
            let pool = conformance::pool(1);
            let (mut spans, whole) = spans(&pool, &lengths);
            if empty {
                let nothing = pool.try_alloc(1).unwrap().freeze().slice(0..0);
                spans.insert(spans.len() / 2, nothing);
            }
            let mut leaving = Leaving::new(9, spans);
            let said = leaving.frames(room);
            let (mut into, mut came, mut frames) = (vec![0; whole.len()], 0, 0);
            let limit = whole.len() as u32;
            while !leaving.is_gone() {
                let mut frame = vec![0; room];
                let place = leaving.place();
                let length = leaving.copy(&mut frame);
                prop_assert!(length > 0, "no frame goes for nothing");
                let piece = Piece::of(place, &frame[..length]);
                prop_assert_eq!(piece.call, 9);
                let place = place_of(&piece, came, limit).unwrap();
                into[place].copy_from_slice(piece.bytes);
                came += length as u32;
                frames += 1;
            }
            prop_assert_eq!(check_reply(limit, came), Ok(()));
            prop_assert!(into == whole);
            prop_assert_eq!(frames, said);
        }

        #[test]
        fn whatever_a_peer_says_of_its_pieces_none_lands_outside_and_no_gap_is_left(
            limit in 0u32..10_000,
            pieces in prop::collection::vec((prop::option::of(any::<u32>()), 0usize..3000), 0..30),
        ) {
            let mut came = 0;
            for (offset, length) in pieces {
                let bytes = vec![0; length];
                let piece = Piece { call: 1, offset: offset.unwrap_or(came), bytes: &bytes };
                // One that breaks the protocol is its last.
                let Ok(place) = place_of(&piece, came, limit) else { break };
                prop_assert_eq!(place.start, came as usize);
                prop_assert!(place.end <= limit as usize);
                came = place.end as u32;
            }
            prop_assert!(came <= limit);
        }
    }
}
