//! Ports of this host that a test has for itself.

use std::net::{Ipv4Addr, SocketAddr};

use socket2::{Domain, Socket, Type};

/// A TCP port of 127.0.0.1 that only the servers of the test listen at. It stays the test's between two of them: the
/// kernel gives it neither to an outgoing connection nor to a process that asks for any free port.
///
/// It is bound, but not listened at: servers that set `SO_REUSEADDR`, as all of ours and those written in Go do, may bind it, too.
#[derive(Debug)]
pub struct ReservedPort {
    address: SocketAddr,
    _socket: Socket,
}

impl ReservedPort {
    /// Reserves a port that is free.
    ///
    /// # Errors
    /// When none is.
    pub fn new() -> std::io::Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        // Of any port, one that no other socket is bound to, whatever options that has set.
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
        socket.set_reuse_address(true)?;
        let address = socket.local_addr()?.as_socket().ok_or(std::io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { address, _socket: socket })
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::{TcpListener, TcpStream};

    use super::ReservedPort;

    #[test]
    fn servers_come_and_go_at_it_and_nobody_else_gets_it() {
        let port = ReservedPort::new().unwrap();
        let refused = || TcpStream::connect(port.address()).unwrap_err().kind();
        for _ in 0..3 {
            assert_eq!(refused(), ErrorKind::ConnectionRefused);
            let server = TcpListener::bind(port.address()).unwrap();
            let client = TcpStream::connect(port.address()).unwrap();
            let served = server.accept().unwrap();
            // What the next one finds: a connection that the server has closed first.
            drop(served);
            drop(client);
        }
        assert_eq!(refused(), ErrorKind::ConnectionRefused);
        let others: Vec<_> = (0..64).map(|_| ReservedPort::new().unwrap().address()).collect();
        assert!(!others.contains(&port.address()));
    }
}
