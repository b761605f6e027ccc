//! A session with the kernel of this machine, over each channel. Needs root: only root may mount without a helper.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, RwLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, UNIX_EPOCH};

use forebay_fuse_io::{
    Answer as _, Attributes, Channel, Dispatch, Errno, FuseIo, HeldBytes, Kind, Opened, OpenedFlags, Operation,
    ReadDirPlus, Reply, Request, Served, Session, SessionError, SessionOptions, Statfs,
};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};

const SIZE: u64 = 64 << 20;
const TTL: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(60);
/// A file whose reads another thread answers.
const LATER: u64 = 2;
/// A file whose reads are answered at once.
const NOW: u64 = 3;
/// A file whose reads are never answered.
const HANGS: u64 = 4;
/// A file whose pages the kernel keeps, and whose bytes change without its being told.
const KEPT: u64 = 5;
const PAGE: usize = 4096;

fn byte(at: u64) -> u8 {
    (at % 251) as u8
}

fn pattern(offset: u64, length: usize) -> Vec<u8> {
    (offset..offset + length as u64).map(byte).collect()
}

/// Three files of one pattern. What is written must be it again.
struct Files {
    pattern: Vec<u8>,
    /// A megabyte of it and a page more.
    kept: RwLock<Vec<u8>>,
    later: Sender<Later>,
}

enum Later {
    Read(Reply, u64, usize),
    Write(Reply, HeldBytes, u64),
    Hang(Reply),
    End,
}

impl Files {
    fn new() -> (Arc<Self>, JoinHandle<()>) {
        let (later, requests) = channel();
        // Enough that any 1 MiB of the pattern lies in it.
        let files = Arc::new(Self {
            pattern: pattern(0, (1 << 20) + 251),
            kept: RwLock::new(vec![b'a'; (1 << 20) + PAGE]),
            later,
        });
        let bytes = files.pattern.clone();
        let thread = thread::spawn(move || {
            let mut hanging = Vec::new();
            for later in requests {
                match later {
                    Later::Read(mut reply, offset, length) => {
                        let part = &bytes[(offset % 251) as usize..][..length];
                        // Where there is memory that the kernel takes it from, it lands there; or is lost on the way.
                        match reply.lend() {
                            Some(mut payload) if length > 1 => {
                                payload[..length].copy_from_slice(part);
                                reply.filled(payload, length);
                            }
                            Some(payload) => {
                                drop(payload);
                                reply.error(Errno::EAGAIN);
                            }
                            None => reply.data(part),
                        }
                    }
                    Later::Write(reply, data, offset) => {
                        let is_right = *data == bytes[(offset % 251) as usize..][..data.len()];
                        let length = data.len() as u32;
                        drop(data);
                        if is_right { reply.written(length) } else { reply.error(Errno::EINVAL) }
                    }
                    Later::Hang(reply) => hanging.push(reply),
                    Later::End => return,
                }
            }
        });
        (files, thread)
    }
}

fn attributes(ino: u64) -> Attributes {
    Attributes {
        ino,
        size: if ino == 1 { 0 } else { SIZE },
        blocks: SIZE / 512,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        kind: if ino == 1 { Kind::Directory } else { Kind::RegularFile },
        perm: 0o777,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
    }
}

const NAMES: [(&str, u64); 4] = [("later", LATER), ("now", NOW), ("hangs", HANGS), ("kept", KEPT)];

