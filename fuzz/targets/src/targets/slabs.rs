//! What lies on a worker's disk.

use std::cell::OnceCell;
use std::fs;
use std::path::Path;

use forebay_memory::Pool;
use forebay_store::fuzzing::{PAGE_SIZE, header, header_at, seal, superblock};
use forebay_store::{DiskOptions, HeldBlock, IoBackend, Store, StoreError, StoreOptions, slab_path};
use forebay_types::{BlockKey, ByteSize, FileId, MAX_BLOCK_SIZE, SECTOR_SIZE, SectorRange};

use crate::input::{Input, Output};
use crate::support::{block_on, folder, pool};
use crate::targets::Seed;

/// A slab of one frame.
const FRAME: ByteSize = ByteSize::kib(4 + 4160);

thread_local! {
    static POOL: Pool = pool(ByteSize::mib(16));
    /// A slab with [`RUNS`] in it, as a store leaves it.
    static SLAB: OnceCell<Vec<u8>> = const { OnceCell::new() };
}

/// What the slab holds: of which block, from which sector on, how many bytes, and of which value.
const RUNS: [(u8, u32, u32, u8); 4] =
    [(1, 0, 2 * SECTOR_SIZE, 0x11), (1, 4, SECTOR_SIZE, 0x22), (2, 0, 1000, 0x33), (3, 1, 3 * SECTOR_SIZE, 0x44)];

fn key(number: u8) -> BlockKey {
    BlockKey { file: FileId([number; 16]), index: u64::from(number) }
}

async fn open(dir: &Path) -> Result<Store, StoreError> {
    let disk = DiskOptions { dir: dir.to_owned(), size: FRAME };
    let memory = POOL.with(Pool::clone);
    Store::open(StoreOptions { disks: vec![disk], io: IoBackend::Threads, ..StoreOptions::in_memory(memory) }).await
}

/// The bytes of a slab that a store has filled.
fn slab() -> Vec<u8> {
    SLAB.with(|slab| slab.get_or_init(|| block_on(filled())).clone())
}

async fn filled() -> Vec<u8> {
    let dir = folder();
    let store = open(dir.path()).await.expect("a new slab is made");
    for (block, first, length, value) in RUNS {
        let mut bytes = store.landing(length).await.expect("there is memory");
        bytes.fill(value);
        let sectors = SectorRange::new(first, first + length.div_ceil(SECTOR_SIZE)).expect("it has sectors");
        store.publish(key(block), sectors, first * SECTOR_SIZE + length, bytes);
        store.flush().await;
    }
    store.close().await;
    fs::read(slab_path(dir.path())).expect("there is a slab")
}

pub(super) mod slab_pages {
    use super::*;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let flags = input.u8();
        let (slab, frame, index, class) = (input.array(), input.u32(), input.u8(), input.u8());
        let rest = input.rest();
        let mut page = [0; PAGE_SIZE];
        let length = rest.len().min(PAGE_SIZE);
        page[..length].copy_from_slice(&rest[..length]);
        if flags & 1 != 0 {
            seal(&mut page);
        }
        if flags & 2 == 0 {
            superblock(&page)
        } else {
            header(slab, frame, index, class, &page)
        }
        // A page that is not one.
        superblock(rest);
        header(slab, frame, index, class, rest);
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let slab = slab();
        // The identity follows magic and version.
        let id = &slab[20..36];
        let page = |at: usize| {
            let page = &slab[at..at + PAGE_SIZE];
            let length = page[..PAGE_SIZE - 4].iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            &page[..length]
        };
        let class = page(PAGE_SIZE)[34 - 1];
        let (index_at, class_at) = (32, 33);
        assert_eq!(class, page(PAGE_SIZE)[class_at]);
        let first = Output::default().u8(3).bytes(id).u32(0).u8(page(PAGE_SIZE)[index_at]).u8(class);
        vec![
            ("superblock", Output::default().u8(1).bytes([0; 22]).bytes(page(0)).done()),
            ("header", first.bytes(page(PAGE_SIZE)).done()),
        ]
    }
}

pub(super) mod slab_recovery {
    use super::*;

    /// Most changes of a slab.
    const MAX: usize = 16;

