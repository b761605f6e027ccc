//! Bytes of the cache as a buffer: `memoryview(view)`, `numpy.frombuffer(view, …)`, `file.write(view)`.
//!
//! What is made of a view keeps it, and with it the bytes. In a forked child a view that was there before shows nothing: its lease is the
//! parent's.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use forebay_session::fork::OfProcess;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::dlpack::{self, Wanted};

/// Bytes of one version of a file, to be read.
#[pyclass(frozen, module = "forebay", name = "View")]
pub(crate) struct View(OfProcess<Arc<forebay_session::View>>);

impl View {
    pub(crate) fn new(view: forebay_session::View) -> Self {
        Self(OfProcess::new(Arc::new(view)))
    }

    fn get(&self) -> PyResult<&Arc<forebay_session::View>> {
        let text = "this view was made by the process that this one was forked from; make it again here";
        self.0.get().ok_or_else(|| PyBufferError::new_err(text))
    }
}

#[pymethods]
impl View {
    fn __len__(&self) -> PyResult<usize> {
        Ok(self.get()?.bytes().len())
    }

    fn __repr__(&self) -> String {
        match self.0.get() {
            Some(view) => format!("<forebay.View of {} bytes>", view.bytes().len()),
            None => "<forebay.View of the parent process>".to_owned(),
        }
    }

    /// The number of bytes, as arrays call it.
    #[getter]
    fn nbytes(&self) -> PyResult<usize> {
        self.__len__()
    }

    /// Whether the bytes are in memory of their own: they did not lie in one piece, or views held too much of the cache.
    #[getter]
    fn is_copy(&self) -> PyResult<bool> {
        Ok(self.get()?.is_copy())
    }

    /// A view is of this process.
    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a view cannot be pickled; pickle bytes(view), or path, offset and length"))
    }

    /// # Safety
    /// Called by CPython alone, with a structure to fill in.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, buffer: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = slf.get().get()?.bytes();
        let (start, length) = (bytes.as_ptr().cast_mut().cast::<c_void>(), bytes.len() as ffi::Py_ssize_t);
        // SAFETY: `buffer` is the structure to fill in. The bytes stay where they are and as they are for as long as the object, which the
        // buffer keeps. They are said to be read-only, so who asks for a writable buffer gets an error.
        match unsafe { ffi::PyBuffer_FillInfo(buffer, slf.as_ptr(), start, length, 1, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }

    /// The kind of the memory, and the number of its device: the CPU's.
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::DEVICE
    }

    /// The bytes as a tensor of unsigned bytes, read-only unless it is a copy.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // The CPU has no streams.
        let _ = stream;
        dlpack::capsule(py, self.get()?, Wanted { max_version, device: dl_device, copy })
    }
}
