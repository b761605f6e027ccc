//! Ends requests of threads that are being killed.
//!
//! A thread that was sent SIGKILL stays until its request is answered. So a request of such a thread is ended with `EINTR`. It is
//! ended for no other signal: runtimes of languages send their own threads signals all the time, and programs do not expect that a
//! read from a file is interrupted.
//!
//! The kernel tells of a request once, at the first signal, and a later one may be the deadly one; of a direct read it tells
//! nothing, since that is waited for in another way. So a thread that has waited for a while is looked at now and then. That is
//! done by the task that waits, and costs others nothing: a request that is answered at once is never in the table.
//!
//! A thread that is gone was not waiting: what it began may be waited for by another one of its process.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use forebay_fuse_io::Header;
use forebay_locks::Mutex;
use tokio::sync::Notify;

/// Requests of many threads meet in the table, so it is several.
const SHARDS: usize = 16;
/// How many are remembered of which the kernel told before they waited, in each of them. Of most it told too late.
const EARLY: usize = 8;
/// How often a thread that waits is looked at: some ten microseconds each.
const LOOKED_AT_EVERY: Duration = Duration::from_millis(500);

/// Requests that wait and may be ended early.
pub(crate) struct Interrupts {
    /// `None`: none may.
    shards: Option<Box<[Mutex<Shard>; SHARDS]>>,
    is_dying: fn(u32) -> bool,
}

#[derive(Default)]
struct Shard {
    waiting: HashMap<u64, Arc<Notify>>,
    early: VecDeque<u64>,
}

/// A request, and the thread that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    unique: u64,
    /// 0: the thread is not known.
    thread: u32,
}

impl Waiter {
    /// The thread that sent the request with this header.
    pub(crate) fn of(header: &Header) -> Self {
        Self { unique: header.unique, thread: header.pid }
    }
}

impl Interrupts {
    /// None yet; `are_wanted`: there may be some.
    pub(crate) fn new(are_wanted: bool) -> Self {
        Self { shards: are_wanted.then(Box::default), is_dying }
    }

    /// The thread that waits for request `unique` was sent a signal. Does not wait.
    pub(crate) fn interrupted(&self, unique: u64) {
        let Some(shard) = self.shard(unique) else { return };
        let mut shard = shard.lock();
        if let Some(told) = shard.waiting.get(&unique) {
            told.notify_one();
            return;
        }
        // It was answered meanwhile, or is about to wait.
        if shard.early.len() == EARLY {
            shard.early.pop_front();
        }
        shard.early.push_back(unique);
    }

    /// Does `work`, unless `waiter` is being killed: `None`.
    pub(crate) async fn unless_killed<T>(&self, waiter: Waiter, work: impl Future<Output = T>) -> Option<T> {
        let Some(waiting) = self.wait(waiter) else { return Some(work.await) };
        tokio::select! {
            // An answer that is there is given.
            biased;
            done = work => Some(done),
            () = waiting.killed(self.is_dying) => None,
        }
    }

    fn wait(&self, waiter: Waiter) -> Option<Waiting<'_>> {
        let shard = self.shard(waiter.unique).filter(|_| waiter.thread != 0)?;
        let told = Arc::new(Notify::new());
        let mut entries = shard.lock();
        if let Some(at) = entries.early.iter().position(|unique| *unique == waiter.unique) {
            entries.early.remove(at);
            told.notify_one();
        }
        entries.waiting.insert(waiter.unique, Arc::clone(&told));
        drop(entries);
        Some(Waiting { shard, waiter, told })
    }

    fn shard(&self, unique: u64) -> Option<&Mutex<Shard>> {
        // The lowest bit of a request is never set.
        self.shards.as_ref().map(|shards| &shards[(unique >> 1) as usize % SHARDS])
    }
}

/// A request in the table.
struct Waiting<'a> {
    shard: &'a Mutex<Shard>,
    waiter: Waiter,
    told: Arc<Notify>,
}

impl Waiting<'_> {
    /// Resolves when the thread is being killed.
    async fn killed(&self, is_dying: fn(u32) -> bool) {
        loop {
            // Either way it is time to look.
            let _ = tokio::time::timeout(LOOKED_AT_EVERY, self.told.notified()).await;
            if is_dying(self.waiter.thread) {
                return;
            }
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.shard.lock().waiting.remove(&self.waiter.unique);
    }
}

