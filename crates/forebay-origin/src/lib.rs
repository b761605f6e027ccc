//! Origins: the durable stores behind a mount.
//!
//! A worker that misses a range asks the [`Origin`] behind it: one trait with three verbs for reading, `stat`, `list` and
//! `read`, and those that change it, which not every origin takes. Its contract is written at the trait, and
//! `conformance` is the one test suite that every implementation runs:
//!
//! * [`ObjectStoreOrigin`]: S3, GCS, Azure and plain http(s), over the `object_store` crate;
//! * [`FileOrigin`]: a directory of this machine;
//! * [`FakeOrigin`]: objects in memory with programmable faults, for tests and simulations.
//!
//! [`open`] picks one by the URL's scheme.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod fake;
mod file;
mod limit;
mod names;
mod object;
mod open;
mod options;
mod pending;
mod retry;
mod stats;

use std::ops::Range;
use std::sync::Arc;

pub use fake::{FakeCounts, FakeOrigin, Stall};
pub use file::FileOrigin;
pub use forebay_types::S3Checksum;
pub use object::ObjectStoreOrigin;
#[cfg(feature = "fuzzing")]
pub use object::fuzzing;
pub use open::open;
pub use options::{ChosenBy, OriginError, OriginOptions, S3Keys, S3Options};
pub use stats::{OriginCounts, OriginOperation};

use bytes::Bytes;
use forebay_types::{
    Attr, DirEntry, Failure, FailureKind, FilePart, FileVersion, PartPage, SectorChecksums, UploadMarker, UploadPage,
};

