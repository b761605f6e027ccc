//! What the kernel is told unasked: that a name or the bytes of a file are no longer what it believes.
//!
//! Only `/dev/fuse` takes these; a ring does not. The kernel may wait for locks while it takes one, so a thread that
//! serves requests must not send one.

use std::ops::Deref;

use crate::protocol::abi::{MAX_NAME, OUT_HEADER, notification};
use crate::protocol::fields::{Record, check_name};
use crate::protocol::request::Malformed;

/// The most bytes that there are before a name.
const MAX_HEAD: usize = OUT_HEADER + 24;

/// A message to the kernel, to be written to the device in one go.
#[derive(Clone)]
pub struct Notification {
    bytes: [u8; MAX_HEAD + MAX_NAME + 1],
    length: usize,
}

impl Notification {
    /// `name` in directory `parent` shall be looked up again. With `flags` [`EXPIRE_ONLY`](super::abi::EXPIRE_ONLY), which the
    /// kernel must have offered, what is below it stays.
    pub fn inval_entry(parent: u64, name: &[u8], flags: u32) -> Result<Self, Malformed> {
        let mut head = Record::<16>::new();
        head.u64(parent).u32(length(name)?).u32(flags);
        Ok(Self::new(notification::INVAL_ENTRY, &head, Some(name)))
    }

    /// The attributes of `ino` shall be asked for again, and the pages of `length` bytes from `offset` on be dropped: those to
    /// the end if `length` is 0, none if `offset` is negative.
    #[must_use]
    pub fn inval_inode(ino: u64, offset: i64, length: i64) -> Self {
        let mut head = Record::<24>::new();
        head.u64(ino).i64(offset).i64(length);
        Self::new(notification::INVAL_INODE, &head, None)
    }

    /// `name` in directory `parent`, which led to inode `child`, was removed.
    pub fn delete(parent: u64, child: u64, name: &[u8]) -> Result<Self, Malformed> {
        let mut head = Record::<24>::new();
        head.u64(parent).u64(child).u32(length(name)?);
        Ok(Self::new(notification::DELETE, &head, Some(name)))
    }

    /// Requests that were handed out and not answered shall be handed out again, since whoever had them is gone. Linux 6.9 does so;
    /// they are told by [`Header::is_resent`](super::request::Header::is_resent).
    #[must_use]
    pub fn resend() -> Self {
        Self::new(notification::RESEND, &[], None)
    }

    fn new(code: i32, head: &[u8], name: Option<&[u8]>) -> Self {
        let nul: &[u8] = if name.is_some() { &[0] } else { &[] };
        let parts = [head, name.unwrap_or_default(), nul];
        let length = OUT_HEADER + parts.iter().map(|part| part.len()).sum::<usize>();
        let mut header = Record::<OUT_HEADER>::new();
        // At most 296. That there is no request it answers is said by a `unique` of 0.
        header.u32(length as u32).i32(code).u64(0);

        let mut message = Self { bytes: [0; MAX_HEAD + MAX_NAME + 1], length };
        let mut rest = message.bytes.as_mut_slice();
        for part in [&*header].into_iter().chain(parts) {
            // Names were checked, so everything fits.
            let Some((place, after)) = rest.split_at_mut_checked(part.len()) else { break };
            place.copy_from_slice(part);
            rest = after;
        }
        message
    }
}

impl Deref for Notification {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// The length of a name that can be one.
fn length(name: &[u8]) -> Result<u32, Malformed> {
    check_name(name)?;
    // At most 255: see there.
    Ok(name.len() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::abi::EXPIRE_ONLY;

    /// Length, code and `unique`, and what follows.
    fn parts(message: &[u8]) -> (u32, i32, u64, &[u8]) {
        let (length, rest) = message.split_first_chunk().unwrap();
        let (code, rest) = rest.split_first_chunk().unwrap();
        let (unique, rest) = rest.split_first_chunk().unwrap();
        (u32::from_ne_bytes(*length), i32::from_ne_bytes(*code), u64::from_ne_bytes(*unique), rest)
    }

    #[test]
    fn a_name_to_be_looked_up_again_ends_with_a_nul_that_is_not_counted() {
        let message = Notification::inval_entry(0x0102, b"name", EXPIRE_ONLY).unwrap();
        let (length, code, unique, body) = parts(&message);
        assert_eq!((length, message.len(), code, unique), (37, 37, 3, 0));
        assert_eq!(body[..8], 0x0102u64.to_ne_bytes());
        assert_eq!(body[8..12], 4u32.to_ne_bytes());
        assert_eq!(body[12..16], 1u32.to_ne_bytes());
        assert_eq!(body[16..], *b"name\0");
    }

    #[test]
    fn the_bytes_of_a_file_to_be_dropped_are_a_range() {
        let message = Notification::inval_inode(9, -1, 4096);
        let (length, code, unique, body) = parts(&message);
        assert_eq!((length, message.len(), code, unique), (40, 40, 2, 0));
        assert_eq!(body[..8], 9u64.to_ne_bytes());
        assert_eq!(body[8..16], (-1i64).to_ne_bytes());
        assert_eq!(body[16..], 4096i64.to_ne_bytes());
    }

    #[test]
    fn a_removed_name_comes_with_what_it_led_to() {
        let message = Notification::delete(1, 2, &[b'n'; 255]).unwrap();
        let (length, code, unique, body) = parts(&message);
        assert_eq!((length, message.len(), code, unique), (296, 296, 6, 0));
        assert_eq!(body[..8], 1u64.to_ne_bytes());
        assert_eq!(body[8..16], 2u64.to_ne_bytes());
        assert_eq!(body[16..20], 255u32.to_ne_bytes());
        assert_eq!(body[20..24], [0; 4]);
        assert_eq!((&body[24..279], &body[279..]), (&[b'n'; 255][..], &[0][..]));
    }

    #[test]
    fn to_hand_out_again_is_asked_for_by_a_header_alone() {
        let message = Notification::resend();
        assert_eq!(parts(&message), (16, 7, 0, &[][..]));
    }

    #[test]
    fn nothing_is_told_of_what_is_no_name() {
        for name in [&b""[..], b"a/b", b"a\0b", &[b'n'; 256]] {
            assert!(Notification::inval_entry(1, name, 0).is_err());
            assert!(Notification::delete(1, 2, name).is_err());
        }
    }
}
