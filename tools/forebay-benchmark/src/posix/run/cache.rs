//! The cache of a target: filled before warm steps, emptied before cold ones.
//!
//! An implementation that knows the cache does it: for Forebay's own, the program, by jobs of the coordinator. For any other file
//! system there is [`AnyCache`], which knows only what can be done to a file from outside: read it.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::child::{self, ChildError};
use super::error::CacheError;
use super::fio::quoted;
use super::mounts::MountPoint;
use super::room::{Room, Takes};
use super::stop::Stop;
use crate::posix::sizes::DataFile;

/// Files whose cache is to be changed: all there is below a directory.
#[derive(Clone, Debug)]
pub struct CachedFiles {
    /// The directory.
    pub directory: PathBuf,
    /// The files' names in it, and their sizes.
    pub files: Vec<DataFile>,
}

impl CachedFiles {
    /// Where they are.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        self.files.iter().map(|file| self.directory.join(&file.name)).collect()
    }

    /// Bytes in all of them.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

/// How much a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Bytes of files that stay in it, all of them at once.
    pub usable: u64,
    /// Its size.
    pub total: u64,
}

/// What fills and empties a cache. `tell` shows progress.
pub trait Cache {
    /// How it does that, in words: `forebay job load`.
    fn describe(&self) -> String;

    /// Why it cannot be emptied, if it cannot.
    fn cannot_empty(&self) -> Option<String> {
        None
    }

    /// Where bytes go that are written to `directory`, from the reader's end to the origin's: last to first.
    fn rooms(&self, _directory: &Path) -> Vec<Room> {
        Vec::new()
    }

    /// Why what it has not cached is read as fast as what it has, if that is so.
    fn cold_is_memory(&self) -> Option<String> {
        None
    }

    /// How much it holds, where that is known.
    fn capacity(&self) -> Option<Capacity> {
        None
    }

    /// Bytes that it has received from the origin of the files below `directory` so far, where it counts them. Only by how much
    /// that grows means anything.
    fn received(&self, _directory: &Path) -> Option<u64> {
        None
    }

    /// Brings all of the files into the cache.
    ///
    /// # Errors
    /// When they are not all in the cache afterwards, as far as one can know.
    fn warm(&mut self, files: &CachedFiles, stop: &Stop, tell: &mut dyn FnMut(&str)) -> Result<(), CacheError>;

    /// Takes them out of it.
    ///
    /// # Errors
    /// When they are still in the cache afterwards, as far as one can know.
    fn empty(&mut self, files: &CachedFiles, stop: &Stop, tell: &mut dyn FnMut(&str)) -> Result<(), CacheError>;

    /// The files are about to be removed: their room in the cache may be given back, as nothing else would give it
    /// back.
    ///
    /// # Errors
    /// When that fails; the files are removed all the same.
    fn release(&mut self, _files: &CachedFiles, _stop: &Stop) -> Result<(), CacheError> {
        Ok(())
    }

    /// Why what was written below `directory` did not arrive, where that is known: fio hears a number of an error, at most.
    fn not_arrived(&self, _directory: &Path, _stop: &Stop) -> Option<String> {
        None
    }

    /// Removes what was written below `directory`, did not arrive, and is kept for another try. What is left, each with the command
    /// that removes it.
    fn discard(&mut self, _directory: &Path, _stop: &Stop) -> Vec<String> {
        Vec::new()
    }
}

/// Bytes that are read at a time.
const CHUNK: usize = 1 << 20;
/// How long the command that empties a cache may take.
const EMPTY_WITHIN: Duration = Duration::from_secs(600);
/// The variable in which it finds the directory.
pub const DIRECTORY_VARIABLE: &str = "FOREBAY_BENCH_DIRECTORY";

/// The cache of a file system that nothing is known of.
#[derive(Clone, Debug)]
pub struct AnyCache {
    mount: MountPoint,
    empty_by: Option<String>,
    reason: String,
}

