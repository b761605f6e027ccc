//! A tmpfs in huge pages, mounted for a measurement: what memory gives to a program that reads it as files.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

/// Bytes in a write: whole huge pages.
const WRITE: usize = 4 << 20;

/// The mount; it goes when this is dropped.
pub(crate) struct HugeTmpfs {
    path: PathBuf,
}

impl HugeTmpfs {
    /// Mounts one of `size` bytes at `path`. Only root may.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn mount(path: &Path, size: u64) -> anyhow::Result<Self> {
        std::fs::create_dir_all(path)?;
        let options = format!("huge=always,mode=0700,size={size}");
        let output = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "forebay-bench"]).arg(path).output();
        let output = output.context("cannot run mount")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cannot mount a tmpfs with huge pages: {}", said.trim());
        Ok(Self { path: path.to_owned() })
    }

    /// Copies a file into it.
    ///
    /// # Errors
    /// When there is no room.
    pub(crate) fn take(&self, file: &Path) -> anyhow::Result<PathBuf> {
        let to = self.path.join(file.file_name().unwrap_or_default());
        copy(file, &to).with_context(|| format!("cannot copy {}", file.display()))?;
        Ok(to)
    }
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    let (mut from, mut to, mut buffer) = (File::open(from)?, File::create(to)?, vec![0; WRITE]);
    loop {
        // A read of a regular file is short only at its end.
        let count = from.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..count])?;
    }
}

impl Drop for HugeTmpfs {
    fn drop(&mut self) {
        // Nothing of it is open unless a measurement failed; then it goes with its last user.
        if let Err(error) = Command::new("umount").arg("--lazy").arg(&self.path).status() {
            eprintln!("cannot unmount {}: {error}", self.path.display());
        }
    }
}
