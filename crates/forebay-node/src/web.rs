//! What a process tells of itself over HTTP: `/metrics`, `/healthz`, `/readyz` and `/stats`.
//!
//! It is no reason not to do the process's work: where it cannot be had, that is logged, and all else goes on. (A wrong name of
//! an interface ends the process before: see `binding.rs`.)

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::Context as _;
use forebay_config::{Config, Loaded, Origin as Source};
use forebay_metrics::{MetricsServer, Readiness, Site, WebError, routes, serve};
use tracing::{info, warn};

use crate::http::Terms;
use crate::page::PageToken;
use crate::security::Security;
use crate::worker_node::{WorkerNode, hostname_or};
use crate::{binding, exposure, http, metrics};

/// The servers, and what they say of the process's readiness.
pub(crate) struct Web {
    servers: Vec<MetricsServer>,
    readiness: Readiness,
    /// Who it is, where no other part of the process is that.
    security: Option<Arc<Security>>,
    /// Where others reach it.
    pub(crate) advertised: String,
}

impl Web {
    /// That of a worker.
    pub(crate) async fn of_worker(loaded: &Loaded, node: &WorkerNode) -> Option<Self> {
        let config = &loaded.config;
        let addresses = binding::worker_web_addresses(config, node.addresses().next()?.ip());
        let may_move = loaded.origin("worker.web.port") == Source::Default;
        let measured = node.measured();
        let host = config.worker_hostname.as_ref();
        let readiness = Readiness::new();
        let site = metrics::site(readiness.clone(), move || measured.report());
        let terms = Terms::of(config, node.security()).map_err(Into::into);
        let web = Self::start(addresses, config.worker_web_port, may_move, readiness, site, hostname_or(host), terms);
        Some(web.await?.with_probes(config, "worker.health.port", config.worker_health_port).await)
    }

    /// That of a mount that reports `report`; with a token it is on loopback, for who has that.
    pub(crate) async fn of_mount(
        loaded: &Loaded,
        report: impl Fn() -> serde_json::Value + Send + Sync + 'static,
        token: Option<&PageToken>,
    ) -> Option<Self> {
        let config = &loaded.config;
        let mut security = None;
        let (addresses, terms) = match token {
            Some(token) => (Ok(vec![IpAddr::V4(Ipv4Addr::LOCALHOST)]), Ok(Terms::by_token(config, token))),
            None => {
                let address = binding::mount_web_address(config).map(|address| vec![address.ip()]);
                let terms = Security::of_client(config, true).and_then(|own| {
                    security = own;
                    Ok(Terms::of(config, security.as_deref())?)
                });
                (address, terms)
            }
        };
        let may_move = loaded.origin("client.web.port") == Source::Default;
        let readiness = Readiness::new();
        let site = metrics::site(readiness.clone(), report);
        let web = Self::start(addresses, config.client_web_port, may_move, readiness, site, hostname_or(None), terms);
        let web = Self { security, ..web.await? };
        Some(web.with_probes(config, "client.health.port", config.client_health_port).await)
    }

    /// `may_move`: to a free port, if `port` is taken.
    async fn start(
        addresses: anyhow::Result<Vec<IpAddr>>,
        mut port: u16,
        may_move: bool,
        readiness: Readiness,
        site: Site,
        host: anyhow::Result<String>,
        terms: anyhow::Result<Terms>,
    ) -> Option<Self> {
        let started = async {
            let (addresses, host, Terms { access, names }) = (addresses?, host?, terms?);
            let (pages, mut servers) = (routes(site), Vec::new());
            for ip in addresses {
                let at = |port| serve(SocketAddr::new(ip, port), pages.clone(), access.clone(), names.clone());
                let server = match at(port).await {
                    Err(WebError::Listen { error, .. })
                        if may_move && error.kind() == std::io::ErrorKind::AddrInUse =>
                    {
                        at(0).await?
                    }
                    server => server?,
                };
                // At the other addresses the port is the same, where it is free.
                port = server.local_addr().port();
                info!(address = %server.local_addr(), "serving /metrics, /healthz, /readyz and /stats");
                servers.push(server);
            }
            let bound =
                servers.first().map(MetricsServer::local_addr).context("there is no address to serve them at")?;
            let advertised = match bound.ip().is_unspecified() {
                true => binding::host_and_port(&host, bound.port()),
                false => bound.to_string(),
            };
            anyhow::Ok(Self { servers, readiness, security: None, advertised })
        };
        match started.await {
            Ok(web) => Some(web),
            Err(error) => {
                warn!(error = format!("{error:#}"), "there are no metrics of this process");
                None
            }
        }
    }

