//! What an origin answered.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::text::without_passwords;

/// What an origin answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginProbe {
    /// Its URL, without a password.
    pub url: String,
    /// How long the answer took, in milliseconds.
    pub took_ms: u64,
    /// Why there was none.
    pub error: Option<String>,
    /// What to do about it.
    pub remedy: Option<String>,
}

impl OriginProbe {
    /// An origin that answered within `took`.
    #[must_use]
    pub fn answered(url: &str, took: Duration) -> Self {
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        Self { url: without_passwords(url), took_ms, ..Self::default() }
    }

    /// An origin that did not: for what reason, and what to do about it.
    #[must_use]
    pub fn failed(url: &str, took: Duration, reason: String, remedy: Option<String>) -> Self {
        Self { error: Some(without_passwords(&reason)), remedy, ..Self::answered(url, took) }
    }
}
