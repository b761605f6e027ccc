//! The messages by which the namespace is changed and files are taken to the origin.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use forebay_types::{Attr, Failure, FailureKind};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::{WireAttr, decode, encode, malformed};
use crate::limits::MAX_REQUEST_BODY;
use crate::op::Op;
use crate::request::Request;

/// Parts of one upload, at most: what S3 takes.
pub const MAX_PARTS: usize = 10_000;

/// A change of the namespace. Paths are the namespace's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Make a directory. Answered with its attributes.
    MakeDirectory {
        /// The directory.
        path: Vec<u8>,
    },
    /// Remove a directory that has no names in it.
    RemoveDirectory {
        /// The directory.
        path: Vec<u8>,
    },
    /// Remove a file; no failure when it is not there, so that the request may be sent again.
    Remove {
        /// The file.
        path: Vec<u8>,
    },
    /// Copy a file within its origin, in place of what was there. Answered with the attributes of the copy.
    Copy {
        /// The file.
        from: Vec<u8>,
        /// What the copy is to be called.
        to: Vec<u8>,
    },
    /// Begin the upload of a file in parts. Answered with the upload's name as the token.
    Begin {
        /// The file.
        path: Vec<u8>,
    },
    /// Make a file of the parts of an upload, in place of what was there. Answered with its attributes.
    Complete {
        /// The file.
        path: Vec<u8>,
        /// The upload.
        upload: String,
        /// Bytes in all parts.
        size: u64,
        /// The tags of the parts, the first part's first; at most [`MAX_PARTS`].
        #[serde(deserialize_with = "at_most_parts")]
        parts: Vec<String>,
    },
    /// Give an upload up; no failure when it is not there.
    Abort {
        /// The file.
        path: Vec<u8>,
        /// The upload.
        upload: String,
    },
    /// Tell the parts of an upload. It changes nothing: who may know them is who may send others. Answered with
    /// [`PartsReply`](super::PartsReply). A worker that does not know this takes it for a mistake.
    Parts {
        /// The file.
        path: Vec<u8>,
        /// The upload.
        upload: String,
        /// The parts with higher numbers.
        after: u32,
        /// At most so many.
        max: u32,
    },
    /// Tell the uploads under way of files below a directory. The same holds. Answered with
    /// [`UploadsReply`](super::UploadsReply), whose paths are below the directory.
    Uploads {
        /// The directory.
        path: Vec<u8>,
        /// What their paths below it start with; it may end in the middle of a name.
        prefix: Vec<u8>,
        /// Those after a file below it and an upload, as [`UploadMarker`](forebay_types::UploadMarker) has it.
        after: Option<(Vec<u8>, String)>,
        /// At most so many, and at most [`MAX_UPLOADS`](super::MAX_UPLOADS).
        max: u32,
    },
}

/// The answer to a [`Change`] or an [`UploadRequest`]: what of it there is to answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeReply {
    /// What the file or directory is now.
    pub attr: Option<Attr>,
    /// The name of the upload that was begun, or the tag of the part that was taken.
    pub token: String,
}

/// Bytes of a file on their way to the origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadRequest {
    /// The file.
    pub path: Vec<u8>,
    /// The upload that the bytes are a part of, and which part, counted from 1. `None`: they are the whole file, in place of
    /// what was there; answered with its attributes.
    pub part: Option<(String, u32)>,
    /// Of a whole file: only where there is nothing of that name. What does not know this, refuses it.
    pub only_new: bool,
    /// The bytes.
    pub bytes: Bytes,
}

#[derive(Serialize, Deserialize)]
struct WireUpload {
    path: Vec<u8>,
    what: WireContent,
    /// CRC32C of the bytes.
    sum: u32,
}

/// What bytes are of a file. Releases before the last kind have an option of a part here, which is written as the first two are: they
/// take the last one for a mistake.
#[derive(Serialize, Deserialize)]
enum WireContent {
    Whole,
    Part(String, u32),
    OnlyNew,
}

impl WireContent {
    fn of(upload: &UploadRequest) -> Self {
        match &upload.part {
            Some((name, number)) => Self::Part(name.clone(), *number),
            None if upload.only_new => Self::OnlyNew,
            None => Self::Whole,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct WireChanged<'a> {
    #[serde(borrow)]
    attr: Option<WireAttr<'a>>,
    token: String,
}

/// Refuses more than there may be while they are read: an empty tag takes one byte of the message, and a string of memory.
fn at_most_parts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    struct Parts;

    impl<'de> Visitor<'de> for Parts {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MAX_PARTS} parts")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Self::Value, A::Error> {
            let mut tags = Vec::new();
            while let Some(tag) = parts.next_element()? {
                if tags.len() == MAX_PARTS {
                    return Err(A::Error::invalid_length(MAX_PARTS + 1, &self));
                }
                tags.push(tag);
            }
            Ok(tags)
        }
    }

    deserializer.deserialize_seq(Parts)
}

