# Sourced by scripts/k8s-test.sh: a cluster of two hundred and one workers, of which one runs.
#
# Pods of kwok run nothing, so the others are records that forebay-e2e-fleet (tests/src/bin/) writes into etcd as a
# worker would, under leases, with addresses that lead nowhere. A release of its own, `crowd`, has a coordinator, an
# operator and the one worker; its etcd is that of the trial.

# pod_address NAMESPACE COMPONENT: of the first pod that runs.
pod_address() {
    kube "api/v1/namespaces/$1/pods?labelSelector=app.kubernetes.io/component%3D$2" |
        jq --raw-output '[.items[] | select(.status.phase == "Running") | .status.podIP][0]'
}

# has_event NAMESPACE KIND REASON
has_event() {
    kube_is "apis/events.k8s.io/v1/namespaces/$1/events" ".items | any(.regarding.kind == \"$2\" and .reason == \"$3\")"
}

# crowd_is FILTER of the members.
crowd_is() {
    forebay cluster status --json --coordinator "$(pod_address crowd coordinator):19999" --config "$work/crowd.toml" |
        jq --exit-status ".cluster.members | $1"
}

# counts METRIC: whether the operator of the crowd shows it, and more than 0.
counts() {
    curl --silent --show-error --fail --max-time 10 "http://$(pod_address crowd operator):19997/metrics" |
        awk -v metric="$1" 'index($0, metric) == 1 && $NF > 0 {found = 1} END {exit !found}'
}

# Fails by name while two hundred of its workers are not there, and is complete when they are gone.
loads_over_two_hundred_workers() {
    local objects=apis/forebay.io/v1alpha1/namespaces/crowd etcd fleet number
    etcd=http://$(pod_address forebay etcd):2379
    namespace crowd '{}'
    echo 'security.mode = "off"' >"$work/crowd.toml"
    kube_apply api/v1/namespaces/crowd/secrets/bucket >/dev/null <<'YAML'
apiVersion: v1
kind: Secret
metadata: {name: bucket}
stringData: {AWS_ACCESS_KEY_ID: forebay-test, AWS_SECRET_ACCESS_KEY: forebay-test-secret, AWS_REGION: us-east-1}
YAML
    cat >"$work/crowd.yaml" <<YAML
etcd: {endpoints: ["$etcd"], trial: {enabled: false}}
cluster: {name: crowd}
security: {mode: "off", keySecret: ""}
coordinator: {replicas: 1}
worker: {replicas: 1, cache: {type: none}}
mount: {enabled: false}
csi: {enabled: false}
operator: {crds: false, drain: {enabled: false, hold: false}}
YAML
    # As a site without a network does.
    guide air-gapped.md "Run it on Kubernetes" "helm install forebay=helm install crowd" \
        "--namespace forebay=--namespace crowd" "--wait=--values $work/crowd.yaml --wait"
    ok "the chart is installed from its file, as the guide to sites without a network says"

    for number in {1..200}; do echo "fleet-$number 10.77.0.$number:29999"; done >"$work/workers"
    rig_start workers sh -c 'exec "$1" "$2" crowd default 4194304 <"$3"' sh "$work/fleet" "$etcd" "$work/workers"
    fleet=$!
    eventually 60 "two hundred workers are registered" grep -q '^registered 200$' "$rig/logs/workers.log"
    eventually 60 "each of them has its share" crowd_is \
        'length == 201 and all(.state == "active") and
            (map(select(.name | startswith("fleet-")) | .share) | all(. > 0.0025 and . < 0.01))'
    ok "two hundred workers that register are in the status of the cluster, with even shares"

    load_all '{"path": "/"}'
    eventually 300 "the load over workers that are not there fails" condition forebayloads/all Failed True
    kube_is "$objects/forebayloads/all" '.status.failedFiles == 8 and
        ([.status.conditions[] | select(.type == "Failed") | .message | scan("fleet-[0-9]+")] | unique | length >= 5)' \
        >/dev/null
    ok "a ForebayLoad over workers that cannot be reached ends, and its status names them"
    eventually 30 "the end is an Event, too" has_event crowd ForebayLoad Failed
    has_event crowd ForebayLoad Submitted >/dev/null
    has_event forebay ForebayMount Shown >/dev/null
    has_event forebay ForebayMount PathTaken >/dev/null
    has_event forebay ForebayPolicy InEffect >/dev/null
    has_event forebay Pod WorkerAskedToLeave >/dev/null
    has_event forebay Pod WorkerStays >/dev/null
    ok "what changed is told as Events of loads, mounts, policies and workers' pods"
    eventually 30 "what it did is counted" counts 'forebay_operator_reconciles_total{kind="ForebayLoad",outcome="done"}'
    eventually 30 "so is what failed" counts 'forebay_operator_unready_objects{kind="ForebayLoad"}'
    ok "the operator shows what it counts"

    kill -TERM "$fleet"
    eventually 60 "they have left" crowd_is 'length == 1'
    load_all '{"path": "/", "verify": true}'
    eventually 180 "the load over the worker that is there is complete" condition forebayloads/all Complete True
    ok "when they have left, another load is complete on the worker that is there"
}
