//! What a process tells of itself over HTTP: `/metrics`, `/healthz`, `/readyz` and `/stats`.
//!
//! It is no reason not to do the process's work: where it cannot be had, that is logged, and all else goes on.

use std::net::SocketAddr;

use forebay_config::{Loaded, Origin as Source};
use forebay_metrics::{MetricsServer, Readiness, Site, WebError, routes, serve};
use tracing::{info, warn};

use crate::node::{Node, hostname_or};
use crate::{assembly, metrics};

/// The server, and what it says of the process's readiness.
pub(crate) struct Web {
    server: MetricsServer,
    readiness: Readiness,
    /// Where others reach it.
    pub(crate) advertised: String,
}

impl Web {
    /// That of a worker.
    pub(crate) async fn of_worker(loaded: &Loaded, node: &Node) -> Option<Self> {
        let config = &loaded.config;
        let ip = match &config.worker_web_bind_device {
            Some(interface) => assembly::address_of_interface(interface),
            None => Ok(node.addresses().next()?.ip()),
        };
        let address = ip.map(|ip| SocketAddr::new(ip, config.worker_web_port));
        let may_move = loaded.origin("worker.web.port") == Source::Default;
        let measured = node.measured();
        let host = config.worker_hostname.as_ref();
        let readiness = Readiness::new();
        let site = metrics::site(readiness.clone(), move || measured.report());
        Self::start(address, may_move, readiness, site, hostname_or(host)).await
    }

    /// That of a mount that reports `report`.
    pub(crate) async fn of_mount(
        loaded: &Loaded,
        report: impl Fn() -> serde_json::Value + Send + Sync + 'static,
    ) -> Option<Self> {
        let config = &loaded.config;
        let (host, port) = (&config.client_web_bind_host, config.client_web_port);
        let address = assembly::address_of_host("client.web.bind.host", host, port);
        let may_move = loaded.origin("client.web.port") == Source::Default;
        let readiness = Readiness::new();
        let site = metrics::site(readiness.clone(), report);
        Self::start(address, may_move, readiness, site, hostname_or(None)).await
    }

    /// `may_move`: to a free port, if that of `address` is taken.
    async fn start(
        address: anyhow::Result<SocketAddr>,
        may_move: bool,
        readiness: Readiness,
        site: Site,
        host: anyhow::Result<String>,
    ) -> Option<Self> {
        let started = async {
            let (address, host) = (address?, host?);
            let pages = routes(site);
            let server = match serve(address, pages.clone()).await {
                Err(WebError::Listen { error, .. }) if may_move && error.kind() == std::io::ErrorKind::AddrInUse => {
                    serve(SocketAddr::new(address.ip(), 0), pages).await?
                }
                server => server?,
            };
            let bound = server.local_addr();
            let advertised = match bound.ip().is_unspecified() {
                true if host.contains(':') => format!("[{host}]:{}", bound.port()),
                true => format!("{host}:{}", bound.port()),
                false => bound.to_string(),
            };
            info!(address = %bound, "serving /metrics, /healthz, /readyz and /stats");
            anyhow::Ok(Self { server, readiness, advertised })
        };
        match started.await {
            Ok(web) => Some(web),
            Err(error) => {
                warn!(error = format!("{error:#}"), "there are no metrics of this process");
                None
            }
        }
    }

    /// `what` is missing from now on: `/readyz` says so.
    pub(crate) fn missing(&self, what: &str, reason: &str) {
        self.readiness.missing(what, reason);
    }

    /// Ends it.
    pub(crate) async fn close(self) {
        self.server.close().await;
    }
}
