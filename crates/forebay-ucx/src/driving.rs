//! Driving a worker: progress until there is none, busy-poll for a while, arm, and sleep until the event descriptor or a new
//! operation calls.

use std::convert::Infallible;
use std::os::fd::{AsRawFd, RawFd};
use std::task::Poll;
use std::time::{Duration, Instant};

use forebay_locks::spin::{Patience, Spin};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::error::Error;
use crate::worker::Worker;

/// How many rounds of progress before other tasks get their turn.
pub(crate) const ROUNDS: u32 = 64;
/// UCX can refuse to sleep for as long as it waits for another process, such as a peer that was stopped in the middle
/// of writing to shared memory. After so many rounds for nothing, which is about a millisecond, the thread naps between
/// rounds.
const BUSY_ROUNDS: u32 = 1024;
/// A polled worker that had nothing to do for so long sleeps between its rounds, so long.
const IDLE: Duration = Duration::from_millis(5);
pub(crate) const NAP: Duration = Duration::from_millis(1);
/// After how many rounds for nothing a thread that busy-polls gives way. A round takes 0.1 µs over shared memory and 0.5 over
/// sockets.
const GIVE_WAY_ROUNDS: u32 = 16;

/// Nothing to do.
struct Wait {
    since: Instant,
    /// For how long the thread busy-polled, once that is over.
    awake: Option<Duration>,
}

impl Worker {
    /// Makes progress for as long as it is polled, and sleeps as soon as there is none; for a task of a current-thread runtime,
    /// spawned: the future that such a runtime blocks on looks at the operating system each time that it lets others run.
    ///
    /// # Errors
    /// [`Error::AlreadyDriven`], and when events cannot be waited for.
    pub async fn drive(&self) -> Result<Infallible, Error> {
        self.drive_with(&Spin::off()).await
    }

    /// The same, but busy-polls for a while, as `spin` allows.
    ///
    /// # Errors
    /// As for [`Worker::drive`].
    pub async fn drive_with(&self, spin: &Spin) -> Result<Infallible, Error> {
        if self.core().driving.replace(true) {
            return Err(Error::AlreadyDriven);
        }
        let _driving = Driving(self);
        match self.core().events {
            Some(events) => self.drive_by_events(events, spin).await,
            None => self.drive_by_polling().await,
        }
    }

    async fn drive_by_events(&self, events: RawFd, spin: &Spin) -> Result<Infallible, Error> {
        let core = self.core();
        // SAFETY: UCX keeps the descriptor open until the worker is destroyed, and the worker is borrowed for longer than this.
        let events = unsafe { AsyncFd::register_with_interest(Events(events), Interest::READABLE) }
            .map_err(|error| Error::Events(error.to_string()))?;
        let mut patience = Patience::new(spin);
        let mut waiting: Option<Wait> = None;
        let mut rounds = 0_u32;
        // Rounds since there was anything to do.
        let mut idle = 0_u32;
        // How many of those must have passed before arming is tried again.
        let mut next_arm = 0;
        loop {
            let started = core.kicked.replace(false);
            let progressed = self.progress() > 0;
            rounds = rounds.wrapping_add(1);
            if progressed {
                (idle, next_arm) = (0, 0);
            } else {
                idle = idle.saturating_add(1);
            }
            // What has arrived is taken in one go: a turn for the others costs as much as a small message.
            if progressed && !rounds.is_multiple_of(ROUNDS) {
                continue;
            }
            // The task that was woken has the next operation ready: sleeping before it has started would cost a wake-up.
            let woke = core.woke.replace(false);
            if (woke || started || progressed)
                && let Some(wait) = waiting.take()
            {
                match wait.awake {
                    None => patience.caught(wait.since.elapsed()),
                    Some(awake) => patience.slept(wait.since.elapsed(), awake),
                }
            }
            if woke || progressed {
                let_others_run().await;
                continue;
            }
            let wait = waiting.get_or_insert_with(|| {
                idle = 1;
                let since = Instant::now();
                let sleeps_at_once = patience.limit().is_zero() || !spin.is_welcome(since);
                Wait { since, awake: sleeps_at_once.then_some(Duration::ZERO) }
            });
            let Some(awake) = wait.awake else {
                if idle.is_multiple_of(GIVE_WAY_ROUNDS) {
                    let now = spin.give_way();
                    let waited = now.duration_since(wait.since);
                    if waited >= patience.limit() || !spin.is_welcome(now) {
                        wait.awake = Some(waited);
                        // From here on it counts what arming is refused for.
                        idle = 0;
                    }
                }
                let_others_run().await;
                continue;
            };
            // Arming costs system calls: what it was refused for is waited for by progress first.
            if idle < next_arm {
                continue;
            }
            if !self.arm()? {
                next_arm = idle.saturating_add(ROUNDS);
                if idle > BUSY_ROUNDS {
                    tokio::time::sleep(NAP).await
                } else {
                    let_others_run().await
                }
                continue;
            }
            std::future::poll_fn(|cx| {
                if core.kicked.replace(false) {
                    return Poll::Ready(Ok(()));
                }
                *core.driver.borrow_mut() = Some(cx.waker().clone());
                events.poll_read_ready(cx).map_ok(|mut guard| guard.clear_ready())
            })
            .await
            .map_err(|error| Error::Events(error.to_string()))?;
            patience.slept(wait.since.elapsed(), awake);
            (waiting, rounds, idle, next_arm) = (None, 0, 0, 0);
        }
    }

    async fn drive_by_polling(&self) -> Result<Infallible, Error> {
        let core = self.core();
        let mut busy = Instant::now();
        loop {
            let kicked = core.kicked.replace(false);
            if self.progress() > 0 || core.woke.replace(false) || kicked {
                busy = Instant::now();
                let_others_run().await;
            } else if busy.elapsed() < IDLE {
                tokio::task::yield_now().await;
            } else {
                tokio::time::sleep(NAP).await;
            }
        }
    }
}

/// Says that the worker is driven, for as long as it lives.
struct Driving<'a>(&'a Worker);

impl Drop for Driving<'_> {
    fn drop(&mut self) {
        let core = self.0.core();
        core.driving.set(false);
        drop(core.driver.take());
    }
}

/// The worker's event descriptor, which UCX closes with the worker.
pub(crate) struct Events(pub(crate) RawFd);

impl AsRawFd for Events {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

/// Lets the tasks that are ready run, without a look at the operating system, which tokio's own yield takes.
pub(crate) async fn let_others_run() {
    let mut yielded = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
