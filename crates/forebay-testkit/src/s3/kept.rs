//! What S3 keeps of an object and a file system does not: the number of parts that it was uploaded in, with which its
//! entity tag ends, how long each was, the client's own metadata, and whether a client put a directory's marker.
//!
//! It is kept in an extended attribute of the very file, so it goes where the file goes and ends with it. A file's says which
//! entity tag it belongs to: what a test wrote over an object in place has nothing kept. Where the file system has no
//! extended attributes, nothing is kept: tags end without the number, and a directory goes with its last object.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::path::Path;

use rustix::fs::XattrFlags;
use serde_json::{Value, json};

use super::entity_tag::entity_tag;

const OBJECT: &str = "user.forebay.s3";
const MARKER: &str = "user.forebay.s3-marker";
/// S3 allows 2 KiB of metadata.
const LONGEST: usize = 4 << 10;
/// Of objects with more parts it is not kept how long each was: an attribute has not the room for ten thousand.
const MAX_SIZES: usize = 64;

/// What is kept of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    /// The parts that it was uploaded in; `None` for one that came in one piece.
    pub(super) parts: Option<usize>,
    /// How many bytes each of them has; of many parts, nothing.
    pub(super) sizes: Vec<u64>,
    /// `x-amz-meta-…`.
    pub(super) metadata: BTreeMap<String, String>,
}

impl Kept {
    /// What is kept of an open file.
    pub(super) fn of_file(file: &File, metadata: &Metadata) -> Self {
        let mut buffer = [0; LONGEST];
        let length = rustix::fs::fgetxattr(file, OBJECT, &mut buffer).unwrap_or(0);
        Self::read(&buffer[..length], metadata)
    }

    /// What is kept of the file at `path`.
    pub(super) fn of_path(path: &Path, metadata: &Metadata) -> Self {
        let mut buffer = [0; LONGEST];
        let length = rustix::fs::getxattr(path, OBJECT, &mut buffer).unwrap_or(0);
        Self::read(&buffer[..length], metadata)
    }

    fn read(bytes: &[u8], metadata: &Metadata) -> Self {
        let value: Value = serde_json::from_slice(bytes).unwrap_or_default();
        if value["tag"] != entity_tag(metadata) {
            return Self::default();
        }
        let pairs = value["metadata"].as_object().into_iter().flatten();
        let sizes = value["sizes"].as_array().into_iter().flatten();
        Self {
            parts: value["parts"].as_u64().and_then(|parts| usize::try_from(parts).ok()),
            sizes: sizes.filter_map(Value::as_u64).collect(),
            metadata: pairs.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect(),
        }
    }

    /// What is kept of one that was made of parts with so many bytes.
    pub(super) fn of_parts(mut sizes: Vec<u64>, metadata: BTreeMap<String, String>) -> Self {
        let parts = Some(sizes.len());
        if sizes.len() > MAX_SIZES {
            sizes.clear();
        }
        Self { parts, sizes, metadata }
    }

    /// Keeps this of an open file, whose time and size must not change any more.
    pub(super) fn write(&self, file: &File) -> std::io::Result<()> {
        if *self == Self::default() {
            return Ok(());
        }
        let (tag, Self { parts, sizes, metadata }) = (entity_tag(&file.metadata()?), self);
        let value = json!({ "tag": tag, "parts": parts, "sizes": sizes, "metadata": metadata });
        ignore_unsupported(rustix::fs::fsetxattr(file, OBJECT, value.to_string().as_bytes(), XattrFlags::empty()))
    }

    /// The entity tag of the object, without quotes.
    pub(super) fn entity_tag(&self, metadata: &Metadata) -> String {
        let tag = entity_tag(metadata);
        self.parts.map_or(tag.clone(), |parts| format!("{tag}-{parts}"))
    }
}

/// Whether a client put the marker of this directory. If so, the directory stays when it is empty.
pub(super) fn has_marker(directory: &Path) -> bool {
    rustix::fs::getxattr(directory, MARKER, &mut [0; 1]).is_ok()
}

pub(super) fn put_marker(directory: &Path) -> std::io::Result<()> {
    ignore_unsupported(rustix::fs::setxattr(directory, MARKER, b"1", XattrFlags::empty()))
}

pub(super) fn remove_marker(directory: &Path) {
    // There may be none.
    let _ = rustix::fs::removexattr(directory, MARKER);
}

fn ignore_unsupported(result: rustix::io::Result<()>) -> std::io::Result<()> {
    match result {
        Err(rustix::io::Errno::OPNOTSUPP) | Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_an_object_ends_when_the_file_is_rewritten() {
        let file = tempfile::tempfile().unwrap();
        let kept = Kept::of_parts(vec![5, 5, 1], [("a".to_owned(), "b".to_owned())].into());
        assert_eq!((kept.parts, kept.sizes.len()), (Some(3), 3));
        assert_eq!(Kept::of_parts(vec![5; 65], BTreeMap::new()), Kept { parts: Some(65), ..Kept::default() });
        kept.write(&file).unwrap();
        let metadata = file.metadata().unwrap();
        let found = Kept::of_file(&file, &metadata);
        if found == Kept::default() {
            return eprintln!("no extended attributes here");
        }
        assert_eq!(found, kept);
        assert_eq!(found.entity_tag(&metadata), format!("{}-3", entity_tag(&metadata)));
        std::io::Write::write_all(&mut &file, b"x").unwrap();
        assert_eq!(Kept::of_file(&file, &file.metadata().unwrap()), Kept::default());
    }
}
