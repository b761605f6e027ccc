#!/usr/bin/env bash
# Follows docs/guides/kubernetes.md on a real Kubernetes of one node (scripts/k8s.sh), command by command: installs the chart,
# has a pod read a bucket, upgrades under a reader that checks every byte, has the operator bring about objects and drain
# workers, and puts a DaemonSet on two hundred nodes that kwok plays, a load over two hundred workers that are not there, and
# has a worker with a certificate hand over before it ends.
# `make test-k8s`. With FLUID_CRDS (scripts/k8s-fluid.sh) the API server looks at objects of Fluid, too.
#
# Needs root, Go and Debian's containerd, runc, containernetworking-plugins and etcd-server. The Kubernetes is built from Go
# modules once, a quarter of an hour (scripts/k8s-tools.sh). All of it runs in network, mount and process namespaces of its own,
# so nothing is left behind; settings of the kernel that a kubelet changes are put back.
set -euo pipefail
shopt -s nullglob
cd "$(dirname "$0")/.."

skipped=0
skip() { skipped=$((skipped + 1)); echo "skipped: Kubernetes: $*"; }

# ---- Outside of the namespaces ---------------------------------------------------------------------------------------

# What a kubelet sets for the whole machine.
kernel_settings=(vm/overcommit_memory kernel/panic kernel/panic_on_oops)
# What must be there to be mounted over.
directories=(/mnt /var/lib/cni)