impl Change {
    /// The body of the request.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        encode(self)
    }

    /// Reads it back.
    ///
    /// # Errors
    /// [`FailureKind::InvalidArgument`] for anything else.
    pub fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        decode("change", bytes)
    }
}

impl ChangeReply {
    /// The body of the reply.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        encode(&WireChanged { attr: self.attr.as_ref().map(WireAttr::from), token: self.token.clone() })
    }

    /// Reads it back.
    ///
    /// # Errors
    /// [`FailureKind::InvalidArgument`] for anything else.
    pub fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        let wire: WireChanged<'_> = decode("change reply", bytes)?;
        Ok(Self { attr: wire.attr.map(|attr| attr.attr_beside(None)).transpose()?, token: wire.token })
    }
}

impl UploadRequest {
    /// The request, whose body is the length of what follows as 32 bits, what the bytes are with their CRC32C, and the bytes,
    /// which are not copied.
    #[must_use]
    pub fn request(&self, deadline: Duration) -> Request {
        let sum = forebay_types::crc32c(&self.bytes);
        let head = encode(&WireUpload { path: self.path.clone(), what: WireContent::of(self), sum });
        let mut body = Vec::with_capacity(4 + head.len());
        // A path and an upload's name: far below 4 GiB.
        body.extend_from_slice(&u32::try_from(head.len()).unwrap_or(u32::MAX).to_le_bytes());
        body.extend_from_slice(&head);
        Request { tail: self.bytes.clone(), ..Request::on_path(Op::Upload, body.into(), deadline) }
    }

    /// Reads it back. The bytes are not copied.
    ///
    /// # Errors
    /// [`FailureKind::InvalidArgument`] for anything else, [`FailureKind::Corrupt`] when the bytes are not those that were sent.
    pub fn decode(request: &Request) -> Result<Self, Failure> {
        let (WireUpload { path, what, sum }, length) = upload_head(&request.body)?;
        let inline = request.body.slice(length..);
        let bytes = match (inline.is_empty(), request.tail.is_empty()) {
            (true, _) => request.tail.clone(),
            (false, true) => inline,
            (false, false) => return Err(malformed("upload", "it has bytes in two places")),
        };
        if forebay_types::crc32c(&bytes) != sum {
            let message = format!("{} bytes to upload are not those that were sent", bytes.len());
            return Err(Failure::new(FailureKind::Corrupt, message));
        }
        let only_new = matches!(what, WireContent::OnlyNew);
        let part = if let WireContent::Part(name, number) = what { Some((name, number)) } else { None };
        Ok(Self { path, part, only_new, bytes })
    }

    /// The file that an upload is for. Its bytes are not looked at.
    ///
    /// # Errors
    /// [`FailureKind::InvalidArgument`] for what is no upload.
    pub fn path_of(request: &Request) -> Result<Vec<u8>, Failure> {
        Ok(upload_head(&request.body)?.0.path)
    }
}

