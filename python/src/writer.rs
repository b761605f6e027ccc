//! A file that is being written.

use std::sync::Arc;

use forebay_session::Error;
use forebay_session::fork::OfProcess;
use pyo3::prelude::*;

use crate::buffers::{Held, bytes_of};
use crate::calling::call;
use crate::errors::raised;
use crate::values::entry;

/// A file that is being written by this process. In a forked child it is still the parent's.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Writer(OfProcess<Arc<forebay_session::Writer>>);

impl Writer {
    pub(crate) fn new(writer: forebay_session::Writer) -> Self {
        Self(OfProcess::new(Arc::new(writer)))
    }

    fn get(&self) -> PyResult<Arc<forebay_session::Writer>> {
        self.0.get().cloned().ok_or_else(|| raised(Error::inherited("file")))
    }
}

#[pymethods]
impl Writer {
    /// Adds bytes at the end.
    #[pyo3(signature = (bytes, done=None))]
    fn write(&self, py: Python<'_>, bytes: &Bound<'_, PyAny>, done: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        let (writer, bytes) = (self.get()?, bytes_of(bytes)?);
        let work = async move { writer.write(bytes).await };
        call(py, done, Held::default(), work, |py, ()| Ok(py.None()))
    }

    /// Completes the file: the fields of its entry.
    #[pyo3(signature = (done=None))]
    fn finish(&self, py: Python<'_>, done: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        let writer = self.get()?;
        let work = async move { writer.finish().await };
        call(py, done, Held::default(), work, |py, made| Ok(entry(py, &made)?.into_any().unbind()))
    }

    /// Gives the file up.
    #[pyo3(signature = (done=None))]
    fn abort(&self, py: Python<'_>, done: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        let writer = self.get()?;
        let work = async move { writer.abort().await };
        call(py, done, Held::default(), work, |py, ()| Ok(py.None()))
    }
}
