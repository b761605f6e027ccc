//! File systems of others on the same bucket, started as a sensible operator would and ended on every way out.
//!
//! [`Peer`] is one of them: `ours.rs` too, so that all are measured by the same lines. Their caches lie on tmpfs, which is as good as
//! a disk with all of it in the page cache gets, and stays when the page cache is dropped. What is not installed is left out;
//! `scripts/peers.sh` installs what it can.

mod foreign;
mod geesefs;
mod juicefs;
mod ours;
mod rclone;
mod s3fs;

use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_testkit::{MountProcess, S3Process};

use crate::fixture::Fixture;
use crate::process::cpu_seconds_of;
use foreign::Foreign;

/// A file system that caches a bucket.
pub(crate) trait Peer {
    /// What it is called.
    fn name(&self) -> &'static str;

    /// Its version; nothing where it is not installed.
    fn version(&self) -> Option<String>;

    /// What it is started with, beside where the bucket and the cache are.
    fn settings(&self) -> &'static str;

    /// What must be done once, before it is first started: most read the objects of a bucket as they are.
    ///
    /// # Errors
    /// When that fails.
    fn prepare(&self, _place: &Place<'_>, _keys: &[String]) -> anyhow::Result<()> {
        Ok(())
    }

    /// Mounts the bucket with an empty cache.
    ///
    /// # Errors
    /// When it does not.
    fn start(&self, place: &Place<'_>) -> anyhow::Result<Mounted>;

    /// Takes away what it has left, when it is not mounted any more.
    ///
    /// # Errors
    /// When something cannot be removed.
    fn clean(&self, place: &Place<'_>) -> anyhow::Result<()> {
        remove_if_there(&place.cache())
    }
}

fn remove_if_there(directory: &Path) -> anyhow::Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

pub(crate) use ours::Ours;

/// Everything that is compared, Forebay first. Only what is installed.
pub(crate) fn installed(ours: &[Ours]) -> Vec<Box<dyn Peer>> {
    let mut all: Vec<Box<dyn Peer>> = ours.iter().map(|ours| Box::new(*ours) as Box<dyn Peer>).collect();
    all.extend([
        Box::new(geesefs::Geesefs) as Box<dyn Peer>,
        Box::new(s3fs::S3fs),
        Box::new(juicefs::JuiceFs),
        Box::new(rclone::Rclone),
    ]);
    all.retain(|peer| peer.version().is_some());
    all
}

/// Where a file system is started.
pub(crate) struct Place<'a> {
    pub(crate) fixture: &'a Fixture,
    /// For mountpoints, caches and logs of this one alone.
    name: &'static str,
}

impl<'a> Place<'a> {
    pub(crate) fn new(fixture: &'a Fixture, peer: &dyn Peer) -> Self {
        Self { fixture, name: peer.name() }
    }

    fn server(&self) -> &S3Process {
        &self.fixture.server
    }

    fn mountpoint(&self) -> PathBuf {
        self.fixture.mountpoint(&format!("peer-{}", self.name))
    }

    fn log(&self) -> PathBuf {
        self.mountpoint().with_extension("log")
    }

    /// What stays from one start to the next.
    fn state(&self) -> PathBuf {
        self.fixture.tmpfs().join(self.name)
    }

    fn cache(&self) -> PathBuf {
        self.fixture.tmpfs().join(format!("{}-cache", self.name))
    }

    /// An empty directory on tmpfs for the cache.
    fn empty_cache(&self) -> anyhow::Result<PathBuf> {
        let cache = self.cache();
        remove_if_there(&cache)?;
        std::fs::create_dir_all(&cache)?;
        Ok(cache)
    }
}

/// A file system that is mounted; it ends when this is dropped.
pub(crate) struct Mounted {
    path: PathBuf,
    pids: Vec<u32>,
    daemon: Daemon,
}

enum Daemon {
    Ours(MountProcess),
    Foreign(Foreign),
}

impl Mounted {
    /// Where the bucket is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The processes that serve it.
    pub(crate) fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// What they have used so far, in seconds of processor time.
    ///
    /// # Errors
    /// When one of them has ended.
    pub(crate) fn cpu(&self) -> anyhow::Result<f64> {
        cpu_seconds_of(&self.pids)
    }

    /// Ends it, and says so where it cannot.
    ///
    /// # Errors
    /// When it is in use.
    pub(crate) fn end(self) -> anyhow::Result<()> {
        match self.daemon {
            Daemon::Ours(mount) => mount.unmount(),
            Daemon::Foreign(foreign) => foreign.unmount(),
        }
    }
}

/// A program of others: from the directory that `scripts/peers.sh` installs into, or from `PATH`.
fn program(name: &str) -> PathBuf {
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
fn version(name: &str, argument: &str, with: &str) -> Option<String> {
    let output = Command::new(program(name)).arg(argument).output().ok()?;
    // geesefs says it on standard error.
    let text = format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    text.lines().find(|line| line.contains(with)).map(|line| line.trim().to_owned())
}
