//! Threads that wait for an answer themselves: they *drive* a connection.
//!
//! A call is usually made by a task, which sleeps until the connection's task, or its I/O thread, has brought the answer. For a
//! small read that hits, most of its time is the way from one thread to the next. So a thread that may block, such as one that
//! reads requests from `/dev/fuse`, or a program's own, says so while it polls a call for the first time ([`permitted`]). The
//! transport then lets it receive the answer itself, for as long as [`DriveOptions::wait`] allows ([`begin`]). If it does not
//! come in that time, the call is pending like any other, and goes on as a task. So deadlines, cancellation, hedging and
//! failover are what they always are; they see a call that was answered when it was first polled.
//!
//! What keeps others from harm:
//!
//! * a thread that was not permitted to, such as one of a runtime, never waits;
//! * of the threads of a mount some are always left ([`permitted`]'s `most`), and all that one poll waits for, it waits for no
//!   longer than `wait` in total;
//! * a link on which answers come late is not driven for a number of reads, the more the more often that happens ([`Restraint`]);
//! * nobody drives while others wait on the link: the task that receives for them takes all answers together;
//! * who makes several calls at once has none of them waited for before all are made ([`permitted_if`]);
//! * who drives a connection that is shared with a task is settled by one word ([`Helm`]); where each thread has a connection to
//!   itself, one taken by nobody else is looked for among them ([`Berths`]).
//!
//! How a thread waits is the same wherever it receives itself: it busy-polls for a moment, and sleeps then ([`Waits`]). Where it is
//! told of what comes only if it asks for that, it does so before it sleeps ([`Dozing`]). Where an I/O thread has to receive for
//! it, it waits for that one ([`Turn::wait_for`]): then no thread of a runtime is between the two.

mod berths;
mod dozing;
mod helm;
#[cfg(test)]
mod model;
mod restraint;
mod waits;

use std::cell::Cell;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

pub use berths::{Berth, Berths, LINGER, or_lost};
pub use dozing::{Dozing, Step};
pub use helm::{Helm, Taken};
pub use restraint::Restraint;
pub use waits::Waits;

/// What `helm` needs of threads.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU32, Ordering};
}

/// How a thread waits for an answer itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriveOptions {
    /// For how long at most; zero: never.
    pub wait: Duration,
    /// For how long of that it busy-polls at most, where that takes no more of the processor than sleeping does.
    pub spin: Duration,
}

impl Default for DriveOptions {
    fn default() -> Self {
        Self { wait: Duration::from_micros(250), spin: Duration::from_micros(50) }
    }
}

/// What a thread that polls a call may do.
#[derive(Clone, Copy)]
struct Permission {
    /// So many threads of the process may wait at once.
    most: usize,
    /// When its time is over; set when it first waits.
    until: Option<Instant>,
    /// Calls that it had the answers to.
    answered: u32,
}

thread_local! {
    static PERMISSION: Cell<Option<Permission>> = const { Cell::new(None) };
}

/// Threads of the process that wait now.
static DRIVING: AtomicUsize = AtomicUsize::new(0);

/// Has things as they were before.
struct Restores(Option<Permission>);

impl Drop for Restores {
    fn drop(&mut self) {
        PERMISSION.set(self.0);
    }
}

/// Runs `poll` on this thread, in which calls may wait for their answers, if fewer than `most` threads of the process do. Returns
/// what it gives, and how many calls were answered that way.
pub fn permitted<T>(most: usize, poll: impl FnOnce() -> T) -> (T, u32) {
    let _restores = Restores(PERMISSION.replace(Some(Permission { most, until: None, answered: 0 })));
    let polled = poll();
    (polled, PERMISSION.get().map_or(0, |permission| permission.answered))
}

/// What `future` gives. Unless `may_wait`, the thread that polls it waits for none of its answers: there are others to ask for first.
pub async fn permitted_if<F: Future>(may_wait: bool, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| {
        let _restores = (!may_wait).then(|| Restores(PERMISSION.replace(None)));
        future.as_mut().poll(context)
    })
    .await
}

