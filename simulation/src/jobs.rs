//! A load over all files, in virtual time: the course of a job as its coordinator drives it.
//!
//! The namespace is made up as it is listed, the cache answers after a few milliseconds, now and then with an error or with
//! less than it was given, and the coordinator dies on the way: its successor goes on from the record that was written last.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use forebay_cluster::{Member, Ring};
use forebay_coordinator::jobs::{
    Answer, Job, JobRecord, JobSpec, JobState, Limits, LoadSpec, Question, QuestionId, Step,
};
use forebay_coordinator::{HeldBytes, Loaded};
use forebay_transport::message::ListReply;
use forebay_types::{Attr, DirEntry, Failure, FailureKind, FileVersion, FsPath, VersionTag};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

use crate::arguments::Arguments;
use crate::memory;
use crate::table::{Page, bytes, count, time};

/// Names in a directory.
const FAN: u64 = 1_000;
const SIZE: u64 = 100_000;
/// One answer in so many is an error that passes.
const ERRORS: u32 = 10_000;
/// One file in so many is evicted between load and audit.
const EVICTIONS: u64 = 1_000_000;
/// How often the coordinator dies.
const DEATHS: u64 = 3;

/// A job that was driven to its end.
struct Driven {
    state: JobState,
    files: u64,
    questions: u64,
    largest_record: usize,
    virtual_time: Duration,
    cpu: Duration,
}

pub(crate) fn simulate(arguments: &Arguments, page: &mut Page) -> anyhow::Result<()> {
    page.section(
        "A load job",
        &format!(
            "`forebay job load` over files of {} KB with partial listing: loaded, audited, with {DEATHS} deaths of the coordinator. \
             The last row is what the largest job that ran makes of a namespace of {} files, where that one did not run: \
             CPU grows with the files, memory and record do not.",
            SIZE / 1000,
            count(arguments.files)
        ),
        &["files", "asked of the cache", "CPU of the coordinator", "a file", "memory at most", "record at most", "time in the cluster", "ended"],
    );
    let mut files = 10_000;
    let mut largest = None;
    while files <= arguments.job_files {
        let (most, driven) = memory::most_of(|| drive(files, arguments.workers, arguments.seed));
        let driven = driven?;
        row(page, &driven, most);
        largest = Some((driven, most));
        files *= 10;
    }
    if let Some((driven, most)) = largest.filter(|(driven, _)| driven.files < arguments.files) {
        let times = arguments.files as f64 / driven.files as f64;
        page.row(&[
            format!("{} (reckoned)", count(arguments.files)),
            count((driven.questions as f64 * times) as u64),
            time(driven.cpu.mul_f64(times)),
            time(driven.cpu.div_f64(driven.files as f64)),
            bytes(most),
            bytes(driven.largest_record),
            time(driven.virtual_time.mul_f64(times)),
            String::new(),
        ]);
    }
    Ok(())
}

fn row(page: &mut Page, driven: &Driven, most: usize) {
    page.row(&[
        count(driven.files),
        count(driven.questions),
        time(driven.cpu),
        time(driven.cpu.div_f64(driven.files as f64)),
        bytes(most),
        bytes(driven.largest_record),
        time(driven.virtual_time),
        format!("{:?}", driven.state),
    ]);
}

