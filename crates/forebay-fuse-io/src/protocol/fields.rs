//! Reading and writing numbers, one after the other, with every bound checked.

use std::ops::Deref;

use crate::protocol::abi::MAX_NAME;
use crate::protocol::malformed::Malformed;

/// What is left of a part of a message.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    #[inline]
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    #[inline]
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(*taken)
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.take().map(u16::from_ne_bytes)
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_ne_bytes)
    }

    #[inline]
    pub(crate) fn i32(&mut self) -> Result<i32, Malformed> {
        self.take().map(i32::from_ne_bytes)
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_ne_bytes)
    }

    #[inline]
    pub(crate) fn i64(&mut self) -> Result<i64, Malformed> {
        self.take().map(i64::from_ne_bytes)
    }

    /// Passes over a number of 32 bits that means nothing to us.
    #[inline]
    pub(crate) fn skip_u32(&mut self) -> Result<(), Malformed> {
        self.u32().map(drop)
    }

    /// Passes over a number of 64 bits that means nothing to us.
    #[inline]
    pub(crate) fn skip_u64(&mut self) -> Result<(), Malformed> {
        self.u64().map(drop)
    }

    /// All that is left.
    #[inline]
    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Bytes up to a NUL, which is taken, too.
    pub(crate) fn string(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.0.iter().position(|&byte| byte == 0).ok_or(Malformed::Short)?;
        let (string, rest) = self.0.split_at(length);
        self.0 = rest.get(1..).unwrap_or_default();
        Ok(string)
    }

    /// The name of a file in a directory.
    pub(crate) fn name(&mut self) -> Result<&'a [u8], Malformed> {
        let name = self.string()?;
        check_name(name)?;
        Ok(name)
    }
}

/// Whether a file in a directory can be called `name`.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Malformed> {
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        return Err(Malformed::Name);
    }
    // The kernel asks for names longer than any file system has: it leaves the answer to us.
    if name.len() > MAX_NAME {
        return Err(Malformed::LongName);
    }
    Ok(())
}

/// `N` bytes that are written from front to back; what is not written is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<const N: usize> {
    bytes: [u8; N],
    written: usize,
}

impl<const N: usize> Record<N> {
    #[inline]
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; N], written: 0 }
    }

    /// Writes `bytes`. What does not fit is left out, which the tests of all layouts see.
    #[inline]
    pub(crate) fn bytes<const L: usize>(&mut self, bytes: [u8; L]) -> &mut Self {
        if let Some(place) = self.bytes.get_mut(self.written..self.written + L) {
            place.copy_from_slice(&bytes);
        }
        self.written += L;
        debug_assert!(self.written <= N, "a record of {N} bytes is written past its end");
        self
    }

    #[inline]
    pub(crate) fn u16(&mut self, number: u16) -> &mut Self {
        self.bytes(number.to_ne_bytes())
    }

    #[inline]
    pub(crate) fn u32(&mut self, number: u32) -> &mut Self {
        self.bytes(number.to_ne_bytes())
    }

    #[inline]
    pub(crate) fn i32(&mut self, number: i32) -> &mut Self {
        self.bytes(number.to_ne_bytes())
    }

    #[inline]
    pub(crate) fn u64(&mut self, number: u64) -> &mut Self {
        self.bytes(number.to_ne_bytes())
    }

    #[inline]
    pub(crate) fn i64(&mut self, number: i64) -> &mut Self {
        self.bytes(number.to_ne_bytes())
    }

    /// Its bytes, all of them.
    #[must_use]
    #[inline]
    pub fn as_array(&self) -> &[u8; N] {
        &self.bytes
    }
}

impl<const N: usize> Deref for Record<N> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}
