//! One slab at work: runs go in, come out checked, and leave.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_locks::Mutex;
use forebay_memory::{Pool, Span, SpanMut};
use forebay_types::{BlockKey, ByteSize, FileId, SectorRange};
use tokio::sync::Notify;

use super::file::{self, SlabFile};
use super::geometry::{PAGE, class_of};
use super::header::{self, SlabId};
use super::health::Health;
use super::lock::DirectoryLock;
use super::recovery;
use super::space::{DiskExtent, Frames, Space, Usage};
use super::unburied::Unburied;
use crate::io::{DiskIo, WatchStats, WriteBuffer, is_silent};
use crate::residents::Residents;
use crate::run::{DiskRun, Run};
use crate::{DiskOptions, Keep, ServeMode, StoreError, StoreOptions};

/// One slab.
pub(crate) struct Slab {
    pub(crate) dir: PathBuf,
    pub(crate) residents: Residents<DiskRun>,
    pub(crate) counters: Counters,
    /// For readers that send from the file, where it is one; reads go as the serving mode says.
    pub(crate) file: Option<Arc<File>>,
    /// Whether a page may be in a socket's queue while its extent is written anew.
    pub(crate) can_splice: bool,
    /// How its bytes get to readers: as was asked for, where its file system can.
    pub(crate) serve: ServeMode,
    number: usize,
    id: SlabId,
    io: Arc<dyn DiskIo>,
    space: Arc<Space>,
    health: Mutex<Health>,
    waiting_writes: AtomicUsize,
    /// Whether bytes were to be sent from its file since it was last asked for a page because of that.
    is_sent_from: AtomicBool,
    /// What is still to be buried. No more than it has extents.
    unburied: Mutex<Unburied>,
}

/// How long a slab directory may take to be opened, its slab made or sized.
const OPEN_WITHIN: Duration = Duration::from_secs(120);

/// What a slab is made of, when it is open and what is in it is not known yet.
pub(crate) struct Opened {
    pub(crate) dir: PathBuf,
    pub(crate) id: SlabId,
    pub(crate) frames: u32,
    pub(crate) is_new: bool,
    pub(crate) io: Arc<dyn DiskIo>,
    pub(crate) file: Option<Arc<File>>,
    pub(crate) lock: Option<DirectoryLock>,
}

/// What happened on a disk since the store opened.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) runs_written: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) write_errors: AtomicU64,
    pub(crate) read_errors: AtomicU64,
    pub(crate) corrupt_sectors: AtomicU64,
    pub(crate) runs_evicted: AtomicU64,
}

/// Why bytes could not be read.
#[derive(Debug)]
pub(crate) enum ReadFault {
    /// The kernel said so.
    Io(io::Error),
    /// This sector's bytes are not the ones that were written.
    Corrupt(u32),
    /// The disk did not answer in time, or not at all.
    Silent,
}

/// Why a run was not written.
#[derive(Debug)]
pub(crate) enum WriteFault {
    /// No extent came free in time.
    Full,
    /// The kernel said so; it is logged and counted with the disk's health. A part of the write may be in this extent, its
    /// header above all.
    Failed(Arc<DiskExtent>),
    /// The disk hangs. If the kernel has the write, it goes on into this extent.
    Silent(Option<Arc<DiskExtent>>),
}

