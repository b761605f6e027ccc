//! How a mount is served: what was agreed with the kernel, which channel carries requests, and why not another one.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_locks::{Condvar, Mutex};
use rustix::fs::MemfdFlags;

use crate::backing::Backings;
use crate::channel::ring::counters::Counters;
use crate::channel::ring::shape::RingShape;
use crate::protocol::init::Negotiated;

/// How a session is served. Shared with the code that shows it.
#[derive(Debug)]
pub struct Served {
    /// The kernel's version of the protocol.
    kernel: (u32, u32),
    passthrough: Result<(), NoPassthrough>,
    /// `None` until it is settled which channel carries requests.
    carried: Mutex<Option<ChannelInUse>>,
    settled: Condvar,
    malformed: AtomicU64,
    interrupts: AtomicU64,
    /// Of each thread, where there are rings.
    rings: OnceLock<Vec<Arc<Counters>>>,
}

/// What the threads of rings have done together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingCounts {
    /// Requests served.
    pub requests: u64,
    /// Of them, those that were not answered at once.
    pub kept: u64,
    /// System calls.
    pub submits: u64,
    /// Times that one was woken for an answer.
    pub bells: u64,
    /// Times that a queue had no entry left for the next request.
    pub starved: u64,
}

/// What carries the requests of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelInUse {
    /// Which channel.
    pub channel: Channel,
    /// Why not rings, where they were wanted.
    pub why_not: Option<String>,
}

/// A channel that requests of the kernel come over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// `/dev/fuse`.
    Device {
        /// Threads that read it.
        threads: usize,
        /// Whether each of them has a descriptor of its own.
        own_descriptors: bool,
    },
    /// io_uring.
    Uring(RingShape),
}

impl Channel {
    /// Its name in configuration and counters.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Device { .. } => "device",
            Self::Uring(_) => "uring",
        }
    }
}

/// Why no file can be passed through.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPassthrough {
    /// It was not wanted.
    #[error("it was not asked for")]
    NotAsked,
    /// The kernel has none.
    #[error("this kernel cannot pass files through: it needs Linux 6.9 with CONFIG_FUSE_PASSTHROUGH")]
    NotInKernel,
    /// The process may not.
    #[error("this process lacks CAP_SYS_ADMIN, without which the kernel passes no file through")]
    NotPermitted,
    /// It was tried and failed.
    #[error("the kernel passes no file through: {0}")]
    Failed(String),
}

impl NoPassthrough {
    /// Whether files can be passed through: a file of ours is, for a moment.
    pub(crate) fn unless_tried(backings: &Backings, negotiated: &Negotiated, is_wanted: bool) -> Result<(), Self> {
        if !is_wanted {
            return Err(Self::NotAsked);
        }
        if !negotiated.passthrough() {
            return Err(Self::NotInKernel);
        }
        let file = rustix::fs::memfd_create("forebay-passthrough", MemfdFlags::CLOEXEC);
        let file = file.map_err(|errno| Self::because(&errno.into()))?;
        backings.open(file.as_fd()).map(drop).map_err(|error| Self::because(&error))
    }

    /// What a failed attempt means.
    pub(crate) fn because(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EPERM) => Self::NotPermitted,
            Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::ENOSYS) => Self::NotInKernel,
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl Served {
    pub(crate) fn new(kernel: (u32, u32), passthrough: Result<(), NoPassthrough>) -> Self {
        Self {
            kernel,
            passthrough,
            carried: Mutex::default(),
            settled: Condvar::new(),
            malformed: AtomicU64::new(0),
            interrupts: AtomicU64::new(0),
            rings: OnceLock::new(),
        }
    }

    /// The kernel's version of the protocol.
    #[must_use]
    pub fn kernel(&self) -> (u32, u32) {
        self.kernel
    }

    /// Whether files can be passed through.
    ///
    /// # Errors
    /// Why not.
    pub fn passthrough(&self) -> Result<(), NoPassthrough> {
        self.passthrough.clone()
    }

    /// The channel that carries requests; `None` while that is not settled.
    #[must_use]
    pub fn carried(&self) -> Option<ChannelInUse> {
        self.carried.lock().clone()
    }

    /// The same, waiting for it, but not longer than `within`.
    #[must_use]
    pub fn wait(&self, within: Duration) -> Option<ChannelInUse> {
        let until = Instant::now() + within;
        let mut carried = self.carried.lock();
        let mut is_late = false;
        while carried.is_none() && !is_late {
            (carried, is_late) = self.settled.wait_until(carried, until);
        }
        carried.clone()
    }

    /// Messages of the kernel that made no sense.
    #[must_use]
    pub fn malformed(&self) -> u64 {
        let of_rings = self.sum(|counters| &counters.malformed);
        self.malformed.load(Ordering::Relaxed) + of_rings
    }

    /// What rings have done; `None` where there are none.
    #[must_use]
    pub fn rings(&self) -> Option<RingCounts> {
        self.rings.get()?;
        Some(RingCounts {
            requests: self.sum(|counters| &counters.requests),
            kept: self.sum(|counters| &counters.kept),
            submits: self.sum(|counters| &counters.submits),
            bells: self.sum(|counters| &counters.bells),
            starved: self.sum(|counters| &counters.starved),
        })
    }

    fn sum(&self, of: impl Fn(&Counters) -> &AtomicU64) -> u64 {
        self.rings.get().into_iter().flatten().map(|counters| of(counters).load(Ordering::Relaxed)).sum()
    }

    /// How often a thread that waits for an answer was sent a signal.
    #[must_use]
    pub fn interrupts(&self) -> u64 {
        self.interrupts.load(Ordering::Relaxed)
    }

    pub(crate) fn show_rings(&self, counters: Vec<Arc<Counters>>) {
        // Rings go live once.
        let _ = self.rings.set(counters);
    }

    pub(crate) fn settle(&self, carried: ChannelInUse) {
        *self.carried.lock() = Some(carried);
        self.settled.notify_all();
    }

    pub(crate) fn count_malformed(&self) {
        self.malformed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_interrupt(&self) {
        self.interrupts.fetch_add(1, Ordering::Relaxed);
    }
}

impl fmt::Display for ChannelInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.channel.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_learns_it_once_it_is_settled_and_never_waits_for_long() {
        let served = Served::new((7, 45), Err(NoPassthrough::NotAsked));
        assert_eq!(served.wait(Duration::from_millis(1)), None);
        let device = ChannelInUse { channel: Channel::Device { threads: 2, own_descriptors: true }, why_not: None };
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| served.wait(Duration::from_secs(60)));
            served.settle(device.clone());
            assert_eq!(waits.join().unwrap(), Some(device.clone()));
        });
        assert_eq!(served.carried().map(|carried| carried.to_string()), Some("device".to_owned()));
    }
}
