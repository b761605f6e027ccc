//! A lease: keys that live no longer than their holder.
//!
//! The store renews a lease with a task of its own, so that a holder that dies is noticed and one that is only busy is
//! not. Both ends of one are here: the holder's [`Lease`] and the store's [`LeaseOwner`].

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_types::Tenure;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// Names a lease in a [`crate::Write::Put`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

impl fmt::Display for LeaseId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:x}", self.0)
    }
}

/// A lease, renewed until it is dropped or revoked. Its keys are deleted when it ends.
///
/// Dropping it revokes it in the background.
#[derive(Debug)]
pub struct Lease {
    id: LeaseId,
    ttl: Duration,
    lost: CancellationToken,
    tenure: Arc<Tenure>,
    end: Option<oneshot::Sender<oneshot::Sender<()>>>,
}

impl Lease {
    /// A lease for its holder, and the end of it that the store keeps.
    #[must_use]
    pub fn new(id: LeaseId, ttl: Duration) -> (Self, LeaseOwner) {
        let (end, ended) = oneshot::channel();
        let (lost, tenure) = (CancellationToken::new(), Arc::new(Tenure::unlimited()));
        let owner = LeaseOwner { lost: lost.clone(), tenure: Arc::clone(&tenure), ended };
        (Self { id, ttl, lost, tenure, end: Some(end) }, owner)
    }

    /// Its name in writes.
    #[must_use]
    pub fn id(&self) -> LeaseId {
        self.id
    }

    /// How long its keys outlive a holder that dies: what was asked for, or more where the store cannot do less.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Waits until the lease is lost: it expired, the store ended it or was closed, or it could not be renewed within its
    /// ttl, so that others may already see its keys gone. Never resolves before.
    pub async fn lost(&self) {
        self.lost.cancelled().await;
    }

    /// Whether [`Lease::lost`] would resolve now.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.lost.is_cancelled()
    }

    /// Until when the keys are there for certain: what to compare with the time before what rests on them is used. It is over
    /// also in a process that was stopped, before [`Lease::lost`] can say so.
    #[must_use]
    pub fn tenure(&self) -> &Arc<Tenure> {
        &self.tenure
    }

    /// Ends the lease and waits until its keys are deleted. When the store cannot be reached it expires by itself within
    /// the ttl; this waits no longer than the store's deadline.
    pub async fn revoke(mut self) {
        let (done, is_done) = oneshot::channel();
        if let Some(end) = self.end.take()
            && end.send(done).is_ok()
        {
            // The owner drops its end when it is done as well.
            let _ = is_done.await;
        }
    }
}

/// The store's end of a lease.
#[derive(Debug)]
pub struct LeaseOwner {
    lost: CancellationToken,
    tenure: Arc<Tenure>,
    ended: oneshot::Receiver<oneshot::Sender<()>>,
}

impl LeaseOwner {
    /// Until when the keys are there for certain. The code that renews the lease sets it. Nothing is set at first: they
    /// stay.
    #[must_use]
    pub fn tenure(&self) -> &Arc<Tenure> {
        &self.tenure
    }

    /// Tells the holder that the lease is lost.
    pub fn lose(&self) {
        self.tenure.end(Instant::now());
        self.lost.cancel();
    }

    /// Waits until the holder drops or revokes the lease. Drop what is returned when its keys are deleted.
    pub async fn ended(&mut self) -> Option<oneshot::Sender<()>> {
        (&mut self.ended).await.ok()
    }
}

impl Drop for LeaseOwner {
    fn drop(&mut self) {
        // A lease that is not renewed is lost.
        self.lose();
    }
}
