//! How a client finds the memory of the worker that it knows as `HOST:PORT`, and whether it may look.
//!
//! The client looks only if the host is this one: a socket here can be bound to the worker's address. It looks in the
//! directory of its user for the socket of that address, and for those of workers that listen on all addresses. The
//! directory may be one that others made, so the process that listens must be of our user, or of root. And an address
//! may be this host's and yet lead to another host, as that of a load-balanced service does. So what is found here is
//! used only if the worker that is reached by the other way is the same one ([`Seen::instance`]). With identities, the process that
//! listens has to prove that it is that worker, too ([`crate::security`]).

use std::io::{self, ErrorKind, IoSlice};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_identity::Unproved;
use forebay_memory::Window;
use forebay_private::{may_talk, our_user};
use forebay_transport::wire::{Hello, WireError};
use forebay_types::FailureKind;
use tokio::net::lookup_host;

use crate::handshake::{Handshake, HandshakeError};
use crate::options::ClientOptions;
use crate::path::socket_path;
use crate::security::ClientSecurity;
use crate::socket::{self, Received, Socket, is_process, our_process};
use crate::wire::{Answered, GREETING_LEN, Greeting, MAX_ANSWERED, Malformed};

/// Why a worker's memory is not to be seen.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotSeen {
    /// It has no address of this host.
    #[error("the worker is not on this host")]
    Elsewhere,
    /// No process listens in this directory.
    #[error("no worker of that address shares its memory in {}", .0.display())]
    Nobody(PathBuf),
    /// A process of another user listens.
    #[error("the worker runs as user {theirs}, we as {ours}; run both as one user, in one user namespace")]
    OtherUser {
        /// Its user.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// The kernel keeps us from it.
    #[error(
        "it may not be connected to (EACCES); the directory of its socket is another user's, or a policy of SELinux or \
         AppArmor forbids it"
    )]
    Denied,
    /// It is not the one that is meant.
    #[error("another worker listens under this address here")]
    OtherWorker,
    /// It is not known whether it is the one that is meant.
    #[error("it does not say who it is: {0}")]
    Silent(String),
    /// The worker does not take us.
    #[error("{0}")]
    Refused(String),
    /// The worker went away.
    #[error("{0}")]
    Gone(String),
    /// One of the two did not prove to the other that it is who it has to be.
    #[error("identities do not fit: {0}")]
    Unproved(#[from] Unproved),
    /// What is proved is proved by another process than the one that listens.
    #[error("another process than the worker has its socket; see which one listens there (`ss -xlp`)")]
    Relayed,
    /// The worker is not one that we may talk to.
    #[error("{0}")]
    Unfit(#[from] WireError),
    /// The worker does not speak as it should.
    #[error("it broke the protocol: {0}")]
    Broken(String),
    /// It took too long.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// The kernel refused.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<Malformed> for NotSeen {
    fn from(malformed: Malformed) -> Self {
        Self::Broken(malformed.to_string())
    }
}

impl From<HandshakeError> for NotSeen {
    fn from(error: HandshakeError) -> Self {
        match error {
            HandshakeError::Closed => closed(),
            HandshakeError::Left => {
                Unproved::new("it left when it had seen the certificate of this process; its log says why").into()
            }
            HandshakeError::Foreign(packet) => goodbye(&packet).unwrap_or_else(|| {
                Unproved::new("it does not speak TLS; set `security.mode` there as it is set here").into()
            }),
            HandshakeError::Tls(error) => Unproved::of_tls(&error).into(),
            HandshakeError::Io(error) => error.into(),
        }
    }
}

impl NotSeen {
    /// Whether it stays so until a person changes something.
    pub(crate) fn is_lasting(&self) -> bool {
        // Certificates are renewed.
        !matches!(
            self,
            Self::Nobody(_) | Self::Gone(_) | Self::Silent(_) | Self::Late(_) | Self::Unproved(_) | Self::Io(_)
        )
    }

    /// Whether an operator should know.
    pub(crate) fn is_remarkable(&self) -> bool {
        !matches!(self, Self::Elsewhere | Self::Nobody(_) | Self::Gone(_) | Self::Silent(_))
    }
}

/// A worker's memory, and the socket that says where in it things are.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) socket: Socket,
    pub(crate) window: Window,
    /// How many requests the worker answers at once.
    pub(crate) max_requests: usize,
    /// Which worker it is: what that answers to a ping, or zero.
    pub(crate) instance: u64,
}

