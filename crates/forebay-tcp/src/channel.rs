//! What carries the bytes of one connection after its hellos: the socket alone, or records of TLS on it.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};

use parking_lot::Mutex;
use tokio::net::TcpStream;

use crate::records::Records;
use crate::socket;

/// A socket, and how bytes go over it. One task receives; any may send.
#[derive(Debug)]
pub(crate) struct Channel {
    stream: TcpStream,
    records: Option<Mutex<Records>>,
}

impl Channel {
    /// `records`: those that everything goes in from now on.
    pub(crate) fn new(stream: TcpStream, records: Option<Records>) -> Self {
        Self { stream, records: records.map(Mutex::new) }
    }

    /// The socket.
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Whether all is encrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.records.is_some()
    }

    /// Waits until there may be something to receive.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        if self.records.as_ref().is_some_and(|records| records.lock().has_more()) {
            return Ok(());
        }
        self.stream.readable().await
    }

    /// Receives into `buffers`, without waiting. `Ok(0)` is the end of the stream.
    pub(crate) fn receive(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match &self.records {
            None => socket::receive(&self.stream, buffers),
            Some(records) => records.lock().receive(&self.stream, buffers),
        }
    }

    /// Sends `slices`, without waiting, neither for the socket nor for the task that decrypts; gives back how many bytes are not to
    /// be sent again, of which [`Channel::is_flushed`] says whether the socket has them all. `more` says that the rest of a message
    /// follows at once.
    pub(crate) fn send(&self, slices: &[IoSlice<'_>], more: bool) -> io::Result<usize> {
        match &self.records {
            None => socket::send(&self.stream, slices, more),
            Some(records) => match records.try_lock() {
                Some(mut records) => records.send(&self.stream, slices),
                None => Err(ErrorKind::WouldBlock.into()),
            },
        }
    }

    /// Whether the socket has all that was accepted.
    pub(crate) fn is_flushed(&self) -> bool {
        self.records.as_ref().is_none_or(|records| records.lock().is_flushed())
    }

    /// Sends what was accepted and the socket has not. False while something is left.
    pub(crate) fn flush(&self) -> io::Result<bool> {
        self.records.as_ref().map_or(Ok(true), |records| records.lock().flush(&self.stream))
    }
}
