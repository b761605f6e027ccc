//! A worker's service, with a clock: how long requests from other processes take, by what they ask for, and what else of the
//! process belongs into a worker's report.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use forebay_fuse::ReportSource;
use forebay_locks::Mutex;
use forebay_metrics::{LatencyHistogram, ProcessStats};
use forebay_one_sided::Location;
use forebay_state::EtcdCertificates;
use forebay_tcp::{CloseReason, TcpServer, ZeroCopyCounts};
use forebay_transport::{Caller, Flags, Op, Request, Response, Service};
use forebay_types::{BlockKey, Failure, FileId};
use futures::FutureExt as _;
use serde_json::{Map, Value, json};

use crate::audit::AuditLog;
use crate::cluster;
use crate::security::Security;
use crate::window::Windows;

/// How long a question for the counters may take; it is answered at once.
const AT_ONCE: Duration = Duration::from_secs(1);

/// What is told apart, and what it is called.
const OPERATIONS: [(Op, &str); 10] = [
    (Op::Read, "read"),
    (Op::Fill, "fill"),
    (Op::Stat, "stat"),
    (Op::StatRead, "stat_read"),
    (Op::List, "list"),
    (Op::Free, "free"),
    (Op::Adopt, "adopt"),
    (Op::Change, "change"),
    (Op::Upload, "upload"),
    (Op::Refresh, "refresh"),
];

/// Measures what goes to `service`.
pub(crate) struct Measured {
    service: Arc<dyn Service>,
    latency: [LatencyHistogram; OPERATIONS.len()],
    /// Of each server over TCP.
    servers: Mutex<Vec<Server>>,
    /// They ask it, and are gone before it is.
    windows: Mutex<Weak<Windows>>,
    /// Of the cluster's etcd, if it is in one.
    certificates: Mutex<Option<Arc<EtcdCertificates>>>,
    /// What it proves to clients, if it does.
    security: Option<Arc<Security>>,
    /// What the S3 endpoint of its process counts, if that has one.
    s3: Mutex<Option<Counts>>,
    /// How many events its audit log has lost, if it has one.
    audit_lost: Option<Box<dyn Fn() -> u64 + Send + Sync>>,
}

/// Tells what something counts.
pub(crate) type Counts = Box<dyn Fn() -> Value + Send + Sync>;

/// What a server over TCP counts.
struct Server {
    connections: Box<dyn Fn() -> usize + Send + Sync>,
    unauthenticated: Box<dyn Fn() -> usize + Send + Sync>,
    zero_copy: Box<dyn Fn() -> ZeroCopyCounts + Send + Sync>,
    closed: Box<dyn Fn() -> [(CloseReason, u64); CloseReason::ALL.len()] + Send + Sync>,
    upload_memory: Box<dyn Fn() -> usize + Send + Sync>,
}

impl Measured {
    /// Of nothing yet.
    pub(crate) fn new(
        service: Arc<dyn Service>,
        security: Option<Arc<Security>>,
        audit: Option<&AuditLog>,
    ) -> Arc<Self> {
        let latency = std::array::from_fn(|_| LatencyHistogram::new());
        let (servers, windows, certificates) = (Mutex::default(), Mutex::default(), Mutex::default());
        let s3 = Mutex::default();
        let audit_lost = audit.map(|audit| Box::new(audit.lost_count()) as Box<dyn Fn() -> u64 + Send + Sync>);
        Arc::new(Self { service, latency, servers, windows, certificates, security, s3, audit_lost })
    }

    /// Counts in what `server` counts, too.
    pub(crate) fn served_by(&self, server: &TcpServer) {
        self.servers.lock().push(Server {
            connections: Box::new(server.connection_gauge()),
            unauthenticated: Box::new(server.unauthenticated_gauge()),
            zero_copy: Box::new(server.zero_copy_counts()),
            closed: Box::new(server.closed_counts()),
            upload_memory: Box::new(server.body_memory_gauge()),
        });
    }

    /// Reports on `windows`, too.
    pub(crate) fn seen_through(&self, windows: &Arc<Windows>) {
        *self.windows.lock() = Arc::downgrade(windows);
    }

    /// Reports what becomes of the certificate files for etcd, too.
    pub(crate) fn with_certificates(&self, certificates: &Arc<EtcdCertificates>) {
        *self.certificates.lock() = Some(Arc::clone(certificates));
    }

    /// Reports what the S3 endpoint of this process counts, too.
    pub(crate) fn serving_s3(&self, counts: Counts) {
        *self.s3.lock() = Some(counts);
    }

    /// What the worker counts, and this process: for pages of counters, which name no file.
    pub(crate) fn report(&self) -> Value {
        let block = BlockKey { file: FileId([0; 16]), index: 0 };
        // A worker answers this from its counters, without waiting.
        let answer = self.service.handle(Request::on_block(Op::Stats, block, 0, 0, AT_ONCE), false).now_or_never();
        let report = answer.and_then(Result::ok).and_then(|response| serde_json::from_slice(&response.body).ok());
        let mut report: Value = report.unwrap_or_default();
        if let Some(counters) = report.as_object_mut() {
            counters.remove("hottest");
        }
        self.with_process(report)
    }

    /// The same as a part of the report of a mount in this process.
    pub(crate) fn source(self: Arc<Self>) -> ReportSource {
        ReportSource::new(move || {
            let mut node = self.report();
            let process = node["process"].take();
            json!({ "process": process, "node": node })
        })
    }

