# Sourced by scripts/k8s-test.sh: volumes of the CSI driver (docs/adr/0030-a-csi-driver.md), by csi-sanity without a Kubernetes,
# and in pods while the driver and its daemons are killed and replaced.

# Node and identity service. Volumes are made by a controller of the tests (tests/k8s/controller), as csi-sanity mounts none
# that it has not made; so what it tests of controllers is left out.
passes_csi_sanity() {
    if [[ ! -x $tools/csi-sanity || ! -x $tools/controller ]]; then
        skip "csi-sanity: its Go module cannot be had"
        return
    fi
    local at=$work/sanity
    mkdir -p "$at/kubelet/plugins" "$at/run"
    cat >"$at/forebay.toml" <<'TOML'
origin.s3.endpoint = "http://127.0.0.1:9001"
origin.s3.region = "us-east-1"
origin.s3.path_style = true
origin.allow_http = true
worker.memory.prewarm = false
TOML
    rig_start csi env FOREBAY_CONFIG="$at/forebay.toml" FOREBAY_RUN_DIR="$at/run" \
        FOREBAY_WRITE_STAGING_DIR="$at/drafts" AWS_ACCESS_KEY_ID=forebay-test AWS_SECRET_ACCESS_KEY=forebay-test-secret \
        "$work/forebay" csi --node-name "$node" --kubelet-dir "$at/kubelet" --socket "$at/csi.sock" --no-registration
    local driver=$!
    eventually 30 "the driver answers" forebay csi --probe --socket "$at/csi.sock"
    rig_start controller "$tools/controller" "$at/sanity.sock" "$at/csi.sock" \
        source=s3://bucket/prefix options=memory=64MiB
    local controller=$!
    eventually 30 "the controller listens" test -S "$at/sanity.sock"
    # Its directories are made by itself, and are the kubelet's.
    "$tools/csi-sanity" --csi.endpoint "unix://$at/sanity.sock" --csi.stagingdir "$at/kubelet/staging" \
        --csi.mountdir "$at/kubelet/pods" --ginkgo.focus '(Identity|Node) Service' --ginkgo.no-color \
        >"$rig/logs/csi-sanity.log" 2>&1
    # It has unmounted all.
    if grep -q " $at/kubelet/" /proc/self/mounts; then return 1; fi
    kill "$controller" "$driver"
    local passed_there
    passed_there=$(sed -nE 's/^SUCCESS.* ([0-9]+) Passed.*/\1/p' "$rig/logs/csi-sanity.log")
    ok "csi-sanity: $passed_there specs of identity and node service"
}

pods=api/v1/namespaces/default/pods

mounts_volumes() {
    local directory
    for directory in bucket/imagenet team-a/models; do
        mkdir -p "$work/bucket/$directory"
        cp "$work"/bucket/bucket/prefix/file* "$work/bucket/$directory/"
    done
    guide kubernetes.md "Kubernetes: pods mount by PVC"
    # It is ready before it has listed anything.
    has_listed_all() { diff <(sed 's/.* //' "$work/sums") <(kube "$pods/trainer/log"); }
    eventually 60 "the pod lists the files of its volume" has_listed_all
    ok "a pod has the PersistentVolumeClaim of the guide, by its commands"
    [[ $(kube "$pods/reader-of-team-a/log" | grep -c ' file[1-8]$') == 8 ]]
    ok "a pod has the inline volume of the guide, with keys of its own"
    # What it may not have, the pod's events say.
    sed -e 's|s3://team-a/models|s3://bucket/prefix|' -e 's|reader-of-team-a|greedy|' "$work/guide/inline.yaml" |
        kube_apply "$pods/greedy" >/dev/null
    eventually 120 "the pod is told why it has no volume" kube_is \
        'api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dgreedy' \
        'any(.items[]; .message | contains("inline volumes may be of"))'
    kube "$pods/greedy?gracePeriodSeconds=0" --request DELETE >/dev/null
    ok "an inline volume of a source that no admin has allowed is refused, and the pod's event says so"
}

# A pod that has all files open, reads them around the page cache and through it, and says after each how many reads it did and
# how many failed or were wrong.
open_files() {
    jq --null-input --arg image "$(image_name)" --rawfile script tests/k8s/reader.pl '{
        apiVersion: "v1", kind: "Pod", metadata: {name: "open-files"}, spec: {
            restartPolicy: "Never", terminationGracePeriodSeconds: 1, automountServiceAccountToken: false,
            containers: [{name: "main", image: $image, imagePullPolicy: "Never", command: ["perl", "-e", $script, "/data"],
                volumeMounts: [{name: "data", mountPath: "/data", readOnly: true}]}],
            volumes: [{name: "data", persistentVolumeClaim: {claimName: "imagenet", readOnly: true}}]}}' |
        kube_apply "$pods/open-files" >/dev/null
    eventually 120 "the pod with open files reads" has_read_more_than 0
}

# The last line of its log: reads, those that failed or were wrong, and what went wrong last.
told_by_reader() { kube "$pods/open-files/log?tailLines=1"; }
has_read_more_than() { is_more_than "$1" "$(told_by_reader | cut -d' ' -f1)"; }
# Of a pod that does not run yet, or cannot, there is no number.
is_more_than() { [[ $2 =~ ^[0-9]+$ && $2 -gt $1 ]]; }

