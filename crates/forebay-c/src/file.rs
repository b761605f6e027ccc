//! Files that are open.

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use forebay_session::fork::OfProcess;
use forebay_session::runtime::wait;
use forebay_session::{Error, OpenFile};

use crate::arguments::{given, hand_out, live, take_back, text};
use crate::client::{Client, Entry};
use crate::error::outcome;

/// A version of a file. All reads are of it; if the object was replaced and the bytes are not cached, they fail with -ESTALE. Any number
/// of threads may use it.
pub struct File(OfProcess<Arc<OpenFile>>);

impl File {
    /// It, as this process has it.
    ///
    /// # Errors
    /// When the process was forked since.
    pub(crate) fn open(&self) -> Result<&Arc<OpenFile>, Error> {
        live(&self.0, "file")
    }
}

/// Opens the file that is at `path` now. `entry`, which may be NULL, is told what it is. It is closed by forebay_close.
///
/// Returns 0, or a negative errno: -ENOENT, -EISDIR.
///
/// # Safety
/// `path` ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_open(
    client: Option<&Client>,
    path: *const c_char,
    file: Option<&mut *mut File>,
    entry: Option<&mut Entry>,
) -> c_int {
    outcome(|| {
        let (session, place) = (given(client, "client")?.session()?, given(file, "file")?);
        // SAFETY: as the caller says.
        let path = unsafe { text(path, "path") }?.to_vec();
        let (opened, found) = wait(session.open(path))??;
        if let Some(entry) = entry {
            *entry = Entry::from(&found);
        }
        hand_out(File(OfProcess::new(opened)), place);
        Ok(())
    })
}

/// Closes a file; NULL is none. Operations and views that were begun with it go on.
///
/// # Safety
/// `file` is of forebay_open, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_close(file: *mut File) {
    outcome(|| {
        // SAFETY: as the caller says.
        drop(unsafe { take_back(file) });
        Ok(())
    });
}
