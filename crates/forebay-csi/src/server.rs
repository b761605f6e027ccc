//! The driver as a whole: its sockets and services, from the start to the end.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;
use tonic::transport::{Endpoint, Server};
use tracing::{info, warn};

use crate::answers::Answers;
use crate::daemon::Daemons;
use crate::directory::KubeletDirectory;
use crate::generated::csi::ProbeRequest;
use crate::generated::csi::identity_client::IdentityClient;
use crate::generated::csi::identity_server::IdentityServer;
use crate::generated::csi::node_server::NodeServer;
use crate::generated::registration::registration_server::RegistrationServer;
use crate::identity::IdentityService;
use crate::inline::InlinePolicy;
use crate::launcher::{self, Launcher};
use crate::listening::Listener;
use crate::node::{NodeService, Volumes};
use crate::pending::Pending;
use crate::registration::RegistrationService;
use crate::succession::{self, Renewals};

/// The largest message that is read, in bytes: more than all limits of its fields together.
const MAX_MESSAGE: usize = 256 << 10;
/// Calls of one connection that are under way.
const MAX_CALLS: u32 = 128;
/// How long calls that are under way may take at the end. A mount that is not ready by then is finished by its own
/// process.
const END_WITHIN: Duration = Duration::from_secs(20);
/// How long the driver may take to say how it is.
const PROBE_WITHIN: Duration = Duration::from_secs(5);

/// What the driver is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its name, as of the CSIDriver object.
    pub driver: String,
    /// The version that it says it is.
    pub version: String,
    /// The name of its node.
    pub node: String,
    /// The kubelet's directory, as the kubelet has it: paths outside of it are refused.
    pub kubelet: PathBuf,
    /// Where it listens. The directory of the socket is made.
    pub socket: PathBuf,
    /// The kubelet's directory for plugins, in which the driver registers; without it, it does not.
    pub registry: Option<PathBuf>,
    /// What pods may mount by themselves.
    pub inline: InlinePolicy,
    /// The program that mounts: this one.
    pub program: PathBuf,
    /// A directory for the logs of daemons, which is made.
    pub logs: PathBuf,
    /// Where keepers of mounts are had (`forebay keeper --host`); without, a mount ends with its process.
    pub keepers: Option<PathBuf>,
}