impl AnyCache {
    /// Of what is mounted there. `empty_by` is a command for the shell that empties it.
    #[must_use]
    pub fn new(mount: MountPoint, empty_by: Option<String>) -> Self {
        let next = "name the command that does with --cold-command, or measure the warm state only: --states warm";
        let (at, kind) = (mount.at.display(), &mount.kind);
        let reason = format!("nothing is known of how to empty the cache of {at} ({kind}); {next}");
        Self { mount, empty_by, reason }
    }

    /// With another reason why nothing empties it.
    #[must_use]
    pub fn because(self, reason: String) -> Self {
        Self { reason, ..self }
    }

    /// Whether there is nothing but the kernel's page cache, which is dropped before every step in any case.
    fn is_page_cache(&self) -> bool {
        self.empty_by.is_none() && self.mount.is_local()
    }
}

impl Cache for AnyCache {
    fn describe(&self) -> String {
        match &self.empty_by {
            Some(command) => format!("each file is read once; `{command}` empties it"),
            None if self.is_page_cache() => "the page cache, which is dropped before each step".to_owned(),
            None => "each file is read once".to_owned(),
        }
    }

    fn cannot_empty(&self) -> Option<String> {
        if self.mount.is_memory() && self.empty_by.is_none() {
            let (at, kind) = (self.mount.at.display(), &self.mount.kind);
            let next = "measure the warm state only: --states warm";
            return Some(format!("{at} ({kind}) is memory, so that nothing there is ever cold; {next}"));
        }
        (self.empty_by.is_none() && !self.is_page_cache()).then(|| self.reason.clone())
    }

    fn cold_is_memory(&self) -> Option<String> {
        self.mount.is_memory().then(|| format!("{} is a {}", self.mount.at.display(), self.mount.kind))
    }

    fn rooms(&self, directory: &Path) -> Vec<Room> {
        let place = format!("the {} at {}", self.mount.kind, self.mount.at.display());
        let found = rustix::fs::statvfs(directory).ok();
        // File systems of object stores have no blocks to count.
        let free = found.as_ref().filter(|found| found.f_blocks > 0 && found.f_frsize > 0);
        let free = free.map(|found| found.f_bavail.saturating_mul(found.f_frsize));
        vec![Room { place, free, device: device_of(directory), takes: Takes::All }]
    }

    fn warm(&mut self, files: &CachedFiles, stop: &Stop, tell: &mut dyn FnMut(&str)) -> Result<(), CacheError> {
        if self.is_page_cache() {
            return Ok(());
        }
        for (number, path) in files.paths().iter().enumerate() {
            tell(&format!("reading file {} of {}", number + 1, files.files.len()));
            read_once(path, stop)?;
        }
        Ok(())
    }

    fn empty(&mut self, files: &CachedFiles, stop: &Stop, tell: &mut dyn FnMut(&str)) -> Result<(), CacheError> {
        let Some(line) = &self.empty_by else {
            return self.cannot_empty().map_or(Ok(()), |reason| Err(CacheError::Unable(reason)));
        };
        tell(line);
        let mut command = Command::new("sh");
        command.args(["-c", line]).env(DIRECTORY_VARIABLE, &files.directory);
        let failed =
            |reason: String| CacheError::Failed(format!("the command `{line}` failed: {reason}; try it by hand"));
        match child::run(&mut command, EMPTY_WITHIN, stop) {
            Ok(ended) if ended.status.success() => Ok(()),
            Ok(ended) => Err(failed(quoted(&ended))),
            Err(ChildError::Interrupted) => Err(CacheError::Interrupted),
            Err(ChildError::TimedOut) => Err(failed(format!("it did not end within {EMPTY_WITHIN:?}"))),
            Err(ChildError::Start(error)) => Err(failed(error.to_string())),
            Err(ChildError::Stuck(pid)) => Err(failed(format!("its process {pid} does not end"))),
        }
    }
}

/// What tells the file system of a directory from others on this machine.
#[must_use]
pub fn device_of(directory: &Path) -> Option<u64> {
    std::os::unix::fs::MetadataExt::dev(&std::fs::metadata(directory).ok()?).into()
}

