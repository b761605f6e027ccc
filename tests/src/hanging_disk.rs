//! A file system that hangs on command: a FUSE one of our own, in memory.
//!
//! It is as much of one as a slab needs: files in one directory, without anything that outlives it. While it hangs, its server
//! takes no request from the kernel, and whoever asks for anything waits, be it bytes or attributes. Nothing fails.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::mount::{MountFlags, UnmountFlags};
use tempfile::TempDir;

/// How long the server waits for a request before it looks whether it is to end: 20 ms.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// The most that is written by one request.
const MAX_WRITE: usize = 1 << 20;
/// Bytes of the header of a request (`fuse_in_header` of linux/fuse.h).
const IN_HEADER: usize = 40;
/// How long the kernel may believe names and attributes, in seconds: nobody else changes them.
const VALID: u64 = 3600;
const ROOT: u64 = 1;
const DIRECTORY: u32 = 0o040_700;
const REGULAR: u32 = 0o100_000;

/// A mounted file system. It goes away when it is dropped, hanging or not.
#[derive(Debug)]
pub struct HangingDisk {
    directory: TempDir,
    gate: Arc<Gate>,
    server: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    hangs: bool,
    ended: bool,
}

impl HangingDisk {
    /// Mounts one, which only root may.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn new() -> io::Result<Self> {
        let directory = tempfile::tempdir()?;
        let flags = OFlags::NONBLOCK.bits() as i32;
        let device = File::options().read(true).write(true).custom_flags(flags).open("/dev/fuse")?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let options = std::ffi::CString::new(options)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount("forebay-e2e", directory.path(), "fuse", flags, Some(options.as_c_str()))?;
        let gate = Arc::new(Gate::default());
        let server = std::thread::Builder::new().name("hanging-disk".into()).spawn({
            let gate = Arc::clone(&gate);
            move || serve(&device, &gate)
        })?;
        Ok(Self { directory, gate, server: Some(server) })
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.directory.path().to_owned()
    }

    /// From when this returns on, nothing is answered.
    pub fn hang(&self) {
        self.gate.change(|state| state.hangs = true);
    }

    /// Answers what has been asked meanwhile, and goes on.
    pub fn release(&self) {
        self.gate.change(|state| state.hangs = false);
    }
}

impl Drop for HangingDisk {
    fn drop(&mut self) {
        self.gate.change(|state| state.ended = true);
        if let Some(server) = self.server.take() {
            // Its device goes with it, and so whoever still waits gets an error.
            let _ = server.join();
        }
        let path: &Path = self.directory.path();
        // There is nothing more that could be done about it.
        let _ = rustix::mount::unmount(path, UnmountFlags::DETACH);
    }
}

impl Gate {
    fn change(&self, change: impl FnOnce(&mut GateState)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }
}

/// Serves until it is to end, or the mount is gone.
fn serve(mut device: &File, gate: &Gate) {
    let mut files = Files::default();
    let mut buffer = vec![0; MAX_WRITE + 4096];
    loop {
        let mut waited_for = [PollFd::new(device, PollFlags::IN)];
        let _ = rustix::event::poll(&mut waited_for, Some(&LOOK_EVERY));
        // Held while a request is served, so that none is when the disk has begun to hang.
        let state = gate.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = gate.changed.wait_while(state, |state| state.hangs && !state.ended);
        let state = waiting.unwrap_or_else(PoisonError::into_inner);
        if state.ended {
            return;
        }
        match device.read(&mut buffer) {
            Ok(length) => {
                if let Some(answer) = files.answer(&buffer[..length]) {
                    // An error: whoever asked has gone.
                    let _ = device.write(&answer);
                }
            }
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return,
            // Nothing is there, or it was taken back.
            Err(_) => {}
        }
    }
}

/// The files, by their inodes.
#[derive(Default)]
struct Files {
    names: BTreeMap<Vec<u8>, u64>,
    inodes: HashMap<u64, Inode>,
    last: u64,
}

struct Inode {
    mode: u32,
    bytes: Vec<u8>,
}

/// An error's number, or what an answer has after its header.
type Answered = Result<Vec<u8>, i32>;

impl Files {
    /// The answer to a request; `None` to one that gets none.
    fn answer(&mut self, request: &[u8]) -> Option<Vec<u8>> {
        let (header, body) = request.split_at_checked(IN_HEADER)?;
        let (opcode, unique, node) = (u32_at(header, 4), u64_at(header, 8), u64_at(header, 16));
        // FORGET, INTERRUPT, BATCH_FORGET.
        if matches!(opcode, 2 | 36 | 42) {
            return None;
        }
        let answered = self.carry_out(opcode, node, body);
        let (error, body) = match answered {
            Ok(body) => (0, body),
            Err(error) => (-error, Vec::new()),
        };
        let length = u32::try_from(16 + body.len()).expect("answers are short");
        let mut answer = length.to_ne_bytes().to_vec();
        answer.extend(error.to_ne_bytes());
        answer.extend(unique.to_ne_bytes());
        answer.extend(body);
        Some(answer)
    }

