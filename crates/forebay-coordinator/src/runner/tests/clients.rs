//! Jobs whose files mounts are to keep.

use forebay_cluster::records::clients::{
    CLIENTS, ClientRecord, DELIVERIES, DeliveryRecord, MATERIALISE_REQUESTS, MaterialiseRecord,
};
use forebay_state::encode_segment;

use super::*;

/// A mount that takes requests: its record, and what it reports of a job.
async fn mount(store: &Fickle, name: &str, report: Option<(&str, DeliveryRecord)>) {
    let (key, capacity_bytes) = (format!("{CLIENTS}{}", encode_segment(name)), 1 << 30);
    let record = ClientRecord { name: name.into(), capacity_bytes };
    let mut write = Transaction::new().put(key, record.encode());
    if let Some((job, report)) = report {
        write = write.put(format!("{DELIVERIES}{job}/{}", encode_segment(name)), report.encode());
    }
    store.commit(write).await.unwrap();
}

async fn request(cluster: &Cluster) -> Option<MaterialiseRecord> {
    let requests = cluster.store.list(MATERIALISE_REQUESTS).await.unwrap().entries;
    requests.first().map(|entry| MaterialiseRecord::decode(&entry.value).unwrap())
}

fn for_clients() -> JobSpec {
    JobSpec::Load(LoadSpec { to_clients: true, ..LoadSpec::new(FsPath::new("/s3").unwrap()) })
}

