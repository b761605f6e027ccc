//! Where a coordinator listens: at a port, or for one user of this machine.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use axum::Router;
use forebay_identity::Auditing;
use forebay_metrics::{Access, HostNames, HttpLimits, HttpListener, HttpServer};
use forebay_private::{PrivateError, PrivateListener, socket_address};
use tokio::net::TcpListener;

use crate::api::{OPERATIONS, subject_of_url};

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

/// Where a coordinator listens: at an address, at a socket, or at both.
#[derive(Clone, Debug)]
pub struct Listen {
    /// An address. What those who come there may ask for, [`CoordinatorOptions`](crate::CoordinatorOptions) says.
    pub address: Option<SocketAddr>,
    /// A Unix socket. The kernel says who connects: this user and root, who may ask for everything.
    pub socket: Option<PathBuf>,
}

impl From<SocketAddr> for Listen {
    fn from(address: SocketAddr) -> Self {
        Self { address: Some(address), socket: None }
    }
}

/// What a coordinator listens on.
pub(crate) struct Listeners {
    at_address: Option<(TcpListener, SocketAddr)>,
    at_socket: Option<PrivateListener>,
}

impl Listeners {
    /// Listens.
    pub(crate) async fn bind(listen: &Listen) -> Result<Self, CoordinatorError> {
        let at_address = match listen.address {
            Some(address) => Some(bound(address).await?),
            None => None,
        };
        let at_socket = listen.socket.as_deref().map(PrivateListener::bind).transpose()?;
        Ok(Self { at_address, at_socket })
    }

    /// The address, if there is one.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.at_address.as_ref().map(|(_, address)| *address)
    }

    /// The Unix socket, if there is one.
    pub(crate) fn socket(&self) -> Option<&Path> {
        self.at_socket.as_ref().map(PrivateListener::path)
    }

    /// Where a client of this machine reaches it. Without a listener, nobody does.
    pub(crate) fn reached_at(&self) -> String {
        let address = || self.address().map(|address| address.to_string());
        self.socket().map(socket_address).or_else(address).unwrap_or_default()
    }

    /// Serves `pages`: at the address to those whom `access` allows what they ask for, at the socket to whoever gets there. `audit`:
    /// where that is recorded.
    pub(crate) fn serve(
        self,
        pages: &Router,
        access: &Access,
        audit: Option<&Auditing>,
        hosts: &HostNames,
        limits: HttpLimits,
    ) -> Vec<HttpServer> {
        let serve = |listener: HttpListener, access: Access| {
            let access = access.recorded(audit.cloned()).naming(subject_of_url);
            HttpServer::start(listener, pages.clone(), &OPERATIONS, access, hosts.clone(), limits)
        };
        let at_address = self.at_address.map(|(listener, _)| serve(listener.into(), access.clone()));
        let at_socket = self.at_socket.map(|listener| serve(listener.into(), Access::everybody()));
        at_address.into_iter().chain(at_socket).collect()
    }
}

async fn bound(address: SocketAddr) -> Result<(TcpListener, SocketAddr), CoordinatorError> {
    let cannot_listen = |source| CoordinatorError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(cannot_listen)?;
    let address = listener.local_addr().map_err(cannot_listen)?;
    Ok((listener, address))
}
