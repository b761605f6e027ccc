//! How TLS 1.3 protects a record (RFC 8446, 5.2 to 5.5), with keys that a handshake has agreed on.
//!
//! A record is a header, what it carries, the type of that, and a tag: the header is authenticated, the rest encrypted and
//! authenticated, with a nonce that is the record's number. So one that is changed, repeated, left out or moved does not open.

use std::io::{self, ErrorKind};
use std::ops::Range;

use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use rustls::ConnectionTrafficSecrets;

/// Bytes before what is encrypted: a type, a version and a length.
pub(crate) const HEADER: usize = 5;
/// Bytes that a record carries, at most.
pub(crate) const MAX_PLAIN: usize = 1 << 14;
/// Bytes of a record that carries as much.
pub(crate) const MAX_RECORD: usize = HEADER + MAX_PLAIN + TRAILER;
/// Bytes behind what a record carries: the type of that, and a tag.
pub(crate) const TRAILER: usize = 1 + TAG;

const TAG: usize = 16;
/// What a peer may send behind a header, padding included.
const MAX_BODY: usize = MAX_PLAIN + 256;
/// The version that a header of every record has, whatever was agreed on.
const VERSION: [u8; 2] = [3, 3];

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
/// The alert of who sends no more.
const CLOSE_NOTIFY: u8 = 0;

/// Records that one key protects, at most: beyond that, AES-GCM begins to tell what it protects (RFC 8446, 5.5).
pub(crate) const MAX_RECORDS: u64 = 1 << 24;

/// The key of one direction, and the number of the next record.
pub(crate) struct RecordKey {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    next: u64,
}

impl std::fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordKey").field("next", &self.next).finish_non_exhaustive()
    }
}

/// What a record carried.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    /// Bytes, which are there now in the record.
    Data(Range<usize>),
    /// The peer sends no more.
    Over,
}

impl RecordKey {
    /// The key of `secrets`, for records from number `next` on.
    ///
    /// # Errors
    /// When it is for an algorithm that TLS 1.3 did not have when this was written.
    pub(crate) fn new(next: u64, secrets: &ConnectionTrafficSecrets) -> io::Result<Self> {
        let (algorithm, key, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(io::Error::new(ErrorKind::Unsupported, "a cipher suite that is not known here")),
        };
        let unfit = |_| io::Error::new(ErrorKind::InvalidInput, "a key that does not fit its cipher suite");
        let key = LessSafeKey::new(UnboundKey::new(algorithm, key.as_ref()).map_err(unfit)?);
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(iv.as_ref());
        Ok(Self { key, iv: nonce, next })
    }

    /// How many records it has protected.
    pub(crate) fn used(&self) -> u64 {
        self.next
    }

    /// The nonce of the next record: its number, with the secret part that all have.
    fn nonce(&mut self) -> io::Result<Nonce> {
        if self.next >= MAX_RECORDS {
            return Err(io::Error::other("the keys of this connection have protected as much as they may"));
        }
        let mut nonce = self.iv;
        nonce[NONCE_LEN - 8..].iter_mut().zip(self.next.to_be_bytes()).for_each(|(byte, number)| *byte ^= number);
        self.next += 1;
        Ok(Nonce::assume_unique_for_key(nonce))
    }

    /// Makes a record of `record`, which has room for a header, what it is to carry, and room for a trailer.
    ///
    /// # Errors
    /// When the key may protect no more.
    pub(crate) fn seal(&mut self, record: &mut [u8]) -> io::Result<()> {
        debug_assert!((HEADER + TRAILER..=MAX_RECORD).contains(&record.len()));
        let (head, body) = record.split_at_mut(HEADER);
        // It has 15 bits.
        let header = header((body.len() as u16).to_be_bytes());
        head.copy_from_slice(&header);
        let (inner, tag) = body.split_at_mut(body.len() - TAG);
        if let Some(kind) = inner.last_mut() {
            *kind = APPLICATION_DATA;
        }
        let nonce = self.nonce()?;
        let made = self.key.seal_in_place_separate_tag(nonce, Aad::from(header), inner);
        tag.copy_from_slice(made.map_err(|_| io::Error::other("a record cannot be encrypted"))?.as_ref());
        Ok(())
    }

    /// Opens a whole record, in its place.
    ///
    /// # Errors
    /// When it is none that the peer sealed, or not the next one; when it carries what has no place here.
    pub(crate) fn open(&mut self, record: &mut [u8]) -> io::Result<Opened> {
        let nonce = self.nonce()?;
        let (header, sealed) = record.split_at_mut(HEADER);
        let opened = self.key.open_in_place(nonce, Aad::from(&*header), sealed);
        let opened = opened.map_err(|_| wrong("a record was changed on its way, or comes from somebody else"))?;
        // Behind the type there may be zeros, to hide how much there is before it.
        let Some(end) = opened.iter().rposition(|byte| *byte != 0) else {
            return Err(wrong("a record without a type"));
        };
        match (opened[end], &opened[..end]) {
            // No peer of ours sends any, and whoever sends them without end would keep a thread that looks for what is in them.
            (APPLICATION_DATA, []) => Err(wrong("a record with nothing in it")),
            (APPLICATION_DATA, _) if end <= MAX_PLAIN => Ok(Opened::Data(HEADER..HEADER + end)),
            (APPLICATION_DATA, _) => Err(wrong("a record that is too long")),
            (ALERT, [_, CLOSE_NOTIFY]) => Ok(Opened::Over),
            (ALERT, [_, alert]) => Err(wrong(&format!("the alert {alert} of TLS"))),
            (HANDSHAKE, _) => Err(wrong("a message of the TLS handshake, which is over")),
            (other, _) => Err(wrong(&format!("a record of the type {other}"))),
        }
    }
}

