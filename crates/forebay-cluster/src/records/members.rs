//! What a worker says of itself to the cluster.

use serde::{Deserialize, Serialize};

/// Under which key prefix the workers of all groups are: `workers/GROUP/NAME`.
pub const WORKERS: &str = "workers/";
/// Under which key prefix it is written when workers joined: `joins/NAME`.
pub const JOINS: &str = "joins/";
/// Under which key prefix it is written which workers shall leave: `drains/NAME`.
pub const DRAINS: &str = "drains/";

/// What a worker is about to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkerState {
    /// It came and went too often lately: it answers and owns nothing until it has stayed for a while.
    Damped,
    /// It owns its share of the blocks.
    #[default]
    Active,
    /// It owns nothing any more, hands over what it holds, and answers for it.
    Draining,
    /// It has handed over everything and can be stopped.
    Drained,
}

/// Where a worker is reached, each as `HOST:PORT`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Addresses {
    /// For requests.
    pub rpc: String,
    /// For data over TCP, where that is not where requests go: of those there, mounts and other workers use the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tcp_data: Vec<String>,
    /// For data over RDMA, by network card.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rdma_data: Vec<String>,
    /// Where it answers to `/metrics` and the like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub web: Option<String>,
}

/// How much a worker can hold, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// In memory.
    pub memory: u64,
    /// On disks.
    pub disk: u64,
}

impl Capacity {
    /// The weight of a worker that can hold so much: its GiB, of which the first two digits count. Few different weights make
    /// placement fast, and a worker whose file system lost a few MiB keeps its blocks.
    #[must_use]
    pub fn weight(self) -> f64 {
        let gib = (self.memory.saturating_add(self.disk)) as f64 / (1u64 << 30) as f64;
        if gib < 0.01 {
            return 0.01;
        }
        let unit = 10f64.powf(gib.log10().floor() - 1.0);
        // Rounded once more, so that 0.1 + 0.2 is 0.3 on every machine.
        ((gib / unit).round() * unit * 1e6).round() / 1e6
    }
}

/// How far a worker that leaves is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainProgress {
    /// Bytes that it held when it looked last.
    pub bytes_total: u64,
    /// Those of them that it dealt with: their new owners have them, or they were evicted meanwhile.
    pub bytes_done: u64,
    /// Bytes that new owners took from it in all.
    pub bytes_moved: u64,
    /// Pieces that could not be handed over. They are tried again.
    pub failed: u64,
}

/// A worker of a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerRecord {
    /// Its name: what placement hashes.
    pub name: String,
    /// Its cache group.
    pub group: String,
    /// Where it is reached.
    pub addresses: Addresses,
    /// How much it can hold.
    pub capacity: Capacity,
    /// Bytes of a block, which must be the same in the whole cluster. Workers that did not say so had the default.
    #[serde(default = "default_block_size")]
    pub block_size: u64,
    /// Its share of the blocks, relative to the others'.
    pub weight: f64,
    /// The release that it runs.
    pub version: String,
    /// Its name in the certificate that it shows, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// The place that it stands in, if that was told: a rack, an availability zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// What it is about to do.
    pub state: WorkerState,
    /// Whether it joined a moment ago and asks previous owners before the origin.
    #[serde(default)]
    pub warming: bool,
    /// When it started, in seconds since 1970 by its own clock; for people.
    pub since: u64,
    /// How far it is, if it leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainProgress>,
}

fn default_block_size() -> u64 {
    u64::from(forebay_types::MAX_BLOCK_SIZE)
}

impl WorkerRecord {
    /// The key of the record of the worker `name` of `group`; both must be fit for a key already.
    #[must_use]
    pub fn key(group: &str, name: &str) -> String {
        format!("{WORKERS}{group}/{name}")
    }

    /// The record as it is stored.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        // A struct of texts and numbers: its encoding cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The record in `bytes`, or what is wrong with them.
    ///
    /// # Errors
    /// A sentence about what is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(bytes).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_gib_of_two_digits() {
        let weight = |bytes: u64| Capacity { memory: bytes / 2, disk: bytes - bytes / 2 }.weight();
        assert_eq!(weight(64 << 30), 64.0);
        assert_eq!(weight((64 << 30) + (300 << 20)), 64.0);
        assert_eq!(weight(7_770 << 30), 7_800.0);
        assert_eq!(weight(1 << 30), 1.0);
        assert_eq!(weight(300 << 20), 0.29);
        assert_eq!(weight(0), 0.01);
    }

    #[test]
    fn a_record_survives_and_a_newer_one_with_more_fields_is_read() {
        let record =
            WorkerRecord { name: "w1".into(), weight: 2.5, state: WorkerState::Draining, ..WorkerRecord::default() };
        assert_eq!(WorkerRecord::decode(&record.encode()), Ok(record.clone()));
        let mut newer: serde_json::Value = serde_json::from_slice(&record.encode()).unwrap();
        newer["later"] = serde_json::json!({"a": 1});
        assert_eq!(WorkerRecord::decode(newer.to_string().as_bytes()), Ok(record));
        assert!(WorkerRecord::decode(b"{").is_err());
    }
}
