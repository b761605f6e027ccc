//! Forebay's vocabulary: the few types that every other crate speaks.
//!
//! Nothing here does I/O. The words are those of the glossary in `ARCHITECTURE.md`:
//!
//! * [`FsPath`]: where a file is in the namespace that a mount shows;
//! * [`FileVersion`]: one immutable state of one object, and [`FileId`], its 128-bit name;
//! * [`OriginUrl`]: which origin, in the one form that it has in a file version;
//! * [`BlockKey`]: the unit of placement and transfer, a fixed-size piece of one file version;
//! * [`SectorRange`]: the unit of validity and integrity inside a block;
//! * [`CachePolicy`]: how what lies below a path is cached;
//! * [`Failure`]: what went wrong, in a form that crosses the wire and ends as an `errno`;
//! * [`Role`] and [`Permission`]: what somebody is to the cluster, and what an operation asks of them;
//! * [`Subject`]: what a request is about, as a record of requests tells it;
//! * [`AccessList`]: which clients read what a mount shows, and which change it;
//! * [`Tenure`]: until when something is held, by the holder's clock;
//! * [`UploadedPart`], [`PendingUpload`] and [`FilePart`]: what an origin tells of uploads in parts, and of what they have made;
//! * [`IoBackend`], [`ServeMode`], [`FuseIo`], [`TcpSecurity`], [`TcpZeroCopy`], [`AuditEvents`] and [`S3Checksum`]: choices of an operator
//!   that parts carry out;
//! * [`ByteSize`] and [`parse_duration`]: quantities as people write them.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod acl;
mod attr;
mod bits;
mod block;
mod checksum;
mod choice;
mod failure;
mod file;
mod origin_url;
mod path;
mod policy;
mod quantity;
mod role;
mod subject;
mod tenure;
mod uploads;

pub use acl::{AccessList, AccessListError, MAX_LISTED};
pub use attr::{Attr, DirEntry, FileKind};
pub use bits::BitSet;
pub use block::{BlockKey, BlockLayout, MAX_BLOCK_SIZE, MAX_SECTORS, MIN_BLOCK_SIZE, Piece, SECTOR_SIZE, SectorRange};
pub use checksum::{RunningChecksums, SectorChecksums, crc32c};
pub use choice::{AuditEvents, FuseIo, IoBackend, S3Checksum, ServeMode, TcpSecurity, TcpZeroCopy};
pub use failure::{Failure, FailureKind};
pub use file::{FileId, FileVersion, FileVersionError, VersionTag};
pub use origin_url::{OriginUrl, OriginUrlError};
pub use path::{FsPath, MAX_NAME_LEN, PathError};
pub use policy::{CachePolicy, MAX_REPLICAS, PolicyTable, Priority};
pub use quantity::{ByteSize, QuantityError, format_duration, parse_duration};
pub use role::{Permission, Role, UnknownRole};
pub use subject::{MAX_SUBJECT_FILES, MAX_SUBJECT_PATH, Subject};
pub use tenure::Tenure;
pub use uploads::{FilePart, PartPage, PendingUpload, UploadMarker, UploadPage, UploadedPart};
