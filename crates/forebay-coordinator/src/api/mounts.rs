//! `/api/v1/mounts`: written into the state store, where every process of the cluster sees it.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use forebay_cluster::records::mounts::{LAST_ADDED, MOUNTS, MountRecord};
use forebay_metrics::About;
use forebay_state::{Condition, Entry, Transaction, encode_segment};
use forebay_types::Subject;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::extract::{Body, Params, RequestBody, path_of};
use super::fault::{ErrorBody, Fault};
use crate::mount::Mount;
use crate::service::Service;

/// How often it is tried anew when others add mounts at the same time.
const MAX_TRIES: usize = 10;

// A body that is malformed may have a credential in the wrong place.
impl RequestBody for Mount {
    const MAY_BE_TOLD: bool = false;
}

/// The mounts, in the order of their paths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MountList {
    /// Those that the cluster agreed on.
    pub mounts: Vec<Mount>,
    /// Those that processes have by themselves, as this coordinator knows them: of its configuration, or of the `forebay up` that
    /// it is part of. They cannot be removed here.
    #[serde(default)]
    pub configured: Vec<Mount>,
}

/// Which path.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct AtPath {
    /// A path of the namespace.
    pub(super) path: String,
}

/// Mount an origin
///
/// Seen by all processes within moments. Mounting the same again is no error, and with another access list it gets that
/// one.
#[utoipa::path(
    post, path = "/mounts", tag = "mounts", operation_id = "add_mount", request_body = Mount,
    responses(
        (status = CREATED, body = Mount),
        (status = OK, body = Mount, description = "it was mounted already, and has this access list now"),
        (status = BAD_REQUEST, body = ErrorBody),
        (status = CONFLICT, body = ErrorBody, description = "another is mounted there, or this one with other options"),
        (status = SERVICE_UNAVAILABLE, body = ErrorBody),
    )
)]
pub(crate) async fn add(
    State(service): State<Arc<Service>>,
    about: About,
    Body(mount): Body<Mount>,
) -> Result<(StatusCode, Json<Mount>), Fault> {
    let path = path_of(&mount.path)?;
    let Mount { origin, options, acl, .. } = mount;
    let record = MountRecord { path: path.to_string(), origin, options, acl: acl.map(Into::into) };
    record.check().map_err(|problem| Fault::invalid(problem, "correct the mount"))?;
    note(&about, &record);
    let key = MountRecord::key(&encode_segment(path.as_bytes()));
    for _ in 0..MAX_TRIES {
        // Before the list: a mount that is added after this is noticed.
        let last_added = service.store().get(LAST_ADDED).await?;
        let entries = service.store().list(MOUNTS).await?.entries;
        let others = decoded(&entries);
        if let Some(known) = entries.iter().find(|entry| entry.key == key) {
            if is_there(known, &record)? {
                return Ok((StatusCode::OK, Json(record.into())));
            }
            about.note(|subject| subject.change = Some("access-list"));
            let write = Transaction::new().if_unchanged(&key, known.revision).put(&key, record.encode());
            if service.store().commit(write).await?.revision().is_some() {
                return Ok((StatusCode::OK, Json(record.into())));
            }
            continue;
        }
        if let Some(other) = others.iter().find(|other| other.contradicts(&record)) {
            return Err(contradicted(other));
        }
        service.check_mount(&record, &others).map_err(|message| Fault::invalid(message, "correct the mount"))?;
        let nobody_else = match last_added {
            Some(entry) => Condition::Unchanged(LAST_ADDED.to_owned(), entry.revision),
            None => Condition::Absent(LAST_ADDED.to_owned()),
        };
        let write = Transaction::new().when(nobody_else).if_absent(&key);
        let write = write.put(&key, record.encode()).put(LAST_ADDED, record.path.clone());
        if service.store().commit(write).await?.revision().is_some() {
            return Ok((StatusCode::CREATED, Json(record.into())));
        }
    }
    Err(Fault::conflict("others add mounts at this moment", "try again"))
}

