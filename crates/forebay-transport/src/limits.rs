//! The most bytes that each part of a message may have. The sender keeps to them, and the receiver believes no length
//! beyond them.

use forebay_types::MAX_BLOCK_SIZE;

/// The longest body of a request: a description or a path and a token, each below 8 KiB.
pub const MAX_REQUEST_BODY: u32 = 64 << 10;
/// The longest body of a change: the tags of ten thousand parts.
pub const MAX_CHANGE_BODY: u32 = 2 << 20;
/// The most bytes of a file that one request takes to the origin.
pub const MAX_PART: u32 = 64 << 20;
/// The longest body of an upload: a part, and what it is a part of.
pub const MAX_UPLOAD_BODY: u32 = MAX_PART + (64 << 10);
/// The longest body of a reply: a page of a listing.
pub const MAX_REPLY_BODY: u32 = 4 << 20;
/// The longest body of a reply that has a payload, which every transport sends without further ado: checksums of the sectors of a block, or
/// what is said of a small file.
pub const MAX_BODY_BESIDE_PAYLOAD: u32 = 960;
/// The longest payload of a reply: a block.
pub const MAX_PAYLOAD: u32 = MAX_BLOCK_SIZE;
