//! A mount that keeps the large file whole on this machine, for the kernel to read by itself.

use std::process::Stdio;

use anyhow::{Context as _, ensure};
use forebay_testkit::MountProcess;
use forebay_types::ByteSize;
use rustix::fs::OFlags;

use crate::counters;
use crate::fixture::Fixture;
use crate::reading::read_to_end;

/// `forebay up` with room for `size` bytes of whole files.
///
/// # Errors
/// When it cannot mount.
pub(crate) fn up(fixture: &Fixture, name: &str, size: u64, more: &[&str]) -> anyhow::Result<MountProcess> {
    let room = ByteSize::bytes((size + size / 4 + (64 << 20)).next_multiple_of(1 << 20));
    let room = format!("client.local.size={room}");
    fixture.up_at(name, &[&["-o", room.as_str()][..], more].concat())
}

/// Why the kernel or this process cannot have such files.
///
/// # Errors
/// When the mount does not say.
pub(crate) fn missing(mount: &MountProcess) -> anyhow::Result<Option<String>> {
    let stats = counters::of(mount)?;
    let local = &stats["local"];
    let reason = local["why_off"].as_str().unwrap_or("this build knows nothing of materialised files");
    Ok((local["on"].as_bool() != Some(true)).then(|| reason.to_owned()))
}

/// Makes the mount keep a file, and sees that reads of it do not come to the daemon any more.
///
/// # Errors
/// When it does not keep it, or reads still come.
pub(crate) fn keep(fixture: &Fixture, mount: &MountProcess, key: &str) -> anyhow::Result<()> {
    let file = mount.path().join(key);
    let output = fixture
        .programs
        .command("forebay")?
        .args(["fs", "local", "add", "--json"])
        .arg(&file)
        .stdin(Stdio::null())
        .output()
        .context("cannot run forebay")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`forebay fs local add` failed: {}", said.trim());
    is_passed_through(mount, key)
}

/// Sees that reads of a file do not come to the daemon.
///
/// # Errors
/// When they do.
pub(crate) fn is_passed_through(mount: &MountProcess, key: &str) -> anyhow::Result<()> {
    let served = || counters::count(&counters::of(mount)?, "/fuse/read_bytes");
    let before = served()?;
    let bytes = read_to_end(&mount.path().join(key), OFlags::DIRECT)?;
    // Asking costs reads of `.stats.json`.
    let served = served()? - before;
    ensure!(served < bytes / 2, "the daemon served {served} of the {bytes} bytes of a file that is kept whole");
    Ok(())
}
