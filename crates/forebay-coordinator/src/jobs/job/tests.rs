//! The course of jobs in virtual time, against a cache that misbehaves on demand.

mod delivery;

use futures::FutureExt as _;
use proptest::prelude::*;

use super::*;
use crate::cache::CacheAccess as _;
use crate::fake::{Call, FakeCache};
use crate::jobs::delivery::Missing;
use crate::jobs::report::JobReport;
use crate::jobs::spec::FreeSpec;
use crate::jobs::state::Pass;
use forebay_types::FsPath;

const BLOCK: u32 = 256 << 10;

fn limits() -> Limits {
    Limits { items: 64, blocks: 16, page: 7, batch: 5, block_size: BLOCK, ..Limits::default() }
}

fn path(text: &str) -> FsPath {
    FsPath::new(text).unwrap()
}

fn load(change: impl FnOnce(&mut LoadSpec)) -> JobSpec {
    let mut load = LoadSpec::new(path("/s3"));
    change(&mut load);
    JobSpec::Load(load)
}

/// 60 files of up to three blocks, one of them empty, in a few directories.
fn cluster() -> FakeCache {
    let cache = FakeCache::new(BLOCK);
    for number in 0..60u64 {
        cache.put(&format!("/s3/d{}/e{}/f{number:02}", number % 3, number % 7), number * 11_111, 0);
    }
    cache
}

const ALL: FileCounts = FileCounts { files: 60, bytes: 59 * 60 / 2 * 11_111 };

/// A job with what drives it.
struct Course<'a> {
    cache: &'a FakeCache,
    job: Job,
    now: Instant,
    /// Asked and not answered.
    asked: Vec<(QuestionId, Question)>,
    records: Vec<JobRecord>,
    seed: u64,
}

impl<'a> Course<'a> {
    fn new(cache: &'a FakeCache, spec: JobSpec) -> Self {
        Self::resume(cache, JobRecord::new("job".into(), spec, 0))
    }

    fn resume(cache: &'a FakeCache, record: JobRecord) -> Self {
        let now = Instant::now();
        let mut job = Job::new(record, limits(), now);
        job.start("here", 1_000_000_000_000);
        Self { cache, job, now, asked: Vec::new(), records: Vec::new(), seed: 1 }
    }

    /// One step; false at the end. Answers come in any order, and late.
    fn step(&mut self) -> bool {
        self.job.placed(self.cache.placement());
        match self.job.next(self.now) {
            Step::Ended => return false,
            Step::Checkpoint => {
                self.records.push(self.job.record(0));
                self.job.written(self.now);
            }
            Step::Ask(id, question) => self.asked.push((id, question)),
            Step::Wait(until) => {
                if self.asked.is_empty() {
                    self.now = until.expect("a job that waits for nothing");
                } else {
                    self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let at = (self.seed >> 33) as usize % self.asked.len();
                    let (id, question) = self.asked.swap_remove(at);
                    self.now += Duration::from_millis(1);
                    let answer = ask(self.cache, &question).now_or_never().expect("the fake waits for nothing");
                    self.job.answer(self.now, id, answer);
                }
            }
        }
        true
    }

    fn run(mut self) -> JobRecord {
        while self.step() {}
        self.job.record(0)
    }

    fn run_until(&mut self, condition: impl Fn(&Job) -> bool) {
        while !condition(&self.job) {
            assert!(self.step(), "it ended before");
        }
    }
}

async fn ask(cache: &FakeCache, question: &Question) -> Result<Answer, Failure> {
    match question {
        Question::Stat { path, fresh } => cache.stat(path, *fresh).await.map(Answer::Attributes),
        Question::List { path, token, max } => cache.list(path, token.as_deref(), *max).await.map(Answer::Listed),
        Question::Read { version, offset, length } => cache.read(version, *offset, *length).await.map(Answer::Bytes),
        Question::Load { version, block, replicas } => {
            cache.load_block(version, *block, *replicas).await.map(Answer::Loaded)
        }
        Question::Coverage { version, block, replicas, check } => {
            cache.coverage(version, *block, *replicas, *check).await.map(Answer::Held)
        }
        Question::Free { files } => cache.free(files).await.map(Answer::Freed),
        Question::FreeBelow { path } => cache.free_below(path).await.map(Answer::Freed),
        Question::Deliver { path } => Ok(Answer::Delivered(delivered(path))),
    }
}

