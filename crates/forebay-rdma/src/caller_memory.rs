//! Memory of callers that replies land in, as far as it is registered with the card: the payloads of a mount's rings.
//!
//! Such memory is address space for as many requests as there may ever be, and only what is in use is backed by memory. To
//! register all of it would pin all of it. So a frame is registered when a piece of it is first used
//! ([`IoThread::register_frame`]): that reply lands elsewhere, since registering takes a while, and later ones land in it. The
//! kernel hands out the entry of a ring that was given back last, so what is registered is as much as was in use at once. Where
//! registering is refused, which is where `ulimit -l` is too small, replies go on landing elsewhere.
//!
//! What ends first: a registration holds its pool, and is undone with the I/O thread's context, which the I/O thread, its
//! operations and its registrations hold ([`Registration`]). So what is registered stays mapped until the I/O thread has ended
//! and every operation with it, also when the mount that it was made for has ended before; then it is deregistered, then
//! unmapped. Neither waits for the other.
//!
//! [`IoThread::register_frame`]: crate::IoThread::register_frame

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use forebay_locks::{Mutex, RwLock};
use forebay_memory::{FRAME_SIZE, Pool};
use forebay_types::ByteSize;
use forebay_ucx::{Context, Error, Registration};

use crate::trace::Trace;

/// What a frame takes of the limit.
const FRAME: ByteSize = ByteSize::bytes(FRAME_SIZE as u64);

/// All memory of callers that an I/O thread may use.
#[derive(Debug, Default)]
pub(crate) struct CallerMemory {
    pools: RwLock<Vec<Arc<CallerPool>>>,
    fetched: AtomicU64,
}

/// One pool of it.
#[derive(Debug)]
pub(crate) struct CallerPool {
    registration: Registration,
    /// For which frames registration was requested.
    requested: Box<[AtomicBool]>,
    /// No more can be registered.
    is_refused: AtomicBool,
    waiting: Mutex<Waiting>,
}

/// Frames that are to be registered.
#[derive(Debug, Default)]
struct Waiting {
    frames: Vec<usize>,
    /// A thread is registering them.
    is_under_way: bool,
}

impl CallerMemory {
    /// Callers' buffers may be pieces of `pool` from now on.
    pub(crate) fn add(&self, context: &Context, pool: &Pool) {
        let registration = Registration::growing(context, pool, FRAME);
        let requested = (0..registration.parts()).map(|_| AtomicBool::new(false)).collect();
        let is_refused = AtomicBool::new(false);
        self.pools.write().push(Arc::new(CallerPool {
            registration,
            requested,
            is_refused,
            waiting: Mutex::default(),
        }));
    }

    /// The pool that has all of `bytes` in one frame, and the frame's number.
    pub(crate) fn find(&self, bytes: &[u8]) -> Option<(Arc<CallerPool>, usize)> {
        self.pools.read().iter().find_map(|pool| {
            let frame = pool.registration.part_of(bytes)?;
            Some((Arc::clone(pool), frame))
        })
    }

    /// Whether all of `bytes` is registered.
    pub(crate) fn covers(&self, bytes: &[u8]) -> bool {
        self.pools.read().iter().any(|pool| pool.covers(bytes))
    }

    /// Whether registering was refused.
    pub(crate) fn is_refused(&self) -> bool {
        self.pools.read().iter().any(|pool| pool.is_refused.load(Ordering::Relaxed))
    }

    /// A reply is being fetched into `bytes`: their registration.
    pub(crate) fn fetch(&self, bytes: &[u8]) -> Option<Registration> {
        let (pool, _) = self.find(bytes).filter(|(pool, _)| pool.registration.covers(bytes))?;
        self.fetched.fetch_add(1, Ordering::Relaxed);
        Some(pool.registration.clone())
    }

    /// Replies fetched into it so far.
    pub(crate) fn fetched(&self) -> u64 {
        self.fetched.load(Ordering::Relaxed)
    }

    /// How much of it is registered.
    pub(crate) fn registered(&self) -> ByteSize {
        ByteSize::bytes(self.pools.read().iter().map(|pool| pool.registration.size().as_u64()).sum())
    }

    /// How often registering it was refused.
    pub(crate) fn failures(&self) -> u64 {
        self.pools.read().iter().map(|pool| u64::from(pool.is_refused.load(Ordering::Relaxed))).sum()
    }
}

