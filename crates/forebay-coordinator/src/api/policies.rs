//! `/api/v1/policies`: how what lies below a path is cached.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use forebay_cluster::records::policies::{POLICIES, PolicyRecord};
use forebay_metrics::About;
use forebay_state::{Transaction, encode_segment};
use forebay_types::Subject;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::extract::{Body, Params, RequestBody, path_of};
use super::fault::{ErrorBody, Fault};
use super::mounts::AtPath;
use crate::service::Service;

/// What is wished for below a path. What is left out is decided by the policy of the next shorter path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// A path of the namespace.
    #[schema(example = "/s3/models")]
    pub path: String,
    /// How long attributes and listings are believed.
    #[schema(example = "5m")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata_ttl: Option<String>,
    /// Cached blocks stay until they are freed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pin: Option<bool>,
    /// Whose blocks are evicted first: `low`, `normal`, `high`.
    #[schema(example = "high")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<String>,
    /// Most bytes that each worker caches of it.
    #[schema(example = "100GiB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<String>,
    /// Bytes are served from the origin and never kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip_cache: Option<bool>,
    /// What is there never changes: the origin is not asked again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub immutable: Option<bool>,
    /// How many workers hold each block, 1 to 16.
    #[schema(minimum = 1, maximum = 16)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u8>,
}

impl RequestBody for Policy {}

/// The policies, in the order of their paths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyList {
    /// The policies.
    pub policies: Vec<Policy>,
}

impl From<PolicyRecord> for Policy {
    fn from(record: PolicyRecord) -> Self {
        let PolicyRecord { path, metadata_ttl, pin, priority, quota, skip_cache, immutable, replicas } = record;
        Self { path, metadata_ttl, pin, priority, quota, skip_cache, immutable, replicas }
    }
}

impl From<Policy> for PolicyRecord {
    fn from(policy: Policy) -> Self {
        let Policy { path, metadata_ttl, pin, priority, quota, skip_cache, immutable, replicas } = policy;
        Self { path, metadata_ttl, pin, priority, quota, skip_cache, immutable, replicas }
    }
}

/// Set the policy of a path
///
/// It replaces the one that the path had.
#[utoipa::path(
    put, path = "/policies", tag = "policies", operation_id = "set_policy", request_body = Policy,
    responses(
        (status = OK, body = Policy),
        (status = BAD_REQUEST, body = ErrorBody),
        (status = SERVICE_UNAVAILABLE, body = ErrorBody),
    )
)]
pub(crate) async fn set(
    State(service): State<Arc<Service>>,
    about: About,
    Body(policy): Body<Policy>,
) -> Result<Json<Policy>, Fault> {
    let checked = PolicyRecord::from(policy).policy();
    let (path, policy) = checked.map_err(|message| Fault::invalid(message, "correct this field"))?;
    about.note(|subject| *subject = Subject::of_path(path.as_bytes()));
    let record = PolicyRecord::of(&path, &policy);
    let key = PolicyRecord::key(&encode_segment(path.as_bytes()));
    service.store().commit(Transaction::new().put(key, record.encode())).await?;
    Ok(Json(record.into()))
}

/// List policies
#[utoipa::path(
    get, path = "/policies", tag = "policies", operation_id = "list_policies",
    responses((status = OK, body = PolicyList), (status = SERVICE_UNAVAILABLE, body = ErrorBody))
)]
pub(crate) async fn list(State(service): State<Arc<Service>>) -> Result<Json<PolicyList>, Fault> {
    let mut policies: Vec<Policy> = Vec::new();
    for entry in service.store().list(POLICIES).await?.entries {
        match PolicyRecord::decode(&entry.value) {
            Ok(record) => policies.push(record.into()),
            Err(reason) => tracing::warn!(key = entry.key, reason, "a policy's record cannot be used"),
        }
    }
    policies.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(Json(PolicyList { policies }))
}

/// Remove the policy of a path
#[utoipa::path(
    delete, path = "/policies", tag = "policies", operation_id = "remove_policy", params(AtPath),
    responses(
        (status = NO_CONTENT),
        (status = NOT_FOUND, body = ErrorBody),
        (status = SERVICE_UNAVAILABLE, body = ErrorBody),
    )
)]
pub(crate) async fn remove(
    State(service): State<Arc<Service>>,
    about: About,
    Params(AtPath { path }): Params<AtPath>,
) -> Result<StatusCode, Fault> {
    let path = path_of(&path)?;
    about.note(|subject| *subject = Subject::of_path(path.as_bytes()));
    let key = PolicyRecord::key(&encode_segment(path.as_bytes()));
    let write = Transaction::new().if_present(&key).delete(&key);
    match service.store().commit(write).await?.revision() {
        Some(_) => Ok(StatusCode::NO_CONTENT),
        None => Err(Fault::not_found(format!("{path} has no policy of its own"), "list the policies")),
    }
}
