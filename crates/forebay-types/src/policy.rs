//! How what lies below a path is cached: a few wishes per path prefix.
//!
//! A policy says only what differs: what it leaves open is decided by the policy of the next shorter prefix, and at last by
//! the configuration. So `replicas = 2` for `/s3/models` keeps the `metadata_ttl` that was given for `/s3`.

use std::time::Duration;

use crate::{ByteSize, FsPath};

/// Most copies of a block that may be asked for.
pub const MAX_REPLICAS: u8 = 16;

/// Whose blocks are evicted first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Before all others.
    Low,
    /// As the cache sees fit.
    #[default]
    Normal,
    /// After all others.
    High,
}

impl Priority {
    /// Its name, in lower case.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Normal => "normal",
            Self::High => "high",
        }
    }
}

impl std::str::FromStr for Priority {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Low, Self::Normal, Self::High]
            .into_iter()
            .find(|priority| priority.as_str() == text)
            .ok_or_else(|| format!("`{text}` is no priority: low, normal or high"))
    }
}

/// What is wished for below a path; `None` where nothing is said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CachePolicy {
    /// How long attributes and listings are believed.
    pub metadata_ttl: Option<Duration>,
    /// Cached blocks stay until they are freed: eviction passes them by.
    pub pin: Option<bool>,
    /// Whose blocks are evicted first.
    pub priority: Option<Priority>,
    /// Most bytes that each worker caches of what lies below the path that says so.
    pub quota: Option<ByteSize>,
    /// Bytes are served from the origin and never kept.
    pub skip_cache: Option<bool>,
    /// What is there never changes: attributes are believed for ever and the origin is not asked again.
    pub immutable: Option<bool>,
    /// How many workers hold each block, 1 to [`MAX_REPLICAS`].
    pub replicas: Option<u8>,
}

impl CachePolicy {
    /// This policy, and `below` where this one says nothing.
    #[must_use]
    pub fn or(&self, below: &Self) -> Self {
        Self {
            metadata_ttl: self.metadata_ttl.or(below.metadata_ttl),
            pin: self.pin.or(below.pin),
            priority: self.priority.or(below.priority),
            quota: self.quota.or(below.quota),
            skip_cache: self.skip_cache.or(below.skip_cache),
            immutable: self.immutable.or(below.immutable),
            replicas: self.replicas.or(below.replicas),
        }
    }
}

/// The policies of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyTable {
    /// The longest prefixes first.
    rules: Vec<(FsPath, CachePolicy)>,
}

impl PolicyTable {
    /// A table of these rules; of two for one prefix, the later counts.
    #[must_use]
    pub fn new(rules: impl IntoIterator<Item = (FsPath, CachePolicy)>) -> Self {
        let by_path: std::collections::BTreeMap<FsPath, CachePolicy> = rules.into_iter().collect();
        let mut rules: Vec<_> = by_path.into_iter().collect();
        rules.sort_by(|(a, _), (b, _)| b.as_bytes().len().cmp(&a.as_bytes().len()).then_with(|| a.cmp(b)));
        Self { rules }
    }

    /// What is wished for `path`, of all prefixes that lead to it together.
    #[must_use]
    pub fn of(&self, path: &FsPath) -> CachePolicy {
        self.leading_to(path).fold(CachePolicy::default(), |so_far, (_, rule)| so_far.or(rule))
    }

    /// The prefix whose quota counts for `path`, and that quota: of several, the longest.
    #[must_use]
    pub fn quota_of<'a>(&'a self, path: &'a FsPath) -> Option<(&'a FsPath, ByteSize)> {
        self.leading_to(path).find_map(|(prefix, rule)| Some((prefix, rule.quota?)))
    }

    /// The rules, the longest prefixes first.
    pub fn rules(&self) -> impl Iterator<Item = &(FsPath, CachePolicy)> {
        self.rules.iter()
    }

    fn leading_to<'a>(&'a self, path: &'a FsPath) -> impl Iterator<Item = &'a (FsPath, CachePolicy)> {
        self.rules.iter().filter(move |(prefix, _)| path.relative_to(prefix).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> FsPath {
        FsPath::new(text).unwrap()
    }

    #[test]
    fn the_longest_prefix_wins_field_by_field() {
        let ttl = Some(Duration::from_secs(5));
        let table = PolicyTable::new([
            (path("/"), CachePolicy { replicas: Some(1), metadata_ttl: ttl, ..CachePolicy::default() }),
            (path("/s3/models"), CachePolicy { replicas: Some(3), pin: Some(true), ..CachePolicy::default() }),
            (path("/s3"), CachePolicy { quota: Some(ByteSize::gib(1)), pin: Some(false), ..CachePolicy::default() }),
        ]);
        let of = table.of(&path("/s3/models/llama/1"));
        assert_eq!((of.replicas, of.pin, of.metadata_ttl), (Some(3), Some(true), ttl));
        assert_eq!(table.quota_of(&path("/s3/models/llama/1")), Some((&path("/s3"), ByteSize::gib(1))));
        let of = table.of(&path("/s3/modelsx"));
        assert_eq!((of.replicas, of.pin), (Some(1), Some(false)));
        assert_eq!(table.quota_of(&path("/other")), None);
    }

    #[test]
    fn a_later_rule_for_a_prefix_replaces_an_earlier_one() {
        let rule = |replicas| (path("/a"), CachePolicy { replicas: Some(replicas), ..CachePolicy::default() });
        assert_eq!(PolicyTable::new([rule(2), rule(4)]).of(&path("/a")).replicas, Some(4));
    }
}