impl CallerPool {
    pub(crate) fn covers(&self, bytes: &[u8]) -> bool {
        self.registration.covers(bytes)
    }

    /// Requests that `frame` is registered, which it is not. Whether the caller must have [`CallerPool::register`] run.
    pub(crate) fn request(&self, frame: usize) -> bool {
        if self.is_refused.load(Ordering::Relaxed) || self.requested[frame].swap(true, Ordering::Relaxed) {
            return false;
        }
        let mut waiting = self.waiting.lock();
        waiting.frames.push(frame);
        !std::mem::replace(&mut waiting.is_under_way, true)
    }

    /// Registers the frames that wait for it with the card called `card`, each if `may_lock` so much memory. Blocks.
    pub(crate) fn register(&self, card: &str, may_lock: impl Fn(ByteSize) -> Result<(), Error>, trace: Option<&Trace>) {
        while let Some(frame) = self.next() {
            let start = Instant::now();
            let outcome = may_lock(FRAME).and_then(|()| self.registration.add(frame));
            if let Some(trace) = trace {
                trace.registered(start.elapsed(), outcome.is_ok());
            }
            if let Err(error) = outcome {
                let registered = self.registration.size();
                self.is_refused.store(true, Ordering::Relaxed);
                tracing::warn!(
                    %error, card, %registered,
                    "no more memory of the mount's rings can be registered; what would land in it is copied"
                );
            }
        }
    }

    fn next(&self) -> Option<usize> {
        let mut waiting = self.waiting.lock();
        if self.is_refused.load(Ordering::Relaxed) {
            waiting.frames.clear();
        }
        let next = waiting.frames.pop();
        waiting.is_under_way = next.is_some();
        next
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use forebay_memory::{PoolOptions, SpanMut};
    use forebay_ucx::{Library, Options};

    /// Memory of callers in a context over shared memory, and a piece of each of its frames.
    fn caller_memory() -> Option<(CallerMemory, Vec<SpanMut>)> {
        let library = match Library::load(None) {
            Ok(library) => library,
            Err(error) => {
                let _ = writeln!(std::io::stderr(), "skipped: {error}");
                return None;
            }
        };
        let context = Context::new(library, &Options::tuned().transports(["sysv", "tcp"])).unwrap();
        let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(12))).unwrap();
        let pieces = std::iter::from_fn(|| pool.try_alloc(FRAME_SIZE)).collect();
        let memory = CallerMemory::default();
        memory.add(&context, &pool);
        Some((memory, pieces))
    }

    #[test]
    fn a_frame_is_registered_when_that_is_requested_and_no_other() {
        let Some((memory, pieces)) = caller_memory() else { return };
        let (pool, frame) = memory.find(&pieces[1][4096..8192]).unwrap();
        assert!(!pool.covers(&pieces[1]) && memory.fetch(&pieces[1]).is_none());
        assert!(pool.request(frame) && !pool.request(frame), "it is requested once");
        pool.register("card", |_| Ok(()), None);
        assert!(pool.covers(&pieces[1]) && !pool.covers(&pieces[0]) && !pool.covers(&pieces[2]));
        assert!(memory.fetch(&pieces[1][..100]).is_some_and(|registration| registration.covers(&pieces[1])));
        assert_eq!((memory.registered(), memory.fetched(), memory.failures()), (FRAME, 1, 0));
        assert!(!pool.request(frame));
        assert!(pool.request(memory.find(&pieces[2]).unwrap().1), "another frame waits anew");
        assert!(memory.find(&[0; 16]).is_none(), "no memory of a caller");
    }

    #[test]
    fn after_a_refusal_nothing_more_is_registered_and_what_is_stays() {
        let Some((memory, pieces)) = caller_memory() else { return };
        let frames = pieces.iter().map(|piece| memory.find(piece).unwrap().1);
        let (pool, _) = memory.find(&pieces[0]).unwrap();
        let [first, second, third]: [usize; 3] = frames.collect::<Vec<_>>().try_into().unwrap();
        assert!(pool.request(first));
        pool.register("card", |_| Ok(()), None);
        assert!(pool.request(second));
        let refusal = |size| Err(Error::LockedMemory { size, limit: ByteSize::mib(4) });
        pool.register("card", refusal, None);
        assert!(!pool.request(third), "nobody is asked to register any more");
        assert!(pool.covers(&pieces[0]) && !pool.covers(&pieces[1]) && memory.registered() == FRAME);
    }
}
