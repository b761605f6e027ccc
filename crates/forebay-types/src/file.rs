//! File versions: what a handle is pinned to.
//!
//! An object that is replaced becomes another file version with another [`FileId`], so everything that is cached under
//! the old id stays right for readers of the old version and is never seen by readers of the new one. The id is a hash
//! of the description, so a peer that is told a description can check it, and cannot be made to cache bytes under a
//! name that is not theirs.

use std::fmt;
use std::sync::{Arc, LazyLock};

use blake3::hazmat::{ContextKey, HasherExt as _, hash_derive_key_context};

/// The 128-bit name of a file version: the first half of the BLAKE3 hash of its description.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub [u8; 16]);

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What tells one version of an object from the next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum VersionTag {
    /// The entity tag as the origin gave it, quotes included.
    Etag(Arc<str>),
    /// For origins without entity tags: time of last modification, nanoseconds since 1970, and, where there is one, the inode.
    Modified {
        /// Nanoseconds since 1970.
        nanos: i64,
        /// Inode number; 0 where there is none.
        inode: u64,
    },
}

/// The description of one immutable state of one object. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileVersion {
    /// The origin, as its URL: `s3://bucket/prefix`.
    pub origin: Arc<str>,
    /// The object's path below the origin, no leading slash; any bytes.
    pub path: Arc<[u8]>,
    /// Its length in bytes.
    pub size: u64,
    /// What tells this version from the next.
    pub tag: VersionTag,
}

/// Why the bytes of a description were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileVersionError {
    /// Shorter than its fields, or longer.
    #[error("file version description is truncated or has bytes left over")]
    Length,
    /// Text that is not UTF-8.
    #[error("file version description holds text that is not UTF-8")]
    Text,
    /// A tag kind that this version does not know.
    #[error("file version description has an unknown tag kind {0}")]
    TagKind(u8),
}

/// What ids are hashed with: the hash of what they are for, which is the same for all of them.
static ID_KEY: LazyLock<ContextKey> = LazyLock::new(|| hash_derive_key_context("forebay 2026 file version"));

const TAG_ETAG: u8 = 1;
const TAG_MODIFIED: u8 = 2;

impl FileVersion {
    /// The name of this version.
    #[must_use]
    pub fn id(&self) -> FileId {
        let mut hasher = blake3::Hasher::new_from_context_key(&ID_KEY);
        hasher.update(&self.encode());
        let mut id = [0; 16];
        id.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        FileId(id)
    }

    /// The wire form: little-endian, strings preceded by their 32-bit length.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.origin.len() + self.path.len() + 64);
        let mut put = |bytes: &[u8]| {
            // Names and URLs are far below 4 GiB: an S3 key has at most 1024 bytes.
            out.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
            out.extend_from_slice(bytes);
        };
        put(self.origin.as_bytes());
        put(&self.path);
        out.extend_from_slice(&self.size.to_le_bytes());
        match &self.tag {
            VersionTag::Etag(etag) => {
                out.push(TAG_ETAG);
                out.extend_from_slice(&u32::try_from(etag.len()).unwrap_or(u32::MAX).to_le_bytes());
                out.extend_from_slice(etag.as_bytes());
            }
            VersionTag::Modified { nanos, inode } => {
                out.push(TAG_MODIFIED);
                out.extend_from_slice(&nanos.to_le_bytes());
                out.extend_from_slice(&inode.to_le_bytes());
            }
        }
        out
    }

    /// Reads what [`FileVersion::encode`] wrote.
    ///
    /// # Errors
    /// [`FileVersionError`] for anything else; no input makes it panic.
    pub fn decode(bytes: &[u8]) -> Result<Self, FileVersionError> {
        Self::decode_beside(bytes, None)
    }

    /// The same. All names of a directory are of one origin: that of `beside` is shared, if it is the one.
    ///
    /// # Errors
    /// As for [`FileVersion::decode`].
    pub fn decode_beside(bytes: &[u8], beside: Option<&Self>) -> Result<Self, FileVersionError> {
        let mut rest = bytes;
        let url = take_bytes(&mut rest)?;
        let origin = match beside.filter(|beside| beside.origin.as_bytes() == url) {
            Some(beside) => Arc::clone(&beside.origin),
            None => text(url)?,
        };
        let path = Arc::from(take_bytes(&mut rest)?);
        let size = u64::from_le_bytes(take(&mut rest)?);
        let tag = match take::<1>(&mut rest)? {
            [TAG_ETAG] => VersionTag::Etag(take_text(&mut rest)?),
            [TAG_MODIFIED] => VersionTag::Modified {
                nanos: i64::from_le_bytes(take(&mut rest)?),
                inode: u64::from_le_bytes(take(&mut rest)?),
            },
            [other] => return Err(FileVersionError::TagKind(other)),
        };
        if rest.is_empty() { Ok(Self { origin, path, size, tag }) } else { Err(FileVersionError::Length) }
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], FileVersionError> {
    let (head, tail) = rest.split_first_chunk::<N>().ok_or(FileVersionError::Length)?;
    *rest = tail;
    Ok(*head)
}

