# Sourced by scripts/k8s-test.sh: a release whose roles prove by certificates who they are, and whose workers hand over before they end.
#
# cert-manager is not to be had here. What it would write into Secrets is, by `forebay key issue`, the authority of clusters without it.

# certificate ROLE: a Secret with one for a role of the release `proven`.
certificate() {
    local directory=$work/proven-$1
    forebay key issue --role "$1" --client "$1" --output "$directory" \
        -o "security.key_file=$work/authority.key" -o cluster.name=proven >/dev/null
    jq --null-input --arg name "$1-tls" --rawfile certificate "$directory/tls.crt" --rawfile key "$directory/tls.key" \
        --rawfile authorities "$directory/ca.crt" '{apiVersion: "v1", kind: "Secret", metadata: {name: $name},
            stringData: {"tls.crt": $certificate, "tls.key": $key, "ca.crt": $authorities}}' |
        kube_apply "api/v1/namespaces/proven/secrets/$1-tls" >/dev/null
}

# As somebody with that configuration.
as_of_proven() { # FILE COMMAND...
    local config=$1
    shift
    forebay "$@" --coordinator "$(pod_address proven coordinator):19999" --config "$config"
}

members_of_proven() { # FILTER
    as_of_proven "$work/proven.toml" cluster status --json | jq --exit-status ".cluster.members | $1"
}

# Whether jq's FILTER is true of how far the last job came.
last_job_of_proven() {
    as_of_proven "$work/proven.toml" job list --format json |
        jq --slurp --exit-status "sort_by(.created_ms) | last | .state == \"SUCCEEDED\" and (.progress | $1)" >/dev/null
}

scale_workers_of_proven() {
    kube apis/apps/v1/namespaces/proven/statefulsets/proven-forebay-worker/scale --request PATCH \
        --header 'Content-Type: application/merge-patch+json' --data "{\"spec\": {\"replicas\": $1}}" >/dev/null
}

# What a worker has that ends is on the others: nothing of it is fetched once more.
hands_over_before_it_ends() {
    local role etcd
    etcd=http://$(pod_address forebay etcd):2379
    namespace proven '{}'
    kube_apply api/v1/namespaces/proven/secrets/bucket >/dev/null <<'YAML'
apiVersion: v1
kind: Secret
metadata: {name: bucket}
stringData: {AWS_ACCESS_KEY_ID: forebay-test, AWS_SECRET_ACCESS_KEY: forebay-test-secret, AWS_REGION: us-east-1}
YAML
    forebay key create >"$work/authority.key"
    chmod 600 "$work/authority.key"
    for role in worker coordinator admin; do certificate "$role"; done
    cat >"$work/proven.toml" <<TOML
cluster.name = "proven"
security.mode = "mtls"
security.cert_file = "$work/proven-admin/tls.crt"
security.cert_key_file = "$work/proven-admin/tls.key"
security.ca_file = "$work/proven-admin/ca.crt"
TOML
    printf 'cluster.name = "proven"\nsecurity.mode = "off"\n' >"$work/nobody.toml"
    cat >"$work/proven.yaml" <<YAML
etcd: {endpoints: ["$etcd"], trial: {enabled: false}}
cluster: {name: proven}
security: {mode: mtls, keySecret: "", workerSecret: worker-tls, coordinatorSecret: coordinator-tls, adminSecret: admin-tls}
coordinator: {replicas: 1}
# One worker has room for all of it, in memory: what is handed over faster than a disk takes it is evicted.
worker: {replicas: 2, drainOnStop: true, memory: 192MiB}
mount: {enabled: false}
csi: {enabled: false}
operator: {enabled: false, crds: false}
YAML
    "${helm[@]}" install proven deploy/helm/forebay --namespace proven --values "$work/guide/values.yaml" \
        --values tests/k8s/small.values.yaml --values "$work/proven.yaml" --wait --timeout 6m >"$rig/logs/proven.log" 2>&1
    eventually 60 "both workers are active" members_of_proven 'length == 2 and all(.state == "active")'
    if as_of_proven "$work/nobody.toml" cluster status >"$work/said" 2>&1; then return 1; fi
    ok "a release whose roles have certificates comes up, and refuses who has none"

    as_of_proven "$work/proven.toml" job load --path / --submit --watch >"$rig/logs/proven-load.log" 2>&1
    last_job_of_proven '.fetched_bytes >= 67108864'
    scale_workers_of_proven 1
    eventually 180 "a worker has ended" is_gone api/v1/namespaces/proven/pods/proven-forebay-worker-1
    eventually 60 "the other one is alone" members_of_proven 'length == 1'
    as_of_proven "$work/proven.toml" job load --path / --submit --watch >>"$rig/logs/proven-load.log" 2>&1
    last_job_of_proven '.fetched_bytes == 0 and .cached_bytes >= 67108864'
    ok "a worker with worker.drainOnStop hands over what it has before its pod ends, and nothing is fetched again"
    scale_workers_of_proven 2
    eventually 180 "the worker is back, and has its share" members_of_proven 'length == 2 and all(.state == "active")'
    ok "and takes its share again when it comes back"
}
