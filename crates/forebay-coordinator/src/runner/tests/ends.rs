//! Jobs whose end the state store does not take.

use super::*;

#[tokio::test]
async fn a_job_whose_end_is_not_written_down_yet_holds_up_no_other_and_is_not_forgotten() {
    let cluster = Cluster::new().await;
    let runner = cluster.elect("one", |options| (options.running, options.kept) = (1, 0)).await;
    cluster.store.is(Mood::Endless);
    let (first, _) = runner.submit(load()).await.unwrap();
    let (second, _) = runner.submit(JobSpec::Load(LoadSpec::new(FsPath::new("/s3/d0").unwrap()))).await.unwrap();
    for id in [&first.id, &second.id] {
        assert_eq!(end(&runner, id).await.state, JobState::Succeeded);
    }
    cluster.store.is(Mood::Well);
    // None is kept once its end is written.
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !runner.reports().is_empty() {
        assert!(tokio::time::Instant::now() < deadline, "{:?}", runner.reports());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    runner.close().await;
    assert_eq!(cluster.written().await, [], "none came back");
}

#[tokio::test]
async fn a_job_that_was_stopped_before_it_was_written_down_is_joined_by_none() {
    let cluster = Cluster::new().await;
    let runner = cluster.elect("one", |_| ()).await;
    cluster.store.is(Mood::Away);
    let Err(RunnerError::Unclear { id: stopped, .. }) = runner.submit(load()).await else { panic!("it is known") };
    assert!(matches!(runner.stop(&stopped).await, Err(RunnerError::State(_))));
    assert_eq!(runner.report(&stopped).unwrap().state, JobState::Waiting);
    let Err(RunnerError::Unclear { id: next, .. }) = runner.submit(load()).await else { panic!("it is known") };
    assert_ne!(next, stopped);
    let again = runner.submit(load()).await;
    assert!(matches!(&again, Err(RunnerError::Unclear { id: same, .. }) if *same == next), "{again:?}");
    cluster.store.is(Mood::Well);
    assert_eq!(end(&runner, &stopped).await.state, JobState::Stopped);
    assert_eq!(end(&runner, &next).await.state, JobState::Succeeded);
    runner.close().await;
}

#[tokio::test]
async fn the_end_of_a_job_whose_record_is_too_large_is_written_down_in_brief() {
    let cluster = Cluster::new().await;
    cluster.cache.fail("/s3/d1", Call::Load, FailureKind::PermissionDenied, u32::MAX);
    let runner = cluster.elect("one", |_| ()).await;
    cluster.store.is(Mood::Narrow);
    let (report, _) = runner.submit(load()).await.unwrap();
    let report = end(&runner, &report.id).await;
    assert_eq!((report.state, report.failures.count), (JobState::Failed, 10));
    cluster.until_written(JobState::Failed).await;
    runner.close().await;
    let next = cluster.elect("two", |_| ()).await;
    let remembered = next.report(&report.id).unwrap();
    assert_eq!((remembered.state, remembered.failures.count), (JobState::Failed, 10));
    assert_eq!(remembered.progress.done, report.progress.done);
    next.close().await;
}