fn drive(files: u64, workers: usize, seed: u64) -> anyhow::Result<Driven> {
    let begun = Instant::now();
    let ring = Ring::new((0..workers).map(|number| Member {
        name: format!("node-{number:05}:29999").into(),
        address: format!("node-{number:05}:29999").into(),
        weight: 1.0,
        identity: None,
    }));
    let mut random = SmallRng::seed_from_u64(seed);
    let spec = JobSpec::Load(LoadSpec { partial_listing: true, ..LoadSpec::new(FsPath::new("/s3")?) });
    let limits = Limits { items: 4096, blocks: 1024, ..Limits::default() };
    let start = begun;
    let mut now = start;
    let mut job = Job::new(JobRecord::new("job".into(), spec, 0), limits, now);
    job.start("first", 0);
    let mut coming: BinaryHeap<Reverse<(Instant, QuestionId)>> = BinaryHeap::new();
    let mut asked = std::collections::HashMap::new();
    let (mut questions, mut largest_record, mut deaths) = (0, 0, 0);
    loop {
        match job.next(now) {
            Step::Ask(id, question) => {
                if let Question::Load { block, .. } = &question {
                    // The request goes to the block's owner.
                    std::hint::black_box(ring.owner(block));
                }
                questions += 1;
                let takes = Duration::from_micros(random.random_range(500..20_000));
                coming.push(Reverse((now + takes, id)));
                asked.insert(id, question);
            }
            Step::Wait(until) => {
                let next = coming.peek().map(|Reverse((at, _))| *at);
                now = match (next, until) {
                    (Some(next), Some(until)) => next.min(until),
                    (Some(at), None) | (None, Some(at)) => at,
                    (None, None) => anyhow::bail!("the job waits for nothing"),
                }
                .max(now);
                while let Some(Reverse((at, id))) = coming.peek().copied()
                    && at <= now
                {
                    coming.pop();
                    let Some(question) = asked.remove(&id) else { continue };
                    let answer = match random.random_ratio(1, ERRORS) {
                        true => Err(Failure::new(FailureKind::Unavailable, "a worker was restarted")),
                        false => Ok(answer(question, files)),
                    };
                    job.answer(now, id, answer);
                }
            }
            Step::Checkpoint => {
                let written = job.record(0);
                largest_record = largest_record.max(written.encode().len());
                job.written(now);
                if deaths < DEATHS && job.report(now, 0).progress.done.files > (deaths + 1) * files / (DEATHS + 2) {
                    deaths += 1;
                    // Nothing is left of it but its last record.
                    job = Job::new(written, limits, now);
                    job.start("successor", 0);
                    coming.clear();
                    asked.clear();
                }
            }
            Step::Ended => break,
        }
    }
    let report = job.report(now, 0);
    let done = report.progress.done.files;
    anyhow::ensure!(
        report.state == JobState::Succeeded && done == files,
        "{done} of {files} files, {:?}",
        report.state
    );
    let virtual_time = now - start;
    Ok(Driven { state: report.state, files, questions, largest_record, virtual_time, cpu: begun.elapsed() })
}

/// Names in a directory of `files` files below it.
fn names(path: &FsPath, files: u64) -> (u64, bool) {
    let depth = path.as_bytes().iter().filter(|byte| **byte == b'/').count();
    // `/s3` holds directories of directories of files, as many as are needed.
    match depth {
        1 => (files.div_ceil(FAN * FAN), false),
        2 => (FAN.min(files.div_ceil(FAN)), false),
        _ => (FAN, true),
    }
}

fn answer(question: Question, files: u64) -> Answer {
    match question {
        Question::Stat { .. } => Answer::Attributes(Attr::directory()),
        Question::List { path, token, max } => Answer::Listed(list(&path, token.as_deref(), max, files)),
        Question::Load { .. } => Answer::Loaded(Loaded { fetched: SIZE, held: 0 }),
        Question::Coverage { version, .. } => {
            let hash = u64::from_le_bytes(version.id().0[..8].try_into().unwrap_or_default());
            Answer::Held(HeldBytes(if hash % EVICTIONS == 0 { 0 } else { SIZE }))
        }
        Question::Read { .. } => Answer::Bytes(bytes::Bytes::new()),
        // There are no mounts here.
        Question::Deliver { .. } => Answer::Delivered(forebay_coordinator::jobs::Delivery::default()),
        Question::Free { .. } | Question::FreeBelow { .. } => {
            Answer::Freed(forebay_transport::message::FreeReply::default())
        }
    }
}

fn list(path: &FsPath, token: Option<&str>, max: u32, files: u64) -> ListReply {
    let (names, of_files) = names(path, files);
    let start: u64 = token.and_then(|token| token.parse().ok()).unwrap_or(0);
    let end = names.min(start + u64::from(max));
    let entry = |number: u64| {
        let name = format!("{number:06}").into_bytes();
        let attr = match of_files {
            false => Attr::directory(),
            true => Attr::file(FileVersion {
                origin: "s3://bucket".into(),
                path: [path.as_bytes(), b"/", &name].concat().into(),
                size: SIZE,
                tag: VersionTag::Etag("\"0123456789abcdef0123456789abcdef\"".into()),
            }),
        };
        DirEntry { name: name.into(), attr }
    };
    let next = (end < names).then(|| end.to_string());
    ListReply { entries: (start..end).map(entry).collect(), next, valid_for: Duration::ZERO }
}
