//! systemd's units of Forebay. Only systemd knows how often it started one again, and what it keeps of it.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use forebay_doctor::facts::{Unit, Units};
use tokio::process::Command;
use tokio::time::timeout;

/// It is there where systemd is process 1: see sd_booted(3).
const BOOTED: &str = "/run/systemd/system";
/// How long systemctl may take: it waits for a systemd that is busy, or that does not answer any more.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// Asks systemd for the units whose names begin with `forebay`, those that it has in memory: they run, or failed, or are to run.
pub(super) async fn ask() -> Units {
    if !Path::new(BOOTED).is_dir() {
        return Units::skipped("systemd does not run here".to_owned());
    }
    show().await.map_or_else(Units::skipped, |told| Units::of(&told))
}

/// What systemctl printed; `Err`: why nothing.
async fn show() -> Result<String, String> {
    let mut command = Command::new("systemctl");
    command.args(["show", "--no-pager", "forebay*.service"]).arg(format!("--property={}", Unit::PROPERTIES.join(",")));
    // One that has not answered is ended with the wait for it.
    command.env("LC_ALL", "C").stdin(Stdio::null()).kill_on_drop(true);
    let answer = timeout(ANSWERS_WITHIN, command.output()).await;
    let answer = answer.map_err(|_| format!("systemctl gave no answer within {} s", ANSWERS_WITHIN.as_secs()))?;
    let output = answer.map_err(|error| format!("systemctl cannot be run: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let first = said.lines().next().unwrap_or("it said nothing");
        return Err(format!("systemctl failed ({}): {first}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