    /// Operations by their numbers in linux/fuse.h.
    fn carry_out(&mut self, opcode: u32, node: u64, body: &[u8]) -> Answered {
        match opcode {
            // INIT: version 7.31, BIG_WRITES and MAX_PAGES; what is read and written at once.
            26 => {
                let mut answer = Vec::new();
                let max_write = u32::try_from(MAX_WRITE).expect("it is 1 MiB");
                for number in [7, 31, 0, (1 << 5) | (1 << 22), 0, max_write, 1, 256] {
                    answer.extend(u32::to_ne_bytes(number));
                }
                answer.resize(64, 0);
                Ok(answer)
            }
            // LOOKUP
            1 => self.entry(*self.names.get(name(body)).ok_or(libc::ENOENT)?),
            // GETATTR
            3 => self.attributes(node),
            // SETATTR: of the mode and the size.
            4 => {
                let valid = u32_at(body, 0);
                let inode = self.inodes.get_mut(&node).ok_or(libc::EPERM)?;
                if valid & 1 != 0 {
                    inode.mode = u32_at(body, 68);
                }
                if valid & (1 << 3) != 0 {
                    inode.bytes.resize(size(u64_at(body, 16))?, 0);
                }
                self.attributes(node)
            }
            // UNLINK: who has it open keeps it, as nothing is ever forgotten here.
            10 => self.names.remove(name(body)).map(|_| Vec::new()).ok_or(libc::ENOENT),
            // RENAME, RENAME2
            12 | 45 => {
                let names = &body[if opcode == 12 { 8 } else { 16 }..];
                let from = name(names);
                let to = name(&names[from.len() + 1..]);
                let inode = self.names.remove(from).ok_or(libc::ENOENT)?;
                self.names.insert(to.to_owned(), inode);
                Ok(Vec::new())
            }
            // OPEN, OPENDIR
            14 | 27 => Ok(vec![0; 16]),
            // READ
            15 => {
                let bytes = &self.inodes.get(&node).ok_or(libc::EIO)?.bytes;
                let start = size(u64_at(body, 8))?.min(bytes.len());
                let end = (start + u32_at(body, 16) as usize).min(bytes.len());
                Ok(bytes[start..end].to_vec())
            }
            // WRITE
            16 => {
                let (start, length) = (size(u64_at(body, 8))?, u32_at(body, 16));
                let from = body.get(40..40 + length as usize).ok_or(libc::EIO)?;
                let bytes = &mut self.inodes.get_mut(&node).ok_or(libc::EIO)?.bytes;
                bytes.resize(bytes.len().max(start + from.len()), 0);
                bytes[start..start + from.len()].copy_from_slice(from);
                Ok([length.to_ne_bytes(), [0; 4]].concat())
            }
            // STATFS: 16 GiB, half of them free.
            17 => {
                let mut answer = Vec::new();
                [4u64 << 20, 2 << 20, 2 << 20, 1000, 900].iter().for_each(|number| answer.extend(number.to_ne_bytes()));
                [4096u32, 255, 4096].iter().for_each(|number| answer.extend(number.to_ne_bytes()));
                answer.resize(80, 0);
                Ok(answer)
            }
            // RELEASE, FSYNC, RELEASEDIR, FSYNCDIR; READDIR: nothing that anybody needs to see.
            18 | 20 | 28 | 29 | 30 => Ok(Vec::new()),
            // CREATE
            35 => {
                let mode = u32_at(body, 4) & !u32_at(body, 8) & 0o7777 | REGULAR;
                let called = name(&body[16..]).to_owned();
                self.last += 1;
                let number = ROOT + self.last;
                self.names.insert(called, number);
                self.inodes.insert(number, Inode { mode, bytes: Vec::new() });
                let mut answer = self.entry(number)?;
                answer.resize(answer.len() + 16, 0);
                Ok(answer)
            }
            // FALLOCATE
            43 => {
                let end = size(u64_at(body, 8))?.saturating_add(size(u64_at(body, 16))?);
                let bytes = &mut self.inodes.get_mut(&node).ok_or(libc::EIO)?.bytes;
                bytes.resize(bytes.len().max(end), 0);
                Ok(Vec::new())
            }
            _ => Err(libc::ENOSYS),
        }
    }

    /// `fuse_entry_out`.
    fn entry(&self, node: u64) -> Answered {
        let mut answer = Vec::new();
        [node, 0, VALID, VALID, 0].iter().for_each(|number| answer.extend(number.to_ne_bytes()));
        answer.extend(self.attributes_of(node)?);
        Ok(answer)
    }

    /// `fuse_attr_out`.
    fn attributes(&self, node: u64) -> Answered {
        let mut answer = Vec::new();
        [VALID, 0].iter().for_each(|number| answer.extend(number.to_ne_bytes()));
        answer.extend(self.attributes_of(node)?);
        Ok(answer)
    }

    /// `fuse_attr`.
    fn attributes_of(&self, node: u64) -> Answered {
        let (mode, size, links) = match self.inodes.get(&node) {
            _ if node == ROOT => (DIRECTORY, 4096, 2),
            Some(inode) => (inode.mode & 0o7777 | REGULAR, inode.bytes.len() as u64, 1),
            None => return Err(libc::ENOENT),
        };
        let mut answer = Vec::new();
        // Inode, size, blocks of 512 bytes, three times.
        [node, size, size.div_ceil(512), 0, 0, 0].iter().for_each(|number| answer.extend(number.to_ne_bytes()));
        // Nanoseconds, mode, links, user, group, device, block size.
        [0, 0, 0, mode, links, 0, 0, 0, 4096, 0].iter().for_each(|number| answer.extend(u32::to_ne_bytes(*number)));
        Ok(answer)
    }
}

/// A name up to its zero.
fn name(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn size(number: u64) -> Result<usize, i32> {
    usize::try_from(number).map_err(|_| libc::EFBIG)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes)
}
