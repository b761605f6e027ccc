//! A process that ends while lanes run.
//!
//! UCX's libraries free what is theirs when the process ends, whatever threads still use it, and such a thread dies of a segmentation
//! fault: the process has done all that it was to do, and its exit status says that it crashed. A lane that is dropped in a runtime
//! ends by itself a moment later, so that happens. Then the process ends at once, with the status that it has, before the turn of the
//! libraries comes: what they would free goes with it anyway.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads of lanes that may call UCX.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// The thread of a lane, for as long as it may call UCX. To be dropped after all else that the thread has.
pub(crate) struct Running(());

impl Running {
    pub(crate) fn begin() -> Self {
        RUNNING.fetch_add(1, Ordering::AcqRel);
        // The library is loaded by now, so what is registered here comes before the destructors of its own.
        #[cfg(target_env = "gnu")]
        glibc::register();
        Self(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::AcqRel);
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
        if super::RUNNING.load(Ordering::Acquire) > 0 {
            // SAFETY: ends the process, and touches no memory of it.
            unsafe { libc::_exit(status) }
        }
    }
}
