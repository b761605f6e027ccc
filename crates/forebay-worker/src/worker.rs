//! The requests.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use forebay_engine::{EngineOptions, FetchPolicy, ReadEngine};
use forebay_memory::Spans;
use forebay_origin::Origin;
use forebay_store::Store;
use forebay_transport::message::{CoverageReply, ListRequest, PathsReply};
use forebay_transport::{FileSlice, Flags, Op, Provenance, Request, Response, ResponsePayload, Service};
use forebay_types::{BlockLayout, Failure, FailureKind, FileVersion, FsPath};
use tracing::warn;

use crate::metadata::{Metadata, MetadataOptions};
use crate::namespace::Namespace;
use crate::source::Origins;
use crate::stats::{Counters, WorkerCounts};
use crate::versions::Versions;

/// How a worker behaves.
#[derive(Clone, Copy, Debug)]
pub struct WorkerOptions {
    /// Bytes in a block; the same in the whole cluster.
    pub block_size: u32,
    /// The shape of requests to the origin.
    pub fetch: FetchPolicy,
    /// How long a read may wait for the origin.
    pub deadline: Duration,
    /// How metadata is cached.
    pub metadata: MetadataOptions,
}

/// A cache node.
pub struct Worker {
    engine: ReadEngine,
    namespace: Namespace,
    metadata: Metadata,
    versions: Versions,
    block_size: u32,
    counters: Counters,
    paths: OnceLock<Offered>,
}

/// The ways to the worker besides TCP.
struct Offered {
    paths: PathsReply,
    report: Box<dyn Fn() -> serde_json::Value + Send + Sync>,
}

impl Worker {
    /// A worker that caches `namespace` in `store`.
    #[must_use]
    pub fn new(store: Store, namespace: Namespace, options: WorkerOptions) -> Self {
        let source = Arc::new(Origins(namespace.clone()));
        let engine_options = EngineOptions { policy: options.fetch, deadline: options.deadline };
        Self {
            engine: ReadEngine::new(store, source, engine_options),
            metadata: Metadata::new(namespace.clone(), options.metadata),
            namespace,
            versions: Versions::new(),
            block_size: options.block_size,
            counters: Counters::default(),
            paths: OnceLock::new(),
        }
    }

    /// Tells clients from now on how they reach this worker besides TCP, and shows what `report` counts of it among the
    /// worker's counters. Once; later calls have no effect.
    pub fn offer_paths(&self, paths: PathsReply, report: impl Fn() -> serde_json::Value + Send + Sync + 'static) {
        let _ = self.paths.set(Offered { paths, report: Box::new(report) });
    }

    /// The worker's block store.
    #[must_use]
    pub fn store(&self) -> &Store {
        self.engine.store()
    }

    /// The worker's counters.
    #[must_use]
    pub fn counts(&self) -> WorkerCounts {
        self.counters.snapshot(self.engine.fetches())
    }

    /// Stops the fetches and waits until they have ended. Close the servers first, the store after.
    pub async fn close(&self) {
        self.engine.close().await;
    }

    /// The description of the version that a request is about: attached, or known from an earlier one.
    fn version_of(&self, request: &Request) -> Result<Arc<FileVersion>, Failure> {
        let id = request.block.file;
        if request.body.is_empty() {
            return self.versions.get(id).ok_or_else(|| {
                Failure::new(FailureKind::NeedsDescription, format!("this worker does not know file version {id}"))
            });
        }
        self.versions.learn(id, &request.body)
    }

    async fn read(&self, request: &Request, takes_files: bool) -> Result<Response, Failure> {
        let Request { block, offset, length, .. } = *request;
        if length == 0 {
            return Err(Failure::new(FailureKind::InvalidArgument, "a read of no bytes"));
        }
        if takes_files && let Some(slice) = self.store().disk_slice(&block, offset, length).await {
            let sums = slice.sums.as_ref().filter(|_| request.flags.contains(Flags::SUMS));
            let body = sums.map_or_else(Bytes::new, |sums| sums.as_bytes().clone());
            let file = FileSlice { file: Arc::clone(&slice.file), offset: slice.offset, length, pin: Box::new(slice) };
            let provenance = Provenance { disk: length, ..Provenance::default() };
            return Ok(Response { provenance, body, payload: ResponsePayload::File(file) });
        }
        let version = match self.version_of(request) {
            Ok(version) => version,
            // What is cached is served without a description: after a restart, the first readers of a warm disk.
            Err(unknown) if unknown.kind() == FailureKind::NeedsDescription => {
                let stored = self.store().read(&block, offset, length).await.map_err(Failure::from)?;
                let stored = stored.ok_or(unknown)?;
                let provenance =
                    Provenance { memory: stored.from_memory, disk: stored.from_disk, ..Provenance::default() };
                return Ok(Response::of_spans(stored.spans, provenance));
            }
            Err(refused) => return Err(refused),
        };
        let layout = BlockLayout::new(version.size, self.block_size);
        let read = self.engine.read(&version, block, layout, offset, length).await;
        let read = self.noticing_change(&version, request, read).await?;
        let provenance = Provenance { memory: read.from_memory, disk: read.from_disk, origin: read.from_source };
        // What was fetched just now is in memory, with its sums.
        Ok(self.summed(request, provenance).unwrap_or_else(|| Response::of_spans(read.spans, provenance)))
    }