/// What two mounts do: one of them has no room for what is in `d1`.
fn delivered(path: &FsPath) -> Delivery {
    let whole = Delivery { mounts: 2, ended: 2, ..Delivery::default() };
    if *path == self::path("/s3") {
        return Delivery { kept: FileCounts { files: 2 * ALL.files, bytes: 2 * ALL.bytes }, ..whole };
    }
    let missing = Missing { mount: "b".into(), path: "/s3/d1/e0/f07".into(), reason: "no room".into() };
    Delivery { no_room: 1, missing: vec![missing], ..whole }
}

#[test]
fn a_load_succeeds_when_every_byte_is_cached_and_checked() {
    let cache = cluster();
    let record = Course::new(&cache, load(|_| ())).run();
    let counts = record.ledger.counts;
    assert_eq!(record.state, JobState::Succeeded);
    assert_eq!((record.total, counts.done, counts.audited), (Some(ALL), ALL, ALL));
    assert_eq!((counts.fetched, counts.held, counts.missing), (ALL.bytes, 0, FileCounts::default()));
    assert_eq!(cache.cached_bytes(), ALL.bytes);
    assert_eq!(cache.calls().checks, cache.calls().loads);
    // The path itself, three below it, and seven in each of those.
    assert_eq!(counts.directories, 25);
}

#[test]
fn totals_are_exact_before_the_first_byte_is_loaded_unless_the_listing_is_partial() {
    for partial in [false, true] {
        let cache = cluster();
        let mut course = Course::new(&cache, load(|load| load.partial_listing = partial));
        course.run_until(|job| job.live.counts.fetched > 0);
        assert_eq!(course.job.record.total, (!partial).then_some(ALL));
        assert_eq!(course.run().total, Some(ALL));
    }
}

#[test]
fn what_was_evicted_meanwhile_is_reported_with_its_first_paths() {
    let cache = cluster();
    cache.limit(40);
    let record = Course::new(&cache, load(|_| ())).run();
    assert_eq!(record.state, JobState::Succeeded);
    let missing = record.ledger.counts.missing;
    assert!(missing.files > 10, "{missing:?}");
    assert_eq!(missing.bytes, ALL.bytes - cache.cached_bytes());
    assert_eq!(record.ledger.counts.audited.bytes, cache.cached_bytes());
    assert_eq!(record.ledger.missing_paths.len(), 10);
}

#[test]
fn what_has_other_owners_by_then_is_loaded_there_and_not_reported_as_evicted() {
    let cache = cluster();
    let mut course = Course::new(&cache, load(|_| ()));
    course.run_until(|job| job.live.counts.done.bytes > ALL.bytes / 2);
    cache.reassign();
    let record = course.run();
    let counts = record.ledger.counts;
    assert_eq!(record.state, JobState::Succeeded);
    assert_eq!((counts.audited, counts.missing), (ALL, FileCounts::default()));
    assert_eq!(cache.cached_bytes(), ALL.bytes);
}

#[test]
fn a_successor_does_not_know_who_the_owners_were() {
    let cache = cluster();
    let mut course = Course::new(&cache, load(|_| ()));
    course.run_until(|job| matches!(job.record.pass, Pass::Audit(0)));
    let left = course.job.record(0);
    cache.reassign();
    let record = Course::resume(&cache, left).run();
    assert_eq!(record.ledger.counts.missing, FileCounts::default());
    assert_eq!(cache.cached_bytes(), ALL.bytes);
}

#[test]
fn what_the_new_owners_have_no_room_for_was_evicted() {
    let cache = cluster();
    let mut course = Course::new(&cache, load(|_| ()));
    course.run_until(|job| matches!(job.record.pass, Pass::Audit(0)));
    cache.reassign();
    cache.limit(40);
    let record = course.run();
    assert!(record.ledger.counts.missing.files > 10, "{:?}", record.ledger.counts.missing);
}

#[test]
fn verify_loads_again_what_the_audit_found_missing_and_audits_again() {
    let cache = cluster();
    let mut course = Course::new(&cache, load(|load| load.verify = true));
    course.run_until(|job| matches!(job.record.pass, Pass::Audit(0)));
    cache.evict("/s3/d1/e1/f22");
    let record = course.run();
    assert_eq!((record.state, record.pass), (JobState::Succeeded, Pass::Audit(1)));
    let counts = record.ledger.counts;
    assert_eq!(counts.repaired, FileCounts { files: 1, bytes: 22 * 11_111 });
    assert_eq!((counts.audited, counts.missing), (ALL, FileCounts::default()));
}

