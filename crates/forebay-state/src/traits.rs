//! The interface of a state store: what it does, and what its users may rely on.

use std::time::Duration;

use bytes::Bytes;

use crate::entry::{Entry, Revision, Snapshot};
use crate::{Lease, LeaseId, MAX_KEY_LENGTH, StateError, Watch, key};

/// The largest value, in bytes.
pub const MAX_VALUE_SIZE: usize = 1 << 20;
/// The most conditions, and the most writes, in one transaction: etcd's own limit is 128 of each.
pub const MAX_TRANSACTION_OPERATIONS: usize = 100;
/// The most bytes of keys and values in one transaction: etcd's own limit for a request is 1.5 MiB.
pub const MAX_TRANSACTION_SIZE: usize = MAX_VALUE_SIZE + (1 << 18);

/// What must hold for a transaction to be carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// There is no such key.
    Absent(String),
    /// There is such a key.
    Present(String),
    /// The key is there and was last written at this revision.
    Unchanged(String, Revision),
}

/// A change of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Makes or replaces a key. With a lease the key is deleted when the lease ends; without one a key that had a lease
    /// stays from now on.
    Put {
        /// The key.
        key: String,
        /// The value.
        value: Bytes,
        /// The lease, if any.
        lease: Option<LeaseId>,
    },
    /// Deletes a key; one that is not there is no error.
    Delete {
        /// The key.
        key: String,
    },
    /// Deletes all keys that start with these bytes, in every state of the store in one piece.
    DeletePrefix {
        /// The beginning of the keys.
        prefix: String,
    },
}

/// Writes that happen all together if all conditions hold, or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// What must hold.
    pub conditions: Vec<Condition>,
    /// What is then done. No key may be written by two of them.
    pub writes: Vec<Write>,
}

impl Transaction {
    /// A transaction that does nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Only if there is no such key.
    #[must_use]
    pub fn if_absent(self, key: impl Into<String>) -> Self {
        self.when(Condition::Absent(key.into()))
    }

    /// Only if there is such a key.
    #[must_use]
    pub fn if_present(self, key: impl Into<String>) -> Self {
        self.when(Condition::Present(key.into()))
    }

    /// Only if the key was last written at this revision.
    #[must_use]
    pub fn if_unchanged(self, key: impl Into<String>, revision: Revision) -> Self {
        self.when(Condition::Unchanged(key.into(), revision))
    }

    /// Only if this holds.
    #[must_use]
    pub fn when(mut self, condition: Condition) -> Self {
        self.conditions.push(condition);
        self
    }

    /// Makes or replaces a key.
    #[must_use]
    pub fn put(self, key: impl Into<String>, value: impl Into<Bytes>) -> Self {
        self.write(Write::Put { key: key.into(), value: value.into(), lease: None })
    }

    /// Makes or replaces a key that lives as long as the lease.
    #[must_use]
    pub fn put_leased(self, key: impl Into<String>, value: impl Into<Bytes>, lease: LeaseId) -> Self {
        self.write(Write::Put { key: key.into(), value: value.into(), lease: Some(lease) })
    }

    /// Deletes a key if it is there.
    #[must_use]
    pub fn delete(self, key: impl Into<String>) -> Self {
        self.write(Write::Delete { key: key.into() })
    }

    /// Deletes all keys that start with `prefix`.
    #[must_use]
    pub fn delete_prefix(self, prefix: impl Into<String>) -> Self {
        self.write(Write::DeletePrefix { prefix: prefix.into() })
    }

    /// Does this, too.
    #[must_use]
    pub fn write(mut self, write: Write) -> Self {
        self.writes.push(write);
        self
    }

    /// Whether any store could carry it out; every implementation asks before it starts.
    ///
    /// # Errors
    /// `InvalidKey`, `ValueTooLarge`, and `InvalidTransaction` for too many operations, too many bytes, or two writes of
    /// one key.
    pub fn check(&self) -> Result<(), StateError> {
        let mut size = 0;
        for condition in &self.conditions {
            key::check(condition.key())?;
            size += condition.key().len();
        }
        for write in &self.writes {
            size += write.key().len();
            match write {
                Write::Put { key, value, .. } => {
                    key::check(key)?;
                    if value.len() > MAX_VALUE_SIZE {
                        let (key, size) = (key.clone(), value.len());
                        return Err(StateError::ValueTooLarge { key, size, limit: MAX_VALUE_SIZE });
                    }
                    size += value.len();
                }
                Write::Delete { key } => key::check(key)?,
                Write::DeletePrefix { prefix } => {
                    if prefix.len() > MAX_KEY_LENGTH {
                        key::check(prefix)?;
                    }
                }
            }
        }
        let limit = MAX_TRANSACTION_OPERATIONS;
        if self.conditions.len() > limit || self.writes.len() > limit {
            return Err(self.invalid(format!("more than {limit} conditions or writes")));
        }
        if size > MAX_TRANSACTION_SIZE {
            return Err(self.invalid(format!("{size} bytes, more than {MAX_TRANSACTION_SIZE}")));
        }
        for (position, write) in self.writes.iter().enumerate() {
            if self.writes[..position].iter().any(|earlier| earlier.overlaps(write)) {
                return Err(self.invalid(format!("two of its writes are for `{}`", write.key())));
            }
        }
        Ok(())
    }

