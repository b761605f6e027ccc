//! Has mounts keep what a job loaded: a materialise request is written, and the mounts are waited for until they have done what they
//! could.
//!
//! A request is written in one transaction with its job's record ([`request`]), and goes in one with the record of the job's end
//! ([`withdraw`]). A record is not written over one that is newer, so no request outlives its job, whatever the state store does
//! meanwhile, and however late. One that does all the same, as that of a job whose record another version wrote, goes when the next
//! coordinator begins to lead.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use forebay_cluster::records::clients::{
    CLIENTS, ClientRecord, DELIVERIES, DeliveryRecord, MATERIALISE_REQUESTS, MaterialiseRecord,
};
use forebay_state::{Condition, StateError, StateStore, Transaction, decode_segment, encode_segment};
use forebay_types::{Failure, FailureKind, FsPath};

use super::error::RunnerError;
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
}

impl MaterialiseRequests {
    pub(super) fn new(store: Arc<dyn StateStore>, leads: Condition, patience: Duration) -> Self {
        Self { store, leads, patience }
    }

    /// Has every mount that keeps files keep `path`, once `requested` has written down that they are to; tells `progress` how far
    /// they are.
    ///
    /// # Errors
    /// `NotFound` when there is no such mount; when the state store does not take the request.
    pub(super) async fn deliver(
        &self,
        job: &str,
        path: &FsPath,
        requested: impl Future<Output = Result<(), RunnerError>>,
        progress: impl Fn(&Delivery),
    ) -> Result<Delivery, Failure> {
        let shown = path.to_string();
        let asked = self.mounts().await.map_err(unavailable)?;
        if asked.is_empty() {
            let message = "no mount of the cluster keeps files whole: set client.local.size where it mounts";
            return Err(Failure::new(FailureKind::NotFound, message));
        }
        requested.await.map_err(unavailable)?;
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

/// Has `write` ask mounts to keep `path` for a job.
pub(super) fn request(write: Transaction, job: &str, path: &FsPath) -> Transaction {
    let request = MaterialiseRecord { job: job.to_owned(), path: path.to_string() };
    write.put(request_key(job), request.encode())
}

/// Has `write` withdraw the request of a job, too, with what mounts reported of it. They stop where they are, and keep what they
/// have.
pub(super) fn withdraw(write: Transaction, job: &str) -> Transaction {
    write.delete(request_key(job)).delete_prefix(format!("{DELIVERIES}{}/", encode_segment(job)))
}

fn request_key(job: &str) -> String {
    format!("{MATERIALISE_REQUESTS}{}", encode_segment(job))
}

fn unavailable(error: impl Display) -> Failure {
    Failure::new(FailureKind::Unavailable, error.to_string())
}