/// Whether a thread is being killed.
fn is_dying(thread: u32) -> bool {
    // It is in memory: the kernel writes it as it is read.
    std::fs::read_to_string(format!("/proc/{thread}/status")).is_ok_and(|status| says_dying(&status))
}

/// What `/proc/PID/status` says of it. A signal that ends a process becomes SIGKILL for each of its threads.
fn says_dying(status: &str) -> bool {
    const KILLED: u64 = 1 << (libc::SIGKILL - 1);
    let is_pending = |value: &str| u64::from_str_radix(value.trim(), 16).is_ok_and(|pending| pending & KILLED != 0);
    let mut fields = status.lines().filter_map(|line| line.split_once(':'));
    fields.any(|(field, value)| matches!(field, "SigPnd" | "ShdPnd") && is_pending(value))
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    /// It is being killed, and others are not.
    const DYING: u32 = 7;

    fn interrupts() -> Interrupts {
        Interrupts { is_dying: |thread| thread == DYING, ..Interrupts::new(true) }
    }

    fn waiter(unique: u64, thread: u32) -> Waiter {
        Waiter { unique, thread }
    }

    fn is_waiting(interrupts: &Interrupts, unique: u64) -> bool {
        interrupts.shard(unique).unwrap().lock().waiting.contains_key(&unique)
    }

    /// Tells of `unique` once it waits.
    async fn tell(interrupts: &Interrupts, unique: u64) {
        while !is_waiting(interrupts, unique) {
            tokio::task::yield_now().await;
        }
        interrupts.interrupted(unique);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_killed_waits_no_longer_also_when_the_kernel_tells_nothing() {
        let interrupts = interrupts();
        let began = tokio::time::Instant::now();
        let waits = interrupts.unless_killed(waiter(2, DYING), pending::<()>());
        assert_eq!(tokio::join!(waits, tell(&interrupts, 2)).0, None);
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert_eq!(interrupts.unless_killed(waiter(4, DYING), pending::<()>()).await, None);
        assert_eq!(began.elapsed().as_millis(), LOOKED_AT_EVERY.as_millis());
        assert!(!is_waiting(&interrupts, 2) && !is_waiting(&interrupts, 4));
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_sent_another_signal_gets_its_answer() {
        let interrupts = interrupts();
        let work = async {
            tell(&interrupts, 4).await;
            tokio::time::sleep(LOOKED_AT_EVERY * 10).await;
            5
        };
        assert_eq!(interrupts.unless_killed(waiter(4, 8), work).await, Some(5));
        assert!(!is_waiting(&interrupts, 4));
    }

    #[tokio::test(start_paused = true)]
    async fn a_signal_that_the_kernel_told_of_too_early_counts_and_one_too_late_does_no_harm() {
        let interrupts = interrupts();
        interrupts.interrupted(6);
        let began = tokio::time::Instant::now();
        assert_eq!(interrupts.unless_killed(waiter(6, DYING), pending::<()>()).await, None);
        assert_eq!(began.elapsed(), Duration::ZERO);
        for late in 0..1000 {
            interrupts.interrupted(late * 2);
        }
        let held: usize = interrupts.shards.as_ref().unwrap().iter().map(|shard| shard.lock().early.len()).sum();
        assert_eq!(held, SHARDS * EARLY);
    }

    #[tokio::test]
    async fn nobody_is_let_go_of_who_is_not_known_or_where_that_is_turned_off() {
        let known = interrupts();
        known.interrupted(8);
        assert_eq!(known.unless_killed(waiter(8, 0), ready(1)).await, Some(1));
        let off = Interrupts::new(false);
        off.interrupted(8);
        assert_eq!(off.unless_killed(waiter(8, DYING), ready(1)).await, Some(1));
    }

    #[test]
    fn only_a_deadly_signal_is_deadly_and_who_is_gone_does_not_wait() {
        let status = |pending: u64, shared: u64| {
            format!("Name:\tcat\nState:\tD\nSigPnd:\t{pending:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t0100\n")
        };
        let (kill, urgent) = (1u64 << 8, 1u64 << 22);
        assert!(says_dying(&status(kill, 0)) && says_dying(&status(urgent, kill | urgent)));
        assert!(!says_dying(&status(urgent, 0)));
        // There is no thread of this number.
        assert!(!is_dying(std::process::id()) && !is_dying(u32::MAX));
    }
}
