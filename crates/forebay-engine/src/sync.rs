//! The lock of the table of fetches. With `--cfg shuttle` it is that of a scheduler that tries orders out (`model.rs`).

#[cfg(not(shuttle))]
pub(crate) use forebay_locks::Mutex;

#[cfg(shuttle)]
pub(crate) use self::tried::Mutex;

#[cfg(shuttle)]
mod tried {
    /// As that of `forebay-locks`: a holder that panics does not poison it.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn lock(&self) -> shuttle::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
        }
    }
}
