use serde_json::json;

use super::*;
use crate::condition::Condition;

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

fn load(change: impl FnOnce(&mut LoadSpec)) -> LoadSpec {
    let mut spec = LoadSpec { path: "/s3/data".into(), ..LoadSpec::default() };
    change(&mut spec);
    spec
}

fn wanted(spec: &LoadSpec) -> JobSpec {
    job_spec(spec).unwrap()
}

/// A job as a coordinator tells of it.
fn report(spec: &JobSpec, state: &str, change: impl FnOnce(&mut JobReport)) -> JobReport {
    let counts = json!({ "files": 0, "bytes": 0 });
    let has_ended = !matches!(state, "WAITING" | "RUNNING");
    let mut report: JobReport = serde_json::from_value(json!({
        "id": "load-1", "spec": spec, "state": state, "pass": "work",
        "progress": {
            "total_known": true, "total": { "files": 10, "bytes": 1000 }, "listed": counts, "directories": 0,
            "done": { "files": 3, "bytes": 300 }, "skipped": { "files": 1, "bytes": 100 }, "fetched_bytes": 0,
            "cached_bytes": 0, "freed_bytes": 0, "audited": counts, "repaired": counts, "changed_files": 0,
            "percent": 40.4, "bytes_per_second": 12.7, "files_per_second": 0.0, "eta_seconds": null,
        },
        "evicted": { "files": 0, "bytes": 0, "first_paths": [] },
        "failures": jobs::Failures::default(),
        "warnings": [], "created_ms": 1000, "started_ms": 2000, "finished_ms": has_ended.then_some(60_000),
        "as_of_ms": 3000, "coordinator": "c1", "exit_code": 10,
    }))
    .unwrap();
    change(&mut report);
    report
}

fn scribe(earlier: &[Condition], now: u64) -> Scribe<'_> {
    Scribe { earlier, generation: Some(1), now: at(now) }
}

fn condition<'a>(status: &'a LoadStatus, kind: &str) -> (&'a str, &'a str) {
    let found = status.conditions.iter().find(|condition| condition.kind == kind).unwrap();
    (&found.status, &found.reason)
}

#[test]
fn a_load_is_submitted_followed_and_left_alone_when_it_has_ended() {
    let spec = load(|_| ());
    assert_eq!(step(&spec, None, at(0)), Step::Submit(wanted(&spec)));
    let running = submitted(&wanted(&spec), &report(&wanted(&spec), "RUNNING", |_| ()), &scribe(&[], 0));
    assert_eq!((running.percent, running.files, running.bytes), (Some(40), 4, 400));
    assert_eq!((running.total_bytes, running.bytes_per_second), (Some(1000), 12));
    assert_eq!(condition(&running, ACCEPTED), ("True", "Submitted"));
    assert_eq!(condition(&running, COMPLETE), ("False", "Running"));
    assert_eq!(step(&spec, Some(&running), at(1)), Step::Follow { job: "load-1".into(), spec: wanted(&spec) });
    let ended =
        followed(&wanted(&spec), &report(&wanted(&spec), "SUCCEEDED", |_| ()), &scribe(&running.conditions, 60));
    assert_eq!((condition(&ended, COMPLETE), condition(&ended, FAILED).0), (("True", "Loaded"), "False"));
    assert_eq!(ended.completion_time.as_deref(), Some("1970-01-01T00:01:00Z"));
    assert_eq!(step(&spec, Some(&ended), at(100_000)), Step::Rest(None), "it is not loaded again");
}

#[test]
fn how_it_ended_is_told_apart() {
    let spec = wanted(&load(|_| ()));
    let ended = |state, change: fn(&mut JobReport)| followed(&spec, &report(&spec, state, change), &scribe(&[], 0));
    let evicted = ended("SUCCEEDED", |report| report.evicted.bytes = 9);
    assert_eq!(condition(&evicted, COMPLETE), ("True", "LoadedAndPartlyEvicted"));
    for (state, reason) in [("FAILED", "Failed"), ("STOPPED", "Stopped")] {
        let status = ended(state, |_| ());
        assert_eq!((condition(&status, FAILED), condition(&status, COMPLETE).0), (("True", reason), "False"));
    }
}

#[test]
fn workers_that_could_not_be_reached_are_named() {
    let spec = wanted(&load(|_| ()));
    let failed = |causes: Value| {
        let ended = report(&spec, "FAILED", |report| {
            report.failures = serde_json::from_value(json!({ "count": 12, "causes": causes })).unwrap();
        });
        let status = followed(&spec, &ended, &scribe(&[], 0));
        status.conditions.into_iter().find(|condition| condition.kind == FAILED).unwrap().message
    };
    let cause = |variants: &[String]| {
        let message = "# cannot connect to #";
        json!([{ "kind": "UNAVAILABLE", "message": message, "count": 12, "first_paths": [], "variants": variants }])
    };
    let unreachable: Vec<String> = (10..20).map(|at| format!("w{at}: cannot connect to 10.0.0.{at}:29999")).collect();
    let two = failed(cause(&unreachable[..2]));
    assert!(two.starts_with("12 files could not be loaded: "), "{two}");
    assert!(two.ends_with("; w10: cannot connect to 10.0.0.10:29999; w11: cannot connect to 10.0.0.11:29999"), "{two}");
    let mut both = cause(&unreachable);
    both.as_array_mut().unwrap().extend(cause(&[]).as_array().unwrap().clone());
    let many = failed(both);
    assert!(many.contains("w19: ") && many.ends_with("; and others"), "{many}");
    assert!(failed(cause(&[])).ends_with("; # cannot connect to #"), "a coordinator of an earlier release");
    assert!(failed(json!([])).ends_with("names them"));
}