# A pod with a volume of its own that has a file open for writing, and writes a line to it twice a second, until it is told to end. It
# is not root: that it may write is its fsGroup's doing.
writes_until_told() {
    # shellcheck disable=SC2016
    local script='exec 3>/data/written; trap "exec 3>&-; exit" TERM; line=0
        while echo $((line += 1)) >&3; do echo "$line"; sleep 0.5; done; exit 1'
    jq --null-input --arg image "$(image_name)" --arg script "$script" '{
        apiVersion: "v1", kind: "Pod", metadata: {name: "writer"}, spec: {
            restartPolicy: "Never", terminationGracePeriodSeconds: 60, automountServiceAccountToken: false,
            securityContext: {fsGroup: 2000},
            containers: [{name: "main", image: $image, imagePullPolicy: "Never", command: ["sh", "-c", $script],
                volumeMounts: [{name: "data", mountPath: "/data"}]}],
            volumes: [{name: "data", csi: {driver: "csi.forebay.io", volumeAttributes: {source: "s3://team-a/models"},
                nodePublishSecretRef: {name: "team-a-keys"}}}]}}' |
        kube_apply "$pods/writer" >/dev/null
    eventually 120 "the pod writes" has_written_more_than 2
}

has_written_more_than() { is_more_than "$1" "$(kube "$pods/writer/log?tailLines=1")"; }

# reads_on WHAT: that the pod reads on, and was never told anything wrong.
reads_on() {
    local reads
    reads=$(told_by_reader | cut -d' ' -f1)
    eventually 120 "the pod reads on after $1" has_read_more_than $((reads + 16))
    if [[ $(told_by_reader | cut -d' ' -f2) != 0 ]]; then
        echo "after $1: $(told_by_reader)" >&2
        return 1
    fi
}

daemon_of() { pgrep --full "forebay up .*--background-child .*s3://bucket/$1 "; }
driver() { pgrep --full 'forebay csi --node-name'; }
is_another() { [[ -n $("$1") && $("$1") != "$2" ]]; }
# Of an upgrade: for a while there are both.
is_followed() { [[ $(driver | wc -l) == 1 && $(driver) != "$1" ]]; }

keeps_files_open() {
    local round before
    open_files
    for round in {1..10}; do
        before=$(daemon_of imagenet)
        kill -KILL "$before"
        reads_on "kill $round of the daemon"
        [[ $(daemon_of imagenet) != "$before" ]]
    done
    ok "kill -9 of a volume's daemon, 10 times under a pod with open files: $(told_by_reader | cut -d' ' -f1) reads, none failed"
    before=$(driver)
    kill -KILL "$before"
    reads_on "a kill of the driver"
    eventually 60 "the driver is back" is_another driver "$before"
    ok "kill -9 of the driver, whose container ends with all daemons: the same"
    local daemon lines
    writes_until_told
    before=$(driver) daemon=$(daemon_of imagenet)
    chart_upgrade --set csi.podAnnotations.round=second
    csi_is_rolled_out() {
        kube_is apis/apps/v1/namespaces/forebay/daemonsets/forebay-csi \
            '.status.updatedNumberScheduled == 1 and .status.numberReady == 1 and .status.observedGeneration == .metadata.generation'
    }
    eventually 180 "the driver's pod is replaced" csi_is_rolled_out
    eventually 240 "the driver before has ended" is_followed "$before"
    reads_on "an upgrade of the driver"
    [[ $(daemon_of imagenet) != "$daemon" ]]
    lines=$(kube "$pods/writer/log?tailLines=1")
    eventually 60 "the pod writes on" has_written_more_than "$lines"
    # Nothing was started again after a death: it was handed over.
    csi_said() {
        kube "api/v1/namespaces/forebay/pods?labelSelector=app.kubernetes.io/component%3Dcsi" |
            jq --raw-output '.items[] | select(.metadata.deletionTimestamp == null) | .metadata.name' >"$work/pod"
        kube "api/v1/namespaces/forebay/pods/$(<"$work/pod")/log" >"$work/said"
        grep -q 'the process of a mount is started again' "$work/said"
    }
    csi_said
    grep -rq 'taken over from another process' "$rig/kubelet/plugins/csi.forebay.io/logs"
    ok "helm upgrade of the driver: the same: $(told_by_reader | cut -d' ' -f1-2) (reads, failed)"
    kube "$pods/writer" --request DELETE >/dev/null
    # What it wrote is in the bucket when it has closed the file.
    has_line() { [[ -e $1 ]] && is_more_than "$2" "$(tail -n 1 "$1")"; }
    eventually 120 "what was written is in the bucket" has_line "$work/bucket/team-a/models/written" "$lines"
    lines=$(wc -l <"$work/bucket/team-a/models/written")
    seq "$lines" | diff - "$work/bucket/team-a/models/written"
    ok "and a file that was open for writing all the while has its $lines lines in the bucket"
    local name
    for name in open-files trainer reader-of-team-a; do kube "$pods/$name" --request DELETE >/dev/null; done
    nothing_is_left() {
        ! pgrep --full 'forebay (up .*--background-child|keeper --socket)' && ! grep " $rig/kubelet/.* fuse.forebay " /proc/self/mounts
    }
    eventually 120 "volumes, daemons and keepers of the pods are gone" nothing_is_left
    ok "and nothing is left of volumes when their pods are gone"
}
