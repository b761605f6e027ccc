//! A connection whose client is not waited for without end: not for the rest of a request, nor until it reads its
//! answer.
//!
//! The library bounds the time for the head of a request, and for the next one; what comes after the head is bounded
//! here. On the way, all three tell whose turn it is ([`Turn`]).

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Body as AxumBody, Bytes};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use tokio_rustls::server::TlsStream;

use crate::patience::Patience;
use crate::seats::Turn;

/// What HTTP is spoken over.
pub(crate) trait Stream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static {
    /// What it all goes over, if that is TCP.
    fn tcp(&self) -> Option<&TcpStream>;
}

impl Stream for TcpStream {
    fn tcp(&self) -> Option<&TcpStream> {
        Some(self)
    }
}

impl Stream for TlsStream<TcpStream> {
    fn tcp(&self) -> Option<&TcpStream> {
        Some(self.get_ref().0)
    }
}

impl Stream for UnixStream {
    fn tcp(&self) -> Option<&TcpStream> {
        None
    }
}

/// The connection itself. It fails once its client has taken nothing of what is to be sent, or too little, for too long.
pub(crate) struct Socket<S: Stream> {
    io: TokioIo<S>,
    patience: Patience,
    turn: Arc<Turn>,
    /// There, while the client is to read.
    stalled: Option<Stalled>,
}

/// Since when a client is to read, and until when it is waited for.
struct Stalled {
    since: Instant,
    until: Pin<Box<Sleep>>,
}

impl<S: Stream> Socket<S> {
    /// `stream`, whose client is waited for with such patience.
    pub(crate) fn new(stream: S, patience: Patience, turn: Arc<Turn>) -> Self {
        Self { io: TokioIo::new(stream), patience, turn, stalled: None }
    }

    /// `written`, which are so many bytes, or an error if that is pending for too long.
    fn in_time<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
        bytes: impl FnOnce(&T) -> usize,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(written) = written {
            if let Some(stalled) = self.stalled.take() {
                self.patience.waited(stalled.since.elapsed());
                self.turn.goes_on();
            }
            if let Ok(written) = &written {
                self.patience.took(bytes(written) as u64);
            }
            return Poll::Ready(written);
        }
        self.turn.awaits();
        let left = self.patience.left();
        let begin = || Stalled { since: Instant::now(), until: Box::pin(sleep(left)) };
        let stalled = self.stalled.get_or_insert_with(begin);
        ready!(stalled.until.as_mut().poll(cx));
        let error = "its client read nothing of the answer, or too little, for too long";
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, error)))
    }
}

impl<S: Stream> Drop for Socket<S> {
    fn drop(&mut self) {
        if self.stalled.is_some()
            && let Some(stream) = self.io.inner().tcp()
        {
            // Or the kernel would keep, and offer, what nobody reads. Where this fails, it does so for a while.
            let _ = stream.set_zero_linger();
        }
    }
}

impl<S: Stream> Read for Socket<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_read(cx, buffer)
    }
}

impl<S: Stream> Write for Socket<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write(cx, bytes);
        this.in_time(cx, written, |bytes| *bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // What TLS holds waits for the client, too.
        let flushed = Pin::new(&mut this.io).poll_flush(cx);
        ready!(this.in_time(cx, flushed, |()| 0))?;
        // It is asked for when nothing is left to be written.
        this.turn.sent();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let shut = Pin::new(&mut this.io).poll_shutdown(cx);
        this.in_time(cx, shut, |()| 0)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write_vectored(cx, parts);
        this.in_time(cx, written, |bytes| *bytes)
    }
}

/// The body of a request. It fails if it has not come in time.
pub(crate) struct RequestBody {
    body: Incoming,
    until: Instant,
    turn: Arc<Turn>,
    /// There, while the client is to send.
    late: Option<Pin<Box<Sleep>>>,
}

impl RequestBody {
    /// `body`, all of which comes within `within` from now.
    pub(crate) fn new(body: Incoming, within: Duration, turn: Arc<Turn>) -> Self {
        Self { body, until: Instant::now() + within, turn, late: None }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            this.turn.goes_on();
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        this.turn.awaits();
        let until = this.until;
        let late = this.late.get_or_insert_with(|| Box::pin(sleep_until(until)));
        ready!(late.as_mut().poll(cx));
        let error = io::Error::new(io::ErrorKind::TimedOut, "the body of the request did not come in time");
        Poll::Ready(Some(Err(error.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer. It tells when there is no more of it.
pub(crate) struct AnswerBody {
    body: AxumBody,
    turn: Arc<Turn>,
}

impl AnswerBody {
    /// `body`, as it is.
    pub(crate) fn new(body: AxumBody, turn: Arc<Turn>) -> Self {
        Self { body, turn }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        self.turn.answered();
    }
}
