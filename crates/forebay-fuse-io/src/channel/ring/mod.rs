//! The ring channel: requests come in entries of rings, and their answers go back in the same.
//!
//! The kernel has a queue for each processor. We give it entries for every queue, each a header and a payload in our memory; it
//! puts a request into one and completes its command; we put the answer there and submit the entry again, which fetches the next
//! request. So one system call answers, fetches and waits, on the processor on which the program asked.
//!
//! * [`cpus`]: which thread serves which queue;
//! * [`entry`]: the memory of an entry, with its `headers`, and whose [`turn`] it is to touch it; [`ready`] and
//!   [`answered`]: entries that other threads have answered;
//! * [`queue`]: what becomes of each entry, as a pure machine;
//! * [`submit`]: what is asked of the kernel; [`thread`]: the loop, and [`counters`]: what it counts.
//!
//! What a ring does not carry comes and goes over `/dev/fuse`: references given back, interrupts, notifications. An answer goes
//! back the way its request came.
//!
//! Rings are made before the kernel is told of them ([`Prepared`]) and registered after it was ([`Prepared::go_live`]). It sends
//! nothing over them before every queue has an entry, and then everything, for ever. If a queue cannot have one we make it do
//! without rings; once they are live a thread that fails takes the mount with it, since the requests of its queues would wait for
//! ever.

mod answered;
pub(crate) mod counters;
pub(crate) mod cpus;
pub(crate) mod entry;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod headers;
#[cfg(test)]
mod model;
pub(crate) mod queue;
mod ready;
pub(crate) mod shape;
pub(crate) mod submit;
mod sync;
#[cfg(test)]
mod tests;
mod thread;
mod turn;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::{Builder, JoinHandle};

use forebay_memory::{Pool, PoolOptions};
use forebay_types::ByteSize;
use tracing::{debug, warn};

use self::counters::Counters;
use self::cpus::{Cpus, FOREIGN_DEPTH, MIN_DEPTH, ThreadPlan, share_queues, stay_on};
use self::entry::Entries;
use self::queue::Machine;
use self::ready::Ready;
pub use self::shape::RingShape;
use self::submit::{KernelRing, Submit, do_without_rings};
use self::thread::RingThread;
use crate::reply::Dispatch;

/// What the rings of a mount are made with.
#[derive(Clone, Debug)]
pub(crate) struct RingOptions {
    /// Serving threads at most: one for each CPU that we may run on, or fewer.
    pub(crate) threads: usize,
    /// Entries of the queue of a CPU with a thread of its own, at most.
    pub(crate) depth: u32,
    /// Address space for payloads at most, in bytes. Memory is used only by as many as are in use at once: the kernel hands out the
    /// entry that was given back last.
    pub(crate) memory: u64,
    /// Bytes of one payload: what INIT will agree on, `max(max_write, max_pages * 4096)`.
    pub(crate) payload: usize,
    /// Where payloads come from; a pool of the mount's own without one.
    pub(crate) pool: Option<Pool>,
}

/// Why there is no ring.
#[derive(Debug, thiserror::Error)]
pub enum NoUring {
    /// INIT did not offer it.
    #[error("this kernel does not offer FUSE over io_uring: it needs Linux 6.14 with CONFIG_FUSE_IO_URING")]
    NotInKernel,
    /// The same, where the module parameter is there and says N.
    #[error("FUSE over io_uring is switched off: as root, echo Y > /sys/module/fuse/parameters/enable_uring")]
    Off,
    /// `io_uring_setup(2)` is refused.
    #[error("io_uring is forbidden here ({0}): a seccomp filter, or kernel.io_uring_disabled")]
    Forbidden(io::Error),
    /// Payloads or rings.
    #[error("no memory for the rings: {0}; lower fuse.uring.depth")]
    Memory(String),
    /// The kernel refused an entry; the mount goes on over `/dev/fuse`.
    #[error("the kernel refused a ring entry: {0}")]
    Refused(io::Error),
}

impl NoUring {
    /// What it means that a ring cannot be made.
    fn because(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => Self::Forbidden(error),
            _ => Self::Memory(error.to_string()),
        }
    }
}

/// What is to be done when a ring fails after it went live: called once a thread, from that thread, with the reason. The mount
/// cannot go on without the ring: requests of its CPUs would wait for ever.
pub(crate) type OnFailure = Box<dyn Fn(io::Error) + Send + Sync>;

/// What a waiting thread is sent to begin with; without it, it ends.
struct Go {
    device: Arc<OwnedFd>,
    failed: Arc<OnFailure>,
    registered: SyncSender<io::Result<()>>,
}

/// Rings that are made, their threads waiting: nothing of it is known to the kernel's FUSE yet. Dropped, it ends them.
pub(crate) struct Prepared {
    shape: RingShape,
    pool: Pool,
    threads: Vec<(SyncSender<Go>, Thread)>,
    is_given_up: Arc<AtomicBool>,
}

struct Thread {
    handle: JoinHandle<io::Result<()>>,
    entries: Arc<Entries>,
    counters: Arc<Counters>,
}