    /// Changes the slab as the input says. Says whether checksums were put right, so that a header may tell anything.
    fn damage(slab: &mut Vec<u8>, mut input: Input<'_>) -> bool {
        let mut is_forged = false;
        for _ in 0..MAX {
            if input.is_empty() {
                break;
            }
            let (what, class, index, at) = (input.u8(), input.u8(), input.u8(), usize::from(input.u16()));
            let length = input.u8();
            let bytes = input.take(length.into());
            let page = match what & 3 {
                0 => 0,
                1 => header_at(class, index),
                // Of the extents that are in use.
                2 => header_at(0, 0),
                _ => usize::from(class) << 14 | usize::from(index) << 6,
            };
            let at = page + at % PAGE_SIZE;
            let end = (at + bytes.len()).min(slab.len());
            if at < end {
                slab[at..end].copy_from_slice(&bytes[..end - at]);
            }
            if what & 0x80 != 0 && (page != 0 || what & 3 == 0) {
                is_forged = true;
                if let Some(page) = slab.get_mut(page..page + PAGE_SIZE) {
                    seal(page);
                }
            }
            if what & 0x60 == 0x60 {
                slab.truncate(at);
            }
        }
        is_forged
    }

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let is_garbage = input.u8() & 1 != 0;
        let mut content = if is_garbage { input.take(PAGE_SIZE * 4).to_vec() } else { slab() };
        let is_forged = !is_garbage && damage(&mut content, input);
        let dir = folder();
        fs::write(slab_path(dir.path()), &content).expect("the folder takes a file");
        let first = block_on(recovered(dir.path(), is_forged, Some(&content)));
        let second = block_on(recovered(dir.path(), is_forged, None));
        assert_eq!(first, second, "what is found once is found again");
        assert_eq!(POOL.with(Pool::used), 0, "memory stays in use");
    }

    /// What a store finds: `None` when it refuses the file, which it does not change then.
    async fn recovered(dir: &Path, is_forged: bool, content: Option<&[u8]>) -> Option<Vec<HeldBlock>> {
        let store = match open(dir).await {
            Ok(store) => store,
            Err(StoreError::NotASlab { .. } | StoreError::SlabVersion { .. }) => {
                let is_left =
                    content.is_none_or(|content| fs::read(slab_path(dir)).is_ok_and(|found| found == content));
                assert!(is_left, "what is not ours is left alone");
                return None;
            }
            Err(error) => unreachable!("damage is no error: {error}"),
        };
        let held = store.held(None, 1000);
        for block in &held {
            for run in &block.runs {
                let (start, length) = (run.sectors.byte_offset(), run.length());
                assert!(length > 0 && run.on_disk);
                if run.end <= MAX_BLOCK_SIZE {
                    read(&store, &block.key, start, length, is_forged).await;
                }
            }
        }
        for (block, first, length, _) in RUNS {
            read(&store, &key(block), first * SECTOR_SIZE, length, is_forged).await;
        }
        let left = store.held(None, 1000);
        store.close().await;
        Some(left)
    }

    /// Reads, and checks that no byte comes that was not stored, as far as headers can be believed.
    async fn read(store: &Store, block: &BlockKey, offset: u32, length: u32, is_forged: bool) {
        let checksums = store.checksums(block, offset, length);
        let Some(read) = store.read(block, offset, length).await.expect("there is memory") else { return };
        let bytes: Vec<u8> = read.spans.iter().flat_map(|span| span.to_vec()).collect();
        assert_eq!(bytes.len(), length as usize);
        if let Some(checksums) = checksums {
            assert_eq!(checksums.check(&bytes), Ok(()), "bytes are given out that have other checksums");
        }
        if !is_forged {
            for (at, byte) in (offset..).zip(&bytes) {
                let stored = RUNS.iter().any(|(number, first, length, value)| {
                    let start = first * SECTOR_SIZE;
                    key(*number) == *block && (start..start + length).contains(&at) && value == byte
                });
                assert!(stored, "byte {at} of {block} is not what was stored");
            }
        }
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let damage = |what: u8, class: u8, index: u8, at: u16, bytes: &[u8]| {
            Output::default().u8(0).u8(what).u8(class).u8(index).u16(at).u8(bytes.len() as u8).bytes(bytes).done()
        };
        vec![
            ("as_it_was", vec![0]),
            ("superblock", damage(0, 0, 0, 20, b"x")),
            ("version", damage(0x80, 0, 0, 16, &[9])),
            ("header", damage(2, 0, 0, 40, b"xyz")),
            ("forged_header", damage(0x82, 0, 0, 62, &[1])),
            ("data", damage(1, 1, 0, 0, b"")),
            ("sector", damage(3, 1, 0, 5, b"other")),
            ("cut_short", damage(0x60, 0, 0, 100, b"")),
            ("garbage", vec![1, 2, 3]),
        ]
    }
}