    /// The same, and a listener for probes where `port`, which the setting `key` names, is one.
    async fn with_probes(mut self, config: &Config, key: &str, port: Option<u16>) -> Self {
        let readiness = self.readiness.clone();
        let is_ready = move || std::future::ready(readiness.reasons().is_empty());
        self.servers.extend(http::probes(config, key, port, is_ready).await);
        self
    }

    /// What `/readyz` says is missing.
    pub(crate) fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// `what` is missing from now on: `/readyz` says so.
    pub(crate) fn missing(&self, what: &str, reason: &str) {
        self.readiness.missing(what, reason);
    }

    /// Ends it.
    pub(crate) async fn close(self) {
        futures::future::join_all(self.servers.iter().map(MetricsServer::close)).await;
        if let Some(security) = self.security {
            security.close().await;
        }
    }
}

/// The same pages of an operator of Kubernetes, at an address that somebody has named: there they are served, or it
/// does not start.
pub struct Pages {
    server: MetricsServer,
    /// Who it is, renewed as long as it is here.
    security: Option<Arc<Security>>,
}

impl Pages {
    /// Serves them at `address`, which the flag `--metrics` names, to those who may ask the processes of this cluster,
    /// with the identity of an admin. `report` is what the operator counts. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the address is reached from beyond this machine and `security.mode` is not set, when it cannot be listened
    /// on, or when the process cannot prove who it is though it should.
    pub async fn of_operator(
        loaded: &Loaded,
        address: SocketAddr,
        readiness: Readiness,
        report: impl Fn() -> serde_json::Value + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        exposure::check_operator(loaded, "--metrics", address)?;
        let config = &loaded.config;
        let security = Security::of_client(config, false)?;
        let Terms { access, names } = Terms::of(config, security.as_deref())?;
        let server = serve(address, routes(metrics::site(readiness, report)), access, names).await?;
        info!(address = %server.local_addr(), "serving /metrics, /healthz, /readyz and /stats");
        Ok(Self { server, security })
    }

    /// Where they are.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// Ends it.
    pub async fn close(self) {
        self.server.close().await;
        if let Some(security) = self.security {
            security.close().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_config::Sources;
    use serde_json::json;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    async fn get(address: SocketAddr, host: &str, page: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {page} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn an_operator_shows_what_it_counts_under_its_own_names_alone() {
        let loaded = Config::load(&Sources::new().flags(["security.mode=off"])).unwrap();
        let report = || json!({ "operator": { "leaving": 3, "kinds": { "ForebayLoad": { "objects": 2 } } } });
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let pages = Pages::of_operator(&loaded, loopback, Readiness::new(), report).await.unwrap();
        let at = pages.local_addr();
        let metrics = get(at, "127.0.0.1", "/metrics").await;
        for line in ["forebay_operator_leaving_workers 3.0", "forebay_operator_objects{kind=\"ForebayLoad\"} 2.0"] {
            assert!(metrics.lines().any(|found| found == line), "no `{line}` in\n{metrics}");
        }
        assert!(get(at, "rebound.example", "/metrics").await.starts_with("HTTP/1.1 421"));
        pages.close().await;
        assert!(TcpStream::connect(at).await.is_err());
    }
}
