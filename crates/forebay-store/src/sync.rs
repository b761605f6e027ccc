//! What threads that share a block's copies need. With `--cfg shuttle` it is that of a scheduler that tries orders out
//! (`model.rs`); what only counts, or is a hint, stays as it is.

#[cfg(not(shuttle))]
pub(crate) use self::real::*;
#[cfg(shuttle)]
pub(crate) use self::tried::*;

#[cfg(not(shuttle))]
mod real {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    pub(crate) use forebay_locks::Mutex;
}

#[cfg(shuttle)]
mod tried {
    pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    /// As that of `forebay-locks`: it tells of no holder that panicked.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> shuttle::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
        }
    }
}