needs() {
    local command package
    [[ $(uname -sm) == "Linux x86_64" ]] || { echo "this is $(uname -sm), and the image is for Linux on x86-64"; return; }
    ((EUID == 0)) || { echo "a kubelet needs root"; return; }
    for command in go:golang containerd:containerd ctr:containerd runc:runc etcd:etcd-server jq:jq openssl:openssl \
        curl:curl python3:python3 ip:iproute2 unshare:util-linux pgrep:procps; do
        package=${command#*:}
        command -v "${command%:*}" >/dev/null ||
            { echo "no ${command%:*} here; on Debian: apt-get install $package"; return; }
    done
    [[ -x /usr/lib/cni/bridge ]] ||
        { echo "no CNI plugins here; on Debian: apt-get install containernetworking-plugins"; return; }
    [[ -e /dev/fuse ]] || { echo "there is no /dev/fuse"; return; }
    [[ -z $(find /sys/fs/cgroup -maxdepth 3 -name 'kubepods*' -print -quit) ]] ||
        echo "a kubelet runs on this machine already"
}

outside() {
    local why setting directory tool status=0 images=(target/image/forebay-*.tar)
    why=$(needs)
    if [[ -n $why ]]; then
        skip "$why"
        echo "0 passed, 0 failed, 1 skipped"
        return
    fi
    [[ ${#images[@]} -eq 1 ]] || { echo "there is no one image in target/image: make image" >&2; return 1; }
    tools=$(scripts/k8s-tools.sh helm kubectl kubernetes) || {
        skip "Kubernetes cannot be built here: its Go modules cannot be had"
        echo "0 passed, 0 failed, 1 skipped"
        return
    }
    # Each is for one step, which is skipped without.
    for tool in kwok csi-sanity controller; do scripts/k8s-tools.sh "$tool" >/dev/null || rm -f "$tools/$tool"; done
    cargo build --quiet -p forebay-testkit --bin forebay-testkit-s3
    cargo build --quiet -p forebay-e2e --bin forebay-e2e-fleet

    work=$(mktemp -d "${TMPDIR:-/tmp}/k8s-test.XXXXXX")
    holder=""
    declare -gA kept=()
    made=()
    for setting in "${kernel_settings[@]}"; do kept[$setting]=$(<"/proc/sys/$setting"); done
    trap clean_up EXIT
    trap 'exit 130' INT TERM HUP
    for directory in "${directories[@]}"; do
        [[ -d $directory ]] || { mkdir -p "$directory"; made+=("$directory"); }
    done
    program_of "${images[0]}" "$work/forebay"
    cp "${CARGO_TARGET_DIR:-target}/debug/forebay-testkit-s3" "$work/s3-server"
    cp "${CARGO_TARGET_DIR:-target}/debug/forebay-e2e-fleet" "$work/fleet"
    # As a release has it, for sites without a network.
    scripts/helm.sh package "$work" >/dev/null 2>"$work/package.log" || { cat "$work/package.log" >&2; return 1; }

    # In the background, so that this hears a signal and ends it. With its process 1 all processes end.
    unshare --net --mount --pid --fork --kill-child --mount-proc --propagation private -- \
        scripts/k8s-test.sh --inside "$work" "$tools" "${images[0]}" &
    holder=$!
    wait "$holder" || status=$?
    holder=""
    return "$status"
}

# program_of IMAGE FILE: the program that is in an image, to be run here, too.
program_of() {
    local layer
    for layer in $(tar --list --file "$1" | grep '\.tar$'); do
        if tar --extract --to-stdout --file "$1" "$layer" | tar --extract --to-stdout usr/bin/forebay >"$2" 2>/dev/null; then
            chmod 755 "$2"
            return
        fi
    done
    echo "there is no usr/bin/forebay in $1" >&2
    return 1
}

clean_up() {
    local setting directory child
    if [[ -n $holder ]]; then
        # Its child is process 1 of the namespace, with which all others end.
        child=$(pgrep --parent "$holder" || true)
        [[ -z $child ]] || kill -KILL "$child" 2>/dev/null || true
        wait "$holder" 2>/dev/null || true
    fi
    for setting in "${!kept[@]}"; do
        [[ $(<"/proc/sys/$setting") == "${kept[$setting]}" ]] || echo "${kept[$setting]}" >"/proc/sys/$setting"
    done
    find /sys/fs/cgroup -depth -type d -path '*/kubepods*' -exec rmdir {} + 2>/dev/null || true
    for directory in ${made[@]+"${made[@]}"}; do rmdir --ignore-fail-on-non-empty "$directory" || true; done
    rm -rf --one-file-system "$work"
}

# ---- Inside ----------------------------------------------------------------------------------------------------------

passed=0
ok() { passed=$((passed + 1)); echo "ok      $1"; }

inside() {
    work=$1 tools=$2 image=$3 rig=$1/rig
    chart_file=$(echo "$work"/forebay-*.tgz)
    helm=("$tools/helm" --kubeconfig "$rig/kubeconfig")
    # shellcheck source=scripts/k8s.sh
    source scripts/k8s.sh
    # shellcheck source=scripts/k8s-guides.sh
    source scripts/k8s-guides.sh
    # shellcheck source=scripts/k8s-csi.sh
    source scripts/k8s-csi.sh
    # shellcheck source=scripts/k8s-mounts.sh
    source scripts/k8s-mounts.sh
    # shellcheck source=scripts/k8s-workers.sh
    source scripts/k8s-workers.sh
    # shellcheck source=scripts/k8s-certificates.sh
    source scripts/k8s-certificates.sh
    # shellcheck source=scripts/k8s-fluid.sh
    source scripts/k8s-fluid.sh
    trap '(($? == 0)) || failed "$BASH_COMMAND"' EXIT
    mkdir -p "$rig"
    rig_up
    ok "API server, controllers, scheduler and kubelet run, and the node is ready"
    prepare
    passes_csi_sanity
    installs_what_the_guide_says
    reads
    reads_as_the_guide_says
    mounts_volumes
    keeps_files_open
    keeps_rights_small
    upgrades_under_a_reader
    replaces_mounts_under_a_reader
    brings_about_objects
    operates_as_the_guide_says
    takes_a_node_away_as_the_guide_says
    drains_a_cordoned_node
    runs_on_two_hundred_nodes
    loads_over_two_hundred_workers
    hands_over_before_it_ends
    removes_as_the_guide_says
    takes_objects_of_fluid
    echo "$passed passed, 0 failed, $skipped skipped"
}

failed() {
    trap - EXIT
    set +e
    echo "FAILED  $1"
    kube api/v1/pods | jq --raw-output '.items[] | [.metadata.namespace, .metadata.name, .status.phase,
        ([.status.containerStatuses[]? | .state | tostring] | join(" "))] | @tsv'
    kube api/v1/events | jq --raw-output '.items[-30:][] | [.involvedObject.name, .reason, .message] | @tsv'
    rig_logs
    echo "$passed passed, 1 failed, $skipped skipped"
    exit 1
}

forebay() { "$work/forebay" "$@"; }

# As an admin of the cluster, from the node: its coordinator has the address of its pod.
as_admin() {
    local pod
    pod=$(kube "api/v1/namespaces/forebay/pods?labelSelector=app.kubernetes.io/component%3Dcoordinator" |
        jq --raw-output '[.items[] | select(.status.phase == "Running") | .status.podIP][0]')
    forebay "$@" --coordinator "$pod:19999" --config "$work/admin.toml"
}

# Images, a bucket with a server, volumes.
prepare() {
    guide air-gapped.md "Load the image"
    tests/k8s/archive.py localhost/etcd:test "$(command -v etcd)" | containers images import - >/dev/null

    local number
    mkdir -p "$work/bucket/bucket/prefix" "$work/bucket/bucket/second"
    for number in {1..8}; do head -c 8M /dev/urandom >"$work/bucket/bucket/prefix/file$number"; done
    (cd "$work/bucket/bucket/prefix" && sha256sum file*) >"$work/sums"
    cp "$work/bucket/bucket/prefix/file1" "$work/bucket/bucket/second/file1"
    rig_start s3 "$work/s3-server" --dir "$work/bucket" --port 9001
    rig_start relay tests/k8s/relay.py "$node_address" 9000 9001

    # For the etcd of the trial; of a local volume the group may write.
    mkdir -p "$work/volume"
    kube_apply api/v1/persistentvolumes/trial >/dev/null <<EOF
apiVersion: v1
kind: PersistentVolume
metadata: {name: trial}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  local: {path: $work/volume}
  nodeAffinity:
    required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [$node]}]}]}
