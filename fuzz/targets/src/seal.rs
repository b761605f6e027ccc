//! Putting checksums right, so that a fuzzer gets behind them.

use forebay_transport::wire::{HEADER_LEN, ReplyHeader, RequestHeader};
use forebay_types::crc32c;

const REQUEST_MAGIC: [u8; 2] = *b"FQ";
const REPLY_MAGIC: [u8; 2] = *b"FA";

/// Gives `bytes` the checksum of all but their last four.
pub(crate) fn seal(bytes: &mut [u8]) {
    if let Some((body, crc)) = bytes.split_last_chunk_mut::<4>() {
        *crc = crc32c(body).to_le_bytes();
    }
}

/// Makes a header of a request of the first bytes.
pub(crate) fn request(bytes: &mut [u8]) -> Option<RequestHeader> {
    RequestHeader::decode(header(bytes, REQUEST_MAGIC)?).ok()
}

/// Makes a header of a reply of the first bytes.
pub(crate) fn reply(bytes: &mut [u8]) -> Option<ReplyHeader> {
    ReplyHeader::decode(header(bytes, REPLY_MAGIC)?).ok()
}

fn header(bytes: &mut [u8], magic: [u8; 2]) -> Option<&[u8; HEADER_LEN]> {
    let header = bytes.first_chunk_mut::<HEADER_LEN>()?;
    header[..2].copy_from_slice(&magic);
    seal(header);
    Some(header)
}

/// Makes headers of requests wherever one begins in a stream of them. Bodies are made to end in it, but for every eighth: taking
/// 64 MiB for what does not come is tried often enough.
pub(crate) fn requests(mut stream: &mut [u8]) {
    while let Some(mut header) = request(stream) {
        let room = (stream.len() - HEADER_LEN) as u32;
        if header.body_len > room && header.id % 8 != 0 {
            stream[4..8].copy_from_slice(&(header.body_len % (room + 1)).to_le_bytes());
            let Some(again) = request(stream) else { return };
            header = again;
        }
        stream = stream.get_mut(HEADER_LEN + header.body_len as usize..).unwrap_or_default();
    }
}

/// Makes headers of replies wherever one begins in a stream of them.
pub(crate) fn replies(mut stream: &mut [u8]) {
    while let Some(header) = reply(stream) {
        let length = header.body_len as usize + header.payload_len as usize;
        stream = stream.get_mut(HEADER_LEN + length..).unwrap_or_default();
    }
}
