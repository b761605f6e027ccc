//! Origins: the durable stores behind a mount.
//!
//! A worker that misses a range asks the [`Origin`] behind it: one small trait with three verbs, `stat`, `list` and
//! `read`. Its contract is written at the trait, and `conformance` is the one test suite that every implementation
//! runs:
//!
//! * [`ObjectStoreOrigin`]: S3, GCS, Azure and plain http(s), over the `object_store` crate;
//! * [`FileOrigin`]: a directory of this machine;
//! * [`FakeOrigin`]: objects in memory with programmable faults, for tests and simulations.
//!
//! [`open`] picks one by the URL's scheme.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod fake;
mod file;
mod limit;
mod names;
mod object;
mod open;
mod options;
mod retry;
mod stats;

use std::ops::Range;
use std::sync::Arc;

pub use fake::{FakeCounts, FakeOrigin, Stall};
pub use file::FileOrigin;
pub use object::ObjectStoreOrigin;
pub use open::open;
pub use options::{OriginError, OriginOptions, S3Keys, S3Options};
pub use stats::{OriginCounts, OriginOperation};

use forebay_types::{Attr, DirEntry, Failure, FileVersion};

/// A durable store of immutable file versions, seen as a tree of directories and files.
///
/// # Contract
///
/// * **Paths** are relative to the origin, have no leading or trailing slash, and no empty, `.` or `..` name. The empty
///   path is the origin's root, which is always a directory. Anything else is answered `InvalidArgument`.
/// * **Versions.** A file's [`FileVersion`] changes whenever its bytes may have changed, and names this origin
///   ([`Origin::url`]). `read` answers with the bytes of exactly that version or fails with `VersionChanged`: also when
///   the object was deleted. Never a mix of two versions, never a short fill reported as success.
/// * **A directory** is there when it is real, when a marker object (`dir/`, no bytes) names it, or when any key lies
///   below it. Where both the file `a` and the directory `a` exist (possible in object stores only), the directory
///   shadows the file, in `stat` and in `list`, as in mountpoint-s3: everything below stays reachable.
/// * **Names** that no POSIX file name can express (empty, `.`, `..`, longer than 255 bytes, with a NUL) are left out
///   of listings.
/// * **Failures** name the URL and, where a person can act, the remedy. `NotFound`: no such name.
///   `NotADirectory`: `list` of a file. `VersionChanged`, `PermissionDenied`, `InvalidArgument`, `NameTooLong` as
///   their names say. `Unavailable` and `TimedOut` come only after the implementation's own retries.
/// * **Cancellation.** Dropping a future gives up the operation; bytes may have been written into `into`, and nothing
///   is written after the drop returns.
/// * Every operation ends within the implementation's configured deadline.
#[async_trait::async_trait]
pub trait Origin: Send + Sync + 'static {
    /// The URL this origin was opened with, normalised (no trailing slash): [`FileVersion::origin`] is this.
    fn url(&self) -> &Arc<str>;

    /// Attributes of `path`: a file, or a directory (real or implied by keys below it).
    ///
    /// # Errors
    /// `NotFound` when there is no such name; see the trait's contract for the rest.
    async fn stat(&self, path: &[u8]) -> Result<Attr, Failure>;

    /// One page of the directory `path`, in any fixed order: at most `max` entries (at least one is allowed for; the
    /// page may be smaller, even empty, and more may follow), continuing at `token`, which is what the page before
    /// returned as [`ListPage::next`].
    ///
    /// A name appears once in all pages of one listing of an unchanging directory.
    ///
    /// # Errors
    /// `NotFound` when nothing has that name, `NotADirectory` when it is a file, `InvalidArgument` for a token that
    /// this origin did not give; see the trait's contract for the rest.
    async fn list(&self, path: &[u8], token: Option<&str>, max: usize) -> Result<ListPage, Failure>;

    /// Reads exactly `range` of exactly this version into `into`.
    ///
    /// `range` is not empty and lies within the version's size, and `into` is as long as `range`.
    ///
    /// # Errors
    /// `VersionChanged` when the object is no longer this version or is gone; `InvalidArgument` when range, buffer and
    /// version do not fit together or the version is another origin's; see the trait's contract for the rest. What
    /// `into` holds after a failure is unspecified.
    async fn read(&self, version: &FileVersion, range: Range<u64>, into: &mut [u8]) -> Result<(), Failure>;

    /// What this origin has counted since it was opened.
    fn counts(&self) -> OriginCounts;
}

/// One page of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// The entries of this page.
    pub entries: Vec<DirEntry>,
    /// The token of the page that follows; `None` on the last page.
    pub next: Option<String>,
}
