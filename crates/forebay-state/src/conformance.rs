//! The suite that every implementation of [`StateStore`] passes: the trait's contract in executable form.
//!
//! An implementation brings a [`Fixture`] and calls [`check`]. The cases run side by side, each in a store of its own.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a suite of tests: what fails is an assertion")]

mod commits;
mod elections;
mod leases;
mod watches;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;

use crate::{Entry, LeaseId, Revision, Snapshot, StateStore, Transaction, Update, Watch};

/// Makes stores.
#[async_trait::async_trait]
pub trait Fixture: Send + Sync + 'static {
    /// Two users of one empty store. Nothing else writes to it, but its revisions may go up by themselves. They are
    /// separate connections to it where it has any, otherwise the same twice.
    async fn users(&self) -> Users;

    /// The shortest ttl that leases can have.
    fn shortest_ttl(&self) -> Duration;

    /// Ends a lease behind its holder's back; false where only the holder can.
    async fn expire(&self, lease: LeaseId) -> bool;
}

/// Two users of one store.
#[derive(Clone)]
pub struct Users {
    /// One of them.
    pub one: Arc<dyn StateStore>,
    /// The other.
    pub two: Arc<dyn StateStore>,
}

/// Runs the suite.
///
/// # Panics
/// With what does not hold. The panic's place tells the case.
pub async fn check(fixture: Arc<dyn Fixture>) {
    let mut cases = JoinSet::new();
    macro_rules! run {
        ($($case:path),+ $(,)?) => {
            $(
                let (users, of_case) = (fixture.users().await, Arc::clone(&fixture));
                cases.spawn(async move {
                    $case(users.clone(), &*of_case).await;
                    users.one.close().await;
                    users.two.close().await;
                });
            )+
        };
    }
    run!(
        commits::what_is_committed_is_read_by_all,
        commits::a_prefix_is_any_beginning_of_a_key,
        commits::conditions_decide_over_all_writes,
        commits::increments_of_many_writers_are_all_counted,
        commits::a_list_is_of_one_revision_however_long,
        commits::a_prefix_is_deleted_exactly,
        commits::limits_are_enforced_and_explained,
        watches::a_watch_begins_with_what_is_there_and_goes_on_with_changes,
        watches::watches_miss_nothing_and_repeat_nothing_among_many_writers,
        watches::a_slow_watcher_arrives_at_the_same_state,
        watches::a_closed_store_ends_its_watches_and_fails_its_operations,
        leases::keys_live_as_long_as_their_lease,
        leases::a_put_without_the_lease_keeps_the_key,
        leases::a_lease_is_renewed_past_its_ttl,
        leases::a_lease_that_ended_takes_no_more_keys,
        leases::the_holder_learns_that_its_lease_expired,
        elections::one_leads_at_a_time_and_each_in_the_end,
        elections::a_deposed_leader_commits_nothing_more,
        elections::a_leader_whose_lease_expired_is_replaced,
    );
    while let Some(case) = cases.join_next().await {
        if let Err(error) = case {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}

/// How long the suite waits for what must happen, on a machine that does a lot else: half a minute, times what
/// `FOREBAY_TEST_SLOWNESS` says of an emulated one.
pub fn patience() -> Duration {
    let slowness = std::env::var("FOREBAY_TEST_SLOWNESS").ok().and_then(|factor| factor.parse().ok());
    Duration::from_secs(30) * slowness.unwrap_or(1)
}

/// The ttl of a lease that a case relies on. Not the shortest: on a busy machine a holder may not run for a second, and
/// loses its lease by right; nor is its end waited for any longer than this.
fn lasting_ttl(fixture: &dyn Fixture) -> Duration {
    8 * fixture.shortest_ttl()
}

/// Commits what must not conflict.
///
/// # Panics
/// If it fails or conflicts.
pub async fn commit(store: &dyn StateStore, transaction: Transaction) -> Revision {
    store.commit(transaction).await.unwrap().revision().expect("a conflict")
}

/// The next update.
///
/// # Panics
/// If there is none in half a minute, or the watch ended.
pub async fn next(watch: &mut Watch) -> Update {
    tokio::time::timeout(patience(), watch.next()).await.expect("no update came").expect("the watch ended")
}

/// What a watcher knows, by its updates alone. Checks that they have no gap that can be told, and no repetition.
#[derive(Debug, Default)]
pub struct Known {
    /// Key → value and revision.
    pub entries: BTreeMap<String, (Bytes, Revision)>,
    /// The revision of the last update.
    pub revision: Revision,
    /// Snapshots so far.
    pub snapshots: usize,
    /// Whether the last update said that the store is lost.
    pub is_lost: bool,
}

impl Known {
    /// Takes an update in.
    ///
    /// # Panics
    /// If it repeats what was known, is out of order, or deletes what is not there.
    pub fn apply(&mut self, update: Update) {
        match update {
            Update::Snapshot(snapshot) => {
                assert!(snapshot.revision >= self.revision, "{} after {}", snapshot.revision, self.revision);
                assert!(snapshot.entries.is_sorted_by_key(|entry| &entry.key));
                self.entries = by_key(&snapshot);
                self.revision = snapshot.revision;
                self.snapshots += 1;
                self.is_lost = false;
            }
            Update::Changed { puts, deletes, revision } => {
                assert!(self.snapshots > 0, "changes before any snapshot");
                let is_empty = puts.is_empty() && deletes.is_empty();
                assert!(revision > self.revision || (is_empty && self.is_lost), "{revision} after {}", self.revision);
                for Entry { key, value, revision: written } in puts {
                    assert!(written > self.revision && written <= revision, "{key} of {written} came again");
                    self.entries.insert(key, (value, written));
                }
                for key in deletes {
                    self.entries.remove(&key);
                }
                self.revision = revision;
                self.is_lost = false;
            }
            Update::Lost { .. } => {
                assert!(!self.is_lost, "the loss was told twice");
                self.is_lost = true;
            }
        }
    }

    /// Takes updates in until this holds.
    ///
    /// # Panics
    /// If it does not hold for half a minute, or the watch ends.
    pub async fn follow_until(&mut self, watch: &mut Watch, condition: impl Fn(&Self) -> bool) {
        let follow = async {
            while !condition(self) {
                self.apply(watch.next().await.expect("the watch ended"));
            }
        };
        let is_there = tokio::time::timeout(patience(), follow).await.is_ok();
        assert!(is_there, "a watch did not get there; it knows {} entries at {}", self.entries.len(), self.revision);
    }
}

/// A snapshot's entries by their keys.
#[must_use]
pub fn by_key(snapshot: &Snapshot) -> BTreeMap<String, (Bytes, Revision)> {
    snapshot.entries.iter().map(|entry| (entry.key.clone(), (entry.value.clone(), entry.revision))).collect()
}

fn keys(snapshot: &Snapshot) -> Vec<&str> {
    snapshot.entries.iter().map(|entry| entry.key.as_str()).collect()
}
