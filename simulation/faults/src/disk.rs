//! Disks: what a machine keeps when its process dies.
//!
//! A disk is pages of 4 KiB. A write takes a while; when its process is killed meanwhile, any of its pages are written.
//! When the power fails, what was written a moment ago may be lost as well, page by page, since a cache is never
//! synced. On demand a disk is slow, full, fails, hangs, or lies: what it gives back is not what it was given.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use forebay_store::{Medium, SlabMedium};
use rand::Rng;

use crate::kernel;

const PAGE: usize = SlabMedium::PAGE;
/// What was written so long ago is not lost.
const SETTLED: Duration = Duration::from_secs(5);

type Page = Box<[u8; PAGE]>;

/// What is wrong with a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// Reads fail.
    pub(crate) reads_fail: bool,
    /// Writes fail.
    pub(crate) writes_fail: bool,
    /// Writes find no room.
    pub(crate) full: bool,
    /// How many times slower it is.
    pub(crate) slower: u32,
    /// Once in so many reads a bit is wrong, or a page is another one; 0 is never.
    pub(crate) lies: u32,
    /// Until then, what is asked of it is not answered, and goes on after that.
    pub(crate) hangs_until: Duration,
}

struct Disk {
    pages: Vec<Option<Page>>,
    /// What was there before what was written a moment ago.
    recent: VecDeque<(Duration, usize, Option<Page>)>,
    trouble: Trouble,
    /// Reads and writes that it has.
    under_way: usize,
}

/// What disks did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) torn: u64,
    pub(crate) lies: u64,
    pub(crate) errors: u64,
    pub(crate) lost_pages: u64,
    pub(crate) hung: u64,
}

thread_local! {
    static DISKS: RefCell<(Vec<Disk>, Counts)> = RefCell::default();
}

fn with<T>(number: usize, with: impl FnOnce(&mut Disk, &mut Counts) -> T) -> T {
    DISKS.with_borrow_mut(|(disks, counts)| with(&mut disks[number], counts))
}

/// Another disk, of so many frames of a slab.
pub(crate) fn add(frames: u32) -> usize {
    let pages = (SlabMedium::size(frames) as usize).div_ceil(PAGE);
    let disk = Disk {
        pages: (0..pages).map(|_| None).collect(),
        recent: VecDeque::new(),
        trouble: Trouble::default(),
        under_way: 0,
    };
    DISKS.with_borrow_mut(|(disks, _)| {
        disks.push(disk);
        disks.len() - 1
    })
}

/// What is wrong with a disk from now on.
pub(crate) fn trouble(number: usize, trouble: Trouble) {
    with(number, |disk, _| disk.trouble = trouble);
}

/// Reads and writes that a disk has, whoever still waits for them.
pub(crate) fn under_way(number: usize) -> usize {
    with(number, |disk, _| disk.under_way)
}

/// What disks did so far.
pub(crate) fn counts() -> Counts {
    DISKS.with_borrow(|(_, counts)| *counts)
}

/// The power of its machine fails.
pub(crate) fn power_fails(number: usize) {
    let recent = with(number, |disk, _| std::mem::take(&mut disk.recent));
    // Of one page the latest write is undone first.
    for (at, page, before) in recent.into_iter().rev() {
        if at + SETTLED > kernel::now() && kernel::once_in(2) {
            with(number, |disk, counts| {
                disk.pages[page] = before;
                counts.lost_pages += 1;
            });
        }
    }
}

/// A bit of what lies on it flips.
pub(crate) fn rot(number: usize) {
    let used: Vec<usize> =
        with(number, |disk, _| (0..disk.pages.len()).filter(|page| disk.pages[*page].is_some()).collect());
    if used.is_empty() {
        return;
    }
    let (page, bit) =
        kernel::chance(|random| (used[random.random_range(0..used.len())], random.random_range(0..PAGE * 8)));
    with(number, |disk, _| {
        if let Some(page) = &mut disk.pages[page] {
            page[bit / 8] ^= 1 << (bit % 8);
        }
    });
}

/// A process's way to the disk of its machine.
pub(crate) struct SimulatedDisk(pub(crate) usize);

