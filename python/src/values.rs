//! Paths and entries, as Python has them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use forebay_session::Entry;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

/// The bytes of a path: of `str`, `bytes` or what is `os.PathLike`, encoded as the file system's names are.
pub(crate) fn path_of(object: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if let Ok(text) = object.cast::<PyString>() {
        return match text.to_str() {
            Ok(text) => Ok(text.as_bytes().to_vec()),
            // It stands for bytes that are no text.
            Err(_) => Ok(text.extract::<OsString>()?.into_vec()),
        };
    }
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(bytes.as_bytes().to_vec());
    }
    Ok(object.extract::<PathBuf>()?.into_os_string().into_vec())
}

/// The fields of `forebay.Entry`, in its order.
pub(crate) fn entry<'py>(py: Python<'py>, entry: &Entry) -> PyResult<Bound<'py, PyTuple>> {
    let path = OsString::from_vec(entry.path.clone());
    let version = entry.version.as_ref();
    let size = version.map_or(0, |version| version.size);
    let id = version.map(|version| version.id().to_string());
    (path, version.is_some(), size, entry.modified_nanos, entry.etag(), id, entry.writable).into_pyobject(py)
}

/// A list of them.
pub(crate) fn entries(py: Python<'_>, entries: &[Entry]) -> PyResult<Py<PyAny>> {
    let entries = entries.iter().map(|found| entry(py, found)).collect::<PyResult<Vec<_>>>()?;
    Ok(PyList::new(py, entries)?.into_any().unbind())
}