impl Dispatch for Files {
    fn dispatch(&self, request: Request<'_>) {
        let node = request.header().node;
        let Ok(operation) = request.operation() else { return request.now().error(Errno::EIO) };
        match operation {
            Operation::Lookup { name } => {
                let found = NAMES.iter().find(|(known, _)| known.as_bytes() == name).map(|(_, node)| *node);
                match found {
                    Some(node) => request.now().entry(&attributes(node), 0, TTL, TTL),
                    None => request.now().error(Errno::ENOENT),
                }
            }
            Operation::GetAttr { .. } | Operation::SetAttr(_) => request.now().attributes(&attributes(node), TTL),
            Operation::Open { .. } if node == KEPT => {
                request.now().opened(&Opened { handle: node, flags: OpenedFlags::KEEP_CACHE, backing: None });
            }
            Operation::Open { .. } | Operation::OpenDir { .. } => {
                request.now().opened(&Opened { handle: node, flags: OpenedFlags::DIRECT_IO, backing: None });
            }
            Operation::Read { offset, size, .. } => {
                let length = SIZE.saturating_sub(offset).min(u64::from(size)) as usize;
                match node {
                    NOW => request.now().data(&self.pattern[(offset % 251) as usize..][..length]),
                    KEPT => {
                        let kept = self.kept.read().unwrap();
                        // Whole pages, as they would have to be to become the kernel's.
                        let start = kept.as_ptr().align_offset(PAGE);
                        request.now().data(&kept[start..start + length.min(1 << 20)]);
                    }
                    LATER => self.later.send(Later::Read(request.keep(), offset, length)).unwrap(),
                    _ => self.later.send(Later::Hang(request.keep())).unwrap(),
                }
            }
            Operation::Write { offset, .. } => {
                let (reply, data) = request.keep_bytes();
                self.later.send(Later::Write(reply, data, offset)).unwrap();
            }
            Operation::ReadDir { offset, size, .. } => {
                let mut names = request.keep().names(size);
                for (at, (name, node)) in (0..).zip(NAMES).skip(offset as usize) {
                    if names.add(node, at + 1, Kind::RegularFile, name.as_bytes()) {
                        break;
                    }
                }
                names.send();
            }
            Operation::Statfs => request.now().statfs(&Statfs::default()),
            Operation::Release { .. } | Operation::ReleaseDir { .. } | Operation::Flush { .. } => request.now().ok(),
            _ => request.now().error(Errno::ENOSYS),
        }
    }

    fn forget(&self, _: u64, _: u64) {}

    fn interrupted(&self, _: u64) {}

    fn ended(&self, _: Option<&std::io::Error>) {
        let _ = self.later.send(Later::End);
    }
}

struct Mount {
    directory: tempfile::TempDir,
    files: Arc<Files>,
    served: Arc<Served>,
    session: JoinHandle<std::io::Result<()>>,
    later: JoinHandle<()>,
}

