//! How a server's side of a connection begins, and how it ends where the peer is to notice nothing.

use std::io::{ErrorKind, IoSliceMut};

use forebay_identity::Peer;
use forebay_transport::wire::{HELLO_LEN, Hello};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::end::{End, PARTING};
use crate::options::ServerOptions;
use crate::protection::MAX_RECORDS;
use crate::records::Records;
use crate::security::is_encrypted;
use crate::socket;

/// Bytes that are thrown away at once.
const ASIDE: usize = 16 << 10;

/// Who said hello.
#[derive(Debug, Default)]
pub(crate) struct Greeted {
    /// What it proved to be, if it had to.
    pub(crate) peer: Option<Peer>,
    /// What all that follows goes in, if that is encrypted.
    pub(crate) records: Option<Records>,
}

/// Has the peer prove who it is, if it must, and exchanges hellos, within the time for a hello: however slowly its bytes come,
/// there is no more.
pub(crate) async fn greet(stream: &mut TcpStream, ours: &Hello, options: &ServerOptions) -> Result<Greeted, End> {
    let waited = options.hello_timeout;
    socket::tune(stream, options.stall_timeout / 5)?;
    let greeting = async {
        let security = match &options.security {
            Some(security) if !security.lets_pass(stream).await? => security,
            _ => {
                say(stream, ours).await?;
                ours.check(&hear(stream).await?)?;
                return Ok(Greeted::default());
            }
        };
        let (mut tls, peer) = security.accept(stream).await?;
        // In this order: once it has our hello, the peer may go on in plain text, of which TLS must not see a byte. One that does
        // not fit gets it, too, and knows why from it: a goodbye in plain text it would not understand.
        let theirs = hear(&mut tls).await?;
        say(&mut tls, ours).await?;
        ours.check(&theirs)?;
        let (_, tls) = tls.into_inner();
        // Its peer has it make way before the keys are worn, or else they are used up one day.
        let records = is_encrypted(&tls).then(|| Records::new(tls.into(), MAX_RECORDS)).transpose()?;
        Ok(Greeted { peer: Some(peer), records })
    };
    tokio::time::timeout(waited, greeting).await.unwrap_or(Err(End::Late { what: "hello", waited }))
}

async fn say(stream: &mut (impl AsyncWrite + Unpin), ours: &Hello) -> Result<(), End> {
    stream.write_all(&ours.encode()).await?;
    Ok(stream.flush().await?)
}

async fn hear(stream: &mut (impl AsyncRead + Unpin)) -> Result<[u8; HELLO_LEN], End> {
    let mut theirs = [0; HELLO_LEN];
    // The first byte alone tells a peer that checks whether the port is open from one that broke off.
    if stream.read(&mut theirs[..1]).await? == 0 {
        return Err(End::Closed);
    }
    stream.read_exact(&mut theirs[1..]).await.map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => End::Truncated("hello"),
        _ => error.into(),
    })?;
    Ok(theirs)
}

/// Sends no more, and throws away what the peer still sends, until it has closed its end: a socket that is closed with
/// bytes unread is reset, and the peer might not hear what it was told last.
pub(crate) async fn hear_out(stream: &TcpStream) {
    let _ = socket::finish(stream);
    let ends = async {
        let mut aside = vec![0u8; ASIDE];
        while stream.readable().await.is_ok() {
            match socket::receive(stream, &mut [IoSliceMut::new(&mut aside)]) {
                Ok(1..) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                _ => return,
            }
        }
    };
    // One that does not close its end is closed anyway.
    let _ = tokio::time::timeout(PARTING, ends).await;
}
