//! The requests of jobs that this mount keep files whole. The mount says in the cluster's state that it can, follows the requests
//! that jobs write there, and reports.
//!
//! All that it writes is under one lease. When that is lost, as after a while without the state, it begins anew: what it keeps
//! already it keeps, and says so again. A write that fails is tried again under the same lease: the mount is there as long as that
//! is. A report is written only while its request stands, so none outlives it. A request that stands no more is cancelled.

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use forebay_cluster::records::clients::{
    CLIENTS, ClientRecord, DELIVERIES, DeliveryRecord, MATERIALISE_REQUESTS, MaterialiseRecord,
};
use forebay_fuse::{LocalFiles, MaterialiseProgress};
use forebay_materialise::Why;
use forebay_state::membership::Table;
use forebay_state::{Lease, StateError, StateStore, Transaction, encode_segment};
use forebay_types::FsPath;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// How often the progress of requests is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long between two tries at a state that cannot be reached.
const TRY_AGAIN: Duration = Duration::from_secs(2);

/// The following, while it goes on.
pub(crate) struct MaterialiseRequests {
    stop: CancellationToken,
    following: JoinHandle<()>,
}

impl MaterialiseRequests {
    /// Follows the requests in `store`, as the mount `name`, which is believed to live for `ttl` after it was heard of last.
    pub(crate) fn follow(store: Arc<dyn StateStore>, name: String, ttl: Duration, files: LocalFiles) -> Self {
        let stop = CancellationToken::new();
        let requests = Table::watch(&store, MATERIALISE_REQUESTS, MaterialiseRecord::decode);
        let mut follower = Follower { store, name, ttl, files, taken: HashMap::new(), is_logged: false };
        let stopped = stop.clone();
        let following = tokio::spawn(async move {
            stopped.run_until_cancelled(follower.follow(&requests)).await;
            requests.close().await;
        });
        Self { stop, following }
    }

    /// Ends it. What it wrote goes with its lease.
    pub(crate) async fn close(self) {
        self.stop.cancel();
        // It does not panic, and if it did that has been told.
        let _ = self.following.await;
    }
}

struct Follower {
    store: Arc<dyn StateStore>,
    name: String,
    ttl: Duration,
    files: LocalFiles,
    /// By job.
    taken: HashMap<String, FollowedRequest>,
    /// It was logged that the state cannot be reached: once for each failure, not for each try.
    is_logged: bool,
}

/// A request that is followed.
struct FollowedRequest {
    /// The mount's own number of it.
    number: u64,
    /// How far it was when last looked. Its end is remembered here, for the mount remembers it for a while only.
    reached: DeliveryRecord,
}

type Known = Option<Arc<BTreeMap<String, MaterialiseRecord>>>;

impl Follower {
    async fn follow(&mut self, requests: &Table<MaterialiseRecord>) {
        loop {
            match self.store.lease(self.ttl).await {
                Ok(lease) => self.under_one_lease(&lease, requests).await,
                Err(error) => self.failed(&error),
            }
            tokio::time::sleep(TRY_AGAIN).await;
        }
    }

    /// Reports until the lease is lost.
    async fn under_one_lease(&mut self, lease: &Lease, requests: &Table<MaterialiseRecord>) {
        let (mut known, mut written) = (requests.records(), HashMap::new());
        let mut is_there = false;
        while !lease.is_lost() {
            let now: Known = known.borrow_and_update().clone();
            self.take(now.as_deref());
            let reported = async {
                if !is_there {
                    self.say_hello(lease).await?;
                    is_there = true;
                }
                self.report(lease, &mut written).await
            };
            let wait = match reported.await {
                Ok(()) => {
                    self.is_logged = false;
                    let is_idle = self.taken.values().all(|taken| taken.reached.ended);
                    (!is_idle).then_some(LOOK_EVERY)
                }
                Err(error) => {
                    self.failed(&error);
                    Some(TRY_AGAIN)
                }
            };
            tokio::select! {
                () = lease.lost() => {}
                _ = known.changed() => {}
                () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => {}
            }
        }
    }

