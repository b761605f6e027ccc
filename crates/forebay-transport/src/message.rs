//! The bodies of namespace requests and replies, in postcard's compact encoding of serde types.
//!
//! Paths and names are bytes. Decoding never panics; every length is checked by the decoder against what is there.

mod names;
mod octets;
mod paths;
mod uploads;
mod writes;

pub use names::{ListReply, PageOfNames};
pub use paths::{MAX_PATHS, PathAddress, PathsReply, VERBS_VERSION, VerbsPaths};
pub use uploads::{MAX_UPLOADS, PartReply, PartsReply, UploadsReply};
pub use writes::{Change, ChangeReply, MAX_PARTS, UploadRequest};

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use forebay_types::{Attr, Failure, FailureKind, FileId, FileKind, FileVersion, MAX_REPLICAS, SectorRange};
use serde::{Deserialize, Serialize};

use self::octets::Octets;

/// Bytes of a name of a host, a card or a worker, at most.
const MAX_NAME: usize = 255;

/// Asks for one page of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListRequest {
    /// The directory.
    pub path: Vec<u8>,
    /// Where the previous page ended.
    pub token: Option<String>,
    /// At most so many entries.
    pub max: u32,
}

/// What a path is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatReply {
    /// Its attributes.
    pub attr: Attr,
    /// How long the answer may be believed.
    pub valid_for: Duration,
}

/// What a path is, with the bytes of a small file beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatReadReply {
    /// What it is.
    pub stat: StatReply,
    /// The checksums of the sectors that come as payload, in the form of [`forebay_types::SectorChecksums::as_bytes`]; empty when the
    /// worker vouches for them.
    pub checksums: Bytes,
}

/// What is cached of a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoverageReply {
    /// In memory.
    pub memory: Vec<SectorRange>,
    /// On disk.
    pub disk: Vec<SectorRange>,
}

/// Most files in one [`FreeRequest`]: their request stays below [`crate::wire::MAX_REQUEST_BODY`].
pub const MAX_FREED: usize = 2000;

/// Which blocks to drop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreeRequest {
    /// File versions, each with how many blocks it has: all of them go.
    pub files: Vec<(FileId, u64)>,
    /// And all versions that show at this path of the namespace or below it, as far as the worker knows where they do: also those
    /// whose files are gone from the origin.
    pub below: Option<Vec<u8>>,
}

/// What was dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreeReply {
    /// Blocks of which something was cached.
    pub blocks: u64,
    /// Bytes, in memory and on disk together.
    pub bytes: u64,
}

/// What to take from another worker. The request's offset and length say which part of its block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptRequest {
    /// The name of the worker that holds it.
    pub from: String,
    /// Bytes in the whole block.
    pub block_length: u32,
}

#[derive(Serialize, Deserialize)]
struct WireFree {
    files: Vec<([u8; 16], u64)>,
    /// Earlier versions neither send this nor look at it.
    below: Option<Vec<u8>>,
}

#[derive(Serialize, Deserialize)]
struct WireFreeOfFiles {
    files: Vec<([u8; 16], u64)>,
}

#[derive(Serialize, Deserialize)]
struct WireAttr<'a> {
    /// The description of the version; `None` for a directory.
    #[serde(borrow)]
    version: Option<Octets<'a>>,
    modified_nanos: i64,
    replicas: u8,
    writable: bool,
}

#[derive(Serialize, Deserialize)]
struct WireStat<'a> {
    #[serde(borrow)]
    attr: WireAttr<'a>,
    valid_for: Duration,
}

#[derive(Serialize, Deserialize)]
struct WireStatRead<'a> {
    #[serde(borrow)]
    stat: WireStat<'a>,
    checksums: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
struct WireCoverage {
    memory: Vec<(u32, u32)>,
    disk: Vec<(u32, u32)>,
}

impl From<&Attr> for WireAttr<'_> {
    fn from(attr: &Attr) -> Self {
        Self {
            version: attr.version().map(|version| Octets(Cow::Owned(version.encode()))),
            modified_nanos: attr.modified_nanos,
            replicas: attr.replicas,
            writable: attr.writable,
        }
    }
}

