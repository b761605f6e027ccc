//! Forebay's vocabulary: the few types that every other crate speaks.
//!
//! Nothing here does I/O. The words are those of the glossary in `ARCHITECTURE.md`:
//!
//! * [`FsPath`]: where a file is in the namespace that a mount shows;
//! * [`FileVersion`]: one immutable state of one object, and [`FileId`], its 128-bit name;
//! * [`BlockKey`]: the unit of placement and transfer, a fixed-size piece of one file version;
//! * [`SectorRange`]: the unit of validity and integrity inside a block;
//! * [`CachePolicy`]: how what lies below a path is cached;
//! * [`Failure`]: what went wrong, in a form that crosses the wire and ends as an `errno`;
//! * [`Role`] and [`Permission`]: what somebody is to the cluster, and what an operation asks of them;
//! * [`Tenure`]: until when something is held, by the holder's clock;
//! * [`IoBackend`], [`ServeMode`], [`FuseIo`], [`TcpSecurity`], [`TcpZeroCopy`], [`AuditEvents`] and [`S3Checksum`]: choices of an operator
//!   that parts carry out;
//! * [`ByteSize`] and [`parse_duration`]: quantities as people write them.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod attr;
mod block;
mod checksum;
mod choice;
mod failure;
mod file;
mod path;
mod policy;
mod quantity;
mod role;
mod tenure;

pub use attr::{Attr, DirEntry, FileKind};
pub use block::{BlockKey, BlockLayout, MAX_BLOCK_SIZE, MAX_SECTORS, MIN_BLOCK_SIZE, Piece, SECTOR_SIZE, SectorRange};
pub use checksum::{SectorChecksums, crc32c};
pub use choice::{AuditEvents, FuseIo, IoBackend, S3Checksum, ServeMode, TcpSecurity, TcpZeroCopy};
pub use failure::{Failure, FailureKind};
pub use file::{FileId, FileVersion, FileVersionError, VersionTag};
pub use path::{FsPath, MAX_NAME_LEN, PathError};
pub use policy::{CachePolicy, MAX_REPLICAS, PolicyTable, Priority};
pub use quantity::{ByteSize, QuantityError, format_duration, parse_duration};
pub use role::{Permission, Role, UnknownRole};
pub use tenure::Tenure;
