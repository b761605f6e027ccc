//! Programs of others: the usual tools, and suites that test file systems.
//!
//! `scripts/setup.sh` installs them; a suite lies in a directory of the user's cache, as that script says.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::{Finished, finish, skipped};

/// The program called `name`, on the path or in the cache; says so when there is none.
#[must_use]
pub fn installed(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(suites());
    let found = directories.map(|directory| directory.join(name)).find(|program| program.is_file());
    if found.is_none() {
        skipped(&format!("no {name} here: `make setup` brings it"));
    }
    found
}

fn suites() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = variable("FOREBAY_CACHE").or_else(|| {
        let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        Some(cache?.join("forebay"))
    });
    Some(cache?.join("suites/bin"))
}

/// Runs a script in bash, which ends at the first command that fails, with nothing of this user's settings for the tools in it.
///
/// # Panics
/// When it fails or takes longer than `limit`.
#[track_caller]
pub fn script(text: &str, variables: &[(&str, String)], limit: Duration) -> Finished {
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", &format!("umask 022\n{text}")]);
    bash.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null").env("LC_ALL", "C.UTF-8");
    bash.envs(variables.iter().map(|(name, value)| (name, value)));
    finish(&mut bash, limit).succeeded()
}
