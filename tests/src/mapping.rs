//! A file of a mount that is mapped into memory, by a process of its own.
//!
//! A page fault of a file may wait for the file system with the lock of the process's address space held: always when the fault is
//! tried a second time. All other threads of that process then wait in `mmap(2)`, `munmap(2)` and faults of their own. The tests'
//! process serves the objects that the mount reads, so a fault in it would wait for itself, until the mount gives the read up.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::program::beside_tests;

/// The program that maps it.
const PROGRAM: &str = "forebay-e2e-mapping";

/// A file that another process has mapped, which ends when this is dropped.
pub struct Mapping {
    process: Mutex<Process>,
    pid: u32,
    length: usize,
}

struct Process {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Mapping {
    /// Maps `length` bytes of a file, for reading.
    ///
    /// # Errors
    /// The kernel's.
    pub fn of(path: &Path, length: usize) -> io::Result<Self> {
        Self::start("read", path, length)
    }

    /// Maps `length` bytes of a file, for reading and writing.
    ///
    /// # Errors
    /// The kernel's.
    pub fn writable(path: &Path, length: usize) -> io::Result<Self> {
        Self::start("write", path, length)
    }

    /// Maps other memory over the mapping, after which it cannot be used any more. What was written to it goes to the file first, and
    /// meanwhile the kernel holds the lock of that process's address space.
    ///
    /// # Errors
    /// The kernel's.
    pub fn replace(&self) -> io::Result<()> {
        self.ask(&format!("replace 0 {}", self.length), &[]).map(drop)
    }

    /// The process that has it.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    fn ask(&self, order: &str, bytes: &[u8]) -> io::Result<Vec<u8>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).ask(order, bytes)
    }

    fn start(access: &str, path: &Path, length: usize) -> io::Result<Self> {
        let mut child = Command::new(beside_tests(PROGRAM))
            .arg(access)
            .arg(path)
            .arg(length.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let pid = child.id();
        let (orders, answers) = child.stdin.take().zip(child.stdout.take()).expect("both are pipes");
        let mut process = Process { child, orders, answers: BufReader::new(answers) };
        process.answer()?;
        Ok(Self { process: Mutex::new(process), pid, length })
    }

    /// The mapped bytes of `range`.
    ///
    /// # Errors
    /// `EFAULT` when a page cannot be had.
    ///
    /// # Panics
    /// When the range is not within the mapping.
    pub fn read(&self, range: Range<usize>) -> io::Result<Vec<u8>> {
        assert!(range.start <= range.end && range.end <= self.length, "{range:?} of {}", self.length);
        self.ask(&format!("read {} {}", range.start, range.len()), &[])
    }

    /// Writes through the mapping.
    ///
    /// # Errors
    /// When the process was ended by a page that cannot be had.
    ///
    /// # Panics
    /// When that is not within the mapping.
    pub fn write(&self, at: usize, bytes: &[u8]) -> io::Result<()> {
        assert!(at + bytes.len() <= self.length, "{} at {at} of {}", bytes.len(), self.length);
        self.ask(&format!("write {at} {}", bytes.len()), bytes).map(drop)
    }

    /// `msync(2)`: what was written through the mapping is in the file.
    ///
    /// # Errors
    /// The kernel's.
    pub fn sync(&self) -> io::Result<()> {
        self.ask(&format!("sync 0 {}", self.length), &[]).map(drop)
    }
}

impl Process {
    fn ask(&mut self, order: &str, bytes: &[u8]) -> io::Result<Vec<u8>> {
        writeln!(self.orders, "{order}")?;
        self.orders.write_all(bytes)?;
        self.orders.flush()?;
        self.answer()
    }

    /// `ok LENGTH` and so many bytes, or `error ERRNO`.
    fn answer(&mut self) -> io::Result<Vec<u8>> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let number = |text: &str| text.trim().parse().map_err(io::Error::other);
        match line.split_once(' ') {
            Some(("ok", length)) => {
                let mut bytes = vec![0; usize::try_from(number(length)?).map_err(io::Error::other)?];
                self.answers.read_exact(&mut bytes)?;
                Ok(bytes)
            }
            Some(("error", errno)) => Err(io::Error::from_raw_os_error(number(errno)?)),
            _ => Err(io::Error::other(format!("{PROGRAM} ended: {:?}", self.child.wait()?))),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that waits for a page hears of nothing but this.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
