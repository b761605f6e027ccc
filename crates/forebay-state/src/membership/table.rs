//! Records under a prefix, decoded and current.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::{Entry, StateStore, Update};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// Records by key, without their prefix. Those that cannot be read are told of in the log and left out.
pub struct Table<T> {
    current: watch::Receiver<Option<Arc<BTreeMap<String, T>>>>,
    stop: CancellationToken,
    watching: JoinHandle<()>,
}

impl<T: Send + Sync + 'static> Table<T> {
    /// Watches what lies under `prefix` of `store`.
    #[must_use]
    pub fn watch(
        store: &Arc<dyn StateStore>,
        prefix: &'static str,
        decode: impl Fn(&[u8]) -> Result<T, String> + Send + 'static,
    ) -> Self
    where
        T: Clone,
    {
        let (tell, current) = watch::channel(None);
        let stop = CancellationToken::new();
        let mut updates = store.watch(prefix);
        let stopped = stop.clone();
        let watching = tokio::spawn(async move {
            let mut records = BTreeMap::new();
            loop {
                let update = tokio::select! {
                    update = updates.next() => update,
                    () = stopped.cancelled() => None,
                };
                let Some(update) = update else { break };
                if apply(&mut records, update, prefix, &decode) {
                    tell.send_replace(Some(Arc::new(records.clone())));
                }
            }
        });
        Self { current, stop, watching }
    }

    /// The records, now and whenever they change; `None` before the store has told them for the first time.
    #[must_use]
    pub fn records(&self) -> watch::Receiver<Option<Arc<BTreeMap<String, T>>>> {
        self.current.clone()
    }

    /// Ends the watching.
    pub async fn close(self) {
        self.stop.cancel();
        // It panics only if `decode` does, which has been told.
        let _ = self.watching.await;
    }
}

/// Takes in what was told. Whether anything is to be passed on.
fn apply<T>(
    records: &mut BTreeMap<String, T>,
    update: Update,
    prefix: &str,
    decode: &impl Fn(&[u8]) -> Result<T, String>,
) -> bool {
    let name = |key: &str| key.strip_prefix(prefix).unwrap_or(key).to_owned();
    let read = |entry: Entry| match decode(&entry.value) {
        Ok(record) => Some((name(&entry.key), record)),
        Err(reason) => {
            warn!(key = entry.key, reason, "a record in the cluster's state cannot be read and is left out");
            None
        }
    };
    match update {
        Update::Snapshot(snapshot) => *records = snapshot.entries.into_iter().filter_map(read).collect(),
        Update::Changed { puts, deletes, .. } => {
            if puts.is_empty() && deletes.is_empty() {
                info!(prefix, "the cluster's state can be reached again");
                return false;
            }
            for key in deletes {
                records.remove(&name(&key));
            }
            for entry in puts {
                // What cannot be read any more is not what was read before.
                records.remove(&name(&entry.key));
                records.extend(read(entry));
            }
        }
        Update::Lost { reason } => {
            warn!(prefix, reason, "the cluster's state cannot be reached, what was known last stays in use");
            return false;
        }
    }
    true
}
