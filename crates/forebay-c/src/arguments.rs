//! Pointers of C, looked at before they are used.

use std::ffi::{CStr, c_char};
use std::ptr::NonNull;

use forebay_session::fork::OfProcess;
use forebay_session::{CallerMemory, Error};

/// What `pointer`, the argument `name`, leads to.
///
/// # Errors
/// When it is NULL.
pub(crate) fn given<T>(pointer: Option<T>, name: &str) -> Result<T, Error> {
    pointer.ok_or_else(|| null(name))
}

pub(crate) fn null(name: &str) -> Error {
    Error::argument(format!("{name} is NULL"), "pass what the function that makes it gave")
}

/// What a handle has, if this process made it.
///
/// # Errors
/// When its parent did.
pub(crate) fn live<'a, T>(handle: &'a OfProcess<T>, what: &str) -> Result<&'a T, Error> {
    handle.get().ok_or_else(|| Error::inherited(what))
}

/// The bytes of a string.
///
/// # Safety
/// `text` is NULL or a string that ends with a NUL.
///
/// # Errors
/// When it is NULL.
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a [u8], Error> {
    if text.is_null() {
        return Err(null(name));
    }
    // SAFETY: as demanded.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// The elements of an array.
///
/// # Safety
/// `start` is that of `count` elements that stay as they are for `'a`, or `count` is 0.
///
/// # Errors
/// When it is NULL and there are to be some.
pub(crate) unsafe fn array<'a, T>(start: *const T, count: usize, name: &str) -> Result<&'a [T], Error> {
    match (count, start.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(null(name)),
        // SAFETY: as demanded.
        (_, false) => Ok(unsafe { std::slice::from_raw_parts(start, count) }),
    }
}

/// Memory to read into.
///
/// # Safety
/// As for [`CallerMemory::new`], unless `length` is 0.
///
/// # Errors
/// When it is NULL and is to have bytes.
pub(crate) unsafe fn memory(start: *mut u8, length: usize) -> Result<CallerMemory, Error> {
    let start = NonNull::new(start).or_else(|| (length == 0).then(NonNull::dangling));
    let start = start.ok_or_else(|| Error::argument("the memory to read into is NULL", "give it an address"))?;
    // SAFETY: as demanded.
    Ok(unsafe { CallerMemory::new(start, length) })
}

/// Puts `value` where the caller wants it, in memory of its own.
pub(crate) fn hand_out<T>(value: T, place: &mut *mut T) {
    *place = Box::into_raw(Box::new(value));
}

/// Frees what [`hand_out`] gave.
///
/// # Safety
/// `handle` is NULL or came from there, and is not used any more.
pub(crate) unsafe fn take_back<T>(handle: *mut T) -> Option<Box<T>> {
    // SAFETY: as demanded.
    (!handle.is_null()).then(|| unsafe { Box::from_raw(handle) })
}
