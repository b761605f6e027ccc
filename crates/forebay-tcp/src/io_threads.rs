//! I/O threads, which serve connections: each has a runtime of its own.
//!
//! A task, such as that of a connection, is given to the thread that has the fewest, and stays there to its end: what it does
//! without waiting for others is done by one thread, which hands nothing over and writes to nothing that other cores write to.
//!
//! I/O threads are not bound to processors. The scheduler leaves a thread where it ran last while it can run there, and one that is
//! bound waits for others that run there: with two threads on two processors that clients use, too, binding cost a fifth of the
//! reads of 4 KiB with 32 at once, and gained nothing elsewhere.
//!
//! The threads end when nothing can be spawned on them any more and their tasks have ended. Their owner waits by
//! [`ThreadHandles::join`]; dropping the handles waits for a while where waiting holds up no other task: outside of any
//! runtime.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_locks::Mutex;
use forebay_locks::heartbeat::{Asked, Excused};
use futures::future::BoxFuture;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// The most threads unless more are configured: so many serve more than any network brings.
const MAX_THREADS: usize = 64;
/// With fewer processors there are no I/O threads unless configured. Measured on two that clients use, too: large reads gain (14
/// and 18 % with four of 1 MiB at once), and small ones, which one thread takes in batches while the other is the client's, lose
/// (1 and 13 % with 32 of 4 KiB at once).
const MIN_PROCESSORS: usize = 4;
/// How long threads that are dropped hold up the thread that drops them.
const DROP_WITHIN: Duration = Duration::from_secs(4);

/// How many threads there are: as many as are `configured`, or one for each of `processors`.
fn count(configured: Option<usize>, processors: usize) -> usize {
    configured.unwrap_or(if processors < MIN_PROCESSORS { 0 } else { processors.min(MAX_THREADS) })
}

/// One thread, as seen by those that spawn on it.
struct IoThread {
    queue: mpsc::UnboundedSender<BoxFuture<'static, ()>>,
    /// Its tasks that have not ended.
    tasks: Arc<AtomicUsize>,
    _heartbeat: Asked,
}

/// Threads to spawn tasks on.
pub(crate) struct IoThreads(Vec<IoThread>);

/// Counts a task for as long as it lives.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl IoThreads {
    /// Starts as many threads as are `configured`, or as many as this machine is good for. That may be none.
    ///
    /// # Errors
    /// When a thread, or what it needs, is not to be had.
    pub(crate) fn start(configured: Option<usize>) -> io::Result<(Self, ThreadHandles)> {
        // As many as this process may use: its affinity and its control group's quota are heeded.
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let (mut io_threads, mut handles) = (Vec::new(), Vec::new());
        for number in 0..count(configured, processors) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let (queue, tasks) = mpsc::unbounded_channel();
            let name = format!("tcp-{number}");
            let thread = std::thread::Builder::new().name(name.clone());
            let excused = Excused::default();
            let own = excused.clone();
            let thread = thread.spawn(move || {
                own.is_of_this_thread();
                run(&runtime, tasks);
            })?;
            let _heartbeat = heartbeat(name, excused, &queue);
            io_threads.push(IoThread { queue, tasks: Arc::default(), _heartbeat });
            handles.push(thread);
        }
        Ok((Self(io_threads), ThreadHandles(Mutex::new(handles))))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Gives `task` to the thread with the fewest, which polls it and drops it. A thread is gone only when it panicked; the task is
    /// dropped then.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let Some(thread) = self.0.iter().min_by_key(|thread| thread.tasks.load(Ordering::Relaxed)) else { return };
        thread.tasks.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(Arc::clone(&thread.tasks));
        let _ = thread.queue.send(Box::pin(async move {
            task.await;
            drop(counted);
        }));
    }
}

/// The signs of life of the thread that takes from `queue`, which does not keep it from ending.
fn heartbeat(name: String, excused: Excused, queue: &mpsc::UnboundedSender<BoxFuture<'static, ()>>) -> Asked {
    let queue = queue.downgrade();
    Asked::unless_excused(name, excused, move |answer| {
        queue.upgrade().is_some_and(|queue| queue.send(Box::pin(async move { answer.give() })).is_ok())
    })
}