fn read_once(path: &Path, stop: &Stop) -> Result<(), CacheError> {
    let read = || -> io::Result<bool> {
        let (mut file, mut chunk) = (File::open(path)?, vec![0; CHUNK]);
        while file.read(&mut chunk)? > 0 {
            if stop.is_asked() {
                return Ok(false);
            }
        }
        Ok(true)
    };
    match read() {
        Ok(true) => Ok(()),
        Ok(false) => Err(CacheError::Interrupted),
        Err(error) => {
            Err(CacheError::Failed(format!("cannot read {}: {error}; look at its mount's log", path.display())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(kind: &str) -> MountPoint {
        MountPoint { at: "/mnt/x".into(), kind: kind.into(), source: "s".into() }
    }

    fn files(directory: &Path) -> CachedFiles {
        let files = ["a", "b"].map(|name| DataFile { name: name.into(), bytes: 10 });
        CachedFiles { directory: directory.to_owned(), files: files.into() }
    }

    #[test]
    fn a_disk_has_no_cache_but_the_page_cache() {
        let mut cache = AnyCache::new(mount("ext4"), None);
        let (files, stop) = (files(Path::new("/none")), Stop::default());
        assert_eq!(cache.cannot_empty(), None);
        cache.empty(&files, &stop, &mut |_| ()).unwrap();
        cache.warm(&files, &stop, &mut |_| ()).unwrap();
        assert!(cache.describe().contains("page cache"));
    }

    #[test]
    fn memory_is_never_cold() {
        for kind in ["tmpfs", "ramfs"] {
            let cache = AnyCache::new(mount(kind), None);
            assert_eq!(cache.cold_is_memory().unwrap(), format!("/mnt/x is a {kind}"));
            let told = cache.cannot_empty().unwrap();
            assert!(told.contains("nothing there is ever cold; measure the warm state only: --states warm"), "{told}");
        }
    }

    #[test]
    fn an_unknown_cache_is_emptied_by_the_command_that_was_named_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let (files, stop) = (files(directory.path()), Stop::default());
        let mut cache = AnyCache::new(mount("fuse.juicefs"), None);
        assert!(cache.cannot_empty().unwrap().contains("--cold-command"));
        assert!(matches!(cache.empty(&files, &stop, &mut |_| ()), Err(CacheError::Unable(_))));
        let mut cache = AnyCache::new(mount("fuse.juicefs"), Some(format!("touch \"${DIRECTORY_VARIABLE}/emptied\"")));
        assert_eq!(cache.cannot_empty(), None);
        cache.empty(&files, &stop, &mut |_| ()).unwrap();
        assert!(directory.path().join("emptied").exists());
        let mut cache = AnyCache::new(mount("ext4"), Some("echo sorry >&2; false".into()));
        let told = cache.empty(&files, &stop, &mut |_| ()).unwrap_err().to_string();
        assert!(told.contains("sorry"), "{told}");
    }

    #[test]
    fn filling_it_reads_every_file() {
        let directory = tempfile::tempdir().unwrap();
        let mut cache = AnyCache::new(mount("nfs4"), None);
        let (files, stop) = (files(directory.path()), Stop::default());
        std::fs::write(directory.path().join("a"), [0; 10]).unwrap();
        assert!(cache.warm(&files, &stop, &mut |_| ()).is_err(), "b is not there");
        std::fs::write(directory.path().join("b"), [0; 10]).unwrap();
        let mut told = Vec::new();
        cache.warm(&files, &stop, &mut |text| told.push(text.to_owned())).unwrap();
        assert_eq!(told, ["reading file 1 of 2", "reading file 2 of 2"]);
        stop.ask();
        assert!(matches!(cache.warm(&files, &stop, &mut |_| ()), Err(CacheError::Interrupted)));
        assert_eq!((files.bytes(), files.paths().len()), (20, 2));
    }
}
