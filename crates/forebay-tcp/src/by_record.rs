//! A socket that is read one record of TLS at a time.
//!
//! A TLS library reads as much as there is. What it has read and not opened when its keys are taken from it would be lost:
//! behind this it has read nothing beyond the record that it was looking at.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Bytes of a record before its body: a type, a version and the body's length.
const HEADER: usize = 5;
/// Bytes that are read at once.
const PIECE: usize = 4 << 10;

/// The socket.
#[derive(Debug)]
pub(crate) struct ByRecord<'s> {
    stream: &'s mut TcpStream,
    /// That of the record which arrives, as far as it is here.
    header: [u8; HEADER],
    /// Bytes of it that are here.
    filled: usize,
    /// Bytes of its body that are not.
    rest: usize,
}

impl<'s> ByRecord<'s> {
    pub(crate) fn new(stream: &'s mut TcpStream) -> Self {
        Self { stream, header: [0; HEADER], filled: 0, rest: 0 }
    }

    /// How many bytes may be read now.
    fn room(&self) -> usize {
        if self.rest > 0 { self.rest } else { HEADER - self.filled }
    }

    /// These have been read, no more than there was room for.
    fn has_read(&mut self, bytes: &[u8]) {
        if self.rest > 0 {
            self.rest -= bytes.len();
            return;
        }
        self.header[self.filled..self.filled + bytes.len()].copy_from_slice(bytes);
        self.filled += bytes.len();
        if self.filled == HEADER {
            let [.., high, low] = self.header;
            (self.filled, self.rest) = (0, u16::from_be_bytes([high, low]).into());
        }
    }
}

impl AsyncRead for ByRecord<'_> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let mut bytes = [0; PIECE];
        let mut piece = ReadBuf::new(&mut bytes[..this.room().min(into.remaining()).min(PIECE)]);
        ready!(Pin::new(&mut *this.stream).poll_read(context, &mut piece))?;
        this.has_read(piece.filled());
        into.put_slice(piece.filled());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ByRecord<'_> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.get_mut().stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn nothing_is_read_beyond_a_record() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut there = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut here, _) = listener.accept().await.unwrap();
        let first = [&[22, 3, 3, 0x20, 1][..], &[7; 0x2001]].concat();
        let empty = [23, 3, 3, 0, 0];
        there.write_all(&[&first[..], &empty, b"what follows"].concat()).await.unwrap();
        let mut records = ByRecord::new(&mut here);
        let mut got = Vec::new();
        while got.len() < first.len() {
            let mut room = [0; 9000];
            let count = records.read(&mut room).await.unwrap();
            got.extend_from_slice(&room[..count]);
        }
        assert_eq!(got, first);
        let mut room = [0; 100];
        assert_eq!(records.read(&mut room).await.unwrap(), HEADER);
        assert_eq!(room[..HEADER], empty);
        let mut rest = [0; 12];
        here.read_exact(&mut rest).await.unwrap();
        assert_eq!(&rest, b"what follows");
    }
}
