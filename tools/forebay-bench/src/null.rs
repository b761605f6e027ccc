//! A FUSE file system that does nothing: one file that lies in memory, and a server that copies from it whatever the kernel asks.
//!
//! It is carried by what carries Forebay's requests, with the settings of a mount by default, from memory like that of a worker's
//! cache. What it reaches is what the kernel's FUSE leaves of the machine; what Forebay lacks of that is Forebay's own. It is
//! this program again, in a process of its own, and ends when its standard input does.

use std::ffi::CString;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Context as _;
use forebay_fuse_io::{
    Answer as _, Attributes, Dispatch, Errno, FuseIo, Kind, Opened, OpenedFlags, Operation, Request, Session,
    SessionOptions, Statfs,
};
use forebay_memory::{Pool, PoolOptions, Span};
use forebay_types::ByteSize;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::fixture::{Fixture, LARGE};
use crate::progress::Progress;
use crate::server::{ServerProcess, until};
use crate::through::Target;

/// The file's inode; the root is 1.
const FILE: u64 = 2;
/// Bytes that lie together, as in a block of the cache.
const BLOCK: usize = 4 << 20;
/// How long the kernel believes in names and attributes: longer than a run takes.
const FOR_EVER: Duration = Duration::from_secs(86_400);
/// How far the kernel reads ahead: `fuse.read_ahead`.
const READ_AHEAD_KIB: &str = "4096";
/// The largest read that the kernel sends: `fuse.max_read`.
const MAX_READ: u32 = 512 << 10;
/// As a mount has them (`fuse.max_background`).
const MAX_BACKGROUND: u16 = 256;

/// What the rows are called of one over this channel.
pub(crate) fn name(channel: &str) -> String {
    format!("null server, {channel}")
}

/// One that runs, with a mount for each channel.
pub(crate) struct NullServer {
    /// `None`: it was ended.
    server: Option<ServerProcess>,
    /// What carries its requests, and where it is mounted.
    mounts: Vec<(String, PathBuf)>,
}

impl NullServer {
    /// Starts one with the bytes of the large file, mounted once for each of `channels`, as `fuse.io` has them. `None` where only
    /// root may mount without a helper and this is not root.
    ///
    /// # Errors
    /// When it cannot mount.
    pub(crate) fn start(fixture: &Fixture, channels: &[&str], progress: &Progress) -> anyhow::Result<Option<Self>> {
        if !fixture.is_root {
            progress.say("skipped: a FUSE server that does nothing: only root may mount");
            return Ok(None);
        }
        let mount = |channel: &&str| ((*channel).to_owned(), fixture.mountpoint(&format!("null-{channel}")));
        let mounts: Vec<_> = channels.iter().map(mount).collect();
        mounts.iter().try_for_each(|(_, at)| std::fs::create_dir_all(at))?;
        // Before it starts: what fails half way is taken away, too.
        let mut null = Self { server: None, mounts };
        let mounts = null.mounts.iter().flat_map(|(channel, at)| [channel.into(), at.clone().into_os_string()]);
        let arguments: Vec<_> = std::iter::once(fixture.on_tmpfs().into_os_string()).chain(mounts).collect();
        null.server = Some(ServerProcess::spawn("mount-null", &arguments)?);
        Ok(Some(null))
    }

    /// Its file, through each mount.
    pub(crate) fn targets(&self) -> impl Iterator<Item = Target> {
        let pids: Vec<u32> = self.server.iter().map(ServerProcess::pid).collect();
        self.mounts.iter().map(move |(channel, at)| Target::new(name(channel), at.join(LARGE), pids.clone()))
    }
}

impl Drop for NullServer {
    fn drop(&mut self) {
        drop(self.server.take());
        // It has unmounted, unless it was killed.
        for (_, at) in &self.mounts {
            let _ = rustix::mount::unmount(at, UnmountFlags::DETACH);
        }
    }
}

/// What it is started with.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The file whose bytes it takes
    file: PathBuf,
    /// `device` or `uring` and where to mount, in turn
    mounts: Vec<PathBuf>,
}

/// Serves until standard input ends.
///
/// # Errors
/// When it cannot mount.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let bytes = Arc::new(Bytes::of(&arguments.file)?);
    let mut sessions = Vec::new();
    for mount in arguments.mounts.chunks_exact(2) {
        let [channel, at] = mount else { continue };
        let io = if channel.as_os_str() == "uring" { FuseIo::Uring } else { FuseIo::Device };
        sessions.push((at, serve(&bytes, io, at)?));
    }
    until(&format!("{} mounts", sessions.len()))?;
    for (at, session) in sessions {
        rustix::mount::unmount(at, UnmountFlags::DETACH).with_context(|| format!("cannot unmount {}", at.display()))?;
        session.join().map_err(|_| anyhow::anyhow!("a session panicked"))??;
    }
    Ok(())
}

