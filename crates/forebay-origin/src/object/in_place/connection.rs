//! A connection to a server: one request, its answer, the next request.

use std::future::Future;
use std::io;
use std::time::Duration;

use futures::FutureExt as _;
use http::StatusCode;
use object_store::client::{HttpError, HttpErrorKind};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::task::coop::unconstrained;

use super::head::{BadHead, Head, MAX_HEAD, parse};

/// How much is read at a time until the head is there. What is read of the body with it is copied once more, so this is little.
const HEAD_STEP: usize = 2 << 10;

/// What carries a connection: TCP, or TLS over it.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection to a server.
pub(super) struct Connection {
    stream: Box<dyn Duplex>,
    /// What came and was not taken yet.
    ahead: Vec<u8>,
    /// The longest that the server may be silent.
    silence: Duration,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum AskError {
    /// The connection ended before a byte of the answer came.
    Unanswered(io::Error),
    /// Anything else.
    Failed(HttpError),
}

impl From<BadHead> for AskError {
    fn from(error: BadHead) -> Self {
        Self::Failed(error.into_http_error())
    }
}

impl Connection {
    pub(super) fn new(stream: Box<dyn Duplex>, silence: Duration) -> Self {
        Self { stream, ahead: Vec::new(), silence }
    }

    /// Sends the head of a request, and takes that of the answer. Then its body is next.
    pub(super) async fn ask(&mut self, request: &[u8]) -> Result<Head, AskError> {
        let Self { stream, ahead, silence } = self;
        let sent = within(*silence, async {
            stream.write_all(request).await?;
            stream.flush().await
        });
        sent.await.map_err(|error| unanswered_or_failed(error, true))?;
        let (mut has_begun, mut looked_at) = (false, 0);
        loop {
            // A head whose bytes come one by one is not gone through for each of them.
            let is_worth_a_look = looked_at == 0 || ahead.len() >= MAX_HEAD || ahead[looked_at..].contains(&b'\n');
            if is_worth_a_look && let Some(head) = parse(ahead)? {
                ahead.drain(..head.length);
                looked_at = 0;
                match head.status {
                    // Another protocol, which nobody asked for: nothing behind it is an answer.
                    StatusCode::SWITCHING_PROTOCOLS => return Err(BadHead::Switched.into()),
                    // 100 and 103 come before the answer.
                    status if status.is_informational() => continue,
                    _ => return Ok(head),
                }
            }
            looked_at = ahead.len();
            let before = ahead.len();
            ahead.resize((before + HEAD_STEP).min(MAX_HEAD), 0);
            let came = within(*silence, stream.read(&mut ahead[before..])).await;
            ahead.truncate(before + *came.as_ref().unwrap_or(&0));
            let ended = match came {
                Ok(0) => ended("before the answer was there"),
                Ok(_) => {
                    has_begun = true;
                    continue;
                }
                Err(error) => error,
            };
            return Err(unanswered_or_failed(ended, !has_begun));
        }
    }

    /// Reads what comes next of a body into `into`, which is not empty. 0: the server has closed the connection.
    pub(super) async fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.ahead.is_empty() {
            return within(self.silence, self.stream.read(into)).await;
        }
        let count = self.ahead.len().min(into.len());
        into[..count].copy_from_slice(&self.ahead[..count]);
        self.ahead.drain(..count);
        Ok(count)
    }

    /// Whether nothing has come behind the body that was read.
    pub(super) fn is_between_answers(&self) -> bool {
        self.ahead.is_empty()
    }

    /// Whether the server has left it open meanwhile, and said nothing that nobody asked for.
    pub(super) fn is_quiet(&mut self) -> bool {
        // A task whose budget is used up would find every connection quiet.
        self.ahead.is_empty() && unconstrained(self.stream.read(&mut [0])).now_or_never().is_none()
    }
}

/// What an error of a connection is to the client.
pub(super) fn http_error(error: io::Error) -> HttpError {
    let kind = match error.kind() {
        io::ErrorKind::TimedOut => HttpErrorKind::Timeout,
        _ => HttpErrorKind::Interrupted,
    };
    HttpError::new(kind, error)
}

