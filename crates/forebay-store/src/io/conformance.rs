//! What every [`DiskIo`] must do, run on each of them.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_memory::{Pool, PoolOptions};
use forebay_types::ByteSize;

use super::fake::FakeDisk;
use super::{DiskIo, Files, Limits, Page, WriteBuffer, is_silent, start};
use crate::IoBackend;

const PAGE: usize = 4096;
const SIZE: usize = 8 << 20;

fn pool() -> Pool {
    Pool::new(PoolOptions::fixed(ByteSize::mib(32))).unwrap()
}

async fn conforms(io: Arc<dyn DiskIo>) {
    what_was_written_is_read(&*io).await;
    many_operations_at_once_are_all_done(&io).await;
    reading_past_the_end_is_an_error(&*io).await;
    a_dropped_future_does_not_give_its_memory_away_early(&io).await;
}

async fn what_was_written_is_read(io: &dyn DiskIo) {
    let pool = pool();
    for length in [1, PAGE, 100_001, 4 << 20] {
        let mut span = pool.try_alloc(length).unwrap();
        span.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 7 + length) as u8);
        let bytes = span.freeze();
        io.write_at(8192, WriteBuffer::run(Page([3; PAGE]), &bytes, None)).await.unwrap();
        let into = pool.try_alloc(length.next_multiple_of(PAGE)).unwrap();
        let read = io.read_at(8192 + PAGE as u64, into).await.unwrap();
        assert_eq!(read[..length], bytes[..]);
        assert!(read[length..].iter().all(|byte| *byte == 0));
        let header = io.read_at(8192, pool.try_alloc(PAGE).unwrap()).await.unwrap();
        assert!(header.iter().all(|byte| *byte == 3));
    }
}

async fn many_operations_at_once_are_all_done(io: &Arc<dyn DiskIo>) {
    let pool = pool();
    let tasks: Vec<_> = (0..400u64)
        .map(|number| {
            let (io, pool) = (Arc::clone(io), pool.clone());
            tokio::spawn(async move {
                let page = Page([number as u8; PAGE]);
                io.write_at(number * PAGE as u64, WriteBuffer::page(page, None)).await.unwrap();
                let into = pool.alloc(PAGE, Duration::from_secs(10)).await.unwrap();
                let read = io.read_at(number * PAGE as u64, into).await.unwrap();
                assert!(read.iter().all(|byte| *byte == number as u8));
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(pool.used(), 0);
}

async fn reading_past_the_end_is_an_error(io: &dyn DiskIo) {
    let pool = pool();
    for offset in [SIZE - PAGE, SIZE, 2 * SIZE] {
        let error = io.read_at(offset as u64, pool.try_alloc(2 * PAGE).unwrap()).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    }
    assert_eq!(pool.used(), 0);
}

async fn a_dropped_future_does_not_give_its_memory_away_early(io: &Arc<dyn DiskIo>) {
    // One frame: as long as the read is under way, no allocation gets its memory; when it has ended, one does.
    let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(4))).unwrap();
    for _ in 0..50 {
        let into = pool.alloc(4 << 20, Duration::from_secs(10)).await.unwrap();
        let mut read = io.read_at(0, into);
        let begun = futures::poll!(&mut read);
        drop(read);
        if begun.is_pending()
            && let Some(mut span) = pool.try_alloc(4 << 20)
        {
            // The read had ended, so nothing writes here but us.
            span.fill(0xee);
            tokio::task::yield_now().await;
            assert!(span.iter().all(|byte| *byte == 0xee));
        }
    }
    pool.alloc(4 << 20, Duration::from_secs(10)).await.unwrap();
}

fn file() -> Files {
    let file = tempfile::tempfile().unwrap();
    file.set_len(SIZE as u64).unwrap();
    let file: Arc<File> = Arc::new(file);
    Files { read: Arc::clone(&file), write: file }
}

#[tokio::test(flavor = "multi_thread")]
async fn threads_conform() {
    conforms(start(IoBackend::Threads, file(), Path::new("slab"), Limits::default()).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn io_uring_conforms() {
    match start(IoBackend::Uring, file(), Path::new("slab"), Limits::default()) {
        Ok(io) => conforms(io).await,
        Err(error) => eprintln!("not run: {error}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fake_conforms() {
    conforms(Arc::new(FakeDisk::new(SIZE))).await;
}

#[tokio::test]
async fn an_operation_that_is_held_up_keeps_its_memory_when_its_future_is_dropped() {
    let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(4))).unwrap();
    let disk = FakeDisk::new(SIZE);
    let held = disk.hold().await;
    let mut read = disk.read_at(0, pool.try_alloc(4 << 20).unwrap());
    assert!(futures::poll!(&mut read).is_pending());
    drop(read);
    tokio::task::yield_now().await;
    assert!(pool.try_alloc(1).is_none(), "the operation has not ended");
    drop(held);
    pool.alloc(4 << 20, Duration::from_secs(10)).await.unwrap();
}

/// Invariant 3, for a disk that hangs.
#[tokio::test(start_paused = true)]
async fn reads_of_a_disk_that_hangs_are_given_up_and_what_the_kernel_has_keeps_its_memory() {
    let limits = Limits { read_timeout: Duration::from_secs(2), read_bytes: 4 << 20 };
    let (pool, disk) = (pool(), FakeDisk::limited(SIZE, limits));
    let held = disk.hold().await;
    let start = tokio::time::Instant::now();
    let begun = async {
        let error = disk.read_at(0, pool.try_alloc(4 << 20).unwrap()).await.unwrap_err();
        assert!(is_silent(&error) && start.elapsed() >= limits.read_timeout, "{error}");
    };
    // There is no room for another one: it waits until the disk is taken out, and the kernel never has it.
    let waiting = async {
        let error = disk.read_at(0, pool.try_alloc(4 << 20).unwrap()).await.unwrap_err();
        assert!(is_silent(&error), "{error}");
    };
    let write = async {
        let error = disk.write_at(0, WriteBuffer::page(Page([7; PAGE]), None)).await.unwrap_err();
        assert!(is_silent(&error), "{error}");
    };
    let looking = async {
        tokio::time::sleep(limits.read_timeout * 2).await;
        assert!(!disk.watch().is_out());
        disk.watch().look();
    };
    futures::join!(begun, waiting, write, looking);
    assert!(disk.watch().is_out());
    assert_eq!(pool.used(), 4 << 20, "of the read that the kernel has");
    let refused = disk.read_at(0, pool.try_alloc(PAGE).unwrap()).await.unwrap_err();
    assert!(is_silent(&refused) && start.elapsed() < limits.read_timeout * 3);
    assert_eq!(disk.watch().stats().under_way, 2);

    drop(held);
    while disk.watch().stats().under_way > 0 {
        tokio::task::yield_now().await;
    }
    tokio::task::yield_now().await;
    assert_eq!(pool.used(), 0);
    while disk.watch().is_out() {
        tokio::time::sleep(Duration::from_secs(1)).await;
        if disk.watch().begin_probe() {
            let page = disk.probe(pool.try_alloc(PAGE).unwrap()).await.unwrap();
            assert!(page.iter().all(|byte| *byte == 7), "the write was carried out all the same");
            disk.watch().probed(true);
        }
    }
    disk.read_at(0, pool.try_alloc(PAGE).unwrap()).await.unwrap();
}
