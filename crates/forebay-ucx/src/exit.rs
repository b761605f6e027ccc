//! A process that ends while threads of it use UCX.
//!
//! UCX's libraries free what is theirs when the process ends, whatever threads still use it, and such a thread dies of a segmentation
//! fault: the process has done all that it was to do, and its exit status says that it crashed. A thread that is told to end does so a
//! moment later, so that happens. As long as there is a context, the process therefore ends at once, with the status that it has, before
//! the turn of the libraries comes: what they would free goes with it anyway.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Contexts that threads may use.
static IN_USE: AtomicUsize = AtomicUsize::new(0);

/// Goes with a context, to be dropped after it.
#[derive(Debug)]
pub(crate) struct InUse(());

impl InUse {
    pub(crate) fn begin() -> Self {
        IN_USE.fetch_add(1, Ordering::AcqRel);
        // The library is loaded by now, so what is registered here comes before the destructors of its own.
        #[cfg(target_env = "gnu")]
        glibc::register();
        Self(())
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        IN_USE.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Others have no `on_exit`, and no UCX either.
#[cfg(target_env = "gnu")]
mod glibc {
    use std::ffi::{c_int, c_void};
    use std::sync::Once;
    use std::sync::atomic::Ordering;

    static ON_EXIT: Once = Once::new();

    unsafe extern "C" {
        /// As `atexit(3)`, and `function` is told the exit status. See on_exit(3).
        fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    }

    pub(super) fn register() {
        ON_EXIT.call_once(|| {
            // SAFETY: the function is there for as long as the process, takes any argument, and does not unwind. When it cannot be
            // registered, all is as without it.
            let _ = unsafe { on_exit(end, std::ptr::null_mut()) };
        });
    }

    /// Nothing that the thread has of its own may be used here: it is gone. Rust has flushed its standard output before.
    extern "C" fn end(status: c_int, _: *mut c_void) {
        if super::IN_USE.load(Ordering::Acquire) > 0 {
            // SAFETY: ends the process, and touches no memory of it.
            unsafe { libc::_exit(status) }
        }
    }
}
