//! Text out of C functions that print.

use std::ffi::{CStr, c_char};

/// What `print` writes to the stream that it is given; empty when there is no memory for a stream.
pub(crate) fn printed(print: impl FnOnce(*mut libc::FILE)) -> String {
    let mut buffer: *mut c_char = std::ptr::null_mut();
    let mut length = 0;
    // SAFETY: both places outlive the stream, which is closed below.
    let stream = unsafe { libc::open_memstream(&mut buffer, &mut length) };
    if stream.is_null() {
        return String::new();
    }
    print(stream);
    // SAFETY: the stream is open; closing it leaves the text, terminated by a zero, in `buffer`, which is ours to free.
    unsafe {
        if libc::fclose(stream) != 0 || buffer.is_null() {
            return String::new();
        }
        let text = CStr::from_ptr(buffer).to_string_lossy().into_owned();
        libc::free(buffer.cast());
        text
    }
}
