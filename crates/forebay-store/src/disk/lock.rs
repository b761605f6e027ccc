//! The lock on a slab directory: one store at a time uses it.
//!
//! The kernel lets go of it when the process ends, however it ends. What is written in the lock file is only for the message
//! that the next store gives.

use std::fs::{File, TryLockError};
use std::io::{Read, Write};

use forebay_private::{Opening, PrivateDirectory};

use crate::StoreError;

/// The lock file's name.
pub(super) const NAME: &str = "lock";

/// Keeps other stores out of a directory until it drops.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    _file: File,
}

impl DirectoryLock {
    pub(crate) fn take(directory: &PrivateDirectory) -> Result<Self, StoreError> {
        let (dir, path) = (directory.path(), directory.path().join(NAME));
        let mut file = directory.file(NAME, Opening::OrMade)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                let pid = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse::<u32>().ok());
                let holder = pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
                return Err(StoreError::InUse { dir: dir.to_owned(), holder });
            }
            Err(TryLockError::Error(error)) => return Err(StoreError::io("lock", &path, error)),
        }
        let note = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        note.map_err(|error| StoreError::io("write the lock file", &path, error))?;
        Ok(Self { _file: file })
    }
}
