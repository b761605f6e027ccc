//! What every section needs: a bucket with data, a server for it, the same data on tmpfs, and places to mount.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use forebay_memory::{Pool, PoolOptions};
use forebay_testkit::{DataSet, MountProcess, Programs, S3Process};
use forebay_types::ByteSize;
use rustix::fs::OFlags;
use tempfile::TempDir;

use crate::progress::Progress;
use crate::reading::read_to_end;
use crate::settings::Settings;

/// The bucket.
pub(crate) const BUCKET: &str = "forebay-bench";
/// The large file in it.
pub(crate) const LARGE: &str = "large.bin";
/// Bytes of a small file: an image of a training set.
pub(crate) const SMALL_SIZE: u64 = 100 << 10;

/// Has the daemon of a mount answer whatever the page cache does not: nothing is materialised, which files that are read twice are by
/// default.
pub(crate) const BY_DAEMON: [&str; 2] = ["-o", "client.local.size=0"];

/// How long a cache may take to have all of its memory.
const PREWARM_WITHIN: Duration = Duration::from_secs(60);
/// `f_type` of tmpfs, as in `linux/magic.h`.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// The data and the server. Everything is taken away when it is dropped.
pub(crate) struct Fixture {
    pub(crate) settings: Settings,
    pub(crate) programs: Programs,
    pub(crate) server: S3Process,
    /// Whether the kernel lets this process drop the page cache.
    pub(crate) is_root: bool,
    /// Whether tmpfs takes `O_DIRECT`, which it does since Linux 6.6.
    pub(crate) tmpfs_is_direct: bool,
    tmpfs: TempDir,
    work: TempDir,
}

impl Fixture {
    /// Writes the data and starts the server.
    ///
    /// # Errors
    /// When there is no room, `tmpfs` is not one, or a program is missing.
    pub(crate) fn prepare(base: &Path, tmpfs: &Path, settings: Settings, progress: &Progress) -> anyhow::Result<Self> {
        let magic = rustix::fs::statfs(tmpfs).with_context(|| format!("cannot look at {}", tmpfs.display()))?.f_type;
        ensure!(
            u64::try_from(magic).is_ok_and(|magic| magic == TMPFS_MAGIC),
            "{} is not on tmpfs; name a directory that is with --tmpfs",
            tmpfs.display()
        );
        let temporary = |directory: &Path| {
            let made = tempfile::Builder::new().prefix("forebay-bench-").tempdir_in(directory);
            made.with_context(|| format!("cannot make a directory in {}", directory.display()))
        };
        let (work, tmpfs) = (temporary(base)?, temporary(tmpfs)?);
        progress.say(&format!("Writing {} of data", ByteSize::bytes(settings.size)));
        let bucket = work.path().join("s3").join(BUCKET);
        DataSet::new(1).write_file(&bucket.join(LARGE), settings.size)?;
        for number in 0..Self::small_files(settings) {
            DataSet::new(2 + number as u64).write_file(&bucket.join(small(number)), SMALL_SIZE)?;
        }
        let on_tmpfs = tmpfs.path().join(LARGE);
        DataSet::new(1).write_file(&on_tmpfs, settings.size)?;
        let direct = OFlags::RDONLY | OFlags::DIRECT;
        let tmpfs_is_direct = rustix::fs::open(&on_tmpfs, direct, rustix::fs::Mode::empty()).is_ok();
        let programs = Programs::of_this_build()?;
        let server = S3Process::start(&programs, &work.path().join("s3"), BUCKET)?;
        let is_root = rustix::process::geteuid().is_root();
        Ok(Self { settings, programs, server, is_root, tmpfs_is_direct, tmpfs, work })
    }

    /// A server of the same bucket that takes `latency` for each request.
    ///
    /// # Errors
    /// When it does not start.
    pub(crate) fn distant_server(&self, latency: Duration) -> anyhow::Result<S3Process> {
        S3Process::start_distant(&self.programs, &self.work.path().join("s3"), BUCKET, latency)
    }

    fn small_files(settings: Settings) -> usize {
        if settings.quick { 40 } else { 500 }
    }

    /// The keys of the small files.
    pub(crate) fn small_keys(&self) -> Vec<String> {
        (0..Self::small_files(self.settings)).map(small).collect()
    }

    /// The origin's URL.
    pub(crate) fn origin(&self) -> String {
        format!("s3://{BUCKET}")
    }

    /// The directory that the server keeps the bucket in.
    pub(crate) fn bucket(&self) -> PathBuf {
        self.work.path().join("s3").join(BUCKET)
    }

    /// Memory for a cache that holds everything, below the watermark where eviction starts.
    pub(crate) fn memory(&self) -> ByteSize {
        Self::memory_for(self.settings.size)
    }

    /// Memory in which the large file is one that `up` materialises as it comes: no more than half of what it lends to files. What it
    /// has by default is enough for one of 384 MiB.
    pub(crate) fn ample_memory(&self) -> ByteSize {
        ByteSize::bytes((3 * self.settings.size).max(1 << 30))
    }

