//! Exceptions: `ValueError` for a call that makes no sense, else `OSError` with errno, words and path.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use forebay_session::{Error, ErrorClass};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

/// The exception that tells of `error`, as an object.
pub(crate) fn exception(py: Python<'_>, error: Error) -> Py<PyAny> {
    raised(error).into_value(py).into_any()
}

/// The exception that tells of `error`. Python makes of it the class that belongs to the errno, such as `FileNotFoundError`.
pub(crate) fn raised(error: Error) -> PyErr {
    let text = error.to_string();
    match (error.class, error.path) {
        (ErrorClass::Argument, _) => PyValueError::new_err(text),
        (ErrorClass::System | ErrorClass::Inherited, Some(path)) => {
            PyOSError::new_err((error.errno, text, OsString::from_vec(path)))
        }
        (ErrorClass::System | ErrorClass::Inherited, None) => PyOSError::new_err((error.errno, text)),
    }
}
