//! `/api/v1/jobs`.

use std::sync::Arc;

use axum::Json;
use axum::body::Body as HttpBody;
use axum::extract::{FromRequest as _, OriginalUri, Path, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use forebay_metrics::About;
use forebay_types::Subject;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::extract::{Body, Params, RequestBody, path_of, whole};
use super::fault::{ErrorBody, Fault};
use super::forward;
use crate::jobs::{JobKind, JobReport, JobSpec, JobState};
use crate::runner::{Runner, matching};
use crate::service::Service;

impl RequestBody for JobSpec {}

/// What became of a job that was submitted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Submitted {
    /// The job.
    pub job: JobReport,
    /// False: a job of this kind for this path was under way already, and this is it.
    pub created: bool,
}

/// Jobs, the newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobList {
    /// The jobs.
    pub jobs: Vec<JobReport>,
}

/// Which jobs.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wanted {
    /// Only those for this path.
    path: Option<String>,
    /// Only of this kind.
    kind: Option<JobKind>,
    /// Only in this state.
    state: Option<JobState>,
}

/// Which job to stop: a body, so that it takes more than a link.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StopRequest {}

impl RequestBody for StopRequest {}

/// Submit a job
///
/// A job of this kind for this path that has not ended, and was not asked to, is not started twice: it is answered as it is.
#[utoipa::path(
    post, path = "/jobs", tag = "jobs", operation_id = "submit_job", request_body = JobSpec,
    responses(
        (status = CREATED, body = Submitted, description = "it was taken"),
        (status = OK, body = Submitted, description = "one was under way already"),
        (status = BAD_REQUEST, body = ErrorBody),
        (status = TOO_MANY_REQUESTS, body = ErrorBody),
        (status = SERVICE_UNAVAILABLE, body = ErrorBody),
    )
)]
pub(crate) async fn submit(
    State(service): State<Arc<Service>>,
    OriginalUri(uri): OriginalUri,
    about: About,
    request: Request,
) -> Result<Response, Fault> {
    let request = looked_into(&about, request).await?;
    let (runner, spec): (_, JobSpec) = match leading(&service, &uri, request).await? {
        Leading::Here(runner, spec) => (runner, spec),
        Leading::Elsewhere(answer) => return Ok(answer),
    };
    let (job, created) = runner.submit(spec).await?;
    note(&about, &job.spec, Some(&job.id));
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(Submitted { job, created })).into_response())
}

/// List jobs, the newest first
#[utoipa::path(
    get, path = "/jobs", tag = "jobs", operation_id = "list_jobs", params(Wanted),
    responses(
        (status = OK, body = JobList),
        (status = BAD_REQUEST, body = ErrorBody),
        (status = SERVICE_UNAVAILABLE, body = ErrorBody),
    )
)]
pub(crate) async fn list(
    State(service): State<Arc<Service>>,
    Params(wanted): Params<Wanted>,
) -> Result<Json<JobList>, Fault> {
    let path = wanted.path.as_deref().map(path_of).transpose()?;
    let mut jobs = matching(service.job_reports().await?, path.as_ref(), wanted.kind);
    jobs.retain(|job| wanted.state.is_none_or(|state| job.state == state));
    Ok(Json(JobList { jobs }))
}

/// How far a job is
#[utoipa::path(
    get, path = "/jobs/{id}", tag = "jobs", operation_id = "get_job",
    params(("id" = String, Path, description = "the job's name")),
    responses(
        (status = OK, body = JobReport),
        (status = NOT_FOUND, body = ErrorBody),
        (status = SERVICE_UNAVAILABLE, body = ErrorBody),
    )
)]
pub(crate) async fn get(State(service): State<Arc<Service>>, Path(id): Path<String>) -> Result<Json<JobReport>, Fault> {
    let reports = service.job_reports().await?;
    let found = reports.into_iter().find(|report| report.id == id);
    found.map(Json).ok_or_else(|| crate::runner::RunnerError::NoJob(id).into())
}

/// Stop a job
///
/// One that has ended stays as it is.
#[utoipa::path(
    post, path = "/jobs/{id}/stop", tag = "jobs", operation_id = "stop_job",
    params(("id" = String, Path, description = "the job's name")),
    request_body(content = StopRequest, description = "an empty object"),
    responses(
        (status = OK, body = JobReport),
        (status = NOT_FOUND, body = ErrorBody),
        (status = SERVICE_UNAVAILABLE, body = ErrorBody),
    )
)]
pub(crate) async fn stop(
    State(service): State<Arc<Service>>,
    OriginalUri(uri): OriginalUri,
    Path(id): Path<String>,
    about: About,
    request: Request,
) -> Result<Response, Fault> {
    match leading(&service, &uri, request).await? {
        Leading::Here(runner, StopRequest {}) => {
            let job = runner.stop(&id).await?;
            note(&about, &job.spec, Some(&job.id));
            Ok(Json(job).into_response())
        }
        Leading::Elsewhere(answer) => {
            // There is such a job, then.
            if answer.status().is_success() {
                about.note(|subject| subject.job = Some(id));
            }
            Ok(answer)
        }
    }
}

/// What a request is about that submits or stops a job.
fn note(about: &About, spec: &JobSpec, job: Option<&str>) {
    about.note(|subject| {
        let path = Subject::of_path(spec.path().as_bytes());
        *subject = Subject { change: Some(spec.kind().as_str()), job: job.map(str::to_owned), ..path };
    });
}

/// The request, of which is noted what job it wants if anybody is going to hear of that: the leader may be another one, and then the
/// body is not for us.
async fn looked_into(about: &About, request: Request) -> Result<Request, Fault> {
    if !about.is_recorded() {
        return Ok(request);
    }
    let (parts, body) = request.into_parts();
    let bytes = whole(Request::from_parts(parts.clone(), body)).await?;
    // What makes no sense is refused by whom it is for.
    if let Ok(spec) = serde_json::from_slice(&bytes) {
        note(about, &spec, None);
    }
    Ok(Request::from_parts(parts, HttpBody::from(bytes)))
}

/// Where jobs run.
enum Leading<T> {
    /// In this process, for which the body of the request is.
    Here(Arc<Runner>, T),
    /// In another one, which has answered.
    Elsewhere(Response),
}

/// Takes a request that is the leader's, or has the leader answer it. One that another coordinator has passed on goes no
/// further.
async fn leading<T: RequestBody>(service: &Service, uri: &Uri, request: Request) -> Result<Leading<T>, Fault> {
    let (runner, was_forwarded) = (service.runner(), forward::was_forwarded(request.headers()));
    if runner.is_none()
        && !was_forwarded
        && let Some(leader) = service.other_leader().await?
    {
        let answer = forward::to_leader(&*service.connector, &leader, uri, request).await?;
        return Ok(Leading::Elsewhere(answer));
    }
    // What makes no sense is refused whoever leads.
    let Body(body) = Body::<T>::from_request(request, &()).await?;
    let nobody = if was_forwarded {
        "another coordinator takes this one for the leader, which it is not"
    } else {
        "no coordinator leads at the moment"
    };
    runner.map(|runner| Leading::Here(runner, body)).ok_or_else(|| Fault::no_leader(nobody))
}