impl Slab {
    /// Opens or makes the slab of a directory, and finds out what is in it.
    pub(crate) async fn open(
        number: usize,
        disk: DiskOptions,
        options: &StoreOptions,
    ) -> Result<(Self, Vec<(DiskRun, Keep)>), StoreError> {
        let (serve, block_size, dir) = (options.serve, options.block_size, disk.dir.clone());
        let opening = tokio::task::spawn_blocking(move || file::open(&disk, serve, block_size));
        let opened = tokio::time::timeout(OPEN_WITHIN, opening).await;
        let opened = opened.map_err(|_| StoreError::Silent { dir: dir.clone() })?;
        let opened = opened.map_err(|error| StoreError::io("open the slab in", &dir, io::Error::other(error)))?;
        let SlabFile { files, frames, id, is_new, writes_pass_page_cache, lock } = opened?;
        let file = Some(Arc::clone(&files.read));
        let io = crate::io::start(options.io, files, &dir, options.disk_limits(options.disks.len()))?;
        let opened = Opened { dir, id, frames, is_new, io: Arc::clone(&io), file, lock: Some(lock) };
        let recovered = Self::recover(number, opened, options).await;
        if recovered.is_err() {
            // It waits for what the kernel has of a disk that hangs, and nobody is to wait for that.
            drop(tokio::task::spawn_blocking(move || drop(io)));
        }
        let (mut slab, runs) = recovered?;
        slab.can_splice = serve == ServeMode::PageCache || writes_pass_page_cache;
        slab.serve = if writes_pass_page_cache { serve } else { ServeMode::PageCache };
        if serve == ServeMode::Splice && !slab.can_splice {
            tracing::warn!(dir = %slab.dir.display(), "cannot splice from a file system without direct I/O");
        }
        let (dir, serve, size) = (slab.dir.display(), slab.serve.as_str(), ByteSize::bytes(slab.usage().capacity));
        tracing::info!(%dir, %size, serve, "blocks are cached on disk");
        Ok((slab, runs))
    }

    /// The slab of what was opened, and the runs in it.
    pub(crate) async fn recover(
        number: usize,
        opened: Opened,
        options: &StoreOptions,
    ) -> Result<(Self, Vec<(DiskRun, Keep)>), StoreError> {
        let Opened { dir, id, frames, is_new, io, file, lock } = opened;
        let count = u64::from(frames);
        let (frames, found) = if is_new {
            (Frames::new(frames), Vec::new())
        } else {
            let found = recovery::scan(&*io, &options.memory, options.alloc_deadline, id, frames, &dir).await?;
            (found.frames, found.runs)
        };
        let space = Space::new(frames, lock);
        let runs = found
            .into_iter()
            .map(|(slot, run, keep)| (DiskRun::new(Arc::new(run), Arc::new(space.adopted(number, slot))), keep))
            .collect();
        let slab = Self {
            dir,
            residents: Residents::new(count),
            counters: Counters::default(),
            file,
            can_splice: false,
            serve: ServeMode::Dio,
            number,
            id,
            io,
            space,
            health: Mutex::default(),
            waiting_writes: AtomicUsize::new(0),
            is_sent_from: AtomicBool::new(false),
            unburied: Mutex::default(),
        };
        Ok((slab, runs))
    }

    /// A new slab on something that is no file.
    #[cfg(test)]
    pub(crate) fn over(
        number: usize,
        io: Arc<dyn DiskIo>,
        dir: &std::path::Path,
        frames: u32,
    ) -> Result<Self, StoreError> {
        let lock = DirectoryLock::take(&file::open_directory(dir)?)?;
        let file = File::open(dir).map_err(|error| StoreError::io("open", dir, error))?;
        Ok(Self {
            dir: dir.to_owned(),
            residents: Residents::new(u64::from(frames)),
            counters: Counters::default(),
            file: Some(Arc::new(file)),
            can_splice: false,
            serve: ServeMode::default(),
            number,
            id: [1; 16],
            io,
            space: Space::new(Frames::new(frames), Some(lock)),
            health: Mutex::default(),
            waiting_writes: AtomicUsize::new(0),
            is_sent_from: AtomicBool::new(false),
            unburied: Mutex::default(),
        })
    }

    /// How many runs a store that opened the slab anew would find.
    #[cfg(all(test, shuttle))]
    pub(crate) async fn found_again(&self, memory: &forebay_memory::Pool) -> usize {
        let (id, frames) = (self.id, self.usage().frames);
        let found = recovery::scan(&*self.io, memory, Duration::MAX, id, frames, &self.dir).await;
        found.map_or(0, |found| found.runs.len())
    }

    pub(crate) fn usage(&self) -> Usage {
        self.space.usage()
    }

    pub(crate) fn takes_writes(&self, now: Instant) -> bool {
        !self.is_out() && self.health.lock().takes_writes(now)
    }

    pub(crate) fn is_degraded(&self) -> bool {
        self.health.lock().is_degraded()
    }

    /// How much memory a read of these sectors of a run lands in.
    pub(crate) fn landing_len(run: &Run, sectors: SectorRange) -> usize {
        (sectors.byte_len(run.end()) as usize).next_multiple_of(PAGE)
    }

