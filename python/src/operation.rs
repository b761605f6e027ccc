//! Work that goes on while the thread that asked for it does something else.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use forebay_locks::Mutex;
use forebay_session::Error;
use forebay_session::fork::OfProcess;
use pyo3::prelude::*;
use tokio::runtime::Runtime;
use tokio::task::{AbortHandle, JoinError};
use tokio_util::sync::CancellationToken;

use crate::buffers::Held;
use crate::errors::raised;

/// Work under way.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Operation(OfProcess<Running>);

struct Running {
    runtime: &'static Runtime,
    work: AbortHandle,
    held: Arc<Mutex<Held>>,
    /// Cancelled once the work has ended, however it did.
    ended: CancellationToken,
}

/// What becomes of an answer.
pub(crate) struct Ending<C> {
    /// Is called with the answer and the exception, one of which is `None`.
    pub(crate) done: Py<PyAny>,
    /// Memory that is written to until then.
    pub(crate) held: Arc<Mutex<Held>>,
    /// Makes an object of the answer.
    pub(crate) convert: C,
}

impl Operation {
    pub(crate) fn start<T, C>(
        runtime: &'static Runtime,
        work: Pin<Box<impl Future<Output = Result<T, Error>> + Send + 'static>>,
        ending: Ending<C>,
    ) -> Self
    where
        T: Send + 'static,
        C: FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    {
        let work = runtime.spawn(work);
        let (ended, held) = (CancellationToken::new(), Arc::clone(&ending.held));
        let running = Running { runtime, work: work.abort_handle(), held, ended: ended.clone() };
        runtime.spawn(async move {
            let outcome = work.await;
            ended.cancel();
            // Python code may take its time, and may wait for work of ours: it runs on no thread that carries that out. At the end of the
            // interpreter nobody is told.
            let tell = move || Python::try_attach(|py| ending.tell(py, outcome));
            let _ = tokio::task::spawn_blocking(tell).await;
        });
        Self(OfProcess::new(running))
    }
}

#[pymethods]
impl Operation {
    /// Gives the work up. When this returns, nothing writes to the memory that was given to it, and no buffer of it is held.
    fn cancel(&self, py: Python<'_>) {
        let Some(running) = self.0.get() else { return };
        running.work.abort();
        // No longer than the copying of a few pieces.
        py.detach(|| running.runtime.block_on(running.ended.cancelled()));
        release(&running.held);
    }
}

/// Lets go of buffers: who exported them may run code of its own then, so the lock is free.
fn release(held: &Mutex<Held>) {
    let released = std::mem::take(&mut *held.lock());
    drop(released);
}

impl<C> Ending<C> {
    fn tell<T>(self, py: Python<'_>, outcome: Result<Result<T, Error>, JoinError>)
    where
        C: FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>>,
    {
        let Self { done, held, convert } = self;
        release(&held);
        let answer = match outcome {
            Ok(Ok(answer)) => convert(py, answer),
            Ok(Err(error)) => Err(raised(error)),
            Err(_) => Err(raised(Error::lost("the operation"))),
        };
        let told = match answer {
            Ok(answer) => done.call1(py, (answer, py.None())),
            Err(error) => done.call1(py, (py.None(), error.into_value(py))),
        };
        if let Err(error) = told {
            error.write_unraisable(py, Some(done.bind(py)));
        }
    }
}
