//! What a call returns, and the words for it.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay_session::Error;

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"",
};

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// The version of the library, as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn forebay_version() -> *const c_char {
    VERSION.as_ptr()
}

/// Why the last call of this thread that failed did so, and what to do about it: one line, in UTF-8, empty if none has failed. It is
/// there until another call of this thread fails.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_error_message() -> *const c_char {
    MESSAGE.try_with(|message| message.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// What C is told of a call: 0, or the negative errno, whose message is kept for [`forebay_error_message`].
pub(crate) fn outcome(call: impl FnOnce() -> Result<(), Error>) -> c_int {
    answer(|| call().map(|()| 0))
}

/// The same of a call that says more than 0.
pub(crate) fn answer(call: impl FnOnce() -> Result<c_int, Error>) -> c_int {
    // What a panic left half done is dropped with the handle, or is behind a lock that knows no poison.
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => told(&error),
        Err(_) => told(&Error::lost("the call")),
    }
}

fn told(error: &Error) -> c_int {
    let path = error.path.as_deref().map(String::from_utf8_lossy);
    let text = path.map_or_else(|| error.to_string(), |path| format!("{path}: {error}"));
    // A name may have any byte but that.
    let message = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // At the end of a thread nobody asks any more.
    let _ = MESSAGE.try_with(|kept| kept.replace(message));
    -error.errno.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> String {
        // SAFETY: it is there until another call of this thread fails.
        unsafe { CStr::from_ptr(forebay_error_message()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_call_that_fails_leaves_its_errno_and_its_words_to_its_thread() {
        assert_eq!((outcome(|| Ok(())), message().as_str()), (0, ""));
        let error = Error::argument("no such setting", "look at the manual").about(b"/a\0b");
        assert_eq!(outcome(|| Err(error)), -libc::EINVAL);
        assert_eq!(message(), "/a b: no such setting; look at the manual");
        assert_eq!(outcome(|| Ok(())), 0);
        assert_eq!(message(), "/a b: no such setting; look at the manual");
        assert_eq!(std::thread::spawn(message).join().unwrap(), "");
    }

    #[test]
    fn a_panic_does_not_get_into_c() {
        assert_eq!(outcome(|| panic!("for the test")), -libc::EIO);
        assert!(message().contains("given up"), "{}", message());
    }
}
