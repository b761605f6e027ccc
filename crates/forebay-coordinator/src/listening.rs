//! Where a coordinator listens: at a port, or for one user of this machine.

use std::net::SocketAddr;
use std::path::PathBuf;

use axum::Router;
use forebay_metrics::{HostNames, HttpLimits, HttpListener, HttpServer, Token, demanding};
use forebay_private::{PrivateError, PrivateListener, socket_address};
use tokio::net::TcpListener;

use crate::web;

/// Why a coordinator did not start.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address} ({source}): stop what listens there, or set another `coordinator` address")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
    /// The Unix socket cannot be listened on.
    #[error(transparent)]
    Private(#[from] PrivateError),
}

/// Where a coordinator listens.
#[derive(Clone, Debug)]
pub enum Listen {
    /// At this address, for all who reach it.
    Address(SocketAddr),
    /// For the user of this process alone.
    Private {
        /// A Unix socket that this user and root may connect to.
        socket: Option<PathBuf>,
        /// An address for a browser, and the token that its requests have to bring.
        web: Option<(SocketAddr, Token)>,
    },
}

impl From<SocketAddr> for Listen {
    fn from(address: SocketAddr) -> Self {
        Self::Address(address)
    }
}

/// What a coordinator listens on.
pub(crate) struct Listeners {
    /// The address, if there is one.
    pub(crate) address: Option<SocketAddr>,
    /// The Unix socket, if there is one.
    pub(crate) socket: Option<PathBuf>,
    all: Vec<(HttpListener, Option<Token>)>,
}

impl Listeners {
    /// Listens.
    pub(crate) async fn bind(listen: &Listen) -> Result<Self, CoordinatorError> {
        let mut listeners = Self { address: None, socket: None, all: Vec::new() };
        match listen {
            Listen::Address(address) => listeners.bind_address(*address, None).await?,
            Listen::Private { socket, web } => {
                if let Some((address, token)) = web {
                    listeners.bind_address(*address, Some(token.clone())).await?;
                }
                if let Some(path) = socket {
                    listeners.all.push((PrivateListener::bind(path)?.into(), None));
                    listeners.socket = Some(path.clone());
                }
            }
        }
        Ok(listeners)
    }

    async fn bind_address(&mut self, address: SocketAddr, token: Option<Token>) -> Result<(), CoordinatorError> {
        let cannot_listen = |source| CoordinatorError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(cannot_listen)?;
        self.address = Some(listener.local_addr().map_err(cannot_listen)?);
        self.all.push((listener.into(), token));
        Ok(())
    }

    /// Where a client of this machine reaches it. Without a listener, nobody does.
    pub(crate) fn reached_at(&self) -> String {
        match (&self.socket, self.address) {
            (Some(path), _) => socket_address(path),
            (None, Some(address)) => address.to_string(),
            (None, None) => String::new(),
        }
    }

    /// Serves `pages`.
    pub(crate) fn serve(self, pages: &Router, hosts: &HostNames, limits: HttpLimits) -> Vec<HttpServer> {
        let serve = |(listener, token): (HttpListener, Option<Token>)| {
            let pages = match token {
                Some(token) => demanding(pages.clone(), token, web::paths()),
                None => pages.clone(),
            };
            HttpServer::start(listener, pages, hosts.clone(), limits)
        };
        self.all.into_iter().map(serve).collect()
    }
}
