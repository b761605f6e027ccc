//! What a session changes: files are written whole, copied and removed, directories made and removed.
//!
//! The rules are those of a mount's writes (docs/SEMANTICS.md, "Writing"): an object appears or is replaced whole or not at all, the last
//! writer wins, and whoever made a change sees it in whatever it asks next. `write.mode`, roles, access lists and read-only origins refuse
//! what they refuse to a mount. Nothing is staged on disk: a file goes to the origin while it is written, in order.

use std::sync::Arc;

use bytes::Bytes;
use forebay_types::{Attr, Failure, FailureKind};
use tokio::sync::Mutex;

use crate::error::Error;
use crate::session::{Session, of_path, path_of};
use crate::upload::Upload;
use crate::walk::Entry;

/// What becomes of a file that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It is replaced.
    Replaced,
    /// It stays, and writing fails with EEXIST. The origin is asked before the first byte, and once more with the last one: of two who
    /// do so at once, one does, if the file is no longer than a part and the origin has such a promise; else both may find nothing.
    Kept,
}

/// A file that is being written, from its beginning to its end. Dropped before it is finished, it never was.
pub struct Writer {
    session: Arc<Session>,
    path: Vec<u8>,
    /// None once it is finished or given up, and after an error.
    upload: Mutex<Option<Upload>>,
}

impl Session {
    /// Begins to write a file. The origin has nothing of it before [`Writer::finish`].
    ///
    /// # Errors
    /// EROFS with `write.mode=none`; EEXIST.
    pub async fn create(self: Arc<Self>, path: Vec<u8>, existing: Existing) -> Result<Writer, Error> {
        self.writing.check().map_err(|failure| of_path(failure, &path))?;
        let fs_path = path_of(&path)?;
        if existing == Existing::Kept {
            match self.client.stat(&fs_path, true).await {
                Ok(_) => return Err(of_path(exists(&path), &path)),
                Err(failure) if failure.kind() == FailureKind::NotFound => {}
                Err(failure) => return Err(of_path(failure, &path)),
            }
        }
        let only_new = existing == Existing::Kept;
        let upload = Upload::new(self.client.clone(), fs_path, Arc::clone(&self.writing), only_new);
        Ok(Writer { session: self, path, upload: Mutex::new(Some(upload)) })
    }

    /// Makes `path` a file of these bytes; what it is then.
    ///
    /// # Errors
    /// As [`Session::create`]; EISDIR, EACCES, ENOSPC and whatever keeps the origin from taking it.
    pub async fn put(self: Arc<Self>, path: Vec<u8>, bytes: Bytes, existing: Existing) -> Result<Entry, Error> {
        let writer = self.create(path, existing).await?;
        writer.write(bytes).await?;
        writer.finish().await
    }

    /// Makes `to` a file with the bytes that `from` has now: at the origin if both are on one, else by reading and writing.
    ///
    /// # Errors
    /// ENOENT, EISDIR, EINVAL where both are one object, ESTALE where the copy has replaced what it was made of, or somebody else has; and
    /// as [`Session::put`].
    pub async fn copy(self: Arc<Self>, from: Vec<u8>, to: Vec<u8>) -> Result<Entry, Error> {
        self.writing.check().map_err(|failure| of_path(failure, &to))?;
        let (source, target) = (path_of(&from)?, path_of(&to)?);
        let attr = self.client.stat(&source, false).await.map_err(|failure| of_path(failure, &from))?.attr;
        if attr.version().is_none() {
            return Err(Error::is_a_directory(&from));
        }
        let copied = self.client.copy(&source, &target).await;
        self.changed(&to);
        match copied {
            Ok(attr) => Ok(Entry::new(&target, attr)),
            Err(failure) if failure.kind() == FailureKind::CrossDevice => self.copy_through(&from, to).await,
            Err(failure) if failure.kind() == FailureKind::NotFound => Err(of_path(failure, &from)),
            Err(failure) => Err(of_path(failure, &to)),
        }
    }

    /// Removes a file.
    ///
    /// # Errors
    /// ENOENT; EISDIR; as [`Session::put`].
    pub async fn remove(self: Arc<Self>, path: Vec<u8>) -> Result<(), Error> {
        self.writing.check().map_err(|failure| of_path(failure, &path))?;
        let fs_path = path_of(&path)?;
        let attr = self.client.stat(&fs_path, false).await.map_err(|failure| of_path(failure, &path))?.attr;
        if attr.version().is_none() {
            return Err(Error::is_a_directory(&path));
        }
        let removed = self.client.remove(&fs_path).await;
        self.changed(&path);
        removed.map_err(|failure| of_path(failure, &path))
    }

