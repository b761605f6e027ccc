//! What a [`FakeOrigin`](super::FakeOrigin) holds: objects and directories, uploads under way, faults that are programmed,
//! and counts of what it was asked. Plain data under one lock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_types::{Attr, Failure, FileVersion, VersionTag};

use crate::names::is_posix_name;

/// What is under the lock.
pub(super) struct FakeOriginState {
    pub(super) url: Arc<str>,
    pub(super) objects: BTreeMap<Vec<u8>, Object>,
    pub(super) directories: BTreeSet<Vec<u8>>,
    pub(super) generation: u64,
    pub(super) delay: Duration,
    pub(super) faults: VecDeque<Fault>,
    pub(super) counts: FakeCounts,
    pub(super) reads: Vec<(Vec<u8>, Range<u64>)>,
    pub(super) uploads: BTreeMap<String, Upload>,
    pub(super) completed: BTreeMap<String, Attr>,
}

pub(super) struct Object {
    pub(super) bytes: Bytes,
    pub(super) generation: u64,
}

pub(super) struct Fault {
    pub(super) operations: Operations,
    /// For a read: how many bytes are delivered before the failure.
    pub(super) after_bytes: usize,
    pub(super) failure: Failure,
}

/// Which operations a fault is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Operations {
    Any,
    Reads,
    Changes,
}

/// An upload under way.
pub(super) struct Upload {
    pub(super) path: Vec<u8>,
    /// By number: the tag and the bytes.
    pub(super) parts: BTreeMap<u32, (String, Bytes)>,
}

/// What a [`FakeOrigin`](super::FakeOrigin) was asked so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FakeCounts {
    /// Calls of [`Origin::read`](crate::Origin::read), failed ones included.
    pub gets: u64,
    /// Bytes that successful reads delivered.
    pub bytes: u64,
    /// Calls of [`Origin::list`](crate::Origin::list), [`Origin::list_parts`](crate::Origin::list_parts) and
    /// [`Origin::list_uploads`](crate::Origin::list_uploads).
    pub lists: u64,
    /// Calls of [`Origin::stat`](crate::Origin::stat).
    pub stats: u64,
    /// Calls of [`Origin::put`](crate::Origin::put).
    pub puts: u64,
    /// Calls of [`Origin::begin_upload`](crate::Origin::begin_upload).
    pub begins: u64,
    /// Calls of [`Origin::upload_part`](crate::Origin::upload_part).
    pub parts: u64,
    /// Calls of [`Origin::complete_upload`](crate::Origin::complete_upload).
    pub completes: u64,
    /// Calls of [`Origin::abort_upload`](crate::Origin::abort_upload).
    pub aborts: u64,
    /// Calls of [`Origin::copy`](crate::Origin::copy).
    pub copies: u64,
    /// Calls of [`Origin::remove`](crate::Origin::remove).
    pub removes: u64,
    /// Calls of [`Origin::make_directory`](crate::Origin::make_directory) and
    /// [`Origin::remove_directory`](crate::Origin::remove_directory).
    pub directories: u64,
    /// Bytes that successful puts and parts brought.
    pub uploaded: u64,
}

impl FakeOriginState {
    pub(super) fn new(url: Arc<str>) -> Self {
        Self {
            url,
            objects: BTreeMap::new(),
            directories: BTreeSet::new(),
            generation: 0,
            delay: Duration::ZERO,
            faults: VecDeque::new(),
            counts: FakeCounts::default(),
            reads: Vec::new(),
            uploads: BTreeMap::new(),
            completed: BTreeMap::new(),
        }
    }

    pub(super) fn version_of(&self, path: &[u8], object: &Object) -> FileVersion {
        FileVersion {
            origin: Arc::clone(&self.url),
            path: path.into(),
            size: object.bytes.len() as u64,
            tag: VersionTag::Etag(format!("\"{}\"", object.generation).into()),
        }
    }

    pub(super) fn attr_of(&self, path: &[u8], object: &Object) -> Attr {
        let modified_nanos = object.generation as i64 * 1_000_000_000;
        Attr { modified_nanos, ..Attr::file(self.version_of(path, object)) }
    }

    pub(super) fn store(&mut self, path: &[u8], bytes: Bytes) {
        self.generation += 1;
        self.objects.insert(path.to_vec(), Object { bytes, generation: self.generation });
    }

    pub(super) fn is_directory(&self, path: &[u8]) -> bool {
        path.is_empty() || self.directories.contains(path) || {
            let prefix = [path, b"/"].concat();
            self.paths().any(|known| known.starts_with(&prefix))
        }
    }

    /// The names directly in the directory whose paths start with `prefix`.
    pub(super) fn names(&self, prefix: &[u8]) -> BTreeSet<Vec<u8>> {
        self.paths()
            .filter_map(|path| path.strip_prefix(prefix)?.split(|byte| *byte == b'/').next())
            .filter(|name| is_posix_name(name))
            .map(<[u8]>::to_vec)
            .collect()
    }

    fn paths(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.objects.keys().chain(&self.directories)
    }
}