/// The right of this thread to wait now. It stays on the thread, so it cannot be kept by a future that waits.
#[derive(Debug)]
pub struct Turn {
    until: Instant,
    stays: PhantomData<*const ()>,
}

/// Whether the calling thread may wait for answers itself, as far as it alone is concerned: for who has work to do before [`begin`].
#[must_use]
#[inline]
pub fn is_permitted() -> bool {
    PERMISSION.get().is_some()
}

/// Whether the calling thread may wait for an answer itself, of a call that has so much time left.
#[must_use]
pub fn begin(options: &DriveOptions, left: Duration) -> Option<Turn> {
    let mut permission = PERMISSION.get()?;
    if options.wait.is_zero() {
        return None;
    }
    let now = Instant::now();
    let until = *permission.until.get_or_insert(now + options.wait);
    PERMISSION.set(Some(permission));
    let until = now.checked_add(left).map_or(until, |deadline| deadline.min(until));
    if until <= now {
        return None;
    }
    // From here on it is given back.
    let turn = Turn { until, stays: PhantomData };
    let before = DRIVING.fetch_add(1, Ordering::Relaxed);
    (before < permission.most).then_some(turn)
}

impl Turn {
    /// When it has waited for long enough.
    #[must_use]
    pub fn until(&self) -> Instant {
        self.until
    }