    /// What it is about, for errors: "commit `jobs/7`".
    pub(crate) fn describe(&self) -> String {
        format!("commit `{}`", self.first_key())
    }

    fn invalid(&self, reason: String) -> StateError {
        StateError::InvalidTransaction { key: self.first_key().to_owned(), reason }
    }

    fn first_key(&self) -> &str {
        self.writes.first().map(Write::key).or(self.conditions.first().map(Condition::key)).unwrap_or_default()
    }
}

impl Condition {
    /// The key that it is about.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Absent(key) | Self::Present(key) | Self::Unchanged(key, _) => key,
        }
    }
}

impl Write {
    /// The key, or the prefix, that it changes.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
            Self::DeletePrefix { prefix } => prefix,
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::DeletePrefix { prefix: one }, Self::DeletePrefix { prefix: two }) => {
                one.starts_with(two.as_str()) || two.starts_with(one.as_str())
            }
            (Self::DeletePrefix { prefix }, write) | (write, Self::DeletePrefix { prefix }) => {
                write.key().starts_with(prefix.as_str())
            }
            (one, two) => one.key() == two.key(),
        }
    }
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committed {
    /// It was carried out and is durable. The store's revision then; the keys it put carry it.
    Done(Revision),
    /// A condition did not hold, and nothing was changed.
    Conflict,
}

impl Committed {
    /// The revision, unless there was a conflict.
    #[must_use]
    pub fn revision(self) -> Option<Revision> {
        match self {
            Self::Done(revision) => Some(revision),
            Self::Conflict => None,
        }
    }
}

/// A consistent store of keys and values that processes share.
///
/// # Contract
///
/// * **Keys** are segments joined by `/`, without a slash at either end, of at most [`MAX_KEY_LENGTH`] bytes, without
///   control characters; values have at most [`MAX_VALUE_SIZE`] bytes of any kind. A **prefix** is any beginning of a
///   key: `jobs/` is what lies below `jobs`, `jobs` is also `jobs2`, and the empty one is everything.
/// * **Consistency.** Commits have one order, that of their revisions, and everyone sees it. A commit that was answered
///   is durable, and is seen by every read that starts after the answer.
/// * **A failure** other than of the arguments leaves open whether a commit happened (`is_unavailable`). Conditions make
///   trying again safe.
/// * **Leases** are renewed by the store. A lease that could not be renewed within its ttl is told to its holder no later
///   than others can see its keys gone, as far as this machine's clock runs evenly.
/// * **Cancellation.** Dropping a future gives up the waiting; a commit may still happen.
/// * Every operation ends within the implementation's configured deadline.
#[async_trait::async_trait]
pub trait StateStore: Send + Sync + 'static {
    /// One entry; `None` if there is none.
    ///
    /// # Errors
    /// `InvalidKey`, and what the trait's contract says.
    async fn get(&self, key: &str) -> Result<Option<Entry>, StateError>;

    /// All entries whose keys start with `prefix`, as they were at one revision.
    ///
    /// # Errors
    /// See the trait's contract.
    async fn list(&self, prefix: &str) -> Result<Snapshot, StateError>;

    /// Carries out a transaction. One without writes only checks its conditions.
    ///
    /// # Errors
    /// What [`Transaction::check`] finds; `LeaseLost` when a put names a lease that has ended (nothing was changed then);
    /// and what the trait's contract says.
    async fn commit(&self, transaction: Transaction) -> Result<Committed, StateError>;

    /// Takes a lease, which a task of the store's renews until the [`Lease`] is dropped or revoked.
    ///
    /// # Errors
    /// See the trait's contract.
    async fn lease(&self, ttl: Duration) -> Result<Lease, StateError>;

    /// Watches all keys that start with `prefix`: first a [`Update::Snapshot`](crate::Update::Snapshot), as soon as one can be had, then changes
    /// without a gap. A watcher that is too slow gets a new snapshot, never an unbounded queue. Failures are told as
    /// [`Update::Lost`](crate::Update::Lost), once each time, and the store goes on trying.
    fn watch(&self, prefix: &str) -> Watch;

    /// Which store this is, for people: `etcd at a:2379,b:2379`, `files in /var/lib/forebay/state`.
    fn describe(&self) -> String;

    /// Ends all watches and leases (revoking them), and waits for the tasks behind them. Operations fail from now on.
    async fn close(&self);
}
