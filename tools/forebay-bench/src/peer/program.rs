//! The programs of others: where they are, and which version they are of.

use std::path::PathBuf;
use std::process::Command;

/// A program of others: from the directory that `scripts/peers.sh` installs into, or from `PATH`.
pub(super) fn program(name: &str) -> PathBuf {
    let own = peers_directory().map(|directory| directory.join("bin").join(name)).filter(|path| path.exists());
    own.unwrap_or_else(|| PathBuf::from(name))
}

/// Where `scripts/peers.sh` installs.
pub(crate) fn peers_directory() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = variable("FOREBAY_CACHE").or_else(|| Some(variable("XDG_CACHE_HOME")?.join("forebay")));
    Some(cache.or_else(|| Some(variable("HOME")?.join(".cache/forebay")))?.join("peers"))
}

/// The line of what a program says of its version that has `with` in it.
pub(super) fn version(name: &str, argument: &str, with: &str) -> Option<String> {
    let output = Command::new(program(name)).arg(argument).output().ok()?;
    // geesefs says it on standard error.
    let text = format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    text.lines().find(|line| line.contains(with)).map(|line| line.trim().to_owned())
}