impl Mount {
    /// `None`: it is not possible here, which was said.
    fn new(io: FuseIo) -> Option<Self> {
        let skipped = |reason: &str| drop(writeln!(std::io::stderr(), "skipped: {reason}"));
        if !rustix::process::geteuid().is_root() {
            skipped("only root may mount");
            return None;
        }
        let Ok(device) = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else {
            skipped("there is no /dev/fuse");
            return None;
        };
        let directory = tempfile::tempdir().unwrap();
        mount(&directory, &device)?;
        let (files, later) = Files::new();
        let options = SessionOptions { io, readdirplus: ReadDirPlus::Never, ..SessionOptions::default() };
        let session = match Session::start(device, Arc::clone(&files), &options) {
            Ok(session) => session,
            Err(SessionError::NoUring(reason)) => {
                skipped(&reason.to_string());
                // The kernel has ended it.
                let _ = rustix::mount::unmount(directory.path(), UnmountFlags::DETACH);
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let served = session.served();
        let session = thread::spawn(move || session.run());
        let carried = served.wait(SOON).unwrap();
        assert_eq!(matches!(carried.channel, Channel::Uring(_)), io == FuseIo::Uring, "{carried:?}");
        Some(Self { directory, files, served, session, later })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Unmounts. Every thread must end, and soon.
    fn end(self) {
        let started = Instant::now();
        rustix::mount::unmount(self.directory.path(), UnmountFlags::DETACH).unwrap();
        self.session.join().unwrap().unwrap();
        self.later.join().unwrap();
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
        assert_eq!(self.served.malformed(), 0);
    }
}

fn mount(directory: &tempfile::TempDir, device: &OwnedFd) -> Option<()> {
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,max_read=1048576", device.as_raw_fd());
    let options = std::ffi::CString::new(options).unwrap();
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    if let Err(error) = rustix::mount::mount("test", directory.path(), "fuse.forebay-test", flags, options.as_c_str()) {
        let _ = writeln!(std::io::stderr(), "skipped: mount(2): {error}");
        return None;
    }
    Some(())
}

const CHANNELS: [FuseIo; 2] = [FuseIo::Device, FuseIo::Uring];

#[test]
fn what_is_read_is_what_is_there_however_it_is_asked_for() {
    for mount in CHANNELS.into_iter().filter_map(Mount::new) {
        let mut names: Vec<_> =
            fs::read_dir(mount.directory.path()).unwrap().map(|name| name.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["hangs", "kept", "later", "now"]);
        assert!(fs::metadata(mount.path("nothing")).is_err());
        assert_eq!(fs::metadata(mount.path("now")).unwrap().len(), SIZE);
        for length in [1, 4096, 100_000, 1 << 20, 3 << 20] {
            let mut file = File::open(mount.path("now")).unwrap();
            let mut bytes = vec![0; length];
            for offset in [0, 1, 4095, 1 << 20, SIZE - length as u64] {
                file.seek(SeekFrom::Start(offset)).unwrap();
                file.read_exact(&mut bytes).unwrap();
                assert!(bytes == pattern(offset, length), "{length} at {offset}");
            }
        }
        assert_eq!(File::open(mount.path("now")).unwrap().read_at(&mut [0; 9], SIZE).unwrap(), 0);
        mount.end();
    }
}

#[test]
fn many_programs_read_and_write_at_once() {
    for mount in CHANNELS.into_iter().filter_map(Mount::new) {
        thread::scope(|scope| {
            for reader in 0..8_u64 {
                let (now, later) = (mount.path("now"), mount.path("later"));
                scope.spawn(move || {
                    let now = File::options().read(true).write(true).open(now).unwrap();
                    let later = File::open(later).unwrap();
                    for round in 0..18 {
                        let offset = (reader * 7 + round * 13) * 8192 % (SIZE - (1 << 20));
                        let length = 4096 << (round % 9);
                        let mut bytes = vec![0; length];
                        now.read_exact_at(&mut bytes, offset).unwrap();
                        assert!(bytes == pattern(offset, length));
                        later.read_exact_at(&mut bytes, offset).unwrap();
                        assert!(bytes == pattern(offset, length));
                        // What is filled and not sent does no harm.
                        let _ = later.read_at(&mut bytes[..1], offset + 1);
                        now.write_all_at(&pattern(offset, length), offset).unwrap();
                    }
                });
            }
        });
        mount.end();
    }
}

#[test]
fn what_the_kernel_keeps_of_an_answer_does_not_change_with_the_memory_that_it_was_made_of() {
    for mount in CHANNELS.into_iter().filter_map(Mount::new) {
        let file = File::open(mount.path("kept")).unwrap();
        let read = || {
            let mut bytes = vec![0; 1 << 20];
            file.read_exact_at(&mut bytes, 0).unwrap();
            bytes
        };
        assert!(read().iter().all(|byte| *byte == b'a'));
        mount.files.kept.write().unwrap().fill(b'b');
        assert!(read().iter().all(|byte| *byte == b'a'), "the kernel has pages of ours");
        drop(file);
        mount.end();
    }
}

#[test]
fn a_mount_ends_while_requests_hang() {
    for mount in CHANNELS.into_iter().filter_map(Mount::new) {
        let hanging: Vec<_> = (0..3)
            .map(|_| {
                let file = File::open(mount.path("hangs")).unwrap();
                thread::spawn(move || file.read_at(&mut [0; 4096], 0).unwrap_err())
            })
            .collect();
        // Another is served meanwhile.
        let mut file = File::options().write(true).custom_flags(0).open(mount.path("now")).unwrap();
        file.write_all(&pattern(0, 10_000)).unwrap();
        drop(file);
        // The kernel ends the mount when no file is open any more, or at once when it is forced.
        rustix::mount::unmount(mount.directory.path(), UnmountFlags::FORCE | UnmountFlags::DETACH).unwrap();
        for thread in hanging {
            thread.join().unwrap();
        }
        mount.session.join().unwrap().unwrap();
        mount.later.join().unwrap();
    }
}
