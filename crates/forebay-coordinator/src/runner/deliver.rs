//! Has mounts keep what a job loaded: writes a materialise request, and waits until the mounts have done what they could.
//!
//! A request stands until the job's end is written down: both happen in one transaction ([`withdraw`]), so that no request
//! outlives its job, whatever the state store does meanwhile. One that does all the same, as that of a job whose record another version
//! wrote, goes when the next coordinator begins to lead.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use forebay_cluster::records::clients::{
    CLIENTS, ClientRecord, DELIVERIES, DeliveryRecord, MATERIALISE_REQUESTS, MaterialiseRecord,
};
use forebay_state::{Condition, StateError, StateStore, Transaction, decode_segment, encode_segment};
use forebay_types::{Failure, FailureKind, FsPath};
use tokio::sync::Mutex;

use crate::clock::now;
use crate::jobs::{Absences, Delivery, JobRecord};

/// How often is looked how far they are.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The requests to mounts to keep files whole, in the state store.
pub(crate) struct MaterialiseRequests {
    store: Arc<dyn StateStore>,
    /// Under which writes are carried out.
    leads: Condition,
    /// A mount that is away for so long is gone.
    patience: Duration,
    /// Held while a request is being written.
    writing: Arc<Mutex<()>>,
}

impl MaterialiseRequests {
    pub(super) fn new(store: Arc<dyn StateStore>, leads: Condition, patience: Duration) -> Self {
        Self { store, leads, patience, writing: Arc::default() }
    }

    /// Has every mount that keeps files keep `path`; tells `progress` how far they are.
    ///
    /// # Errors
    /// `NotFound` when there is no such mount; when the state store does not take the request.
    pub(super) async fn deliver(
        &self,
        job: &str,
        path: &FsPath,
        progress: impl Fn(&Delivery),
    ) -> Result<Delivery, Failure> {
        let shown = path.to_string();
        let asked = self.mounts().await.map_err(unavailable)?;
        if asked.is_empty() {
            let message = "no mount of the cluster keeps files whole: set client.local.size where it mounts";
            return Err(Failure::new(FailureKind::NotFound, message));
        }
        let request = MaterialiseRecord { job: job.to_owned(), path: shown.clone() };
        self.write(&request).await?;
        let mut absences = Absences::new(self.patience);
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let looked = async { Ok::<_, StateError>((self.mounts().await?, self.reports(job).await?)) };
            let (present, reports) = match looked.await {
                Ok(looked) => looked,
                Err(error) => {
                    tracing::debug!(job, %error, "how far mounts are is not known for the moment");
                    continue;
                }
            };
            let alive = absences.alive(&asked, &present, now());
            let delivery = Delivery::of(&asked, &alive, &reports, &shown);
            progress(&delivery);
            if delivery.is_over() {
                return Ok(delivery);
            }
        }
    }

    /// Writes a request in a task of its own, for which [`MaterialiseRequests::settled`] waits.
    async fn write(&self, request: &MaterialiseRecord) -> Result<(), Failure> {
        let write = Transaction::new().when(self.leads.clone()).put(request_key(&request.job), request.encode());
        let (store, writing) = (Arc::clone(&self.store), Arc::clone(&self.writing).lock_owned().await);
        let written = tokio::spawn(async move {
            let _writing = writing;
            store.commit(write).await
        });
        // A task ends without an answer only with its runtime.
        let ended = |_| Failure::new(FailureKind::Unavailable, "the coordinator is shutting down");
        match written.await.map_err(ended)?.map_err(unavailable)?.revision() {
            Some(_) => Ok(()),
            None => Err(Failure::new(FailureKind::Unavailable, "another coordinator leads by now")),
        }
    }

    /// Waits until no request is being written: one that is given up may still be carried out, and would then come after its
    /// withdrawal.
    pub(super) async fn settled(&self) {
        drop(self.writing.lock().await);
    }

    /// Withdraws the requests of jobs that are not among those of `records` that have not ended.
    pub(super) async fn clear(&self, records: &[JobRecord]) {
        let open: BTreeSet<_> =
            records.iter().filter(|record| !record.state.is_final()).map(|record| request_key(&record.id)).collect();
        let cleared = async {
            for entry in self.store.list(MATERIALISE_REQUESTS).await?.entries {
                if !open.contains(&entry.key) {
                    tracing::warn!(key = entry.key, "a request to mounts is withdrawn: its job has ended");
                    self.store.commit(Transaction::new().when(self.leads.clone()).delete(entry.key)).await?;
                }
            }
            Ok::<_, StateError>(())
        };
        if let Err(error) = cleared.await {
            tracing::warn!(%error, "requests of jobs that have ended may still stand");
        }
    }

    async fn mounts(&self) -> Result<BTreeSet<String>, StateError> {
        let entries = self.store.list(CLIENTS).await?.entries;
        Ok(entries.iter().filter_map(|entry| Some(ClientRecord::decode(&entry.value).ok()?.name)).collect())
    }

    async fn reports(&self, job: &str) -> Result<BTreeMap<String, DeliveryRecord>, StateError> {
        let prefix = format!("{DELIVERIES}{}/", encode_segment(job));
        let mut reports = BTreeMap::new();
        for entry in self.store.list(&prefix).await?.entries {
            let name = entry.key.strip_prefix(&prefix).and_then(decode_segment);
            let name = name.and_then(|name| String::from_utf8(name).ok());
            if let (Some(name), Ok(report)) = (name, DeliveryRecord::decode(&entry.value)) {
                reports.insert(name, report);
            }
        }
        Ok(reports)
    }
}

/// Has `write` withdraw the request of a job, too, with what mounts reported of it. They stop where they are, and keep what they
/// have.
pub(super) fn withdraw(write: Transaction, job: &str) -> Transaction {
    write.delete(request_key(job)).delete_prefix(format!("{DELIVERIES}{}/", encode_segment(job)))
}

fn request_key(job: &str) -> String {
    format!("{MATERIALISE_REQUESTS}{}", encode_segment(job))
}

fn unavailable(error: StateError) -> Failure {
    Failure::new(FailureKind::Unavailable, error.to_string())
}
