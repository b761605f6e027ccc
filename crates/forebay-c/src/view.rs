//! Bytes where they lie in the cache.

use std::ffi::{c_int, c_void};

use forebay_session::fork::OfProcess;
use forebay_session::runtime::wait;
use forebay_session::{Error, Place};

use crate::arguments::{given, hand_out, take_back};
use crate::client::Client;
use crate::error::outcome;
use crate::file::File;

/// Bytes of a version of a file, to be read. They stay as they are until it is freed, and take memory from the cache until then. It does
/// not outlive a fork: in the child there are no bytes.
pub struct View(OfProcess<forebay_session::View>);

/// Shows `length` bytes of a file, fewer only at its end, where they lie in memory of this process or of a worker on this host. If they
/// lie in several pieces, or views hold too much already, it is a copy. It is freed by forebay_view_free.
///
/// Returns 0, or a negative errno.
///
/// # Safety
/// None but that the pointers are what they say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_view_new(
    client: Option<&Client>,
    file: Option<&File>,
    offset: u64,
    length: usize,
    view: Option<&mut *mut View>,
) -> c_int {
    outcome(|| {
        let (session, place) = (given(client, "client")?.session()?, given(view, "view")?);
        let file = given(file, "file")?.open()?;
        let shown = wait(session.view(Place::File(file.clone()), offset, length))??;
        hand_out(View(OfProcess::new(shown)), place);
        Ok(())
    })
}

/// Where the bytes of a view are, and how many: `length` and `is_copy` may be NULL. NULL in a forked child, and for no view.
///
/// # Safety
/// None but that the pointers are what they say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_view_bytes(
    view: Option<&View>,
    length: Option<&mut usize>,
    is_copy: Option<&mut bool>,
) -> *const c_void {
    let shown = view.and_then(|view| view.0.get());
    if let Some(length) = length {
        *length = shown.map_or(0, |shown| shown.bytes().len());
    }
    if let Some(is_copy) = is_copy {
        *is_copy = shown.is_some_and(forebay_session::View::is_copy);
    }
    shown.map_or(std::ptr::null(), |shown| shown.bytes().as_ptr().cast())
}

/// Frees a view; NULL is none. Its bytes may be gone from then on.
///
/// # Safety
/// `view` is of forebay_view_new, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_view_free(view: *mut View) {
    outcome(|| {
        // SAFETY: as the caller says.
        drop(unsafe { take_back(view) });
        Ok::<(), Error>(())
    });
}
