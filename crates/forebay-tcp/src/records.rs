//! The records of TLS on a connection of which all is encrypted.
//!
//! What is to be sent is encrypted when it is accepted, so memory that it lay in is free from then on; what of it the
//! socket does not take waits here, and is no more than [`UNFLUSHED`] bytes, of plain text, at a time. What is received is read
//! from the socket in large pieces and decrypted as far as there is room for it. The memory of a piece is the thread's, so that a
//! connection that is idle has none.
//!
//! The end of a connection is not sent as an alert: each message says its length, so a connection that is cut ends between two of
//! them or in the middle of one, and nothing is taken for whole that is not.

use std::cell::Cell;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read as _, Write};

use forebay_identity::reason;
use rustls::Connection;
use tokio::net::TcpStream;

use crate::socket;

/// Bytes that are encrypted before the socket has taken those before them.
const UNFLUSHED: usize = 128 << 10;
/// Bytes that are read at once: seven full records.
const PIECE: usize = 128 << 10;

thread_local! {
    /// Memory for a piece that no connection has now.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Both directions.
pub(crate) struct Records {
    tls: Connection,
    /// Encrypted bytes from the socket, of which `from..to` are not decrypted.
    piece: Vec<u8>,
    from: usize,
    to: usize,
    /// Whether decrypted bytes may wait for room.
    is_full: bool,
    /// The peer said that it sends no more.
    is_over: bool,
}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Records").field("from", &self.from).field("to", &self.to).finish_non_exhaustive()
    }
}

impl Records {
    /// Goes on with a connection whose handshake is done.
    pub(crate) fn new(mut tls: Connection) -> Self {
        tls.set_buffer_limit(Some(UNFLUSHED));
        // What came with the end of the handshake is here already, and no socket will tell of it.
        Self { tls, piece: Vec::new(), from: 0, to: 0, is_full: true, is_over: false }
    }

    /// Whether there may be bytes to be received that no socket will tell of.
    pub(crate) fn has_more(&self) -> bool {
        self.is_full || self.from < self.to
    }

    /// Whether the socket has taken all that was accepted.
    pub(crate) fn is_flushed(&self) -> bool {
        !self.tls.wants_write()
    }

    /// Receives into `buffers`, without waiting. `Ok(0)` is the end of the stream.
    pub(crate) fn receive(&mut self, stream: &TcpStream, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        loop {
            let taken = self.take(buffers)?;
            if taken > 0 || self.is_over {
                return Ok(taken);
            }
            let mut piece = SPARE.take();
            piece.resize(PIECE, 0);
            match socket::receive(stream, &mut [IoSliceMut::new(&mut piece)]) {
                Ok(count @ 1..) => (self.piece, self.from, self.to) = (piece, 0, count),
                ended => {
                    SPARE.set(piece);
                    return ended;
                }
            }
        }
    }

    /// Fills `buffers` from what has been read, as far as that goes.
    fn take(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut total = 0;
        for buffer in buffers {
            let mut at = 0;
            while at < buffer.len() {
                match self.tls.reader().read(&mut buffer[at..]) {
                    // The peer said that it sends no more: what follows is not read.
                    Ok(0) => {
                        self.is_over = true;
                        return Ok(total);
                    }
                    Ok(count) => (at, total) = (at + count, total + count),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        if self.from == self.to {
                            self.is_full = false;
                            return Ok(total);
                        }
                        self.decrypt()?;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        self.is_full = true;
        Ok(total)
    }

    /// Decrypts some of what has been read.
    fn decrypt(&mut self) -> io::Result<()> {
        self.from += self.tls.read_tls(&mut &self.piece[self.from..self.to])?;
        if self.from == self.to {
            SPARE.set(std::mem::take(&mut self.piece));
        }
        self.tls.process_new_packets().map_err(|error| io::Error::new(ErrorKind::InvalidData, reason(&error)))?;
        Ok(())
    }

    /// Accepts what is next of `slices`, without waiting, and gives back how many bytes that is.
    pub(crate) fn send(&mut self, stream: &TcpStream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if !self.flush(stream)? {
            return Err(ErrorKind::WouldBlock.into());
        }
        let accepted = self.tls.writer().write_vectored(slices)?;
        // What was accepted must not be sent again, so it is the next flush that tells of an error.
        let _ = self.flush(stream);
        Ok(accepted)
    }

    /// Sends what was accepted. False while something is left.
    pub(crate) fn flush(&mut self, stream: &TcpStream) -> io::Result<bool> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut Socket(stream)) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// Takes what TLS has to say.
struct Socket<'s>(&'s TcpStream);

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        socket::send(self.0, &[IoSlice::new(bytes)], false)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        socket::send(self.0, slices, false)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
