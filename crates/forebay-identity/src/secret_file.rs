//! Files that nobody but their owner may read.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

/// More than any key or certificate file has, in bytes.
pub(crate) const MAX_LEN: u64 = 256 << 10;

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be opened or read.
    #[error("cannot read {path}: {error}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// Others may read it, or write it.
    #[error("{path} is a secret, and its mode is {mode:04o}: others than its owner may open it; `chmod 600 {path}`", path = path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It is somebody else's, who could change it at any time.
    #[error("{path} belongs to user {owner}, and this process runs as user {user}; `chown {user} {path}`", path = path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Whose this process is.
        user: u32,
    },
    /// It is no regular file, or too long for what it should be.
    #[error("{path} is no file of at most {MAX_LEN} bytes", path = path.display())]
    Kind {
        /// The file.
        path: PathBuf,
    },
    /// It is not text.
    #[error("{path} is not text", path = path.display())]
    Text {
        /// The file.
        path: PathBuf,
    },
}

/// Reads a text that anybody may read, such as a certificate.
///
/// # Errors
/// [`FileError`].
pub(crate) fn read_public(path: &Path) -> Result<String, FileError> {
    let file = open(path)?;
    text(path, &file).map(|text| text.to_string())
}

/// Reads a text that must be a secret of this user's or of root's: what is checked is the file that was opened, wherever links
/// lead meanwhile.
///
/// # Errors
/// [`FileError`].
pub fn read_secret(path: &Path) -> Result<Zeroizing<String>, FileError> {
    let file = open(path)?;
    let metadata = file.metadata().map_err(|error| FileError::Read { path: path.to_owned(), error })?;
    let (owner, user) = (metadata.uid(), rustix::process::geteuid().as_raw());
    if owner != user && owner != 0 {
        return Err(FileError::Owner { path: path.to_owned(), owner, user });
    }
    let mode = metadata.mode() & 0o7777;
    // As PostgreSQL's library has it: what root gave a group to read is in order, whoever reads it. Volumes of
    // Kubernetes with `fsGroup` are so, and a key that mounts of root's and a worker with a user of its own share.
    let others = if owner == 0 { 0o037 } else { 0o077 };
    if mode & others != 0 {
        return Err(FileError::Open { path: path.to_owned(), mode });
    }
    text(path, &file)
}

fn open(path: &Path) -> Result<File, FileError> {
    use rustix::fs::{Mode, OFlags};
    // A FIFO would wait for a writer for good.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::empty());
    file.map(File::from).map_err(|error| FileError::Read { path: path.to_owned(), error: error.into() })
}

fn text(path: &Path, file: &File) -> Result<Zeroizing<String>, FileError> {
    let failed = |error| FileError::Read { path: path.to_owned(), error };
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() || metadata.len() > MAX_LEN {
        return Err(FileError::Kind { path: path.to_owned() });
    }
    // Room for all of it at once: what grows is moved, and leaves the secret where it was.
    let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_LEN as usize + 1));
    file.take(MAX_LEN + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_LEN {
        return Err(FileError::Kind { path: path.to_owned() });
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| FileError::Text { path: path.to_owned() })?;
    Ok(Zeroizing::new(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn file(mode: u32) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        std::fs::write(&path, "a secret").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        (directory, path)
    }

    #[test]
    fn a_secret_that_others_may_open_is_refused() {
        let by_root = rustix::process::geteuid().is_root();
        for mode in [0o644, 0o604, 0o620, 0o610, 0o660].into_iter().chain((!by_root).then_some(0o640)) {
            let (_directory, path) = file(mode);
            let refused = read_secret(&path).unwrap_err().to_string();
            assert!(refused.contains(&format!("{mode:04o}")) && refused.contains("chmod 600"), "{refused}");
            assert_eq!(read_public(&path).unwrap(), "a secret");
        }
        for mode in [0o600, 0o400].into_iter().chain(by_root.then_some(0o640)) {
            let (_directory, path) = file(mode);
            assert_eq!(read_secret(&path).unwrap().as_str(), "a secret");
        }
    }

    #[test]
    fn a_secret_of_somebody_else_is_refused() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can give files away");
            return;
        }
        let (_directory, path) = file(0o600);
        std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        assert!(matches!(read_secret(&path), Err(FileError::Owner { owner: 65534, .. })));
    }

    #[test]
    fn what_is_no_file_is_told_of_at_once() {
        let directory = tempfile::tempdir().unwrap();
        assert!(matches!(read_public(directory.path()), Err(FileError::Kind { .. })));
        let pipe = directory.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        assert!(matches!(read_secret(&pipe), Err(FileError::Kind { .. })));
        assert!(matches!(read_public(&directory.path().join("none")), Err(FileError::Read { .. })));
        let long = directory.path().join("long");
        std::fs::write(&long, vec![b'a'; MAX_LEN as usize + 1]).unwrap();
        assert!(matches!(read_public(&long), Err(FileError::Kind { .. })));
    }
}
