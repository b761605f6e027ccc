//! How a client finds the memory of the worker that it knows as `HOST:PORT`, and whether it may look.
//!
//! The client looks only if the host is this one: a socket here can be bound to the worker's address. It looks in the
//! directory of its user for the socket of that address, and for those of workers that listen on all addresses. The
//! directory may be one that others made, so the process that listens must be of our user, or of root. And an address
//! may be this host's and yet lead to another host, as that of a load-balanced service does. So what is found here is
//! used only if the worker that is reached by the other way is the same one ([`Seen::instance`]).

use std::io::{self, ErrorKind, IoSlice};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_memory::Window;
use forebay_private::{may_talk, our_user};
use forebay_transport::wire::{Hello, WireError};
use forebay_types::FailureKind;
use tokio::net::lookup_host;

use crate::options::ClientOptions;
use crate::path::socket_path;
use crate::socket::{self, Received, Socket};
use crate::wire::{Answered, Greeting, MAX_ANSWERED, Malformed};

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

impl NotSeen {
    /// Whether it stays so until a person changes something.
    pub(crate) fn is_lasting(&self) -> bool {
        !matches!(self, Self::Nobody(_) | Self::Gone(_) | Self::Silent(_) | Self::Late(_) | Self::Io(_))
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
        greet(socket, &Hello::ours(&options.cluster, options.block_size)).await
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

/// Hears the worker's hello, maps its memory, and says ours.
async fn greet(socket: Socket, ours: &Hello) -> Result<Seen, NotSeen> {
    let mut buffer = [0; MAX_ANSWERED];
    let (received, memory) = loop {
        socket.readable().await?;
        match socket.receive_with_descriptor(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            received => break received?,
        }
    };
    let Received::Packet(length) = received else {
        return Err(NotSeen::Gone("it closed the session before it said hello".to_owned()));
    };
    let packet = buffer.get(..length).ok_or(Malformed::Size(length))?;
    if let Ok(goodbye) = Answered::decode(packet)
        && let Some(why) = goodbye.header.failure(goodbye.body)
    {
        let reason = why.message().to_owned();
        return Err(match why.kind() {
            FailureKind::Unavailable => NotSeen::Gone(reason),
            _ => NotSeen::Refused(reason),
        });
    }
    let greeting = Greeting::decode(packet)?;
    ours.check(&greeting.hello)?;
    let memory = memory.ok_or_else(|| NotSeen::Broken("it sent no descriptor of its memory".to_owned()))?;
    let unmapped = |error: io::Error| match error.kind() {
        ErrorKind::InvalidData | ErrorKind::InvalidInput => NotSeen::Broken(error.to_string()),
        _ => NotSeen::Io(error),
    };
    let window = Window::map(memory.as_fd(), greeting.length).map_err(unmapped)?;
    socket.send(&[IoSlice::new(&ours.encode())])?;
    let Greeting { max_requests, instance, .. } = greeting;
    Ok(Seen { socket, window, max_requests: max_requests as usize, instance })
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