async fn until_requested(cluster: &Cluster) -> MaterialiseRecord {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(request) = request(cluster).await {
            return request;
        }
        assert!(tokio::time::Instant::now() < deadline, "no request is written");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn whole() -> DeliveryRecord {
    DeliveryRecord { ready: ALL.files, ready_bytes: ALL.bytes, ended: true, ..DeliveryRecord::default() }
}

#[tokio::test]
async fn a_job_for_clients_ends_when_every_mount_has_done_what_it_can() {
    let cluster = Cluster::new().await;
    mount(&cluster.store, "a:/mnt", None).await;
    let runner = cluster.elect("one", |_| ()).await;
    let (report, _) = runner.submit(for_clients()).await.unwrap();
    let request = until_requested(&cluster).await;
    assert_eq!((&request.job, &*request.path), (&report.id, "/s3"));
    mount(&cluster.store, "a:/mnt", Some((&report.id, whole()))).await;
    let report = end(&runner, &report.id).await;
    assert_eq!((report.state, report.delivery.unwrap().kept), (JobState::Succeeded, ALL));
    cluster.until_written(JobState::Succeeded).await;
    assert_eq!(self::request(&cluster).await, None, "it stands no more");
    runner.close().await;
}

#[tokio::test]
async fn a_mount_that_stays_away_fails_a_job_for_clients_by_name() {
    let cluster = Cluster::new().await;
    mount(&cluster.store, "a:/mnt", None).await;
    mount(&cluster.store, "b:/mnt", None).await;
    let runner = cluster.elect("one", |options| options.mounts_away = Duration::from_millis(200)).await;
    let (report, _) = runner.submit(for_clients()).await.unwrap();
    until_requested(&cluster).await;
    mount(&cluster.store, "a:/mnt", Some((&report.id, whole()))).await;
    until(&runner, &report.id, |report| report.delivery.as_ref().is_some_and(|delivery| delivery.ended == 1)).await;
    cluster.store.commit(Transaction::new().delete(format!("{CLIENTS}{}", encode_segment("b:/mnt")))).await.unwrap();
    let report = end(&runner, &report.id).await;
    let delivery = report.delivery.unwrap();
    assert_eq!((report.state, delivery.kept, delivery.gone), (JobState::Failed, ALL, vec!["b:/mnt".to_owned()]));
    assert!(report.warnings.iter().any(|warning| warning.contains("b:/mnt")), "{:?}", report.warnings);
    assert!(report.failures.causes[0].message.contains("b:/mnt"), "{:?}", report.failures);
    runner.close().await;
}

#[tokio::test]
async fn the_order_of_a_job_that_is_stopped_goes_with_its_end_however_often_that_fails_to_be_written() {
    let cluster = Cluster::new().await;
    mount(&cluster.store, "a:/mnt", None).await;
    let runner = cluster.elect("one", |_| ()).await;
    let (report, _) = runner.submit(for_clients()).await.unwrap();
    until_requested(&cluster).await;
    cluster.store.is(Mood::Away);
    assert!(runner.stop(&report.id).await.is_err());
    assert_eq!(end(&runner, &report.id).await.state, JobState::Stopped);
    cluster.store.is(Mood::Well);
    assert!(request(&cluster).await.is_some(), "as long as the end is not written");
    cluster.until_written(JobState::Stopped).await;
    assert_eq!(request(&cluster).await, None);
    runner.close().await;
}

#[tokio::test]
async fn a_request_of_which_the_store_said_nothing_does_not_come_after_its_job_has_ended() {
    let cluster = Cluster::new().await;
    mount(&cluster.store, "a:/mnt", None).await;
    let runner = cluster.elect("one", |_| ()).await;
    cluster.store.is(Mood::LateRequest);
    let (report, _) = runner.submit(for_clients()).await.unwrap();
    // That of the second try.
    until_requested(&cluster).await;
    mount(&cluster.store, "a:/mnt", Some((&report.id, whole()))).await;
    assert_eq!(end(&runner, &report.id).await.state, JobState::Succeeded);
    cluster.until_written(JobState::Succeeded).await;
    let late = cluster.store.late.lock().take().expect("one write is late");
    cluster.store.is(Mood::Well);
    assert_eq!(late.await.unwrap().unwrap(), Committed::Conflict);
    assert_eq!(request(&cluster).await, None);
    runner.close().await;
}

#[tokio::test]
async fn a_new_leader_withdraws_requests_of_jobs_that_have_ended_and_leaves_the_others() {
    let cluster = Cluster::new().await;
    mount(&cluster.store, "a:/mnt", None).await;
    let runner = cluster.elect("one", |_| ()).await;
    let (report, _) = runner.submit(for_clients()).await.unwrap();
    let request = until_requested(&cluster).await;
    runner.close().await;
    let stray = MaterialiseRecord { job: "load-0".into(), path: "/".into() };
    cluster
        .store
        .commit(Transaction::new().put(format!("{MATERIALISE_REQUESTS}load-0"), stray.encode()))
        .await
        .unwrap();
    let next = cluster.elect("two", |_| ()).await;
    assert_eq!(cluster.store.list(MATERIALISE_REQUESTS).await.unwrap().entries.len(), 1);
    assert_eq!(request.job, report.id);
    assert_eq!(until_requested(&cluster).await, request);
    next.close().await;
}

#[tokio::test]
async fn a_load_for_clients_is_another_job_than_a_plain_one() {
    let cluster = Cluster::new().await;
    cluster.cache.slow_down(Duration::from_millis(20));
    let runner = cluster.elect("one", |_| ()).await;
    let (plain, _) = runner.submit(load()).await.unwrap();
    let (first, is_new) = runner.submit(for_clients()).await.unwrap();
    let (second, again) = runner.submit(for_clients()).await.unwrap();
    assert_eq!((plain.id == first.id, is_new, first.id == second.id, again), (false, true, true, false));
    runner.close().await;
}

#[tokio::test]
async fn a_job_for_clients_without_any_fails_and_says_what_to_set() {
    let cluster = Cluster::new().await;
    let runner = cluster.elect("one", |_| ()).await;
    let (report, _) = runner.submit(for_clients()).await.unwrap();
    let report = end(&runner, &report.id).await;
    assert_eq!((report.state, report.progress.done), (JobState::Failed, ALL), "what was loaded stays loaded");
    assert!(report.failures.causes[0].message.contains("client.local.size"), "{:?}", report.failures);
    runner.close().await;
}
