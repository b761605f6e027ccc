//! What a fuzzer feeds to the REST interface: requests as they are after HTTP's own reading, which is the library's.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use bytes::Bytes;
use forebay_cluster::records::mounts::{MOUNTS, MountRecord};
use forebay_cluster::records::policies::{POLICIES, PolicyRecord};
use forebay_locks::Mutex;
use forebay_state::StateStore;
use serde_json::Value;
use tokio::sync::watch;
use tower_service::Service as _;

use crate::fake::FakeCache;
use crate::leader::PlainConnector;
use crate::service::{ClusterView, Service};
use crate::{api, series::Series};

/// The longest answer that is looked at.
const LONGEST: usize = 4 << 20;

/// A coordinator that does not lead, without a network.
pub struct Rest {
    router: Router,
    store: Arc<dyn StateStore>,
}

struct Nobody;

#[async_trait::async_trait]
impl ClusterView for Nobody {
    async fn status(&self) -> Value {
        serde_json::json!({ "members": [], "warnings": [] })
    }
}

impl Rest {
    /// One of a cluster whose state is in `store`.
    #[must_use]
    pub fn new(store: Arc<dyn StateStore>) -> Self {
        let service = Service {
            name: "fuzzed".to_owned(),
            version: "0".to_owned(),
            store: Arc::clone(&store),
            cache: Arc::new(FakeCache::new(4 << 20)),
            view: Arc::new(Nobody),
            mount_check: None,
            mounts: Vec::new(),
            connector: Arc::new(PlainConnector::default()),
            runner: watch::Sender::default(),
            series: Mutex::new(Series::default()),
            stats: Mutex::default(),
        };
        Self { router: api::router(Arc::new(service)), store }
    }

    /// What a request is answered with: a status, and a body. `None` for what HTTP would not have let through.
    pub async fn ask(&self, method: &str, uri: &str, content_type: &str, body: &[u8]) -> Option<(u16, Bytes)> {
        let request = Request::builder().method(method).uri(uri).header("content-type", content_type);
        let request = request.body(Body::from(Bytes::copy_from_slice(body))).ok()?;
        let response = match self.router.clone().call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let status = response.status().as_u16();
        Some((status, to_bytes(response.into_body(), LONGEST).await.ok()?))
    }

    /// Looks at what was stored.
    ///
    /// # Panics
    /// When something was that no reader would take.
    pub async fn check(&self) {
        let stored = |prefix: &'static str| async move {
            self.store.list(prefix).await.map(|found| found.entries).unwrap_or_default()
        };
        for entry in stored(MOUNTS).await {
            assert!(MountRecord::decode(&entry.value).is_ok(), "{entry:?}");
        }
        for entry in stored(POLICIES).await {
            assert!(PolicyRecord::decode(&entry.value).is_ok(), "{entry:?}");
        }
    }
}
