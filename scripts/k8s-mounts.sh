# Sourced by scripts/k8s-test.sh: the mount of a node while its pod is replaced.

# A reader around the page cache, and a file that was opened before the mount's pod is replaced, and is read to its end after.
replaces_mounts_under_a_reader() {
    rm -f "$work/stop" "$work/reader" "$work/open-file"
    verifying_reader 2>"$rig/logs/reader.log" &
    local reader=$! reads wrong before
    eventually 60 "the reader has begun" test -s "$work/reader"
    exec 9</mnt/forebay/forebay/file2
    head -c 4096 <&9 >"$work/open-file"
    before=$(cut -d' ' -f1 "$work/reader")
    chart_upgrade --set worker.podAnnotations.round=second --set mount.podAnnotations.round=second
    mount_is_rolled_out() {
        kube_is apis/apps/v1/namespaces/forebay/daemonsets/forebay-mount \
            '.status.updatedNumberScheduled == 1 and .status.numberReady == 1 and .status.observedGeneration == .metadata.generation'
    }
    eventually 180 "the mount's pod is replaced" mount_is_rolled_out
    cat <&9 >>"$work/open-file"
    exec 9<&-
    [[ $(sha256sum <"$work/open-file") == "$(sed -n '2s/ .*//p' "$work/sums")  -" ]]
    touch "$work/stop"
    wait "$reader"
    read -r reads wrong <"$work/reader"
    if ((wrong > 0 || reads <= before)); then
        echo "of $reads reads $wrong failed or were wrong, $before of them before the mount was replaced" >&2
        return 1
    fi
    kube "api/v1/namespaces/forebay/pods?labelSelector=app.kubernetes.io/component%3Dmount" |
        jq --raw-output '.items[0].metadata.name' >"$work/pod"
    kube "api/v1/namespaces/forebay/pods/$(<"$work/pod")/log" >"$work/said"
    grep -q 'taken over from a process that left it' "$work/said"
    ok "RollingUpdate of the mount under a reader and an open file: $reads reads, none failed, no byte wrong"
}

is_unmounted() { ! grep -q ' /mnt/forebay/forebay fuse.forebay ' /proc/self/mounts; }
