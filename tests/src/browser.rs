//! Pages as a browser shows them.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::{Finished, finish, skipped};

const ENDS_WITHIN: Duration = Duration::from_secs(120);

/// Where a browser is; says so if there is none.
#[must_use]
pub fn browser() -> Option<&'static str> {
    let found = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| {
        let output = Command::new(name).arg("--version").output();
        output.is_ok_and(|output| output.status.success())
    });
    if found.is_none() {
        skipped("no Chromium is installed (apt-get install chromium)");
    }
    found
}

/// The page at `url` as the browser has it after a few seconds, scripts included; nothing but loopback can be reached.
///
/// # Panics
/// When the browser cannot be started, or does not end.
#[must_use]
#[track_caller]
pub fn page(browser: &str, url: &str, profile: &Path, arguments: &[&str]) -> Finished {
    let mut command = Command::new(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]);
    command.args(["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--virtual-time-budget=8000"]);
    command.arg(format!("--user-data-dir={}", profile.display())).args(arguments).arg(url);
    finish(&mut command, ENDS_WITHIN)
}
