//! TLS on a socket of packets, for as long as both ends prove who they are.
//!
//! To TLS, what is sent and received is one stream; it travels in packets of at most [`PIECE`] bytes, as it comes. Each packet is
//! TLS's or ours, and never both: packets keep their ends, so TLS sees no byte of what follows in plain text. A packet of ours
//! that comes in the middle is a peer that takes no part in this, or that ends the session in words.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::{BorrowedFd, OwnedFd};

use rustls::{CommonState, Connection};

use crate::socket::{Received, Socket};

/// The most bytes of TLS in a packet: a flight, unless chains of certificates are long.
pub(crate) const PIECE: usize = 16 << 10;

/// Whether a packet is TLS's: records begin with their content type (RFC 8446, 5.1), and no packet of ours with one of these.
pub(crate) fn is_tls(packet: &[u8]) -> bool {
    matches!(packet.first(), Some(20..=23))
}

/// Why it goes no further.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    /// The peer closed its end.
    #[error("it closed the session")]
    Closed,
    /// The peer ended TLS in good order.
    #[error("it ended TLS")]
    Left,
    /// The peer sent a packet that is not TLS's.
    #[error("it sent a packet of {} bytes that is not TLS's", .0.len())]
    Foreign(Vec<u8>),
    /// TLS refuses, or is told that it is refused.
    #[error("{0}")]
    Tls(#[from] rustls::Error),
    /// The socket failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// One end of it.
pub(crate) struct Handshake<'s> {
    socket: &'s Socket,
    tls: Connection,
    packet: Vec<u8>,
    /// What came with a packet.
    descriptor: Option<OwnedFd>,
}

impl<'s> Handshake<'s> {
    pub(crate) fn new(socket: &'s Socket, tls: Connection) -> Self {
        Self { socket, tls, packet: vec![0; PIECE], descriptor: None }
    }

    /// What TLS knows of the peer.
    pub(crate) fn state(&self) -> &CommonState {
        &self.tls
    }

    /// Carries the handshake through. Its last records may be on their way when this end is done.
    pub(crate) async fn shake(&mut self) -> Result<(), HandshakeError> {
        loop {
            self.flush(None).await?;
            if !self.tls.is_handshaking() {
                return Ok(());
            }
            self.receive().await?;
        }
    }

    /// Takes in a packet that was received already.
    pub(crate) async fn take(&mut self, packet: &[u8]) -> Result<(), HandshakeError> {
        let taken = feed(&mut self.tls, packet);
        self.told(taken).await
    }

    /// Says `bytes` within TLS, and passes a descriptor with them, if there is one.
    pub(crate) async fn say(&mut self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> Result<(), HandshakeError> {
        self.tls.writer().write_all(bytes)?;
        self.flush(descriptor).await
    }

    /// The next `N` bytes that the peer says within TLS.
    pub(crate) async fn hear<const N: usize>(&mut self) -> Result<[u8; N], HandshakeError> {
        let (mut heard, mut at) = ([0; N], 0);
        while at < N {
            let read = self.tls.reader().read(&mut heard[at..]);
            match read {
                Ok(0) => return Err(HandshakeError::Left),
                Ok(count) => at += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.receive().await?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(heard)
    }

    /// Ends TLS in good order, which no accident does.
    pub(crate) async fn leave(&mut self) {
        self.tls.send_close_notify();
        // The peer may be gone.
        let _ = self.flush(None).await;
    }

    /// The last descriptor that was passed to a client.
    pub(crate) fn into_descriptor(self) -> Option<OwnedFd> {
        self.descriptor
    }

    async fn receive(&mut self) -> Result<(), HandshakeError> {
        let received = match self.tls {
            Connection::Client(_) => {
                let (received, descriptor) = self.socket.next_with_descriptor(&mut self.packet).await?;
                self.descriptor = descriptor.or(self.descriptor.take());
                received
            }
            // Whatever clients pass is not taken.
            Connection::Server(_) => self.socket.next(&mut self.packet).await?,
        };
        let Received::Packet(length) = received else { return Err(HandshakeError::Closed) };
        let Some(packet) = self.packet.get(..length).filter(|packet| is_tls(packet)) else {
            let length = length.min(self.packet.len());
            return Err(HandshakeError::Foreign(self.packet[..length].to_vec()));
        };
        let taken = feed(&mut self.tls, packet);
        self.told(taken).await
    }

    /// Tells the peer what is wrong, if something is.
    async fn told(&mut self, taken: Result<(), HandshakeError>) -> Result<(), HandshakeError> {
        if taken.is_err() {
            // A courtesy: it may be gone.
            let _ = self.flush(None).await;
        }
        taken
    }

    /// Sends what TLS has to say.
    async fn flush(&mut self, mut descriptor: Option<BorrowedFd<'_>>) -> Result<(), HandshakeError> {
        let mut flight = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut flight)?;
        }
        for piece in flight.chunks(PIECE) {
            match self.socket.send_when_writable(piece, descriptor.take()).await {
                // What it said before it left is still to be heard.
                Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                    return Ok(());
                }
                sent => sent?,
            }
        }
        Ok(())
    }
}

fn feed(tls: &mut Connection, mut packet: &[u8]) -> Result<(), HandshakeError> {
    while !packet.is_empty() {
        // After the peer's end of TLS nothing is read.
        if tls.read_tls(&mut packet)? == 0 {
            break;
        }
        tls.process_new_packets()?;
    }
    Ok(())
}
