# Sourced by scripts/k8s-test.sh: the CSI driver (docs/adr/0030-a-csi-driver.md) and csi-sanity, without a Kubernetes.

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
