//! Requests that a socket did not take at once, in the order in which they were made.
//!
//! Bodies are kept as they are and not copied: a part of a file that is uploaded has up to 64 MiB.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::Bytes;
use forebay_transport::wire::HEADER_LEN;
use smallvec::SmallVec;

/// Slices in one system call: header, body and tail of about 20 requests.
const MAX_SLICES: usize = 64;

/// What is to be sent of one request.
#[derive(Debug)]
pub(crate) struct Message {
    /// Its number on the wire.
    pub(crate) id: u64,
    pub(crate) head: [u8; HEADER_LEN],
    pub(crate) body: Bytes,
    pub(crate) tail: Bytes,
    /// Bytes that the socket has taken, of all three together.
    pub(crate) sent: usize,
}

impl Message {
    fn len(&self) -> usize {
        HEADER_LEN + self.body.len() + self.tail.len()
    }
}

/// The queue.
#[derive(Debug, Default)]
pub(crate) struct Unsent {
    queue: VecDeque<Message>,
}

impl Unsent {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Queues a message, unless all of it has been sent.
    pub(crate) fn push(&mut self, message: Message) {
        if message.sent < message.len() {
            self.queue.push_back(message);
        }
    }

    /// Takes request `id` back, if nothing of it has been sent.
    pub(crate) fn withdraw(&mut self, id: u64) -> bool {
        let at = self.queue.iter().position(|message| message.id == id && message.sent == 0);
        at.and_then(|at| self.queue.remove(at)).is_some()
    }

    /// What comes next, as far as one system call takes it.
    pub(crate) fn gather(&self) -> SmallVec<[IoSlice<'_>; MAX_SLICES]> {
        let mut slices = SmallVec::new();
        for message in &self.queue {
            let mut skip = message.sent;
            for piece in [&message.head[..], &message.body, &message.tail] {
                let skipped = skip.min(piece.len());
                skip -= skipped;
                if skipped < piece.len() && slices.len() < MAX_SLICES {
                    slices.push(IoSlice::new(&piece[skipped..]));
                }
            }
            if slices.len() == MAX_SLICES {
                break;
            }
        }
        slices
    }

    /// The socket took `count` more bytes.
    pub(crate) fn sent(&mut self, mut count: usize) {
        while let Some(message) = self.queue.front_mut() {
            let taken = count.min(message.len() - message.sent);
            message.sent += taken;
            count -= taken;
            if message.sent < message.len() {
                return;
            }
            self.queue.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(id: u64, body: usize, tail: usize) -> Message {
        let bytes = |length, seed: u64| Bytes::from(vec![(id * 3 + seed) as u8; length]);
        Message { id, head: [id as u8; HEADER_LEN], body: bytes(body, 1), tail: bytes(tail, 2), sent: 0 }
    }

    fn whole(message: &Message) -> Vec<u8> {
        [&message.head[..], &message.body, &message.tail].concat()
    }

    proptest! {
        #[test]
        fn messages_leave_whole_and_in_order_however_much_the_socket_takes(
            lengths in prop::collection::vec((0usize..300, 0usize..300), 1..40),
            begun in 0usize..200,
            takes in prop::collection::vec(1usize..500, 1..20),
        ) {
            let (mut unsent, mut expected, mut got) = (Unsent::default(), Vec::new(), Vec::new());
            for (id, (body, tail)) in lengths.into_iter().enumerate() {
                let mut message = message(id as u64, body, tail);
                let bytes = whole(&message);
                // Of the first, the socket has taken something already.
                message.sent = if id == 0 { begun.min(bytes.len()) } else { 0 };
                expected.extend_from_slice(&bytes[message.sent..]);
                unsent.push(message);
            }
            for take in takes.iter().cycle() {
                let gathered: Vec<u8> = unsent.gather().iter().flat_map(|slice| slice.to_vec()).collect();
                if gathered.is_empty() { break }
                let taken = (*take).min(gathered.len());
                got.extend_from_slice(&gathered[..taken]);
                unsent.sent(taken);
            }
            prop_assert!(unsent.is_empty());
            prop_assert!(got == expected);
        }
    }

    #[test]
    fn only_what_has_not_begun_can_be_taken_back() {
        let mut unsent = Unsent::default();
        (1..=3).for_each(|id| unsent.push(message(id, 10, 0)));
        unsent.sent(5);
        assert!(!unsent.withdraw(1) && unsent.withdraw(2) && !unsent.withdraw(2));
        unsent.sent(HEADER_LEN + 10 - 5);
        assert_eq!(unsent.gather().iter().map(|slice| slice.len()).sum::<usize>(), HEADER_LEN + 10);
    }
}
