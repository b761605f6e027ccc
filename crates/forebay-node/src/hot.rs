//! Hot files: what is read most gets further replicas by itself, for as long as it is.
//!
//! Off by default. The coordinator that leads looks at which files the workers served most of in the last minutes, and writes
//! a policy for each into the cluster's state, beside those that people made; workers and clients do the rest, as for any file with
//! replicas. Only blocks that are read come to the further replicas, so of a hot file the hot blocks do. A file that cools
//! down loses its policy at half of the rate that it got it at, so that one at the edge does not come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use forebay_client::Client;
use forebay_cluster::records::policies::{HOT, PolicyRecord};
use forebay_config::Config;
use forebay_coordinator::Coordinator;
use forebay_state::{MAX_KEY_LENGTH, StateStore, Transaction, encode_segment};
use forebay_types::{ByteSize, CachePolicy, FsPath, MAX_REPLICAS};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::cluster::Cluster;

/// How often it is looked what is hot.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Files that are hot at once, at most.
const MAX_FILES: usize = 64;

/// Looks for hot files, while it lives.
pub(crate) struct Hot {
    stop: CancellationToken,
    looking: JoinHandle<()>,
}

impl Hot {
    /// Starts to look. Without further replicas, what was made hot before is so no more.
    pub(crate) fn start(config: &Config, cluster: &Cluster, leads: &Arc<Coordinator>, client: Client) -> Self {
        let further = u8::try_from(config.coordinator_hot_replicas).unwrap_or(MAX_REPLICAS - 1);
        let stop = CancellationToken::new();
        let looking = Looking {
            store: Arc::clone(cluster.store()),
            leads: Arc::clone(leads),
            client,
            replicas: further.saturating_add(1).min(MAX_REPLICAS),
            threshold: config.coordinator_hot_threshold,
        };
        let looking = tokio::spawn(looking.look(stop.clone()));
        Self { stop, looking }
    }

    /// Ends it.
    pub(crate) async fn close(self) {
        self.stop.cancel();
        // It does not panic, and if it did that has been told.
        let _ = self.looking.await;
    }
}

struct Looking {
    store: Arc<dyn StateStore>,
    leads: Arc<Coordinator>,
    client: Client,
    replicas: u8,
    threshold: ByteSize,
}

impl Looking {
    async fn look(self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = stop.cancelled() => return,
            }
            if !self.leads.is_leading() {
                continue;
            }
            match self.once().await {
                Ok(()) if self.replicas == 1 => return,
                Ok(()) => {}
                Err(error) => warn!(%error, "the replicas of hot files stay as they are"),
            }
        }
    }

    async fn once(&self) -> Result<(), forebay_state::StateError> {
        if self.replicas == 1 {
            self.store.commit(Transaction::new().delete_prefix(HOT)).await?;
            return Ok(());
        }
        let answers = self.client.worker_stats().await;
        let told = answers.into_iter().filter_map(|(_, answer)| serde_json::from_str::<Value>(&answer.ok()?).ok());
        let rates = rates(told);
        let known = self.store.list(HOT).await?;
        let known: BTreeSet<String> = known.entries.iter().filter_map(|entry| path_of(&entry.value)).collect();
        let wanted = hot(&rates, &known, self.threshold.as_u64());
        for path in known.difference(&wanted) {
            info!(path, "a file is hot no more");
            self.store.commit(Transaction::new().delete(key(path))).await?;
        }
        for path in wanted.difference(&known) {
            // What a worker tells is a path.
            let Ok(at) = FsPath::new(path) else { continue };
            info!(path, replicas = self.replicas, "a file is hot: its blocks get further replicas");
            let policy = CachePolicy { replicas: Some(self.replicas), ..CachePolicy::default() };
            let record = PolicyRecord::of(&at, &policy).encode();
            self.store.commit(Transaction::new().put(key(path), record)).await?;
        }
        Ok(())
    }
}

fn key(path: &str) -> String {
    format!("{HOT}{}", encode_segment(path))
}

fn path_of(record: &[u8]) -> Option<String> {
    PolicyRecord::decode(record).ok().map(|record| record.path)
}

/// Bytes a minute of each file, from that worker that serves most of it: further replicas take from the busiest.
fn rates(workers: impl Iterator<Item = Value>) -> BTreeMap<String, u64> {
    let mut rates: BTreeMap<String, u64> = BTreeMap::new();
    for stats in workers {
        for file in stats["hottest"].as_array().into_iter().flatten() {
            if let (Some(path), Some(bytes)) = (file["path"].as_str(), file["bytes_per_minute"].as_f64()) {
                let rate = rates.entry(path.to_owned()).or_default();
                *rate = (*rate).max(bytes as u64);
            }
        }
    }
    rates
}

/// Which files are to be hot, when `known` are: those over the threshold, and of the known ones those over half of it. One whose path is
/// too long for a key is none.
fn hot(rates: &BTreeMap<String, u64>, known: &BTreeSet<String>, threshold: u64) -> BTreeSet<String> {
    let needs = |path: &String| if known.contains(path) { threshold / 2 } else { threshold };
    let is_hot = |(path, rate): &(&String, &u64)| **rate >= needs(path) && key(path).len() <= MAX_KEY_LENGTH;
    let mut hot: Vec<_> = rates.iter().filter(is_hot).collect();
    hot.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    hot.into_iter().take(MAX_FILES).map(|(path, _)| path.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_file_becomes_hot_at_the_threshold_and_stays_so_down_to_half_of_it() {
        let rates = |rate: u64| BTreeMap::from([("/a".to_owned(), rate)]);
        let (none, known) = (BTreeSet::new(), BTreeSet::from(["/a".to_owned()]));
        assert!(hot(&rates(99), &none, 100).is_empty());
        assert_eq!(hot(&rates(100), &none, 100), known);
        assert_eq!(hot(&rates(50), &known, 100), known);
        assert!(hot(&rates(49), &known, 100).is_empty());
        assert!(hot(&BTreeMap::new(), &known, 100).is_empty());
    }

    #[test]
    fn a_path_that_is_too_long_for_a_key_keeps_no_other_file_from_being_hot() {
        let long = format!("/{}", "a".repeat(MAX_KEY_LENGTH));
        let rates = BTreeMap::from([(long, 200), ("/b".to_owned(), 100)]);
        assert_eq!(hot(&rates, &BTreeSet::new(), 100), BTreeSet::from(["/b".to_owned()]));
    }

    #[test]
    fn the_busiest_worker_decides_and_there_is_an_end_to_hot_files() {
        let worker = |path: &str, rate: f64| json!({"hottest": [{"path": path, "bytes_per_minute": rate}]});
        let rates = rates([worker("/a", 5.0), worker("/a", 9.0), json!({}), json!({"hottest": 1})].into_iter());
        assert_eq!(rates, BTreeMap::from([("/a".to_owned(), 9)]));
        let many = (0..MAX_FILES as u64 * 2).map(|number| (format!("/{number}"), number)).collect();
        let hot = hot(&many, &BTreeSet::new(), 0);
        assert!(hot.len() == MAX_FILES && hot.contains(&format!("/{}", MAX_FILES * 2 - 1)));
    }
}
