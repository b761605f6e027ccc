//! A slab directory: making, checking, sizing and opening its slab file.
//!
//! Nothing here waits for another process, and nothing that is not ours is ever overwritten: a new slab is made under
//! another name and renamed when it is whole. Directory and files are the worker's user's alone
//! (`forebay-private`): what another user could write, the worker would serve.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_private::{Opening, PrivateDirectory, PrivateError};
use forebay_types::ByteSize;
use rustix::fs::FallocateFlags;

use super::geometry::{PAGE, file_size, frames_in};
use super::header::{SlabId, Superblock, VERSION};
use super::lock::{self, DirectoryLock};
use crate::io::Files;
use crate::{DiskOptions, ServeMode, StoreError};

/// The slab's name.
const SLAB: &str = "slab";
/// That of a slab that is being made.
const NEW: &str = "slab.new";

/// An open slab file and what is known of it.
#[derive(Debug)]
pub(crate) struct SlabFile {
    pub(crate) files: Files,
    pub(crate) frames: u32,
    pub(crate) id: SlabId,
    /// Just made, so that there is nothing to recover.
    pub(crate) is_new: bool,
    /// Whether writes replace pages in the page cache rather than changing them, so that a socket that still sends a
    /// page sends what was in it.
    pub(crate) writes_pass_page_cache: bool,
    pub(crate) lock: DirectoryLock,
}

/// Makes or opens the slab of a directory. Blocks.
pub(crate) fn open(options: &DiskOptions, serve: ServeMode, block_size: u32) -> Result<SlabFile, StoreError> {
    let DiskOptions { dir, size } = options;
    let frames = frames_in(*size);
    if frames == 0 {
        let least = ByteSize::bytes(file_size(1));
        return Err(StoreError::TooSmall { dir: dir.clone(), size: *size, least });
    }
    if dir.exists() && !dir.is_dir() {
        return Err(StoreError::NotADirectory { dir: dir.clone() });
    }
    let directory = open_directory(dir)?;
    let lock = DirectoryLock::take(&directory)?;

    let path = slab_path(dir);
    let existing = match directory.file(SLAB, Opening::Existing) {
        Ok(file) => Some(file),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error.into()),
    };
    let (id, is_new) = match existing {
        Some(file) if length(&file, &path)? > 0 => adopt(dir, &path, &file, frames, block_size)?,
        _ => (create(&directory, frames, block_size)?, true),
    };
    let (files, direct) = open_files(&directory, serve)?;
    Ok(SlabFile { writes_pass_page_cache: direct && !is_tmpfs(&files.write), files, frames, id, is_new, lock })
}

/// The slab file of a directory.
#[must_use]
pub fn slab_path(dir: &Path) -> PathBuf {
    dir.join(SLAB)
}

/// Opens the directory, and makes it if it is not there. Not what it is in: that is where a disk would be mounted, and
/// if it is not, another one would fill up.
pub(super) fn open_directory(dir: &Path) -> Result<PrivateDirectory, StoreError> {
    let is_ours = |name: &str| [lock::NAME, SLAB, NEW].contains(&name);
    PrivateDirectory::make(dir, is_ours).map_err(|error| match error {
        error if error.is_not_found() => StoreError::NoParent { dir: dir.to_owned() },
        error => error.into(),
    })
}

fn length(file: &File, path: &Path) -> Result<u64, StoreError> {
    Ok(file.metadata().map_err(|error| StoreError::io("look at", path, error))?.len())
}

/// Makes a new slab, whole or not at all.
fn create(directory: &PrivateDirectory, frames: u32, block_size: u32) -> Result<SlabId, StoreError> {
    let (dir, draft) = (directory.path(), directory.path().join(NEW));
    let file = directory.file(NEW, Opening::Emptied)?;
    let made = resize(dir, &draft, &file, frames).and_then(|()| {
        let id = rand::random();
        let superblock = Superblock::encode(id, block_size);
        let write = file.write_all_at(&superblock.0, 0).and_then(|()| file.sync_all());
        write.map_err(|error| StoreError::io("write", &draft, error))?;
        directory.rename(NEW, SLAB).map_err(|error| StoreError::io("rename", &draft, error))?;
        Ok(id)
    });
    if made.is_err() {
        let _ = directory.remove(NEW);
    }
    made
}

