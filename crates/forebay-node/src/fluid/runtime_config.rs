//! The file that Fluid writes for the pods of a CacheRuntime (`CacheRuntimeConfig` in Fluid's
//! `pkg/common/cacheruntime.go`).

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

/// A data set, and the parts of the runtime that serves it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RuntimeConfig {
    /// Of the data set.
    pub(super) mounts: Vec<DatasetMount>,
    /// Of the data set, as `ReadOnlyMany`.
    pub(super) access_modes: Vec<String>,
    /// Where a client mounts.
    pub(super) target_path: String,
    pub(super) master: Option<Component>,
    pub(super) worker: Option<Component>,
    pub(super) client: Option<Component>,
}

/// An origin of the data set.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct DatasetMount {
    /// The origin.
    pub(super) mount_point: String,
    pub(super) options: BTreeMap<String, String>,
    /// Options whose values are in files.
    pub(super) encrypt_options: BTreeMap<String, PathBuf>,
    /// Where it is shown.
    pub(super) path: String,
}

/// A part of the runtime.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Component {
    /// That of its StatefulSet: its pods are `NAME-0`, `NAME-1` …
    pub(super) name: String,
    pub(super) options: BTreeMap<String, String>,
    pub(super) replicas: u32,
    pub(super) service: Service,
    pub(super) tiered_store_levels: Vec<Level>,
}

/// The service that gives the pods of a part their names.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Service {
    pub(super) name: String,
}

/// Where a part caches.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Level {
    /// Directories in the container.
    pub(super) mount_paths: Vec<String>,
    /// `MEM`, or something on a disk.
    pub(super) medium_type: String,
    /// How much each of the directories may hold, as Kubernetes writes quantities.
    pub(super) quotas: Vec<String>,
    /// The share of it that is used, `0.9`.
    pub(super) high: String,
}

impl RuntimeConfig {
    /// Of the file's text.
    ///
    /// # Errors
    /// When it is not what Fluid writes.
    pub fn parse(text: &str) -> serde_json::Result<Self> {
        serde_json::from_str(text)
    }
}

/// The bytes of a quantity of Kubernetes, `100Gi` or `1.5T`; `None` if it is none.
pub(super) fn bytes(quantity: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 12] = [
        ("", 1),
        ("k", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
        ("P", 1_000_000_000_000_000),
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("Pi", 1 << 50),
        ("Ei", 1 << 60),
    ];
    let end = quantity.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(quantity.len());
    let (number, unit) = quantity.split_at(end);
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let bytes = number.parse::<f64>().ok()? * *factor as f64;
    // Up to 8 PiB every byte counts, and no cache is larger.
    (bytes >= 1.0 && bytes < u64::MAX as f64).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_bytes() {
        assert_eq!(
            ["1Gi", "1.5Ti", "100G", "7", "512Ki"].map(bytes),
            [Some(1 << 30), Some(3 << 39), Some(100_000_000_000), Some(7), Some(512 << 10)]
        );
        assert_eq!(["", "Gi", "1GiB", "-1Gi", "100m", "0"].map(bytes), [None; 6]);
    }

    #[test]
    fn what_fluid_leaves_out_is_empty() {
        let config = RuntimeConfig::parse(r#"{"targetPath": "/mnt", "later": {}}"#).unwrap();
        assert!(config.worker.is_none() && config.mounts.is_empty() && config.target_path == "/mnt");
        assert!(RuntimeConfig::parse("{").is_err());
    }
}
