//! What a server takes connections from: a port, or a Unix socket of this user alone.

use std::net::SocketAddr;

use forebay_identity::AuditPeer;
use forebay_private::PrivateListener;
use tokio::net::{TcpListener, TcpStream, UnixStream};

use crate::audit::process_of;
use crate::places::Source;

/// What connections come to.
#[derive(Debug)]
pub enum HttpListener {
    /// A port.
    Tcp(TcpListener),
    /// A Unix socket of this user alone.
    Private(PrivateListener),
}

impl From<TcpListener> for HttpListener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl From<PrivateListener> for HttpListener {
    fn from(listener: PrivateListener) -> Self {
        Self::Private(listener)
    }
}

impl HttpListener {
    pub(crate) async fn accept(&self) -> std::io::Result<Accepted> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(stream, from)| Accepted::Tcp(stream, from)),
            Self::Private(listener) => listener.accept().await.map(Accepted::Private),
        }
    }
}

/// A connection, before anything has come over it.
pub(crate) enum Accepted {
    /// Over TCP, from this address.
    Tcp(TcpStream, SocketAddr),
    /// Over a Unix socket. The kernel has said that it is of this user, or of root.
    Private(UnixStream),
}

impl Accepted {
    pub(crate) fn source(&self) -> Source {
        match self {
            Self::Tcp(_, from) => Source::of(from.ip()),
            Self::Private(_) => Source::Loopback,
        }
    }

    pub(crate) fn peer(&self) -> AuditPeer {
        match self {
            Self::Tcp(_, from) => (*from).into(),
            Self::Private(stream) => process_of(stream),
        }
    }
}