/// Checks that a file is a slab and gives it its configured size; whether it starts empty.
fn adopt(dir: &Path, path: &Path, file: &File, frames: u32, block_size: u32) -> Result<(SlabId, bool), StoreError> {
    let mut page = [0; PAGE];
    let superblock = match file.read_exact_at(&mut page, 0) {
        Ok(()) => Superblock::decode(&page),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Superblock::Foreign,
        Err(error) => return Err(StoreError::io("read", path, error)),
    };
    let known = match superblock {
        Superblock::Slab { id, block_size: found } if found == block_size => Ok(id),
        Superblock::Slab { block_size: found, .. } => Err(format!(
            "it was filled with a `block.size` of {}, and now that is {}",
            ByteSize::bytes(u64::from(found)),
            ByteSize::bytes(u64::from(block_size))
        )),
        Superblock::Damaged => Err("its superblock is damaged".to_owned()),
        Superblock::Version(found) => {
            return Err(StoreError::SlabVersion { path: path.to_owned(), found, known: VERSION });
        }
        Superblock::Foreign => return Err(StoreError::NotASlab { path: path.to_owned() }),
    };
    resize(dir, path, file, frames)?;
    let reason = match known {
        Ok(id) => return Ok((id, false)),
        Err(reason) => reason,
    };
    tracing::warn!(path = %path.display(), reason, "a slab starts empty");
    // What lies in it is of another identity from now on, so that no recovery takes it for its own.
    let id = rand::random();
    let write = file.write_all_at(&Superblock::encode(id, block_size).0, 0).and_then(|()| file.sync_all());
    write.map_err(|error| StoreError::io("write", path, error))?;
    Ok((id, true))
}

/// Gives the file room for its frames, all of it from the file system now, so that no write finds it full later.
fn resize(dir: &Path, path: &Path, file: &File, frames: u32) -> Result<(), StoreError> {
    let size = file_size(frames);
    let metadata = file.metadata().map_err(|error| StoreError::io("look at", path, error))?;
    let before = metadata.len();
    if before > size {
        tracing::info!(path = %path.display(), before, size, "shrinking a slab");
        file.set_len(size).map_err(|error| StoreError::io("shrink", path, error))?;
    }
    let space =
        rustix::fs::fstatvfs(file).map_err(|error| StoreError::io("look at the file system of", path, error.into()))?;
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::NOSPC) => {
            let _ = file.set_len(before.min(size));
            // 512 is the unit of `st_blocks` whatever the file system.
            let needed = ByteSize::bytes(size.saturating_sub(metadata.blocks() * 512));
            let available = ByteSize::bytes(space.f_bavail * space.f_frsize);
            Err(StoreError::NoSpace { dir: dir.to_owned(), needed, available })
        }
        Err(rustix::io::Errno::OPNOTSUPP) => {
            tracing::warn!(path = %path.display(), "the file system cannot reserve space, the slab may find it full");
            file.set_len(size).map_err(|error| StoreError::io("extend", path, error))
        }
        Err(error) => Err(StoreError::io("reserve space for", path, error.into())),
    }
}

/// Opens the slab for its serving mode; whether writes are direct. Writes are wherever the file system allows: they
/// would only push other files out of the page cache.
fn open_files(directory: &PrivateDirectory, serve: ServeMode) -> Result<(Files, bool), StoreError> {
    let open_buffered = || directory.file(SLAB, Opening::Existing).map(Arc::new);
    let direct = match directory.file(SLAB, Opening::Direct) {
        Ok(file) => Some(Arc::new(file)),
        Err(PrivateError::Io { error, .. }) if error.kind() == io::ErrorKind::InvalidInput => {
            let path = slab_path(directory.path());
            tracing::warn!(path = %path.display(), "the file system has no direct I/O, using the page cache");
            None
        }
        Err(error) => return Err(error.into()),
    };
    let is_direct = direct.is_some();
    let write = direct.map_or_else(open_buffered, Ok)?;
    let read = if serve == ServeMode::Dio { Arc::clone(&write) } else { open_buffered()? };
    Ok((Files { read, write }, is_direct))
}

fn is_tmpfs(file: &File) -> bool {
    // TMPFS_MAGIC of linux/magic.h. tmpfs takes O_DIRECT and ignores it: its files are the page cache.
    const TMPFS: u64 = 0x0102_1994;
    rustix::fs::fstatfs(file).is_ok_and(|stat| stat.f_type as u64 == TMPFS)
}
