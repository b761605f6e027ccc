//! Several coordinators, of which one leads: the others pass on to it what is its own.

mod support;

use std::time::Duration;

use forebay_coordinator::jobs::JobState;
use forebay_state::{StateStore, Transaction};
use serde_json::{Value, json};

use support::{Cluster, PATIENCE, bare, end, leads, load, refusal};

#[tokio::test]
async fn who_does_not_lead_answers_reads_and_passes_writes_on_to_the_leader() {
    let cluster = Cluster::new().await;
    // The job is under way while three requests are answered, on a busy machine, too.
    cluster.cache.slow_down(Duration::from_secs(2));
    let (leader, at_leader) = cluster.coordinator("leader").await;
    leads(&leader).await;
    let (other, at_other) = cluster.coordinator("other").await;
    let submitted = at_other.submit(&load()).await.unwrap();
    assert_eq!(at_leader.job(&submitted.job.id).await.unwrap().coordinator, "leader");
    assert_eq!(at_other.cluster().await.unwrap().leader.unwrap().name, "leader");
    let seen = at_other.jobs(None, None).await.unwrap();
    assert_eq!(seen[0].id, submitted.job.id);
    // The leader goes in the middle of the job; the other one takes over and resumes it.
    leader.close().await;
    leads(&other).await;
    cluster.cache.slow_down(Duration::ZERO);
    let job = end(&at_other, &submitted.job.id).await;
    assert_eq!((job.state, job.coordinator.as_str(), job.progress.done.files), (JobState::Succeeded, "other", 20));
    other.close().await;
    assert!(cluster.store.list("coordinators/").await.unwrap().entries.is_empty());
}

#[tokio::test]
async fn who_submits_while_the_leader_is_dead_waits_for_the_next_one_to_lead() {
    let cluster = Cluster::new().await;
    let leader_is = async |name: &str| {
        let record = json!({ "name": name, "address": "127.0.0.1:1" }).to_string();
        cluster.store.commit(Transaction::new().put("leader", record)).await.unwrap();
    };
    // Of this one's own name: it led before it was started again.
    leader_is("next").await;
    let (next, client) = cluster.coordinator("next").await;
    let refused = client.submit(&load()).await.unwrap_err();
    assert!(refused.is_without_leader() && refused.is_unavailable(), "{refused:?}");
    assert_eq!(refusal(refused).1, "NO_LEADER");
    // Of another one, where nothing listens.
    leader_is("dead").await;
    let unreachable = client.submit(&load()).await.unwrap_err();
    assert!(unreachable.to_string().contains("127.0.0.1:1, which leads for all that this one knows"), "{unreachable}");
    assert!(unreachable.is_without_leader() && unreachable.is_unavailable() && !next.is_leading());

    let (job, (waits, waiting)) = (load(), tokio::sync::oneshot::channel());
    let submitted = forebay_coordinator::once_led(PATIENCE, |_| waits.send(()).unwrap(), || client.submit(&job));
    let lease_ends = async {
        waiting.await.unwrap();
        cluster.store.commit(Transaction::new().delete("leader")).await.unwrap();
    };
    let job = load();
    let (submitted, ()) = tokio::join!(submitted, lease_ends);
    assert_eq!(submitted.unwrap().job.spec, job);
    next.leads().await;
    assert!(next.is_leading());
    next.close().await;
}

#[tokio::test]
async fn a_request_is_passed_on_once_and_never_in_a_circle() {
    let cluster = Cluster::new().await;
    // Before any coordinator is there to be elected.
    let led_by = async |name: &str, address: String| {
        let record = json!({ "name": name, "address": address }).to_string();
        cluster.store.commit(Transaction::new().put("leader", record)).await.unwrap();
    };
    led_by("nobody", "127.0.0.1:1".to_owned()).await;
    let ((one, at_one), (two, at_two)) = tokio::join!(cluster.coordinator("one"), cluster.coordinator("two"));
    // Neither leads, and both take the other one, or themselves, for one that does.
    for address in [one.address().unwrap(), two.address().unwrap()] {
        led_by("a name that neither has", address.to_string()).await;
        for client in [&at_one, &at_two] {
            let refused = client.submit(&load()).await.unwrap_err();
            assert!(refused.is_without_leader(), "{refused:?}");
            let (status, _, message) = refusal(refused);
            assert!(status == 503 && message.contains("takes this one for the leader"), "{message}");
        }
    }
    assert!(cluster.store.list("jobs/").await.unwrap().entries.is_empty());
    one.close().await;
    two.close().await;
}

#[tokio::test]
async fn what_is_refused_by_the_leader_is_refused_in_its_words() {
    let cluster = Cluster::new().await;
    let (leader, at_leader) = cluster.coordinator("leader").await;
    leads(&leader).await;
    let (other, at_other) = cluster.coordinator("other").await;
    let none = refusal(at_other.stop("none").await.unwrap_err());
    assert_eq!(none, refusal(at_leader.stop("none").await.unwrap_err()));
    assert_eq!(none.0, 404);
    let json = |text: &str| Some(("application/json", text.as_bytes().to_vec()));
    for (body, status, code) in [
        (json("{"), 400, "INVALID_ARGUMENT"),
        (Some(("text/plain", b"{}".to_vec())), 415, "UNSUPPORTED_MEDIA_TYPE"),
        (Some(("application/json", vec![b' '; 100_000])), 413, "TOO_LARGE"),
    ] {
        let (found, text) = bare(&other, "POST", "/api/v1/jobs", body).await;
        let fault: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((found, fault["error"]["code"].as_str()), (status, Some(code)), "{text}");
    }
    other.close().await;
    leader.close().await;
}

#[tokio::test]
async fn a_job_is_stopped_by_any_coordinator() {
    let cluster = Cluster::new().await;
    cluster.cache.slow_down(Duration::from_secs(2));
    let (leader, _) = cluster.coordinator("leader").await;
    leads(&leader).await;
    let (other, at_other) = cluster.coordinator("other").await;
    let submitted = at_other.submit(&load()).await.unwrap();
    at_other.stop(&submitted.job.id).await.unwrap();
    assert_eq!(end(&at_other, &submitted.job.id).await.state, JobState::Stopped);
    other.close().await;
    leader.close().await;
}
