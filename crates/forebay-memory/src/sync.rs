//! What the pool needs of threads and time. With `--cfg shuttle` they are those of a scheduler that tries orders out (`model.rs`).

#[cfg(not(shuttle))]
pub(crate) use self::real::*;
#[cfg(shuttle)]
pub(crate) use self::tried::*;

#[cfg(not(shuttle))]
mod real {
    pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    pub(crate) use forebay_locks::Mutex;
    pub(crate) use tokio::time::timeout;
}

#[cfg(shuttle)]
mod tried {
    use std::time::Duration;

    pub(crate) use shuttle::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    /// As that of `forebay-locks`: a holder that panics does not poison it.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> shuttle::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
        }
    }

    /// A deadline may pass at any moment, [`Duration::MAX`] never.
    pub(crate) async fn timeout<F: Future>(deadline: Duration, future: F) -> Result<F::Output, ()> {
        let passes = async {
            if deadline == Duration::MAX {
                std::future::pending::<()>().await;
            }
            shuttle::future::spawn(shuttle::future::yield_now()).await.unwrap();
        };
        tokio::select! {
            biased;
            output = future => Ok(output),
            () = passes => Err(()),
        }
    }
}
