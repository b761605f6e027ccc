//! How a server's side of a connection begins, and how it ends where the peer is to notice nothing.

use std::io::{ErrorKind, IoSliceMut};

use forebay_transport::wire::{HELLO_LEN, Hello};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::end::{End, PARTING};
use crate::options::ServerOptions;
use crate::socket;

/// Bytes that are thrown away at once.
const ASIDE: usize = 16 << 10;

/// Exchanges hellos, within the time for one: however slowly its bytes come, there is no more.
pub(crate) async fn greet(stream: &mut TcpStream, ours: &Hello, options: &ServerOptions) -> Result<(), End> {
    let waited = options.hello_timeout;
    socket::tune(stream, options.stall_timeout / 5)?;
    let mut theirs = [0; HELLO_LEN];
    let exchange = async {
        stream.write_all(&ours.encode()).await?;
        // The first byte alone tells a peer that checks whether the port is open from one that broke off.
        if stream.read(&mut theirs[..1]).await? == 0 {
            return Err(End::Closed);
        }
        stream.read_exact(&mut theirs[1..]).await.map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => End::Truncated("hello"),
            _ => error.into(),
        })?;
        Ok(())
    };
    match tokio::time::timeout(waited, exchange).await {
        Ok(exchanged) => exchanged?,
        Err(_) => return Err(End::Late { what: "hello", waited }),
    }
    ours.check(&theirs)?;
    Ok(())
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
