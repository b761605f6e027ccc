//! `/healthz` and `/readyz`, for the tools that restart processes and route requests.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::service::Service;

/// How long the state store may take: the tools that ask give up soon.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether a process lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`.
    pub status: String,
    /// The coordinator.
    pub name: String,
    /// The release that it runs.
    pub version: String,
}

/// Whether a process can do its work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Readiness {
    /// Whether all of the checks hold.
    pub ready: bool,
    /// What it needs.
    pub checks: Vec<Check>,
}

/// Something that a process needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Check {
    /// `state_store`, `leader`.
    pub name: String,
    /// Whether it is there.
    pub ok: bool,
    /// What it is, or why it is not there.
    pub reason: String,
}

/// Whether the process lives
#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = OK, body = Health)))]
pub(crate) async fn healthz(State(service): State<Arc<Service>>) -> Json<Health> {
    let (name, version) = (service.name().to_owned(), service.version().to_owned());
    Json(Health { status: "ok".to_owned(), name, version })
}

/// Whether the state store is reachable and a leader known
#[utoipa::path(
    get, path = "/readyz", tag = "health",
    responses((status = OK, body = Readiness), (status = SERVICE_UNAVAILABLE, body = Readiness))
)]
pub(crate) async fn readyz(State(service): State<Arc<Service>>) -> (StatusCode, Json<Readiness>) {
    let readiness = readiness(&service).await;
    let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(readiness))
}

/// Whether the state store is reachable and a leader known, without the reasons.
pub(crate) async fn is_ready(service: &Service) -> bool {
    readiness(service).await.ready
}

async fn readiness(service: &Service) -> Readiness {
    let found = tokio::time::timeout(PATIENCE, service.leader()).await;
    let found = match found {
        Ok(found) => found.map_err(|error| error.to_string()),
        Err(_) => Err(format!("{} did not answer within {PATIENCE:?}", service.store().describe())),
    };
    let check = |name: &str, outcome: Result<String, String>| {
        let (ok, reason) = match outcome {
            Ok(reason) => (true, reason),
            Err(reason) => (false, reason),
        };
        Check { name: name.to_owned(), ok, reason }
    };
    let (store, leader) = match found {
        Ok(Some(leader)) => (Ok(service.store().describe()), Ok(format!("{} at {}", leader.name, leader.address))),
        Ok(None) => (Ok(service.store().describe()), Err("no coordinator leads at the moment".to_owned())),
        Err(reason) => (Err(reason), Err("it cannot be known without the state store".to_owned())),
    };
    let checks = vec![check("state_store", store), check("leader", leader)];
    Readiness { ready: checks.iter().all(|check| check.ok), checks }
}
