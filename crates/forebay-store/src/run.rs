//! A run: a consecutive, wholly valid, immutable range of sectors of one block, and the CRC32C of each of them.
//!
//! [`Run`] is what both tiers know of it; [`MemoryRun`] and [`DiskRun`] are the copies that they hold.

use std::ops::Range;
use std::sync::Arc;

use forebay_memory::Span;
use forebay_types::{BlockKey, SECTOR_SIZE, SectorChecksums, SectorRange};
use tokio::sync::Mutex;

use crate::Keep;
use crate::disk::DiskExtent;
use crate::place::Place;
use crate::sealing::Sealing;
use crate::sync::{AtomicBool, AtomicU64, Ordering};
use crate::verify::checked::Checked;

/// Which bytes a run has, and their checksums.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) key: BlockKey,
    pub(crate) sectors: SectorRange,
    /// Bytes in the sectors: the last sector of a file may be short.
    pub(crate) byte_len: u32,
    /// The CRC32C of each sector.
    pub(crate) checksums: SectorChecksums,
}

impl Run {
    /// The run that holds `bytes`, which start with the first of `sectors`.
    pub(crate) fn of(key: BlockKey, sectors: SectorRange, bytes: &[u8]) -> Self {
        Self::checksummed(key, sectors, bytes, SectorChecksums::of(bytes))
    }

    /// The same when the checksums are known.
    pub(crate) fn checksummed(key: BlockKey, sectors: SectorRange, bytes: &[u8], checksums: SectorChecksums) -> Self {
        // A run lies in one extent, at most 4 MiB.
        Self { key, sectors, byte_len: bytes.len() as u32, checksums }
    }

    /// Where the run starts in its block, in bytes.
    pub(crate) fn start(&self) -> u32 {
        self.sectors.byte_offset()
    }

    /// Where it ends in its block, in bytes.
    pub(crate) fn end(&self) -> u32 {
        self.start() + self.byte_len
    }

    /// The sectors of this run that hold `offset..end` of the block, which must be bytes of this run, and how many
    /// bytes those sectors have.
    pub(crate) fn sectors_of(&self, offset: u32, end: u32) -> Option<(SectorRange, u32)> {
        let sectors = SectorRange::covering(offset, end.checked_sub(offset)?)?;
        self.sectors.contains(sectors).then(|| (sectors, sectors.byte_len(self.end())))
    }

    /// The checksums of `offset..end` of the block, if those are bytes of this run and whole sectors.
    pub(crate) fn checksums_of(&self, offset: u32, end: u32) -> Option<SectorChecksums> {
        let (sectors, length) = self.sectors_of(offset, end)?;
        let is_whole = sectors.byte_offset() == offset && length == end - offset;
        let first = self.sectors.start;
        is_whole.then(|| self.checksums.slice(sectors.start - first..sectors.end - first))?
    }

    /// Which of its own sectors, counted from the first, hold `offset..end` of the block, which must be bytes of this run.
    #[inline]
    pub(crate) fn positions_of(&self, offset: u32, end: u32) -> Range<u32> {
        let start = self.start();
        (offset - start) / SECTOR_SIZE..(end - start).div_ceil(SECTOR_SIZE)
    }

    /// Checks `bytes`, which start with sector `first` of the block and end with a whole sector, or the run.
    ///
    /// # Errors
    /// The first sector whose bytes are not the ones that were published.
    pub(crate) fn check(&self, first: u32, bytes: &[u8]) -> Result<(), u32> {
        self.checksums.check_from(first - self.sectors.start, bytes).map_err(|sector| first + sector)
    }
}

/// A copy of a run that a tier holds.
pub(crate) trait Held {
    fn run(&self) -> &Run;
    /// The frame that its extent lies in.
    fn frame(&self) -> u32;
    /// Bytes that its extent takes.
    fn extent_size(&self) -> u64;
    fn marks(&self) -> &Marks;
}

/// What eviction keeps with each copy.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    visited: std::sync::atomic::AtomicBool,
    /// Where it stands in its tier's order; see `residents.rs`. Hits do not look at it.
    pub(crate) place: forebay_locks::Mutex<Place>,
}

impl Marks {
    /// Notes a hit. Reads first, so that hits on one run do not fight for its cache line.
    pub(crate) fn visit(&self) {
        if !self.visited.load(Ordering::Relaxed) {
            self.visited.store(true, Ordering::Relaxed);
        }
    }

    /// How the copy is to be kept.
    pub(crate) fn keep(&self) -> Keep {
        self.place.lock().keep
    }

    /// Whether eviction passes the copy by.
    pub(crate) fn is_pinned(&self) -> bool {
        self.place.lock().is_pinned()
    }

    /// Whether there was a hit since the last call.
    pub(crate) fn take_visited(&self) -> bool {
        self.visited.swap(false, Ordering::Relaxed)
    }
}

/// A run in memory.
#[derive(Debug)]
pub(crate) struct MemoryRun {
    pub(crate) run: Arc<Run>,
    /// Exactly the run's bytes.
    pub(crate) bytes: Span,
    pub(crate) marks: Marks,
    /// Which sectors reads found right lately.
    pub(crate) checked: Checked,
    /// In the disk queue, or being written.
    pub(crate) queued: AtomicBool,
    /// Removed on request, so it is not to reach the disk any more.
    pub(crate) removed: AtomicBool,
    /// How often something of its share of the index had been removed when eviction took it out; [`IN_INDEX`] before that.
    /// A removal does not find a copy that is on its way to the disk after its eviction; so the copy finds the removal.
    pub(crate) left_at: AtomicU64,
    /// Whether clients may read it by themselves. `None`: none may, of any run.
    pub(crate) sealing: Option<Box<Sealing>>,
}

