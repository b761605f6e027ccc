//! The client's end of the control connection.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use crate::error::Error;
use crate::plan::CONNECT_DEADLINE;
use crate::wire::{self, Answer, Offer, Request};

/// A connection to the server, from the address `bind` if given, with limits on every wait.
pub(crate) fn open(server: SocketAddr, bind: Option<IpAddr>) -> Result<TcpStream, Error> {
    let connect = || -> std::io::Result<TcpStream> {
        let socket = Socket::new(Domain::for_address(server), Type::STREAM, Some(Protocol::TCP))?;
        if let Some(bind) = bind {
            socket.bind(&SocketAddr::new(bind, 0).into())?;
        }
        socket.connect_timeout(&server.into(), CONNECT_DEADLINE)?;
        socket.set_tcp_nodelay(true)?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(CONNECT_DEADLINE))?;
        stream.set_write_timeout(Some(CONNECT_DEADLINE))?;
        Ok(stream)
    };
    connect().map_err(|error| Error::Connect { address: server, reason: error.to_string() })
}

/// The session: it lasts as long as this.
pub(crate) struct Control {
    stream: TcpStream,
    server: SocketAddr,
}

impl Control {
    /// Asks for a session, with UCX of this version if it is to be used.
    pub(crate) fn open(server: SocketAddr, bind: Option<IpAddr>, ucx: Option<String>) -> Result<(Self, Offer), Error> {
        let mut stream = open(server, bind)?;
        let wants_ucx = ucx.is_some();
        let protocol = |reason: String| Error::Protocol { address: server, reason };
        let offer = match wire::ask(&mut stream, server, &Request::Open { ucx: ucx.clone() })? {
            Answer::Opened(offer) => offer,
            _ => return Err(protocol("it answered another question".to_owned())),
        };
        offer.check(wants_ucx).map_err(protocol)?;
        if let (Some(ours), Some(theirs)) = (&ucx, &offer.ucx)
            && let Some(reason) = wire::ucx_mismatch(ours, &theirs.version)
        {
            return Err(Error::Refused { address: server, reason });
        }
        Ok((Self { stream, server }, offer))
    }

    /// This machine's address on the way there.
    pub(crate) fn local_ip(&self) -> Option<IpAddr> {
        self.stream.local_addr().ok().map(|address| address.ip())
    }

    /// The processor time that the server has used, and how many clients it has.
    pub(crate) fn usage(&mut self) -> Result<(Duration, u32), Error> {
        match wire::ask(&mut self.stream, self.server, &Request::Usage)? {
            Answer::Usage { cpu, sessions } => Ok((cpu, sessions)),
            _ => Err(Error::Protocol { address: self.server, reason: "it answered another question".to_owned() }),
        }
    }

    /// Whether the server is still there, as far as this side knows: memory that it shared can be read after its death.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let lost = |reason: String| Err(Error::Lost { address: self.server, reason });
        self.stream.set_nonblocking(true)?;
        let peeked = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false)?;
        match peeked {
            Ok(0) => lost("it closed the connection".to_owned()),
            Ok(_) => lost("it sent what nobody asked for".to_owned()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(()),
            Err(error) => lost(error.to_string()),
        }
    }
}