    /// Bytes in memory that the caller will check, with their sums.
    fn summed(&self, request: &Request, provenance: Provenance) -> Option<Response> {
        if !request.flags.contains(Flags::SUMS) {
            return None;
        }
        let (span, sums) = self.store().try_read_summed(&request.block, request.offset, request.length)?;
        let payload = ResponsePayload::Spans(Spans::from_iter([span]));
        Some(Response { provenance, body: sums.as_bytes().clone(), payload })
    }

    async fn fill(&self, request: &Request) -> Result<Response, Failure> {
        let version = self.version_of(request)?;
        let layout = BlockLayout::new(version.size, self.block_size);
        let fill = self.engine.fill(&version, request.block, layout, request.offset, request.length).await;
        let origin = self.noticing_change(&version, request, fill).await?;
        let provenance = Provenance { origin, ..Provenance::default() };
        Ok(Response { provenance, body: Bytes::new(), payload: ResponsePayload::None })
    }

    /// When an object turns out to have changed, nothing that is remembered about it is to be believed any more.
    async fn noticing_change<T>(
        &self,
        version: &FileVersion,
        request: &Request,
        result: Result<T, Failure>,
    ) -> Result<T, Failure> {
        if let Err(failure) = &result
            && failure.kind() == FailureKind::VersionChanged
        {
            self.versions.forget(request.block.file);
            self.metadata.forget(self.namespace.paths_of(&version.origin, &version.path)).await;
        }
        result
    }

    fn coverage(&self, request: &Request) -> Response {
        let coverage = self.store().coverage(&request.block);
        Response::of_body(CoverageReply { memory: coverage.memory, disk: coverage.disk }.encode())
    }

    fn offered_paths(&self) -> PathsReply {
        self.paths.get().map(|offered| offered.paths.clone()).unwrap_or_default()
    }

    fn stats(&self) -> Response {
        let origin = |(at, origin): (&FsPath, &Arc<dyn Origin>)| serde_json::json!({ "path": at.to_string(), "url": &**origin.url(), "counts": origin.counts() });
        let stats = serde_json::json!({
            "worker": self.counts(),
            "store": self.store().stats(),
            "origins": self.namespace.origins().map(origin).collect::<Vec<_>>(),
            "rdma": self.paths.get().map(|offered| (offered.report)()),
        });
        Response::of_body(stats.to_string().into())
    }

    async fn answer(&self, request: &Request, takes_files: bool) -> Result<Response, Failure> {
        match request.op {
            Op::Ping => Ok(Response::of_body(Bytes::new())),
            Op::Read => self.read(request, takes_files).await,
            Op::Fill => self.fill(request).await,
            Op::Stat => {
                let revalidate = request.flags.contains(Flags::REVALIDATE);
                let reply = self.metadata.stat(&path_of(&request.body)?, revalidate).await?;
                Ok(Response::of_body(reply.encode()))
            }
            Op::List => {
                let ListRequest { path, token, max } = ListRequest::decode(&request.body)?;
                let reply = self.metadata.list(&path_of(&path)?, token, max).await?;
                Ok(Response::of_body(reply.encode()))
            }
            Op::Coverage => Ok(self.coverage(request)),
            Op::Stats => Ok(self.stats()),
            Op::Paths => Ok(Response::of_body(self.offered_paths().encode())),
        }
    }
}

#[async_trait::async_trait]
impl Service for Worker {
    fn try_handle(&self, request: &Request) -> Option<Response> {
        if request.op != Op::Read || request.length == 0 {
            return None;
        }
        if request.flags.contains(Flags::SCRUB) {
            self.store().scrub(&request.block);
        }
        let provenance = Provenance { memory: request.length, ..Provenance::default() };
        let checked = || {
            let spans = self.engine.try_read(&request.block, request.offset, request.length)?;
            Some(Response::of_spans(spans, provenance))
        };
        let response = self.summed(request, provenance).or_else(checked)?;
        self.counters.asked(Op::Read);
        self.counters.served(provenance);
        Some(response)
    }

    async fn handle(&self, request: Request, takes_files: bool) -> Result<Response, Failure> {
        let answer = self.answer(&request, takes_files).await;
        match &answer {
            Ok(response) => {
                self.counters.asked(request.op);
                self.counters.served(response.provenance);
            }
            // An ordinary part of the protocol, followed by the same request with the description.
            Err(failure) if failure.kind() == FailureKind::NeedsDescription => {}
            Err(failure) => {
                self.counters.asked(request.op);
                self.counters.failed();
                if failure.kind().is_transient() {
                    warn!(op = ?request.op, block = %request.block, %failure, "request failed");
                }
            }
        }
        answer
    }
}

fn path_of(bytes: &[u8]) -> Result<FsPath, Failure> {
    FsPath::new(bytes).map_err(|error| {
        let kind = match error {
            forebay_types::PathError::NameTooLong(_) => FailureKind::NameTooLong,
            _ => FailureKind::InvalidArgument,
        };
        Failure::new(kind, error.to_string())
    })
}
