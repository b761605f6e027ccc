//! What a fuzzer feeds to the REST interface: requests as they are after HTTP's own reading, which is the library's; and index files of
//! jobs.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use bytes::Bytes;
use forebay_cluster::records::mounts::{MOUNTS, MountRecord};
use forebay_cluster::records::policies::{POLICIES, PolicyRecord};
use forebay_locks::Mutex;
use forebay_state::StateStore;
use forebay_types::FsPath;
use serde_json::Value;
use tokio::sync::watch;
use tower_service::Service as _;

use crate::fake::FakeCache;
use crate::jobs::{Line, Lines};
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

/// An index file of a job says `text`, and is read in pieces of these sizes, over and over. A coordinator goes on behind one of its lines.
///
/// # Panics
/// When it has other lines in pieces than as a whole, or from there on; when a line is another path than it says, or what is said of one is
/// more than a line.
pub fn index_file(index: &FsPath, text: &[u8], sizes: &[usize], behind: usize) {
    let whole = index_lines(index, text, &[], 0);
    assert_eq!(index_lines(index, text, sizes, 0), whole);
    if let Some(line) = whole.get(behind) {
        assert_eq!(index_lines(index, text, sizes, line.end), whole[behind + 1..]);
    }
    let mut before = 0;
    for line in &whole {
        assert!(line.end > before && line.end <= text.len() as u64);
        before = line.end;
        let read = &text[..line.end as usize];
        assert!(read.ends_with(b"\n") || read.len() == text.len());
        let read = read.strip_suffix(b"\n").unwrap_or(read);
        let start = read.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let said = &read[start..];
        let said = said.strip_suffix(b"\r").unwrap_or(said);
        assert!(!said.is_empty() && !said.starts_with(b"#"));
        match &line.path {
            Ok(path) if said.starts_with(b"/") => assert_eq!(FsPath::new(said).as_ref(), Ok(path)),
            Ok(path) => {
                let names = said.strip_suffix(b"/").unwrap_or(said);
                assert_eq!(path.relative_to(&index.parent()), Some(names));
            }
            Err((at, failure)) => {
                assert!(at == index && !failure.message().contains(char::is_control), "{failure:?}");
            }
        }
    }
}

/// The lines from byte `from` on.
fn index_lines(index: &FsPath, text: &[u8], sizes: &[usize], from: u64) -> Vec<Line> {
    let mut lines = Lines::new(index, text.len() as u64, from);
    let (mut found, mut sizes) = (Vec::new(), sizes.iter().cycle());
    loop {
        while let Some(line) = lines.next() {
            found.push(line);
        }
        let Some(at) = lines.wants() else { return found };
        let rest = text.get(at as usize..).unwrap_or_default();
        let size = sizes.next().map_or(rest.len(), |size| (*size).clamp(1, rest.len()));
        lines.give(Bytes::copy_from_slice(&rest[..size]));
    }
}