/// Why the driver cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The name is none.
    #[error("`{0}` is no name of a driver: write it as `csi.forebay.io`, of lower-case letters, digits, `-` and `.`")]
    Name(String),
    /// There is no such directory.
    #[error("the kubelet's directory {} cannot be used: {error}; name it with --kubelet-dir", path.display())]
    Kubelet {
        /// Which one.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// There can be no logs.
    #[error("cannot make the directory {} for logs: {error}", path.display())]
    Logs {
        /// Which one.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// Keepers cannot ask for processes to be started again.
    #[error("cannot start mounts again that keepers have: {0}")]
    Launcher(#[from] forebay_private::PrivateError),
    /// It cannot listen.
    #[error("cannot listen at {}: {error}", path.display())]
    Listen {
        /// Where.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// Serving failed.
    #[error("cannot serve the kubelet: {0}")]
    Serve(#[from] tonic::transport::Error),
}

/// How a driver is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probed {
    /// It serves and can mount.
    Ready,
    /// It serves, and there is no `/dev/fuse`.
    NoDevice,
}

/// Serves the kubelet until `end`. Mounts stay as they are; where another driver has come by then that relies on the same keepers, their
/// daemons go on as its own, which may take minutes.
///
/// # Errors
/// [`ServeError`].
pub async fn serve(settings: Settings, end: impl Future<Output = ()>) -> Result<(), ServeError> {
    check_name(&settings.driver)?;
    let calls = TaskTracker::new();
    let (identity, node) = services(&settings, calls.clone())?;
    // As the kernel's table has it, and so daemons.
    let kubelet = settings.kubelet.canonicalize();
    let kubelet = kubelet.map_err(|error| ServeError::Kubelet { path: settings.kubelet.clone(), error })?;
    if let Some(directory) = settings.socket.parent() {
        std::fs::create_dir_all(directory).map_err(|error| listen_error(&settings.socket, error))?;
    }
    let launcher = settings.keepers.as_deref().map(Launcher::beside).transpose()?;
    let driver = bind(&settings.socket)?;
    // The kubelet calls as soon as it finds the second socket, and is heard then: the first one listens.
    let registration = match &settings.registry {
        Some(directory) => Some(bind(&registration_socket(directory, &settings.driver))?),
        None => None,
    };
    let own = launcher.as_ref().map(Launcher::inode);
    info!(driver = settings.driver, node = settings.node, socket = %settings.socket.display(), "ready");
    let ending = CancellationToken::new();
    if let Some(launcher) = launcher {
        calls.spawn(launcher.serve(ending.clone()));
    }
    let serving = server()
        .add_service(IdentityServer::new(identity).max_decoding_message_size(MAX_MESSAGE))
        .add_service(NodeServer::new(node).max_decoding_message_size(MAX_MESSAGE))
        .serve_with_incoming_shutdown(driver.incoming(), ending.clone().cancelled_owned());
    let registering = register(&settings, registration, ending.clone());
    let mut both =
        std::pin::pin!(async { tokio::try_join!(async { serving.await.map_err(ServeError::from) }, registering) });
    let end = async {
        end.await;
        // The kubelet is answered meanwhile, if it still asks this one.
        if let (Some(keepers), Some(own)) = (&settings.keepers, own) {
            succession::hand_over(launcher::beside(keepers), own, kubelet).await;
        }
    };
    tokio::select! {
        ended = &mut both => return ended.map(drop),
        () = end => {}
    }
    ending.cancel();
    calls.close();
    let all = async {
        let ended = (&mut both).await.map(drop);
        calls.wait().await;
        ended
    };
    tokio::time::timeout(END_WITHIN, all).await.unwrap_or_else(|_| {
        warn!("calls are still under way: the kubelet repeats them");
        Ok(())
    })
}

/// Asks the driver at `socket` how it is. `own`: it must be one of this pod. While pods are replaced that of the one before listens there
/// until the next one does, and is no reason to end the one before.
///
/// # Errors
/// When it does not answer, or is another pod's.
pub async fn probe(socket: &Path, own: bool) -> Result<Probed, Status> {
    if own {
        let asked = tokio::time::timeout(PROBE_WITHIN, UnixStream::connect(socket)).await;
        let connected = asked.map_err(io::Error::from).flatten();
        let peer = connected.and_then(|stream| stream.peer_cred());
        let peer =
            peer.map_err(|error| Status::unavailable(format!("cannot connect to {}: {error}", socket.display())))?;
        if !is_seen(peer.pid()) {
            return Err(Status::unavailable("the driver of another pod listens there"));
        }
    }
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()));
    let endpoint = endpoint.map_err(|error| Status::invalid_argument(error.to_string()))?;
    let channel = endpoint.connect_timeout(PROBE_WITHIN).timeout(PROBE_WITHIN).connect().await;
    let channel =
        channel.map_err(|error| Status::unavailable(format!("cannot connect to {}: {error}", socket.display())))?;
    let answer = IdentityClient::new(channel).probe(ProbeRequest {}).await?.into_inner();
    Ok(if answer.ready == Some(false) { Probed::NoDevice } else { Probed::Ready })
}

/// Whether the process that the kernel names is one of this PID namespace. Of another one it has no number.
fn is_seen(process: Option<i32>) -> bool {
    process.is_some_and(|process| process > 0)
}

/// The identity and the node service.
fn services(settings: &Settings, calls: TaskTracker) -> Result<(IdentityService, NodeService), ServeError> {
    let kubelet = KubeletDirectory::new(&settings.kubelet)
        .map_err(|error| ServeError::Kubelet { path: settings.kubelet.clone(), error })?;
    let daemons = Daemons::new(settings.program.clone(), settings.logs.clone(), settings.keepers.clone())
        .map_err(|error| ServeError::Logs { path: settings.logs.clone(), error })?;
    let volumes = Volumes {
        node: settings.node.clone(),
        kubelet,
        daemons,
        inline: settings.inline.clone(),
        answers: Answers::default(),
        pending: Pending::default(),
        renewals: Renewals::new(settings.keepers.as_deref().map(launcher::beside)),
    };
    let identity = IdentityService { driver: settings.driver.clone(), version: settings.version.clone() };
    Ok((identity, NodeService::new(volumes, calls)))
}

/// Serves the kubelet's questions who this is, until `ending`.
async fn register(
    settings: &Settings,
    listener: Option<Listener>,
    ending: CancellationToken,
) -> Result<(), ServeError> {
    let Some(listener) = listener else { return Ok(()) };
    let endpoint = settings.socket.display().to_string();
    let service = RegistrationService { driver: settings.driver.clone(), endpoint };
    let serving = server()
        .add_service(RegistrationServer::new(service).max_decoding_message_size(MAX_MESSAGE))
        .serve_with_incoming_shutdown(listener.incoming(), ending.cancelled_owned());
    Ok(serving.await?)
}

fn server() -> Server {
    Server::builder().max_concurrent_streams(MAX_CALLS)
}

/// The socket by which the kubelet finds the driver.
///
/// The kubelet says the path of this socket as the authority of its requests, each `/` as `%2F`. In a host name that is
/// malformed, and refused below us (the `http` crate); before an `@` it is the name of a user, and may be. So there is
/// an `@` in the name.
fn registration_socket(directory: &Path, driver: &str) -> PathBuf {
    directory.join(format!("forebay@{driver}.sock"))
}

fn bind(path: &Path) -> Result<Listener, ServeError> {
    Listener::bind(path).map_err(|error| listen_error(path, error))
}

fn listen_error(path: &Path, error: io::Error) -> ServeError {
    ServeError::Listen { path: path.to_owned(), error }
}

/// Kubernetes wants a domain name of at most 63 characters.
fn check_name(driver: &str) -> Result<(), ServeError> {
    let is_of_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let is_end = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let bytes = driver.as_bytes();
    let is_name = bytes.len() <= 63
        && is_end(bytes.first().copied())
        && is_end(bytes.last().copied())
        && driver.bytes().all(is_of_name)
        && !driver.contains("..");
    if is_name { Ok(()) } else { Err(ServeError::Name(driver.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_driver_of_this_pod_is_one_whose_process_has_a_number_here() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("csi.sock");
        let _listener = Listener::bind(&path).unwrap();
        let stream = UnixStream::connect(&path).await.unwrap();
        assert!(is_seen(stream.peer_cred().unwrap().pid()));
        // As the kernel shows one of a namespace beside this one.
        assert!(!is_seen(Some(0)) && !is_seen(None));
        let nobody = probe(&directory.path().join("none.sock"), true).await.unwrap_err();
        assert!(nobody.message().contains("cannot connect"), "{nobody}");
    }

    #[test]
    fn a_driver_has_the_name_of_a_domain() {
        for good in ["csi.forebay.io", "a", "a-1.b"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for wrong in ["", "CSI.forebay.io", "../x", "a/b", ".a", "a-", "a..b", "a@b", &"a".repeat(64)] {
            assert!(check_name(wrong).is_err(), "{wrong}");
        }
    }
}