    /// What `future` gives, which another thread brings it; nothing if it has not by then. It is not lost then, and may be polled on.
    pub fn wait_for<F: Future + Unpin>(&self, future: &mut F) -> Option<F::Output> {
        let waker = Waker::from(Arc::new(Unparks(thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(output) = Pin::new(&mut *future).poll(&mut context) {
                return Some(output);
            }
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            thread::park_timeout(left);
        }
    }

    /// It has its answer.
    pub fn answered(&self) {
        note_answer();
    }
}

/// The calling thread has the answer to a call that it made, if it may wait for such: what [`permitted`] counts. For who had it without
/// a [`Turn`], such as by busy-polling as every caller does.
pub fn note_answer() {
    if let Some(permission) = PERMISSION.get() {
        PERMISSION.set(Some(Permission { answered: permission.answered + 1, ..permission }));
    }
}

/// After a fork, in the child: the threads that waited are not in this process. As safe as a change of an atomic is.
pub fn after_fork_in_child() {
    DRIVING.store(0, Ordering::Relaxed);
}

/// Wakes a thread that waits.
struct Unparks(Thread);

impl Wake for Unparks {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        DRIVING.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: DriveOptions = DriveOptions { wait: Duration::from_secs(600), spin: Duration::ZERO };
    const LONG: Duration = Duration::from_secs(3600);
    /// More threads than the tests of this crate have.
    const MANY: usize = 1 << 20;

    #[test]
    fn a_thread_waits_only_while_it_is_permitted_to() {
        assert!(!is_permitted() && begin(&OPTIONS, LONG).is_none());
        let (may_wait, answered) = permitted(MANY, || is_permitted() && begin(&OPTIONS, LONG).is_some());
        assert!(may_wait && answered == 0);
        assert!(begin(&OPTIONS, LONG).is_none());
        let never = DriveOptions { wait: Duration::ZERO, ..OPTIONS };
        assert!(!permitted(MANY, || begin(&never, LONG).is_some()).0);
        assert!(!permitted(0, || begin(&OPTIONS, LONG).is_some()).0, "no thread may");
        assert!(!permitted(MANY, || begin(&OPTIONS, Duration::ZERO).is_some()).0, "no time is left");
        let elsewhere = || std::thread::scope(|scope| scope.spawn(|| begin(&OPTIONS, LONG).is_some()).join().unwrap());
        assert!(!permitted(MANY, elsewhere).0, "it is this thread that may");
    }

    #[test]
    fn what_waits_within_one_poll_has_the_time_of_one() {
        let times = || (0..3).filter_map(|_| begin(&OPTIONS, LONG)).map(|turn| turn.until()).collect::<Vec<_>>();
        let (times, _) = permitted(MANY, times);
        assert!(times.len() == 3 && times.iter().all(|until| *until == times[0]));
        let (brief, _) = permitted(MANY, || begin(&OPTIONS, Duration::from_secs(60)).map(|turn| turn.until()));
        assert!(brief.unwrap() < Instant::now() + OPTIONS.wait / 2, "no longer than the call itself may take");
    }

    #[test]
    fn answers_are_counted_for_the_poll_that_they_came_in() {
        let twice = || (0..2).filter_map(|_| begin(&OPTIONS, LONG)).for_each(|turn| turn.answered());
        let (inner, outer) = permitted(MANY, || {
            twice();
            permitted(MANY, || begin(&OPTIONS, LONG).iter().for_each(Turn::answered)).1
        });
        assert_eq!((inner, outer), (1, 2));
    }

    #[test]
    fn a_thread_waits_for_what_another_one_brings_and_for_no_longer_than_it_may() {
        let (brings, mut brought) = tokio::sync::oneshot::channel();
        let other = std::thread::spawn(move || {
            thread::sleep(Duration::from_millis(5));
            brings.send(7).unwrap();
        });
        let (waited, _) = permitted(MANY, || begin(&OPTIONS, LONG).and_then(|turn| turn.wait_for(&mut brought)));
        assert_eq!(waited, Some(Ok(7)));
        other.join().unwrap();
        let (late, mut comes) = tokio::sync::oneshot::channel::<u8>();
        let brief = DriveOptions { wait: Duration::from_millis(5), ..OPTIONS };
        let (waited, _) = permitted(MANY, || begin(&brief, LONG).and_then(|turn| turn.wait_for(&mut comes)));
        assert_eq!(waited, None);
        late.send(8).unwrap();
        assert_eq!(comes.try_recv(), Ok(8), "it is not lost");
    }

    #[test]
    fn one_of_several_calls_is_not_waited_for_and_what_follows_may_be() {
        let poll = |may_wait| {
            let inner = permitted_if(may_wait, async { begin(&OPTIONS, LONG).is_some() });
            let both = async { (inner.await, begin(&OPTIONS, LONG).is_some()) };
            permitted(MANY, || pin!(both).poll(&mut Context::from_waker(Waker::noop()))).0
        };
        assert_eq!((poll(true), poll(false)), (Poll::Ready((true, true)), Poll::Ready((false, true))));
    }

    #[test]
    fn a_poll_that_panics_leaves_no_permission() {
        let panics = || permitted::<()>(MANY, || panic!("on purpose"));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert!(begin(&OPTIONS, LONG).is_none());
    }

    #[test]
    fn one_thread_drives_at_a_time_and_the_task_is_told_only_of_the_first() {
        let helm = Helm::default();
        assert!(helm.is_watched());
        assert_eq!(helm.take(), Some(Taken::FromTask));
        assert!(helm.take().is_none() && !helm.is_watched());
        assert!(!helm.leave(false), "nobody waits");
        assert!(!helm.is_watched(), "and nobody receives");
        assert_eq!((helm.take(), helm.taken()), (Some(Taken::Free), 2));
        assert!(!helm.leave(false));
        helm.watch();
        assert!(helm.is_watched());
        assert_eq!(helm.take(), Some(Taken::FromTask));
    }

    #[test]
    fn the_task_receives_for_those_who_wait_when_a_thread_leaves() {
        let helm = Helm::default();
        helm.take().unwrap();
        assert!(helm.leave(true) && helm.is_watched());
        helm.take().unwrap();
        assert!(!helm.call(), "the thread receives for them meanwhile");
        helm.watch();
        assert!(!helm.is_watched(), "it goes on");
        assert!(helm.take().is_none());
        assert!(helm.leave(false) && helm.is_watched(), "it has not seen them, and was told");
    }

    #[test]
    fn a_call_on_a_connection_that_rests_wakes_the_task() {
        let helm = Helm::default();
        assert!(!helm.call(), "it receives anyway");
        helm.take().unwrap();
        assert!(!helm.leave(false));
        assert!(helm.call() && helm.is_watched());
    }
}
