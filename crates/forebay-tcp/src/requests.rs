//! What a server receives: finds the requests in the bytes. Pure.
//!
//! A body is received straight into its own memory, of a length that the header's decoder has checked.

use std::io::{self, IoSliceMut};

use bytes::Bytes;
use forebay_transport::wire::{RequestHeader, WireError};

use crate::staging::Staging;

/// The decoder of one connection.
#[derive(Debug)]
pub(crate) struct Requests {
    staging: Staging,
    /// A header whose body has not arrived in full, the body, and how much of it has.
    begun: Option<(RequestHeader, Vec<u8>, usize)>,
}

impl Requests {
    pub(crate) fn new() -> Self {
        Self { staging: Staging::new(), begun: None }
    }

    /// Has `read` fill the buffers that come next; gives back what it returned.
    pub(crate) fn receive(
        &mut self,
        read: impl FnOnce(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let Some((_, body, filled)) = self.begun.as_mut().filter(|_| self.staging.is_empty()) else {
            let count = read(&mut [IoSliceMut::new(self.staging.space())])?;
            self.staging.received(count);
            return Ok(count);
        };
        let rest = body.len() - *filled;
        let count = read(&mut [IoSliceMut::new(&mut body[*filled..]), IoSliceMut::new(self.staging.space())])?;
        *filled += count.min(rest);
        self.staging.received(count.saturating_sub(rest));
        Ok(count)
    }

    /// The next request that has arrived in full.
    ///
    /// # Errors
    /// [`WireError`], after which nothing in the stream can be trusted.
    pub(crate) fn next(&mut self) -> Result<Option<(RequestHeader, Bytes)>, WireError> {
        let (header, mut body, mut filled) = match self.begun.take() {
            Some(begun) => begun,
            None => {
                let Some(bytes) = self.staging.take() else { return Ok(None) };
                let header = RequestHeader::decode(&bytes)?;
                let body = vec![0; header.body_len as usize];
                (header, body, 0)
            }
        };
        filled += self.staging.move_to(&mut body[filled..]);
        if filled < body.len() {
            self.begun = Some((header, body, filled));
            return Ok(None);
        }
        Ok(Some((header, body.into())))
    }

    /// Whether part of a request has arrived. Meaningful after [`Requests::next`] has found no more.
    pub(crate) fn is_partial(&self) -> bool {
        self.begun.is_some() || !self.staging.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_transport::{Op, Request};
    use proptest::prelude::*;
    use std::time::Duration;

    /// Hands out `bytes` in pieces of the given sizes.
    fn feed(requests: &mut Requests, bytes: &mut &[u8], size: usize) {
        let received = requests.receive(|buffers| {
            let mut total = 0;
            for buffer in buffers {
                let count = buffer.len().min(size - total).min(bytes.len());
                buffer[..count].copy_from_slice(&bytes[..count]);
                *bytes = &bytes[count..];
                total += count;
            }
            Ok(total)
        });
        assert!(received.unwrap() > 0);
    }

    proptest! {
        #[test]
        fn requests_are_found_however_their_bytes_are_cut(
            bodies in prop::collection::vec(prop_oneof![Just(0), 1usize..200, 20_000usize..65_536], 1..8),
            cuts in prop::collection::vec(1usize..30_000, 1..20),
        ) {
            let sent: Vec<_> = bodies.iter().enumerate().map(|(number, length)| {
                let body = Bytes::from(vec![number as u8; *length]);
                let request = Request::on_path(Op::Stat, body.clone(), Duration::from_secs(1));
                (RequestHeader::of(number as u64 + 1, &request), body)
            }).collect();
            let stream: Vec<u8> = sent.iter().flat_map(|(header, body)| [&header.encode()[..], body].concat()).collect();
            let (mut rest, mut requests, mut got) = (&stream[..], Requests::new(), Vec::new());
            for cut in cuts.iter().cycle() {
                if rest.is_empty() { break }
                feed(&mut requests, &mut rest, *cut);
                while let Some(request) = requests.next().unwrap() {
                    got.push(request);
                }
            }
            prop_assert!(!requests.is_partial());
            prop_assert_eq!(got, sent);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 1..300), cut in 1usize..100) {
            let (mut rest, mut requests) = (&bytes[..], Requests::new());
            while !rest.is_empty() {
                feed(&mut requests, &mut rest, cut);
                if requests.next().is_err() { break }
            }
        }
    }
}
