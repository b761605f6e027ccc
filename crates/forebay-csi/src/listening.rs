//! The sockets that the kubelet connects to.
//!
//! They lie in the kubelet's directories, which have sockets of others. So each is made with mode 0600 from the
//! beginning, is not put in the place of anything but a socket, and goes with its listener. The kernel says who
//! connects: root, or our user.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::Stream;
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::{UnixListener, UnixStream};
use tracing::warn;

/// Connections that wait for being accepted. There is one kubelet.
const BACKLOG: i32 = 16;
/// After an error of accepting, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// A socket that listens, and its path.
#[derive(Debug)]
pub(crate) struct Listener {
    listener: UnixListener,
    path: PathBuf,
    /// Of the socket's own file: another driver may have put its own in the place.
    inode: u64,
    /// The id under which the kernel shows users that have no number here.
    nobody: u32,
}

impl Listener {
    /// Listens at `path`, in the place of the socket that an earlier process left there. To be called in a runtime.
    ///
    /// # Errors
    /// When something else is there, its directory is not, or the path is longer than the 107 bytes that the kernel has
    /// room for.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        match path.symlink_metadata() {
            Ok(there) if there.file_type().is_socket() => std::fs::remove_file(path)?,
            Ok(_) => return Err(io::Error::new(io::ErrorKind::AlreadyExists, "something is there that is no socket")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let listener = UnixListener::from_std(listening(path)?.into())?;
        let inode = path.symlink_metadata()?.ino();
        Ok(Self { listener, path: path.to_owned(), inode, nobody: forebay_private::nobody() })
    }

    /// All that connect and may.
    pub(crate) fn incoming(self) -> impl Stream<Item = io::Result<UnixStream>> {
        futures::stream::unfold(self, |listener| async move { Some((Ok(listener.accept().await), listener)) })
    }

    async fn accept(&self) -> UnixStream {
        loop {
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    warn!(path = %self.path.display(), %error, "cannot accept a connection");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            // If the kernel does not say which user it is, it is a stranger.
            let peer = stream.peer_cred().map(|peer| peer.uid());
            match peer {
                Ok(peer) if forebay_private::may_talk(peer, forebay_private::our_user(), self.nobody) => return stream,
                peer => warn!(path = %self.path.display(), ?peer, "another user is sent away"),
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.path.symlink_metadata().is_ok_and(|there| there.ino() == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A socket that is its users alone as soon as there is a file of it: on Linux, the file gets the mode that the socket
/// has.
fn listening(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use futures::StreamExt as _;

    use super::*;

    #[tokio::test]
    async fn a_socket_is_its_users_alone_replaces_a_dead_one_and_goes_with_its_listener() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("csi.sock");
        // As a killed process leaves it.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let listener = Listener::bind(&path).unwrap();
        assert_eq!(path.symlink_metadata().unwrap().permissions().mode() & 0o777, 0o600);
        {
            let mut incoming = std::pin::pin!(listener.incoming());
            let (connected, accepted) = tokio::join!(UnixStream::connect(&path), incoming.next());
            assert!(connected.is_ok() && accepted.unwrap().is_ok());
        }
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn what_is_no_socket_stays_and_so_does_the_socket_of_a_successor() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("csi.sock");
        std::fs::write(&path, "theirs").unwrap();
        assert_eq!(Listener::bind(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        std::fs::remove_file(&path).unwrap();
        let before = Listener::bind(&path).unwrap();
        let _after = Listener::bind(&path).unwrap();
        drop(before);
        assert!(path.exists());
        assert!(Listener::bind(&directory.path().join("none/csi.sock")).is_err());
        assert!(Listener::bind(&directory.path().join("d".repeat(108))).is_err());
    }
}
