//! `ForebayMount`.

use std::time::SystemTime;

use forebay_coordinator::api::MountList;
use forebay_coordinator::{ApiClient, ApiError};
use kube::api::ApiResource;
use tracing::info;

use super::kind::{Applied, At, Kind};
use super::pace::MAX_PAUSE;
use crate::condition::{Condition, Scribe, Verdict};
use crate::counts::{Counts, KindCounts};
use crate::mount::{self, Step};
use crate::resources::{ForebayMount, MountSpec, MountStatus, resource};

pub(super) struct Mounts;

impl Kind for Mounts {
    type Spec = MountSpec;
    type Status = MountStatus;
    type Seen = MountList;

    fn resource() -> ApiResource {
        resource("ForebayMount", "forebaymounts")
    }

    async fn look(coordinator: &ApiClient) -> Result<MountList, ApiError> {
        coordinator.all_mounts().await
    }

    async fn apply(at: &At<'_, Self>) -> Result<Applied<MountStatus>, ApiError> {
        let (own, others) = at.claims(|spec| &spec.path);
        let verdict = match mount::step(&at.object.spec, own.predecessor(&others), at.seen) {
            Step::Keep(verdict) => verdict,
            Step::Add(wanted) => {
                info!(path = wanted.path, origin = wanted.origin, "adding a mount");
                mount::shown(&at.coordinator.add_mount(&wanted).await?)
            }
        };
        Ok(Applied::Status(Self::status(at.object, verdict, at.now), MAX_PAUSE))
    }

    async fn forget(at: &At<'_, Self>) -> Result<(), ApiError> {
        let (own, others) = at.claims(|spec| &spec.path);
        let Some(path) = mount::forget(&at.object.spec, own.is_contested(&others), at.seen) else { return Ok(()) };
        info!(%path, "removing a mount");
        match at.coordinator.remove_mount(&path).await {
            Err(error) if error.is_not_found() => Ok(()),
            answer => answer,
        }
    }

    fn status(object: &ForebayMount, verdict: Verdict, now: SystemTime) -> MountStatus {
        let earlier = object.status.as_ref().map_or(&[][..], |status| &status.conditions[..]);
        let generation = object.metadata.generation;
        let ready = Scribe { earlier, generation, now }.condition("Ready", verdict);
        MountStatus { observed_generation: generation, conditions: vec![ready] }
    }

    fn conditions(status: &MountStatus) -> &[Condition] {
        &status.conditions
    }

    fn action(_status: &MountStatus) -> &str {
        "Mount"
    }

    fn counts(all: &Counts) -> &KindCounts {
        &all.mounts
    }
}
