//! Small and unwilling disks.

use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags};
use tempfile::TempDir;

/// Whether this process may mount file systems.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A file system of a few megabytes. It goes away when it is dropped.
#[derive(Debug)]
pub struct Tmpfs {
    directory: TempDir,
}

impl Tmpfs {
    /// A file system of `size`, as in `16m`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn new(size: &str) -> std::io::Result<Self> {
        let tmpfs = Self { directory: tempfile::tempdir()? };
        let options = std::ffi::CString::new(format!("size={size}"))?;
        rustix::mount::mount("forebay-e2e", tmpfs.path(), "tmpfs", MountFlags::empty(), Some(options.as_c_str()))?;
        Ok(tmpfs)
    }

    /// Makes it read-only.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn protect(&self) -> std::io::Result<()> {
        Ok(rustix::mount::mount_remount(self.path(), MountFlags::RDONLY, "")?)
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.directory.path().to_owned()
    }

    /// Fills all of it that is free.
    ///
    /// # Panics
    /// When it fails for another reason than that it is full.
    pub fn fill(&self) {
        let mut file = std::fs::File::create(self.path().join("filler")).expect("a file to fill the disk with");
        let error = std::io::copy(&mut std::io::repeat(1), &mut file).expect_err("a disk without an end");
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let path: &Path = self.directory.path();
        // When mounting failed there is nothing to unmount.
        let _ = rustix::mount::unmount(path, UnmountFlags::DETACH);
    }
}
