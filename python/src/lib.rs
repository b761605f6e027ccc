//! The native module of the Python package: `forebay-session`, with Python's types, errors, buffers and signals.
//!
//! * `session.rs`: the session's functions as Python calls them;
//! * `calling.rs`: how a call waits, on the calling thread without the GIL, or as an `Operation` of asyncio;
//! * `writer.rs`: a file that is being written;
//! * `buffers.rs`: memory of Python objects, and of whoever has an address;
//! * `view.rs`, `dlpack.rs`: bytes of the cache as a buffer and as a tensor;
//! * `values.rs`, `errors.rs`: paths, entries and exceptions;
//! * `log.rs`: what happens, for the thread that hands it to Python's `logging`.
//!
//! The classes here are for the Python code in `forebay/` alone, which is the API. Beside them the library exports the C functions of
//! `forebay-streamer`, for Run:ai's model streamer (`forebay.streamer_library()`): a wheel has the client once, and so has a process.

#![warn(clippy::expect_used, clippy::unwrap_used)]

mod buffers;
mod calling;
mod dlpack;
mod errors;
mod file;
mod log;
mod operation;
mod session;
mod values;
mod view;
mod writer;

// To link it: a crate that nothing names is left out, and so would be what it exports.
use forebay_streamer as _;
use pyo3::prelude::*;

/// In a forked child: its random numbers are no longer its parent's.
#[pyfunction]
fn after_fork_in_child() {
    forebay_session::fork::renew_random_numbers();
}

/// How many GPUs CUDA's driver shows.
#[pyfunction]
fn cuda_devices(py: Python<'_>) -> PyResult<u32> {
    // The first time, the driver begins, which takes a while.
    py.detach(forebay_session::count_devices).map_err(errors::raised)
}

/// The module.
#[pymodule(gil_used = false)]
#[pyo3(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<file::File>()?;
    module.add_class::<operation::Operation>()?;
    module.add_class::<session::Session>()?;
    module.add_class::<session::Walk>()?;
    module.add_class::<view::View>()?;
    module.add_class::<writer::Writer>()?;
    module.add_function(wrap_pyfunction!(after_fork_in_child, module)?)?;
    module.add_function(wrap_pyfunction!(cuda_devices, module)?)?;
    module.add_function(wrap_pyfunction!(log::log_start, module)?)?;
    module.add_function(wrap_pyfunction!(log::log_take, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
