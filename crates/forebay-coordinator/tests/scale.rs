//! A job over ten million files runs in bounded memory: its course is driven in virtual time over a namespace that is
//! made up as it is listed, and every byte that is allocated is counted. (216,000 files where the code is not
//! optimised.)

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay_coordinator::jobs::{Answer, Job, JobRecord, JobSpec, JobState, Limits, LoadSpec, Question, Step};
use forebay_coordinator::{HeldBytes, Loaded};
use forebay_transport::message::ListReply;
use forebay_types::{Attr, DirEntry, FileVersion, FsPath, VersionTag};

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is handed to the system's allocator as it is; the counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(held, Relaxed);
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Directories of directories of files; the namespace has the third power of it.
const FAN: u64 = if cfg!(debug_assertions) { 60 } else { 216 };
const SIZE: u64 = 100_000;

fn list(path: &FsPath, token: Option<&str>, max: u32) -> ListReply {
    let depth = path.as_bytes().iter().filter(|byte| **byte == b'/').count();
    let start = token.map_or(0, |token| token.parse().unwrap());
    let end = FAN.min(start + u64::from(max));
    let entry = |number: u64| {
        let name = format!("{number:06}").into_bytes();
        let attr = if depth < 3 {
            Attr::directory()
        } else {
            let path = [path.as_bytes(), b"/", &name].concat();
            let tag = VersionTag::Etag("\"0123456789abcdef0123456789abcdef\"".into());
            Attr::file(FileVersion { origin: "s3://b".into(), path: path.into(), size: SIZE, tag })
        };
        DirEntry { name: name.into(), attr }
    };
    let next = (end < FAN).then(|| end.to_string());
    ListReply { entries: (start..end).map(entry).collect(), next, valid_for: Duration::ZERO }
}

fn answer(question: Question) -> Answer {
    match question {
        Question::Stat { .. } => Answer::Attributes(Attr::directory()),
        Question::List { path, token, max } => Answer::Listed(list(&path, token.as_deref(), max)),
        Question::Load { .. } => Answer::Loaded(Loaded { fetched: SIZE, held: 0 }),
        Question::Coverage { .. } => Answer::Held(HeldBytes(SIZE)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_job_over_ten_million_files_runs_in_bounded_memory() {
    let began = Instant::now();
    let spec = JobSpec::Load(LoadSpec::new(FsPath::new("/s3").unwrap()));
    let limits = Limits { page: 100, ..Limits::default() };
    let mut now = began;
    let mut job = Job::new(JobRecord::new("job".into(), spec, 0), limits, now);
    job.start("here", 0);
    let (mut asked, mut checkpoints, mut largest) = (Vec::new(), 0, 0);
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    loop {
        match job.next(now) {
            Step::Ask(id, question) => asked.push((id, question)),
            Step::Wait(_) => {
                // All that is under way takes a millisecond; answers come in the reverse order.
                now += Duration::from_millis(1);
                while let Some((id, question)) = asked.pop() {
                    job.answer(now, id, Ok(answer(question)));
                }
            }
            Step::Checkpoint => {
                checkpoints += 1;
                largest = largest.max(job.record(0).encode().len());
                job.written(now);
            }
            Step::Ended => break,
        }
    }
    let peak = PEAK.load(Relaxed) - before;
    let report = job.report(now, 0);
    let files = FAN.pow(3);
    assert_eq!((report.state, report.progress.done.files), (JobState::Succeeded, files));
    assert_eq!(report.progress.audited.bytes, files * SIZE);
    println!(
        "{files} files, three passes: peak {} KiB, record {largest} bytes, {checkpoints} checkpoints, {:.1} s",
        peak >> 10,
        began.elapsed().as_secs_f64()
    );
    assert!(peak < 8 << 20, "{peak} bytes at the peak");
    assert!(largest < 8 << 10, "a record of {largest} bytes");
}
