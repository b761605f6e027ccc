//! Random operations against an array, with an origin that fails now and then.

use forebay_types::{FailureKind, FsPath};
use proptest::prelude::*;

use super::*;
use crate::fake::Verb;
use crate::{Handing, Remote, adopt};

const MAX_SIZE: u64 = 1500;

#[derive(Clone, Debug)]
enum Step {
    Write(u64, usize),
    Truncate(u64),
    Zero(u64, u64),
    Read(u64, u32),
    Sync,
    Fail(Verb, FailureKind),
    LoseUploads,
    Rename,
    Settle,
    /// To another process.
    Move,
}

fn step() -> impl Strategy<Value = Step> {
    let verb = prop::sample::select(vec![Verb::Put, Verb::Begin, Verb::Part, Verb::Complete, Verb::Abort]);
    let kind = prop::sample::select(vec![FailureKind::Unavailable, FailureKind::NotFound]);
    prop_oneof![
        8 => (0..MAX_SIZE, 1..500usize).prop_map(|(offset, length)| Step::Write(offset, length)),
        2 => (0..MAX_SIZE).prop_map(Step::Truncate),
        2 => (0..MAX_SIZE, 1..500u64).prop_map(|(offset, length)| Step::Zero(offset, length)),
        3 => (0..MAX_SIZE, 1..900u32).prop_map(|(offset, length)| Step::Read(offset, length)),
        2 => Just(Step::Sync),
        1 => (verb, kind).prop_map(|(verb, kind)| Step::Fail(verb, kind)),
        1 => Just(Step::LoseUploads),
        1 => Just(Step::Rename),
        2 => Just(Step::Settle),
        1 => Just(Step::Move),
    ]
}

struct Model {
    bytes: Vec<u8>,
    names: u32,
}

async fn play(size: u64, steps: &[(u32, u64)], begins: Option<usize>, script: Vec<Step>) {
    let rig = Rig::new();
    let options = StagingOptions {
        size: ByteSize::bytes(size),
        quiet: Duration::ZERO,
        timeout: Duration::from_millis(200),
        ..rig.options()
    };
    let mut staging = rig.open_with(options.clone(), steps);
    let mut model = Model { bytes: Vec::new(), names: 0 };
    let name = path("/0");
    let mut draft = match begins {
        None => staging.create(name).unwrap(),
        Some(length) => {
            model.bytes = pattern(length, 99).to_vec();
            let attr = rig.remote.store(&name, model.bytes.clone());
            staging.revise(name, rig.remote.open(attr.version().unwrap().clone())).unwrap()
        }
    };
    for (number, step) in script.into_iter().enumerate() {
        // Bytes that were let go of can neither be read nor changed in part: nothing has happened then.
        let refused = match step {
            Step::Write(offset, length) => {
                let bytes = pattern(length, number as u8);
                let written = match draft.try_write(offset, &bytes) {
                    Some(written) => written,
                    None => draft.write(offset, bytes.clone()).await,
                };
                written.map(|()| {
                    let end = offset as usize + length;
                    model.bytes.resize(model.bytes.len().max(end), 0);
                    model.bytes[offset as usize..end].copy_from_slice(&bytes);
                })
            }
            Step::Truncate(size) => draft.truncate(size).await.map(|()| model.bytes.resize(size as usize, 0)),
            Step::Zero(offset, length) => draft.zero(offset..offset + length).await.map(|()| {
                let end = model.bytes.len().min((offset + length) as usize);
                model.bytes[(offset as usize).min(end)..end].fill(0);
            }),
            Step::Read(offset, length) => draft.read(offset, length).await.map(|read| {
                let end = model.bytes.len().min(offset as usize + length as usize);
                assert_eq!(read, model.bytes[(offset as usize).min(end)..end], "step {number}");
            }),
            Step::Sync => {
                let was_dirty = draft.is_dirty();
                match draft.sync().await {
                    Ok(attr) => {
                        assert!(!draft.is_dirty() && (attr.is_some() || !was_dirty));
                        check_origin(&rig, &draft.path(), &model.bytes, number);
                    }
                    Err(failure) => assert!(
                        failure.message().contains("told to") || failure.message().contains("gone"),
                        "{failure}"
                    ),
                }
                Ok(())
            }
            Step::Fail(verb, kind) => {
                rig.remote.fail(verb, 1, kind);
                Ok(())
            }
            // An upload that is lost is lost with what only it had.
            Step::LoseUploads if size > MAX_SIZE => {
                rig.remote.lose_uploads();
                Ok(())
            }
            Step::Rename => {
                if draft.sync().await.is_ok() {
                    model.names += 1;
                    let (old, new) = (draft.path(), path(&format!("/{}", model.names)));
                    let attr = rig.remote.store(&new, model.bytes.clone());
                    rig.remote.remove(&old);
                    draft.renamed(new, Some(attr));
                }
                Ok(())
            }
            Step::Settle => {
                let quiet = || staging.report().uploads.parts_in_flight == 0;
                until("nothing is under way", quiet).await;
                Ok(())
            }
            Step::LoseUploads => Ok(()),
            Step::Move => {
                let next = rig.open_with(options.clone(), steps);
                let handing = Handing::begin(&draft, Instant::now() + LIMIT).unwrap();
                let there = adopt(&next, handing.passed(), handing.bytes().unwrap()).unwrap();
                handing.given();
                draft = there;
                draft.own();
                staging.close().await;
                staging = next;
                Ok(())
            }
        };
        assert_eq!(draft.size(), model.bytes.len() as u64, "step {number}");
        if let Err(failure) = refused {
            assert_eq!(failure.kind(), FailureKind::NoSpace, "step {number}: {failure}");
            assert!(size <= MAX_SIZE, "there was room enough");
        }
    }
    for verb in [Verb::Put, Verb::Begin, Verb::Part, Verb::Complete, Verb::Abort] {
        rig.remote.fail(verb, 0, FailureKind::Unavailable);
    }
    match draft.finish().await {
        Ok(_) => {
            check_origin(&rig, &draft.path(), &model.bytes, usize::MAX);
            assert_eq!(read_all(&draft).await, model.bytes);
            assert_eq!((staging.report().space.used, rig.files().len()), (0, 0));
        }
        Err(failure) => assert!(size <= MAX_SIZE && failure.message().contains("gone"), "{failure}"),
    }
    drop(draft);
    staging.close().await;
}

