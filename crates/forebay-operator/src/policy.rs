//! What becomes of a `ForebayPolicy`: a plain function of what it says and of the policies that the cluster has.
//!
//! The coordinator writes values its own way (`60s` is `1m`), so what it took is kept in the object's status: what is
//! there and is not that, was changed by somebody else, and is set again.

use forebay_coordinator::api::Policy;
use forebay_types::FsPath;

use crate::condition::Verdict;
use crate::resources::{PolicySpec, PolicyStatus};

/// What is to be done for an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The coordinator is to set this. It says whether it could, and what it took.
    Set(Policy),
    /// Nothing; this is how it stands.
    Keep(Verdict),
}

/// What is to be done for an object of this generation that is there. `predecessor` is the object that has the path.
#[must_use]
pub fn step(
    spec: &PolicySpec,
    generation: Option<i64>,
    status: Option<&PolicyStatus>,
    predecessor: Option<&str>,
    seen: &[Policy],
) -> Step {
    if let Some(other) = predecessor {
        let message = format!("the ForebayPolicy {other} has {}; delete one of the two", spec.path);
        return Step::Keep(Verdict::no("PathTaken", message));
    }
    let told = status.filter(|status| status.observed_generation == generation);
    let is_so = told.and_then(|status| status.applied.as_ref()).is_some_and(|applied| {
        let there = seen.iter().find(|policy| policy.path == applied.path);
        there.is_some_and(|there| PolicySpec::from(there.clone()) == *applied)
    });
    if is_so { Step::Keep(in_effect(&spec.path)) } else { Step::Set(spec.clone().into()) }
}

/// How it stands when the coordinator has taken it.
#[must_use]
pub fn in_effect(path: &str) -> Verdict {
    Verdict::yes("InEffect", format!("the policy of {path} is in effect"))
}

/// The path whose policy is to be removed with an object that goes, if any. `is_contested`: another object wants the
/// path, too.
#[must_use]
pub fn forget(status: Option<&PolicyStatus>, is_contested: bool, seen: &[Policy]) -> Option<FsPath> {
    let applied = status?.applied.as_ref().filter(|_| !is_contested)?;
    let is_there = seen.iter().any(|policy| policy.path == applied.path);
    if is_there { FsPath::new(&applied.path).ok() } else { None }
}

impl From<PolicySpec> for Policy {
    fn from(spec: PolicySpec) -> Self {
        let PolicySpec { path, metadata_ttl, pin, priority, quota, skip_cache, immutable, replicas } = spec;
        Self { path, metadata_ttl, pin, priority, quota, skip_cache, immutable, replicas }
    }
}

impl From<Policy> for PolicySpec {
    fn from(policy: Policy) -> Self {
        let Policy { path, metadata_ttl, pin, priority, quota, skip_cache, immutable, replicas } = policy;
        Self { path, metadata_ttl, pin, priority, quota, skip_cache, immutable, replicas }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(ttl: &str) -> PolicySpec {
        PolicySpec { path: "/s3".into(), metadata_ttl: Some(ttl.into()), ..PolicySpec::default() }
    }

    fn applied(generation: i64, ttl: &str) -> PolicyStatus {
        PolicyStatus { observed_generation: Some(generation), applied: Some(spec(ttl)), conditions: Vec::new() }
    }

    #[test]
    fn a_policy_is_set_once_and_again_when_it_or_the_cluster_changed() {
        let there = [Policy::from(spec("1m"))];
        let set = Step::Set(spec("60s").into());
        assert_eq!(step(&spec("60s"), Some(1), None, None, &[]), set);
        let status = applied(1, "1m");
        assert!(
            matches!(step(&spec("60s"), Some(1), Some(&status), None, &there), Step::Keep(verdict) if verdict.holds)
        );
        assert_eq!(step(&spec("60s"), Some(2), Some(&status), None, &there), set, "the object changed");
        assert_eq!(step(&spec("60s"), Some(1), Some(&status), None, &[]), set, "somebody removed it");
        assert_eq!(step(&spec("60s"), Some(1), Some(&status), None, &[spec("5m").into()]), set, "somebody changed it");
    }

    #[test]
    fn only_what_the_object_set_goes_with_it() {
        let there = [Policy::from(spec("1m"))];
        assert_eq!(forget(None, false, &there), None);
        let status = applied(1, "1m");
        assert_eq!(forget(Some(&status), true, &there), None, "another object wants it");
        assert_eq!(forget(Some(&status), false, &[]), None);
        assert_eq!(forget(Some(&status), false, &there), Some(FsPath::new("/s3").unwrap()));
        let taken = step(&spec("1m"), Some(1), None, Some("first"), &there);
        assert!(matches!(taken, Step::Keep(verdict) if !verdict.holds && verdict.message.contains("first")));
    }
}
