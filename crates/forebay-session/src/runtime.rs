//! The runtime of this process: one, made when it is first needed, and there until the process ends.
//!
//! Every session of a process shares it, so a program with many clients has no more threads than one with a single client. It is never
//! shut down: a thread of the host language may be waiting on it at any time, and the end of the process takes its threads along. A
//! forked child has none of them. It forgets the runtime of its parent and makes its own ([`crate::fork`]).

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use forebay_client::driving::permitted;
use tokio::runtime::{Builder, Runtime};

use crate::error::Error;
use crate::fork::OfProcess;

/// The most threads. What moves bytes has I/O threads of its own; these serve what waits.
const MAX_THREADS: usize = 8;

/// In a child, until it makes its own, that of its parent.
static CURRENT: AtomicPtr<OfProcess<Runtime>> = AtomicPtr::new(std::ptr::null_mut());

/// The runtime of this process.
///
/// # Errors
/// When the system has no threads for it.
pub fn runtime() -> Result<&'static Runtime, Error> {
    let current = CURRENT.load(Ordering::Acquire);
    // SAFETY: what was once put there is never freed.
    match unsafe { current.as_ref() }.and_then(OfProcess::get) {
        Some(runtime) => Ok(runtime),
        None => replace(current),
    }
}

/// Waits for `work` on the calling thread, which is none of the runtime's. What is in memory of this process is there at the first look,
/// and so is what a worker answers at once.
///
/// # Errors
/// When there is no runtime.
pub fn wait<T>(work: impl Future<Output = T>) -> Result<T, Error> {
    let runtime = runtime()?;
    let mut work = pin!(work);
    Ok(match first_poll(runtime, work.as_mut()) {
        Poll::Ready(answer) => answer,
        Poll::Pending => runtime.block_on(work),
    })
}

/// Polls `work` for the first time, on a thread that waits for it: which so may have the answer of a worker itself
/// ([`forebay_client::driving`]). Not for one that has others to serve, as that of an event loop has.
pub fn first_poll<F: Future + ?Sized>(runtime: &Runtime, work: Pin<&mut F>) -> Poll<F::Output> {
    let _entered = runtime.enter();
    permitted(max_driving(), || work.poll(&mut Context::from_waker(Waker::noop()))).0
}

/// How many threads may wait for workers' answers at once: half as many as there are processors, so that the others have some. What more
/// threads ask for is better received together.
fn max_driving() -> usize {
    // Nobody waits for who finds it out: that one may be a thread of the process that this one was forked from.
    static MAX: AtomicUsize = AtomicUsize::new(0);
    match MAX.load(Ordering::Relaxed) {
        0 => {
            let found = std::thread::available_parallelism().map_or(1, |processors| processors.get().div_ceil(2));
            MAX.store(found, Ordering::Relaxed);
            found
        }
        known => known,
    }
}

/// Puts a new runtime in the place of `seen`, which is none, or the parent's. If another thread was faster, its runtime is the one.
#[cold]
fn replace(seen: *mut OfProcess<Runtime>) -> Result<&'static Runtime, Error> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    let made = Builder::new_multi_thread().worker_threads(threads).thread_name("forebay").enable_all().build();
    let made = made.map_err(|error| Error::system("cannot start the threads of the runtime", &error))?;
    let made = Box::into_raw(Box::new(OfProcess::new(made)));
    let put = CURRENT.compare_exchange(seen, made, Ordering::AcqRel, Ordering::Acquire);
    if put.is_err() {
        // SAFETY: no other code has seen it. Its threads have nothing to do, and end at once.
        drop(unsafe { Box::from_raw(made) });
    }
    let winner = put.map_or_else(|first| first, |_| made);
    // SAFETY: what was once put there is never freed.
    unsafe { winner.as_ref() }.and_then(OfProcess::get).ok_or_else(|| Error::lost("the runtime"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_one_runtime_whichever_threads_ask_for_it_first() {
        let here = || std::ptr::from_ref(runtime().unwrap()) as usize;
        let threads: Vec<_> = (0..8).map(|_| std::thread::spawn(here)).collect();
        let places: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(places.iter().all(|place| *place == here()), "{places:?}");
        assert_eq!(runtime().unwrap().block_on(async { 7 }), 7);
    }

    #[test]
    fn work_is_waited_for_whether_it_has_to_wait_or_not() {
        assert_eq!(wait(async { 7 }).unwrap(), 7);
        let later = async {
            tokio::task::yield_now().await;
            8
        };
        assert_eq!(wait(later).unwrap(), 8);
    }
}
