//! `ForebayPolicy`.

use std::time::SystemTime;

use forebay_coordinator::api::Policy;
use forebay_coordinator::{ApiClient, ApiError};
use kube::api::ApiResource;
use tracing::info;

use super::kind::{Applied, At, Kind};
use super::pace::MAX_PAUSE;
use crate::condition::{Condition, Scribe, Verdict};
use crate::counts::{Counts, KindCounts};
use crate::policy::{self, Step};
use crate::resources::{ForebayPolicy, PolicySpec, PolicyStatus, resource};

pub(super) struct Policies;

impl Kind for Policies {
    type Spec = PolicySpec;
    type Status = PolicyStatus;
    type Seen = Vec<Policy>;

    fn resource() -> ApiResource {
        resource("ForebayPolicy", "forebaypolicies")
    }

    async fn look(coordinator: &ApiClient) -> Result<Vec<Policy>, ApiError> {
        coordinator.policies().await
    }

    async fn apply(at: &At<'_, Self>) -> Result<Applied<PolicyStatus>, ApiError> {
        let (own, others) = at.claims(|spec| &spec.path);
        let (spec, status) = (&at.object.spec, at.object.status.as_ref());
        let step = policy::step(spec, at.object.metadata.generation, status, own.predecessor(&others), at.seen);
        let (verdict, applied) = match step {
            Step::Keep(verdict) => (verdict, status.and_then(|status| status.applied.clone())),
            Step::Set(wanted) => {
                info!(path = wanted.path, "setting a policy");
                let applied = PolicySpec::from(at.coordinator.set_policy(&wanted).await?);
                (policy::in_effect(&applied.path), Some(applied))
            }
        };
        let told = PolicyStatus { applied, ..Self::status(at.object, verdict, at.now) };
        Ok(Applied::Status(told, MAX_PAUSE))
    }

    async fn forget(at: &At<'_, Self>) -> Result<(), ApiError> {
        let (own, others) = at.claims(|spec| &spec.path);
        let status = at.object.status.as_ref();
        let Some(path) = policy::forget(status, own.is_contested(&others), at.seen) else { return Ok(()) };
        info!(%path, "removing a policy");
        match at.coordinator.remove_policy(&path).await {
            Err(error) if error.is_not_found() => Ok(()),
            answer => answer,
        }
    }

    fn status(object: &ForebayPolicy, verdict: Verdict, now: SystemTime) -> PolicyStatus {
        let earlier = object.status.as_ref().map_or(&[][..], |status| &status.conditions[..]);
        let generation = object.metadata.generation;
        let ready = Scribe { earlier, generation, now }.condition("Ready", verdict);
        let applied = object.status.as_ref().and_then(|status| status.applied.clone());
        PolicyStatus { observed_generation: generation, applied, conditions: vec![ready] }
    }

    fn conditions(status: &PolicyStatus) -> &[Condition] {
        &status.conditions
    }

    fn action(_status: &PolicyStatus) -> &str {
        "SetPolicy"
    }

    fn counts(all: &Counts) -> &KindCounts {
        &all.policies
    }
}
