//! What all kinds of objects have in common: they are watched, gone over in rounds, and say how they stand.
//!
//! A round asks the coordinator once for what there is, then takes one object after the other. An object gets a
//! finalizer before anything is done for it, so that it cannot go before what it has brought about. What a coordinator
//! refuses, or that it cannot be reached, is the state of the object; only the API server's errors are logged.

use std::cell::Cell;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay_coordinator::{ApiClient, ApiError};
use forebay_metrics::Readiness;
use futures::StreamExt as _;
use kube::api::{Api, ApiResource, DeleteParams, Object, Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::finalizer::{self, Event, finalizer};
use kube::runtime::reflector::Store;
use kube::runtime::reflector::store::Writer;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::pace::{AFTER_FAILURE, MAX_PAUSE, Pace};
use crate::claim::Claim;
use crate::condition::Verdict;
use crate::resources::{GROUP, MANAGER};

/// Objects of a kind.
pub(super) type Of<K> = Object<<K as Kind>::Spec, <K as Kind>::Status>;

/// A kind of objects that the operator brings about.
pub(super) trait Kind: Sized + 'static {
    type Spec: Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static;
    type Status: Clone + Debug + Default + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static;
    /// What the coordinator says of all of them.
    type Seen;

    /// How the API server calls them.
    fn resource() -> ApiResource;

    /// Asks the coordinator what there is.
    async fn look(coordinator: &ApiClient) -> Result<Self::Seen, ApiError>;

    /// Brings about what the object says.
    async fn apply(at: &At<'_, Self>) -> Result<Told<Self::Status>, ApiError>;

    /// Takes away what goes with the object.
    async fn forget(at: &At<'_, Self>) -> Result<(), ApiError>;

    /// The state of an object of which this is what is new.
    fn status(object: &Of<Self>, verdict: Verdict, now: SystemTime) -> Self::Status;
}

/// One object, and what is around it.
pub(super) struct At<'a, K: Kind> {
    pub(super) coordinator: &'a ApiClient,
    pub(super) object: &'a Of<K>,
    /// The others that are not about to go.
    pub(super) others: &'a [Arc<Of<K>>],
    pub(super) seen: &'a K::Seen,
    pub(super) now: SystemTime,
}

/// How an object stands now.
pub(super) enum Told<S> {
    /// So, and it is to be looked at again after this time.
    Status(S, Duration),
    /// As before, and it is to be looked at again after this time.
    Keep(Duration),
    /// Its time is over.
    Expired,
}

impl<'a, K: Kind> At<'a, K> {
    /// The paths that this object and the others want.
    pub(super) fn claims(&self, path: impl Fn(&'a K::Spec) -> &'a str) -> (Claim<'a>, Vec<Claim<'a>>) {
        let others = self.others.iter().map(|other| Claim::new(&other.metadata, path(&other.spec)));
        (Claim::new(&self.object.metadata, path(&self.object.spec)), others.collect())
    }
}

/// Why an object could not be dealt with.
#[derive(Debug, thiserror::Error)]
pub(super) enum ObjectError {
    #[error(transparent)]
    Coordinator(#[from] ApiError),
    #[error("{0}")]
    CannotLook(String),
    #[error("the API server: {0}")]
    Kubernetes(#[from] kube::Error),
}

/// What a coordinator's error is to an object.
fn verdict(error: &ApiError) -> Verdict {
    let reason = if error.is_unavailable() { "Unreachable" } else { "Refused" };
    Verdict::no(reason, error.to_string())
}

/// Watches the objects of a kind in a namespace, and brings them about. Never ends.
pub(super) async fn keep<K: Kind>(client: &Client, namespace: &str, coordinator: &ApiClient, readiness: &Readiness) {
    let resource = K::resource();
    let plural = resource.plural.clone();
    let api = Api::<Of<K>>::namespaced_with(client.clone(), namespace, &resource);
    let writer = Writer::new(resource.clone());
    let store = writer.as_reader();
    let events = watcher(api.clone(), watcher::Config::default()).default_backoff().reflect(writer);
    let mut events = pin!(events);
    let keeper = Keeper::<K> { api, resource, coordinator };
    let mut pace = Pace::new(Instant::now());
    let mut is_listed = false;
    readiness.missing(&plural, "not listed yet");
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(event)) => {
                    if matches!(event, watcher::Event::InitDone) {
                        is_listed = true;
                        readiness.there(&plural);
                    }
                    pace.changed(Instant::now());
                }
                Some(Err(error)) => warn!(plural, %error, "they cannot be watched; trying again"),
                // A watch begins again whatever happens, and has no end.
                None => return,
            },
            () = sleep_until(pace.due()), if is_listed => {
                let again = keeper.round(&store).await;
                pace.ended(Instant::now(), again);
            }
        }
    }
}