/// What the bytes of an upload are, and where in its body they begin.
fn upload_head(body: &[u8]) -> Result<(WireUpload, usize), Failure> {
    let short = || malformed("upload", "it is cut off");
    let (length, rest) = body.split_first_chunk::<4>().ok_or_else(short)?;
    let length = u32::from_le_bytes(*length);
    if length > MAX_REQUEST_BODY {
        return Err(malformed("upload", format!("{length} bytes say what it is")));
    }
    let head = rest.get(..length as usize).ok_or_else(short)?;
    Ok((decode("upload", head)?, 4 + length as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{MAX_CHANGE_BODY, MAX_PART, MAX_UPLOAD_BODY, RequestHeader};
    use forebay_types::{FileVersion, VersionTag};
    use proptest::prelude::*;

    /// The request as a peer gets it: its body in one piece.
    fn sent(request: &Request) -> Request {
        let body = [&request.body[..], &request.tail].concat();
        RequestHeader::of(1, request).with_body(body.into())
    }

    #[test]
    fn changes_survive_the_wire() {
        let tag = VersionTag::Etag("\"e\"".into());
        let version = FileVersion { origin: "s3://b".into(), path: b"a/\xff".as_slice().into(), size: 5, tag };
        let attr = Some(Attr { writable: true, modified_nanos: 7, ..Attr::file(version) });
        let changed = ChangeReply { attr, token: "upload-1".into() };
        assert_eq!(ChangeReply::decode(&changed.encode()), Ok(changed));
        let parts = vec!["\"0123456789abcdef0123456789abcdef\"".to_owned(); MAX_PARTS];
        let complete =
            |parts| Change::Complete { path: b"/a".to_vec(), upload: "u".repeat(300), size: u64::MAX, parts };
        assert!(complete(parts.clone()).encode().len() <= MAX_CHANGE_BODY as usize);
        assert_eq!(Change::decode(&complete(parts.clone()).encode()), Ok(complete(parts)));
        let crowd = Change::decode(&complete(vec![String::new(); MAX_PARTS + 1]).encode());
        assert_eq!(crowd.unwrap_err().kind(), FailureKind::InvalidArgument);
        let after = Some((b"d/e".to_vec(), "u".into()));
        for asked in [
            Change::Parts { path: b"/a".to_vec(), upload: "u".into(), after: 9999, max: 1000 },
            Change::Uploads { path: b"/a".to_vec(), prefix: b"d/".to_vec(), after, max: 500 },
        ] {
            assert_eq!(Change::decode(&asked.encode()), Ok(asked));
        }
    }

    #[test]
    fn an_upload_is_sent_without_a_copy_and_its_bytes_are_checked() {
        let bytes = Bytes::from_static(b"some bytes");
        let upload =
            UploadRequest { path: b"/a/\xff".to_vec(), part: Some(("u".into(), 10_000)), only_new: false, bytes };
        let request = upload.request(Duration::from_secs(1));
        assert_eq!(request.tail.as_ptr(), upload.bytes.as_ptr());
        assert_eq!(UploadRequest::decode(&request).as_ref(), Ok(&upload));
        let mut received = sent(&request);
        assert_eq!(UploadRequest::decode(&received).as_ref(), Ok(&upload));
        let mut flipped = received.body.to_vec();
        *flipped.last_mut().unwrap() ^= 1;
        let kind = |request: &Request| UploadRequest::decode(request).unwrap_err().kind();
        assert_eq!(kind(&Request { body: flipped.into(), ..received.clone() }), FailureKind::Corrupt);
        received.tail = Bytes::from_static(b"more");
        assert_eq!(kind(&received), FailureKind::InvalidArgument);
        let empty = UploadRequest { bytes: Bytes::new(), part: None, ..upload.clone() };
        assert_eq!(UploadRequest::decode(&sent(&empty.request(Duration::ZERO))), Ok(empty));
        let new = UploadRequest { part: None, only_new: true, ..upload };
        assert_eq!(UploadRequest::decode(&sent(&new.request(Duration::ZERO))), Ok(new));
    }

    #[test]
    fn what_earlier_releases_know_is_written_as_it_was_and_the_rest_they_refuse() {
        let written = |what| encode(&WireUpload { path: b"/a".to_vec(), what, sum: 7 });
        let earlier = |part: Option<(String, u32)>| encode(&(b"/a".to_vec(), part, 7u32));
        assert_eq!(written(WireContent::Whole), earlier(None));
        assert_eq!(written(WireContent::Part("u".into(), 300)), earlier(Some(("u".into(), 300))));
        type Earlier = (Vec<u8>, Option<(String, u32)>, u32);
        let read: Result<Earlier, Failure> = decode("upload", &written(WireContent::OnlyNew));
        assert_eq!(read.unwrap_err().kind(), FailureKind::InvalidArgument);
    }

    #[test]
    fn the_largest_part_with_the_longest_path_and_name_is_within_the_limit() {
        let bytes = Bytes::from(vec![0; MAX_PART as usize]);
        let upload = UploadRequest {
            path: vec![b'a'; 16 << 10],
            part: Some(("u".repeat(16 << 10), 10_000)),
            only_new: false,
            bytes,
        };
        assert!(upload.request(Duration::ZERO).body_len() <= MAX_UPLOAD_BODY as usize);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoders_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Change::decode(&bytes);
            let _ = ChangeReply::decode(&bytes);
            let _ = UploadRequest::decode(&Request::on_path(Op::Upload, bytes.into(), Duration::ZERO));
        }
    }
}