/// See [`MemoryRun::left_at`].
pub(crate) const IN_INDEX: u64 = u64::MAX;

impl MemoryRun {
    pub(crate) fn new(run: Arc<Run>, bytes: Span) -> Self {
        Self {
            run,
            bytes,
            marks: Marks::default(),
            checked: Checked::default(),
            queued: AtomicBool::new(false),
            removed: AtomicBool::new(false),
            left_at: AtomicU64::new(IN_INDEX),
            sealing: None,
        }
    }

    /// The same of a store that lets clients read it.
    pub(crate) fn awaiting_seal(self) -> Self {
        Self { sealing: Some(Box::default()), ..self }
    }

    /// Somebody found something wrong, and its bytes are right.
    pub(crate) fn renew_seal(&self) {
        if let Some(sealing) = &self.sealing {
            sealing.renew();
        }
    }

    /// It has left the index: nobody reads it by itself any more.
    pub(crate) fn end_seal(&self) {
        if let Some(sealing) = &self.sealing {
            sealing.end();
        }
    }

    /// Checks the sectors that hold `offset..end` of the block, which must be bytes of this run.
    ///
    /// # Errors
    /// The first sector whose bytes are not the ones that were published.
    pub(crate) fn check(&self, offset: u32, end: u32) -> Result<(), u32> {
        let Some((sectors, length)) = self.run.sectors_of(offset, end) else { return Ok(()) };
        let within = (sectors.byte_offset() - self.run.start()) as usize;
        self.run.check(sectors.start, &self.bytes[within..within + length as usize])
    }

    /// Whether it lies in memory that is not the pool's ([`Store::adopt`](crate::Store::adopt)): it stands in no order of eviction.
    pub(crate) fn is_adopted(&self) -> bool {
        self.bytes.place().is_none()
    }

    /// Whether anything but the index looks at its extent, so that evicting it would not give back memory now.
    pub(crate) fn has_readers(&self) -> bool {
        let of_seal = self.sealing.as_ref().map_or(0, |sealing| usize::from(sealing.is_sealed()));
        self.bytes.views() > 1 + of_seal
    }
}

impl Held for MemoryRun {
    fn run(&self) -> &Run {
        &self.run
    }

    fn frame(&self) -> u32 {
        self.bytes.frame()
    }

    fn extent_size(&self) -> u64 {
        self.bytes.extent_size() as u64
    }

    fn marks(&self) -> &Marks {
        &self.marks
    }
}

/// A run on disk.
#[derive(Debug)]
pub(crate) struct DiskRun {
    pub(crate) run: Arc<Run>,
    pub(crate) extent: Arc<DiskExtent>,
    pub(crate) marks: Marks,
    /// A read was answered from it; the next one promotes it to memory.
    pub(crate) hit_before: AtomicBool,
    /// Removed on request, so a read that is under way does not promote it any more.
    pub(crate) removed: AtomicBool,
    /// A read of it was given up and it was dropped, so nobody is to wait for another one.
    pub(crate) given_up: AtomicBool,
    /// One bit for each sector of the run that was read and found right since the store opened.
    checked: [std::sync::atomic::AtomicU64; 2],
    /// Held by the one reader that promotes it to memory; the others wait for the result.
    pub(crate) promotion: Mutex<()>,
}

impl DiskRun {
    pub(crate) fn new(run: Arc<Run>, extent: Arc<DiskExtent>) -> Self {
        Self {
            run,
            extent,
            marks: Marks::default(),
            hit_before: AtomicBool::new(false),
            removed: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
            checked: Default::default(),
            promotion: Mutex::const_new(()),
        }
    }

    /// Whether all of `sectors` were found right before.
    pub(crate) fn was_checked(&self, sectors: SectorRange) -> bool {
        self.words(sectors).all(|(word, bits)| word.load(Ordering::Relaxed) & bits == bits)
    }

    pub(crate) fn set_checked(&self, sectors: SectorRange) {
        self.words(sectors).for_each(|(word, bits)| _ = word.fetch_or(bits, Ordering::Relaxed));
    }

    fn words(&self, sectors: SectorRange) -> impl Iterator<Item = (&std::sync::atomic::AtomicU64, u64)> {
        let positions = sectors.start - self.run.sectors.start..sectors.end - self.run.sectors.start;
        self.checked.iter().zip([0..64, 64..128]).map(move |(word, within)| {
            let bits = positions.clone().filter(|position| within.contains(position));
            (word, bits.fold(0, |bits, position| bits | 1 << (position % 64)))
        })
    }
}

impl Held for DiskRun {
    fn run(&self) -> &Run {
        &self.run
    }

    fn frame(&self) -> u32 {
        self.extent.slot().frame
    }

    fn extent_size(&self) -> u64 {
        self.extent.slot().stride()
    }

    fn marks(&self) -> &Marks {
        &self.marks
    }
}
