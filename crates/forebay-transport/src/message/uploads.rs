//! What is told of uploads in parts, and of the parts of files that were made by them.

use bytes::Bytes;
use forebay_types::{Failure, FilePart, PartPage, PendingUpload, UploadMarker, UploadPage, UploadedPart};
use serde::{Deserialize, Serialize};

use super::writes::MAX_PARTS;
use super::{decode, encode, malformed};

/// Uploads that one answer tells, at most: with the longest keys and names it stays below [`crate::wire::MAX_REPLY_BODY`].
pub const MAX_UPLOADS: usize = 500;

/// The answer to [`Change::Parts`](super::Change::Parts).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartsReply(pub PartPage);

/// The answer to [`Change::Uploads`](super::Change::Uploads).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadsReply(pub UploadPage);

/// The answer to [`Op::Part`](crate::Op::Part): `None` for a part that the file has not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartReply(pub Option<FilePart>);

#[derive(Serialize, Deserialize)]
struct WireParts {
    parts: Vec<WirePart>,
    has_more: bool,
}

#[derive(Serialize, Deserialize)]
struct WirePart {
    number: u32,
    tag: String,
    size: u64,
    modified_nanos: i64,
}

#[derive(Serialize, Deserialize)]
struct WireUploads {
    uploads: Vec<WirePending>,
    next: Option<WireMarker>,
}

#[derive(Serialize, Deserialize)]
struct WirePending {
    path: Vec<u8>,
    upload: String,
    begun_nanos: i64,
}

#[derive(Serialize, Deserialize)]
struct WireMarker {
    path: Vec<u8>,
    upload: String,
}

#[derive(Serialize, Deserialize)]
struct WireFilePart {
    start: u64,
    end: u64,
    count: u32,
}

impl PartsReply {
    /// The body of the reply.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let part = |part: &UploadedPart| {
            let UploadedPart { number, tag, size, modified_nanos } = part.clone();
            WirePart { number, tag, size, modified_nanos }
        };
        encode(&WireParts { parts: self.0.parts.iter().map(part).collect(), has_more: self.0.has_more })
    }

    /// Reads it back.
    ///
    /// # Errors
    /// [`forebay_types::FailureKind::InvalidArgument`] for anything else.
    pub fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        let WireParts { parts, has_more } = decode("list of parts", bytes)?;
        if parts.len() > MAX_PARTS {
            return Err(malformed("list of parts", format!("{} parts", parts.len())));
        }
        let part = |WirePart { number, tag, size, modified_nanos }| UploadedPart { number, tag, size, modified_nanos };
        Ok(Self(PartPage { parts: parts.into_iter().map(part).collect(), has_more }))
    }
}

impl UploadsReply {
    /// The body of the reply.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let pending = |pending: &PendingUpload| {
            let PendingUpload { path, upload, begun_nanos } = pending.clone();
            WirePending { path, upload, begun_nanos }
        };
        let marker = |UploadMarker { path, upload }| WireMarker { path, upload };
        let uploads = self.0.uploads.iter().map(pending).collect();
        encode(&WireUploads { uploads, next: self.0.next.clone().map(marker) })
    }

    /// Reads it back.
    ///
    /// # Errors
    /// [`forebay_types::FailureKind::InvalidArgument`] for anything else.
    pub fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        let WireUploads { uploads, next } = decode("list of uploads", bytes)?;
        let pending = |WirePending { path, upload, begun_nanos }| PendingUpload { path, upload, begun_nanos };
        let next = next.map(|WireMarker { path, upload }| UploadMarker { path, upload });
        Ok(Self(UploadPage { uploads: uploads.into_iter().map(pending).collect(), next }))
    }
}

impl PartReply {
    /// The body of the reply.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let part = self.0.as_ref();
        encode(&part.map(|FilePart { range, count }| WireFilePart {
            start: range.start,
            end: range.end,
            count: *count,
        }))
    }

    /// Reads it back.
    ///
    /// # Errors
    /// [`forebay_types::FailureKind::InvalidArgument`] for anything else.
    pub fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        let part: Option<WireFilePart> = decode("place of a part", bytes)?;
        match part {
            Some(WireFilePart { start, end, .. }) if start > end => {
                Err(malformed("place of a part", format!("it ends at {end} and begins at {start}")))
            }
            part => Ok(Self(part.map(|WireFilePart { start, end, count }| FilePart { range: start..end, count }))),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::MAX_REPLY_BODY;

    #[test]
    fn what_is_told_of_uploads_survives_the_wire() {
        let part = |number| UploadedPart { number, tag: "5:\"e\"".into(), size: u64::MAX, modified_nanos: -7 };
        let parts = PartsReply(PartPage { parts: (1..=MAX_PARTS as u32).map(part).collect(), has_more: true });
        assert_eq!(PartsReply::decode(&parts.encode()), Ok(parts));
        let crowd = PartsReply(PartPage { parts: (0..=MAX_PARTS as u32).map(part).collect(), has_more: false });
        assert!(PartsReply::decode(&crowd.encode()).is_err());

        let path = vec![0xff; 1024];
        let pending = PendingUpload { path: path.clone(), upload: "u".repeat(4096), begun_nanos: i64::MAX };
        let next = Some(UploadMarker { path, upload: String::new() });
        let uploads = UploadsReply(UploadPage { uploads: vec![pending; MAX_UPLOADS], next });
        assert!(uploads.encode().len() <= MAX_REPLY_BODY as usize);
        assert_eq!(UploadsReply::decode(&uploads.encode()), Ok(uploads));

        for part in [None, Some(FilePart { range: 5..u64::MAX, count: 3 })] {
            assert_eq!(PartReply::decode(&PartReply(part.clone()).encode()), Ok(PartReply(part)));
        }
        let backwards = encode(&Some(WireFilePart { start: 5, end: 4, count: 1 }));
        assert!(PartReply::decode(&backwards).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoders_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = PartsReply::decode(&bytes);
            let _ = UploadsReply::decode(&bytes);
            let _ = PartReply::decode(&bytes);
        }
    }
}
