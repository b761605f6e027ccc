//! The records of TLS on a connection of which all is encrypted.
//!
//! The handshake is the TLS library's; what follows has its keys, and is protected here ([`crate::protection`]), where what is
//! sent is encrypted on its way out of the memory that it lies in, and what is received on its way to where it belongs.
//!
//! What is to be sent is encrypted when it is accepted, so memory that it lay in is free from then on; what of it the socket does
//! not take waits here, and is no more than [`UNFLUSHED`] bytes, of plain text, at a time. What is received is read from the
//! socket in large pieces and decrypted as far as there is room for it. The memory of both is the thread's, so that a connection
//! that is idle has none.
//!
//! The end of a connection is not sent as an alert: each message says its length, so a connection that is cut ends between two of
//! them or in the middle of one, and nothing is taken for whole that is not. Keys are not changed: a connection whose keys have
//! protected much makes way for another ([`Records::is_worn`]).

use std::cell::RefCell;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read as _};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_identity::reason;
use forebay_locks::Mutex;
use rustls::{Connection, ExtractedSecrets};
use tokio::net::TcpStream;

use crate::protection::{HEADER, MAX_PLAIN, MAX_RECORD, Opened, RecordKey, TRAILER, record_len};
use crate::socket;

/// Bytes that are encrypted before the socket has taken those before them: full records. With fewer, sender and receiver take turns
/// more often (8 records: a tenth less of large blocks); a peer that takes nothing holds as much.
const UNFLUSHED: usize = 32 * MAX_PLAIN;
/// Bytes that are read at once, and that is room for [`UNFLUSHED`].
const PIECE: usize = UNFLUSHED / MAX_PLAIN * MAX_RECORD;
/// Pieces of memory that a thread keeps.
const SPARE: usize = 4;