EOF
}

# namespace NAME LABELS
namespace() {
    printf '{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "%s", "labels": %s}}' "$1" "$2" |
        kube_apply "api/v1/namespaces/$1" >/dev/null
    eventually 60 "a service account in $1" kube "api/v1/namespaces/$1/serviceaccounts/default"
}

# As the guide upgrades, with other values.
chart_upgrade() { # ARGUMENT...
    "${helm[@]}" upgrade forebay deploy/helm/forebay --namespace forebay --values "$work/guide/values.yaml" \
        --values tests/k8s/small.values.yaml --set "csi.kubeletDir=$rig/kubelet" "$@" >"$rig/logs/helm.log" 2>&1
}

# pod NAMESPACE NAME COMMAND...: what a pod prints that runs the image to its end with the directory of the mount.
pod() {
    local path=api/v1/namespaces/$1/pods/$2 name=$2
    shift 2
    jq --null-input --arg name "$name" --arg image "$(image_name)" '{
        apiVersion: "v1", kind: "Pod", metadata: {name: $name}, spec: {
            restartPolicy: "Never", automountServiceAccountToken: false,
            containers: [{name: "main", image: $image, imagePullPolicy: "Never", command: $ARGS.positional,
                volumeMounts: [{name: "data", mountPath: "/data", mountPropagation: "HostToContainer", readOnly: true}]}],
            volumes: [{name: "data", hostPath: {path: "/mnt/forebay", type: "Directory"}}]}}' --args -- "$@" |
        kube_apply "$path" >/dev/null
    eventually 120 "the pod $name ends" kube_is "$path" '.status.phase == "Succeeded"'
    kube "$path/log"
}

image_name() { echo "localhost/forebay:$(sed -nE '/^\[workspace.package\]/,/^\[/s/^version = "(.*)"/\1/p' Cargo.toml)"; }

reads() {
    pod forebay reader /bin/sh -c 'cd /data/forebay && sha256sum file*' >"$work/read"
    diff "$work/sums" "$work/read"
    ok "a pod reads the bucket through the mount of its node"
}