impl WireAttr<'_> {
    /// The attributes; of a file that lies beside that of `beside`, if there is one.
    fn attr_beside(self, beside: Option<&FileVersion>) -> Result<Attr, Failure> {
        let kind = match self.version {
            None => FileKind::Directory,
            Some(bytes) => {
                let version = FileVersion::decode_beside(&bytes.0, beside);
                FileKind::File(version.map_err(|error| malformed("attributes", error))?)
            }
        };
        let replicas = self.replicas.clamp(1, MAX_REPLICAS);
        Ok(Attr { kind, modified_nanos: self.modified_nanos, replicas, writable: self.writable })
    }
}

fn malformed(what: &str, error: impl std::fmt::Display) -> Failure {
    Failure::new(FailureKind::InvalidArgument, format!("malformed {what}: {error}"))
}

fn encode(value: &impl Serialize) -> Bytes {
    // postcard fails only for sequences of unknown length and for writers that fail; a `Vec` is neither.
    postcard::to_stdvec(value).map(Bytes::from).unwrap_or_default()
}

fn decode<'a, T: Deserialize<'a>>(what: &str, bytes: &'a [u8]) -> Result<T, Failure> {
    postcard::from_bytes(bytes).map_err(|error| malformed(what, error))
}

impl ListRequest {
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
        decode("list request", bytes)
    }
}

impl FreeRequest {
    /// The body of a request.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let files = self.files.iter().map(|(file, blocks)| (file.0, *blocks)).collect();
        encode(&WireFree { files, below: self.below.clone() })
    }

    /// The request in `bytes`.
    ///
    /// # Errors
    /// [`FailureKind::InvalidArgument`] for bytes that are none, or too many files.
    pub fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        let of_files =
            |_: Failure| decode("free request", bytes).map(|WireFreeOfFiles { files }| WireFree { files, below: None });
        let wire: WireFree = decode("free request", bytes).or_else(of_files)?;
        if wire.files.len() > MAX_FREED {
            return Err(malformed("free request", format!("{} files", wire.files.len())));
        }
        let files = wire.files.into_iter().map(|(file, blocks)| (FileId(file), blocks)).collect();
        Ok(Self { files, below: wire.below })
    }
}

impl FreeReply {
    /// The body of a reply.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        encode(self)
    }

    /// The reply in `bytes`.
    ///
    /// # Errors
    /// [`FailureKind::InvalidArgument`] for bytes that are none.
    pub fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        decode("free reply", bytes)
    }
}

impl AdoptRequest {
    /// The body of a request.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        encode(self)
    }

    /// The request in `bytes`.
    ///
    /// # Errors
    /// [`FailureKind::InvalidArgument`] for bytes that are none, or a name that no worker has.
    pub fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        let request: Self = decode("adopt request", bytes)?;
        match request.from.len() {
            1..=MAX_NAME => Ok(request),
            length => Err(malformed("adopt request", format!("a name of {length} bytes"))),
        }
    }
}

impl StatReply {
    fn to_wire(&self) -> WireStat<'_> {
        WireStat { attr: WireAttr::from(&self.attr), valid_for: self.valid_for }
    }

    /// The body of the reply.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        encode(&self.to_wire())
    }

    /// Reads it back.
    ///
    /// # Errors
    /// [`FailureKind::InvalidArgument`] for anything else.
    pub fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        let wire: WireStat<'_> = decode("stat reply", bytes)?;
        Ok(Self { attr: wire.attr.attr_beside(None)?, valid_for: wire.valid_for })
    }
}

impl StatReadReply {
    /// The body of the reply.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        encode(&WireStatRead { stat: self.stat.to_wire(), checksums: self.checksums.to_vec() })
    }

    /// Reads it back.
    ///
    /// # Errors
    /// [`FailureKind::InvalidArgument`] for anything else.
    pub fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        let WireStatRead { stat, checksums } = decode("reply about a small file", bytes)?;
        let stat = StatReply { attr: stat.attr.attr_beside(None)?, valid_for: stat.valid_for };
        Ok(Self { stat, checksums: checksums.into() })
    }
}

