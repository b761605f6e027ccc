//! A slab on something that is no file and has a time of its own: the disk of a simulation.
//!
//! Everything above the interface is the same as over a file, recovery after a crash included. What differs is that no thread is
//! started and nothing blocks, so that what happens is a function of what the medium does.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::front::{Back, Front, Kind, Operation};
use crate::disk::{Opened, PAGE, Slab, file_size};
use crate::{Store, StoreError, StoreOptions};

/// Operations under way on one medium, as on a slab that threads serve.
const TOGETHER: usize = 8;

/// What holds the bytes of a slab.
#[async_trait::async_trait]
pub trait Medium: Send + Sync + 'static {
    /// Fills `into` from `offset`. Both are multiples of [`SlabMedium::PAGE`].
    ///
    /// # Errors
    /// Whatever a disk fails with.
    async fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Writes these bytes, one after the other, at `offset`. What is written of them when it fails, or is given up, is any of
    /// its pages.
    ///
    /// # Errors
    /// Whatever a disk fails with.
    async fn write(&self, offset: u64, parts: &[&[u8]]) -> io::Result<()>;
}

/// A slab without a directory.
#[derive(Clone)]
pub struct SlabMedium {
    /// What it is called in messages.
    pub name: PathBuf,
    /// Its identity: what lies in it under another one is not believed.
    pub id: [u8; 16],
    /// How many frames it has room for.
    pub frames: u32,
    /// Whether nothing was ever written to it.
    pub is_new: bool,
    /// What holds its bytes.
    pub medium: Arc<dyn Medium>,
}

impl SlabMedium {
    /// The unit of reading and writing, in bytes.
    pub const PAGE: usize = PAGE;

    /// Bytes that a slab of so many frames has.
    #[must_use]
    pub fn size(frames: u32) -> u64 {
        file_size(frames)
    }
}

impl Store {
    /// Opens a store on these slabs, in the place of the directories of its options.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub async fn open_on(options: StoreOptions, slabs: Vec<SlabMedium>) -> Result<Self, StoreError> {
        options.check()?;
        let mut opened = Vec::new();
        let limits = options.disk_limits(slabs.len());
        for (number, slab) in slabs.into_iter().enumerate() {
            let SlabMedium { name: dir, id, frames, is_new, medium } = slab;
            let back = OnMedium { medium, runtime: tokio::runtime::Handle::current() };
            let io = Arc::new(Front::new(back, TOGETHER, &dir, limits));
            let slab = Opened { dir, id, frames, is_new, io, file: None, lock: None };
            opened.push(Slab::recover(number, slab, &options).await?);
        }
        Ok(Self::start(options, opened))
    }
}

/// Each operation is a task, which goes on when its caller waits no more.
struct OnMedium {
    medium: Arc<dyn Medium>,
    runtime: tokio::runtime::Handle,
}

impl Back for OnMedium {
    fn begin(&self, mut operation: Operation) {
        let medium = Arc::clone(&self.medium);
        self.runtime.spawn(async move {
            let offset = operation.offset;
            let result = match &mut operation.kind {
                Kind::Read { into, .. } => medium.read(offset, into).await,
                Kind::Write { from, .. } => medium.write(offset, &from.parts()).await,
            };
            operation.end(result);
        });
    }
}