/// The loop of one thread.
fn run(runtime: &Runtime, mut queue: mpsc::UnboundedReceiver<BoxFuture<'static, ()>>) {
    runtime.block_on(async {
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                task = queue.recv() => match task {
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

/// To wait for the threads.
pub(crate) struct ThreadHandles(Mutex<Vec<JoinHandle<()>>>);

impl ThreadHandles {
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

impl Drop for ThreadHandles {
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

    use forebay_locks::heartbeat::{ThreadWatch, samples};
    use tokio::sync::oneshot;

    #[test]
    fn each_processor_has_a_thread_where_there_are_enough_and_none_are_configured() {
        assert_eq!((count(None, 4), count(None, 16), count(None, 200)), (4, 16, MAX_THREADS));
        assert_eq!((count(None, 1), count(None, 3)), (0, 0));
        assert_eq!((count(Some(0), 16), count(Some(2), 1), count(Some(100), 16)), (0, 2, 100));
    }

    #[tokio::test]
    async fn tasks_are_spread_evenly_and_stay_on_their_threads() {
        let (io_threads, handles) = IoThreads::start(Some(3)).unwrap();
        let (mut ends, mut names) = (Vec::new(), HashSet::new());
        for _ in 0..6 {
            let (end, ended) = oneshot::channel::<()>();
            let (tell, told) = oneshot::channel();
            io_threads.spawn(async move {
                let name = std::thread::current().name().map(str::to_owned);
                tell.send(name.clone()).unwrap();
                let _ = ended.await;
                assert_eq!(std::thread::current().name(), name.as_deref());
            });
            names.insert(told.await.unwrap());
            ends.push(end);
        }
        assert_eq!(names.len(), 3);
        assert!(io_threads.0.iter().all(|thread| thread.tasks.load(Ordering::Relaxed) == 2));
        drop((io_threads, ends));
        handles.join().await;
    }

    #[tokio::test]
    async fn a_task_that_panics_ends_only_itself() {
        let (io_threads, handles) = IoThreads::start(Some(1)).unwrap();
        let (tell, told) = oneshot::channel();
        let (panicked, has_panicked) = oneshot::channel::<()>();
        io_threads.spawn(async move {
            let _ = has_panicked.await;
            tell.send(()).unwrap();
        });
        io_threads.spawn(async move {
            let _panicked = panicked;
            panic!("on purpose");
        });
        told.await.unwrap();
        drop(io_threads);
        handles.join().await;
    }

    #[test]
    fn a_thread_whose_task_hangs_is_found_and_one_that_is_idle_is_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (queue, tasks) = mpsc::unbounded_channel::<BoxFuture<'static, ()>>();
        let thread = std::thread::spawn(move || run(&runtime, tasks));
        let name = "hangs-in-a-test";
        let asked = heartbeat(name.to_owned(), Excused::default(), &queue);
        let mut watch = ThreadWatch::default();
        let mut hangs = || !watch.look(samples().into_iter().filter(|sample| sample.name == name).collect()).is_empty();
        let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
        let (begins, begun) = std::sync::mpsc::channel();
        let task = async move {
            begins.send(()).unwrap();
            // As nothing on an I/O thread may.
            let _ = may_go_on.recv();
        };
        assert!(queue.send(Box::pin(task)).is_ok());
        begun.recv().unwrap();
        assert!([hangs(), hangs(), hangs()].contains(&true));
        go_on.send(()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while hangs() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(1));
        }
        // Its signs of life do not keep it.
        drop(queue);
        thread.join().unwrap();
        assert!(!hangs());
        drop(asked);
    }

    #[test]
    fn threads_that_are_dropped_outside_of_a_runtime_have_ended() {
        let (io_threads, handles) = IoThreads::start(Some(2)).unwrap();
        let alive = Arc::new(());
        let held = Arc::clone(&alive);
        io_threads.spawn(async move { drop(held) });
        drop(io_threads);
        drop(handles);
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}
