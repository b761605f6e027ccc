//! Memory to read into: any writable buffer, or an address and a length. Bytes to write: any buffer.

use std::ptr::{self, NonNull};

use bytes::Bytes;
use forebay_session::CallerMemory;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyMemoryError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyTuple};

/// Keeps the memory of a call where it is until nobody writes to it any more. Dropped by a thread that is attached.
#[derive(Default)]
pub(crate) struct Held {
    buffers: Vec<PyUntypedBuffer>,
}

impl Held {
    /// For so many buffers.
    pub(crate) fn with_capacity(buffers: usize) -> Self {
        Self { buffers: Vec::with_capacity(buffers) }
    }

    /// The memory of `target`: an object with a writable, contiguous buffer, or `(address, length)`, for which the caller vouches.
    ///
    /// # Errors
    /// `TypeError` for anything else, and `BufferError` of the object's.
    pub(crate) fn memory_of(&mut self, target: &Bound<'_, PyAny>) -> PyResult<CallerMemory> {
        if let Ok(pair) = target.cast::<PyTuple>() {
            let (address, length): (usize, usize) = pair.extract()?;
            return at_address(address, length);
        }
        let buffer = PyUntypedBuffer::get(target)?;
        if buffer.readonly() {
            let text = "the buffer is read-only; give a bytearray, a writable array or an (address, length)";
            return Err(PyTypeError::new_err(text));
        }
        if !buffer.is_c_contiguous() {
            return Err(PyTypeError::new_err("the buffer is not contiguous; read into a contiguous one and copy"));
        }
        let length = buffer.len_bytes();
        let start = NonNull::new(buffer.buf_ptr().cast::<u8>()).unwrap_or(NonNull::dangling());
        self.buffers.push(buffer);
        // SAFETY: while the buffer is exported, which is as long as it is held, Python neither frees nor moves its memory. Python code may
        // read or write it at any time, through raw memory as well; so does every other writer of buffers.
        Ok(unsafe { CallerMemory::new(start, length) })
    }
}

fn at_address(address: usize, length: usize) -> PyResult<CallerMemory> {
    let start = std::ptr::with_exposed_provenance_mut::<u8>(address);
    let Some(start) = NonNull::new(start).or((length == 0).then(NonNull::dangling)) else {
        return Err(PyValueError::new_err("the address is 0; give that of memory, as `tensor.data_ptr()`"));
    };
    // SAFETY: the caller said so, as the documentation of the function demands.
    Ok(unsafe { CallerMemory::new(start, length) })
}

/// The bytes of `object`, to be sent by whoever has them for as long as it takes: those of `bytes` where they lie, since nobody changes them,
/// those of any other contiguous buffer as they are now.
///
/// # Errors
/// `TypeError` for anything else.
pub(crate) fn bytes_of(object: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(Bytes::from_owner(PyBackedBytes::from(bytes.clone())));
    }
    let buffer = PyUntypedBuffer::get(object)?;
    if !buffer.is_c_contiguous() {
        return Err(PyTypeError::new_err("the buffer is not contiguous; give a contiguous copy"));
    }
    let length = buffer.len_bytes();
    let mut copy = Vec::with_capacity(length);
    // SAFETY: the buffer is exported until the end of this function, so its `length` bytes are allocated; they are read as raw memory, as
    // others may write to them. `copy` has room for them, and they are its first `length` bytes then.
    unsafe {
        std::ptr::copy_nonoverlapping(buffer.buf_ptr().cast::<u8>().cast_const(), copy.as_mut_ptr(), length);
        copy.set_len(length);
    }
    Ok(Bytes::from(copy))
}

/// New `bytes` to be filled before anybody sees them.
///
/// They are not cleared before: of many ranges, none would be asked for until the kernel has given memory for all of them.
pub(crate) struct NewBytes {
    bytes: Py<PyBytes>,
    length: usize,
}

impl NewBytes {
    /// Of `length` bytes, and the memory to fill.
    ///
    /// # Errors
    /// `MemoryError`.
    pub(crate) fn new(py: Python<'_>, length: usize) -> PyResult<(Self, CallerMemory)> {
        let size = isize::try_from(length).map_err(|_| PyMemoryError::new_err(()))?;
        // SAFETY: without bytes to copy, this makes an object with room for so many, or sets an exception.
        let bytes = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyBytes_FromStringAndSize(ptr::null(), size)) }?;
        let bytes = bytes.cast_into::<PyBytes>()?;
        // SAFETY: it is a `bytes` object.
        let start = unsafe { ffi::PyBytes_AsString(bytes.as_ptr()) };
        let start = NonNull::new(start.cast::<u8>()).unwrap_or(NonNull::dangling());
        // SAFETY: the object is kept, and so its memory; nobody else knows of it until `finish`, which is after the read.
        let memory = unsafe { CallerMemory::new(start, length) };
        Ok((Self { bytes: bytes.unbind(), length }, memory))
    }

    /// The first `length` of them, which a read has filled.
    pub(crate) fn finish(self, py: Python<'_>, length: usize) -> Py<PyBytes> {
        if length >= self.length {
            return self.bytes;
        }
        // SAFETY: it is a `bytes` object.
        let start = unsafe { ffi::PyBytes_AsString(self.bytes.as_ptr()) };
        // SAFETY: the object has more bytes than `length`, and so many were filled by a read that has ended: nobody writes any more. What
        // is behind them may never have been filled, and no reference to it is made.
        let filled = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length) };
        PyBytes::new(py, filled).unbind()
    }
}
