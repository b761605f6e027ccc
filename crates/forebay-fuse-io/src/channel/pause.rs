//! Stops the threads that read `/dev/fuse` while the mount stays, so that nobody takes requests: another process is to.
//!
//! A thread sleeps within `read(2)`, and only a signal has it return. So threads are sent one whose handler does nothing, again and
//! again until they are gone: one that comes just before the read would be missed. `SIGURG` is ignored by whoever does not ask for
//! it, and so asked for here when it is needed first.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_locks::{Condvar, Mutex};
use rustix::process::Pid;
use tracing::warn;

/// How long a thread is waited for before it is sent another signal.
const AGAIN_AFTER: Duration = Duration::from_millis(1);

/// Why nobody takes requests any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The kernel has ended the mount.
    Ended,
    /// The mount is there, and nobody serves it.
    Paused,
}

/// What the threads of a mount share.
#[derive(Debug, Default)]
pub(crate) struct Pause {
    is_asked: AtomicBool,
    /// The threads that may read.
    threads: Mutex<Vec<Pid>>,
    one_less: Condvar,
}

/// A thread that may read. It leaves when this is dropped.
#[derive(Debug)]
pub(crate) struct Reading {
    pause: Arc<Pause>,
    thread: Pid,
}

impl Pause {
    /// Whether threads are to stop. To be asked before each read.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Relaxed)
    }

    /// The calling thread reads from now on.
    pub(crate) fn enter(self: &Arc<Self>) -> Reading {
        let thread = rustix::thread::gettid();
        self.threads.lock().push(thread);
        Reading { pause: Arc::clone(self), thread }
    }

    /// Has threads stop, and waits until they have. False: not all have within that time.
    pub(crate) fn ask(&self, within: Duration) -> bool {
        if let Err(error) = interruptible() {
            warn!(%error, "threads that wait for requests cannot be interrupted");
            return false;
        }
        // Those that begin to read from now on see it.
        self.is_asked.store(true, Ordering::SeqCst);
        let until = Instant::now() + within;
        let mut threads = self.threads.lock();
        while !threads.is_empty() {
            if Instant::now() >= until {
                return false;
            }
            // None of them is gone: it would have to leave first, for which it needs the lock.
            threads.iter().for_each(|thread| interrupt(*thread));
            (threads, _) = self.one_less.wait_for(threads, AGAIN_AFTER);
        }
        true
    }

    /// Threads may read again.
    pub(crate) fn end(&self) {
        self.is_asked.store(false, Ordering::SeqCst);
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut threads = self.pause.threads.lock();
        threads.retain(|thread| *thread != self.thread);
        self.pause.one_less.notify_all();
    }
}

/// What does nothing, and so has a system call return.
extern "C" fn nothing(_: libc::c_int) {}

/// From now on, a thread that is sent the signal returns from `read(2)`.
fn interruptible() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        let handler: extern "C" fn(libc::c_int) = nothing;
        // SAFETY: zeros are a `sigaction` without flags: system calls are not begun again, and no other signal is blocked.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as libc::sighandler_t;
        // SAFETY: it reads `action`; the handler does nothing, which may be done anywhere.
        match unsafe { libc::sigaction(libc::SIGURG, &raw const action, std::ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)),
        }
    });
    installed.map_err(io::Error::from_raw_os_error)
}

/// Sends a thread of this process the signal.
fn interrupt(thread: Pid) {
    let (process, thread) = (rustix::process::getpid(), thread.as_raw_nonzero().get());
    // SAFETY: it reads three numbers. A thread that is gone gets nothing.
    unsafe { libc::syscall(libc::SYS_tgkill, process.as_raw_nonzero().get(), thread, libc::SIGURG) };
}

#[cfg(test)]
mod tests {
    use std::thread;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn threads_that_sleep_within_a_read_are_gone_soon_and_come_back_when_they_may() {
        let (device, kernel) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let pause = Arc::new(Pause::default());
        let read_until_asked = |device: &std::os::fd::OwnedFd| {
            let _reading = pause.enter();
            let mut taken = 0;
            while !pause.is_asked() {
                taken += usize::from(rustix::io::read(device, &mut [0u8; 8]).is_ok());
            }
            taken
        };
        for round in 0..20 {
            thread::scope(|scope| {
                let threads: Vec<_> = (0..3).map(|_| scope.spawn(|| read_until_asked(&device))).collect();
                for _ in 0..round {
                    rustix::io::write(&kernel, b"x").unwrap();
                }
                assert!(pause.ask(SOON));
                let taken: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
                assert!(taken <= round);
                // What nobody took is there for the next.
                for _ in taken..round {
                    assert_eq!(rustix::io::read(&device, &mut [0u8; 8]).unwrap(), 1);
                }
            });
            pause.end();
        }
    }

    #[test]
    fn a_thread_that_does_not_stop_is_not_waited_for_for_ever() {
        let pause = Arc::new(Pause::default());
        let reading = pause.enter();
        assert!(!pause.ask(Duration::from_millis(5)));
        drop(reading);
        assert!(pause.ask(SOON));
    }
}
