//! Taking back the kernel's belief in a name.
//!
//! The kernel takes the directory's lock for it, which may be held by a lookup that waits for us: so it is never done
//! by a thread that serves requests, but by one of its own, fed through a bounded queue. A name that does not fit is
//! left out: its inode is marked all the same, and `open` says `ESTALE`.
//!
//! The lookup that holds the lock may be for the next process to answer, once this one has let go of the mount. So nobody who ends
//! the queue waits for the thread in the kernel, nor for room in the queue.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use tracing::debug;

const QUEUE: usize = 1024;
/// How often it is looked whether there is room in the queue again.
const LOOKED_AT_EVERY: Duration = Duration::from_millis(1);

enum Message {
    Name {
        parent: u64,
        name: Box<[u8]>,
    },
    /// A thread wants to know when everything before it is done.
    Done(SyncSender<()>),
    End,
}

/// Where stale names are put.
#[derive(Clone)]
pub(crate) struct StaleNames {
    queue: SyncSender<Message>,
    /// The kernel is told of nothing any more.
    is_over: Arc<AtomicBool>,
}

/// Where they are taken from.
pub(crate) struct StaleQueue {
    queue: Receiver<Message>,
    is_over: Arc<AtomicBool>,
}

/// An empty queue.
pub(crate) fn stale_names() -> (StaleNames, StaleQueue) {
    let (sender, receiver) = sync_channel(QUEUE);
    let is_over = Arc::<AtomicBool>::default();
    (StaleNames { queue: sender, is_over: Arc::clone(&is_over) }, StaleQueue { queue: receiver, is_over })
}

impl StaleNames {
    /// The kernel shall look `name` in directory `parent` up again. Does not wait.
    pub(crate) fn push(&self, parent: u64, name: &[u8]) {
        if self.queue.try_send(Message::Name { parent, name: name.into() }).is_err() {
            debug!("the queue of stale names is full");
        }
    }

    /// The same, waiting while the queue is full, no longer than `until`. False: it is still full.
    pub(crate) fn push_patiently(&self, parent: u64, name: &[u8], until: Instant) -> bool {
        // When it is over, nothing need be told any more.
        self.send(Message::Name { parent, name: name.into() }, until) || self.is_over.load(Ordering::Acquire)
    }

    /// Waits until the kernel was told of all that was pushed before, no longer than `within`.
    pub(crate) fn wait(&self, within: Duration) {
        let (until, (done, is_done)) = (Instant::now() + within, sync_channel(1));
        let is_sent = self.send(Message::Done(done), until);
        // A lookup that the kernel waits for, with the directory locked, may take longer; its answer is a new one then.
        if !is_sent || is_done.recv_timeout(until.saturating_duration_since(Instant::now())).is_err() {
            debug!(?within, "the kernel was not told of all stale names yet");
        }
    }

    /// Ends the thread that runs [`StaleQueue::serve`]. What is in the queue need not be told: the mount has ended, or the next process
    /// asks for everything anew. Does not wait.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        // It fails when the thread has ended; and when the queue is full, and then it has something to wake up for.
        let _ = self.queue.try_send(Message::End);
    }

    /// Waits while the queue is full, until then. False: it is over, or late.
    fn send(&self, mut message: Message, until: Instant) -> bool {
        loop {
            if self.is_over.load(Ordering::Acquire) {
                return false;
            }
            match self.queue.try_send(message) {
                Ok(()) => return true,
                Err(TrySendError::Full(back)) if Instant::now() < until => message = back,
                Err(_) => return false,
            }
            thread::sleep(LOOKED_AT_EVERY);
        }
    }
}

impl StaleQueue {
    /// Tells the kernel of each name by `tell`, which may wait, until [`StaleNames::end`].
    pub(crate) fn serve(self, tell: impl Fn(u64, &[u8]) -> io::Result<()>) {
        while let Ok(message) = self.queue.recv() {
            if self.is_over.load(Ordering::Acquire) {
                break;
            }
            match message {
                // This fails after an unmount, when the mount is gone.
                Message::Name { parent, name } => {
                    if let Err(error) = tell(parent, &name) {
                        debug!(%error, "the kernel was not told of a stale name");
                    }
                }
                // The waiter may have given up.
                Message::Done(done) => drop(done.try_send(())),
                Message::End => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn each_name_is_told_in_its_order_and_who_waits_hears_when_all_are() {
        let (names, queue) = stale_names();
        let (tell, told) = channel();
        let teller = thread::spawn(move || {
            queue.serve(|parent, name| {
                tell.send((parent, name.to_vec())).map_err(io::Error::other)?;
                Err(io::ErrorKind::NotFound.into())
            });
        });
        names.push(1, b"a");
        assert!(names.push_patiently(2, b"b", Instant::now() + SOON));
        names.wait(SOON);
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [(1, b"a".to_vec()), (2, b"b".to_vec())]);
        names.end();
        teller.join().unwrap();
        // Nobody waits for a thread that is gone.
        assert!(names.push_patiently(3, b"c", Instant::now() + SOON));
        names.wait(SOON);
    }

    #[test]
    fn who_waits_for_room_does_so_until_its_time_is_over() {
        let (names, _queue) = stale_names();
        for _ in 0..QUEUE {
            assert!(names.push_patiently(1, b"a", Instant::now() + SOON));
        }
        assert!(!names.push_patiently(1, b"b", Instant::now()), "the kernel takes none");
        names.end();
        assert!(names.push_patiently(1, b"c", Instant::now()), "it need not be told any more");
    }

    /// As when a lookup holds the directory that is for the next process to answer.
    #[test]
    fn who_ends_it_does_not_wait_for_a_thread_that_the_kernel_keeps_and_the_rest_is_not_told() {
        let (names, queue) = stale_names();
        let (begins, begun) = channel();
        let (goes_on, may_go_on) = channel::<()>();
        let teller = thread::spawn(move || {
            let told = std::cell::Cell::new(0);
            queue.serve(|_, _| {
                told.set(told.get() + 1);
                begins.send(()).map_err(io::Error::other)?;
                may_go_on.recv().map_err(io::Error::other)
            });
            told.get()
        });
        names.push(1, b"first");
        begun.recv().unwrap();
        for _ in 0..2 * QUEUE {
            names.push(1, b"further");
        }
        names.wait(Duration::from_millis(1));
        let waits = {
            let names = names.clone();
            thread::spawn(move || names.push_patiently(1, b"patient", Instant::now() + SOON))
        };
        names.end();
        // Whoever waits for room goes on, too, while the thread is still kept.
        waits.join().unwrap();
        assert!(!teller.is_finished());
        goes_on.send(()).unwrap();
        assert_eq!(teller.join().unwrap(), 1);
    }
}