#[test]
fn verify_gives_up_when_the_cache_is_too_small_and_says_what_is_missing() {
    let cache = cluster();
    cache.limit(40);
    let record = Course::new(&cache, load(|load| load.verify = true)).run();
    assert_eq!((record.state, record.pass), (JobState::Succeeded, Pass::Audit(2)));
    assert_eq!(record.ledger.counts.missing.bytes, ALL.bytes - cache.cached_bytes());
}

#[test]
fn replicas_that_no_policy_has_read_are_told() {
    for (asked, is_told) in [(None, false), (Some(1), false), (Some(2), true)] {
        let cache = cluster();
        let record = Course::new(&cache, load(|load| load.replicas = asked)).run();
        let with_bytes = record.ledger.counts.done.files - 1;
        assert_eq!(record.ledger.counts.unread_replicas, if is_told { with_bytes } else { 0 });
        let warnings = JobReport::of(&record, None).warnings;
        let told =
            warnings.iter().any(|warning| warning.starts_with(&format!("{with_bytes} files have more replicas")));
        assert_eq!(told, is_told, "{warnings:?}");
    }
}

#[test]
fn a_file_that_fails_ends_the_job_only_when_everything_else_was_tried() {
    let cache = cluster();
    cache.fail("/s3/d0", Call::Load, FailureKind::PermissionDenied, u32::MAX);
    cache.fail("/s3/d1/e2", Call::List, FailureKind::Unavailable, u32::MAX);
    let record = Course::new(&cache, load(|load| load.partial_listing = true)).run();
    assert_eq!(record.state, JobState::Failed);
    let [denied, unavailable] = &record.ledger.failures.causes[..] else { panic!("{:?}", record.ledger.failures) };
    // One of d0's twenty is empty, and there is nothing of it to load.
    assert_eq!((denied.kind.as_str(), denied.count, denied.first_paths.len()), ("PERMISSION_DENIED", 19, 10));
    assert_eq!((unavailable.count, unavailable.first_paths[0].as_str()), (1, "/s3/d1/e2"));
    let rest = record.ledger.counts.done.files;
    assert!((35..41).contains(&rest), "{rest}");
    assert_eq!(record.ledger.counts.missing, FileCounts::default(), "what failed was not evicted");
}

#[test]
fn a_file_whose_worker_is_gone_has_failed_once_whatever_the_audit_hears() {
    let cache = cluster();
    for call in [Call::Load, Call::Coverage] {
        cache.fail("/s3/d0", call, FailureKind::Unavailable, u32::MAX);
    }
    let record = Course::new(&cache, load(|_| ())).run();
    assert_eq!((record.state, record.ledger.failures.count), (JobState::Failed, 19), "{:?}", record.ledger.failures);
}

#[test]
fn what_fails_for_a_while_is_tried_again() {
    let cache = cluster();
    for call in [Call::Stat, Call::List, Call::Load, Call::Coverage] {
        cache.fail("/s3", call, FailureKind::TimedOut, 4);
    }
    let record = Course::new(&cache, load(|_| ())).run();
    assert_eq!((record.state, record.ledger.counts.audited), (JobState::Succeeded, ALL));
}

#[test]
fn a_file_that_changes_is_loaded_in_its_new_version() {
    let cache = cluster();
    let mut course = Course::new(&cache, load(|_| ()));
    // Listed, and changed before it is loaded.
    course.run_until(|job| job.record.pass == Pass::Work && job.live.counts.seen.files > 0);
    let recent = 1_000_000_000_000 * 1_000_000;
    cache.put("/s3/d0/e0/f00", 600_000, recent);
    cache.put("/s3/d2/e0/f35", 700_000, recent);
    // Loaded, and changed before it is checked.
    course.run_until(|job| job.record.pass == Pass::Audit(0));
    cache.put("/s3/d2/e3/f59", 500_000, recent);
    let record = course.run();
    assert_eq!(record.state, JobState::Succeeded, "{:?}", record.ledger);
    let new = ALL.bytes - (35 + 59) * 11_111 + 600_000 + 700_000 + 500_000;
    assert_eq!((record.ledger.counts.audited.bytes, record.ledger.counts.missing), (new, FileCounts::default()));
}