struct Keeper<'a, K: Kind> {
    api: Api<Of<K>>,
    resource: ApiResource,
    coordinator: &'a ApiClient,
}

impl<K: Kind> Keeper<'_, K> {
    /// Goes over all objects. After how long to do so again.
    async fn round(&self, store: &Store<Of<K>>) -> Duration {
        let objects = store.state();
        if objects.is_empty() {
            return MAX_PAUSE;
        }
        let seen = K::look(self.coordinator).await;
        let mut again = if seen.is_ok() { MAX_PAUSE } else { AFTER_FAILURE };
        for object in &objects {
            let is_other =
                |other: &&Arc<Of<K>>| !Arc::ptr_eq(other, object) && other.metadata.deletion_timestamp.is_none();
            let others: Vec<_> = objects.iter().filter(is_other).cloned().collect();
            let wish = self.reconcile(object, &others, &seen).await.unwrap_or_else(|error| {
                let (kind, name) = (&self.resource.kind, object.name_any());
                warn!(kind, name, error = told(&error), "it could not be dealt with; trying again");
                AFTER_FAILURE
            });
            again = again.min(wish);
        }
        again
    }

    /// Deals with one object. After how long to do so again.
    async fn reconcile(
        &self,
        object: &Arc<Of<K>>,
        others: &[Arc<Of<K>>],
        seen: &Result<K::Seen, ApiError>,
    ) -> Result<Duration, finalizer::Error<ObjectError>> {
        let wish = Cell::new(MAX_PAUSE);
        let again = &wish;
        let name = format!("{GROUP}/{MANAGER}");
        finalizer(&self.api, &name, Arc::clone(object), |event| async move {
            match event {
                Event::Apply(object) => again.set(self.apply(&object, others, seen).await?),
                Event::Cleanup(object) => self.forget(&object, others, seen).await?,
            }
            Ok::<_, ObjectError>(Action::await_change())
        })
        .await?;
        Ok(wish.get())
    }

    async fn apply(
        &self,
        object: &Of<K>,
        others: &[Arc<Of<K>>],
        seen: &Result<K::Seen, ApiError>,
    ) -> Result<Duration, ObjectError> {
        let now = SystemTime::now();
        let applied = match seen {
            Ok(seen) => {
                let at = At { coordinator: self.coordinator, object, others, seen, now };
                K::apply(&at).await.map_err(|error| verdict(&error))
            }
            Err(error) => Err(verdict(error)),
        };
        let (status, again) = match applied {
            Ok(Told::Status(status, again)) => (status, again),
            Ok(Told::Keep(again)) => return Ok(again),
            Ok(Told::Expired) => {
                info!(kind = self.resource.kind, name = object.name_any(), "its time is over: deleting it");
                self.api.delete(&object.name_any(), &DeleteParams::default()).await?;
                return Ok(MAX_PAUSE);
            }
            Err(verdict) => (K::status(object, verdict, now), AFTER_FAILURE),
        };
        if object.status.as_ref() != Some(&status) {
            self.tell(&object.name_any(), &status).await?;
        }
        Ok(again)
    }

    async fn forget(
        &self,
        object: &Of<K>,
        others: &[Arc<Of<K>>],
        seen: &Result<K::Seen, ApiError>,
    ) -> Result<(), ObjectError> {
        let now = SystemTime::now();
        match seen {
            Ok(seen) => Ok(K::forget(&At { coordinator: self.coordinator, object, others, seen, now }).await?),
            Err(error) => {
                // Whoever waits for the object to go sees why it does not.
                self.tell(&object.name_any(), &K::status(object, verdict(error), now)).await?;
                Err(ObjectError::CannotLook(error.to_string()))
            }
        }
    }

    async fn tell(&self, name: &str, status: &K::Status) -> Result<(), kube::Error> {
        let ApiResource { api_version, kind, .. } = &self.resource;
        let patch = json!({ "apiVersion": api_version, "kind": kind, "status": status });
        let params = PatchParams::apply(MANAGER).force();
        self.api.patch_status(name, &params, &Patch::Apply(&patch)).await?;
        Ok(())
    }
}

/// An error with its causes: those of the finalizer say only which step failed.
fn told(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    causes.fold(error.to_string(), |told, cause| {
        let cause = cause.to_string();
        if told.contains(&cause) { told } else { format!("{told}: {cause}") }
    })
}
