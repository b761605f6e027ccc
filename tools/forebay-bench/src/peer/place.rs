//! Where a file system of others finds the bucket, and what it may use: a mountpoint, a log, a cache.

use std::path::{Path, PathBuf};

use forebay_testkit::S3Process;

use crate::fixture::Fixture;

/// Where a file system is started.
pub(crate) struct Place<'a> {
    pub(crate) fixture: &'a Fixture,
    /// What the file system is called: for mountpoints, caches and logs of this one alone.
    name: &'static str,
}

impl<'a> Place<'a> {
    pub(crate) fn new(fixture: &'a Fixture, name: &'static str) -> Self {
        Self { fixture, name }
    }

    pub(super) fn server(&self) -> &S3Process {
        &self.fixture.server
    }

    pub(super) fn mountpoint(&self) -> PathBuf {
        self.fixture.mountpoint(&format!("peer-{}", self.name))
    }

    pub(super) fn log(&self) -> PathBuf {
        self.mountpoint().with_extension("log")
    }

    /// What stays from one start to the next.
    pub(super) fn state(&self) -> PathBuf {
        self.fixture.tmpfs().join(self.name)
    }

    pub(super) fn cache(&self) -> PathBuf {
        self.fixture.tmpfs().join(format!("{}-cache", self.name))
    }

    /// An empty directory on tmpfs for the cache.
    pub(super) fn empty_cache(&self) -> anyhow::Result<PathBuf> {
        let cache = self.cache();
        remove_if_there(&cache)?;
        std::fs::create_dir_all(&cache)?;
        Ok(cache)
    }
}

pub(super) fn remove_if_there(directory: &Path) -> anyhow::Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}