/// How much room the file system of an origin has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Room {
    /// Bytes that may still be written.
    pub free: u64,
    /// Bytes in all.
    pub total: u64,
    /// Whether it is memory: what is read there is as fast as what is cached.
    pub in_memory: bool,
}

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
/// * Every operation ends within the implementation's configured deadline; changes get more time the more bytes they move.
/// * **Changes.** An origin that [`Origin::takes_changes`] has the verbs below it; the others answer `ReadOnly` to
///   each. A file appears, or is replaced, whole and at once, and never in part: readers see the version before or the
///   version after. What a change answers is what the origin has from then on, so a `stat` right after it says the
///   same, unless another writer has changed it since. Names that the origin cannot hold are `InvalidArgument`, files
///   beyond its limits `TooLarge`, a full origin is `NoSpace`. Nothing here checks for races between writers: the last
///   one wins, with one whole version. Directories above a new name need not be there: they are implied, or made where
///   they are real. A change that is given up, or fails with `TimedOut` or `Unavailable`, may have been made, or be
///   made yet; every verb may be asked again then, where `Exists` and `NotFound`, of directories, may mean that it was.
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

    /// The same, and the CRC32C of each [`SECTOR_SIZE`](forebay_types::SECTOR_SIZE) bytes of what was read, which an implementation may
    /// compute as the bytes come in.
    ///
    /// # Errors
    /// As for [`Origin::read`].
    async fn read_checksummed(
        &self,
        version: &FileVersion,
        range: Range<u64>,
        into: &mut [u8],
    ) -> Result<SectorChecksums, Failure> {
        self.read(version, range, into).await?;
        Ok(SectorChecksums::of(into))
    }

    /// Where part `number`, counted from 1, of a file of this version lies that was uploaded in several parts; `None` if it has
    /// not as many. Who uploads it decides how long its parts are, and only the origin knows afterwards.
    ///
    /// # Errors
    /// As for [`Origin::read`], and `Unsupported` by an origin that does not tell.
    async fn part(&self, version: &FileVersion, _number: u32) -> Result<Option<FilePart>, Failure> {
        let place = names::shown(self.url(), &version.path);
        let message = format!("{place}: this kind of origin does not tell where the parts of a file begin");
        Err(Failure::new(FailureKind::Unsupported, message))
    }

    /// Whether this is the origin, and not what stands for one that cannot be opened, and only fails.
    fn is_open(&self) -> bool {
        true
    }

    /// Whether this origin can be written.
    fn takes_changes(&self) -> bool {
        false
    }

    /// How much room there is, where that can be known: an object store does not say.
    async fn room(&self) -> Option<Room> {
        None
    }

    /// Makes `path` a file of these bytes.
    ///
    /// # Errors
    /// `IsADirectory` where there is one; see the trait's contract for the rest.
    async fn put(&self, path: &[u8], _bytes: Bytes) -> Result<Attr, Failure> {
        Err(read_only(self.url(), path))
    }

    /// Makes `path` a file of these bytes where there is nothing of that name: of several who do so at once, one does. Where an
    /// answer was lost, a file that is told to be there may be this one if the origin keeps no metadata with it.
    ///
    /// # Errors
    /// `Exists` where there is something, `IsADirectory` where that is a directory, `Unsupported` by an origin that cannot promise
    /// it; see the trait's contract for the rest.
    async fn create(&self, path: &[u8], _bytes: Bytes) -> Result<Attr, Failure> {
        let message = format!(
            "{}: this kind of origin cannot make files only where there is none",
            names::shown(self.url(), path)
        );
        Err(Failure::new(FailureKind::Unsupported, message))
    }

    /// Begins the upload of `path` in parts; the answer names the upload. Nothing of it can be seen before it is complete.
    ///
    /// # Errors
    /// See the trait's contract.
    async fn begin_upload(&self, path: &[u8]) -> Result<String, Failure> {
        Err(read_only(self.url(), path))
    }

    /// Takes part `number`, from 1 to 10,000, of an upload; the answer is its tag. All parts but the last have at least 5 MiB. A
    /// part that is sent again replaces the one before.
    ///
    /// # Errors
    /// `NotFound` when there is no such upload (any more); see the trait's contract for the rest.
    async fn upload_part(&self, path: &[u8], _upload: &str, _number: u32, _bytes: Bytes) -> Result<String, Failure> {
        Err(read_only(self.url(), path))
    }

    /// Makes `path` a file of `size` bytes from the parts with these tags, the first part's first. Asked again after an answer
    /// was lost, it answers the same.
    ///
    /// # Errors
    /// As for [`Origin::upload_part`]; `InvalidArgument` for a tag that is not that of the part as it was sent last; `Corrupt`
    /// when the parts do not add up to `size`, and then nothing is changed.
    async fn complete_upload(
        &self,
        path: &[u8],
        _upload: &str,
        _size: u64,
        _parts: &[String],
    ) -> Result<Attr, Failure> {
        Err(read_only(self.url(), path))
    }

    /// Gives an upload up and frees what it holds; no failure when there is none.
    ///
    /// # Errors
    /// See the trait's contract.
    async fn abort_upload(&self, path: &[u8], _upload: &str) -> Result<(), Failure> {
        Err(read_only(self.url(), path))
    }

    /// The parts of an upload with numbers above `after`, at most `max` of them (at least one is allowed for), each as it was
    /// sent last. None of those in between is left out.
    ///
    /// # Errors
    /// `NotFound` when there is no such upload (any more), `Unsupported` by an origin that does not tell; see the trait's
    /// contract for the rest.
    async fn list_parts(&self, path: &[u8], _upload: &str, _after: u32, _max: usize) -> Result<PartPage, Failure> {
        Err(untold(self.url(), path))
    }

    /// The uploads under way of files whose paths start with `prefix`, which may end in the middle of a name, at most `max` of
    /// them (at least one is allowed for; there may be fewer, even none, and more may follow): those that were not begun by
    /// this process, too. They come in the order of their paths, after `after`. A name in it may be another one than
    /// [`Origin::begin_upload`] has answered; both mean the upload.
    ///
    /// # Errors
    /// `Unsupported` by an origin that does not tell; see the trait's contract for the rest.
    async fn list_uploads(
        &self,
        prefix: &[u8],
        _after: Option<&UploadMarker>,
        _max: usize,
    ) -> Result<UploadPage, Failure> {
        Err(untold(self.url(), prefix))
    }

    /// Makes `to` a file with the bytes that `from` has now.
    ///
    /// # Errors
    /// `NotFound` when `from` is not a file, `IsADirectory` when `to` is a directory, `InvalidArgument` where both are found to be one
    /// file by two ways; see the trait's contract for the rest.
    async fn copy(&self, from: &[u8], _to: &[u8]) -> Result<Attr, Failure> {
        Err(read_only(self.url(), from))
    }

    /// Removes the file `path`; no failure when it is not there.
    ///
    /// # Errors
    /// `IsADirectory` where that can be told; see the trait's contract for the rest.
    async fn remove(&self, path: &[u8]) -> Result<(), Failure> {
        Err(read_only(self.url(), path))
    }

    /// Makes `path` a directory that is there even with nothing in it.
    ///
    /// # Errors
    /// `Exists` when there is anything of that name; see the trait's contract for the rest.
    async fn make_directory(&self, path: &[u8]) -> Result<Attr, Failure> {
        Err(read_only(self.url(), path))
    }

    /// Removes the directory `path`.
    ///
    /// # Errors
    /// `NotFound`; `NotADirectory` for a file; `NotEmpty` when there is a name in it; see the trait's contract for the rest.
    async fn remove_directory(&self, path: &[u8]) -> Result<(), Failure> {
        Err(read_only(self.url(), path))
    }

    /// What this origin has counted since it was opened.
    fn counts(&self) -> OriginCounts;
}

fn read_only(url: &str, path: &[u8]) -> Failure {
    let message = format!("{}: this kind of origin takes no changes", names::shown(url, path));
    Failure::new(FailureKind::ReadOnly, message)
}

fn untold(url: &str, path: &[u8]) -> Failure {
    let message = format!(
        "{}: this kind of origin does not tell which uploads are under way, nor their parts",
        names::shown(url, path)
    );
    Failure::new(FailureKind::Unsupported, message)
}

/// One page of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// The entries of this page.
    pub entries: Vec<DirEntry>,
    /// The token of the page that follows; `None` on the last page.
    pub next: Option<String>,
}