#[test]
fn files_that_are_cached_whole_are_passed_over_if_asked_for() {
    let cache = cluster();
    Course::new(&cache, load(|_| ())).run();
    cache.evict("/s3/d2/e3/f59");
    let before = cache.calls().loads;
    let record = Course::new(&cache, load(|load| load.skip_if_exists = true)).run();
    let counts = record.ledger.counts;
    assert_eq!(record.state, JobState::Succeeded);
    assert_eq!(counts.skipped, FileCounts { files: 58, bytes: ALL.bytes - 59 * 11_111 });
    assert_eq!((counts.done, counts.fetched), (FileCounts { files: 2, bytes: 59 * 11_111 }, 59 * 11_111));
    assert_eq!(cache.calls().loads - before, 3);
}

#[test]
fn what_cannot_be_asked_for_is_loaded() {
    let cache = cluster();
    Course::new(&cache, load(|_| ())).run();
    cache.fail("/s3/d2/e3/f59", Call::Coverage, FailureKind::Unsupported, 1);
    let record = Course::new(&cache, load(|load| load.skip_if_exists = true)).run();
    assert_eq!((record.state, record.ledger.counts.audited), (JobState::Succeeded, ALL));
    assert_eq!(record.ledger.counts.done, FileCounts { files: 2, bytes: 59 * 11_111 });
}

#[test]
fn metadata_only_lists_everything_and_loads_nothing() {
    let cache = cluster();
    let record = Course::new(&cache, load(|load| load.metadata_only = true)).run();
    assert_eq!((record.state, record.ledger.counts.done), (JobState::Succeeded, FileCounts { files: 60, bytes: 0 }));
    assert_eq!((cache.calls().loads, cache.cached_bytes()), (0, 0));
}

#[test]
fn a_path_that_is_missing_or_empty_is_not_found() {
    let cache = FakeCache::new(BLOCK);
    for spec in [load(|_| ()), load(|load| load.path = FsPath::root()), JobSpec::Free(FreeSpec::new(path("/s3")))] {
        let record = Course::new(&cache, spec).run();
        assert_eq!(record.state, JobState::Failed);
        assert_eq!(record.ledger.failures.causes[0].kind, "NOT_FOUND");
    }
}

#[test]
fn an_index_file_names_files_and_directories() {
    let cache = cluster();
    cache.put_text("/s3/list", "/s3/d0\nd1/e1/f01\n# no\n\n/s3/gone\n");
    let mut spec = LoadSpec::new(path("/s3/list"));
    spec.index_file = true;
    let record = Course::new(&cache, JobSpec::Load(spec)).run();
    assert_eq!((record.state, record.ledger.failures.count), (JobState::Failed, 1));
    assert_eq!(record.ledger.failures.causes[0].first_paths, ["/s3/gone"]);
    assert_eq!(record.ledger.counts.done.files, 21);
}

#[test]
fn an_index_file_that_is_replaced_ends_the_job() {
    let cache = cluster();
    cache.put_text("/s3/list", "d0\nd1\n");
    let mut spec = LoadSpec::new(path("/s3/list"));
    spec.index_file = true;
    let mut course = Course::new(&cache, JobSpec::Load(spec));
    course.run_until(|job| job.record.pass == Pass::Work);
    cache.put_text("/s3/list", "d0\nd1\nd2\n");
    let record = course.run();
    assert_eq!(record.state, JobState::Failed);
    assert_eq!(record.ledger.failures.causes[0].kind, "VERSION_CHANGED");
}

#[test]
fn a_limited_job_takes_as_long_as_its_bytes_and_what_is_cached_costs_nothing() {
    let cache = cluster();
    let spec = load(|load| load.bandwidth = Some(forebay_types::ByteSize::mib(1)));
    let mut course = Course::new(&cache, spec.clone());
    let start = course.now;
    while course.step() {}
    let (took, expected) = ((course.now - start).as_secs_f64(), ALL.bytes as f64 / f64::from(1 << 20));
    assert!((took / expected - 1.0).abs() < 0.1, "{took} s, expected {expected} s");
    let mut again = Course::new(&cache, spec);
    let start = again.now;
    while again.step() {}
    assert!(again.now - start < Duration::from_secs(3), "{:?}", again.now - start);
}