    /// Whether a write waits for an extent.
    pub(crate) fn has_waiting_writes(&self) -> bool {
        self.waiting_writes.load(Ordering::Relaxed) > 0
    }

    /// Reads and checks sectors of a run. `into` is [`Slab::landing_len`] long.
    pub(crate) async fn read(&self, copy: &DiskRun, sectors: SectorRange, into: SpanMut) -> Result<Span, ReadFault> {
        let run = &copy.run;
        let within = sectors.byte_offset() - run.start();
        let offset = copy.extent.slot().sectors_offset() + u64::from(within);
        let length = sectors.byte_len(run.end()) as usize;
        let read = match self.io.read_at(offset, into).await {
            Ok(read) => read,
            Err(error) if is_silent(&error) => {
                // Before the next one who waits for this run goes on. What a disk has that is out is kept.
                if !self.is_out() {
                    copy.given_up.store(true, Ordering::Release);
                }
                return Err(ReadFault::Silent);
            }
            Err(error) => return Err(ReadFault::Io(error)),
        };
        let bytes = read.freeze().slice(0..length);
        run.check(sectors.start, &bytes).map_err(ReadFault::Corrupt)?;
        copy.set_checked(sectors);
        self.counters.bytes_read.fetch_add(length as u64, Ordering::Relaxed);
        Ok(bytes)
    }

    /// Writes a run into a free extent, waiting for one up to `deadline`; `need_room` is told when there is none.
    pub(crate) async fn write(
        &self,
        run: Arc<Run>,
        keep: Keep,
        bytes: &Span,
        deadline: Duration,
        need_room: &Notify,
    ) -> Result<DiskRun, WriteFault> {
        if self.is_out() {
            return Err(WriteFault::Silent(None));
        }
        let class = class_of(run.sectors.len());
        let extent = match self.space.take(self.number, class) {
            Some(extent) => extent,
            None => {
                self.waiting_writes.fetch_add(1, Ordering::Relaxed);
                let extent = tokio::time::timeout(deadline, self.take_extent(class, need_room)).await;
                self.waiting_writes.fetch_sub(1, Ordering::Relaxed);
                extent.map_err(|_| WriteFault::Full)?
            }
        };
        let extent = Arc::new(extent);
        let header = header::encode(self.id, extent.slot(), extent.generation(), Some((&run, keep)));
        let buffer = WriteBuffer::run(header, bytes, Some(Arc::clone(&extent)));
        let result = self.io.write_at(extent.slot().offset(), buffer).await;
        if result.as_ref().is_err_and(is_silent) {
            return Err(WriteFault::Silent(Some(extent)));
        }
        self.note_write(&result);
        if result.is_err() {
            return Err(WriteFault::Failed(extent));
        }
        self.counters.runs_written.fetch_add(1, Ordering::Relaxed);
        self.counters.bytes_written.fetch_add(u64::from(run.byte_len), Ordering::Relaxed);
        Ok(DiskRun::new(run, extent))
    }

