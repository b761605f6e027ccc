//! Runners over a real state store and a cache that misbehaves on demand.

mod clients;
mod ends;

use std::time::Duration;

use forebay_cluster::records::clients::MATERIALISE_REQUESTS;
use forebay_state::{
    Committed, Entry as StoredEntry, FileOptions, FileStore, Lease, Snapshot, StateError, Transaction, Watch, Write,
};
use forebay_types::FailureKind;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::*;
use crate::fake::{Call, FakeCache};
use crate::jobs::{FileCounts, FreeSpec, JobState, Limits, LoadSpec};

const BLOCK: u32 = 256 << 10;
const LEADER: &str = "leader";
const PATIENCE: Duration = Duration::from_secs(30);

/// What becomes of commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    Well,
    /// The store is not reached.
    Away,
    /// They are carried out, and the caller is not told.
    Mute,
    /// They are refused.
    Strict,
    /// They wait until the mood is another, and are carried out then, even if the caller gave up waiting.
    Slow,
    /// The next one does; those after it do not.
    SlowOnce,
    /// Of the next one the caller is told that the store is not reached, and it is carried out when the mood is said again.
    LateOnce,
    /// The next one that asks mounts to keep files is so.
    LateRequest,
    /// Those are refused that say of a job that it has succeeded.
    Endless,
    /// Those are too large that name files of the directory `/s3/d1`.
    Narrow,
}

/// A state store that misbehaves on demand.
struct Fickle {
    store: Arc<FileStore>,
    mood: watch::Sender<Mood>,
    /// The commit that is late.
    late: Mutex<Option<JoinHandle<Result<Committed, StateError>>>>,
}

impl Fickle {
    fn is(&self, mood: Mood) {
        self.mood.send_replace(mood);
    }

    fn away(&self) -> StateError {
        StateError::Unavailable { store: self.describe(), reason: "told to be away".into() }
    }

    fn reach(&self) -> Result<&FileStore, StateError> {
        if *self.mood.borrow() == Mood::Away { Err(self.away()) } else { Ok(&self.store) }
    }
}

