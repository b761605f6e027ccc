//! How what lies below a path is cached, as it is stored: durations and sizes as people write them.

use forebay_types::{CachePolicy, FsPath, MAX_REPLICAS, format_duration, parse_duration};
use serde::{Deserialize, Serialize};

/// Under which key prefix policies are: `policies/PATH`, the path as one segment.
pub const POLICIES: &str = "policies/";
/// Under which key prefix the policies are that the coordinator makes by itself, for files that are read most: `hot/PATH`.
pub const HOT: &str = "hot/";

/// A [`CachePolicy`] and its path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicyRecord {
    /// A path of the namespace: absolute, normal.
    pub path: String,
    /// How long attributes and listings are believed, `5m`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata_ttl: Option<String>,
    /// Cached blocks stay until they are freed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pin: Option<bool>,
    /// `low`, `normal` or `high`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<String>,
    /// Most bytes that each worker caches of it, `10GiB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<String>,
    /// Nothing of it is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip_cache: Option<bool>,
    /// What is there never changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub immutable: Option<bool>,
    /// How many workers hold each block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u8>,
}

impl PolicyRecord {
    /// The record of `policy` for `path`, which must be UTF-8 to come back as it was.
    #[must_use]
    pub fn of(path: &FsPath, policy: &CachePolicy) -> Self {
        Self {
            path: path.to_string(),
            metadata_ttl: policy.metadata_ttl.map(format_duration),
            pin: policy.pin,
            priority: policy.priority.map(|priority| priority.as_str().to_owned()),
            quota: policy.quota.map(|quota| quota.to_string()),
            skip_cache: policy.skip_cache,
            immutable: policy.immutable,
            replicas: policy.replicas,
        }
    }

    /// The path and the policy.
    ///
    /// # Errors
    /// A sentence that names the field to change.
    pub fn policy(&self) -> Result<(FsPath, CachePolicy), String> {
        fn parsed<T, E: ToString>(
            field: &str,
            text: Option<&String>,
            parse: impl Fn(&str) -> Result<T, E>,
        ) -> Result<Option<T>, String> {
            text.map(|text| parse(text).map_err(|error| format!("{field}: {}", error.to_string()))).transpose()
        }
        let path = FsPath::new(&self.path).map_err(|error| format!("path: {error}"))?;
        if let Some(replicas) = self.replicas.filter(|replicas| !(1..=MAX_REPLICAS).contains(replicas)) {
            return Err(format!("replicas: {replicas} cannot be; give 1 to {MAX_REPLICAS}"));
        }
        if self.skip_cache == Some(true) && self.pin == Some(true) {
            return Err("pin: what is not cached (`skip_cache`) cannot stay in the cache; leave out one of them".into());
        }
        let policy = CachePolicy {
            metadata_ttl: parsed("metadata_ttl", self.metadata_ttl.as_ref(), parse_duration)?,
            pin: self.pin,
            priority: parsed("priority", self.priority.as_ref(), str::parse)?,
            quota: parsed("quota", self.quota.as_ref(), str::parse)?,
            skip_cache: self.skip_cache,
            immutable: self.immutable,
            replicas: self.replicas,
        };
        if policy == CachePolicy::default() {
            return Err("the policy wishes for nothing; give at least one field".into());
        }
        Ok((path, policy))
    }

    /// The key of the record whose path is `segment`, made fit for a key.
    #[must_use]
    pub fn key(segment: &str) -> String {
        format!("{POLICIES}{segment}")
    }

    /// The record as it is stored.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        // A struct of texts and numbers: its encoding cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The record in `bytes`; its policy is right, too.
    ///
    /// # Errors
    /// A sentence about what is wrong with them.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let record: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        record.policy()?;
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forebay_types::{ByteSize, Priority};

    use super::*;

    #[test]
    fn a_policy_comes_back_as_people_write_it() {
        let path = FsPath::new("/s3/models").unwrap();
        let policy = CachePolicy {
            metadata_ttl: Some(Duration::from_secs(300)),
            pin: Some(true),
            priority: Some(Priority::High),
            quota: Some(ByteSize::gib(10)),
            skip_cache: Some(false),
            immutable: Some(true),
            replicas: Some(2),
        };
        let record = PolicyRecord::of(&path, &policy);
        assert_eq!((record.metadata_ttl.as_deref(), record.quota.as_deref()), (Some("5m"), Some("10GiB")));
        let back = PolicyRecord::decode(&record.encode()).unwrap();
        assert_eq!(back.policy(), Ok((path, policy)));
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_field() {
        let record = |change: fn(&mut PolicyRecord)| {
            let mut record = PolicyRecord { path: "/s3".into(), pin: Some(true), ..PolicyRecord::default() };
            change(&mut record);
            record.policy().unwrap_err()
        };
        assert!(record(|policy| policy.path = "s3".into()).starts_with("path:"));
        assert!(record(|policy| policy.metadata_ttl = Some("5".into())).starts_with("metadata_ttl:"));
        assert!(record(|policy| policy.priority = Some("urgent".into())).starts_with("priority:"));
        assert!(record(|policy| policy.quota = Some("much".into())).starts_with("quota:"));
        assert!(record(|policy| policy.replicas = Some(0)).starts_with("replicas:"));
        assert!(record(|policy| policy.skip_cache = Some(true)).starts_with("pin:"));
        assert!(record(|policy| policy.pin = None).contains("nothing"));
    }
}