/// List mounts
#[utoipa::path(
    get, path = "/mounts", tag = "mounts", operation_id = "list_mounts",
    responses((status = OK, body = MountList), (status = SERVICE_UNAVAILABLE, body = ErrorBody))
)]
pub(crate) async fn list(State(service): State<Arc<Service>>) -> Result<Json<MountList>, Fault> {
    let mounts = records(&service).await?.into_iter().map(Mount::from).collect();
    Ok(Json(MountList { mounts, configured: service.mounts.clone() }))
}

/// Remove a mount
///
/// The origin keeps everything; what is cached of it can be read no more, and goes as it ages.
#[utoipa::path(
    delete, path = "/mounts", tag = "mounts", operation_id = "remove_mount", params(AtPath),
    responses(
        (status = NO_CONTENT),
        (status = NOT_FOUND, body = ErrorBody),
        (status = CONFLICT, body = ErrorBody, description = "it is one of the configuration"),
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
    let key = MountRecord::key(&encode_segment(path.as_bytes()));
    if about.is_recorded()
        && let Some(known) = service.store().get(&key).await?
        && let Ok(known) = MountRecord::decode(&known.value)
    {
        note(&about, &known);
    }
    let write = Transaction::new().if_present(&key).delete(&key);
    match service.store().commit(write).await?.revision() {
        Some(_) => Ok(StatusCode::NO_CONTENT),
        None if service.mounts.iter().any(|mount| mount.path == path.to_string()) => {
            let message = format!("{path} is a mount of the configuration");
            Err(Fault::conflict(message, "take it out of `mounts` there, or unmount the `forebay up` that shows it"))
        }
        None => Err(Fault::not_found(format!("nothing is mounted at {path}"), "list the mounts")),
    }
}

/// What a request is about that adds or removes `record`, which was checked: its URL holds no credentials. Its options may refer to
/// some, and are left out.
fn note(about: &About, record: &MountRecord) {
    about.note(|subject| {
        *subject = Subject { origin: Some(record.origin.clone()), ..Subject::of_path(record.path.as_bytes()) };
    });
}

/// Whether `record` is what is stored; `false`: it is but for its access list.
///
/// # Errors
/// When something else is mounted there, or the list would be taken away by somebody who does not mention it.
fn is_there(known: &Entry, record: &MountRecord) -> Result<bool, Fault> {
    match MountRecord::decode(&known.value) {
        Ok(known) if known == *record => Ok(true),
        Ok(known) if !known.shows_as(record) => Err(taken(&record.path)),
        Ok(_) if record.acl.is_some() => Ok(false),
        Ok(_) => {
            let message = format!("the mount {} has an access list", record.path);
            Err(Fault::conflict(message, "give it the list that it is to have, or remove it first to open it to all"))
        }
        Err(_) => Err(taken(&record.path)),
    }
}

fn contradicted(other: &MountRecord) -> Fault {
    let MountRecord { path, origin, .. } = other;
    let message = format!("{origin} is mounted at {path} with other options, and cached bytes go by the URL alone");
    let remedy = format!("give it the options of {path}, or remove the mount at {path} first");
    Fault::conflict(message, &remedy)
}

fn taken(path: &str) -> Fault {
    let message = format!("something else is mounted at {path}");
    Fault::conflict(message, "remove it first, or mount at another path")
}

async fn records(service: &Service) -> Result<Vec<MountRecord>, Fault> {
    let mut records = decoded(&service.store().list(MOUNTS).await?.entries);
    records.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(records)
}

fn decoded(entries: &[Entry]) -> Vec<MountRecord> {
    let decode = |entry: &Entry| match MountRecord::decode(&entry.value) {
        Ok(record) => Some(record),
        Err(reason) => {
            tracing::warn!(key = entry.key, reason, "a mount's record cannot be used");
            None
        }
    };
    entries.iter().filter_map(decode).collect()
}