#[test]
fn free_drops_everything_in_batches() {
    let cache = cluster();
    Course::new(&cache, load(|_| ())).run();
    let record = Course::new(&cache, JobSpec::Free(FreeSpec::new(path("/s3")))).run();
    assert_eq!((record.state, record.ledger.counts.done), (JobState::Succeeded, ALL));
    assert_eq!((record.ledger.counts.freed, cache.cached_bytes()), (ALL.bytes, 0));
    assert_eq!(cache.calls().frees, 12);
}

#[test]
fn free_drops_what_is_cached_of_files_that_are_gone() {
    let cache = FakeCache::new(BLOCK);
    for name in ["/s3/testdata/a", "/s3/testdata/b", "/s3/testdatabase", "/s3/kept"] {
        cache.put(name, 100, 0);
    }
    Course::new(&cache, load(|_| ())).run();
    let free = |at: &str| Course::new(&cache, JobSpec::Free(FreeSpec::new(path(at)))).run();
    // One of them, and then the directory with all that was in it.
    cache.delete("/s3/testdata/a");
    let record = free("/s3/testdata");
    assert_eq!((record.state, record.ledger.counts.freed), (JobState::Succeeded, 200));
    Course::new(&cache, load(|_| ())).run();
    cache.delete("/s3/testdata/b");
    let record = free("/s3/testdata");
    assert_eq!((record.state, record.ledger.counts.freed), (JobState::Succeeded, 100), "{:?}", record.ledger.failures);
    assert_eq!(cache.cached_bytes(), 200, "what is beside it stays");
    // Now there is nothing left, and that is told with the path.
    let record = free("/s3/testdata");
    assert_eq!(record.state, JobState::Failed);
    let cause = &record.ledger.failures.causes[0];
    assert_eq!(cause.kind, "NOT_FOUND");
    assert!(cause.told().contains("/s3/testdata"), "{cause:?}");
}

#[test]
fn a_stopped_job_ends_at_once_and_tells_what_it_did() {
    let cache = cluster();
    let mut course = Course::new(&cache, load(|_| ()));
    course.run_until(|job| job.live.counts.done.files > 10);
    course.job.stop();
    assert!(!course.step());
    let record = course.job.record(5);
    assert_eq!((record.state, record.finished), (JobState::Stopped, Some(5)));
    assert!(record.ledger.counts.done.files > 10);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However often coordinators die, and wherever, the last report is that of a job that was never interrupted.
    #[test]
    fn a_job_that_is_resumed_counts_nothing_twice_and_forgets_nothing(
        deaths in prop::collection::vec(1usize..400, 1..6),
        seed: u64,
        partial: bool,
        index: bool,
    ) {
        let cache = cluster();
        cache.put_text("/s3/list", "d0\nd1/e1/f01\nd2\nd1/e0\n");
        cache.fail("/s3/d2/e4", Call::Load, FailureKind::NotFound, u32::MAX);
        let spec = load(|load| {
            load.partial_listing = partial;
            if index {
                (load.index_file, load.path) = (true, path("/s3/list"));
            }
        });
        let undisturbed = Course::new(&cache, spec.clone()).run();
        let cache = { let fresh = cluster(); fresh.put_text("/s3/list", "d0\nd1/e1/f01\nd2\nd1/e0\n");
            fresh.fail("/s3/d2/e4", Call::Load, FailureKind::NotFound, u32::MAX); fresh };
        let mut record = JobRecord::new("job".into(), spec, 0);
        for steps in deaths {
            let mut course = Course::resume(&cache, record.clone());
            course.seed = seed;
            // The store is told after each step, so that any place is one to resume from.
            for _ in 0..steps {
                if !course.step() { break; }
            }
            if course.job.record.state.is_final() { break; }
            record = JobRecord::decode(&course.job.record(0).encode()).unwrap();
        }
        let resumed = Course::resume(&cache, record).run();
        prop_assert_eq!(resumed.state, undisturbed.state);
        prop_assert_eq!(resumed.total, undisturbed.total);
        let (mut counts, expected) = (resumed.ledger.counts, undisturbed.ledger.counts);
        // What was loaded and not yet written down is found in the cache.
        prop_assert_eq!(counts.fetched + counts.held, expected.fetched + expected.held);
        (counts.fetched, counts.held) = (expected.fetched, expected.held);
        prop_assert_eq!(counts, expected);
        prop_assert_eq!(resumed.ledger.failures.count, undisturbed.ledger.failures.count);
    }
}
