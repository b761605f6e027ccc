//! How values of other crates are written: what is read is checked as it is read, so a state holds no path that is none.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use forebay_types::{Attr, DirEntry, FileKind, FileVersion, FileVersionError, FsPath};

/// A path of the namespace.
pub(crate) mod path {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(path: &FsPath, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(path.as_bytes())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<FsPath, D::Error> {
        FsPath::new(<&[u8]>::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// A version of a file, as it goes over the network.
pub(crate) mod version {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(version: &FileVersion, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&version.encode())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<FileVersion, D::Error> {
        FileVersion::decode(<&[u8]>::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// Attributes.
pub(crate) mod attr {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(attr: &Attr, serializer: S) -> Result<S::Ok, S::Error> {
        Written::of(attr).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Attr, D::Error> {
        Written::deserialize(deserializer)?.read().map_err(D::Error::custom)
    }
}

/// Entries of a directory.
pub(crate) mod entries {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(entries: &[DirEntry], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(entries.iter().map(|entry| (&entry.name, Written::of(&entry.attr))))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<DirEntry>, D::Error> {
        let written = Vec::<(Box<[u8]>, Written)>::deserialize(deserializer)?;
        let read = |(name, attr): (Box<[u8]>, Written)| attr.read().map(|attr| DirEntry { name, attr });
        written.into_iter().map(read).collect::<Result<_, FileVersionError>>().map_err(D::Error::custom)
    }
}

/// Attributes as they are written.
#[derive(Serialize, Deserialize)]
struct Written {
    version: Option<Vec<u8>>,
    modified_nanos: i64,
    replicas: u8,
    writable: bool,
}

impl Written {
    fn of(attr: &Attr) -> Self {
        let Attr { modified_nanos, replicas, writable, .. } = *attr;
        Self { version: attr.version().map(FileVersion::encode), modified_nanos, replicas, writable }
    }

    fn read(self) -> Result<Attr, FileVersionError> {
        let Self { version, modified_nanos, replicas, writable } = self;
        let kind = match version {
            None => FileKind::Directory,
            Some(version) => FileKind::File(FileVersion::decode(&version)?),
        };
        Ok(Attr { kind, modified_nanos, replicas, writable })
    }
}
