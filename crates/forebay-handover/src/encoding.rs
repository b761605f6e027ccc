//! The bytes of a state: a header with the number of the format and a checksum, and the state in postcard.
//!
//! A daemon writes [`FORMAT`] and reads that and the one before. So it takes over from itself and from the release before it, and
//! the release before it refuses. Whoever changes what [`State`] is written as raises the number, keeps a reader of the one
//! before, and adds a state of it to the tests.
//!
//! * 1: [`State`].
//! * 2: the same. A process that writes it also gives files that are open for writing ([`crate::Written`]), besides the state; whoever
//!   does not read it would not take them.

use std::ops::RangeInclusive;

use forebay_types::crc32c;

use crate::state::{Nonsense, State};

/// The format that this version writes.
pub const FORMAT: u32 = 2;
/// The oldest that it reads.
pub const OLDEST_FORMAT: u32 = oldest(FORMAT);

/// What every state begins with.
const MAGIC: [u8; 8] = *b"FBMOUNT\0";
/// Bytes before the body: what it begins with, the format, and the checksum of the body.
const HEADER: usize = 16;

/// The oldest format that a version reads which writes `newest`: numbers begin with 1.
const fn oldest(newest: u32) -> u32 {
    if newest > 1 { newest - 1 } else { 1 }
}

/// The formats that this version reads.
pub(crate) fn readable() -> RangeInclusive<u32> {
    OLDEST_FORMAT..=FORMAT
}

/// Why bytes are no state of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It is something else.
    #[error("these bytes are no state of a mount")]
    NoState,
    /// Another version wrote it.
    #[error("the state is written in format {}, and this version reads {} to {}", .0, OLDEST_FORMAT, FORMAT)]
    Format(u32),
    /// It is not what was written.
    #[error("the state is not as it was written: its checksum differs")]
    Checksum,
    /// It cannot be read, or holds a path or a version that is none.
    #[error("the state cannot be read")]
    Body,
    /// It contradicts itself.
    #[error("the state makes no sense: {0}")]
    Nonsense(#[from] Nonsense),
}

/// The bytes of `state`.
///
/// # Errors
/// [`Malformed`] when it makes no sense: then nobody could restore it.
pub fn encode(state: &State) -> Result<Vec<u8>, Malformed> {
    state.check()?;
    let body = postcard::to_stdvec(state).map_err(|_| Malformed::Body)?;
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    bytes.extend_from_slice(&crc32c(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

/// The state that these bytes are, of a format that this version reads. Takes no more memory than a small multiple of them.
///
/// # Errors
/// [`Malformed`]; no bytes make it panic.
pub fn decode(bytes: &[u8]) -> Result<State, Malformed> {
    let (magic, rest) = bytes.split_first_chunk::<8>().ok_or(Malformed::NoState)?;
    if *magic != MAGIC {
        return Err(Malformed::NoState);
    }
    let (format, rest) = rest.split_first_chunk().ok_or(Malformed::NoState)?;
    let format = u32::from_le_bytes(*format);
    if !readable().contains(&format) {
        return Err(Malformed::Format(format));
    }
    let (checksum, body) = rest.split_first_chunk().ok_or(Malformed::NoState)?;
    if crc32c(body) != u32::from_le_bytes(*checksum) {
        return Err(Malformed::Checksum);
    }
    let (state, left): (State, _) = postcard::take_from_bytes(body).map_err(|_| Malformed::Body)?;
    if !left.is_empty() {
        return Err(Malformed::Body);
    }
    state.check()?;
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_takes_over_from_itself_and_from_the_one_before() {
        assert_eq!([1, 2, 3, 10].map(oldest), [1, 1, 2, 9]);
        // The format N + 2 does not read N.
        assert!(!(oldest(3)..=3).contains(&1));
        assert!(readable().contains(&FORMAT) && !readable().contains(&(FORMAT + 1)));
    }
}