#[async_trait::async_trait]
impl StateStore for Fickle {
    async fn get(&self, key: &str) -> Result<Option<StoredEntry>, StateError> {
        self.reach()?.get(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Snapshot, StateError> {
        self.reach()?.list(prefix).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Committed, StateError> {
        let mut mood = self.mood.subscribe();
        let first = *mood.borrow_and_update();
        let store = Arc::clone(&self.store);
        let says = |text: &str| transaction.writes.iter().any(|write| puts(write, text));
        let is_late =
            first == Mood::LateOnce || (first == Mood::LateRequest && transaction.writes.iter().any(is_request));
        let is_refused = first == Mood::Strict || (first == Mood::Endless && says("\"state\":\"SUCCEEDED\""));
        match first {
            Mood::Away => return Err(self.away()),
            _ if is_refused => {
                let (operation, reason, remedy) = ("commit".into(), "told to refuse".into(), "be kind".into());
                return Err(StateError::Refused { store: self.describe(), operation, reason, remedy });
            }
            Mood::Narrow if says("/s3/d1/f") => {
                return Err(StateError::ValueTooLarge { key: "jobs/".into(), size: 2, limit: 1 });
            }
            _ if first == Mood::SlowOnce || is_late => {
                self.is(Mood::Well);
                mood.mark_unchanged();
            }
            _ => {}
        }
        // A task of its own: it happens even if the caller is gone.
        let carried_out = tokio::spawn(async move {
            if is_late || matches!(first, Mood::Slow | Mood::SlowOnce) {
                mood.changed().await.unwrap();
            }
            store.commit(transaction).await
        });
        if is_late {
            *self.late.lock() = Some(carried_out);
            return Err(self.away());
        }
        let committed = carried_out.await.unwrap()?;
        if first == Mood::Mute { Err(self.away()) } else { Ok(committed) }
    }

    async fn lease(&self, ttl: Duration) -> Result<Lease, StateError> {
        self.reach()?.lease(ttl).await
    }

    fn watch(&self, prefix: &str) -> Watch {
        self.store.watch(prefix)
    }

    fn describe(&self) -> String {
        self.store.describe()
    }

    async fn close(&self) {
        self.store.close().await;
    }
}

fn puts(write: &Write, text: &str) -> bool {
    matches!(write, Write::Put { value, .. } if String::from_utf8_lossy(value).contains(text))
}

fn is_request(write: &Write) -> bool {
    matches!(write, Write::Put { key, .. } if key.starts_with(MATERIALISE_REQUESTS))
}

struct Cluster {
    store: Arc<Fickle>,
    cache: Arc<FakeCache>,
    _directory: tempfile::TempDir,
}

const ALL: FileCounts = FileCounts { files: 40, bytes: 39 * 40 / 2 * 20_000 };

impl Cluster {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(FileStore::open(directory.path(), FileOptions::default()).await.unwrap());
        let store = Arc::new(Fickle { store, mood: watch::Sender::new(Mood::Well), late: Mutex::default() });
        let cache = Arc::new(FakeCache::new(BLOCK));
        for number in 0..40u64 {
            cache.put(&format!("/s3/d{}/f{number:02}", number % 4), number * 20_000, 0);
        }
        Self { store, cache, _directory: directory }
    }

    /// The jobs in the state store.
    async fn written(&self) -> Vec<JobRecord> {
        RecordStore::new(Arc::clone(&self.store) as _, None).list().await.unwrap()
    }

    async fn until_written(&self, state: JobState) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while !self.written().await.iter().any(|record| record.state == state) {
            assert!(tokio::time::Instant::now() < deadline, "no job is written down as {state:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// A runner of a leader that was just elected: the one before is deposed.
    async fn elect(&self, name: &str, change: impl FnOnce(&mut RunnerOptions)) -> Runner {
        let elected = self.store.commit(Transaction::new().put(LEADER, name.as_bytes().to_vec())).await.unwrap();
        let leads = Condition::Unchanged(LEADER.into(), elected.revision().unwrap());
        let limits = Limits {
            items: 16,
            blocks: 4,
            block_size: BLOCK,
            checkpoint: Duration::from_millis(20),
            ..Limits::default()
        };
        let mut options = RunnerOptions { limits, ..RunnerOptions::default() };
        change(&mut options);
        let (store, cache) = (Arc::clone(&self.store), Arc::clone(&self.cache));
        Runner::start(name, store, leads, cache, options).await.unwrap()
    }
}

fn load() -> JobSpec {
    JobSpec::Load(LoadSpec::new(FsPath::new("/s3").unwrap()))
}

async fn until(runner: &Runner, id: &str, condition: impl Fn(&JobReport) -> bool) -> JobReport {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let report = runner.report(id).unwrap();
        if condition(&report) {
            return report;
        }
        assert!(tokio::time::Instant::now() < deadline, "{report:#?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn end(runner: &Runner, id: &str) -> JobReport {
    until(runner, id, |report| report.state.is_final()).await
}

#[tokio::test]
async fn a_job_runs_to_its_end_and_is_remembered() {
    let cluster = Cluster::new().await;
    let runner = cluster.elect("one", |_| ()).await;
    let (report, created) = runner.submit(load()).await.unwrap();
    assert!(created);
    let report = end(&runner, &report.id).await;
    assert_eq!((report.state, report.progress.done, report.progress.audited), (JobState::Succeeded, ALL, ALL));
    assert_eq!(cluster.cache.cached_bytes(), ALL.bytes);
    // It is reported as soon as it is so, also while there is no store to write it down.
    cluster.until_written(JobState::Succeeded).await;
    runner.close().await;
    let next = cluster.elect("two", |_| ()).await;
    let remembered = next.report(&report.id).unwrap();
    assert_eq!((remembered.state, remembered.progress.done), (JobState::Succeeded, ALL));
    next.close().await;
}

#[tokio::test]
async fn a_job_that_its_coordinator_left_is_resumed_and_counts_nothing_twice() {
    let cluster = Cluster::new().await;
    cluster.cache.slow_down(Duration::from_millis(5));
    let runner = cluster.elect("one", |_| ()).await;
    let (report, _) = runner.submit(load()).await.unwrap();
    until(&runner, &report.id, |report| report.progress.done.files >= 10).await;
    // It dies: its tasks end where they are, and nothing more is written.
    runner.close().await;
    let loads_before = cluster.cache.calls().loads;
    let next = cluster.elect("two", |_| ()).await;
    let report = end(&next, &report.id).await;
    assert_eq!((report.state, report.coordinator.as_str()), (JobState::Succeeded, "two"));
    assert_eq!((report.progress.done, report.progress.audited), (ALL, ALL));
    // What is done again is what was under way, and what was done since the last record.
    let blocks: u64 = (0..40).map(|number| (number * 20_000_u64).div_ceil(u64::from(BLOCK))).sum();
    let again = cluster.cache.calls().loads.checked_sub(blocks).expect("each is loaded");
    assert!(loads_before > 0 && again <= 40, "{again} blocks were loaded again");
    next.close().await;
}

#[tokio::test]
async fn a_deposed_leader_writes_nothing_and_ends() {
    let cluster = Cluster::new().await;
    cluster.cache.slow_down(Duration::from_millis(20));
    let old = cluster.elect("old", |_| ()).await;
    let (report, _) = old.submit(load()).await.unwrap();
    let new = cluster.elect("new", |_| ()).await;
    tokio::time::timeout(PATIENCE, old.ended()).await.unwrap();
    assert!(matches!(old.submit(load()).await, Ok((_, false)) | Err(RunnerError::Deposed)));
    let other = JobSpec::Free(FreeSpec::new(FsPath::root()));
    assert!(matches!(old.submit(other).await, Err(RunnerError::Deposed)));
    old.close().await;
    let report = end(&new, &report.id).await;
    assert_eq!((report.coordinator.as_str(), report.progress.done), ("new", ALL));
    new.close().await;
}

#[tokio::test]
async fn a_job_for_a_path_is_not_started_twice() {
    let cluster = Cluster::new().await;
    cluster.cache.slow_down(Duration::from_millis(20));
    let runner = cluster.elect("one", |_| ()).await;
    let ((first, created), (second, again)) = tokio::try_join!(runner.submit(load()), runner.submit(load())).unwrap();
    assert_eq!((first.id == second.id, created, again), (true, true, false));
    let (free, created) = runner.submit(JobSpec::Free(FreeSpec::new(FsPath::new("/s3").unwrap()))).await.unwrap();
    assert!(created && free.id != first.id);
    runner.close().await;
}

#[tokio::test]
async fn a_stopped_job_stays_stopped_when_another_leads() {
    let cluster = Cluster::new().await;
    // The first job is under way while the state store writes four times, and its disk may be busy.
    cluster.cache.slow_down(Duration::from_secs(10));
    let runner = cluster.elect("one", |options| options.running = 1).await;
    let (first, _) = runner.submit(load()).await.unwrap();
    let (waits, _) = runner.submit(JobSpec::Free(FreeSpec::new(FsPath::root()))).await.unwrap();
    assert_eq!(runner.report(&waits.id).unwrap().state, JobState::Waiting);
    for id in [&waits.id, &first.id] {
        runner.stop(id).await.unwrap();
        assert_eq!(end(&runner, id).await.state, JobState::Stopped);
    }
    assert!(matches!(runner.stop("none").await, Err(RunnerError::NoJob(_))));
    runner.close().await;
    let next = cluster.elect("two", |_| ()).await;
    // The end may not have been written down, but that it was asked for was.
    for id in [&waits.id, &first.id] {
        assert_eq!(end(&next, id).await.state, JobState::Stopped);
    }
    next.close().await;
}

#[tokio::test]
async fn jobs_wait_for_their_turn_and_the_old_are_forgotten() {
    let cluster = Cluster::new().await;
    let runner = cluster.elect("one", |options| (options.running, options.kept) = (1, 2)).await;
    for directory in ["d0", "d1", "d2", "d3"] {
        let path = FsPath::new(format!("/s3/{directory}")).unwrap();
        runner.submit(JobSpec::Load(LoadSpec::new(path))).await.unwrap();
    }
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while runner.reports().len() > 2 || runner.reports().iter().any(|report| !report.state.is_final()) {
        assert!(tokio::time::Instant::now() < deadline, "{:?}", runner.reports());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let kept: Vec<_> = runner.reports().iter().map(|report| report.spec.path().to_string()).collect();
    assert_eq!(kept, ["/s3/d3", "/s3/d2"]);
    assert_eq!(cluster.cache.cached_bytes(), ALL.bytes);
    runner.close().await;
    assert_eq!(cluster.store.list("jobs/").await.unwrap().entries.len(), 2);
}

#[tokio::test]
async fn a_job_with_failures_tries_everything_and_fails() {
    let cluster = Cluster::new().await;
    cluster.cache.fail("/s3/d1", Call::Load, FailureKind::PermissionDenied, u32::MAX);
    let runner = cluster.elect("one", |_| ()).await;
    let (report, _) = runner.submit(load()).await.unwrap();
    let report = end(&runner, &report.id).await;
    assert_eq!((report.state, report.exit_code, report.failures.count), (JobState::Failed, 8, 10));
    assert_eq!(report.progress.done.files, 30);
    runner.close().await;
}

#[tokio::test]
async fn a_job_goes_on_while_the_state_store_is_away_and_is_written_down_when_it_is_back() {
    let cluster = Cluster::new().await;
    cluster.cache.slow_down(Duration::from_millis(2));
    let runner = cluster.elect("one", |_| ()).await;
    let (report, _) = runner.submit(load()).await.unwrap();
    until(&runner, &report.id, |report| report.progress.done.files > 0).await;
    cluster.store.is(Mood::Away);
    assert_eq!(end(&runner, &report.id).await.state, JobState::Succeeded);
    cluster.store.is(Mood::Well);
    cluster.until_written(JobState::Succeeded).await;
    runner.close().await;
}

#[tokio::test]
async fn a_job_of_which_the_store_does_not_say_whether_it_has_it_is_listed_and_runs_once() {
    for mood in [Mood::Away, Mood::Mute] {
        let cluster = Cluster::new().await;
        let runner = cluster.elect("one", |_| ()).await;
        cluster.store.is(mood);
        let Err(RunnerError::Unclear { id, .. }) = runner.submit(load()).await else { panic!("{mood:?}") };
        assert_eq!(runner.report(&id).unwrap().state, JobState::Waiting);
        let again = runner.submit(load()).await;
        assert!(matches!(&again, Err(RunnerError::Unclear { id: same, .. }) if *same == id), "{mood:?}: {again:?}");
        // What is not known to be written down does not run.
        assert_eq!(cluster.cache.calls().pages, 0);
        // That a later try is refused does not say that the first one was not carried out.
        cluster.store.is(Mood::Strict);
        tokio::time::sleep(Duration::from_millis(1200)).await;
        assert_eq!(runner.report(&id).unwrap().state, JobState::Waiting);
        cluster.store.is(Mood::Well);
        assert_eq!(end(&runner, &id).await.state, JobState::Succeeded);
        runner.close().await;
        let written = cluster.written().await;
        assert_eq!((written.len(), &written[0].id), (1, &id), "{mood:?}");
    }
}

#[tokio::test]
async fn a_job_whose_submitter_went_away_in_the_middle_is_listed_and_not_submitted_twice() {
    let cluster = Cluster::new().await;
    let runner = cluster.elect("one", |_| ()).await;
    cluster.store.is(Mood::Slow);
    let given_up = tokio::time::timeout(Duration::from_millis(20), runner.submit(load())).await;
    assert!(given_up.is_err());
    let [job] = &runner.reports()[..] else { panic!("{:?}", runner.reports()) };
    cluster.store.is(Mood::Well);
    let (same, is_new) = runner.submit(load()).await.unwrap();
    assert_eq!((&same.id, is_new), (&job.id, false));
    assert_eq!(end(&runner, &job.id).await.state, JobState::Succeeded);
    runner.close().await;
    assert_eq!(cluster.written().await.len(), 1);
}

#[tokio::test]
async fn a_job_that_may_be_written_down_can_be_stopped_and_does_nothing() {
    let cluster = Cluster::new().await;
    let runner = cluster.elect("one", |_| ()).await;
    runner.submit(load()).await.unwrap();
    cluster.until_written(JobState::Succeeded).await;
    cluster.store.is(Mood::Mute);
    let free = JobSpec::Free(FreeSpec::new(FsPath::root()));
    let Err(RunnerError::Unclear { id, .. }) = runner.submit(free).await else { panic!("it is known") };
    assert!(matches!(runner.stop(&id).await, Err(RunnerError::State(_))));
    cluster.store.is(Mood::Well);
    assert_eq!(end(&runner, &id).await.state, JobState::Stopped);
    cluster.until_written(JobState::Stopped).await;
    assert_eq!((cluster.cache.cached_bytes(), cluster.cache.calls().frees), (ALL.bytes, 0));
    runner.close().await;
}

#[tokio::test]
async fn a_job_that_may_be_written_down_is_left_to_the_next_leader() {
    let cluster = Cluster::new().await;
    let runner = cluster.elect("one", |_| ()).await;
    cluster.store.is(Mood::Mute);
    let Err(RunnerError::Unclear { id, .. }) = runner.submit(load()).await else { panic!("it is known") };
    tokio::time::timeout(PATIENCE, runner.close()).await.unwrap();
    assert!(matches!(runner.submit(load()).await, Err(RunnerError::Deposed)));
    cluster.store.is(Mood::Well);
    let next = cluster.elect("two", |_| ()).await;
    assert_eq!(end(&next, &id).await.coordinator, "two");
    next.close().await;
}

#[tokio::test]
async fn a_job_that_the_store_refuses_is_forgotten() {
    let cluster = Cluster::new().await;
    let runner = cluster.elect("one", |_| ()).await;
    cluster.store.is(Mood::Strict);
    assert!(matches!(runner.submit(load()).await, Err(RunnerError::State(StateError::Refused { .. }))));
    assert_eq!(runner.reports(), []);
    runner.close().await;
}

#[tokio::test]
async fn a_stop_that_nobody_waits_for_is_written_down_before_the_end() {
    let cluster = Cluster::new().await;
    // The first job is under way until the end, however long the state store's disk takes.
    cluster.cache.slow_down(Duration::from_secs(10));
    let quiet = |options: &mut RunnerOptions| {
        (options.running, options.limits.checkpoint) = (1, Duration::from_secs(3600));
    };
    let runner = cluster.elect("one", quiet).await;
    let (runs, _) = runner.submit(load()).await.unwrap();
    cluster.until_written(JobState::Running).await;
    let (waits, _) = runner.submit(JobSpec::Free(FreeSpec::new(FsPath::root()))).await.unwrap();
    cluster.store.is(Mood::SlowOnce);
    assert!(tokio::time::timeout(Duration::from_millis(20), runner.stop(&waits.id)).await.is_err());
    assert_eq!(end(&runner, &waits.id).await.state, JobState::Stopped);
    assert_eq!(runner.report(&runs.id).unwrap().state, JobState::Running);
    // The end is not written while the stop is: this long nothing happens.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(cluster.written().await.iter().all(|record| record.state != JobState::Stopped));
    cluster.store.is(Mood::Well);
    cluster.until_written(JobState::Stopped).await;
    runner.close().await;
    let written = cluster.written().await;
    let stopped = written.iter().find(|record| record.id == waits.id).unwrap();
    assert_eq!(stopped.state, JobState::Stopped);
}

#[tokio::test]
async fn a_slow_write_of_the_progress_does_not_replace_the_record_of_the_end() {
    let cluster = Cluster::new().await;
    cluster.cache.slow_down(Duration::from_millis(2));
    let runner = cluster.elect("one", |_| ()).await;
    let (report, _) = runner.submit(load()).await.unwrap();
    until(&runner, &report.id, |report| report.progress.done.files > 0).await;
    cluster.store.is(Mood::SlowOnce);
    end(&runner, &report.id).await;
    assert_eq!(cluster.written().await[0].state, JobState::Running);
    cluster.store.is(Mood::Well);
    cluster.until_written(JobState::Succeeded).await;
    runner.close().await;
    assert_eq!(cluster.written().await[0].state, JobState::Succeeded);
}

#[tokio::test]
async fn a_write_of_which_the_store_said_nothing_does_not_replace_a_later_one() {
    let cluster = Cluster::new().await;
    cluster.cache.slow_down(Duration::from_millis(2));
    let runner = cluster.elect("one", |_| ()).await;
    let (report, _) = runner.submit(load()).await.unwrap();
    until(&runner, &report.id, |report| report.progress.done.files > 0).await;
    cluster.store.is(Mood::LateOnce);
    end(&runner, &report.id).await;
    cluster.until_written(JobState::Succeeded).await;
    let late = cluster.store.late.lock().take().expect("one write is late");
    cluster.store.is(Mood::Well);
    assert_eq!(late.await.unwrap().unwrap(), Committed::Conflict);
    runner.close().await;
    assert_eq!(cluster.written().await[0].state, JobState::Succeeded);
}