    /// The same for so many bytes beside the small files.
    pub(crate) fn memory_for(bytes: u64) -> ByteSize {
        ByteSize::bytes((bytes + bytes / 4 + (256 << 20)).next_multiple_of(1 << 20))
    }

    /// Puts another file into the bucket.
    ///
    /// # Errors
    /// When there is no room.
    pub(crate) fn put(&self, key: &str, seed: u64, size: u64) -> anyhow::Result<()> {
        let path = self.bucket().join(key);
        DataSet::new(seed).write_file(&path, size).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Takes files and directories out of the bucket again.
    ///
    /// # Errors
    /// When they are not there.
    pub(crate) fn remove(&self, key: &str) -> anyhow::Result<()> {
        let path = self.bucket().join(key);
        let removed = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        removed.with_context(|| format!("cannot remove {}", path.display()))
    }

    /// Reads the bucket's files, so that a cold read finds them in the page cache behind the server.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub(crate) fn take_bucket_into_page_cache(&self) -> anyhow::Result<()> {
        let mut directories = vec![self.bucket()];
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(&directory)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    directories.push(entry.path());
                } else {
                    read_to_end(&entry.path(), OFlags::empty())?;
                }
            }
        }
        Ok(())
    }

    /// A directory on tmpfs that goes with the fixture.
    pub(crate) fn tmpfs(&self) -> &Path {
        self.tmpfs.path()
    }

    /// The large file on tmpfs.
    pub(crate) fn on_tmpfs(&self) -> PathBuf {
        self.tmpfs.path().join(LARGE)
    }

    /// A place to mount.
    pub(crate) fn mountpoint(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }

    /// `forebay up` of the bucket, with an empty cache that holds all of it. `endpoint` stands in for the server's URL.
    pub(crate) fn up(&self, endpoint: Option<String>) -> anyhow::Result<MountProcess> {
        self.up_with("up", endpoint, &[])
    }

    /// The same at another place, with more options.
    pub(crate) fn up_at(&self, name: &str, more: &[&str]) -> anyhow::Result<MountProcess> {
        self.up_with(name, None, more)
    }

    /// The same with another size of the cache, when it has all its memory, and with more options.
    pub(crate) fn prewarmed_up(
        &self,
        name: &str,
        endpoint: Option<String>,
        memory: ByteSize,
        more: &[&str],
    ) -> anyhow::Result<MountProcess> {
        let mount = self.up_of(name, endpoint, memory, &[&["-o", "worker.memory.prewarm=true"], more].concat())?;
        let deadline = Instant::now() + PREWARM_WITHIN;
        while crate::process::resident(mount.pid()).context("`forebay up` has ended")? < memory.as_u64() {
            anyhow::ensure!(Instant::now() < deadline, "the cache's memory is not there after {PREWARM_WITHIN:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(mount)
    }

    /// The same with another size of the cache.
    pub(crate) fn up_sized(&self, name: &str, memory: ByteSize, more: &[&str]) -> anyhow::Result<MountProcess> {
        self.up_of(name, None, memory, more)
    }

    /// The same as [`Fixture::up`] at another place, with more options.
    pub(crate) fn up_with(&self, name: &str, endpoint: Option<String>, more: &[&str]) -> anyhow::Result<MountProcess> {
        self.up_of(name, endpoint, self.memory(), more)
    }

    fn up_of(
        &self,
        name: &str,
        endpoint: Option<String>,
        memory: ByteSize,
        more: &[&str],
    ) -> anyhow::Result<MountProcess> {
        let memory = memory.to_string();
        let environment = self.server.environment().into_iter().map(|(name, value)| match &endpoint {
            Some(endpoint) if name == "AWS_ENDPOINT_URL" => (name, endpoint.clone()),
            _ => (name, value),
        });
        let arguments = ["--memory", memory.as_str()].into_iter().chain(more.iter().copied());
        MountProcess::up(&self.programs, &self.origin(), &self.mountpoint(name), arguments, environment)
    }

    /// Takes so much memory, in huge pages where the kernel has them and as much in small ones, and gives it back. A virtual machine gives
    /// memory that is free for a while to its host, and a page that has to come from there takes many times as long: whoever takes memory
    /// first would pay for all that do so later. The kernel serves huge pages from other free memory than small ones.
    pub(crate) fn back_memory(bytes: u64) -> anyhow::Result<()> {
        let huge = Pool::new(PoolOptions::fixed(ByteSize::bytes(bytes)))?;
        huge.warm_up(huge.capacity(), || true)?;
        let mut small = vec![0_u8; usize::try_from(bytes).unwrap_or(0)];
        small.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        std::hint::black_box(&small);
        Ok(())
    }

    /// Drops the page cache, as far as this process may.
    pub(crate) fn drop_page_cache(&self) -> anyhow::Result<()> {
        if self.is_root {
            std::fs::write("/proc/sys/vm/drop_caches", "1").context("cannot drop the page cache")?;
        }
        Ok(())
    }
}

fn small(number: usize) -> String {
    format!("small/{number:04}.jpg")
}