keeps_rights_small() {
    local component
    namespace restricted '{"pod-security.kubernetes.io/enforce": "restricted"}'
    if kube_apply api/v1/namespaces/restricted/pods/greedy dryRun=All >"$work/said" <<<'{"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "greedy"},
        "spec": {"containers": [{"name": "main", "image": "x", "securityContext": {"privileged": true}}]}}'
    then
        return 1
    fi
    grep -q 'violates PodSecurity' "$work/said"
    # Pods of the release, but for those of the mount, are ones that this namespace takes.
    for component in worker coordinator operator etcd; do
        kube "api/v1/namespaces/forebay/pods?labelSelector=app.kubernetes.io/component%3D$component" |
            jq '.items[0] | {apiVersion: "v1", kind: "Pod", metadata: {name: .metadata.name},
                spec: (.spec | del(.nodeName, .serviceAccountName, .serviceAccount))}' >"$work/pod.json"
        kube "api/v1/namespaces/restricted/pods?dryRun=All" --request POST --header 'Content-Type: application/json' \
            --data-binary "@$work/pod.json" >"$work/said"
    done
    ok "pod security restricted takes the pods of the release, and refuses a privileged one"
}

# Reads around the page cache again and again until `stop` is there, and counts what it got.
verifying_reader() {
    local number=1 reads=0 wrong=0 expected
    while [[ ! -e $work/stop ]]; do
        expected=$(sed -n "${number}s/ .*//p" "$work/sums")
        if [[ $(dd if="/mnt/forebay/forebay/file$number" iflag=direct bs=1M status=none | sha256sum) != "$expected  -" ]]; then
            wrong=$((wrong + 1))
        fi
        reads=$((reads + 1)) number=$((number % 8 + 1))
        echo "$reads $wrong" >"$work/reader.new"
        mv "$work/reader.new" "$work/reader"
    done
}

upgrades_under_a_reader() {
    verifying_reader 2>"$rig/logs/reader.log" &
    local reader=$! reads wrong before
    eventually 60 "the reader has begun" test -s "$work/reader"
    before=$(cut -d' ' -f1 "$work/reader")
    guide kubernetes.md "Upgrade" "helm upgrade forebay=helm upgrade forebay --set worker.podAnnotations.round=second"
    rolled_out() {
        kube_is apis/apps/v1/namespaces/forebay/statefulsets/forebay-worker \
            '.status.observedGeneration == .metadata.generation and .status.updatedReplicas == .spec.replicas and
                .status.readyReplicas == .spec.replicas'
    }
    eventually 300 "all workers are replaced" rolled_out
    touch "$work/stop"
    wait "$reader"
    read -r reads wrong <"$work/reader"
    if ((wrong > 0 || reads <= before)); then
        echo "of $reads reads $wrong failed or were wrong, $before of them before the upgrade" >&2
        return 1
    fi
    ok "helm upgrade as in the guide, under a reader: $reads reads, none failed, no byte wrong"
}

objects=apis/forebay.io/v1alpha1/namespaces/forebay
# condition PLURAL/NAME TYPE STATUS
condition() { kube_is "$objects/$1" ".status.conditions // [] | any(.type == \"$2\" and .status == \"$3\")"; }
is_gone() { ! kube "$1" >/dev/null 2>&1; }
is_shown() { as_admin mounts list --json | jq --exit-status --slurp "any(.path == \"$1\")"; }
has_policy() { as_admin policy list --json | jq --exit-status --slurp "any(.path == \"$1\" and .pin == true)"; }

load_all() { # SPEC
    printf '{"apiVersion": "forebay.io/v1alpha1", "kind": "ForebayLoad", "metadata": {"name": "all"}, "spec": %s}' "$1" |
        kube_apply "$objects/forebayloads/all" >/dev/null
}