/// The bytes of the record that `received` begins with. `None`: not all of them are there.
///
/// # Errors
/// When it is no record of a connection that is encrypted.
pub(crate) fn record_len(received: &[u8]) -> io::Result<Option<usize>> {
    let Some(&[kind, major, minor, high, low]) = received.first_chunk::<HEADER>() else { return Ok(None) };
    let length = u16::from_be_bytes([high, low]);
    if header([high, low]) != [kind, major, minor, high, low] || !(TAG + 1..=MAX_BODY).contains(&length.into()) {
        return Err(wrong("bytes that are no record of TLS"));
    }
    let length = HEADER + usize::from(length);
    Ok((received.len() >= length).then_some(length))
}

fn header([high, low]: [u8; 2]) -> [u8; HEADER] {
    [APPLICATION_DATA, VERSION[0], VERSION[1], high, low]
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("it sent {what}"))
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use rustls::crypto::cipher::{AeadKey, Iv};

    use super::*;

    /// A key as both ends have it, from record `next` on.
    pub(crate) fn key(next: u64) -> RecordKey {
        let secrets = ConnectionTrafficSecrets::Aes256Gcm { key: AeadKey::from([7; 32]), iv: Iv::from([9; NONCE_LEN]) };
        RecordKey::new(next, &secrets).unwrap()
    }

    pub(crate) fn sealed(key: &mut RecordKey, plain: &[u8]) -> Vec<u8> {
        let mut record = [&[0; HEADER], plain, &[0; TRAILER]].concat();
        key.seal(&mut record).unwrap();
        record
    }

    /// A record of these bytes, the type among them.
    fn of_type(key: &mut RecordKey, inner: &[u8]) -> Vec<u8> {
        let header = header((inner.len() as u16 + TAG as u16).to_be_bytes());
        let mut body = inner.to_vec();
        let nonce = key.nonce().unwrap();
        let tag = key.key.seal_in_place_separate_tag(nonce, Aad::from(header), &mut body).unwrap();
        [&header, &body[..], tag.as_ref()].concat()
    }

    proptest! {
        #[test]
        fn what_was_sealed_opens_and_nothing_else_does(
            plain in prop::collection::vec(any::<u8>(), 1..600),
            at in any::<prop::sample::Index>(),
            flip in 1..=255_u8,
        ) {
            let (mut ours, mut theirs) = (key(5), key(5));
            let record = sealed(&mut ours, &plain);
            prop_assert_eq!(record_len(&record).unwrap(), Some(record.len()));
            prop_assert_eq!(record_len(&record[..record.len() - 1]).unwrap(), None);
            let mut opened = record.clone();
            prop_assert_eq!(theirs.open(&mut opened).unwrap(), Opened::Data(HEADER..HEADER + plain.len()));
            prop_assert_eq!(&opened[HEADER..HEADER + plain.len()], &plain[..]);
            // Again, or in another place, it is not what is expected.
            prop_assert!(theirs.open(&mut record.clone()).is_err());
            prop_assert!(key(4).open(&mut record.clone()).is_err());
            let mut changed = record.clone();
            changed[at.index(record.len())] ^= flip;
            prop_assert!(key(5).open(&mut changed).is_err());
        }
    }

    #[test]
    fn only_data_and_the_end_of_it_have_a_place() {
        let open = |inner: &[u8]| key(0).open(&mut of_type(&mut key(0), inner));
        assert_eq!(open(&[1, 2, APPLICATION_DATA, 0, 0]).unwrap(), Opened::Data(HEADER..HEADER + 2));
        assert_eq!(open(&[1, CLOSE_NOTIFY, ALERT]).unwrap(), Opened::Over);
        for wrong in [
            &[APPLICATION_DATA][..],
            &[APPLICATION_DATA, 0, 0],
            &[2, 40, ALERT],
            &[ALERT],
            &[24, 0, 0, 1, 1, HANDSHAKE],
            &[1, 20],
            &[0, 0, 0],
        ] {
            assert_eq!(open(wrong).unwrap_err().kind(), ErrorKind::InvalidData, "{wrong:?}");
        }
        let mut long = vec![1; MAX_PLAIN + 1];
        long.push(APPLICATION_DATA);
        assert!(open(&long).is_err());
    }

    #[test]
    fn what_is_no_record_is_found_by_its_header() {
        let wrong =
            [[22, 3, 3, 0, 40], [23, 3, 1, 0, 40], [23, 3, 3, 0, 16], [23, 3, 3, 0xff, 0xff], [b'F', 0, 0, 0, 40]];
        for wrong in wrong {
            assert!(record_len(&wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(record_len(&[23, 3, 3, 0]).unwrap(), None);
    }

    #[test]
    fn a_key_protects_no_more_than_it_may() {
        let (mut ours, mut theirs) = (key(MAX_RECORDS - 1), key(MAX_RECORDS - 1));
        let mut last = sealed(&mut ours, b"last");
        assert!(theirs.open(&mut last).is_ok());
        assert!(ours.seal(&mut [0; HEADER + TRAILER]).is_err() && theirs.open(&mut last).is_err());
        assert_eq!(ours.used(), MAX_RECORDS);
    }
}
