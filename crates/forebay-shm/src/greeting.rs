//! How a worker's side of a session begins: the client speaks first, and the memory is passed last.
//!
//! Where clients have to prove who they are ([`crate::security`]), both hellos go within TLS. Whoever has the descriptor sees all of the
//! memory, and it cannot be taken back; so it goes with the worker's hello, to nobody who has not proved who it is, and to no role that
//! may not read.
//!
//! What TLS proves, it proves of whoever has the keys, and a process in between could pass it on and keep the descriptor. So each end
//! says within TLS which process it is, and compares what the other says with what the kernel knows of the socket
//! ([`crate::socket::our_process`]).

use forebay_identity::{Peer, Unproved};
use forebay_transport::wire::HELLO_LEN;
use forebay_transport::{Caller, Flags, Op};

use crate::audit::SessionAudit;
use crate::handshake::{Handshake, HandshakeError, PIECE, is_tls};
use crate::security::ServerSecurity;
use crate::sessions::{End, SessionsShared, caller_of};
use crate::socket::{Received, Socket, is_process, our_process};
use crate::wire::{GREETING_LEN, Greeting, Malformed};

impl From<HandshakeError> for End {
    fn from(error: HandshakeError) -> Self {
        match error {
            HandshakeError::Closed | HandshakeError::Left => Self::Closed,
            HandshakeError::Foreign(packet) => Malformed::Size(packet.len()).into(),
            HandshakeError::Tls(error) => Unproved::of_tls(&error).into(),
            HandshakeError::Io(error) => error.into(),
        }
    }
}

/// Hears who the client is, says hello, and passes the memory, within the time for a hello. Who it proved to be, if it had to:
/// `audit` is told as soon as that is known.
pub(crate) async fn greet(
    socket: &Socket,
    shared: &SessionsShared,
    audit: Option<&mut SessionAudit>,
) -> Result<Option<Peer>, End> {
    let waited = shared.options.hello_timeout;
    tokio::time::timeout(waited, hear(socket, shared, audit)).await.unwrap_or(Err(End::Late(waited)))
}

async fn hear(socket: &Socket, shared: &SessionsShared, audit: Option<&mut SessionAudit>) -> Result<Option<Peer>, End> {
    let mut packet = vec![0; PIECE];
    let Received::Packet(length) = socket.next(&mut packet).await? else { return Err(End::Closed) };
    let first = packet.get(..length).ok_or(Malformed::Size(length))?;
    match &shared.options.security {
        Some(security) if is_tls(first) => prove(socket, shared, security, first, audit).await.map(Some),
        None if is_tls(first) => Err(End::TakesNoProof),
        Some(security) if !security.accepts_plain() => Err(End::ProvesNothing),
        _ => plain(socket, shared, first).await.map(|()| None),
    }
}

/// A client that proves nothing, and need not.
async fn plain(socket: &Socket, shared: &SessionsShared, hello: &[u8]) -> Result<(), End> {
    let theirs: &[u8; HELLO_LEN] = hello.try_into().map_err(|_| Malformed::Size(hello.len()))?;
    if !shared.service.shows_all(&Caller::default()) {
        return Err(End::Confined);
    }
    let fits = shared.hello.check(theirs);
    // One that does not fit gets ours, too, and knows why from it.
    let memory = shared.pool.descriptor().filter(|_| fits.is_ok());
    socket.send_when_writable(&greeting(shared), memory).await?;
    fits?;
    Ok(())
}

/// A client that proves who it is; `first` is what it said so far.
async fn prove(
    socket: &Socket,
    shared: &SessionsShared,
    security: &ServerSecurity,
    first: &[u8],
    audit: Option<&mut SessionAudit>,
) -> Result<Peer, End> {
    let mut handshake = Handshake::new(socket, security.begin()?);
    handshake.take(first).await?;
    handshake.shake().await?;
    let peer = security.verify_client(handshake.state());
    if peer.is_err() {
        // Its session was resumed, and TLS has no alert any more.
        handshake.leave().await;
    }
    let peer = peer?;
    audit.into_iter().for_each(|audit| audit.proved(&peer.identity));
    let hello: [u8; HELLO_LEN] = handshake.hear().await?;
    let process = u64::from_le_bytes(handshake.hear().await?);
    if !is_process(socket.peer_process(), process) {
        return Err(End::Relayed);
    }
    if let Some(refused) = Op::Read.refusal(Flags::default(), peer.identity.role()) {
        return Err(End::Forbidden(refused));
    }
    if !shared.service.shows_all(&caller_of(&peer)) {
        return Err(End::Confined);
    }
    let fits = shared.hello.check(&hello);
    let memory = shared.pool.descriptor().filter(|_| fits.is_ok());
    let ours = [&greeting(shared)[..], &our_process().to_le_bytes()].concat();
    handshake.say(&ours, memory).await?;
    fits?;
    Ok(peer)
}

fn greeting(shared: &SessionsShared) -> [u8; GREETING_LEN] {
    let SessionsShared { options, pool, hello, .. } = shared;
    let max_requests = u32::try_from(options.max_requests_per_connection).unwrap_or(u32::MAX);
    let length = pool.mapping().1 as u64;
    Greeting { hello: hello.encode(), length, max_requests, instance: options.instance }.encode()
}