    fn with_process(&self, mut report: Value) -> Value {
        let latencies =
            OPERATIONS.iter().zip(&self.latency).map(|((_, name), latency)| ((*name).to_owned(), json!(latency)));
        if !report.is_object() {
            report = json!({});
        }
        report["requests"] = latencies.collect::<Map<_, _>>().into();
        let servers = self.servers.lock();
        report["connections"] = json!(servers.iter().map(|server| (server.connections)()).sum::<usize>());
        let windows = self.windows.lock().upgrade();
        let unauthenticated = servers.iter().map(|server| (server.unauthenticated)()).sum::<usize>();
        let of_windows = windows.as_ref().map_or(0, |windows| windows.unauthenticated());
        report["unauthenticated_connections"] = json!(unauthenticated + of_windows);
        report["upload_memory"] = json!(servers.iter().map(|server| (server.upload_memory)()).sum::<usize>());
        let mut closed = BTreeMap::from(CloseReason::ALL.map(|reason| (reason.name(), 0_u64)));
        for (reason, count) in servers.iter().flat_map(|server| (server.closed)()) {
            *closed.entry(reason.name()).or_default() += count;
        }
        report["closed_connections"] = json!(closed);
        let zero_copy: Vec<_> = servers.iter().map(|server| (server.zero_copy)()).collect();
        drop(servers);
        let sum = |count: fn(&ZeroCopyCounts) -> u64| zero_copy.iter().map(count).sum::<u64>();
        report["zero_copy"] =
            json!({ "bytes": sum(|of| of.bytes), "copied": sum(|of| of.copied), "lost_bytes": sum(|of| of.lost) });
        report["window"] = json!(windows.map(|windows| windows.report()));
        report["security"] = json!(self.security.as_deref().map(Security::report));
        report["audit"] = json!(self.audit_lost.as_ref().map(|lost| json!({ "lost": lost() })));
        report["etcd"] = json!(self.certificates.lock().as_deref().map(cluster::report_certificates));
        report["s3"] = json!(self.s3.lock().as_ref().map(|counts| counts()));
        report["process"] = json!(ProcessStats::now());
        report["version"] = json!(env!("CARGO_PKG_VERSION"));
        report
    }

    fn answered(&self, op: Op, since: Instant) {
        if let Some(at) = OPERATIONS.iter().position(|(known, _)| *known == op) {
            self.latency[at].record(since.elapsed());
        }
    }
}

#[async_trait::async_trait]
impl Service for Measured {
    fn shows_all(&self, caller: &Caller) -> bool {
        self.service.shows_all(caller)
    }

    fn shown_number(&self) -> u64 {
        self.service.shown_number()
    }

    fn locate(&self, request: &Request) -> Option<Location> {
        self.service.locate(request)
    }

    fn try_handle(&self, request: &Request) -> Option<Response> {
        let began = Instant::now();
        let response = self.service.try_handle(request)?;
        self.answered(request.op, began);
        Some(response)
    }

    async fn handle(&self, request: Request, takes_files: bool) -> Result<Response, Failure> {
        let (op, began) = (request.op, Instant::now());
        // Those who ask for the room of origins may not see the counters.
        let is_report = op == Op::Stats && !request.flags.contains(Flags::BELOW);
        let answer = self.service.handle(request, takes_files).await;
        self.answered(op, began);
        match answer {
            Ok(response) if is_report => {
                let report = serde_json::from_slice(&response.body).unwrap_or_default();
                Ok(Response::of_body(self.with_process(report).to_string().into()))
            }
            answer => answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Report;

    struct Counters;

    #[async_trait::async_trait]
    impl Service for Counters {
        fn try_handle(&self, request: &Request) -> Option<Response> {
            (request.op == Op::Read).then(|| Response::of_body(Default::default()))
        }

        async fn handle(&self, _request: Request, _takes_files: bool) -> Result<Response, Failure> {
            Ok(Response::of_body(r#"{"worker":{"bytes_disk":7},"hottest":[{"path":"/s3/merger"}]}"#.into()))
        }
    }

    #[tokio::test]
    async fn a_workers_report_has_its_latencies_and_its_process() {
        let measured = Measured::new(Arc::new(Counters), None, None);
        let request = |op| Request::on_path(op, Default::default(), AT_ONCE);
        assert!(measured.try_handle(&request(Op::Read)).is_some() && measured.try_handle(&request(Op::Stat)).is_none());
        measured.handle(request(Op::Stat), false).await.unwrap();
        let asked = measured.handle(request(Op::Stats), false).await.unwrap();
        for report in [serde_json::from_slice(&asked.body).unwrap(), measured.report()] {
            let report = Report::of(&report).unwrap();
            assert_eq!(report.requests.iter().filter(|(_, latency)| latency.count() == 1).count(), 2);
            assert_eq!((report.worker.unwrap().bytes_disk, report.connections), (7, Some(0)));
            assert!(report.process.unwrap().resident_bytes > 0);
        }
        // Whoever may scrape sees pages of counters, and not which files are read.
        assert!(String::from_utf8_lossy(&asked.body).contains("merger"));
        assert!(!measured.report().to_string().contains("merger"));
    }

    #[tokio::test]
    async fn who_asks_for_room_alone_is_told_nothing_of_the_process() {
        let measured = Measured::new(Arc::new(Counters), None, None);
        let request = Request::on_path(Op::Stats, Default::default(), AT_ONCE);
        let told = measured.handle(request.clone().with_flags(Flags::BELOW), false).await.unwrap().body;
        assert_eq!(told, Counters.handle(request, false).await.unwrap().body);
    }
}
