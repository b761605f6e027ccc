//! Maps a file and does with it what it is told on standard input; see `forebay_e2e::mapping`.
//!
//! `forebay-e2e-mapping read|write PATH LENGTH`, then lines `read AT LENGTH`, `write AT LENGTH` followed by so many bytes,
//! `sync 0 LENGTH` and `replace 0 LENGTH`. Each is answered by `ok LENGTH` and so many bytes, or by `error ERRNO`; so is the mapping itself.

use std::fs::File;
use std::io::{self, BufRead as _, Read as _, Write as _};
use std::os::fd::AsFd as _;

use anyhow::{Context as _, bail, ensure};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

/// Fits into a pipe that is not being read.
const PIECE: usize = 4096;

struct Mapped {
    start: *mut u8,
    length: usize,
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [access, path, length] = &*arguments else { bail!("usage: read|write PATH LENGTH") };
    let mapped = match Mapped::of(path, length.parse()?, access == "write") {
        Ok(mapped) => mapped,
        Err(error) => return Ok(answer(Err(error))?),
    };
    answer(Ok(Vec::new()))?;
    let mut orders = io::stdin().lock();
    loop {
        let mut line = String::new();
        if orders.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [order, at, length] = *words else { bail!("{line:?} is no order") };
        let (at, length): (usize, usize) = (at.parse()?, length.parse()?);
        let end = at.checked_add(length).context("too long")?;
        ensure!(end <= mapped.length, "{at}..{end} is not within {} bytes", mapped.length);
        let done = match order {
            "read" => mapped.read(at, length),
            "write" => {
                let mut bytes = vec![0; length];
                orders.read_exact(&mut bytes)?;
                mapped.write(at, &bytes);
                Ok(Vec::new())
            }
            "replace" => mapped.replace().map(|()| Vec::new()),
            "sync" => mapped.sync().map(|()| Vec::new()),
            _ => bail!("{order:?} is no order"),
        };
        answer(done)?;
    }
}

fn answer(done: io::Result<Vec<u8>>) -> io::Result<()> {
    let mut answers = io::stdout().lock();
    match done {
        Ok(bytes) => {
            writeln!(answers, "ok {}", bytes.len())?;
            answers.write_all(&bytes)?;
        }
        Err(error) => writeln!(answers, "error {}", error.raw_os_error().unwrap_or(libc::EIO))?,
    }
    answers.flush()
}

impl Mapped {
    fn of(path: &str, length: usize, writable: bool) -> io::Result<Self> {
        let file = File::options().read(true).write(writable).open(path)?;
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: the kernel chooses an address where nothing of ours is.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file.as_fd(), 0)? };
        Ok(Self { start: start.cast(), length })
    }

    /// The kernel copies them, into a pipe, since it answers a page that cannot be had with an error where a copy of our own would
    /// end in SIGBUS.
    fn read(&self, at: usize, length: usize) -> io::Result<Vec<u8>> {
        let (reader, writer) = rustix::pipe::pipe()?;
        let mut bytes = vec![0; length];
        let mut done = 0;
        while done < length {
            let count = (length - done).min(PIECE);
            // SAFETY: `main` checked that it is within the mapping, which is never undone; only the kernel looks at the bytes.
            let piece = unsafe { std::slice::from_raw_parts(self.start.add(at + done), count) };
            let written = rustix::io::write(&writer, piece)?;
            done += rustix::io::read(&reader, &mut bytes[done..done + written])?;
        }
        Ok(bytes)
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        // SAFETY: `main` checked that it is within the mapping, and the mapping is no other object's memory. One that
        // is not writable ends this process.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(at), bytes.len()) };
    }

    fn replace(&self) -> io::Result<()> {
        let (access, flags) = (ProtFlags::READ, MapFlags::PRIVATE | MapFlags::FIXED);
        // SAFETY: exactly the mapping, of which nothing refers to a byte.
        unsafe { rustix::mm::mmap_anonymous(self.start.cast(), self.length, access, flags)? };
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        // SAFETY: exactly the mapping.
        unsafe { rustix::mm::msync(self.start.cast(), self.length, MsyncFlags::SYNC)? };
        Ok(())
    }
}
