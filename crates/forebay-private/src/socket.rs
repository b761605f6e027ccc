//! A Unix socket of this user alone, and who may talk over one.
//!
//! The directory keeps other users away, and the kernel says of each that connects who it is: a directory that root
//! opened to others lets nobody in either.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

use crate::directory::PrivateDirectory;
use crate::error::{PrivateError, our_user};

/// What an address begins with that is the path of a socket, and no host and port.
const SCHEME: &str = "unix:";
/// What the name of a socket ends with.
const SOCKET: &str = ".sock";

/// The address of the socket at `path`, as it is written where others have `HOST:PORT`.
#[must_use]
pub fn socket_address(path: &Path) -> String {
    format!("{SCHEME}{}", path.display())
}

/// The path of the socket that `address` names, if it is no host and port.
#[must_use]
pub fn socket_of(address: &str) -> Option<&Path> {
    address.strip_prefix(SCHEME).map(Path::new)
}

/// Whether two processes trust each other: the other one is of the same user, or of root. `nobody`: the id under which
/// the kernel shows every user that our user namespace does not know.
#[must_use]
pub fn may_talk(peer: u32, ours: u32, nobody: u32) -> bool {
    peer != nobody && (peer == ours || peer == 0)
}

/// The id under which the kernel shows users that have no number in a namespace.
#[must_use]
pub fn nobody() -> u32 {
    const USUAL: u32 = 65_534;
    let set = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
    set.ok().and_then(|set| set.trim().parse().ok()).unwrap_or(USUAL)
}

/// A socket that listens for processes of this user and of root. Its path goes with it, unless another process listens there by then.
#[derive(Debug)]
pub struct PrivateListener {
    listener: UnixListener,
    directory: PrivateDirectory,
    name: String,
    path: PathBuf,
    /// Of the socket's own file.
    inode: u64,
    nobody: u32,
}

impl PrivateListener {
    /// Listens at `path`, whose name ends with `.sock`, in the place of what a killed process left there; makes its
    /// directory, which holds such sockets alone. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`PrivateError`]: when the directory is not this user's alone, or the path is longer than the 107 bytes that the
    /// kernel has room for.
    pub fn bind(path: &Path) -> Result<Self, PrivateError> {
        let refused = |error: io::Error| PrivateError::io("listen at", path, error);
        let name = path.file_name().and_then(OsStr::to_str).filter(|name| name.ends_with(SOCKET));
        let (Some(parent), Some(name)) = (path.parent(), name) else {
            return Err(refused(io::ErrorKind::InvalidInput.into()));
        };
        let directory = PrivateDirectory::make_all(parent, |name| name.ends_with(SOCKET))?;
        match directory.remove(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(refused(error)),
            _ => {}
        }
        let listener = UnixListener::bind(path).map_err(refused)?;
        // Until here the directory alone keeps others away.
        std::fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(refused)?;
        let inode = path.symlink_metadata().map_err(refused)?.ino();
        Ok(Self { listener, directory, name: name.to_owned(), path: path.to_owned(), inode, nobody: nobody() })
    }

    /// The next that connects and may talk to us. Others are sent away.
    ///
    /// # Errors
    /// The kernel's, when it accepts none.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            // If the kernel does not say which user it is, it is a stranger.
            let peer = stream.peer_cred().map(|peer| peer.uid());
            match peer {
                Ok(peer) if may_talk(peer, our_user(), self.nobody) => return Ok(stream),
                peer => tracing::warn!(path = %self.path.display(), ?peer, "another user is sent away"),
            }
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number of the socket's file: at its path there is another one once another process listens there.
    #[must_use]
    pub fn inode(&self) -> u64 {
        self.inode
    }
}

impl Drop for PrivateListener {
    fn drop(&mut self) {
        if self.path.symlink_metadata().is_ok_and(|there| there.ino() == self.inode) {
            let _ = self.directory.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_user_and_root_are_trusted() {
        let may_talk = |peer, ours| may_talk(peer, ours, 65_534);
        assert!(may_talk(1000, 1000) && may_talk(0, 1000) && may_talk(0, 0));
        assert!(!may_talk(1001, 1000) && !may_talk(1000, 0) && !may_talk(65_534, 1000));
        // Every user that has no number here looks like that one.
        assert!(!may_talk(65_534, 65_534) && nobody() > 0);
    }

    #[test]
    fn an_address_is_a_socket_or_a_host() {
        let path = Path::new("/run/forebay/private/1.sock");
        assert_eq!(socket_of(&socket_address(path)), Some(path));
        assert_eq!(socket_of("unix.example.org:80"), None);
    }

    #[tokio::test]
    async fn a_socket_is_its_users_alone_replaces_a_dead_one_and_goes_with_its_listener() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("private/a.sock");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let listener = PrivateListener::bind(&path).unwrap();
        assert_eq!((mode(path.parent().unwrap()), mode(&path)), (0o700, 0o600));
        let (connected, accepted) = tokio::join!(UnixStream::connect(&path), listener.accept());
        assert!(connected.is_ok() && accepted.is_ok());
        drop(listener);
        assert!(!path.exists());
        // As a killed process leaves it.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let listener = PrivateListener::bind(&path).unwrap();
        let (connected, accepted) = tokio::join!(UnixStream::connect(&path), listener.accept());
        assert!(connected.is_ok() && accepted.is_ok());
    }

    #[tokio::test]
    async fn the_socket_of_who_came_next_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("private/a.sock");
        let before = PrivateListener::bind(&path).unwrap();
        let after = PrivateListener::bind(&path).unwrap();
        assert_ne!(before.inode(), after.inode());
        drop(before);
        let (connected, accepted) = tokio::join!(UnixStream::connect(&path), after.accept());
        assert!(connected.is_ok() && accepted.is_ok());
    }

    #[tokio::test]
    async fn a_directory_that_others_use_too_and_a_path_that_is_too_long_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        std::fs::write(directory.path().join("theirs"), "").unwrap();
        let refused = PrivateListener::bind(&directory.path().join("a.sock")).unwrap_err();
        assert!(matches!(refused, PrivateError::NotOurs(_)), "{refused}");
        let long = directory.path().join("d".repeat(100)).join("a.sock");
        assert!(PrivateListener::bind(&long).unwrap_err().to_string().contains("listen at"));
    }
}