impl CoverageReply {
    /// The body of the reply.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let pairs = |ranges: &[SectorRange]| ranges.iter().map(|range| (range.start, range.end)).collect();
        encode(&WireCoverage { memory: pairs(&self.memory), disk: pairs(&self.disk) })
    }

    /// Reads it back.
    ///
    /// # Errors
    /// [`FailureKind::InvalidArgument`] for anything else.
    pub fn decode(bytes: &[u8]) -> Result<Self, Failure> {
        let wire: WireCoverage = decode("coverage reply", bytes)?;
        let ranges = |pairs: Vec<(u32, u32)>| {
            let range = |(start, end)| SectorRange::new(start, end).ok_or_else(|| malformed("sector range", "empty"));
            pairs.into_iter().map(range).collect::<Result<Vec<_>, Failure>>()
        };
        Ok(Self { memory: ranges(wire.memory)?, disk: ranges(wire.disk)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::{DirEntry, VersionTag};
    use proptest::prelude::*;

    fn file(size: u64) -> Attr {
        let tag = VersionTag::Etag("\"e\"".into());
        let version = FileVersion { origin: "s3://b".into(), path: b"a/\xff".as_slice().into(), size, tag };
        Attr { modified_nanos: 7, replicas: 3, ..Attr::file(version) }
    }

    #[test]
    fn namespace_messages_survive_the_wire() {
        let entry = |name: &[u8], attr| DirEntry { name: name.into(), attr };
        let list = ListReply {
            entries: vec![entry(b"\xff x", file(3)), entry(b"d", Attr::directory())],
            next: Some("t".into()),
            valid_for: Duration::from_millis(1500),
        };
        assert_eq!(ListReply::decode(&list.encode()), Ok(list));
        let stat = StatReply { attr: file(u64::MAX), valid_for: Duration::ZERO };
        assert_eq!(StatReply::decode(&stat.encode()), Ok(stat.clone()));
        let small = StatReadReply { stat, checksums: Bytes::from_static(b"checksums") };
        assert_eq!(StatReadReply::decode(&small.encode()), Ok(small));
        let coverage = CoverageReply { memory: vec![SectorRange { start: 1, end: 5 }], disk: vec![] };
        assert_eq!(CoverageReply::decode(&coverage.encode()), Ok(coverage));
        let free = FreeRequest { files: vec![(FileId([7; 16]), u64::MAX); MAX_FREED], below: Some(vec![b'/'; 1024]) };
        assert!(free.encode().len() <= crate::wire::MAX_REQUEST_BODY as usize);
        assert_eq!(FreeRequest::decode(&free.encode()), Ok(free.clone()));
        // As earlier versions send it, and as they read what this one sends.
        let of_files = WireFreeOfFiles { files: vec![([7; 16], 3)] };
        let told = FreeRequest { files: vec![(FileId([7; 16]), 3)], below: None };
        assert_eq!(FreeRequest::decode(&encode(&of_files)), Ok(told.clone()));
        let read: WireFreeOfFiles = decode("", &FreeRequest { below: Some(b"/a".to_vec()), ..told }.encode()).unwrap();
        assert_eq!(read.files, of_files.files);
        let crowd = FreeRequest { files: vec![(FileId([7; 16]), 1); MAX_FREED + 1], below: None };
        assert!(FreeRequest::decode(&crowd.encode()).is_err());
        let adopt = AdoptRequest { from: "w1".into(), block_length: 9 };
        assert_eq!(AdoptRequest::decode(&adopt.encode()), Ok(adopt));
        assert!(AdoptRequest::decode(&AdoptRequest { from: String::new(), block_length: 9 }.encode()).is_err());
        let request = ListRequest { path: b"/a".to_vec(), token: None, max: 9 };
        assert_eq!(ListRequest::decode(&request.encode()), Ok(request));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoders_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = ListRequest::decode(&bytes);
            let _ = ListReply::decode(&bytes);
            let _ = StatReply::decode(&bytes);
            let _ = StatReadReply::decode(&bytes);
            let _ = CoverageReply::decode(&bytes);
            let _ = PathsReply::decode(&bytes);
            let _ = FreeRequest::decode(&bytes);
            let _ = FreeReply::decode(&bytes);
            let _ = AdoptRequest::decode(&bytes);
        }
    }
}