/// Connects to `worker`, written `HOST:PORT`, and exchanges hellos.
///
/// # Errors
/// [`NotSeen`].
pub(crate) async fn reach(worker: &str, options: &ClientOptions) -> Result<Seen, NotSeen> {
    let attempt = async {
        let socket = find(worker, &options.directory).await?;
        greet(socket, worker, options).await
    };
    match tokio::time::timeout(options.connect_timeout, attempt).await {
        Ok(seen) => seen,
        Err(_) => Err(NotSeen::Late(options.connect_timeout)),
    }
}

/// Connects to the first of the worker's sockets at which a process listens that we may talk to.
async fn find(worker: &str, directory: &Path) -> Result<Socket, NotSeen> {
    let (ours, nobody) = (our_user(), forebay_private::nobody());
    let mut none = NotSeen::Elsewhere;
    for address in lookup_host(worker).await?.filter(is_ours) {
        if matches!(none, NotSeen::Elsewhere) {
            none = NotSeen::Nobody(directory.to_owned());
        }
        for path in paths(directory, address) {
            match socket::connect(&path) {
                Ok(socket) => {
                    let theirs = socket.peer_user()?;
                    if may_talk(theirs, ours, nobody) {
                        return Ok(socket);
                    }
                    // A process that took a path that is not its own does not keep us from the next.
                    none = NotSeen::OtherUser { theirs, ours };
                }
                // One that is gone may have left its socket.
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {}
                Err(error) if error.kind() == ErrorKind::PermissionDenied => none = NotSeen::Denied,
                Err(error) => return Err(error.into()),
            }
        }
    }
    Err(none)
}

/// Whether the address is one of this host's.
fn is_ours(address: &SocketAddr) -> bool {
    UdpSocket::bind((address.ip(), 0)).is_ok()
}

/// Where a worker which is reached at `address` may listen.
fn paths(directory: &Path, address: SocketAddr) -> impl Iterator<Item = PathBuf> {
    let port = address.port();
    let all_of_4 = address.is_ipv4().then(|| (Ipv4Addr::UNSPECIFIED, port).into());
    let addresses = [Some(address), all_of_4, Some((Ipv6Addr::UNSPECIFIED, port).into())];
    addresses.into_iter().flatten().map(|address| socket_path(directory, address))
}

/// Exchanges hellos, within a proof of who both are if there must be one, and maps the worker's memory.
pub(crate) async fn greet(socket: Socket, worker: &str, options: &ClientOptions) -> Result<Seen, NotSeen> {
    let ours = Hello::ours(&options.cluster, options.block_size);
    let (greeting, memory) = match &options.security {
        Some(security) => prove(&socket, worker, security, &ours).await?,
        None => plain(&socket, &ours).await?,
    };
    ours.check(&greeting.hello)?;
    let memory = memory.ok_or_else(|| NotSeen::Broken("it sent no descriptor of its memory".to_owned()))?;
    let unmapped = |error: io::Error| match error.kind() {
        ErrorKind::InvalidData | ErrorKind::InvalidInput => NotSeen::Broken(error.to_string()),
        _ => NotSeen::Io(error),
    };
    let window = Window::map(memory.as_fd(), greeting.length).map_err(unmapped)?;
    let Greeting { max_requests, instance, .. } = greeting;
    Ok(Seen { socket, window, max_requests: max_requests as usize, instance })
}