impl Disk {
    fn write(&mut self, first: usize, pages: impl Iterator<Item = (usize, Page)>) {
        let now = kernel::now();
        while self.recent.front().is_some_and(|(at, ..)| *at + SETTLED < now) {
            self.recent.pop_front();
        }
        for (index, page) in pages {
            let before = self.pages[first + index].replace(page);
            self.recent.push_back((now, first + index, before));
        }
    }
}

/// A write under way: if it is dropped before its end, its process was killed, and any of its pages are written.
struct Writing {
    disk: usize,
    first: usize,
    pages: Vec<Page>,
}

impl Drop for Writing {
    fn drop(&mut self) {
        let pages = std::mem::take(&mut self.pages);
        if pages.is_empty() {
            return;
        }
        let written: Vec<_> = pages.into_iter().enumerate().filter(|_| kernel::once_in(2)).collect();
        with(self.disk, |disk, counts| {
            counts.torn += 1;
            disk.write(self.first, written.into_iter());
        });
    }
}

/// A read or a write that a disk has.
struct UnderWay(usize);

impl UnderWay {
    fn on(disk: usize) -> Self {
        with(disk, |disk, _| disk.under_way += 1);
        Self(disk)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        with(self.0, |disk, _| disk.under_way -= 1);
    }
}

impl SimulatedDisk {
    async fn take_time(&self) {
        let _under_way = UnderWay::on(self.0);
        let trouble = with(self.0, |disk, _| disk.trouble);
        let hangs = trouble.hangs_until.saturating_sub(kernel::now());
        if !hangs.is_zero() {
            with(self.0, |_, counts| counts.hung += 1);
            kernel::ask(hangs, Duration::ZERO, || ()).await;
        }
        let time = kernel::between(Duration::from_micros(50), Duration::from_micros(1500)) * trouble.slower.max(1);
        kernel::ask(time, Duration::ZERO, || ()).await;
    }
}

#[async_trait::async_trait]
impl Medium for SimulatedDisk {
    async fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.take_time().await;
        let trouble = with(self.0, |disk, counts| {
            counts.reads += 1;
            counts.errors += u64::from(disk.trouble.reads_fail);
            disk.trouble
        });
        if trouble.reads_fail {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let first = offset as usize / PAGE;
        with(self.0, |disk, _| {
            for (index, into) in into.chunks_mut(PAGE).enumerate() {
                let page = disk.pages.get(first + index).ok_or(io::ErrorKind::UnexpectedEof)?;
                match page {
                    Some(page) => into.copy_from_slice(&page[..into.len()]),
                    None => into.fill(0),
                }
            }
            Ok::<_, io::Error>(())
        })?;
        if trouble.lies > 0 && kernel::once_in(trouble.lies) {
            let bit = kernel::chance(|random| random.random_range(0..into.len() * 8));
            match kernel::once_in(2) {
                true => into[bit / 8] ^= 1 << (bit % 8),
                false => {
                    // A page that was never written, or was read from another place.
                    let page = bit / 8 / PAGE * PAGE;
                    let other = with(self.0, |disk, _| disk.pages[bit % disk.pages.len()].clone());
                    let length = PAGE.min(into.len() - page);
                    into[page..page + length].copy_from_slice(&other.map_or([0; PAGE], |page| *page)[..length]);
                }
            }
            with(self.0, |_, counts| counts.lies += 1);
        }
        Ok(())
    }

    async fn write(&self, offset: u64, parts: &[&[u8]]) -> io::Result<()> {
        let page = |bytes: &[u8]| -> Page {
            let mut page = Box::new([0; PAGE]);
            page[..bytes.len()].copy_from_slice(bytes);
            page
        };
        let pages = parts.iter().flat_map(|part| part.chunks(PAGE)).map(page).collect();
        let mut writing = Writing { disk: self.0, first: offset as usize / PAGE, pages };
        self.take_time().await;
        let pages = std::mem::take(&mut writing.pages);
        with(self.0, |disk, counts| {
            counts.writes += 1;
            if disk.trouble.writes_fail || disk.trouble.full {
                counts.errors += 1;
                let error = if disk.trouble.full { libc::ENOSPC } else { libc::EIO };
                return Err(io::Error::from_raw_os_error(error));
            }
            disk.write(writing.first, pages.into_iter().enumerate());
            Ok(())
        })
    }
}