/// The server closed the connection.
pub(super) fn ended(when: &str) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, format!("the server closed the connection {when}"))
}

/// A server that is silent is there: to ask it again at once would help nobody.
fn unanswered_or_failed(error: io::Error, is_unanswered: bool) -> AskError {
    match is_unanswered && error.kind() != io::ErrorKind::TimedOut {
        true => AskError::Unanswered(error),
        false => AskError::Failed(http_error(error)),
    }
}

async fn within<T>(silence: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(silence, work).await.unwrap_or_else(|_| {
        Err(io::Error::new(io::ErrorKind::TimedOut, format!("no byte came or went for {silence:?}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::DuplexStream;

    const SILENCE: Duration = Duration::from_secs(10);

    fn pair() -> (Connection, DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        (Connection::new(Box::new(ours), SILENCE), theirs)
    }

    #[tokio::test]
    async fn the_body_begins_where_the_head_ends() {
        let (mut connection, mut server) = pair();
        server.write_all(b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 206 P\r\nContent-Le").await.unwrap();
        let rest = async {
            tokio::task::yield_now().await;
            server.write_all(b"ngth: 6\r\n\r\nabc").await.unwrap();
        };
        let (head, ()) = tokio::join!(connection.ask(b"GET / HTTP/1.1\r\n\r\n"), rest);
        assert_eq!(head.unwrap().status.as_u16(), 206);
        let mut into = [0; 6];
        assert_eq!((connection.read(&mut into[..2]).await.unwrap(), &into[..2]), (2, &b"ab"[..]));
        assert!(!connection.is_between_answers() && !connection.is_quiet());
        assert_eq!(connection.read(&mut into[2..]).await.unwrap(), 1);
        server.write_all(b"def").await.unwrap();
        assert_eq!((connection.read(&mut into[3..]).await.unwrap(), &into), (3, b"abcdef"));
        assert!(connection.is_between_answers() && connection.is_quiet());
        server.write_all(b"what?").await.unwrap();
        assert!(!connection.is_quiet());
    }

    #[tokio::test]
    async fn heads_that_come_byte_by_byte_are_understood_and_other_protocols_are_not() {
        let (mut connection, mut server) = pair();
        let answer = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 206 P\r\nContent-Length: 2\r\n\r\nhi";
        let byte_by_byte = async {
            for byte in answer {
                server.write_all(&[*byte]).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let (head, ()) = tokio::join!(connection.ask(b"GET"), byte_by_byte);
        assert_eq!(head.unwrap().status.as_u16(), 206);
        let (mut connection, mut server) = pair();
        server.write_all(b"HTTP/1.1 101 Switching Protocols\r\n\r\nHTTP/1.1 206 P\r\n\r\n").await.unwrap();
        let error = connection.ask(b"GET").await.unwrap_err();
        assert!(matches!(error, AskError::Failed(error) if error.kind() == HttpErrorKind::Decode));
    }

    #[tokio::test]
    async fn whether_anything_was_answered_tells_whether_to_ask_again() {
        let (mut connection, server) = pair();
        drop(server);
        assert!(!connection.is_quiet());
        assert!(matches!(connection.ask(b"GET").await, Err(AskError::Unanswered(_))));
        let (mut connection, mut server) = pair();
        server.write_all(b"HTTP/1.1 2").await.unwrap();
        let (answer, ()) = tokio::join!(connection.ask(b"GET"), async {
            let mut asked = [0; 3];
            server.read_exact(&mut asked).await.unwrap();
            drop(server);
        });
        assert!(matches!(answer, Err(AskError::Failed(error)) if error.kind() == HttpErrorKind::Interrupted));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_silent_is_given_up() {
        let (mut connection, mut server) = pair();
        let error = connection.ask(b"GET").await.unwrap_err();
        assert!(matches!(error, AskError::Failed(error) if error.kind() == HttpErrorKind::Timeout));
        server.write_all(b"x").await.unwrap();
        assert_eq!(connection.read(&mut [0; 9]).await.unwrap(), 1);
        assert_eq!(connection.read(&mut [0; 9]).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
