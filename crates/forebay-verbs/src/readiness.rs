//! Waiting for channels, in a tokio runtime.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::error::Error;

/// Tells when a channel has something to tell. Holds the channel.
pub struct Readiness<T: AsRawFd> {
    channel: AsyncFd<Arc<T>>,
}

impl<T: AsRawFd> Readiness<T> {
    /// # Safety
    /// The channel has one descriptor, which is open as long as it lives.
    pub(crate) unsafe fn of(channel: &Arc<T>) -> Result<Self, Error> {
        // SAFETY: what is registered holds the channel, so the descriptor stays open.
        let channel = unsafe { AsyncFd::register_with_interest(Arc::clone(channel), Interest::READABLE) };
        Ok(Self { channel: channel.map_err(|error| unwaitable(error.to_string()))? })
    }

    /// Returns when there may be something. All of it has to be taken then: it is told of once.
    ///
    /// # Errors
    /// [`Error::Refused`] when the runtime cannot wait.
    pub async fn readable(&self) -> Result<(), Error> {
        let mut guard = self.channel.readable().await.map_err(|error| unwaitable(error.to_string()))?;
        guard.clear_ready();
        Ok(())
    }
}

fn unwaitable(reason: String) -> Error {
    Error::Refused { what: "wait for events of RDMA", reason }
}
