//! What happens here, for `forebay/_logging.py`. Nothing here waits, and no other thread of ours comes to Python.

use std::time::UNIX_EPOCH;

use forebay_session::log;
use pyo3::prelude::*;

/// How bad it is, the module that tells of it, what it says, when (seconds since 1970), and the file and line of the code.
type Row = (u8, &'static str, String, f64, Option<&'static str>, Option<u32>);

/// Begins to keep what happens in this process, or changes how much is wanted: from 0, nothing, over 1, errors, to 5.
#[pyfunction]
pub(crate) fn log_start(wanted: u8) {
    log::start(wanted);
}

/// What happened since the last time, and how much of it found no room.
#[pyfunction]
pub(crate) fn log_take() -> (Vec<Row>, u64) {
    let log::Taken { messages, lost } = log::take();
    let row = |message: log::Message| {
        let seconds = message.at.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        (message.level, message.target, message.text, seconds, message.file, message.line)
    };
    (messages.into_iter().map(row).collect(), lost)
}