brings_about_objects() {
    kube_apply "$objects/forebaymounts/second" >/dev/null <<'EOF'
apiVersion: forebay.io/v1alpha1
kind: ForebayMount
metadata: {name: second}
spec: {path: /second, origin: "s3://bucket/second"}
EOF
    eventually 60 "the ForebayMount is ready" condition forebaymounts/second Ready True
    is_shown /second
    ok "a ForebayMount is a mount of the cluster"

    # No controller is asked: the definitions say so.
    if kube_apply "$objects/forebaymounts/second" dryRun=All >"$work/said" <<<'{"apiVersion": "forebay.io/v1alpha1",
        "kind": "ForebayMount", "metadata": {"name": "second"}, "spec": {"path": "/second", "origin": "s3://other"}}'
    then
        return 1
    fi
    grep -q 'the origin of a mount never changes' "$work/said"
    if kube_apply "$objects/forebayloads/bad" dryRun=All >"$work/said" <<<'{"apiVersion": "forebay.io/v1alpha1",
        "kind": "ForebayLoad", "metadata": {"name": "bad"}, "spec": {"path": "relative", "replicas": 99}}'
    then
        return 1
    fi
    grep -q 'spec.path' "$work/said"
    grep -q 'spec.replicas' "$work/said"
    ok "the API server refuses objects that make no sense"

    # Two want a path: the second one says so, and takes nothing with it.
    kube_apply "$objects/forebaymounts/rival" >/dev/null <<'EOF'
apiVersion: forebay.io/v1alpha1
kind: ForebayMount
metadata: {name: rival}
spec: {path: /second, origin: "s3://bucket/elsewhere"}
EOF
    eventually 60 "the rival is refused" kube_is "$objects/forebaymounts/rival" '.status.conditions[0].reason == "PathTaken"'
    kube "$objects/forebaymounts/rival" --request DELETE >/dev/null
    eventually 60 "the rival is gone" is_gone "$objects/forebaymounts/rival"
    is_shown /second
    ok "of two ForebayMounts for a path one has it, and keeps it"

    load_all '{"path": "/second", "verify": true}'
    eventually 120 "the load is complete" condition forebayloads/all Complete True
    kube_is "$objects/forebayloads/all" \
        '.status.percent == 100 and .status.totalFiles == 1 and .status.state == "SUCCEEDED"' >/dev/null
    local job
    job=$(kube "$objects/forebayloads/all" | jq --raw-output .status.job)
    ok "a ForebayLoad is a job, with its progress"
    # An operator that starts anew submits nothing; one that is told something else does.
    kube "api/v1/namespaces/forebay/pods?labelSelector=app.kubernetes.io/component%3Doperator" --request DELETE >/dev/null
    load_all '{"path": "/second", "verify": true, "ttlSecondsAfterFinished": 1000}'
    eventually 120 "the operator is back" operator_is_ready
    [[ $(kube "$objects/forebayloads/all" | jq --raw-output .status.job) == "$job" ]]
    load_all '{"path": "/second", "metadataOnly": true, "ttlSecondsAfterFinished": 1}'
    eventually 120 "the object goes when its time is over" is_gone "$objects/forebayloads/all"
    [[ $(as_admin job list --format json | jq --slurp '[.[] | select(.spec.path == "/second")] | length') == 2 ]]
    ok "a job belongs to its content, and an object goes after its time to live"

    kube_apply "$objects/forebaypolicies/pinned" >/dev/null <<'EOF'
apiVersion: forebay.io/v1alpha1
kind: ForebayPolicy
metadata: {name: pinned}
spec: {path: /second, pin: true, metadataTtl: 60s}
EOF
    eventually 60 "the ForebayPolicy is in effect" condition forebaypolicies/pinned Ready True
    has_policy /second
    as_admin policy remove /second >/dev/null
    eventually 120 "what somebody removed is set again" has_policy /second
    kube "$objects/forebaypolicies/pinned" --request DELETE >/dev/null
    eventually 60 "the policy is gone" is_gone "$objects/forebaypolicies/pinned"
    if has_policy /second; then return 1; fi
    ok "a ForebayPolicy is a policy, which stays as it says and goes with it"

    kube "$objects/forebaymounts/second" --request DELETE >/dev/null
    eventually 60 "the ForebayMount is gone" is_gone "$objects/forebaymounts/second"
    if is_shown /second; then return 1; fi
    ok "a mount goes with its ForebayMount"
}

