//! Bounded staging: writers wait, and what the origin has is let go of.

use forebay_types::FailureKind;

use super::*;
use crate::fake::Verb;

const PART: u64 = 64 << 10;
const STEPS: [(u32, u64); 1] = [(10_000, PART)];

fn small(rig: &Rig, parts: u64) -> StagingOptions {
    StagingOptions { size: ByteSize::bytes(parts * PART), ..rig.options() }
}

fn on_disk(rig: &Rig) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let files = rig.files().into_iter().filter(|name| name.ends_with(".data"));
    files.filter_map(|name| std::fs::metadata(rig.dir().join(name)).ok()).map(|metadata| metadata.blocks() * 512).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_eight_times_the_staging_size_goes_through_it() {
    let rig = Rig::new();
    let staging = rig.open_with(small(&rig, 8), &STEPS);
    let draft = staging.create(path("/big")).unwrap();
    let bytes = pattern(64 * PART as usize + 1000, 1);
    let mut most = 0;
    for (index, piece) in bytes.chunks(20_000).enumerate() {
        draft.write(20_000 * index as u64, Bytes::copy_from_slice(piece)).await.unwrap();
        let used = staging.report().space.used;
        assert!(used <= 8 * PART, "{used} bytes are staged");
        most = most.max(on_disk(&rig));
    }
    assert!(most <= 9 * PART, "{most} bytes on the disk");
    assert_eq!(draft.read(0, 1).await.unwrap_err().kind(), FailureKind::NoSpace, "let go of, and not synced");
    let partly = draft.try_write(10, b"x").unwrap().unwrap_err();
    assert_eq!(partly.kind(), FailureKind::NoSpace);
    assert!(partly.message().contains("raise write.staging_size"), "{partly}");
    assert_eq!(draft.truncate(10).await.unwrap_err().kind(), FailureKind::NoSpace);
    assert_eq!(draft.sync().await.unwrap().unwrap().size(), bytes.len() as u64);
    assert!(rig.remote.object(&path("/big")).unwrap() == bytes);
    assert!(draft.read(0, 100_000).await.unwrap() == bytes[..100_000], "from the origin now");
    assert_eq!(rig.remote.arrived().len(), 65, "each part once");
    write(&draft, 10, b"x");
    draft.finish().await.unwrap();
    assert_eq!(rig.remote.object(&path("/big")).unwrap()[10], b'x');
    assert_eq!(staging.report().space.used, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_that_was_let_go_of_may_be_written_as_a_whole() {
    let rig = Rig::new();
    let staging = rig.open_with(small(&rig, 4), &STEPS);
    let draft = staging.create(path("/a")).unwrap();
    let mut bytes = pattern(8 * PART as usize, 2).to_vec();
    for (index, piece) in bytes.chunks(PART as usize).enumerate() {
        draft.write(PART * index as u64, Bytes::copy_from_slice(piece)).await.unwrap();
    }
    let again = pattern(2 * PART as usize, 3);
    bytes[..again.len()].copy_from_slice(&again);
    draft.write(0, again).await.unwrap();
    assert!(draft.read(0, 2 * PART as u32).await.unwrap() == bytes[..2 * PART as usize]);
    draft.finish().await.unwrap();
    assert!(rig.remote.object(&path("/a")).unwrap() == bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_only_an_upload_has_are_known_and_after_a_sync_the_file_can_have_another_name() {
    let rig = Rig::new();
    let staging = rig.open_with(small(&rig, 4), &STEPS);
    let draft = staging.create(path("/old")).unwrap();
    let bytes = pattern(8 * PART as usize, 5);
    for (index, piece) in bytes.chunks(PART as usize).enumerate() {
        draft.write(PART * index as u64, Bytes::copy_from_slice(piece)).await.unwrap();
    }
    assert!(draft.rests_on_its_upload());
    let held = draft.hold().await;
    held.sync().await.unwrap();
    assert!(!draft.rests_on_its_upload() && !draft.is_new());
    draft.renamed(path("/new"), Some(rig.remote.store(&path("/new"), bytes.clone())));
    drop(held);
    assert!(draft.read(0, PART as u32).await.unwrap() == bytes[..PART as usize]);
    draft.finish().await.unwrap();
    assert!(rig.remote.object(&path("/new")).unwrap() == bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn synced_files_make_room_before_anything_is_lost() {
    let rig = Rig::new();
    let staging = rig.open_with(small(&rig, 8), &STEPS);
    let (old, new) = (staging.create(path("/old")).unwrap(), staging.create(path("/new")).unwrap());
    let bytes = pattern(6 * PART as usize, 4);
    for (index, piece) in bytes.chunks(PART as usize).enumerate() {
        old.write(PART * index as u64, Bytes::copy_from_slice(piece)).await.unwrap();
    }
    old.sync().await.unwrap();
    let parts = rig.remote.arrived().len();
    for (index, piece) in bytes.chunks(PART as usize).enumerate() {
        new.write(PART * index as u64, Bytes::copy_from_slice(piece)).await.unwrap();
    }
    assert!(read_all(&old).await == bytes && read_all(&new).await == bytes);
    // Parts of the new one may have gone while its writer waited, but none was let go of.
    assert!(rig.remote.arrived().len() - parts <= 6);
    old.write(3, Bytes::from_static(b"old and changed")).await.unwrap();
    new.finish().await.unwrap();
    old.finish().await.unwrap();
    let changed = [&bytes[..3], b"old and changed", &bytes[18..]].concat();
    assert!(rig.remote.object(&path("/old")).unwrap() == changed);
    assert!(rig.remote.object(&path("/new")).unwrap() == bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_let_go_of_because_an_upload_has_it_that_is_being_aborted() {
    let rig = Rig::new();
    let options = StagingOptions { timeout: Duration::from_millis(200), ..small(&rig, 4) };
    let staging = rig.open_with(options, &STEPS);
    let bytes = pattern(3 * PART as usize, 7);
    let failed = staging.create(path("/failed")).unwrap();
    write(&failed, 0, &bytes);
    rig.remote.fail(Verb::Complete, 1, FailureKind::Unavailable);
    rig.remote.hold(Verb::Abort);
    let finishing = {
        let failed = Arc::clone(&failed);
        tokio::spawn(async move { failed.finish().await })
    };
    until("its upload is being aborted", || rig.remote.waiting(Verb::Abort) == 1).await;
    let other = staging.create(path("/other")).unwrap();
    assert!(other.write(0, pattern(2 * PART as usize, 8)).await.is_err(), "there is no room");
    rig.remote.release(Verb::Abort);
    finishing.await.unwrap().unwrap_err();
    drop(failed);
    let id = crate::staged(&rig.dir()).unwrap().into_iter().find(|file| file.path == path("/failed")).unwrap().id;
    let remote: Arc<dyn crate::Remote> = Arc::new(rig.remote.clone());
    crate::retry(&rig.dir(), &id, remote, crate::RetryOptions::default()).await.unwrap();
    assert!(rig.remote.object(&path("/failed")).unwrap() == bytes);
}

#[tokio::test]
async fn a_writer_who_finds_no_room_in_time_is_told_so() {
    let rig = Rig::new();
    let options = StagingOptions { timeout: Duration::from_millis(20), ..small(&rig, 4) };
    let staging = rig.open_with(options, &STEPS);
    rig.remote.fail(Verb::Put, 1, FailureKind::Unavailable);
    let failed = staging.create(path("/failed")).unwrap();
    write(&failed, 0, &pattern(PART as usize, 5));
    failed.finish().await.unwrap_err();
    drop(failed);
    let draft = staging.create(path("/a")).unwrap();
    // Whole parts could make room, if they arrived.
    rig.remote.hold(Verb::Begin);
    write(&draft, 0, &pattern(3 * PART as usize, 5));
    assert!(draft.try_write(3 * PART, b"x").is_none());
    let failure = draft.write(3 * PART, Bytes::from_static(b"x")).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::NoSpace);
    assert!(failure.message().contains("1 files that could not be uploaded hold 64KiB"), "{failure}");
    // The one that failed is dropped.
    let id = crate::staged(&rig.dir()).unwrap().into_iter().find(|file| file.path == path("/failed")).unwrap().id;
    crate::drop_staged(&rig.dir(), &id, None).await.unwrap();
    // A writer looks for room for 20 ms at a time, which on a busy machine may all be over before it looks again.
    let began = tokio::time::Instant::now();
    while let Err(failure) = draft.write(3 * PART, pattern(PART as usize, 6)).await {
        assert!(failure.kind() == FailureKind::NoSpace && began.elapsed() < Duration::from_secs(60), "{failure}");
    }
    rig.remote.release(Verb::Begin);
    draft.finish().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_writers_share_little_room() {
    let rig = Rig::new();
    let staging = rig.open_with(small(&rig, 24), &STEPS);
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..8u8 {
        let draft = staging.create(path(&format!("/{writer}"))).unwrap();
        writers.spawn(async move {
            let bytes = pattern(20 * PART as usize, writer);
            for (index, piece) in bytes.chunks(30_000).enumerate() {
                let offset = 30_000 * index as u64;
                match draft.try_write(offset, piece) {
                    Some(done) => done.unwrap(),
                    None => draft.write(offset, Bytes::copy_from_slice(piece)).await.unwrap(),
                }
            }
            draft.finish().await.unwrap();
        });
    }
    while let Some(done) = writers.join_next().await {
        done.unwrap();
    }
    for writer in 0..8u8 {
        assert!(rig.remote.object(&path(&format!("/{writer}"))).unwrap() == pattern(20 * PART as usize, writer));
    }
    assert_eq!((staging.report().space.used, rig.remote.uploads()), (0, 0));
    staging.close().await;
}

#[tokio::test]
async fn a_file_larger_than_all_parts_is_refused() {
    let rig = Rig::new();
    let staging = rig.open_with(rig.options(), &[(10, 10)]);
    let draft = staging.create(path("/a")).unwrap();
    write(&draft, 95, b"fits.");
    assert_eq!(draft.try_write(96, b"fits?").unwrap().unwrap_err().kind(), FailureKind::TooLarge);
    assert_eq!(draft.try_write(u64::MAX, b"x").unwrap().unwrap_err().kind(), FailureKind::TooLarge);
    assert_eq!(draft.truncate(101).await.unwrap_err().kind(), FailureKind::TooLarge);
    draft.finish().await.unwrap();
}

#[tokio::test]
async fn options_that_make_no_sense_are_refused() {
    let rig = Rig::new();
    let open = |options: StagingOptions| {
        Staging::open(options, Arc::new(rig.remote.clone()), Handle::current())
            .map(drop)
            .map_err(|error| error.to_string())
    };
    let good = StagingOptions {
        size: ByteSize::mib(128),
        part_size: ByteSize::mib(8),
        memory: ByteSize::mib(64),
        ..rig.options()
    };
    assert_eq!(open(good.clone()), Ok(()));
    for bad in [
        StagingOptions { part_size: ByteSize::mib(4), ..good.clone() },
        StagingOptions { part_size: ByteSize::mib(65), ..good.clone() },
        StagingOptions { memory: ByteSize::mib(63), ..good.clone() },
        StagingOptions { size: ByteSize::mib(63), ..good.clone() },
    ] {
        assert!(open(bad).unwrap_err().contains("set"), "it says what to do");
    }
    std::fs::write(rig.dir.path().join("file"), "").unwrap();
    let refused = open(StagingOptions { dir: rig.dir.path().join("file"), ..good }).unwrap_err();
    assert!(refused.contains("cannot make"), "{refused}");
}