impl Prepared {
    /// Makes rings, payloads and threads; before INIT is answered, so that bit 41 is only asked for if this worked.
    ///
    /// # Errors
    /// [`NoUring::Forbidden`] and [`NoUring::Memory`].
    pub(crate) fn new<D: Dispatch>(options: &RingOptions, dispatch: Arc<D>) -> Result<Self, NoUring> {
        #[cfg(test)]
        if let Some(fake) = crate::fakes::ring::installed() {
            let cpus = fake.cpus();
            return Self::with(options, &cpus, move |_| fake.ring(), &dispatch);
        }
        let cpus = Cpus::of_this_machine().map_err(|error| NoUring::Memory(error.to_string()))?;
        Self::with(options, &cpus, KernelRing::new, &dispatch)
    }

    /// The same with rings of any kind, which each thread makes for itself.
    pub(crate) fn with<S: Submit, D: Dispatch>(
        options: &RingOptions,
        cpus: &Cpus,
        make: impl Fn(usize) -> io::Result<S> + Clone + Send + 'static,
        dispatch: &Arc<D>,
    ) -> Result<Self, NoUring> {
        let (plans, depth) = plan(options, cpus)?;
        let count: usize = plans.iter().map(ThreadPlan::entries).sum();
        let pool = match &options.pool {
            Some(pool) => pool.clone(),
            None => pool_for(count, options.payload)?,
        };
        let shape = RingShape { threads: plans.len(), queues: usize::from(cpus.queues), depth };
        let mut prepared = Self { shape, pool: pool.clone(), threads: Vec::new(), is_given_up: Arc::default() };
        for plan in plans {
            prepared.spawn(plan, options.payload, &pool, make.clone(), Arc::clone(dispatch))?;
        }
        Ok(prepared)
    }

    /// Starts a thread, and waits until it has its ring.
    fn spawn<S: Submit, D: Dispatch>(
        &mut self,
        plan: ThreadPlan,
        payload: usize,
        pool: &Pool,
        make: impl Fn(usize) -> io::Result<S> + Send + 'static,
        dispatch: Arc<D>,
    ) -> Result<(), NoUring> {
        let count = plan.entries();
        let ready = Ready::new(count as u32).map_err(NoUring::because)?;
        let entries = Entries::new(&plan.queues, payload, pool, ready);
        let entries = Arc::new(entries.map_err(|error| NoUring::Memory(error.to_string()))?);
        let counters = Arc::new(Counters::default());
        let (go, begin) = mpsc::sync_channel(1);
        let (made, is_made) = mpsc::sync_channel(1);
        let (its_entries, its_counters) = (Arc::clone(&entries), Arc::clone(&counters));
        let is_given_up = Arc::clone(&self.is_given_up);
        let machine = Machine::new(plan.queues.iter().map(|(_, depth)| *depth));
        let work = move || {
            if let Some(cpu) = plan.cpu
                && let Err(error) = stay_on(cpu)
            {
                debug!(cpu, %error, "a ring thread runs anywhere");
            }
            let submit = match make(count) {
                Ok(submit) => submit,
                Err(error) => {
                    let _ = made.send(Err(error));
                    return Ok(());
                }
            };
            let _ = made.send(Ok(()));
            let thread = RingThread { submit, entries: its_entries, machine, counters: its_counters, is_given_up };
            run(thread, &begin, &*dispatch)
        };
        let name = format!("forebay-ring-{}", self.threads.len());
        let handle = Builder::new().name(name).spawn(work).map_err(NoUring::because)?;
        self.threads.push((go, Thread { handle, entries, counters }));
        match is_made.recv() {
            Ok(made) => made.map_err(NoUring::because),
            Err(_) => Err(NoUring::Memory("a thread ended before it began".to_owned())),
        }
    }

    /// How many there are.
    pub(crate) fn shape(&self) -> RingShape {
        self.shape
    }

    /// Where the payloads are.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Registers every entry; after INIT's answer was written and after the control thread runs. When this returns, the
    /// rings are live: the kernel sends ordinary requests nowhere else.
    ///
    /// # Errors
    /// [`NoUring::Refused`]: all has been taken back, and the kernel sends everything over `/dev/fuse`.
    pub(crate) fn go_live(mut self, device: OwnedFd, failed: OnFailure) -> Result<Rings, NoUring> {
        let device = Arc::new(device);
        let failed = Arc::new(failed);
        let (registered, outcomes) = mpsc::sync_channel(self.threads.len());
        let mut threads = Vec::new();
        for (go, thread) in self.threads.drain(..) {
            let (device, failed, registered) = (Arc::clone(&device), Arc::clone(&failed), registered.clone());
            // It waits for this, or has reported by ending.
            let _ = go.send(Go { device, failed, registered });
            threads.push(thread);
        }
        drop(registered);
        let rings = Rings { threads };
        // Registering takes no waiting: the kernel has taken each entry or refused it when the system call returns.
        let outcomes: Vec<io::Result<()>> = outcomes.iter().collect();
        let ended = || io::Error::other("a ring thread ended");
        let missing = (outcomes.len() < rings.threads.len()).then(ended).map(Err);
        let Err(error) = outcomes.into_iter().chain(missing).collect::<io::Result<()>>() else { return Ok(rings) };
        if let Err(error) = do_without_rings(&device) {
            debug!(%error, "the kernel was not told to do without rings");
        }
        self.is_given_up.store(true, Ordering::Release);
        rings.end();
        let _ = rings.join();
        Err(NoUring::Refused(error))
    }
}