    fn failed(&mut self, error: &StateError) {
        if !mem::replace(&mut self.is_logged, true) {
            warn!(mount = self.name, %error, "jobs cannot have this mount keep files for the moment");
        }
    }

    /// Begins with requests that are new, and cancels those that stand no more.
    fn take(&mut self, requests: Option<&BTreeMap<String, MaterialiseRecord>>) {
        let Some(requests) = requests else { return };
        self.taken.retain(|job, taken| {
            let stands = requests.values().any(|request| request.job == *job);
            if !stands {
                self.files.cancel(taken.number);
            }
            stands
        });
        for request in requests.values() {
            if self.taken.contains_key(&request.job) {
                continue;
            }
            match FsPath::new(&request.path) {
                Ok(path) => {
                    info!(job = request.job, %path, "a job has this mount keep files");
                    let number = self.files.add(path, Why::Job);
                    self.taken
                        .insert(request.job.clone(), FollowedRequest { number, reached: DeliveryRecord::default() });
                }
                Err(error) => warn!(job = request.job, path = request.path, %error, "a request names no path"),
            }
        }
    }

    async fn say_hello(&self, lease: &Lease) -> Result<(), StateError> {
        let record = ClientRecord { name: self.name.clone(), capacity_bytes: self.files.capacity() };
        let key = format!("{CLIENTS}{}", encode_segment(&self.name));
        self.store.commit(Transaction::new().put_leased(key, record.encode(), lease.id())).await.map(drop)
    }

    /// Writes down how far requests are, where that is not what was `written`.
    async fn report(&mut self, lease: &Lease, written: &mut HashMap<String, DeliveryRecord>) -> Result<(), StateError> {
        written.retain(|job, _| self.taken.contains_key(job));
        for (job, taken) in &mut self.taken {
            taken.look(|number| self.files.progress(number));
            if written.get(job) == Some(&taken.reached) {
                continue;
            }
            let job_key = encode_segment(job);
            let key = format!("{DELIVERIES}{job_key}/{}", encode_segment(&self.name));
            let write = Transaction::new().if_present(format!("{MATERIALISE_REQUESTS}{job_key}"));
            self.store.commit(write.put_leased(key, taken.reached.encode(), lease.id())).await?;
            written.insert(job.clone(), taken.reached.clone());
        }
        Ok(())
    }
}

impl FollowedRequest {
    /// Looks how far it is, unless it has ended.
    fn look(&mut self, progress: impl FnOnce(u64) -> Option<MaterialiseProgress>) {
        if self.reached.ended {
            return;
        }
        match progress(self.number) {
            Some(progress) => self.reached = reported(progress),
            // It does not forget one that has not ended, and one that has ended not before long.
            None => {
                self.reached.ended = true;
                self.reached.error = Some("the mount does not remember the request".to_owned());
            }
        }
    }
}

/// What is reported of a request.
fn reported(progress: MaterialiseProgress) -> DeliveryRecord {
    let MaterialiseProgress { files, bytes: _, ready, ready_bytes, no_room, failed, first, error, ended } = progress;
    DeliveryRecord { files, ready, ready_bytes, no_room, failed, first, error, ended }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_has_ended_stays_as_it_was_and_one_that_is_forgotten_before_has_failed() {
        let mut taken = FollowedRequest { number: 7, reached: DeliveryRecord::default() };
        let progress = MaterialiseProgress { files: 3, ready: 2, no_room: 1, ..MaterialiseProgress::default() };
        taken.look(|_| Some(progress.clone()));
        let reached = &taken.reached;
        assert_eq!((reached.files, reached.ready, reached.no_room, reached.ended), (3, 2, 1, false));
        let mut forgotten = FollowedRequest { number: 7, reached: reached.clone() };
        forgotten.look(|_| None);
        assert!(forgotten.reached.ended && forgotten.reached.error.is_some() && forgotten.reached.ready == 2);
        taken.look(|_| Some(MaterialiseProgress { ended: true, ..progress }));
        taken.look(|_| None);
        assert_eq!((taken.reached.ready, taken.reached.ended, &taken.reached.error), (2, true, &None));
    }
}
