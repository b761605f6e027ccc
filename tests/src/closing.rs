//! Closing a file, and hearing what that says.

use std::fs::File;
use std::io;
use std::os::fd::IntoRawFd as _;

/// `close(2)`, which says whether what was written has arrived; dropping a file does not.
///
/// # Errors
/// What it says.
pub fn close(file: File) -> io::Result<()> {
    // SAFETY: the descriptor was the file's, which is gone, and nothing else has it.
    Ok(unsafe { rustix::io::try_close(file.into_raw_fd()) }?)
}
