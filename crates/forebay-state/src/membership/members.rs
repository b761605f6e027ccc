//! The workers of a group, as the cluster's state tells them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{Entry, StateStore, Update, decode_segment, encode_segment};
use arc_swap::ArcSwap;
use forebay_cluster::records::members::WorkerRecord;
use forebay_cluster::{Freshness, MemberView, Membership, Reach, Topology};
use forebay_locks::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// How the members of a group are followed.
#[derive(Clone, Debug)]
pub struct MembersOptions {
    /// The cache group.
    pub group: String,
    /// How long members stay that are missing when the state comes back: longer than a worker takes to register again.
    pub grace: Duration,
    /// The members that are believed to be there until the state has told.
    pub until_told: Topology,
    /// At which of their addresses they are reached.
    pub reach: Reach,
}

/// What is known of the members, for people and monitoring.
#[derive(Clone, Debug, PartialEq)]
pub struct Knowledge {
    /// Whether the state has told the members at all.
    pub told: bool,
    /// How fresh it is.
    pub freshness: Freshness,
    /// The members.
    pub records: Vec<WorkerRecord>,
}

/// The workers of a group. A [`Membership`].
pub struct Members {
    shared: Arc<MembersShared>,
    told: watch::Receiver<bool>,
    stop: CancellationToken,
    watching: Mutex<Option<JoinHandle<()>>>,
}

struct MembersShared {
    topology: ArcSwap<Topology>,
    view: Mutex<MemberView>,
}

impl Members {
    /// Follows the workers of a group in `store`.
    #[must_use]
    pub fn watch(store: &Arc<dyn StateStore>, options: MembersOptions) -> Self {
        let prefix = WorkerRecord::key(&encode_segment(&options.group), "");
        let shared = Arc::new(MembersShared {
            topology: ArcSwap::from_pointee(options.until_told),
            view: Mutex::new(MemberView::new(options.grace).reaching(options.reach)),
        });
        let (tell, told) = watch::channel(false);
        let stop = CancellationToken::new();
        let updates = store.watch(&prefix);
        let watching = tokio::spawn(follow(Arc::clone(&shared), updates, prefix, tell, stop.clone()));
        Self { shared, told, stop, watching: Mutex::new(Some(watching)) }
    }

    /// Waits until the state has told the members for the first time, no longer than `within`. Whether it has.
    pub async fn told(&self, within: Duration) -> bool {
        let mut told = self.told.clone();
        matches!(tokio::time::timeout(within, told.wait_for(|told| *told)).await, Ok(Ok(_)))
    }

    /// What is known of the members.
    #[must_use]
    pub fn knowledge(&self) -> Knowledge {
        let view = self.shared.view.lock();
        Knowledge { told: *self.told.borrow(), freshness: view.freshness(), records: view.records().cloned().collect() }
    }

    /// Ends the following. The members stay as they are.
    pub async fn close(&self) {
        self.stop.cancel();
        let watching = self.watching.lock().take();
        if let Some(watching) = watching {
            // It does not panic, and if it did that has been told.
            let _ = watching.await;
        }
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Membership for Members {
    fn topology(&self) -> Arc<Topology> {
        self.shared.topology.load_full()
    }
}

async fn follow(
    shared: Arc<MembersShared>,
    mut updates: crate::Watch,
    prefix: String,
    tell: watch::Sender<bool>,
    stop: CancellationToken,
) {
    let mut next_tick: Option<Instant> = None;
    loop {
        let time_passes = async {
            match next_tick {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        let update = tokio::select! {
            update = updates.next() => match update {
                Some(update) => Some(update),
                None => break,
            },
            () = time_passes => None,
            () = stop.cancelled() => break,
        };
        let now = Instant::now();
        let mut view = shared.view.lock();
        let before = Arc::clone(view.topology());
        let heard = update.is_some_and(|update| take_in(&mut view, update, &prefix, now));
        next_tick = view.tick(now);
        let topology = Arc::clone(view.topology());
        drop(view);
        // Before any member was told of, a list from the configuration may know better than an empty state.
        if !Arc::ptr_eq(&before, &topology) {
            let (workers, leaving) = (topology.ring.members().len(), topology.leaving.len());
            info!(workers, leaving, "the members of the cluster have changed");
            shared.topology.store(topology);
        }
        if heard {
            tell.send_replace(true);
        }
    }
}

/// Takes in what the store told. Whether it told the members.
fn take_in(view: &mut MemberView, update: Update, prefix: &str, now: Instant) -> bool {
    let record = |entry: &Entry| match WorkerRecord::decode(&entry.value) {
        Ok(record) => Some(record),
        Err(reason) => {
            warn!(key = entry.key, reason, "the record of a worker cannot be read: it is left out");
            None
        }
    };
    match update {
        Update::Snapshot(snapshot) => {
            view.replaced(snapshot.entries.iter().filter_map(record), now);
        }
        Update::Changed { puts, mut deletes, .. } => {
            let mut records = Vec::with_capacity(puts.len());
            for entry in puts {
                match record(&entry) {
                    Some(record) => records.push(record),
                    // What cannot be read any more is not what was read before.
                    None => deletes.push(entry.key),
                }
            }
            let name = |key: &String| decode_segment(key.strip_prefix(prefix)?);
            let names = deletes.iter().filter_map(name).map(|name| String::from_utf8_lossy(&name).into_owned());
            view.changed(records, names, now);
        }
        Update::Lost { reason } => {
            warn!(reason, "the cluster's state cannot be reached: the last known members stay in use");
            view.lost(&reason, now);
            return false;
        }
    }
    true
}