/// A ring thread's life.
fn run<S: Submit, D: Dispatch>(mut thread: RingThread<S>, begin: &Receiver<Go>, dispatch: &D) -> io::Result<()> {
    // It is not sent if the mount came to nothing.
    let Ok(Go { device, failed, registered }) = begin.recv() else { return Ok(()) };
    let mut unwinding =
        Unwinding { entries: Arc::clone(&thread.entries), failed: Arc::clone(&failed), is_live: false, is_over: false };
    let taken = thread.register(&device).and_then(|()| thread.complete(dispatch));
    let is_registered = taken.is_ok();
    let _ = registered.send(taken.map(drop));
    drop((registered, device));
    unwinding.is_live = is_registered;
    let outcome = if is_registered { thread.serve(dispatch) } else { Ok(()) };
    unwinding.is_over = true;
    if !thread.is_clean() {
        // The kernel has the addresses of these entries and never said that it forgets them.
        warn!("the memory of a ring is not freed");
        std::mem::forget(Arc::clone(&thread.entries));
    }
    if let Err(error) = &outcome {
        failed(io::Error::new(error.kind(), error.to_string()));
    }
    outcome
}

/// What is left to do when a ring thread panics: the kernel has its entries, and the requests of its queues would wait for ever.
struct Unwinding {
    entries: Arc<Entries>,
    failed: Arc<OnFailure>,
    /// All entries were taken; before, the mount goes on over `/dev/fuse`.
    is_live: bool,
    /// The loop has returned.
    is_over: bool,
}

impl Drop for Unwinding {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        std::mem::forget(Arc::clone(&self.entries));
        if self.is_live {
            (self.failed)(io::Error::other("a ring thread panicked"));
        }
    }
}

/// Rings that serve.
pub(crate) struct Rings {
    threads: Vec<Thread>,
}

impl Rings {
    /// Waits until the mount has ended and every thread with it.
    ///
    /// # Errors
    /// Of the first thread that ended for another reason.
    pub(crate) fn join(self) -> io::Result<()> {
        let ends = self
            .threads
            .into_iter()
            .map(|thread| thread.handle.join().unwrap_or_else(|_| Err(io::Error::other("a ring thread panicked"))));
        // All of them, also after one that failed.
        ends.fold(Ok(()), io::Result::and)
    }

    /// What each thread has done so far.
    pub(crate) fn counters(&self) -> Vec<Arc<Counters>> {
        self.threads.iter().map(|thread| Arc::clone(&thread.counters)).collect()
    }

    /// The control thread has seen the end of the mount: kept entries are not waited for.
    pub(crate) fn end(&self) {
        self.threads.iter().for_each(|thread| thread.entries.ready().end());
    }
}

/// Threads, and the depth that their payloads leave room for.
fn plan(options: &RingOptions, cpus: &Cpus) -> Result<(Vec<ThreadPlan>, u32), NoUring> {
    let (mut depth, mut foreign) = (options.depth.max(1), FOREIGN_DEPTH);
    loop {
        let plans = share_queues(cpus, options.threads, depth, foreign);
        let entries: usize = plans.iter().map(ThreadPlan::entries).sum();
        if entries as u64 * options.payload as u64 <= options.memory {
            if depth < options.depth || foreign < FOREIGN_DEPTH {
                debug!(
                    depth,
                    foreign,
                    asked = options.depth,
                    memory = options.memory,
                    "queues have fewer entries than asked for"
                );
            }
            return Ok((plans, depth));
        }
        if depth > foreign {
            depth /= 2;
        } else if foreign > MIN_DEPTH {
            (depth, foreign) = (options.depth.max(1), MIN_DEPTH);
        } else {
            let needed = ByteSize::bytes(entries as u64 * options.payload as u64);
            return Err(NoUring::Memory(format!("{entries} entries take {needed}, fuse.uring.memory is less")));
        }
    }
}

/// Address space for `count` payloads, in ordinary pages: few of them are ever used at once.
fn pool_for(count: usize, payload: usize) -> Result<Pool, NoUring> {
    let extent = payload.max(forebay_memory::MIN_EXTENT).next_power_of_two();
    let in_a_frame = (forebay_memory::FRAME_SIZE / extent).max(1);
    let size = ByteSize::bytes((count.div_ceil(in_a_frame).max(1) * forebay_memory::FRAME_SIZE) as u64);
    let options = PoolOptions { huge_pages: false, ..PoolOptions::fixed(size) };
    Pool::new(options).map_err(|error| NoUring::Memory(error.to_string()))
}
