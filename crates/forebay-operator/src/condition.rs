//! Conditions, by which objects of Kubernetes say how they stand: `kubectl wait --for=condition=Ready` waits for one.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// What is so of an object, or is not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// What it is about: `Ready`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True` or `False`.
    pub status: String,
    /// Why, in a word for programs.
    pub reason: String,
    /// Why, and what to do, for people.
    pub message: String,
    /// Since when `status` is what it is, as RFC 3339.
    pub last_transition_time: String,
    /// The generation of the object that was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// What there is to be said of an object, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it is so.
    pub holds: bool,
    /// Why, in a word for programs: CamelCase.
    pub reason: &'static str,
    /// Why, and what to do, for people.
    pub message: String,
}

impl Verdict {
    /// It is so.
    #[must_use]
    pub fn yes(reason: &'static str, message: impl Into<String>) -> Self {
        Self { holds: true, reason, message: message.into() }
    }

    /// It is not.
    #[must_use]
    pub fn no(reason: &'static str, message: impl Into<String>) -> Self {
        Self { holds: false, reason, message: message.into() }
    }
}

/// Writes conditions of one object at one time.
#[derive(Clone, Copy, Debug)]
pub struct Scribe<'a> {
    /// What the object said before.
    pub earlier: &'a [Condition],
    /// The object's generation.
    pub generation: Option<i64>,
    /// By the clock on the wall.
    pub now: SystemTime,
}

impl Scribe<'_> {
    /// The condition `kind`. Its time stays as long as its status does.
    #[must_use]
    pub fn condition(&self, kind: &str, verdict: Verdict) -> Condition {
        let status = if verdict.holds { "True" } else { "False" };
        let unchanged = self.earlier.iter().find(|earlier| earlier.kind == kind && earlier.status == status);
        Condition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            reason: verdict.reason.to_owned(),
            message: verdict.message,
            last_transition_time: unchanged
                .map_or_else(|| time(self.now), |earlier| earlier.last_transition_time.clone()),
            observed_generation: self.generation,
        }
    }
}

/// A time as Kubernetes writes it: RFC 3339 in UTC, in seconds.
#[must_use]
pub fn time(at: SystemTime) -> String {
    humantime::format_rfc3339_seconds(at).to_string()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn a_condition_keeps_its_time_until_its_status_changes() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let scribe = |earlier, now| Scribe { earlier, generation: Some(3), now };
        let first = scribe(&[], at(0)).condition("Ready", Verdict::no("Unreachable", "no"));
        assert_eq!(first.last_transition_time, "1970-01-01T00:00:00Z");
        let earlier = [first];
        let second = scribe(&earlier, at(60)).condition("Ready", Verdict::no("Refused", "still no"));
        assert_eq!((second.last_transition_time.as_str(), second.reason.as_str()), ("1970-01-01T00:00:00Z", "Refused"));
        let third = scribe(&earlier, at(60)).condition("Ready", Verdict::yes("Shown", "yes"));
        assert_eq!((third.last_transition_time.as_str(), third.status.as_str()), ("1970-01-01T00:01:00Z", "True"));
        assert_eq!(third.observed_generation, Some(3));
    }
}