fn take_bytes<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], FileVersionError> {
    let length = u32::from_le_bytes(take(rest)?) as usize;
    let (head, tail) = rest.split_at_checked(length).ok_or(FileVersionError::Length)?;
    *rest = tail;
    Ok(head)
}

fn take_text(rest: &mut &[u8]) -> Result<Arc<str>, FileVersionError> {
    text(take_bytes(rest)?)
}

fn text(bytes: &[u8]) -> Result<Arc<str>, FileVersionError> {
    std::str::from_utf8(bytes).map(Arc::from).map_err(|_| FileVersionError::Text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn version() -> impl Strategy<Value = FileVersion> {
        let tag = prop_oneof![
            ".{0,40}".prop_map(|etag| VersionTag::Etag(etag.into())),
            any::<(i64, u64)>().prop_map(|(nanos, inode)| VersionTag::Modified { nanos, inode }),
        ];
        (".{0,40}", prop::collection::vec(any::<u8>(), 0..40), any::<u64>(), tag)
            .prop_map(|(origin, path, size, tag)| FileVersion { origin: origin.into(), path: path.into(), size, tag })
    }

    #[test]
    fn descriptions_of_one_origin_that_are_read_side_by_side_share_its_url() {
        let tag = VersionTag::Modified { nanos: 1, inode: 2 };
        let version = |origin: &str| {
            let path = b"a".as_slice().into();
            FileVersion { origin: origin.into(), path, size: 3, tag: tag.clone() }
        };
        let (first, other) = (version("s3://a"), version("s3://b"));
        let read = |of: &FileVersion| FileVersion::decode_beside(&of.encode(), Some(&first)).unwrap();
        assert_eq!((read(&first), read(&other)), (first.clone(), other.clone()));
        assert!(Arc::ptr_eq(&read(&first).origin, &first.origin));
    }

    proptest! {
        #[test]
        fn a_description_survives_the_wire(version in version()) {
            prop_assert_eq!(FileVersion::decode(&version.encode()), Ok(version));
        }

        #[test]
        fn an_id_is_the_hash_of_the_description_for_its_purpose(version in version()) {
            let hash = blake3::derive_key("forebay 2026 file version", &version.encode());
            prop_assert_eq!(&version.id().0[..], &hash[..16]);
        }

        #[test]
        fn different_descriptions_have_different_ids(a in version(), b in version()) {
            prop_assert_eq!(a == b, a.id() == b.id());
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = FileVersion::decode(&bytes);
        }

        #[test]
        fn a_truncated_description_is_refused(version in version(), cut in 1usize..20) {
            let bytes = version.encode();
            prop_assert!(FileVersion::decode(&bytes[..bytes.len().saturating_sub(cut)]).is_err());
        }
    }
}
