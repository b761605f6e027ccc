//! Where the bytes came from, as the cache counts them.

use anyhow::Context as _;
use forebay_testkit::MountProcess;

/// Bytes, by where they came from.
#[derive(Clone, Copy)]
pub(crate) struct Counters {
    pub(crate) memory: u64,
    pub(crate) disk: u64,
    pub(crate) origin: u64,
}

impl Counters {
    /// What the cache has counted so far.
    pub(crate) fn of(mount: &MountProcess) -> anyhow::Result<Self> {
        let stats = mount.stats()?;
        let bytes = |pointer: &str| {
            let value = stats.pointer(pointer).and_then(serde_json::Value::as_u64);
            value.with_context(|| format!("`forebay stats --all --json` has no {pointer}"))
        };
        Ok(Self {
            memory: bytes("/worker/bytes_memory")?,
            disk: bytes("/worker/bytes_disk")?,
            origin: bytes("/origins/0/counts/bytes")?,
        })
    }

    pub(crate) fn since(self, before: &Self) -> Self {
        Self { memory: self.memory - before.memory, disk: self.disk - before.disk, origin: self.origin - before.origin }
    }
}
