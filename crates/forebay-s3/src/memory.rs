//! The memory that bodies have, of all requests together.
//!
//! A body that is sent holds views of what is cached, which cannot be reused meanwhile, and one that is received is
//! collected. Clients that are slow would hold as much of it as there are connections. So each body asks for what it is
//! about to hold, in turn. One that waits for its next piece holds at most the one that is being sent, and that goes as
//! its client takes it, or with the connection of a client that takes nothing.
//!
//! What comes in is held from its first byte to its last, for as long as its client likes. So half of the memory is the
//! most that all of it has: who writes slowly keeps nobody from reading.

use std::sync::Arc;
use std::time::Duration;

use forebay_types::{Failure, FailureKind};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What is counted in, in bytes.
const UNIT: u64 = 64 << 10;
/// How long a body stands in line. A client that takes nothing of an answer is closed sooner.
const WITHIN: Duration = Duration::from_secs(60);

/// The memory of bodies. Clones are of the same.
#[derive(Clone, Debug)]
pub(crate) struct BodyMemory {
    units: Arc<Semaphore>,
    all: u32,
    /// Those of them that bodies which come in may have.
    incoming: Arc<Semaphore>,
    half: u32,
}

/// A share of it, until it is dropped.
pub(crate) type Share = OwnedSemaphorePermit;

impl BodyMemory {
    /// `size` bytes.
    pub(crate) fn new(size: u64) -> Self {
        let all = u32::try_from(size / UNIT).unwrap_or(u32::MAX).clamp(1, 1 << 28);
        let half = (all / 2).max(1);
        let [units, incoming] = [all, half].map(|units| Arc::new(Semaphore::new(units as usize)));
        Self { units, all, incoming, half }
    }

    /// A share of `size` bytes, or all that there is.
    ///
    /// # Errors
    /// [`FailureKind::OutOfResources`] if others hold it for long.
    pub(crate) async fn share(&self, size: u64) -> Result<Share, Failure> {
        share_of(&self.units, self.all, size).await
    }

    /// The same for a body that comes in.
    ///
    /// # Errors
    /// As [`Self::share`].
    pub(crate) async fn share_of_incoming(&self, size: u64) -> Result<[Share; 2], Failure> {
        // First: who waits here is in nobody's way who reads.
        let incoming = share_of(&self.incoming, self.half, size).await?;
        Ok([incoming, self.share(size).await?])
    }

    /// How many bytes each of two parts may have that come in together.
    pub(crate) fn each_of_two(&self) -> u64 {
        u64::from(self.half) * UNIT / 2
    }

    /// How many bytes are held.
    pub(crate) fn held(&self) -> u64 {
        u64::from(self.all).saturating_sub(self.units.available_permits() as u64) * UNIT
    }
}

async fn share_of(units: &Arc<Semaphore>, all: u32, size: u64) -> Result<Share, Failure> {
    let wanted = u32::try_from(size.div_ceil(UNIT)).unwrap_or(u32::MAX).clamp(1, all);
    let share = tokio::time::timeout(WITHIN, Arc::clone(units).acquire_many_owned(wanted)).await;
    // It is never closed.
    share.ok().and_then(Result::ok).ok_or_else(|| {
        let message =
            format!("no memory for bodies within {WITHIN:?}; raise `s3.memory.size`, or ask for less at once");
        Failure::new(FailureKind::OutOfResources, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn shares_are_had_in_turn_and_nobody_gets_more_than_there_is() {
        let memory = BodyMemory::new(4 * UNIT);
        let first = memory.share(3 * UNIT).await.unwrap();
        assert_eq!(memory.held(), 3 * UNIT);
        let refused = memory.share(2 * UNIT).await.unwrap_err();
        assert_eq!(refused.kind(), FailureKind::OutOfResources);
        assert!(refused.message().contains("s3.memory.size"), "{refused}");
        drop(first);
        let all = memory.share(u64::MAX).await.unwrap();
        assert_eq!(memory.held(), 4 * UNIT, "it is as much as there is");
        drop(all);
        assert_eq!(memory.held(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_in_leaves_half_to_those_who_read() {
        let memory = BodyMemory::new(4 * UNIT);
        let first = memory.share_of_incoming(2 * UNIT).await.unwrap();
        let refused = memory.share_of_incoming(UNIT).await.unwrap_err();
        assert_eq!(refused.kind(), FailureKind::OutOfResources);
        let reads = memory.share(2 * UNIT).await.unwrap();
        assert_eq!(memory.held(), 4 * UNIT);
        drop((first, reads));
        let large = memory.share_of_incoming(u64::MAX).await.unwrap();
        assert_eq!(memory.held(), 4 * UNIT, "it counts as what it is");
        drop(large);
        assert_eq!(memory.held(), 0);
        let tiny = BodyMemory::new(1);
        assert!(tiny.share_of_incoming(UNIT).await.is_ok());
    }
}
