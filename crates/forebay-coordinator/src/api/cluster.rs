//! `/api/v1/cluster`, `/api/v1/stats`, `/api/v1/series` and `/api/v1/version`: eyes on the cluster, and which workers
//! shall leave it.

use std::collections::HashSet;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use forebay_cluster::records::members::{DRAINS, WORKERS, WorkerRecord};
use forebay_metrics::About;
use forebay_state::{Entry, StateError, StateStore, Transaction, decode_segment, encode_segment};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::extract::{Body, Params, RequestBody};
use super::fault::{ErrorBody, Fault};
use crate::clock::wall_clock;
use crate::leader::LeaderRecord;
use crate::series::{Plot, Window};
use crate::service::Service;
use crate::worker_stats::WorkerStats;

/// The cluster as this coordinator sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClusterStatus {
    /// The coordinator that answers.
    pub coordinator: String,
    /// The release that it runs.
    pub version: String,
    /// The coordinator that runs jobs; absent while there is none, or while it is not known.
    pub leader: Option<LeaderRecord>,
    /// Where the state of the cluster is.
    pub state_store: StoreStatus,
    /// What a person should know, a sentence each.
    pub warnings: Vec<String>,
    /// Members with their shares, versions and health; their form is that of `forebay cluster status --format json`.
    #[schema(value_type = Object)]
    pub cluster: Value,
    /// Those of the workers that shall leave that are not in the cluster: each stays out of the ring when it comes back, until
    /// it is taken back.
    #[serde(default)]
    pub absent_drains: Vec<Drain>,
}

/// The state store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoreStatus {
    /// Which one.
    pub description: String,
    /// Whether it answers.
    pub reachable: bool,
    /// Why not.
    pub reason: Option<String>,
}

/// A worker that shall leave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Drain {
    /// Its name.
    pub worker: String,
    /// When that was asked for, in milliseconds since 1970.
    pub asked_ms: u64,
}

/// Asks a worker to leave: an empty object.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DrainRequest {}

impl RequestBody for DrainRequest {}

/// The release that a coordinator runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Version {
    /// `0.1.0`.
    pub version: String,
    /// The version of this interface.
    pub api: String,
}

/// Which plot.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct WhichPlot {
    /// `recent` (15 minutes, the default) or `day`.
    #[serde(default)]
    window: Window,
}

/// The cluster: members, shares, versions, health, warnings
#[utoipa::path(
    get, path = "/cluster", tag = "cluster", operation_id = "get_cluster",
    responses((status = OK, body = ClusterStatus))
)]
pub(crate) async fn status(State(service): State<Arc<Service>>) -> Json<ClusterStatus> {
    let (leader, cluster, absent_drains) =
        tokio::join!(service.leader(), service.view().status(), absent_drains(service.store()));
    let mut warnings = Vec::new();
    let (leader, reason) = match leader {
        Ok(leader) => (leader, None),
        Err(error) => (None, Some(error.to_string())),
    };
    if let Some(reason) = &reason {
        warnings.push(format!("the state store does not answer, what was last known is in use: {reason}"));
    } else if leader.is_none() {
        warnings.push("no coordinator leads at the moment: jobs wait".to_owned());
    }
    let absent_drains = absent_drains.unwrap_or_else(|error| {
        if reason.is_none() {
            warnings.push(format!("which drained workers are not there is not known: {error}"));
        }
        Vec::new()
    });
    let told = cluster.get("warnings").and_then(Value::as_array).into_iter().flatten();
    warnings.extend(told.filter_map(Value::as_str).map(str::to_owned));
    let description = service.store().describe();
    Json(ClusterStatus {
        coordinator: service.name().to_owned(),
        version: service.version().to_owned(),
        leader,
        state_store: StoreStatus { description, reachable: reason.is_none(), reason },
        warnings,
        cluster,
        absent_drains,
    })
}

/// The drains of workers of which the state store has no record.
async fn absent_drains(store: &dyn StateStore) -> Result<Vec<Drain>, StateError> {
    let drains = store.list(DRAINS).await?.entries;
    if drains.is_empty() {
        return Ok(Vec::new());
    }
    let members = store.list(WORKERS).await?.entries;
    let names: HashSet<String> =
        members.iter().filter_map(|entry| Some(WorkerRecord::decode(&entry.value).ok()?.name)).collect();
    Ok(drains.iter().filter_map(drain_of).filter(|drain| !names.contains(&drain.worker)).collect())
}

/// The drain that this entry is: its key is what the worker goes by.
fn drain_of(entry: &Entry) -> Option<Drain> {
    let worker = String::from_utf8(decode_segment(entry.key.strip_prefix(DRAINS)?)?).ok()?;
    let asked_ms = serde_json::from_slice(&entry.value).map_or(0, |drain: Drain| drain.asked_ms);
    Some(Drain { worker, asked_ms })
}