operator_is_ready() {
    kube_is "api/v1/namespaces/forebay/pods?labelSelector=app.kubernetes.io/component%3Doperator" \
        '[.items[] | select(.metadata.deletionTimestamp == null)] | length == 1 and
            (.[0].status.conditions | any(.type == "Ready" and .status == "True"))'
}

# evict POD: the status that the API server answers with.
evict() {
    kube "api/v1/namespaces/forebay/pods/$1/eviction" --request POST --header 'Content-Type: application/json' \
        --data "{\"apiVersion\": \"policy/v1\", \"kind\": \"Eviction\", \"metadata\": {\"name\": \"$1\"}}" |
        jq --raw-output '.code // 201'
}

cordon() {
    kube "api/v1/nodes/$node" --request PATCH --header 'Content-Type: application/merge-patch+json' \
        --data "{\"spec\": {\"unschedulable\": $1}}" >/dev/null
}

asked() { # FILTER
    kube_is api/v1/namespaces/forebay/configmaps/forebay-operator-leaving "(.data.asked // \"{}\") | fromjson | $1"
}

states() { # FILTER of the members
    as_admin cluster status --json | jq --exit-status ".cluster.members | $1"
}

drains_a_cordoned_node() {
    eventually 60 "the budget is counted" kube_is apis/policy/v1/namespaces/forebay/poddisruptionbudgets/forebay-worker-held \
        '.status.expectedPods == 2'
    [[ $(evict forebay-worker-0) == 429 ]]
    ok "a worker is not evicted before it has handed over"
    cordon true
    eventually 60 "both workers are remembered" asked 'length == 2'
    eventually 60 "both workers leave" states 'all(.state == "draining" or .state == "drained")'
    ok "workers of a cordoned node are asked to leave"
    cordon false
    eventually 60 "nobody is remembered" asked 'length == 0'
    eventually 60 "both workers stay" states 'all(.state == "active")'
    ok "and to stay when it takes pods again"
}

runs_on_two_hundred_nodes() {
    if [[ ! -x $tools/kwok ]]; then
        skip "two hundred nodes: kwok's Go module cannot be had"
        return
    fi
    local number
    rig_start kwok "$tools/kwok" --kubeconfig "$rig/kubeconfig" --config "$tools/kwok.stages.yaml" \
        --manage-nodes-with-annotation-selector kwok.x-k8s.io/node=fake --node-lease-duration-seconds 40 \
        --server-address 127.0.0.1:10247
    for number in {1..200}; do
        jq --null-input --arg name "fleet-$number" '{apiVersion: "v1", kind: "Node",
            metadata: {name: $name, labels: {type: "kwok"}, annotations: {"kwok.x-k8s.io/node": "fake"}},
            spec: {taints: [{key: "kwok.x-k8s.io/node", value: "fake", effect: "NoSchedule"}]},
            status: {allocatable: {cpu: "96", memory: "512Gi", pods: "110", "rdma/hca": "8"},
                capacity: {cpu: "96", memory: "512Gi", pods: "110", "rdma/hca": "8"}}}' |
            kube api/v1/nodes --request POST --header 'Content-Type: application/json' --data-binary @- >/dev/null
    done
    namespace fleet '{}'
    cat >"$work/fleet.yaml" <<EOF
profile: rdma
etcd: {endpoints: ["http://etcd1:2379"]}
security: {mode: "off"}
coordinator: {enabled: false}
worker:
  kind: DaemonSet
  cache: {type: none}
  rdma: {enabled: true, resource: rdma/hca}
  nodeSelector: {type: kwok}
  tolerations: [{key: kwok.x-k8s.io/node, operator: Exists}]
EOF
    "${helm[@]}" install fleet deploy/helm/forebay --namespace fleet --values "$work/fleet.yaml" \
        >"$rig/logs/fleet.log" 2>&1
    eventually 180 "a worker on each of two hundred nodes" \
        kube_is apis/apps/v1/namespaces/fleet/daemonsets/fleet-forebay-worker \
        '.status.desiredNumberScheduled == 200 and .status.numberReady == 200'
    ok "a DaemonSet has a worker with a card on each of two hundred nodes"
}

if [[ ${1:-} == --inside ]]; then
    shift
    inside "$@"
else
    outside
fi