    /// Writes a header that says that the extent holds nothing, so that it is not found again after a restart. That of a disk
    /// that hangs is written when it answers again, and one that could not be written is tried again
    /// ([`Slab::take_unburied`]).
    pub(crate) async fn bury(&self, extent: Arc<DiskExtent>) {
        let (slot, generation) = (extent.slot(), extent.generation());
        let page = header::encode(self.id, slot, generation, None);
        let result = self.io.write_at(slot.offset(), WriteBuffer::page(page, Some(Arc::clone(&extent)))).await;
        match &result {
            Ok(()) => self.unburied.lock().buried(slot),
            Err(error) if is_silent(error) => return self.unburied.lock().silent(extent),
            Err(_) => {
                let is_first = self.unburied.lock().failed(extent, now());
                if !is_first {
                    // A single page that cannot be written is no reason to write nothing else for as long as it is tried.
                    self.counters.write_errors.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            }
        }
        self.note_write(&result);
    }

    /// What is to be buried now, of what could not be.
    pub(crate) fn take_unburied(&self) -> Vec<Arc<DiskExtent>> {
        self.unburied.lock().take(now())
    }

    /// How many extents say on disk that they hold what was removed, because the disk hangs or fails.
    pub(crate) fn unburied(&self) -> usize {
        self.unburied.lock().len()
    }

    /// Whether it hangs: what is on it counts as not held, and nothing is written to it.
    pub(crate) fn is_out(&self) -> bool {
        self.io.watch().is_out()
    }

    /// Whether and how it answers.
    pub(crate) fn watched(&self) -> WatchStats {
        self.io.watch().stats()
    }

    /// How long a reader waits for it; zero: for ever.
    pub(crate) fn read_timeout(&self) -> Duration {
        self.io.watch().limits().read_timeout
    }

    /// Finds out how it is by now: whether it hangs, or, if it did, whether it answers again.
    pub(crate) async fn attend(&self, memory: &Pool) {
        let watch = self.io.watch();
        watch.look();
        if !watch.is_out() {
            return self.ask_for_senders(memory).await;
        }
        if !watch.begin_probe() {
            return;
        }
        // Without memory it has no chance to answer, and another one later.
        let Some(page) = memory.try_alloc(PAGE) else { return watch.probed(false) };
        let probed = tokio::time::timeout(self.read_timeout(), self.io.probe(page)).await;
        watch.probed(probed.is_ok_and(|read| !read.is_err_and(|error| is_silent(&error))))
    }

    /// Bytes are about to be sent from its file.
    pub(crate) fn note_sent_from(&self) {
        // Read first, so that those who send do not fight for its cache line.
        if !self.is_sent_from.load(Ordering::Relaxed) {
            self.is_sent_from.store(true, Ordering::Relaxed);
        }
    }

    /// What is sent from the file is read by the kernel, and is no operation of ours: if the disk hangs, whoever sends hangs with
    /// it, and nothing here would tell. So a disk that is sent from, and that nothing else is asked of, is asked for a page. One
    /// that does not come is overdue in the end, as any other read is.
    async fn ask_for_senders(&self, memory: &Pool) {
        if self.watched().under_way > 0 || !self.is_sent_from.load(Ordering::Relaxed) {
            return;
        }
        // Without memory it is asked the next time.
        let Some(page) = memory.try_alloc(PAGE) else { return };
        self.is_sent_from.store(false, Ordering::Relaxed);
        // It counts whether it ends, not how.
        drop(tokio::time::timeout(self.read_timeout(), self.io.probe(page)).await);
    }

    /// Notes that a write that is not waited for any more, or has failed, may leave a run of this block in its extent.
    pub(crate) fn leave_unwritten(&self, extent: &Arc<DiskExtent>, block: BlockKey) {
        self.space.left(extent, block);
    }

    /// Notes that a run that is let go without being buried is still on disk.
    pub(crate) fn leave(&self, copy: &DiskRun) {
        self.space.left(&copy.extent, copy.run.key);
    }

    /// The extents whose runs of this block were let go without being buried.
    pub(crate) fn leftovers(&self, block: &BlockKey) -> Vec<Arc<DiskExtent>> {
        self.space.leftovers(self.number, block)
    }

    /// The blocks of a file of which there are leftovers.
    pub(crate) fn left_of_file(&self, file: FileId) -> Vec<BlockKey> {
        self.space.left_of_file(file)
    }

    async fn take_extent(&self, class: u8, need_room: &Notify) -> DiskExtent {
        loop {
            let mut freed = std::pin::pin!(self.space.freed().notified());
            // From here on a freed extent is not missed.
            freed.as_mut().enable();
            if let Some(extent) = self.space.take(self.number, class) {
                return extent;
            }
            need_room.notify_one();
            freed.await;
        }
    }

    fn note_write(&self, result: &io::Result<()>) {
        let dir = self.dir.display();
        match result {
            Ok(()) => {
                if self.health.lock().wrote() {
                    tracing::info!(%dir, "disk takes writes again");
                }
            }
            Err(error) => {
                self.counters.write_errors.fetch_add(1, Ordering::Relaxed);
                let degraded = self.health.lock().failed(error, Instant::now());
                tracing::warn!(%dir, %error, degraded, "cannot write to disk");
            }
        }
    }
}

/// By the runtime's clock, which tests may turn.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
