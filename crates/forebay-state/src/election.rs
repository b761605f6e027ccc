//! Which of several processes does a job: one at a time, and a new one when it dies.
//!
//! The leader is the process that made a key under its lease; the others watch the key and try when it is gone. Between
//! the moment a leader's lease ends in the store and the moment it notices, two processes may believe that they lead.
//! Therefore a leader adds [`Leadership::fence`] to what it commits: the store refuses the commits of one that was
//! deposed.
//!
//! What to do is decided by [`Candidate`], which knows no clock and no store; the rest of this file carries it out.

mod candidate;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::sleep;
use tracing::debug;

use crate::{Condition, Entry, Lease, LeaseId, Revision, StateError, StateStore, Transaction, Update, Watch};
use candidate::{Action, Candidate, Event};

/// An election: a key of a store, and how long a leader that died is missed.
#[derive(Clone)]
pub struct Election {
    store: Arc<dyn StateStore>,
    key: String,
    ttl: Duration,
}

impl Election {
    /// An election over `key`. A leader that dies is replaced after `ttl`.
    #[must_use]
    pub fn new(store: Arc<dyn StateStore>, key: impl Into<String>, ttl: Duration) -> Self {
        Self { store, key: key.into(), ttl }
    }

    /// Waits until this process leads; `value` tells the others which process does. Dropping the future withdraws.
    ///
    /// # Errors
    /// What no waiting cures: the key or the value cannot be stored, the store refuses or was closed. A store that cannot
    /// be reached is waited for.
    pub async fn campaign(&self, value: impl Into<Bytes>) -> Result<Leadership, StateError> {
        let value = value.into();
        let mut watch = self.watch();
        let mut candidate = Candidate::default();
        let mut lease = None;
        let mut action = candidate.start();
        loop {
            let event = match action {
                Action::Observe => observe(&mut watch, &*self.store).await?,
                Action::Claim => match self.claim(&value).await {
                    Ok(Some((revision, taken))) => {
                        lease = Some((revision, taken));
                        Event::Claimed
                    }
                    Ok(None) => Event::Taken,
                    Err(error) if error.is_unavailable() || matches!(error, StateError::LeaseLost { .. }) => {
                        debug!(%error, key = self.key, "cannot stand for election now");
                        Event::Failed
                    }
                    Err(error) => return Err(error),
                },
                Action::Pause(pause) => {
                    sleep(pause.mul_f64(0.5 + rand::random::<f64>() / 2.0)).await;
                    Event::Paused
                }
                Action::Lead => match lease.take() {
                    Some((revision, lease)) => return Ok(Leadership { key: self.key.clone(), revision, lease }),
                    None => Event::Failed,
                },
            };
            action = candidate.next(event);
        }
    }

    /// Tells which process leads, now and whenever that changes.
    #[must_use]
    pub fn watch(&self) -> LeaderWatch {
        LeaderWatch { watch: self.store.watch(&self.key), key: self.key.clone(), last: None, is_lost: false }
    }

    /// Makes the key under a new lease. Whatever goes wrong, the lease is dropped, and with it the key if it was made.
    async fn claim(&self, value: &Bytes) -> Result<Option<(Revision, Lease)>, StateError> {
        let lease = self.store.lease(self.ttl).await?;
        let claim = Transaction::new().if_absent(&self.key).put_leased(&self.key, value.clone(), lease.id());
        Ok(self.store.commit(claim).await?.revision().map(|revision| (revision, lease)))
    }
}

impl std::fmt::Debug for Election {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Election").field("key", &self.key).field("ttl", &self.ttl).finish_non_exhaustive()
    }
}

async fn observe(watch: &mut LeaderWatch, store: &dyn StateStore) -> Result<Event, StateError> {
    loop {
        match watch.next().await {
            Some(LeaderUpdate::Leads(_)) => return Ok(Event::Occupied),
            Some(LeaderUpdate::Vacant) => return Ok(Event::Vacant),
            Some(LeaderUpdate::Lost { .. }) => {}
            None => return Err(StateError::Closed { store: store.describe() }),
        }
    }
}

/// This process leads, until the lease is lost or this is dropped.
#[derive(Debug)]
pub struct Leadership {
    key: String,
    revision: Revision,
    lease: Lease,
}

impl Leadership {
    /// The condition under which commits are this leader's: add it to each.
    #[must_use]
    pub fn fence(&self) -> Condition {
        Condition::Unchanged(self.key.clone(), self.revision)
    }

    /// The lease it depends on. Keys put under it end with the leadership.
    #[must_use]
    pub fn lease(&self) -> LeaseId {
        self.lease.id()
    }

    /// Waits until this process must stop leading: it could not renew its lease in time.
    pub async fn lost(&self) {
        self.lease.lost().await;
    }

    /// Whether [`Leadership::lost`] would resolve now.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.lease.is_lost()
    }

    /// Makes room for the next leader, and waits until the store knows.
    pub async fn resign(self) {
        self.lease.revoke().await;
    }
}

/// What is known of the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaderUpdate {
    /// There is one; the entry's value is what it campaigned with.
    Leads(Entry),
    /// There is none.
    Vacant,
    /// The store cannot be reached: the last leader that was known may lead or not. One of the others follows when it is
    /// back.
    Lost {
        /// The cause, for people.
        reason: String,
    },
}

/// The leader, over time.
#[derive(Debug)]
pub struct LeaderWatch {
    watch: Watch,
    key: String,
    /// Told again when the store is back.
    last: Option<LeaderUpdate>,
    is_lost: bool,
}

impl LeaderWatch {
    /// The next news; `None` when the store was closed. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<LeaderUpdate> {
        loop {
            let update = self.watch.next().await?;
            if let Update::Lost { reason } = update {
                self.is_lost = true;
                return Some(LeaderUpdate::Lost { reason });
            }
            let is_back = std::mem::take(&mut self.is_lost);
            match self.seen(update) {
                Some(news) => {
                    self.last = Some(news);
                    return self.last.clone();
                }
                None if is_back && self.last.is_some() => return self.last.clone(),
                None => {}
            }
        }
    }

    /// A watch sees all keys that begin like ours.
    fn seen(&self, update: Update) -> Option<LeaderUpdate> {
        let (entries, is_gone) = match update {
            Update::Snapshot(snapshot) => (snapshot.entries, true),
            Update::Changed { puts, deletes, .. } => (puts, deletes.contains(&self.key)),
            Update::Lost { .. } => return None,
        };
        let entry = entries.into_iter().find(|entry| entry.key == self.key);
        entry.map(LeaderUpdate::Leads).or(is_gone.then_some(LeaderUpdate::Vacant))
    }
}
