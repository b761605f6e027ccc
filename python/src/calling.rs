//! How a call waits.
//!
//! Its work is polled once where it was called, without the GIL: that is enough whenever the answer is in memory of this process, and
//! where the calling thread waits anyway also when a worker has it in its memory. What has to wait does so on the calling thread, which
//! asks for signals now and then, so that Ctrl-C ends it; or, for asyncio, as an [`Operation`] that tells of its end. Work that is
//! not done when a thread first asks for signals becomes a task of the runtime, which goes on whatever a handler does. Work that is
//! given up is dropped, and what it wrote to is nobody's concern from then on.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay_locks::Mutex;
use forebay_session::Error;
use forebay_session::fork::generation;
use forebay_session::runtime::{first_poll, runtime};
use pyo3::prelude::*;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::buffers::Held;
use crate::errors::raised;
use crate::operation::{Ending, Operation};

/// How often a thread that waits asks whether there was a signal. Only the main thread's are heard, as everywhere in Python.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Carries out `work`, whose answer `convert` makes an object of. Without `done` it waits. With it, the answer is returned if it is there
/// at once; else an [`Operation`] is, and `done(answer, None)` or `done(None, exception)` will be called by another thread.
pub(crate) fn call<T: Send + 'static>(
    py: Python<'_>,
    done: Option<Py<PyAny>>,
    held: Held,
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
    convert: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
) -> PyResult<Py<PyAny>> {
    let runtime = runtime().map_err(raised)?;
    let Some(done) = done else {
        let answer = wait(py, runtime, work)?;
        drop(held);
        return convert(py, answer.map_err(raised)?);
    };
    let mut work = Box::pin(work);
    if let Poll::Ready(answer) = py.detach(|| poll_once(runtime, work.as_mut())) {
        drop(held);
        return convert(py, answer.map_err(raised)?);
    }
    let held = Arc::new(Mutex::new(held));
    let operation = Operation::start(runtime, work, Ending { done, held, convert });
    Ok(Py::new(py, operation)?.into_any())
}

/// What `work` gives, waited for without the GIL.
///
/// # Errors
/// What a signal's handler raised meanwhile, such as `KeyboardInterrupt`; `work` was dropped then.
fn wait<T: Send + 'static>(
    py: Python<'_>,
    runtime: &'static Runtime,
    work: impl Future<Output = T> + Send + 'static,
) -> PyResult<T> {
    py.detach(|| -> PyResult<T> {
        let mut work = Box::pin(work);
        if let Poll::Ready(answer) = first_poll(runtime, work.as_mut()) {
            return Ok(answer);
        }
        match runtime.block_on(async { tokio::time::timeout(LOOK_EVERY, work.as_mut()).await }) {
            Ok(answer) => Ok(answer),
            Err(_) => wait_for_task(runtime, runtime.spawn(work)),
        }
    })
}

/// The same of work that takes its time. It goes on while a signal's handler runs, or a finalizer that the look for signals runs: either
/// may use the client, and wait for what this work holds, such as its part of the reads that may be on their way.
fn wait_for_task<T>(runtime: &Runtime, mut task: JoinHandle<T>) -> PyResult<T> {
    let process = generation();
    loop {
        let looked = look_for_signals();
        if generation() != process {
            // A handler has forked, and this is the child: the task is its parent's.
            std::mem::forget(task);
            return Err(looked.err().unwrap_or_else(|| raised(Error::inherited("call"))));
        }
        if let Err(exception) = looked {
            task.abort();
            // No longer than the copying of a few pieces. Nothing writes to the caller's memory after that.
            let _ = runtime.block_on(&mut task);
            return Err(exception);
        }
        // A thread that waits on a runtime cannot wait on it once more, so handlers have their turn between two waits.
        if let Ok(ended) = runtime.block_on(async { tokio::time::timeout(LOOK_EVERY, &mut task).await }) {
            return ended.map_err(|_| raised(Error::lost("the call")));
        }
    }
}

/// Has the handlers of signals run that have come. At the end of the interpreter nobody handles any, and the thread goes on waiting.
fn look_for_signals() -> PyResult<()> {
    Python::try_attach(|py| py.check_signals()).unwrap_or(Ok(()))
}

fn poll_once<F: Future + ?Sized>(runtime: &Runtime, work: Pin<&mut F>) -> Poll<F::Output> {
    let _entered = runtime.enter();
    work.poll(&mut Context::from_waker(Waker::noop()))
}
