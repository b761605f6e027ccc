//! The server's end of a control connection: what it is for, and the session that lasts as long as it.

use std::net::TcpStream as BlockingStream;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::plan::BLOCKS;
use crate::server::shared::ServerShared;
use crate::server::stream;
use crate::usage;
use crate::wire::{self, Answer, HEADER_LEN, Offer, Request, UcxOffer};

/// How long a peer may take to say what it wants, and to take an answer.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// A client that vanished without a word is noticed after a minute.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(30), Duration::from_secs(10), 3);

/// Serves a connection until it ends; why it had to.
pub(super) async fn serve(mut stream: TcpStream, shared: &Arc<ServerShared>) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    stream.set_nodelay(true).map_err(text)?;
    let (time, interval, retries) = KEEPALIVE;
    let keepalive = TcpKeepalive::new().with_time(time).with_interval(interval).with_retries(retries);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive).map_err(text)?;
    let first = tokio::select! {
        () = shared.stop.cancelled() => return Ok(()),
        first = timeout(HELLO_WITHIN, receive(&mut stream)) => first.map_err(|_| "it said nothing")??,
    };
    match first {
        Request::Open { ucx } => open(stream, shared, ucx).await,
        Request::Stream { session } => carry(stream, shared, session).await,
        Request::Usage => refuse(&mut stream, "open a session first; use `forebay bench rdma`").await,
    }
}

/// A session, until its connection ends.
async fn open(mut stream: TcpStream, shared: &Arc<ServerShared>, ucx: Option<String>) -> Result<(), String> {
    let unlike = match (&ucx, &shared.ucx) {
        (Some(_), None) => Some("this server runs without UCX; restart it without `--transport tcp`".to_owned()),
        (Some(theirs), Some(ours)) => wire::ucx_mismatch(&ours.version, theirs),
        (None, _) => None,
    };
    if let Some(reason) = unlike {
        return refuse(&mut stream, &reason).await;
    }
    let Some((session, area, _)) = shared.sessions.open() else {
        return refuse(&mut stream, "it has as many clients as it takes; try again when one has ended").await;
    };
    let _closing = Closing(shared, session);
    let offered = shared.ucx.as_ref().filter(|_| ucx.is_some());
    let offer = Offer {
        session,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        delay: shared.delay,
        blocks: BLOCKS as u32,
        cache_port: offered.map_or(shared.tcp_port, |ucx| ucx.cache_port),
        ucx: offered.map(|ucx| UcxOffer {
            version: ucx.version.clone(),
            port: ucx.port,
            blocks: ucx.blocks.clone(),
            area: ucx.areas.get(area).cloned().unwrap_or_default(),
        }),
        verbs: shared.verbs,
    };
    send(&mut stream, &Answer::Opened(offer)).await?;
    loop {
        // No deadline: between its tests a client is silent. Keep-alive notices one that is gone.
        let request = tokio::select! {
            () = shared.stop.cancelled() => return Ok(()),
            request = receive(&mut stream) => request?,
        };
        match request {
            Request::Usage => {
                let sessions = shared.sessions.count() as u32;
                send(&mut stream, &Answer::Usage { cpu: usage::cpu(), sessions }).await?;
            }
            _ => return refuse(&mut stream, "the connection has a session already").await,
        }
    }
}

/// A connection for READ and WRITE, until it ends.
async fn carry(mut stream: TcpStream, shared: &Arc<ServerShared>, session: u64) -> Result<(), String> {
    let Some(ended) = shared.sessions.end_of(session) else {
        return refuse(&mut stream, "there is no such session").await;
    };
    let Ok(place) = Arc::clone(&shared.streams).try_acquire_owned() else {
        return refuse(&mut stream, "it has as many connections as it takes; lower --numjobs").await;
    };
    send(&mut stream, &Answer::Streaming).await?;
    let stream = stream.into_std().map_err(|error| error.to_string())?;
    let ender = stream.try_clone().map_err(|error| error.to_string())?;
    let (blocks, delay) = (Arc::clone(&shared.blocks), shared.delay);
    let serving = tokio::task::spawn_blocking(move || stream::serve(stream, &blocks, delay));
    let served = end_with(serving, &ender, [&shared.stop, &ended]).await;
    drop(place);
    served
}

/// Waits for the thread; when the server stops or the session has ended, ends its connection first.
async fn end_with(
    mut serving: tokio::task::JoinHandle<Result<(), String>>,
    ender: &BlockingStream,
    [stop, ended]: [&CancellationToken; 2],
) -> Result<(), String> {
    tokio::select! {
        served = &mut serving => return served.map_err(|error| error.to_string())?,
        () = stop.cancelled() => {}
        () = ended.cancelled() => {}
    }
    let _ = ender.shutdown(std::net::Shutdown::Both);
    serving.await.map_err(|error| error.to_string())?
}

/// Ends the session with its connection, however that ends.
struct Closing<'a>(&'a ServerShared, u64);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.sessions.close(self.1);
    }
}

async fn receive(stream: &mut TcpStream) -> Result<Request, String> {
    let mut header = [0; HEADER_LEN];
    stream.read_exact(&mut header).await.map_err(|error| error.to_string())?;
    let mut body = vec![0; wire::length(&header).map_err(|error| error.to_string())?];
    let read = timeout(HELLO_WITHIN, stream.read_exact(&mut body)).await;
    read.map_err(|_| "a message was cut off")?.map_err(|error| error.to_string())?;
    wire::decode(&body).map_err(|error| error.to_string())
}

async fn send(stream: &mut TcpStream, answer: &Answer) -> Result<(), String> {
    let sent = timeout(HELLO_WITHIN, stream.write_all(&wire::encode(answer))).await;
    sent.map_err(|_| "it takes no answer")?.map_err(|error| error.to_string())
}

async fn refuse(stream: &mut TcpStream, reason: &str) -> Result<(), String> {
    send(stream, &Answer::Refused(reason.to_owned())).await?;
    Err(reason.to_owned())
}
