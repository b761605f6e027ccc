//! What all kinds of objects have in common: they are watched, gone over in rounds, and say how they stand.
//!
//! A round asks the coordinator once for what there is, then takes one object after the other. An object gets a
//! finalizer before anything is done for it, so that it cannot go before what it has brought about. What a coordinator
//! refuses, or that it cannot be reached, is the state of the object; only the API server's errors are logged. What a
//! state says that the one before did not is told as an Event, once the state is written.

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
use kube::{Client, Resource as _, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::events::Events;
use super::pace::{AFTER_FAILURE, MAX_PAUSE, Pace};
use crate::claim::Claim;
use crate::condition::{Condition, Verdict};
use crate::counts::{Counts, KindCounts, Outcome};
use crate::event::{self, Notice};
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
    async fn apply(at: &At<'_, Self>) -> Result<Applied<Self::Status>, ApiError>;

    /// Takes away what goes with the object.
    async fn forget(at: &At<'_, Self>) -> Result<(), ApiError>;

    /// The state of an object of which this is what is new.
    fn status(object: &Of<Self>, verdict: Verdict, now: SystemTime) -> Self::Status;

    /// The conditions of a state.
    fn conditions(status: &Self::Status) -> &[Condition];

    /// What is being done for an object in this state, in a word: with another word something else has begun.
    fn action(status: &Self::Status) -> &str;

    /// What is counted of the kind.
    fn counts(all: &Counts) -> &KindCounts;
}

/// What is around all kinds.
#[derive(Clone, Copy)]
pub(super) struct Around<'a> {
    pub(super) client: &'a Client,
    pub(super) namespace: &'a str,
    pub(super) coordinator: &'a ApiClient,
    pub(super) readiness: &'a Readiness,
    pub(super) events: &'a Events,
    pub(super) counts: &'a Counts,
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
pub(super) enum Applied<S> {
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

/// Watches the objects of a kind in a namespace, and brings them about. Never ends.
pub(super) async fn keep<K: Kind>(around: Around<'_>) {
    let Around { client, namespace, readiness, .. } = around;
    let resource = K::resource();
    let plural = resource.plural.clone();
    let api = Api::<Of<K>>::namespaced_with(client.clone(), namespace, &resource);
    let writer = Writer::new(resource.clone());
    let store = writer.as_reader();
    let events = watcher(api.clone(), watcher::Config::default()).default_backoff().reflect(writer);
    let mut events = pin!(events);
    let keeper = Keeper::<K> { api, resource, around };
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
                Some(Err(error)) => {
                    warn!(plural, %error, "they cannot be watched; trying again");
                    around.counts.kubernetes_failed();
                }
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
    around: Around<'a>,
}

/// What came of dealing with an object, and after how long to do so again.
#[derive(Clone, Copy)]
struct Dealt {
    outcome: Outcome,
    again: Duration,
}

impl<K: Kind> Keeper<'_, K> {
    /// Goes over all objects. After how long to do so again.
    async fn round(&self, store: &Store<Of<K>>) -> Duration {
        let (objects, counts) = (store.state(), K::counts(self.around.counts));
        if objects.is_empty() {
            counts.are(0, 0);
            return MAX_PAUSE;
        }
        let seen = K::look(self.around.coordinator).await;
        if let Err(error) = &seen {
            self.around.counts.coordinator_failed(error);
        }
        let mut again = if seen.is_ok() { MAX_PAUSE } else { AFTER_FAILURE };
        let mut unready = 0;
        for object in &objects {
            let is_other =
                |other: &&Arc<Of<K>>| !Arc::ptr_eq(other, object) && other.metadata.deletion_timestamp.is_none();
            let others: Vec<_> = objects.iter().filter(is_other).cloned().collect();
            let began = Instant::now();
            let dealt = self.reconcile(object, &others, &seen).await.unwrap_or_else(|error| {
                let (kind, name) = (&self.resource.kind, object.name_any());
                warn!(kind, name, error = told(&error), "it could not be dealt with; trying again");
                if is_of_kubernetes(&error) {
                    self.around.counts.kubernetes_failed();
                }
                Dealt { outcome: Outcome::Failed, again: AFTER_FAILURE }
            });
            counts.reconciled(dealt.outcome, began.elapsed());
            unready += usize::from(dealt.outcome != Outcome::Done);
            again = again.min(dealt.again);
        }
        counts.are(objects.len(), unready);
        again
    }

    /// Deals with one object.
    async fn reconcile(
        &self,
        object: &Arc<Of<K>>,
        others: &[Arc<Of<K>>],
        seen: &Result<K::Seen, ApiError>,
    ) -> Result<Dealt, finalizer::Error<ObjectError>> {
        let dealt = Cell::new(Dealt { outcome: Outcome::Done, again: MAX_PAUSE });
        let result = &dealt;
        let name = format!("{GROUP}/{MANAGER}");
        finalizer(&self.api, &name, Arc::clone(object), |event| async move {
            match event {
                Event::Apply(object) => result.set(self.apply(&object, others, seen).await?),
                Event::Cleanup(object) => self.forget(&object, others, seen).await?,
            }
            Ok::<_, ObjectError>(Action::await_change())
        })
        .await?;
        Ok(dealt.get())
    }

    async fn apply(
        &self,
        object: &Of<K>,
        others: &[Arc<Of<K>>],
        seen: &Result<K::Seen, ApiError>,
    ) -> Result<Dealt, ObjectError> {
        let now = SystemTime::now();
        let applied = match seen {
            Ok(seen) => {
                let at = At { coordinator: self.around.coordinator, object, others, seen, now };
                let applied = K::apply(&at).await;
                applied.map_err(|error| {
                    self.around.counts.coordinator_failed(&error);
                    Trouble::of(&error)
                })
            }
            Err(error) => Err(Trouble::of(error)),
        };
        let (status, again) = match applied {
            Ok(Applied::Status(status, again)) => (status, again),
            Ok(Applied::Keep(again)) => return Ok(Dealt { outcome: outcome::<K>(object.status.as_ref()), again }),
            Ok(Applied::Expired) => {
                info!(kind = self.resource.kind, name = object.name_any(), "its time is over: deleting it");
                self.api.delete(&object.name_any(), &DeleteParams::default()).await?;
                return Ok(Dealt { outcome: Outcome::Done, again: MAX_PAUSE });
            }
            Err(Trouble { verdict, outcome }) => {
                self.tell(object, &K::status(object, verdict, now)).await?;
                return Ok(Dealt { outcome, again: AFTER_FAILURE });
            }
        };
        self.tell(object, &status).await?;
        Ok(Dealt { outcome: outcome::<K>(Some(&status)), again })
    }

    async fn forget(
        &self,
        object: &Of<K>,
        others: &[Arc<Of<K>>],
        seen: &Result<K::Seen, ApiError>,
    ) -> Result<(), ObjectError> {
        let (coordinator, now) = (self.around.coordinator, SystemTime::now());
        match seen {
            Ok(seen) => {
                let forgotten = K::forget(&At { coordinator, object, others, seen, now }).await;
                Ok(forgotten.inspect_err(|error| self.around.counts.coordinator_failed(error))?)
            }
            Err(error) => {
                // Whoever waits for the object to go sees why it does not.
                self.tell(object, &K::status(object, Trouble::of(error).verdict, now)).await?;
                Err(ObjectError::CannotLook(error.to_string()))
            }
        }
    }

    /// Writes how an object stands, if that is not what it says already, and tells what is new in it.
    async fn tell(&self, object: &Of<K>, status: &K::Status) -> Result<(), kube::Error> {
        let earlier = object.status.as_ref();
        if earlier == Some(status) {
            return Ok(());
        }
        let ApiResource { api_version, kind, .. } = &self.resource;
        let patch = json!({ "apiVersion": api_version, "kind": kind, "status": status });
        let params = PatchParams::apply(MANAGER).force();
        self.api.patch_status(&object.name_any(), &params, &Patch::Apply(&patch)).await?;
        let about = object.object_ref(&self.resource);
        for notice in notices::<K>(earlier, status) {
            self.around.events.tell(&about, notice).await;
        }
        Ok(())
    }
}

/// What a coordinator's error is to an object.
struct Trouble {
    verdict: Verdict,
    outcome: Outcome,
}

impl Trouble {
    fn of(error: &ApiError) -> Self {
        let (reason, outcome) =
            if error.is_unavailable() { ("Unreachable", Outcome::Failed) } else { ("Refused", Outcome::Refused) };
        Self { verdict: Verdict::no(reason, error.to_string()), outcome }
    }
}

/// What came of an object that stands so.
fn outcome<K: Kind>(status: Option<&K::Status>) -> Outcome {
    let is_amiss = status.is_some_and(|status| event::is_amiss(K::conditions(status)));
    if is_amiss { Outcome::Refused } else { Outcome::Done }
}

/// What is new in a state.
fn notices<K: Kind>(earlier: Option<&K::Status>, now: &K::Status) -> Vec<Notice> {
    let action = K::action(now);
    let is_another = earlier.is_some_and(|earlier| K::action(earlier) != action);
    event::of_conditions(earlier.map_or(&[][..], K::conditions), K::conditions(now), action, is_another)
}

/// Whether it was the API server that did not do what it was asked for.
fn is_of_kubernetes(error: &finalizer::Error<ObjectError>) -> bool {
    match error {
        finalizer::Error::ApplyFailed(error) | finalizer::Error::CleanupFailed(error) => {
            matches!(error, ObjectError::Kubernetes(_))
        }
        _ => true,
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