#[test]
fn another_content_is_another_job_and_stops_the_one_that_runs() {
    let (old, new) = (load(|_| ()), load(|spec| spec.replicas = Some(2)));
    let running = followed(&wanted(&old), &report(&wanted(&old), "RUNNING", |_| ()), &scribe(&[], 0));
    assert_eq!(step(&new, Some(&running), at(0)), Step::Replace { job: "load-1".into(), spec: wanted(&new) });
    let ended = followed(&wanted(&old), &report(&wanted(&old), "FAILED", |_| ()), &scribe(&[], 0));
    assert_eq!(step(&new, Some(&ended), at(0)), Step::Submit(wanted(&new)));
}

#[test]
fn a_job_that_another_object_wants_is_not_stopped_for_one_that_changed() {
    let (same, changed) = (load(|_| ()), load(|spec| spec.replicas = Some(2)));
    let running = followed(&wanted(&same), &report(&wanted(&same), "RUNNING", |_| ()), &scribe(&[], 0));
    let wants =
        |spec: &LoadSpec, status: Option<&LoadStatus>| is_followed("load-1", [(spec, status)].into_iter(), at(0));
    assert!(wants(&same, Some(&running)));
    assert!(!wants(&changed, Some(&running)), "that one has changed, too");
    assert!(!wants(&same, None));
    let another = LoadStatus { job: Some("load-2".into()), ..running };
    assert!(!wants(&same, Some(&another)));
    assert!(!is_followed("load-1", [].into_iter(), at(0)));
}

#[test]
fn the_hash_is_of_what_is_set_and_of_nothing_else() {
    let hash = |change: fn(&mut LoadSpec)| content_hash(&wanted(&load(change)));
    let plain = hash(|_| ());
    assert_eq!(plain, hash(|spec| spec.path = "/s3/data".into()));
    assert_eq!(plain, hash(|spec| spec.ttl_seconds_after_finished = Some(1)), "how long it is kept is no work");
    assert_ne!(plain, hash(|spec| spec.verify = true));
    assert_ne!(plain, hash(|spec| spec.bandwidth = Some("1MiB".into())));
    assert_eq!(hash(|spec| spec.bandwidth = Some("1024KiB".into())), hash(|spec| spec.bandwidth = Some("1MiB".into())));
    // It is in objects that outlive this release.
    assert_eq!(plain.len(), 32);
    let encoded = br#"{"kind":"load","path":"/s3/data"}"#;
    assert_eq!(plain, blake3::hash(encoded).to_hex()[..32]);
}

#[test]
fn an_object_goes_when_its_time_is_over() {
    let spec = load(|spec| spec.ttl_seconds_after_finished = Some(30));
    let ended = followed(&wanted(&spec), &report(&wanted(&spec), "SUCCEEDED", |_| ()), &scribe(&[], 60));
    assert_eq!(step(&spec, Some(&ended), at(80)), Step::Rest(Some(Duration::from_secs(10))));
    assert_eq!(step(&spec, Some(&ended), at(90)), Step::Expire);
    assert_eq!(
        step(&spec, Some(&ended), at(10)),
        Step::Rest(Some(Duration::from_secs(30))),
        "a clock that was set back"
    );
    let at_once = load(|spec| spec.ttl_seconds_after_finished = Some(0));
    assert_eq!(step(&at_once, Some(&ended), at(60)), Step::Expire);
}

#[test]
fn a_job_for_the_same_path_that_does_something_else_is_waited_for() {
    let spec = wanted(&load(|spec| spec.verify = true));
    let other = report(&wanted(&load(|_| ())), "RUNNING", |_| ());
    let status = submitted(&spec, &other, &scribe(&[], 0));
    assert_eq!((condition(&status, ACCEPTED), &status.job), (("False", "Waiting"), &None), "asked again later");
}

#[test]
fn with_an_object_its_job_is_stopped_unless_another_object_has_it() {
    let spec = load(|_| ());
    let running = followed(&wanted(&spec), &report(&wanted(&spec), "RUNNING", |_| ()), &scribe(&[], 0));
    assert_eq!(forget(Some(&running), [].into_iter()), Some("load-1".into()));
    assert_eq!(forget(Some(&running), ["load-1"].into_iter()), None);
    let ended = followed(&wanted(&spec), &report(&wanted(&spec), "STOPPED", |_| ()), &scribe(&[], 0));
    assert_eq!(forget(Some(&ended), [].into_iter()), None);
    assert_eq!(forget(None, [].into_iter()), None);
}

#[test]
fn what_cannot_be_is_refused_with_the_field_and_keeps_what_was_known() {
    for (spec, named) in [
        (load(|spec| spec.path = "data".into()), "spec.path: "),
        (load(|spec| spec.bandwidth = Some("fast".into())), "spec.bandwidth: "),
        (load(|spec| (spec.metadata_only, spec.verify) = (true, true)), "verify"),
    ] {
        let Step::Refuse(verdict) = step(&spec, None, at(0)) else { panic!("{spec:?}") };
        assert!(verdict.message.contains(named), "{}", verdict.message);
    }
    let spec = wanted(&load(|_| ()));
    let running = followed(&spec, &report(&spec, "RUNNING", |_| ()), &scribe(&[], 0));
    let status = refused(Some(&running), Verdict::no("Unreachable", "no"), &scribe(&running.conditions, 5));
    assert_eq!((condition(&status, ACCEPTED), status.percent), (("False", "Unreachable"), Some(40)));
    assert_eq!(status.conditions.len(), 3);
}
