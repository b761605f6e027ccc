//! `ForebayLoad`.

use std::time::{Duration, SystemTime};

use forebay_coordinator::jobs::JobSpec;
use forebay_coordinator::{ApiClient, ApiError};
use kube::api::ApiResource;
use tracing::info;

use super::kind::{Applied, At, Kind};
use super::pace::{AFTER_FAILURE, MAX_PAUSE};
use crate::condition::{Condition, Scribe, Verdict};
use crate::counts::{Counts, KindCounts};
use crate::load::{self, FOLLOW_EVERY, Step};
use crate::resources::{ForebayLoad, LoadSpec, LoadStatus, resource};

pub(super) struct Loads;

impl Kind for Loads {
    type Spec = LoadSpec;
    type Status = LoadStatus;
    /// Each job is asked for by itself: those that have ended need not be looked at.
    type Seen = ();

    fn resource() -> ApiResource {
        resource("ForebayLoad", "forebayloads")
    }

    async fn look(_coordinator: &ApiClient) -> Result<(), ApiError> {
        Ok(())
    }

    async fn apply(at: &At<'_, Self>) -> Result<Applied<LoadStatus>, ApiError> {
        let status = at.object.status.as_ref();
        let status = match load::step(&at.object.spec, status, at.now) {
            Step::Rest(left) => return Ok(Applied::Keep(left.unwrap_or(MAX_PAUSE))),
            Step::Expire => return Ok(Applied::Expired),
            Step::Refuse(verdict) => return Ok(Applied::Status(Self::status(at.object, verdict, at.now), MAX_PAUSE)),
            Step::Submit(spec) => submit(at, &spec).await?,
            Step::Replace { job, spec } => {
                let others = at.others.iter().map(|other| (&other.spec, other.status.as_ref()));
                if !load::is_followed(&job, others, at.now) {
                    stop(at.coordinator, &job).await?;
                }
                submit(at, &spec).await?
            }
            Step::Follow { job, spec } => match at.coordinator.job(&job).await {
                Ok(report) => load::followed(&spec, &report, &scribe(at.object, at.now)),
                Err(error) if error.is_not_found() => submit(at, &spec).await?,
                Err(error) => return Err(error),
            },
        };
        let again = pause(&status);
        Ok(Applied::Status(status, again))
    }

    async fn forget(at: &At<'_, Self>) -> Result<(), ApiError> {
        let others = at.others.iter().filter_map(|other| other.status.as_ref()?.job.as_deref());
        match load::forget(at.object.status.as_ref(), others) {
            Some(job) => stop(at.coordinator, &job).await,
            None => Ok(()),
        }
    }

    fn status(object: &ForebayLoad, verdict: Verdict, now: SystemTime) -> LoadStatus {
        load::refused(object.status.as_ref(), verdict, &scribe(object, now))
    }

    fn conditions(status: &LoadStatus) -> &[Condition] {
        &status.conditions
    }

    /// Another job is another action: the API server counts what two jobs have in common separately.
    fn action(status: &LoadStatus) -> &str {
        status.job.as_deref().unwrap_or("Load")
    }

    fn counts(all: &Counts) -> &KindCounts {
        &all.loads
    }
}

fn scribe(object: &ForebayLoad, now: SystemTime) -> Scribe<'_> {
    let earlier = object.status.as_ref().map_or(&[][..], |status| &status.conditions[..]);
    Scribe { earlier, generation: object.metadata.generation, now }
}

/// One that has ended needs no more looks than its time to live has it.
fn pause(status: &LoadStatus) -> Duration {
    match (&status.job, &status.completion_time) {
        (_, Some(_)) => Duration::ZERO,
        (Some(_), None) => FOLLOW_EVERY,
        (None, None) => AFTER_FAILURE,
    }
}

async fn submit(at: &At<'_, Loads>, spec: &JobSpec) -> Result<LoadStatus, ApiError> {
    let submitted = at.coordinator.submit(spec).await?;
    if submitted.created {
        info!(job = submitted.job.id, path = %spec.path(), "submitted a load");
    }
    Ok(load::submitted(spec, &submitted.job, &scribe(at.object, at.now)))
}

/// Stops a job; one that is gone is as good as stopped.
async fn stop(coordinator: &ApiClient, job: &str) -> Result<(), ApiError> {
    info!(job, "stopping a load that nobody wants any more");
    match coordinator.stop(job).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}
