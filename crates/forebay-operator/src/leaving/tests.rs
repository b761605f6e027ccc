use serde_json::json;

use super::*;

const WITHIN: Duration = Duration::from_secs(600);

fn pod(worker: &str, node: &str) -> WorkerPod {
    WorkerPod {
        name: format!("pod-{worker}"),
        uid: format!("uid-{worker}-{node}"),
        worker: worker.into(),
        node: node.into(),
        released: false,
    }
}

fn released(worker: &str, node: &str) -> WorkerPod {
    WorkerPod { released: true, ..pod(worker, node) }
}

fn release(in_time: bool) -> Step {
    Step::Release { pod: pod("w1", "n1"), in_time }
}

fn seen(pods: &[WorkerPod], nodes: &[(&str, bool)], members: &[(&str, Member)]) -> Seen {
    Seen {
        pods: pods.to_vec(),
        nodes: nodes.iter().map(|(name, cordoned)| ((*name).to_owned(), *cordoned)).collect(),
        members: members.iter().map(|(name, member)| ((*name).to_owned(), *member)).collect(),
    }
}

fn asked(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(worker, node)| ((*worker).to_owned(), (*node).to_owned())).collect()
}

#[test]
fn the_worker_of_a_cordoned_node_leaves_and_its_pod_is_released_when_it_has() {
    let (mut leaving, now) = (Leaving::new(BTreeMap::new(), WITHIN), Instant::now());
    let nodes = [("n1", true), ("n2", false)];
    let pods = [pod("w1", "n1"), pod("w2", "n2")];
    let of = |state| seen(&pods, &nodes, &[("w1", state), ("w2", Member::Stays)]);
    let first = leaving.steps(&of(Member::Stays), now);
    assert_eq!(first, [Step::Remember(asked(&[("w1", "n1")])), Step::Drain(pod("w1", "n1"))], "remembered first");
    leaving.remembered(asked(&[("w1", "n1")]));
    assert_eq!(leaving.steps(&of(Member::Leaving), now), []);
    assert_eq!(leaving.steps(&of(Member::Drained), now), [release(true)]);
    let pods = [released("w1", "n1"), pod("w2", "n2")];
    let after = seen(&pods, &nodes, &[("w1", Member::Drained), ("w2", Member::Stays)]);
    assert_eq!(leaving.steps(&after, now), []);
}

#[test]
fn a_worker_stays_when_its_node_takes_pods_again_or_when_it_runs_elsewhere() {
    let now = Instant::now();
    let back = [Step::Undrain("w1".into()), Step::Remember(BTreeMap::new())];
    for node in ["n1", "n3"] {
        let mut leaving = Leaving::new(asked(&[("w1", "n1")]), WITHIN);
        let members = [("w1", Member::Drained)];
        let there = seen(&[pod("w1", node)], &[("n1", false), ("n3", false)], &members);
        assert_eq!(leaving.steps(&there, now), back, "{node}");
        let labelled = seen(&[released("w1", node)], &[("n1", false), ("n3", false)], &members);
        assert_eq!(leaving.steps(&labelled, now)[0], Step::Hold(released("w1", node)));
    }
}

#[test]
fn between_two_pods_of_a_worker_it_is_remembered() {
    let mut leaving = Leaving::new(asked(&[("w1", "n1")]), WITHIN);
    assert_eq!(leaving.steps(&seen(&[], &[("n1", true)], &[]), Instant::now()), []);
    assert!(!leaving.is_quiet(&seen(&[], &[("n1", true)], &[])));
}

#[test]
fn a_worker_that_is_named_after_a_node_that_is_gone_is_forgotten() {
    let mut leaving = Leaving::new(asked(&[("n1", "n1")]), WITHIN);
    assert_eq!(leaving.steps(&seen(&[], &[("n1", true)], &[]), Instant::now()), []);
    let gone = leaving.steps(&seen(&[], &[("n2", false)], &[]), Instant::now());
    assert_eq!(gone, [Step::Undrain("n1".into()), Step::Remember(BTreeMap::new())]);
}

#[test]
fn who_was_asked_to_leave_by_somebody_else_is_left_alone() {
    let (mut leaving, now) = (Leaving::new(BTreeMap::new(), WITHIN), Instant::now());
    for state in [Member::Leaving, Member::Drained] {
        let on_a_good_node = seen(&[pod("w1", "n1")], &[("n1", false)], &[("w1", state)]);
        assert_eq!(leaving.steps(&on_a_good_node, now), []);
        assert!(leaving.is_quiet(&on_a_good_node));
    }
    let cordoned = seen(&[pod("w1", "n1")], &[("n1", true)], &[("w1", Member::Leaving)]);
    assert_eq!(leaving.steps(&cordoned, now), [], "it leaves already, and nobody has it stay later");
}

#[test]
fn one_that_starts_on_a_cordoned_node_is_asked_again() {
    let mut leaving = Leaving::new(asked(&[("w1", "n1")]), WITHIN);
    let restarted = seen(&[pod("w1", "n1")], &[("n1", true)], &[("w1", Member::Stays)]);
    assert_eq!(leaving.steps(&restarted, Instant::now()), [Step::Drain(pod("w1", "n1"))]);
}

