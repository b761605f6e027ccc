//! What a mount says of itself, in `.stats.json`.

use anyhow::Context as _;
use forebay_testkit::MountProcess;
use serde_json::Value;

/// All of it.
///
/// # Errors
/// When the mount does not answer.
pub(crate) fn of(mount: &MountProcess) -> anyhow::Result<Value> {
    let path = mount.path().join(".stats.json");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("what {} holds", path.display()))
}

/// A counter by its JSON pointer.
///
/// # Errors
/// When there is none.
pub(crate) fn count(stats: &Value, pointer: &str) -> anyhow::Result<u64> {
    stats.pointer(pointer).and_then(Value::as_u64).with_context(|| format!("`.stats.json` has no {pointer}"))
}
