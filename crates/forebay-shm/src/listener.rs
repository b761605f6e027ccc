//! The socket that a worker listens on, and the claim to its path.
//!
//! A path outlives the process that bound it. So beside each socket lies a lock, which the kernel lets go of when its
//! process ends, however it ends: a socket whose lock is free is nobody's, and is removed by the next that listens. To
//! connect would tell the same, but costs a living worker a session. Locks are made, tried and removed under the
//! directory's lock, which is held for no longer than that: so nobody holds the lock of a file that is not there any
//! more.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

use forebay_private::{Opening, PrivateDirectory, PrivateError};
use rustix::fs::{FlockOperation, flock};

use crate::WindowError;
use crate::path::{LOCK, MAX_PATH, SOCKET};
use crate::socket::{self, Socket};

/// A socket that listens; its path goes with it.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: Socket,
    directory: PrivateDirectory,
    /// The name of the socket and of its lock, without what they end with.
    stem: String,
    lock: File,
}

impl Listener {
    /// Listens at `path`, which [`socket_path`](crate::socket_path) gave, and makes the directory if it is not there.
    pub(crate) fn bind(path: &Path) -> Result<Self, WindowError> {
        let length = path.as_os_str().len();
        if length > MAX_PATH {
            return Err(WindowError::TooLong { path: path.to_owned(), length });
        }
        let refused = |error: io::Error| WindowError::Io { action: "listen at", path: path.to_owned(), error };
        let name = path.file_name().and_then(|name| name.to_str()?.strip_suffix(SOCKET));
        let (Some(parent), Some(stem)) = (path.parent(), name) else {
            return Err(refused(io::ErrorKind::InvalidInput.into()));
        };
        let directory = PrivateDirectory::make_all(parent, is_ours)?;
        let entered = Entered::wait(&directory).map_err(refused)?;
        sweep(&directory)?;
        let lock = directory.file(&format!("{stem}{LOCK}"), Opening::OrMade)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(WindowError::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(error)) => return Err(refused(error)),
        }
        let socket = socket::listen(path).map_err(refused)?;
        drop(entered);
        Ok(Self { socket, directory, stem: stem.to_owned(), lock })
    }

    /// The next that connects.
    pub(crate) async fn accept(&self) -> io::Result<Socket> {
        self.socket.accept().await
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // While the lock is ours, so is the path.
        let _ = self.directory.remove(&format!("{}{SOCKET}", self.stem));
        // Whoever is there now may be about to try the lock; it stays then, until the next that listens removes it.
        if let Ok(_entered) = Entered::at_once(&self.directory) {
            let _ = self.directory.remove(&format!("{}{LOCK}", self.stem));
        }
        // Closing alone would not do: a child process that is just being started shares the descriptor for a moment.
        let _ = self.lock.unlock();
    }
}

/// The directory's lock, for as long as this lives.
struct Entered<'a>(&'a PrivateDirectory);

impl<'a> Entered<'a> {
    fn wait(directory: &'a PrivateDirectory) -> io::Result<Self> {
        rustix::io::retry_on_intr(|| flock(directory, FlockOperation::LockExclusive))?;
        Ok(Self(directory))
    }

    fn at_once(directory: &'a PrivateDirectory) -> io::Result<Self> {
        flock(directory, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self(directory))
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let _ = flock(self.0, FlockOperation::Unlock);
    }
}

/// Removes what processes left that are gone. The directory's lock is held.
fn sweep(directory: &PrivateDirectory) -> Result<(), PrivateError> {
    for name in directory.names()? {
        let Some(stem) = name.to_str().and_then(|name| name.strip_suffix(LOCK)) else { continue };
        let lock = directory.file(&format!("{stem}{LOCK}"), Opening::Existing);
        if lock.is_ok_and(|lock| lock.try_lock().is_ok()) {
            let _ = directory.remove(&format!("{stem}{SOCKET}"));
            let _ = directory.remove(&format!("{stem}{LOCK}"));
        }
    }
    Ok(())
}

fn is_ours(name: &str) -> bool {
    name.ends_with(SOCKET) || name.ends_with(LOCK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    fn at(directory: &Path, number: u16) -> PathBuf {
        crate::socket_path(&directory.join("sockets"), ([127, 0, 0, 1], number).into())
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory.join("sockets")).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// What a worker that was killed leaves.
    fn killed(path: &Path) {
        let listener = Listener::bind(path).unwrap();
        listener.lock.unlock().unwrap();
        std::mem::forget(listener);
    }

    #[tokio::test]
    async fn a_socket_is_its_users_alone_and_goes_with_its_listener() {
        let directory = tempfile::tempdir().unwrap();
        let path = at(directory.path(), 1);
        let listener = Listener::bind(&path).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(path.parent().unwrap()), mode(&path)), (0o700, 0o600));
        assert!(matches!(Listener::bind(&path), Err(WindowError::InUse { .. })));
        let other = Listener::bind(&at(directory.path(), 2)).unwrap();
        socket::connect(&path).unwrap();
        drop(listener);
        assert_eq!(names(directory.path()).len(), 2);
        assert_eq!(socket::connect(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        drop(other);
        drop(Listener::bind(&path).unwrap());
        assert_eq!(names(directory.path()), Vec::<String>::new());
    }

    #[tokio::test]
    async fn what_dead_workers_left_is_replaced_and_removed_and_the_living_keep_theirs() {
        let directory = tempfile::tempdir().unwrap();
        let path = |number| at(directory.path(), number);
        let alive = Listener::bind(&path(1)).unwrap();
        killed(&path(3));
        // The next one that listens removes what that left.
        killed(&path(2));
        assert_eq!(names(directory.path()).len(), 4);
        let replaced = Listener::bind(&path(2)).unwrap();
        assert_eq!(names(directory.path()).len(), 4, "{:?}", names(directory.path()));
        for path in [path(1), path(2)] {
            socket::connect(&path).unwrap();
        }
        assert!(matches!(Listener::bind(&path(1)), Err(WindowError::InUse { .. })));
        drop((alive, replaced));
        assert_eq!(names(directory.path()).len(), 0);
    }

    #[tokio::test]
    async fn a_directory_that_is_not_ours_alone_and_a_path_that_is_too_long_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let long = at(&directory.path().join("d".repeat(100)), 1);
        let refused = Listener::bind(&long).unwrap_err();
        assert!(refused.to_string().contains("107"), "{refused}");
        assert!(!directory.path().join("d".repeat(100)).exists());
        let (squatted, elsewhere) = (directory.path().join("sockets"), directory.path().join("elsewhere"));
        std::fs::create_dir(&elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &squatted).unwrap();
        assert!(matches!(Listener::bind(&at(directory.path(), 1)), Err(WindowError::NotOurs(_))));
        assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0);
        std::fs::remove_file(&squatted).unwrap();
        std::fs::create_dir(&squatted).unwrap();
        if let Err(error) = std::os::unix::fs::chown(&squatted, Some(65_534), None) {
            use std::io::Write as _;
            let _ = writeln!(io::stderr(), "skipped: cannot give a directory to another user: {error}");
            return;
        }
        let refused = Listener::bind(&at(directory.path(), 1)).unwrap_err();
        assert!(matches!(&refused, WindowError::NotOurs(not_ours) if not_ours.path == squatted), "{refused}");
    }
}
