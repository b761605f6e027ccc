//! From the name of a server to a connection: names, addresses, TLS.
//!
//! It does what the origin's other HTTP client does: the addresses of a name are tried in an order of chance, the next one when the last
//! one fails or is slow (RFC 8305), certificates are judged by the platform's verifier, and what a record of the cluster named goes
//! through `guard.rs`.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use object_store::client::{HttpError, HttpErrorKind};
use rand::seq::SliceRandom as _;
use rustls::ClientConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::super::guard::GuardedResolver;
use super::connection::{Connection, Duplex};
use super::pool::Target;

/// What is read of a socket below TLS at a time: rustls by itself asks for 4 KiB.
const BELOW_TLS: usize = 64 << 10;
/// How long an address may take before the next one is tried beside it (RFC 8305, section 5).
const NEXT_AFTER: Duration = Duration::from_millis(250);

/// How connections are made.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Whether `http://` is allowed.
    pub(crate) plain: bool,
    /// Whether `https://` is needed.
    pub(crate) tls: bool,
    /// Looks names up where a record chose them.
    pub(crate) resolver: Option<GuardedResolver>,
    /// The longest that it may take.
    pub(crate) connect_timeout: Duration,
    /// The longest silence of the server.
    pub(crate) silence: Duration,
    /// Connections that may wait for the next request.
    pub(crate) idle_connections: usize,
}

/// Makes connections.
pub(super) struct Connector {
    settings: Settings,
    tls: Option<TlsConnector>,
}

impl Connector {
    /// # Errors
    /// When this machine has no certificates to judge servers by.
    pub(super) fn new(settings: Settings) -> Result<Self, rustls::Error> {
        let tls = settings.tls.then(tls_config).transpose()?;
        Ok(Self { settings, tls: tls.map(|config| TlsConnector::from(Arc::new(config))) })
    }

    /// The same with other ideas of which servers to trust.
    #[cfg(test)]
    pub(super) fn trusting(settings: Settings, config: ClientConfig) -> Self {
        Self { settings, tls: Some(TlsConnector::from(Arc::new(config))) }
    }

    /// How many connections may wait for the next request.
    pub(super) fn idle_connections(&self) -> usize {
        self.settings.idle_connections
    }

    /// Whether it connects to that.
    pub(super) fn may_reach(&self, target: &Target) -> bool {
        if target.is_tls { self.tls.is_some() } else { self.settings.plain }
    }

    /// A new connection.
    pub(super) async fn connect(&self, target: &Target) -> Result<Connection, HttpError> {
        let longest = self.settings.connect_timeout;
        match tokio::time::timeout(longest, self.stream(target)).await {
            Ok(Ok(stream)) => Ok(Connection::new(stream, self.settings.silence)),
            Ok(Err(error)) => {
                let is_late = error.kind() == io::ErrorKind::TimedOut;
                Err(HttpError::new(if is_late { HttpErrorKind::Timeout } else { HttpErrorKind::Connect }, error))
            }
            Err(_) => {
                let error = io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {longest:?}"));
                Err(HttpError::new(HttpErrorKind::Timeout, error))
            }
        }
    }

    async fn stream(&self, target: &Target) -> io::Result<Box<dyn Duplex>> {
        let tcp = self.tcp(target).await?;
        // A request is one small write, and its answer is waited for.
        tcp.set_nodelay(true)?;
        if !target.is_tls {
            return Ok(Box::new(tcp));
        }
        // `may_reach` has seen to that. Never in plain text instead.
        let tls = self.tls.as_ref().ok_or_else(|| io::Error::other("https is not set up"))?;
        let name = ServerName::try_from(target.host.clone()).map_err(io::Error::other)?;
        Ok(Box::new(tls.connect(name, BufReader::with_capacity(BELOW_TLS, tcp)).await?))
    }

    /// Connects to the first address that answers.
    async fn tcp(&self, target: &Target) -> io::Result<TcpStream> {
        let mut waiting = self.addresses(target).await?.into_iter();
        let mut under_way = FuturesUnordered::new();
        let mut failed = io::Error::new(io::ErrorKind::NotFound, format!("`{}` has no address", target.host));
        loop {
            under_way.extend(waiting.next().map(TcpStream::connect));
            let ended = if waiting.as_slice().is_empty() {
                under_way.next().await
            } else {
                match tokio::time::timeout(NEXT_AFTER, under_way.next()).await {
                    Ok(ended) => ended,
                    Err(_) => continue,
                }
            };
            match ended {
                Some(Ok(stream)) => return Ok(stream),
                Some(Err(error)) => failed = error,
                None => return Err(failed),
            }
        }
    }

    async fn addresses(&self, target: &Target) -> io::Result<Vec<SocketAddr>> {
        // An address in the URL was looked at when the origin was opened.
        if let Ok(address) = target.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, target.port)]);
        }
        let mut found = match self.settings.resolver {
            Some(resolver) => resolver.lookup(&target.host).await?,
            None => tokio::net::lookup_host((target.host.as_str(), target.port)).await?.collect(),
        };
        found.iter_mut().for_each(|address| address.set_port(target.port));
        // Each connection begins with another server, where there are several.
        found.shuffle(&mut rand::rng());
        Ok(found)
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// What the origin's other HTTP client takes: the provider of the process, TLS 1.2 and 1.3, the platform's certificates, HTTP/1.1.
fn tls_config() -> Result<ClientConfig, rustls::Error> {
    let provider = CryptoProvider::get_default().cloned();
    let provider = provider.unwrap_or_else(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = config.with_platform_verifier()?.with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