#[test]
fn a_pod_is_not_held_for_ever() {
    let (mut leaving, now) = (Leaving::new(asked(&[("w1", "n1")]), WITHIN), Instant::now());
    let stuck = seen(&[pod("w1", "n1")], &[("n1", true)], &[("w1", Member::Leaving)]);
    assert_eq!(leaving.steps(&stuck, now), []);
    assert_eq!(leaving.steps(&stuck, now + WITHIN / 2), []);
    assert_eq!(leaving.steps(&stuck, now + WITHIN), [release(false)]);
    let dead = seen(&[pod("w1", "n1")], &[("n1", true)], &[]);
    assert_eq!(leaving.steps(&dead, now + WITHIN), [release(false)], "also one that is no member");
    let uncordoned = seen(&[pod("w1", "n1")], &[("n1", false)], &[("w1", Member::Leaving)]);
    leaving.steps(&uncordoned, now + WITHIN);
    assert_eq!(leaving.steps(&stuck, now + WITHIN), [], "the time begins anew with a new cordon");
}

#[test]
fn a_worker_that_cannot_be_asked_holds_up_no_pod_whose_time_is_over() {
    let (mut leaving, now) = (Leaving::new(asked(&[("w1", "n1")]), WITHIN), Instant::now());
    let nodes = [("n1", true), ("n2", true)];
    let members = [("w1", Member::Leaving), ("w2", Member::Stays)];
    let both = seen(&[pod("w1", "n1"), pod("w2", "n2")], &nodes, &members);
    let ask = [Step::Remember(asked(&[("w1", "n1"), ("w2", "n2")])), Step::Drain(pod("w2", "n2"))];
    assert_eq!(leaving.steps(&both, now), ask);
    let late = leaving.steps(&both, now + WITHIN);
    assert_eq!(late[..2], [release(false), Step::Release { pod: pod("w2", "n2"), in_time: false }]);
    assert_eq!(late[2..], ask, "it is asked all the same");
}

#[test]
fn what_is_done_again_and_again_is_told_once_a_cordon() {
    let (mut leaving, now) = (Leaving::new(asked(&[("w1", "n1")]), WITHIN), Instant::now());
    let drained = seen(&[pod("w1", "n1")], &[("n1", true)], &[("w1", Member::Drained)]);
    // Pods get no label: it is released in each round.
    assert_eq!(
        (leaving.steps(&drained, now), leaving.steps(&drained, now)),
        (vec![release(true)], vec![release(true)])
    );
    assert!(leaving.is_news(&pod("w1", "n1"), News::HandedOver));
    assert!(!leaving.is_news(&pod("w1", "n1"), News::HandedOver));
    assert!(leaving.is_news(&pod("w1", "n1"), News::TimedOut) && leaving.is_news(&pod("w2", "n1"), News::HandedOver));
    leaving.steps(&drained, now);
    assert!(!leaving.is_news(&pod("w1", "n1"), News::HandedOver));
    let uncordoned = seen(&[pod("w1", "n1")], &[("n1", false)], &[("w1", Member::Drained)]);
    leaving.steps(&uncordoned, now);
    assert!(leaving.is_news(&pod("w1", "n1"), News::Stays));
    // It could not be written down that it stays: it is asked to again.
    leaving.steps(&uncordoned, now);
    assert!(!leaving.is_news(&pod("w1", "n1"), News::Stays));
    leaving.steps(&drained, now);
    assert!(leaving.is_news(&pod("w1", "n1"), News::HandedOver), "a new cordon is another matter");
    assert_eq!(leaving.count(), 1);
}

#[test]
fn a_pod_says_the_name_of_its_worker() {
    let read = |change: &dyn Fn(&mut Value)| {
        let mut described = json!({
            "metadata": { "name": "forebay-worker-1", "uid": "u1", "labels": {} },
            "spec": { "nodeName": "n1", "containers": [{ "name": "worker", "env": [
                { "name": "FOREBAY_CONFIG", "value": "/etc" },
                { "name": NAME_VARIABLE, "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
            ] }] },
        });
        change(&mut described);
        worker_pod(&serde_json::from_value(described).unwrap())
    };
    let variable = |value: Value| move |pod: &mut Value| pod["spec"]["containers"][0]["env"][1] = value.clone();
    let worker = |found: Option<WorkerPod>| found.unwrap().worker;
    assert_eq!(worker(read(&|_| ())), "forebay-worker-1");
    let of_node = json!({ "name": NAME_VARIABLE, "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } });
    assert_eq!(worker(read(&variable(of_node))), "n1");
    assert_eq!(worker(read(&variable(json!({ "name": NAME_VARIABLE, "value": "w7" })))), "w7");
    assert_eq!(read(&variable(json!({ "name": "OTHER", "value": "w7" }))), None);
    assert_eq!(read(&|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")), None);
    assert_eq!(read(&|pod| pod["spec"]["nodeName"] = Value::Null), None, "it waits for a node");
    let labelled = read(&|pod| pod["metadata"]["labels"] = json!({ released_label(): "true" }));
    assert!(labelled.unwrap().released);
}

#[test]
fn nodes_and_members_are_read() {
    let read = |described: Value| node(&serde_json::from_value(described).unwrap());
    assert_eq!(
        read(json!({ "metadata": { "name": "n1" }, "spec": { "unschedulable": true } })),
        Some(("n1".into(), true))
    );
    assert_eq!(read(json!({ "metadata": { "name": "n1" } })), Some(("n1".into(), false)));
    let cluster = json!({ "members": [
        { "name": "w1", "state": "active" }, { "name": "w2", "state": "draining" },
        { "name": "w3", "state": "drained" }, { "name": "w4", "state": "damped" }, { "name": "w5" },
    ] });
    let expected = [("w1", Member::Stays), ("w2", Member::Leaving), ("w3", Member::Drained), ("w4", Member::Stays)];
    assert_eq!(members(&cluster), BTreeMap::from(expected.map(|(name, member)| (name.to_owned(), member))));
    assert_eq!(members(&Value::Null), BTreeMap::new());
}
