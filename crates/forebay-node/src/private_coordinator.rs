//! The coordinator of a node that stands alone: at a Unix socket of its user, and, with a web page, at a port of the loopback interface
//! for who has the page's token.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use forebay_client::Client;
use forebay_config::{Config, Loaded};
use tracing::warn;

use crate::audit::AuditLog;
use crate::cluster::Cluster;
use crate::coordinating::{Coordinating, Known, Listening};
use crate::page::{Page, PageToken};
use crate::state::PrivateSockets;

/// How long a standalone node waits for its coordinator. No other coordinator competes with it, so it leads when the
/// state's files are written.
const LEADS_WITHIN: Duration = Duration::from_secs(10);

/// Where the coordinator of a standalone node is for its user alone.
pub(crate) struct Private<'a> {
    pub(crate) sockets: Option<&'a PrivateSockets>,
    pub(crate) page: Page,
    pub(crate) token: Option<&'a PageToken>,
    pub(crate) audit: Option<&'a AuditLog>,
}

impl Private<'_> {
    /// That coordinator. A node without is one, too, unless its web page was asked for.
    pub(crate) async fn coordinator(
        &self,
        loaded: &Loaded,
        cluster: &Cluster,
        client: &Client,
        known: Known,
    ) -> anyhow::Result<Option<Coordinating>> {
        let mut started = None;
        for port in self.ports(&loaded.config) {
            let listening = self.listening(port);
            let tried =
                Coordinating::start(loaded, cluster, client.clone(), known.clone(), listening, self.audit).await;
            if started.insert(tried).is_ok() {
                break;
            }
        }
        // Made only where it is needed: for its backtrace an error takes a lock, which a forked child may find locked for ever.
        match started.unwrap_or_else(|| Err(anyhow::anyhow!("there is no port to try"))) {
            Ok(coordinating) => {
                if tokio::time::timeout(LEADS_WITHIN, coordinating.leads()).await.is_err() {
                    let within = LEADS_WITHIN;
                    warn!(?within, "the coordinator does not lead yet: `forebay job` waits until it does");
                }
                Ok(Some(coordinating))
            }
            Err(error) if self.page != Page::None => Err(error.context("the web page cannot be served")),
            Err(error) => {
                warn!(error = format!("{error:#}"), "there is no coordinator: `forebay job` does not work");
                Ok(None)
            }
        }
    }

    /// The ports to try, if it is to have one.
    fn ports(&self, config: &Config) -> Vec<u16> {
        match self.page {
            // None is listened at, whatever its number.
            Page::None => vec![0],
            Page::Port(port) => vec![port],
            Page::AnyPort => vec![config.coordinator_port, 0],
        }
    }

    fn listening(&self, port: u16) -> Listening {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Listening::ForOwner {
            socket: self.sockets.map(|sockets| sockets.coordinator.clone()),
            web: self.token.map(|token| (address, token.clone())),
        }
    }
}
