//! Coordinators over a real state store and real sockets.
#![allow(dead_code, reason = "each test file uses a part of this")]

use std::sync::Arc;
use std::time::Duration;

use forebay_coordinator::fake::FakeCache;
use forebay_coordinator::jobs::{JobReport, JobSpec, LoadSpec};
use forebay_coordinator::{ApiClient, ApiError, ClusterView, Coordinator, CoordinatorOptions};
use forebay_state::{FileOptions, FileStore};
use forebay_types::FsPath;
use serde_json::{Value, json};

pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

pub(crate) struct View;

#[async_trait::async_trait]
impl ClusterView for View {
    async fn status(&self) -> Value {
        json!({ "members": [{ "name": "w1", "state": "active", "share": 1.0 }], "warnings": ["<b>w2</b> is away"] })
    }
}

pub(crate) struct Cluster {
    pub(crate) store: Arc<FileStore>,
    pub(crate) cache: Arc<FakeCache>,
    _directory: tempfile::TempDir,
}

impl Cluster {
    pub(crate) async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(FileStore::open(directory.path(), FileOptions::default()).await.unwrap());
        let cache = Arc::new(FakeCache::new(4 << 20));
        for number in 0..20u64 {
            cache.put(&format!("/s3/f{number:02}"), 1000 * number, 0);
        }
        Self { store, cache, _directory: directory }
    }

    pub(crate) async fn coordinator(&self, name: &str) -> (Coordinator, ApiClient) {
        let loopback: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
        let coordinator = self.start(CoordinatorOptions::new(name, loopback, "9.9.9")).await;
        let client = ApiClient::new(&coordinator.address().unwrap().to_string()).unwrap();
        (coordinator, client)
    }

    pub(crate) async fn start(&self, mut options: CoordinatorOptions) -> Coordinator {
        options.mount_check = Some(Arc::new(|mount, _| match mount.origin.starts_with("s3://") {
            true => Ok(()),
            false => Err("no origin has this scheme".to_owned()),
        }));
        let (store, cache) = (Arc::clone(&self.store), Arc::clone(&self.cache));
        Coordinator::start(options, store, cache, Arc::new(View)).await.unwrap()
    }
}

pub(crate) async fn leads(coordinator: &Coordinator) {
    until(|| async { coordinator.is_leading().then_some(()) }).await;
}

pub(crate) async fn until<T, F: Future<Output = Option<T>>>(condition: impl Fn() -> F) -> T {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(found) = condition().await {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "it does not happen");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub(crate) async fn end(client: &ApiClient, id: &str) -> JobReport {
    until(|| async { Some(client.job(id).await.unwrap()).filter(|job| job.state.is_final()) }).await
}

pub(crate) fn path(text: &str) -> FsPath {
    FsPath::new(text).unwrap()
}

pub(crate) fn load() -> JobSpec {
    JobSpec::Load(LoadSpec::new(path("/s3")))
}

pub(crate) fn refusal(error: ApiError) -> (u16, String, String) {
    match error {
        ApiError::Refused { status, code, message, remedy } => {
            assert!(!remedy.is_empty());
            (status, code, message)
        }
        other => panic!("{other:?}"),
    }
}

/// The status and the body of a bare request.
pub(crate) async fn bare(
    coordinator: &Coordinator,
    method: &str,
    at: &str,
    body: Option<(&str, Vec<u8>)>,
) -> (u16, String) {
    let method: reqwest::Method = method.parse().unwrap();
    let http = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let mut request = http.request(method, format!("http://{}{at}", coordinator.address().unwrap())).timeout(PATIENCE);
    if let Some((media_type, body)) = body {
        request = request.header("content-type", media_type).body(body);
    }
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}