thread_local! {
    /// Memory for records that no connection has now.
    static PIECES: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// Memory for records, of [`PIECE`] bytes.
fn piece() -> Box<[u8]> {
    PIECES.with_borrow_mut(Vec::pop).unwrap_or_else(|| vec![0; PIECE].into())
}

/// Gives it back.
fn spare(piece: Box<[u8]>) {
    PIECES.with_borrow_mut(|pieces| {
        if pieces.len() < SPARE && piece.len() == PIECE {
            pieces.push(piece);
        }
    });
}

/// Both directions.
#[derive(Debug)]
pub(crate) struct Records {
    sending: Mutex<Sending>,
    receiving: Mutex<Receiving>,
    /// Records in one direction, from which on the connection is to make way.
    worn_at: u64,
    is_worn: AtomicBool,
}

#[derive(Debug)]
struct Sending {
    key: RecordKey,
    /// Memory for records, of which the socket has not taken `from..to`. None while it has taken all.
    sealed: Box<[u8]>,
    from: usize,
    to: usize,
}

#[derive(Debug)]
struct Receiving {
    key: RecordKey,
    /// What was received, of which `from..to` was not opened. None while all was taken.
    piece: Box<[u8]>,
    from: usize,
    to: usize,
    /// What was opened of it, and has not been taken.
    plain: Range<usize>,
    /// The peer said that it sends no more.
    is_over: bool,
    /// What is wrong behind what was opened.
    broken: Option<io::Error>,
}

impl Records {
    /// Goes on with a connection whose handshake is done, and which was received record by record
    /// ([`crate::by_record::ByRecord`]): none is in the TLS library that it has not opened. Makes way after `worn_at` records.
    ///
    /// # Errors
    /// When there is something left to be sent, or the library does not give its keys away.
    pub(crate) fn new(mut tls: Connection, worn_at: u64) -> io::Result<Self> {
        let mut rest = Vec::new();
        match tls.reader().read_to_end(&mut rest) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
        let secrets = tls.dangerous_extract_secrets().map_err(|error| io::Error::other(reason(&error)))?;
        Self::with_secrets(&secrets, rest, worn_at)
    }

    fn with_secrets(secrets: &ExtractedSecrets, rest: Vec<u8>, worn_at: u64) -> io::Result<Self> {
        let key = |(next, secrets): &(u64, _)| RecordKey::new(*next, secrets);
        Ok(Self::with_keys(key(&secrets.tx)?, key(&secrets.rx)?, rest, worn_at))
    }

    fn with_keys(sending: RecordKey, receiving: RecordKey, rest: Vec<u8>, worn_at: u64) -> Self {
        let (to, plain) = (rest.len(), 0..rest.len());
        Self {
            sending: Mutex::new(Sending { key: sending, sealed: Box::default(), from: 0, to: 0 }),
            receiving: Mutex::new(Receiving {
                key: receiving,
                piece: rest.into(),
                from: to,
                to,
                plain,
                is_over: false,
                broken: None,
            }),
            worn_at,
            is_worn: AtomicBool::new(false),
        }
    }

    /// Whether its keys have protected so much that another connection should take its place.
    pub(crate) fn is_worn(&self) -> bool {
        self.is_worn.load(Ordering::Relaxed)
    }

    /// Whether there are bytes to be received, or an error, that no socket will tell of.
    pub(crate) fn has_more(&self) -> bool {
        let receiving = self.receiving.lock();
        !receiving.plain.is_empty() || receiving.broken.is_some() || !matches!(receiving.next_len(), Ok(None))
    }

    /// Whether the socket has taken all that was accepted.
    pub(crate) fn is_flushed(&self) -> bool {
        self.sending.lock().sealed.is_empty()
    }

    /// Receives into `buffers`, without waiting. `Ok(0)` is the end of the stream.
    pub(crate) fn receive(&self, stream: &TcpStream, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut receiving = self.receiving.lock();
        loop {
            let taken = receiving.take(buffers)?;
            self.note(&receiving.key);
            if taken > 0 || receiving.is_over {
                return Ok(taken);
            }
            if receiving.read(|room| socket::receive(stream, &mut [IoSliceMut::new(room)]))? == 0 {
                return Ok(0);
            }
        }
    }

    /// Accepts what is next of `slices`, without waiting, and gives back how many bytes that is. Who else sends is not waited for.
    pub(crate) fn send(&self, stream: &TcpStream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(mut sending) = self.sending.try_lock() else { return Err(ErrorKind::WouldBlock.into()) };
        if !sending.flush(stream)? {
            return Err(ErrorKind::WouldBlock.into());
        }
        let accepted = sending.seal(slices)?;
        self.note(&sending.key);
        // What was accepted must not be sent again, so it is the next flush that tells of an error.
        let _ = sending.flush(stream);
        Ok(accepted)
    }

    /// Sends what was accepted. False while something is left.
    pub(crate) fn flush(&self, stream: &TcpStream) -> io::Result<bool> {
        self.sending.lock().flush(stream)
    }

    fn note(&self, key: &RecordKey) {
        if key.used() >= self.worn_at {
            self.is_worn.store(true, Ordering::Relaxed);
        }
    }
}

impl Sending {
    /// Makes records of what is next of `slices`, when the socket has taken all that were made before. Gives back how many bytes
    /// that is.
    fn seal(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut rest = slices.iter().map(|slice| &**slice).filter(|slice| !slice.is_empty());
        let mut slice = rest.next().unwrap_or_default();
        let mut accepted = 0;
        while accepted < UNFLUSHED && !slice.is_empty() {
            if self.sealed.is_empty() {
                (self.sealed, self.from, self.to) = (piece(), 0, 0);
            }
            let record = &mut self.sealed[self.to..];
            let mut count = 0;
            while count < MAX_PLAIN && !slice.is_empty() {
                let (next, later) = slice.split_at(slice.len().min(MAX_PLAIN - count));
                record[HEADER + count..HEADER + count + next.len()].copy_from_slice(next);
                count += next.len();
                slice = if later.is_empty() { rest.next().unwrap_or_default() } else { later };
            }
            let length = HEADER + count + TRAILER;
            self.key.seal(&mut record[..length])?;
            self.to += length;
            accepted += count;
        }
        Ok(accepted)
    }

    fn flush(&mut self, stream: &TcpStream) -> io::Result<bool> {
        while self.from < self.to {
            match socket::send(stream, &[IoSlice::new(&self.sealed[self.from..self.to])], false) {
                Ok(sent) => self.from += sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        if !self.sealed.is_empty() {
            spare(std::mem::take(&mut self.sealed));
        }
        Ok(true)
    }
}

impl Receiving {
    fn next_len(&self) -> io::Result<Option<usize>> {
        record_len(&self.piece[self.from..self.to])
    }

    /// Fills `buffers` from what has been received, as far as that goes. What is wrong is told when all that came before it was
    /// taken.
    fn take(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if let Some(error) = self.broken.take() {
            return Err(error);
        }
        let mut total = 0;
        for buffer in buffers {
            let mut room = &mut buffer[..];
            while !room.is_empty() {
                if self.plain.is_empty() {
                    match self.open() {
                        Ok(true) => {}
                        Ok(false) => return Ok(total),
                        Err(error) if total == 0 => return Err(error),
                        Err(error) => {
                            self.broken = Some(error);
                            return Ok(total);
                        }
                    }
                }
                let count = self.plain.len().min(room.len());
                let (filled, rest) = room.split_at_mut(count);
                filled.copy_from_slice(&self.piece[self.plain.start..self.plain.start + count]);
                self.plain.start += count;
                total += count;
                room = rest;
            }
        }
        Ok(total)
    }

    /// Opens the next record, which has something in it. False: there is none.
    fn open(&mut self) -> io::Result<bool> {
        while !self.is_over
            && let Some(length) = self.next_len()?
        {
            let begin = self.from;
            self.from += length;
            match self.key.open(&mut self.piece[begin..self.from])? {
                Opened::Data(data) => self.plain = begin + data.start..begin + data.end,
                Opened::Over => self.is_over = true,
            }
            if !self.plain.is_empty() {
                return Ok(true);
            }
        }
        if self.from == self.to && !self.piece.is_empty() {
            spare(std::mem::take(&mut self.piece));
            (self.from, self.to, self.plain) = (0, 0, 0..0);
        }
        Ok(false)
    }

    /// Has `receive` fill what room there is behind what is not opened, which has no whole record.
    fn read(&mut self, receive: impl FnOnce(&mut [u8]) -> io::Result<usize>) -> io::Result<usize> {
        if self.piece.is_empty() {
            self.piece = piece();
        } else {
            self.piece.copy_within(self.from..self.to, 0);
        }
        (self.from, self.to, self.plain) = (0, self.to - self.from, 0..0);
        let received = receive(&mut self.piece[self.to..]);
        match received {
            Ok(count) => self.to += count,
            Err(_) if self.to == 0 => spare(std::mem::take(&mut self.piece)),
            Err(_) => {}
        }
        received
    }
}

/// One end seals, the other receives, for a fuzzer: see [`crate::fuzzing::records`].
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    use rustls::ConnectionTrafficSecrets;
    use rustls::crypto::cipher::{AeadKey, Iv};

    use super::*;

    fn key() -> RecordKey {
        let secrets = ConnectionTrafficSecrets::Aes256Gcm { key: AeadKey::from([7; 32]), iv: Iv::from([9; 12]) };
        RecordKey::new(0, &secrets).unwrap_or_else(|_| unreachable!("a suite that is known"))
    }

    /// What a peer sends of these messages, each in records of its own, and where each ends in that.
    pub(crate) fn sealed(messages: &[&[u8]]) -> (Vec<u8>, Vec<usize>) {
        let mut sending = Sending { key: key(), sealed: Box::default(), from: 0, to: 0 };
        let (mut sent, mut ends) = (Vec::new(), Vec::new());
        for message in messages {
            let accepted = sending.seal(&[IoSlice::new(message)]);
            assert_eq!(accepted.ok(), Some(message.len()), "messages of a fuzzer are short");
            sent.extend_from_slice(&sending.sealed[..sending.to]);
            (sending.sealed, sending.to) = (Box::default(), 0);
            ends.push(sent.len());
        }
        (sent, ends)
    }

    /// What comes out of `stream`, which arrives in pieces of these sizes, up to its end or an error.
    pub(crate) fn received(mut stream: &[u8], cuts: impl Iterator<Item = usize>) -> Vec<u8> {
        let mut receiving =
            Receiving { key: key(), piece: Box::default(), from: 0, to: 0, plain: 0..0, is_over: false, broken: None };
        let (mut received, mut room) = (Vec::new(), [0; 777]);
        for cut in cuts {
            loop {
                match receiving.take(&mut [IoSliceMut::new(&mut room)]) {
                    Ok(0) => break,
                    Ok(count) => received.extend_from_slice(&room[..count]),
                    Err(_) => return received,
                }
            }
            if stream.is_empty() || receiving.is_over {
                return received;
            }
            let read = receiving.read(|room| {
                let (now, later) = stream.split_at(cut.min(room.len()).min(stream.len()));
                room[..now.len()].copy_from_slice(now);
                stream = later;
                Ok(now.len())
            });
            assert!(read.is_ok_and(|count| count > 0), "there is always room for the rest of a record");
        }
        received
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protection::tests::{key, sealed};

    fn receiving() -> Receiving {
        Receiving { key: key(0), piece: Box::default(), from: 0, to: 0, plain: 0..0, is_over: false, broken: None }
    }

    fn sending() -> Sending {
        Sending { key: key(0), sealed: Box::default(), from: 0, to: 0 }
    }

    proptest! {
        /// Whatever the sizes of slices, of what the socket gives, and of the room that there is.
        #[test]
        fn what_is_sent_arrives(
            slices in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40_000), 0..6),
            pieces in prop::collection::vec(1..50_000_usize, 1..8),
            rooms in prop::collection::vec((0..9_000_usize, 0..20_000_usize), 1..8),
        ) {
            let (mut sending, mut receiving) = (sending(), receiving());
            let all = slices.concat();
            let mut wire = Vec::new();
            let mut sent = 0;
            while sent < all.len() {
                let (one, other) = all[sent..].split_at((all.len() - sent) / 2);
                let accepted = sending.seal(&[IoSlice::new(one), IoSlice::new(other)]).unwrap();
                prop_assert!(accepted > 0 && accepted <= UNFLUSHED);
                wire.extend_from_slice(&sending.sealed[..sending.to]);
                sending.sealed = Box::default();
                sent += accepted;
            }
            let (mut wire, mut arrived) = (&wire[..], Vec::new());
            let mut rooms = rooms.into_iter().filter(|(one, other)| one + other > 0).cycle();
            let mut pieces = pieces.into_iter().cycle();
            let Some(_) = rooms.clone().next() else { return Ok(()) };
            while arrived.len() < all.len() {
                let (one, other) = rooms.next().unwrap();
                let (mut first, mut second) = (vec![0; one], vec![0; other]);
                let taken = receiving.take(&mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)]).unwrap();
                first.extend_from_slice(&second);
                arrived.extend_from_slice(&first[..taken]);
                if taken == 0 {
                    let piece = pieces.next().unwrap();
                    receiving.read(|room| {
                        let count = piece.min(room.len()).min(wire.len());
                        room[..count].copy_from_slice(&wire[..count]);
                        wire = &wire[count..];
                        Ok(count)
                    }).unwrap();
                }
            }
            prop_assert!(wire.is_empty());
            prop_assert_eq!(arrived, all);
            // Nothing is left of it, and no memory.
            prop_assert_eq!(receiving.take(&mut [IoSliceMut::new(&mut [0])]).unwrap(), 0);
            prop_assert!(receiving.piece.is_empty() && receiving.plain.is_empty());
        }
    }

    #[test]
    fn what_came_with_the_handshake_comes_first() {
        let records = Records::with_keys(key(0), key(0), b"early".to_vec(), u64::MAX);
        assert!(records.has_more());
        let mut receiving = records.receiving.lock();
        let mut room = [0; 9];
        assert_eq!(receiving.take(&mut [IoSliceMut::new(&mut room)]).unwrap(), 5);
        assert_eq!(&room[..5], b"early");
        let next = sealed(&mut key(0), b"later");
        let read = |room: &mut [u8]| {
            room[..next.len()].copy_from_slice(&next);
            Ok(next.len())
        };
        assert_eq!(receiving.read(read).unwrap(), next.len());
        assert_eq!(receiving.take(&mut [IoSliceMut::new(&mut room)]).unwrap(), 5);
        assert_eq!(&room[..5], b"later");
    }

    #[test]
    fn a_part_of_a_record_is_waited_for_and_something_else_is_not() {
        let records = Records::with_keys(key(0), key(0), Vec::new(), u64::MAX);
        let record = sealed(&mut key(0), b"whole");
        let feed = |bytes: &[u8]| {
            let read = |room: &mut [u8]| {
                room[..bytes.len()].copy_from_slice(bytes);
                Ok(bytes.len())
            };
            records.receiving.lock().read(read).unwrap();
        };
        assert!(!records.has_more());
        feed(&record[..7]);
        assert!(!records.has_more(), "or its task would ask for it again and again");
        feed(&record[7..]);
        assert!(records.has_more());
        let mut room = [0; 5];
        assert_eq!(records.receiving.lock().take(&mut [IoSliceMut::new(&mut room)]).unwrap(), 5);
        feed(b"GET / HTTP/1.1");
        assert!(records.has_more(), "an error is to be told, too");
        assert!(records.receiving.lock().take(&mut [IoSliceMut::new(&mut room)]).is_err());
    }

    #[test]
    fn nothing_waits_when_there_is_nothing_to_send() {
        let mut sending = sending();
        assert_eq!(sending.seal(&[]).unwrap(), 0);
        assert_eq!(sending.seal(&[IoSlice::new(&[]), IoSlice::new(&[])]).unwrap(), 0);
        assert!(sending.sealed.is_empty() && sending.key.used() == 0);
    }
}