fn serve(bytes: &Arc<Bytes>, io: FuseIo, at: &Path) -> anyhow::Result<thread::JoinHandle<std::io::Result<()>>> {
    let cannot = || format!("cannot mount at {}", at.display());
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).with_context(cannot)?;
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other,max_read={MAX_READ}",
        device.as_raw_fd()
    );
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("null", at, "fuse.forebay-bench", flags, CString::new(options)?.as_c_str())
        .with_context(cannot)?;
    let options = SessionOptions {
        io,
        threads: thread::available_parallelism().map_or(2, |cores| cores.get().max(2)),
        max_background: MAX_BACKGROUND,
        congestion_threshold: MAX_BACKGROUND,
        ..SessionOptions::default()
    };
    let session = Session::start(device, Arc::new(OneFile(Arc::clone(bytes))), &options).with_context(cannot)?;
    let session = thread::spawn(move || session.run());
    let number = rustix::fs::stat(at)?.st_dev;
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    std::fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), READ_AHEAD_KIB)?;
    Ok(session)
}

/// The file's bytes, in huge pages where there are some.
struct Bytes {
    blocks: Vec<Span>,
    length: u64,
}

impl Bytes {
    fn of(path: &Path) -> anyhow::Result<Self> {
        let mut file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let length = file.metadata()?.len();
        let pool = Pool::new(PoolOptions::fixed(ByteSize::bytes(length.next_multiple_of(BLOCK as u64))))?;
        let read = |start: u64| {
            // At most `BLOCK`.
            let length = (length - start).min(BLOCK as u64) as usize;
            let mut block = pool.try_alloc(length).context("the pool is too small")?;
            file.read_exact(&mut block)?;
            anyhow::Ok(block.freeze())
        };
        let blocks = (0..length).step_by(BLOCK).map(read).collect::<anyhow::Result<_>>()?;
        Ok(Self { blocks, length })
    }

    /// `size` bytes from `offset` on, fewer at the end. A request is shorter than a block, and so lies in two at most.
    fn read(&self, offset: u64, size: u32) -> [&[u8]; 2] {
        let (at, within) = ((offset / BLOCK as u64) as usize, (offset % BLOCK as u64) as usize);
        let from = |at: usize| self.blocks.get(at).map_or(&[][..], |block| block);
        let first = from(at).get(within..).unwrap_or_default();
        let first = &first[..first.len().min(size as usize)];
        let second = from(at + 1);
        [first, &second[..second.len().min(size as usize - first.len())]]
    }
}

/// What serves it: a directory with one file.
struct OneFile(Arc<Bytes>);

impl OneFile {
    fn attributes(&self, ino: u64) -> Attributes {
        let is_file = ino == FILE;
        Attributes {
            ino,
            size: if is_file { self.0.length } else { 0 },
            blocks: if is_file { self.0.length / 512 } else { 0 },
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            kind: if is_file { Kind::RegularFile } else { Kind::Directory },
            perm: 0o755,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
        }
    }
}

impl Dispatch for OneFile {
    fn dispatch(&self, request: Request<'_>) {
        let node = request.header().node;
        let Ok(operation) = request.operation() else { return request.now().error(Errno::EIO) };
        match operation {
            Operation::Read { offset, size, .. } if node == FILE => {
                request.now().slices(&self.0.read(offset, size));
            }
            Operation::Lookup { name } if name == LARGE.as_bytes() => {
                request.now().entry(&self.attributes(FILE), 0, FOR_EVER, FOR_EVER);
            }
            Operation::Lookup { .. } => request.now().error(Errno::ENOENT),
            Operation::GetAttr { .. } => request.now().attributes(&self.attributes(node), FOR_EVER),
            Operation::Open { .. } => {
                let flags = OpenedFlags::KEEP_CACHE | OpenedFlags::NOFLUSH;
                request.now().opened(&Opened { handle: node, flags, backing: None });
            }
            Operation::OpenDir { .. } => request.now().opened(&Opened { handle: node, ..Opened::default() }),
            Operation::ReadDir { .. } | Operation::ReadDirPlus { .. } => request.now().data(&[]),
            Operation::Statfs => request.now().statfs(&Statfs::default()),
            Operation::Release { .. } | Operation::ReleaseDir { .. } => request.now().ok(),
            _ => request.now().error(Errno::ENOSYS),
        }
    }

    fn forget(&self, _: u64, _: u64) {}

    fn interrupted(&self, _: u64) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_what_the_file_has_also_across_blocks_and_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let content: Vec<u8> = (0..2 * BLOCK + 1000).map(|at| (at % 251) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let bytes = Bytes::of(&path).unwrap();
        for (offset, size) in
            [(0, 1), (5, 4096), (BLOCK - 7, 4096), (BLOCK, 1 << 20), (2 * BLOCK - 1, 5000), (2 * BLOCK + 1000, 9)]
        {
            let end = (offset + size).min(content.len());
            assert!(bytes.read(offset as u64, size as u32).concat() == content[offset..end], "{size} at {offset}");
        }
        assert!(bytes.read(1 << 40, 4096).concat().is_empty());
    }
}
