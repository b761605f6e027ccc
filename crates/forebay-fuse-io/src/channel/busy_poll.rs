//! A thread that busy-polls: it asks `/dev/fuse` again and again for a moment before it sleeps.
//!
//! A program that reads a little at a time asks again a few microseconds after its answer. Otherwise most of its wait is a thread
//! that falls asleep and is woken. So after a short read a thread goes on asking, one in a mount at a time: more of them would
//! take processors from the programs that read.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::channel::descriptor::Descriptor;

/// The longest read that is a short one: what is copied for it takes less time than to fall asleep.
pub(crate) const SHORT: u32 = 16 << 10;

/// What the threads of a mount share.
#[derive(Debug)]
pub(crate) struct Turn {
    /// How long.
    within: Duration,
    is_taken: AtomicBool,
}

impl Turn {
    pub(crate) fn new(within: Duration) -> Self {
        Self { within, is_taken: AtomicBool::new(false) }
    }
}

/// What one thread busy-polls with.
#[derive(Debug)]
pub(crate) struct BusyPoll {
    turn: Arc<Turn>,
    /// One of the mount that does not wait.
    descriptor: Arc<Descriptor>,
}

impl BusyPoll {
    /// For a thread that reads `descriptor` otherwise. `None` when no thread is to busy-poll, or it cannot have a descriptor of its
    /// own for that.
    pub(crate) fn new(turn: &Arc<Turn>, descriptor: &Descriptor) -> Option<Self> {
        if turn.within.is_zero() {
            return None;
        }
        let descriptor = Arc::new(descriptor.impatient().ok()?);
        Some(Self { turn: Arc::clone(turn), descriptor })
    }

    /// The descriptor that it reads.
    pub(crate) fn descriptor(&self) -> &Arc<Descriptor> {
        &self.descriptor
    }

    /// The next message, as [`Descriptor::read`] has it, if one comes in time and no other thread busy-polls.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> Option<io::Result<usize>> {
        if self.turn.is_taken.swap(true, Ordering::Relaxed) {
            return None;
        }
        let read = self.read_within(buffer);
        self.turn.is_taken.store(false, Ordering::Relaxed);
        read
    }

    fn read_within(&self, buffer: &mut [u8]) -> Option<io::Result<usize>> {
        let mut until = None;
        loop {
            match self.descriptor.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Some(read),
            }
            let now = Instant::now();
            if now >= *until.get_or_insert(now + self.turn.within) {
                return None;
            }
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    /// One that reads a socket, in the place of the device.
    fn awake(within: Duration) -> (BusyPoll, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, kernel) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let (turn, descriptor) = (Arc::new(Turn::new(within)), Arc::new(Descriptor::new(ours)));
        (BusyPoll { turn, descriptor }, kernel)
    }

    #[test]
    fn what_comes_in_time_is_read_and_what_does_not_is_left_to_who_sleeps() {
        let (patient, kernel) = awake(Duration::from_secs(20));
        let asks = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(5));
            rustix::io::write(&kernel, b"hello").unwrap();
            kernel
        });
        let mut buffer = [0; 10];
        assert_eq!(patient.read(&mut buffer).unwrap().unwrap(), 5);
        drop(asks.join().unwrap());
        let error = patient.read(&mut buffer).unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "the mount has ended");

        let (brief, kernel) = awake(Duration::from_micros(1));
        assert!(brief.read(&mut buffer).is_none());
        assert!(!brief.turn.is_taken.load(Ordering::Relaxed), "others may have their turn");
        drop(kernel);
    }

    #[test]
    fn one_waits_at_a_time() {
        let (first, kernel) = awake(Duration::from_secs(20));
        rustix::io::write(&kernel, b"hello").unwrap();
        first.turn.is_taken.store(true, Ordering::Relaxed);
        assert!(first.read(&mut [0; 10]).is_none());
        first.turn.is_taken.store(false, Ordering::Relaxed);
        assert!(first.read(&mut [0; 10]).is_some());
    }

    #[test]
    fn nobody_does_where_it_is_not_wanted_or_cannot_be_had() {
        let (awake, kernel) = awake(Duration::from_micros(1));
        assert!(BusyPoll::new(&Arc::new(Turn::new(Duration::ZERO)), &awake.descriptor).is_none());
        assert!(BusyPoll::new(&awake.turn, &awake.descriptor).is_none(), "a socket is no device");
        drop(kernel);
    }
}
