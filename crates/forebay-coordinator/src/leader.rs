//! The coordinator that leads, as the others know it, and how they reach it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use forebay_identity::reason;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio_rustls::TlsConnector;
use utoipa::ToSchema;

/// The coordinator that leads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaderRecord {
    /// Its name.
    pub name: String,
    /// Where its REST interface is, `HOST:PORT`.
    pub address: String,
}

/// A connection to a coordinator, over which HTTP is spoken.
pub trait LeaderStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> LeaderStream for T {}

/// How a coordinator reaches the one that leads: all that passes from one coordinator to another goes over what this
/// connects.
#[async_trait::async_trait]
pub trait LeaderConnector: Send + Sync + 'static {
    /// A new connection to the coordinator that is recorded as the leader.
    ///
    /// # Errors
    /// When it cannot be reached, or is not the one that it should be. No deadline is kept here.
    async fn connect(&self, leader: &LeaderRecord) -> io::Result<Box<dyn LeaderStream>>;
}

/// Connects over TCP, without encryption.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainConnector {
    source: Option<IpAddr>,
}

impl PlainConnector {
    /// One that connects from the address `source` of this machine, if one is given.
    #[must_use]
    pub fn from_source(source: Option<IpAddr>) -> Self {
        Self { source }
    }

    async fn stream(&self, leader: &LeaderRecord) -> io::Result<TcpStream> {
        let stream = match self.source {
            Some(source) => connect_from(source, &leader.address).await?,
            None => TcpStream::connect(&leader.address).await?,
        };
        // A request is short, and its answer is waited for.
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// Connects over TLS: the one who is reached proves that it is a coordinator, and this one who it is.
#[derive(Clone)]
pub struct SecureConnector {
    plain: PlainConnector,
    tls: TlsConnector,
}

impl SecureConnector {
    /// One that connects as `plain` does, and goes on with those whom `config` takes for coordinators.
    #[must_use]
    pub fn over(plain: PlainConnector, config: ClientConfig) -> Self {
        Self { plain, tls: TlsConnector::from(Arc::new(config)) }
    }
}

#[async_trait::async_trait]
impl LeaderConnector for SecureConnector {
    async fn connect(&self, leader: &LeaderRecord) -> io::Result<Box<dyn LeaderStream>> {
        let stream = self.plain.stream(leader).await?;
        // The name of the host proves nothing, and is not sent.
        let name = ServerName::IpAddress(Ipv4Addr::LOCALHOST.into());
        match self.tls.connect(name, stream).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(described(error)),
        }
    }
}

#[async_trait::async_trait]
impl LeaderConnector for PlainConnector {
    async fn connect(&self, leader: &LeaderRecord) -> io::Result<Box<dyn LeaderStream>> {
        Ok(Box::new(self.stream(leader).await?))
    }
}

/// Why a handshake failed, with who was refused.
fn described(error: io::Error) -> io::Error {
    match error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>()) {
        Some(tls) => io::Error::new(error.kind(), reason(tls)),
        None => error,
    }
}

async fn connect_from(source: IpAddr, address: &str) -> io::Result<TcpStream> {
    let kind = if source.is_ipv4() { "IPv4" } else { "IPv6" };
    let mut failure = io::Error::other(format!("it has no {kind} address, which is what is connected from: {source}"));
    for address in lookup_host(address).await?.filter(|address| address.is_ipv4() == source.is_ipv4()) {
        let socket = if source.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.bind(SocketAddr::new(source, 0))?;
        match socket.connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn the_leader_is_reached_from_the_address_that_is_said_or_it_is_told_why_not() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let leader = LeaderRecord { name: "l".to_owned(), address };
        for (source, seen) in [(None, "127.0.0.1"), (Some("127.0.0.2".parse().unwrap()), "127.0.0.2")] {
            let connector = PlainConnector::from_source(source);
            let (connected, accepted) = tokio::join!(connector.connect(&leader), listener.accept());
            assert!(connected.is_ok());
            assert_eq!(accepted.unwrap().1.ip().to_string(), seen);
        }
        let failure = PlainConnector::from_source(Some("::1".parse().unwrap())).connect(&leader).await.err().unwrap();
        assert!(failure.to_string().contains("IPv6"), "{failure}");
        for nowhere in ["", "host", "127.0.0.1:1", "127.0.0.1:19999/path"] {
            let leader = LeaderRecord { address: nowhere.to_owned(), ..leader.clone() };
            assert!(PlainConnector::default().connect(&leader).await.is_err(), "{nowhere}");
        }
    }
}
