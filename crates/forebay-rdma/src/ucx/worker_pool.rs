//! The workers of an I/O thread that threads drive which wait for their answers themselves. All its links share them, and there are a
//! few at most ([`Berths`]): one is with a thread for the time of a call, and has its connection to whichever server that asks.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_locks::Mutex;
use forebay_transport::driving::{Berth, Berths, LINGER};
use forebay_ucx::sockets_are_sound;
use tokio_util::sync::CancellationToken;

use crate::ucx::lone::{Lone, Parts};

/// How long is waited for what is under way on one before it is given up.
const TIDY_WITHIN: Duration = Duration::from_secs(10);

/// See above.
pub(crate) struct WorkerPool {
    parts: Parts,
    berths: Mutex<Berths<Lone>>,
    /// Links so far.
    links: AtomicU64,
    /// Answers that threads have received themselves.
    driven: AtomicU64,
}

impl WorkerPool {
    /// None yet.
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        Arc::new(Self { parts, berths: Mutex::new(Berths::new()), links: AtomicU64::new(0), driven: AtomicU64::new(0) })
    }

    /// Whether threads may drive one at all. Not where they could not sleep until an answer is there (EFA is polled), and not with an old
    /// UCX, which is not used to several workers in one process ([`sockets_are_sound`]).
    pub(crate) fn is_possible(&self) -> bool {
        self.parts.context.is_event_driven() && sockets_are_sound(self.parts.context.library().version())
    }

    /// A number for a link.
    pub(crate) fn number_link(&self) -> u64 {
        self.links.fetch_add(1, Ordering::Relaxed)
    }

    /// What connections tell servers, if they have a pass.
    pub(crate) fn client_id(&self) -> NonZeroU64 {
        self.parts.client_id
    }

    /// A thread has received an answer.
    pub(crate) fn count_driven(&self) {
        self.driven.fetch_add(1, Ordering::Relaxed);
    }

    /// How many threads have.
    pub(crate) fn driven(&self) -> u64 {
        self.driven.load(Ordering::Relaxed)
    }

    /// One that nobody has, and that has a connection for this link.
    pub(crate) fn take_for(&self, link: u64) -> Option<Lone> {
        self.berths.lock().take_if(|lone| lone.serves(link))
    }

    /// Any that nobody has, or one is to be made.
    #[must_use]
    pub(crate) fn take(&self) -> Berth<Lone> {
        self.berths.lock().take(Instant::now())
    }

    /// One that was taken is gone.
    pub(crate) fn lost(&self) {
        self.berths.lock().lost();
    }

    /// The one that was to be made could not be begun.
    pub(crate) fn failed(&self) {
        self.berths.lock().failed(Instant::now());
    }

    /// Makes one. Blocks for some milliseconds.
    ///
    /// # Errors
    /// UCX's.
    pub(crate) fn make(&self) -> Result<Lone, forebay_ucx::Error> {
        Lone::new(&self.parts)
    }

    /// Notes what came of making one. On the I/O thread, which looks from then on for those that nobody uses.
    pub(crate) fn made(self: &Arc<Self>, made: Result<Lone, forebay_ucx::Error>, stop: &CancellationToken) {
        let (unwanted, is_keeper) = self.berths.lock().attempted(made.map(Some), Instant::now());
        unwanted.into_iter().for_each(end);
        if is_keeper {
            drop(tokio::task::spawn_local(Arc::clone(self).keep(stop.clone())));
        }
    }

    async fn keep(self: Arc<Self>, stop: CancellationToken) {
        let mut keeper = Keeper(Some(Arc::clone(&self)));
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LINGER) => {}
            }
            let (expired, are_left) = self.berths.lock().expire(Instant::now());
            expired.into_iter().for_each(end);
            if !are_left {
                keeper.0 = None;
                return;
            }
        }
    }

    /// Puts one with those that nobody has; it is given back if it has something to end first ([`WorkerPool::tidy`]).
    pub(crate) fn rest(&self, lone: Lone) -> Option<Lone> {
        let mut berths = self.berths.lock();
        // With the lock: whoever closes a link has it find those that rest, or has them told here.
        if !lone.is_tidy() {
            return Some(lone);
        }
        let unwanted = berths.put_back(lone, Instant::now());
        drop(berths);
        drop(unwanted);
        None
    }

    /// Ends what is to be ended of one, and puts it with those that nobody has; on the I/O thread.
    pub(crate) async fn tidy(self: Arc<Self>, lone: Lone) {
        let mut next = Some(lone);
        while let Some(mut lone) = next.take() {
            match tokio::time::timeout(TIDY_WITHIN, lone.tidy()).await {
                Ok(Ok(())) => next = self.rest(lone),
                Ok(Err(_)) | Err(_) => {
                    tracing::warn!("a UCX worker of threads that wait for answers themselves is given up");
                    self.lost();
                    end(lone);
                }
            }
        }
    }

    /// Those that nobody has and that have a connection for this link, which was closed; to be [`WorkerPool::tidy`]ed.
    pub(crate) fn take_all(&self, link: u64) -> Vec<Lone> {
        let mut berths = self.berths.lock();
        std::iter::from_fn(|| berths.take_if(|lone| lone.serves(link))).collect()
    }
}

/// Ends one on a thread that may wait for what is under way on it; on the I/O thread.
fn end(lone: Lone) {
    drop(tokio::task::spawn_blocking(move || drop(lone)));
}

/// Who looks for those that nobody uses. With it, or with its thread, all of them end.
struct Keeper(Option<Arc<WorkerPool>>);

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(workers) = self.0.take() {
            let left = workers.berths.lock().close();
            drop(left);
        }
    }
}
