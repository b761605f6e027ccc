//! An inode as the kernel is told of it: its attributes, and for how long it may believe them and the name that leads there.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_types::Attr;

/// An inode as the kernel is told of it.
pub(crate) struct Described {
    pub(crate) ino: u64,
    pub(crate) is_directory: bool,
    pub(crate) size: u64,
    /// 0 for what has no time of modification.
    pub(crate) modified_nanos: i64,
    pub(crate) is_writable: bool,
    /// Whether its name is gone.
    pub(crate) is_removed: bool,
    /// How long the attributes may be believed.
    pub(crate) attr_ttl: Duration,
    /// How long the name may be believed to lead here.
    pub(crate) name_ttl: Duration,
}

impl Described {
    /// As its attributes say, believed for no time.
    pub(crate) fn new(ino: u64, attr: &Attr) -> Self {
        Self {
            ino,
            is_directory: attr.version().is_none(),
            size: attr.size(),
            modified_nanos: attr.modified_nanos,
            is_writable: attr.writable,
            is_removed: false,
            attr_ttl: Duration::ZERO,
            name_ttl: Duration::ZERO,
        }
    }
}

/// What a name leads to.
pub(crate) enum Found {
    /// This, and the kernel holds it once more.
    Inode(Described),
    /// Nothing, which may be believed for so long.
    Nothing(Duration),
}

/// The time that many nanoseconds after 1970, or before it.
pub(crate) fn time(nanos: i64) -> SystemTime {
    let away = Duration::from_nanos(nanos.unsigned_abs());
    if nanos < 0 { UNIX_EPOCH - away } else { UNIX_EPOCH + away }
}

/// The nanoseconds from 1970 to then; none before it.
pub(crate) fn nanos(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
