//! Jobs whose files mounts are to keep.

use super::*;

#[test]
fn what_was_loaded_and_checked_is_kept_by_mounts_if_asked_for() {
    let cache = cluster();
    let mut course = Course::new(&cache, load(|load| load.to_clients = true));
    course.run_until(|job| job.record.pass == Pass::Clients);
    let audited = course.job.record.ledger.counts.audited;
    assert_eq!(audited, ALL, "only then");
    course.job.delivering(&Delivery { mounts: 2, kept: ALL, ..Delivery::default() });
    let report = course.job.report(course.now, 0);
    assert_eq!(report.progress.percent, Some(50.0), "one of two mounts has all of it");
    let record = course.run();
    assert_eq!((record.state, record.ledger.delivery.unwrap().ended), (JobState::Succeeded, 2));
}

#[test]
fn a_mount_that_cannot_keep_it_all_fails_the_job_by_name() {
    let cache = cluster();
    let mut spec = LoadSpec::new(path("/s3/d1"));
    spec.to_clients = true;
    let record = Course::new(&cache, JobSpec::Load(spec)).run();
    let report = JobReport::of(&record, None);
    assert_eq!((record.state, report.exit_code, report.failures.count), (JobState::Failed, 8, 1));
    assert_eq!(report.failures.causes[0].first_paths, ["/s3/d1/e0/f07"]);
    assert!(report.failures.causes[0].message.contains("no room"), "{report:?}");
}

#[test]
fn files_that_mounts_do_not_keep_are_counted_also_where_they_are_not_named() {
    let cache = cluster();
    let mut course = Course::new(&cache, load(|load| load.to_clients = true));
    course.run_until(|job| job.record.pass == Pass::Clients);
    let few = delivered(&path("/s3/d1"));
    course.job.delivered(Delivery { mounts: 3, no_room: 4000, failed: 1000, gone: vec!["c".into()], ..few });
    let failures = &course.job.live.failures;
    assert_eq!((failures.count, failures.causes.iter().map(|cause| cause.count).sum::<u64>()), (5001, 5001));
    assert!(failures.causes.iter().any(|cause| cause.message.starts_with("c went away")), "{failures:?}");
}

#[test]
fn a_successor_asks_mounts_again() {
    let cache = cluster();
    let mut course = Course::new(&cache, load(|load| load.to_clients = true));
    course.run_until(|job| job.record.pass == Pass::Clients);
    let left = course.job.record(0);
    let mut next = Course::resume(&cache, left);
    next.run_until(|job| job.is_ordered);
    assert_eq!(next.asked.len(), 1, "and nothing else");
    assert_eq!(next.run().state, JobState::Succeeded);
}