    /// Makes a directory, and those above it.
    ///
    /// # Errors
    /// EEXIST when there is anything of that name; as [`Session::put`].
    pub async fn make_directory(self: Arc<Self>, path: Vec<u8>) -> Result<Entry, Error> {
        self.writing.check().map_err(|failure| of_path(failure, &path))?;
        let fs_path = path_of(&path)?;
        let made = self.client.make_directory(&fs_path).await;
        made.map(|attr| Entry::new(&fs_path, attr)).map_err(|failure| of_path(failure, &path))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY; as [`Session::put`].
    pub async fn remove_directory(self: Arc<Self>, path: Vec<u8>) -> Result<(), Error> {
        self.writing.check().map_err(|failure| of_path(failure, &path))?;
        let removed = self.client.remove_directory(&path_of(&path)?).await;
        removed.map_err(|failure| of_path(failure, &path))
    }

    /// Has the workers ask the origin again about `path` and its listing; with `below`, about everything.
    ///
    /// # Errors
    /// When a worker that can be reached does not, or none can be.
    pub async fn refresh(self: Arc<Self>, path: Vec<u8>, below: bool) -> Result<(), Error> {
        let fs_path = path_of(&path)?;
        let refreshed = self.client.refresh(&fs_path, below).await;
        if below {
            self.handles.clear()
        } else {
            self.changed(&path)
        }
        refreshed.map(drop).map_err(|failure| of_path(failure, &path))
    }

    /// From one origin to another. Two URLs may be two ways to one store, which nobody is told: a copy has replaced what it was made of
    /// then, and whoever moves a file by copying must not go on and remove the only one.
    async fn copy_through(self: Arc<Self>, from: &[u8], to: Vec<u8>) -> Result<Entry, Error> {
        let (file, before, source) = self.look_up(from, true).await?;
        let writer = Arc::clone(&self).create(to, Existing::Replaced).await?;
        let (size, block_size) = (file.version().size, u64::from(file.layout().block_size()));
        let mut at = 0;
        while at < size {
            // Within a block, whose size is a u32.
            let length = (block_size - at % block_size).min(size - at) as u32;
            for span in file.read(at, length).await.map_err(|failure| of_path(failure, from))? {
                writer.write(Bytes::copy_from_slice(&span)).await?;
            }
            at += u64::from(length);
        }
        let made = writer.finish().await?;
        // Entity tags of the same bytes may be the same: then the time tells.
        let state = |attr: &Attr| (attr.version().cloned(), attr.modified_nanos);
        match self.client.stat(&source, true).await {
            Ok(now) if state(&now.attr) == state(&before) => Ok(made),
            Ok(_) => {
                let what = format!("{source} was replaced while it was copied: by another, or both are one file");
                Err(of_path(Failure::new(FailureKind::VersionChanged, what), from))
            }
            // It was removed, which is what a move does next.
            Err(failure) if failure.kind() == FailureKind::NotFound => Ok(made),
            Err(failure) => Err(of_path(failure.context("it was copied, and may not be there any more"), from)),
        }
    }
}

impl Writer {
    /// Adds `bytes` at the end. Returns when there is memory for them: what is on its way may still fail, and then the next call does.
    ///
    /// # Errors
    /// EFBIG, and what keeps the origin from taking them. The file is given up then, and also if the future is dropped.
    pub async fn write(&self, bytes: Bytes) -> Result<(), Error> {
        let mut state = self.upload.lock().await;
        let mut upload = self.taken(&mut state)?;
        upload.write(bytes).await.map_err(|failure| of_path(failure, &self.path))?;
        *state = Some(upload);
        Ok(())
    }

    /// Completes the file; what it is. When this returns, the origin has it, and nobody can write to this any more.
    ///
    /// # Errors
    /// What keeps the origin from taking it: the file is what it was before, unless the answer was lost.
    pub async fn finish(&self) -> Result<Entry, Error> {
        let upload = self.taken(&mut *self.upload.lock().await)?;
        let finished = upload.finish().await;
        self.session.changed(&self.path);
        let attr = finished.map_err(|failure| of_path(failure, &self.path))?;
        Ok(Entry::new(&path_of(&self.path)?, attr))
    }

    /// Gives the file up; nothing happens if that was done already, or the file is finished.
    ///
    /// # Errors
    /// When the origin cannot be told: parts of it may take room there.
    pub async fn abort(&self) -> Result<(), Error> {
        let upload = self.upload.lock().await.take();
        match upload {
            Some(upload) => upload.abort().await.map_err(|failure| of_path(failure, &self.path)),
            None => Ok(()),
        }
    }

    fn taken(&self, state: &mut Option<Upload>) -> Result<Upload, Error> {
        state.take().ok_or_else(|| {
            let path = String::from_utf8_lossy(&self.path);
            Error::argument(format!("{path} was finished or given up"), "create it again to write to it")
        })
    }
}

fn exists(path: &[u8]) -> Failure {
    Failure::new(FailureKind::Exists, format!("{} is there already", String::from_utf8_lossy(path)))
}