/// Ask a worker to hand over its share and leave
///
/// Its progress is in the cluster's status; it can be stopped when it is `drained`.
#[utoipa::path(
    put, path = "/cluster/drains/{worker}", tag = "cluster", operation_id = "drain_worker",
    params(("worker" = String, Path, description = "the worker's name")),
    request_body(content = DrainRequest, description = "an empty object"),
    responses(
        (status = OK, body = Drain),
        (status = NOT_FOUND, body = ErrorBody),
        (status = SERVICE_UNAVAILABLE, body = ErrorBody),
    )
)]
pub(crate) async fn drain(
    State(service): State<Arc<Service>>,
    about: About,
    Path(worker): Path<String>,
    Body(DrainRequest {}): Body<DrainRequest>,
) -> Result<Json<Drain>, Fault> {
    let members = service.store().list(WORKERS).await?.entries;
    let is_member = |value: &[u8]| WorkerRecord::decode(value).is_ok_and(|record| record.name == worker);
    if !members.iter().any(|entry| is_member(&entry.value)) {
        let message = format!("no worker `{worker}` is in the cluster");
        return Err(Fault::not_found(message, "`forebay cluster status` lists the workers"));
    }
    about.note(|subject| subject.worker = Some(worker.clone()));
    let drain = Drain { worker, asked_ms: wall_clock() };
    // A struct of a text and a number: its encoding cannot fail.
    let value = serde_json::to_vec(&drain).unwrap_or_default();
    let key = format!("{DRAINS}{}", encode_segment(&drain.worker));
    service.store().commit(Transaction::new().put(key, value)).await?;
    Ok(Json(drain))
}

/// Take a drained worker back, or stop draining it
#[utoipa::path(
    delete, path = "/cluster/drains/{worker}", tag = "cluster", operation_id = "undrain_worker",
    params(("worker" = String, Path, description = "the worker's name")),
    responses(
        (status = NO_CONTENT),
        (status = NOT_FOUND, body = ErrorBody),
        (status = SERVICE_UNAVAILABLE, body = ErrorBody),
    )
)]
pub(crate) async fn undrain(
    State(service): State<Arc<Service>>,
    about: About,
    Path(worker): Path<String>,
) -> Result<StatusCode, Fault> {
    let key = format!("{DRAINS}{}", encode_segment(&worker));
    let write = Transaction::new().if_present(&key).delete(&key);
    match service.store().commit(write).await?.revision() {
        Some(_) => {
            about.note(|subject| subject.worker = Some(worker));
            Ok(StatusCode::NO_CONTENT)
        }
        None => {
            let message = format!("nobody asked `{worker}` to leave");
            Err(Fault::not_found(message, "`forebay cluster status` shows who is draining"))
        }
    }
}

/// What the workers count
#[utoipa::path(
    get, path = "/stats", tag = "cluster", operation_id = "get_worker_stats",
    responses((status = OK, body = WorkerStats))
)]
pub(crate) async fn stats(State(service): State<Arc<Service>>) -> Json<WorkerStats> {
    Json(service.worker_stats())
}

/// Throughput and hit ratio over time
#[utoipa::path(
    get, path = "/series", tag = "cluster", operation_id = "get_series", params(WhichPlot),
    responses((status = OK, body = Plot), (status = BAD_REQUEST, body = ErrorBody))
)]
pub(crate) async fn series(
    State(service): State<Arc<Service>>,
    Params(WhichPlot { window }): Params<WhichPlot>,
) -> Json<Plot> {
    Json(service.plot(window))
}

/// The release that this coordinator runs
#[utoipa::path(
    get, path = "/version", tag = "cluster", operation_id = "get_version",
    responses((status = OK, body = Version))
)]
pub(crate) async fn version(State(service): State<Arc<Service>>) -> Json<Version> {
    Json(Version { version: service.version().to_owned(), api: "v1".to_owned() })
}

#[cfg(test)]
mod tests {
    use forebay_state::Revision;

    use super::*;

    #[test]
    fn a_drain_is_that_of_the_worker_in_its_key_whoever_wrote_it() {
        let entry = |key: &str, value: &str| Entry {
            key: key.to_owned(),
            value: value.to_owned().into(),
            revision: Revision::default(),
        };
        let drain = |worker: &str, asked_ms| Some(Drain { worker: worker.to_owned(), asked_ms });
        let written = r#"{"worker":"node7:29999","asked_ms":5}"#;
        assert_eq!(drain_of(&entry("drains/node7%3A29999", written)), drain("node7:29999", 5));
        for by_hand in ["", "{}", "5"] {
            assert_eq!(drain_of(&entry("drains/w1", by_hand)), drain("w1", 0), "{by_hand}");
        }
        for no_name in ["drains/%FF", "drains/a:b", "workers/default/w1"] {
            assert_eq!(drain_of(&entry(no_name, written)), None, "{no_name}");
        }
    }
}