fn check_origin(rig: &Rig, path: &FsPath, bytes: &[u8], step: usize) {
    let object = rig.remote.object(path);
    assert_eq!(object.as_deref(), Some(bytes), "at the origin after step {step}");
}

fn run(size: u64, steps: &[(u32, u64)], begins: Option<usize>, script: Vec<Step>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(play(size, steps, begins, script));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_draft_is_an_array_and_so_is_its_file_at_the_origin(
        begins in prop::option::of(0..MAX_SIZE as usize),
        script in prop::collection::vec(step(), 1..40),
    ) {
        run(1 << 20, &[(3, 50), (1000, 200)], begins, script);
    }

    #[test]
    fn little_room_makes_no_byte_wrong(
        begins in prop::option::of(0..MAX_SIZE as usize),
        script in prop::collection::vec(step(), 1..40),
    ) {
        run(900, &[(3, 50), (1000, 200)], begins, script);
    }
}

#[test]
fn a_draft_that_was_moved_and_never_changed_leaves_nothing_behind() {
    run(900, &[(3, 50), (1000, 200)], Some(0), vec![Step::Move]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writers_readers_and_syncs_at_once_lose_nothing() {
    const PART: usize = 100;
    const PARTS: u64 = 12;
    let rig = Rig::new();
    let options = StagingOptions { size: ByteSize::bytes(3000), quiet: Duration::ZERO, ..rig.options() };
    let staging = rig.open_with(options, &[(1000, PART as u64)]);
    let draft = staging.create(path("/a")).unwrap();
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..4u64 {
        let draft = Arc::clone(&draft);
        // Each has parts of its own, and writes them whole, again and again.
        writers.spawn(async move {
            let mut last = vec![None; PARTS as usize];
            for round in 0..300u64 {
                let (index, offset) = (round * 7 % PARTS, (writer * PARTS + round * 7 % PARTS) * PART as u64);
                let bytes = pattern(PART, (writer * 64 + round) as u8);
                match draft.try_write(offset, &bytes) {
                    Some(written) => written.unwrap(),
                    None => draft.write(offset, bytes.clone()).await.unwrap(),
                }
                last[index as usize] = Some(bytes);
                let other = (round * 5 + 1) % PARTS;
                match draft.read((writer * PARTS + other) * PART as u64, PART as u32).await {
                    Ok(read) => {
                        assert!(last[other as usize].as_ref().is_none_or(|bytes| *bytes == read), "round {round}")
                    }
                    Err(failure) => assert_eq!(failure.kind(), FailureKind::NoSpace, "{failure}"),
                }
            }
            (writer, last)
        });
    }
    let syncing = {
        let draft = Arc::clone(&draft);
        tokio::spawn(async move {
            for _ in 0..30 {
                draft.sync().await.unwrap();
            }
        })
    };
    let mut whole = vec![0; 4 * PARTS as usize * PART];
    while let Some(done) = writers.join_next().await {
        let (writer, last) = done.unwrap();
        for (index, bytes) in last.into_iter().enumerate() {
            let at = (writer * PARTS) as usize * PART + index * PART;
            whole[at..at + PART].copy_from_slice(&bytes.expect("each part was written"));
        }
    }
    syncing.await.unwrap();
    draft.finish().await.unwrap();
    assert!(rig.remote.object(&path("/a")).unwrap() == whole);
    assert_eq!(staging.report().space.used, 0);
    assert!(staging.report().space.let_go > 0, "room was made");
}
