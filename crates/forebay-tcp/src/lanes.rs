//! Lanes: threads that serve, each with a runtime of its own.
//!
//! A task, such as that of a connection, is dealt to the lane that has the fewest, and stays there to its end: what it does
//! without waiting for others is done by one thread, which hands nothing over and writes to nothing that other cores write to.
//!
//! Lanes are not bound to processors. The scheduler leaves a thread where it ran last while it can run there, and one that is
//! bound waits for whoever else is there: with two lanes on two processors that clients use, too, binding cost a fifth of the
//! reads of 4 KiB with 32 at once, and gained nothing elsewhere.
//!
//! The lanes end when nobody deals to them any more and their tasks have ended. Whoever owns them waits by [`Threads::join`];
//! dropping them waits for a while where waiting harms nobody: outside of any runtime.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// The most lanes that nobody asked for: so many serve more than any network brings.
const MAX_UNASKED: usize = 64;
/// With fewer processors, nobody who did not ask gets lanes. Measured on two that clients use, too: large reads gain (14 and 18 %
/// with four of 1 MiB at once), and small ones, which one thread takes in batches while the other is the client's, lose (1 and 13 %
/// with 32 of 4 KiB at once).
const ENOUGH_PROCESSORS: usize = 4;
/// How long lanes that are dropped hold up the thread that drops them.
const DROP_WITHIN: Duration = Duration::from_secs(4);

/// How many lanes there are: as many as `asked`, where somebody did, or one for each of `processors`.
fn count(asked: Option<usize>, processors: usize) -> usize {
    asked.unwrap_or(if processors < ENOUGH_PROCESSORS { 0 } else { processors.min(MAX_UNASKED) })
}

/// One lane, as who deals sees it.
struct Lane {
    queue: mpsc::UnboundedSender<BoxFuture<'static, ()>>,
    /// Its tasks that have not ended.
    tasks: Arc<AtomicUsize>,
}

/// Lanes to deal tasks to.
pub(crate) struct Lanes(Vec<Lane>);

/// Counts a task for as long as it lives.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Lanes {
    /// Starts as many lanes as `asked`, or as many as this machine is good for. That may be none.
    ///
    /// # Errors
    /// When a thread, or what it needs, is not to be had.
    pub(crate) fn start(asked: Option<usize>) -> io::Result<(Self, Threads)> {
        // As many as this process may use: its affinity and its control group's quota are heeded.
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let (mut lanes, mut threads) = (Vec::new(), Vec::new());
        for number in 0..count(asked, processors) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let (queue, dealt) = mpsc::unbounded_channel();
            let thread = std::thread::Builder::new().name(format!("tcp-{number}"));
            let thread = thread.spawn(move || run(&runtime, dealt))?;
            lanes.push(Lane { queue, tasks: Arc::default() });
            threads.push(thread);
        }
        Ok((Self(lanes), Threads(Mutex::new(threads))))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Gives `task` to the lane with the fewest, which polls it and drops it. A lane is gone only when its thread panicked; the task
    /// is dropped then.
    pub(crate) fn deal(&self, task: impl Future<Output = ()> + Send + 'static) {
        let Some(lane) = self.0.iter().min_by_key(|lane| lane.tasks.load(Ordering::Relaxed)) else { return };
        lane.tasks.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(Arc::clone(&lane.tasks));
        let _ = lane.queue.send(Box::pin(async move {
            task.await;
            drop(counted);
        }));
    }
}

/// The thread of a lane.
fn run(runtime: &Runtime, mut dealt: mpsc::UnboundedReceiver<BoxFuture<'static, ()>>) {
    runtime.block_on(async {
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                task = dealt.recv() => match task {
                    Some(task) => drop(tasks.spawn(task)),
                    None => break,
                },
                Some(ended) = tasks.join_next(), if !tasks.is_empty() => report(ended),
            }
        }
        while let Some(ended) = tasks.join_next().await {
            report(ended);
        }
    });
}

/// Tells of a connection's task that ended by a panic; it has taken no other with it.
pub(crate) fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "the task of a connection failed");
    }
}

/// The threads of lanes.
pub(crate) struct Threads(Mutex<Vec<JoinHandle<()>>>);

impl Threads {
    /// Waits until all have ended.
    pub(crate) async fn join(&self) {
        let threads = std::mem::take(&mut *self.0.lock());
        if threads.is_empty() {
            return;
        }
        // They end by panic only when the runtime itself does, and then there is nothing left to wait for.
        let all = move || threads.into_iter().for_each(|thread| drop(thread.join()));
        let _ = tokio::task::spawn_blocking(all).await;
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let threads = std::mem::take(self.0.get_mut());
        if tokio::runtime::Handle::try_current().is_ok() {
            return;
        }
        let deadline = Instant::now() + DROP_WITHIN;
        for thread in threads {
            while !thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            if thread.is_finished() {
                // As in `join`.
                drop(thread.join());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use tokio::sync::oneshot;

    #[test]
    fn each_processor_has_a_lane_where_there_are_enough_and_nobody_says_otherwise() {
        assert_eq!((count(None, 4), count(None, 16), count(None, 200)), (4, 16, MAX_UNASKED));
        assert_eq!((count(None, 1), count(None, 3)), (0, 0));
        assert_eq!((count(Some(0), 16), count(Some(2), 1), count(Some(100), 16)), (0, 2, 100));
    }

    #[tokio::test]
    async fn tasks_are_dealt_evenly_and_stay_on_their_lanes() {
        let (lanes, threads) = Lanes::start(Some(3)).unwrap();
        let (mut ends, mut names) = (Vec::new(), HashSet::new());
        for _ in 0..6 {
            let (end, ended) = oneshot::channel::<()>();
            let (tell, told) = oneshot::channel();
            lanes.deal(async move {
                let name = std::thread::current().name().map(str::to_owned);
                tell.send(name.clone()).unwrap();
                let _ = ended.await;
                assert_eq!(std::thread::current().name(), name.as_deref());
            });
            names.insert(told.await.unwrap());
            ends.push(end);
        }
        assert_eq!(names.len(), 3);
        assert!(lanes.0.iter().all(|lane| lane.tasks.load(Ordering::Relaxed) == 2));
        drop((lanes, ends));
        threads.join().await;
    }

    #[tokio::test]
    async fn a_task_that_panics_ends_only_itself() {
        let (lanes, threads) = Lanes::start(Some(1)).unwrap();
        let (tell, told) = oneshot::channel();
        let (panicked, has_panicked) = oneshot::channel::<()>();
        lanes.deal(async move {
            let _ = has_panicked.await;
            tell.send(()).unwrap();
        });
        lanes.deal(async move {
            let _panicked = panicked;
            panic!("on purpose");
        });
        told.await.unwrap();
        drop(lanes);
        threads.join().await;
    }

    #[test]
    fn lanes_that_are_dropped_outside_of_a_runtime_have_ended() {
        let (lanes, threads) = Lanes::start(Some(2)).unwrap();
        let alive = Arc::new(());
        let held = Arc::clone(&alive);
        lanes.deal(async move { drop(held) });
        drop(lanes);
        drop(threads);
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}