/// Says hello, and hears the worker's.
async fn plain(socket: &Socket, ours: &Hello) -> Result<(Greeting, Option<OwnedFd>), NotSeen> {
    match socket.send(&[IoSlice::new(&ours.encode())]) {
        // It may have said why it left.
        Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {}
        sent => sent?,
    }
    let mut buffer = [0; MAX_ANSWERED];
    let (received, memory) = socket.next_with_descriptor(&mut buffer).await?;
    let Received::Packet(length) = received else { return Err(closed()) };
    let packet = buffer.get(..length).ok_or(Malformed::Size(length))?;
    match goodbye(packet) {
        Some(why) => Err(why),
        None => Ok((Greeting::decode(packet)?, memory)),
    }
}

/// Proves to the worker who this process is, and has it do the same; the hellos go within that.
async fn prove(
    socket: &Socket,
    worker: &str,
    security: &ClientSecurity,
    ours: &Hello,
) -> Result<(Greeting, Option<OwnedFd>), NotSeen> {
    let mut handshake = Handshake::new(socket, security.begin(worker)?);
    handshake.shake().await?;
    security.verify_server(handshake.state())?;
    let hello = [&ours.encode()[..], &our_process().to_le_bytes()].concat();
    handshake.say(&hello, None).await?;
    let greeting: [u8; GREETING_LEN] = handshake.hear().await?;
    let process = u64::from_le_bytes(handshake.hear().await?);
    if !is_process(socket.peer_process(), process) {
        return Err(NotSeen::Relayed);
    }
    Ok((Greeting::decode(&greeting)?, handshake.into_descriptor()))
}

/// Why the worker ends the session, if that is what it says.
fn goodbye(packet: &[u8]) -> Option<NotSeen> {
    let said = Answered::decode(packet).ok()?;
    let why = said.header.failure(said.body)?;
    let reason = why.message().to_owned();
    Some(match why.kind() {
        FailureKind::Unavailable => NotSeen::Gone(reason),
        _ => NotSeen::Refused(reason),
    })
}

fn closed() -> NotSeen {
    NotSeen::Gone("it closed the session before it said hello".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_looked_for_under_its_address_and_under_those_that_stand_for_all() {
        let directory = Path::new("/d");
        let looked_for = |address: &str| paths(directory, address.parse().unwrap()).collect::<Vec<_>>();
        let sockets = |addresses: &[&str]| -> Vec<_> {
            addresses.iter().map(|address| socket_path(directory, address.parse().unwrap())).collect()
        };
        assert_eq!(looked_for("192.0.2.7:7000"), sockets(&["192.0.2.7:7000", "0.0.0.0:7000", "[::]:7000"]));
        assert_eq!(looked_for("[::1]:7000"), sockets(&["[::1]:7000", "[::]:7000"]));
    }

    #[tokio::test]
    async fn a_socket_that_a_dead_worker_left_is_nobodys() {
        let directory = tempfile::tempdir().unwrap();
        let held = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = held.local_addr().unwrap();
        drop(socket::listen(&socket_path(directory.path(), address)).unwrap());
        let options = ClientOptions { directory: directory.path().to_owned(), ..ClientOptions::new("test", 4 << 20) };
        let nobody = reach(&address.to_string(), &options).await.unwrap_err();
        assert!(matches!(&nobody, NotSeen::Nobody(looked_in) if looked_in == directory.path()), "{nobody}");
    }

    #[tokio::test]
    async fn a_worker_on_another_host_is_not_looked_for_and_one_that_does_not_listen_is_not_found() {
        let options = ClientOptions::new("test", 4 << 20);
        // An address of those kept for documentation, which no host has.
        let elsewhere = reach("192.0.2.7:7000", &options).await.unwrap_err();
        assert!(matches!(elsewhere, NotSeen::Elsewhere) && elsewhere.is_lasting(), "{elsewhere}");
        let held = UdpSocket::bind("127.0.0.1:0").unwrap();
        let nobody = reach(&held.local_addr().unwrap().to_string(), &options).await.unwrap_err();
        assert!(matches!(nobody, NotSeen::Nobody(_)) && !nobody.is_lasting(), "{nobody}");
    }
}
