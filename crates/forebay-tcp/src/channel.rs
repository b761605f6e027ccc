//! What carries the bytes of one connection after its hellos: the socket alone, or records of TLS on it.

use std::io::{self, IoSlice, IoSliceMut};

use tokio::net::TcpStream;

use crate::records::Records;
use crate::socket;

/// A socket, and how bytes go over it. One task receives; any may send.
#[derive(Debug)]
pub(crate) struct Channel {
    stream: TcpStream,
    records: Option<Records>,
}

impl Channel {
    /// `records`: those that everything goes in from now on.
    pub(crate) fn new(stream: TcpStream, records: Option<Records>) -> Self {
        Self { stream, records }
    }

    /// The socket, if nothing but it carries the bytes.
    pub(crate) fn into_plain(self) -> Option<TcpStream> {
        self.records.is_none().then_some(self.stream)
    }

    /// The socket.
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Whether all is encrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.records.is_some()
    }

    /// Whether another connection should take its place: its keys have protected as much as they should.
    pub(crate) fn is_worn(&self) -> bool {
        self.records.as_ref().is_some_and(Records::is_worn)
    }

    /// Waits until there may be something to receive.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        if self.records.as_ref().is_some_and(|records| records.has_more()) {
            return Ok(());
        }
        self.stream.readable().await
    }

    /// Receives into `buffers`, without waiting. `Ok(0)` is the end of the stream.
    pub(crate) fn receive(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match &self.records {
            None => socket::receive(&self.stream, buffers),
            Some(records) => records.receive(&self.stream, buffers),
        }
    }

    /// Sends `slices`, without waiting, neither for the socket nor for who else sends; gives back how many bytes are not to
    /// be sent again, of which [`Channel::is_flushed`] says whether the socket has them all. `more` says that the rest of a message
    /// follows at once.
    pub(crate) fn send(&self, slices: &[IoSlice<'_>], more: bool) -> io::Result<usize> {
        match &self.records {
            None => socket::send(&self.stream, slices, more),
            Some(records) => records.send(&self.stream, slices),
        }
    }

    /// Whether the socket has all that was accepted.
    pub(crate) fn is_flushed(&self) -> bool {
        self.records.as_ref().is_none_or(Records::is_flushed)
    }

    /// Sends what was accepted and the socket has not. False while something is left.
    pub(crate) fn flush(&self) -> io::Result<bool> {
        self.records.as_ref().map_or(Ok(true), |records| records.flush(&self.stream))
    }
}
