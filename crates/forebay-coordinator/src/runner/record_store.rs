//! The records of jobs in the state store: `jobs/<id>`.

use std::sync::Arc;

use forebay_cluster::records::coordinators::JOBS;
use forebay_state::{Condition, Revision, StateError, StateStore, Transaction};
use forebay_types::FsPath;

use super::deliver;
use crate::jobs::JobRecord;

/// Records that are deleted in one transaction.
pub(super) const MAX_AT_ONCE: usize = 50;

pub(crate) struct RecordStore {
    store: Arc<dyn StateStore>,
    /// Under which writes are carried out; without one this only reads.
    leads: Option<Condition>,
}

impl RecordStore {
    pub(crate) fn new(store: Arc<dyn StateStore>, leads: Option<Condition>) -> Self {
        Self { store, leads }
    }

    /// All jobs, the oldest first. What another version wrote and this one cannot read is left alone.
    pub(crate) async fn list(&self) -> Result<Vec<JobRecord>, StateError> {
        let mut records = Vec::new();
        for entry in self.store.list(JOBS).await?.entries {
            match JobRecord::decode(&entry.value) {
                Ok(record) if key(&record.id) == entry.key => records.push(record),
                Ok(record) => tracing::warn!(key = entry.key, id = record.id, "a job's record has another's key"),
                Err(error) => tracing::warn!(key = entry.key, %error, "a job's record cannot be read"),
            }
        }
        records.sort_by(|a, b| a.created.cmp(&b.created).then_with(|| a.id.cmp(&b.id)));
        Ok(records)
    }

    /// Whether it was written: not when this process does not lead. With it mounts are asked to keep `wanted`, if the job is that far;
    /// with the record of its end that request goes.
    ///
    /// `known` is when it was written last, as far as the store has said. A write of which it said nothing may still be carried out: with
    /// this as its condition it is not after this one.
    pub(super) async fn save(
        &self,
        record: &JobRecord,
        wanted: Option<&FsPath>,
        known: &mut Option<Revision>,
    ) -> Result<bool, StateError> {
        let key = key(&record.id);
        loop {
            let as_known = match *known {
                Some(revision) => Condition::Unchanged(key.clone(), revision),
                None => Condition::Absent(key.clone()),
            };
            let mut write = self.transaction().when(as_known).put(&*key, record.encode());
            if record.state.is_final() && record.spec.to_clients() {
                write = deliver::withdraw(write, &record.id);
            } else if let Some(path) = wanted {
                write = deliver::request(write, &record.id, path);
            }
            if let Some(revision) = self.store.commit(write).await?.revision() {
                *known = Some(revision);
                return Ok(true);
            }
            // Another one leads, or such a write was carried out, or the one that led before has written it.
            if self.store.commit(self.transaction()).await?.revision().is_none() {
                return Ok(false);
            }
            *known = self.store.get(&key).await?.map(|entry| entry.revision);
        }
    }

    /// Deletes up to [`MAX_AT_ONCE`] records, if this process leads.
    pub(super) async fn delete(&self, ids: &[String]) -> Result<(), StateError> {
        let write = ids.iter().fold(self.transaction(), |write, id| write.delete(key(id)));
        self.store.commit(write).await.map(|_| ())
    }

    fn transaction(&self) -> Transaction {
        match &self.leads {
            Some(leads) => Transaction::new().when(leads.clone()),
            None => Transaction::new(),
        }
    }
}

fn key(id: &str) -> String {
    format!("{JOBS}{id}")
}
