//! Where the bytes of a read lie in the worker's memory: 20 bytes of its reply's header, for who asked for them
//! ([`Flags::LOCATE`](crate::Flags::LOCATE)) and can read there (ADR 0035). Zeros are none, which is what everybody
//! else gets.

use forebay_one_sided::{LOCATION_LEN, Location, LocationError};

use crate::wire::{HEADER_LEN, seal};

/// Where it is in the header.
const LOCATION_AT: usize = 32;

/// Writes a location into the header of a reply.
pub fn set_location(header: &mut [u8; HEADER_LEN], location: &Location) {
    header[LOCATION_AT..LOCATION_AT + LOCATION_LEN].copy_from_slice(&location.encode());
    seal(header);
}

/// The location in the header of a reply, which was decoded; `None` where nobody wrote one.
///
/// # Errors
/// [`LocationError`]: the peer breaks the protocol.
pub fn location(header: &[u8; HEADER_LEN]) -> Result<Option<Location>, LocationError> {
    let (_, rest) = header.split_at(LOCATION_AT);
    rest.first_chunk::<LOCATION_LEN>().map_or(Ok(None), Location::decode)
}

#[cfg(test)]
mod tests {
    use forebay_one_sided::Generation;

    use super::*;
    use crate::reply::Provenance;
    use crate::wire::{ReplyHeader, set_tag, tag};

    #[test]
    fn a_location_goes_with_the_header_of_a_reply_and_changes_nothing_else_of_it() {
        let of = ReplyHeader { id: 1, failure: None, body_len: 2, payload_len: 3, provenance: Provenance::default() };
        let mut reply = of.encode();
        assert_eq!(location(&reply), Ok(None));
        let there = Location { generation: Generation::new(7).unwrap(), at: 3, first: 4, length: 5 };
        set_location(&mut reply, &there);
        set_tag(&mut reply, 9);
        assert_eq!((location(&reply), tag(&reply), ReplyHeader::decode(&reply)), (Ok(Some(there)), 9, Ok(of)));
    }
}
