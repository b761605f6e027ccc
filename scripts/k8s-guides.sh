# Sourced by scripts/k8s-test.sh: what guides have one type is typed as it stands there (scripts/guide.py), with a kubectl, a helm
# and the program of the image. tests/tests/deploy.rs tells what is run nowhere.

# guide PAGE HEADING [FROM=TO...]: the commands and files of a section, in the directory `guide`. What they say is in `said`.
guide() {
    local page=$1 heading=$2 version
    shift 2
    version=$(image_name)
    version=${version##*:}
    local names=(
        "$@"
        # No registry, one small node, a kubelet in another directory.
        "debian:bookworm-slim=$(image_name)"
        "8GiB]=64MiB]"
        "--values values.yaml=--values values.yaml --values $PWD/tests/k8s/small.values.yaml --set csi.kubeletDir=$rig/kubelet"
        "--wait=--wait --timeout 6m"
        # Files are where they are.
        "deploy/helm/=$PWD/deploy/helm/"
        "deploy/fluid/=$PWD/deploy/fluid/"
        "forebay-$version.tar=$PWD/$image"
        "forebay-$version.tgz=$chart_file"
        "ctr --namespace=ctr --address $rig/containerd/c.sock --namespace"
    )
    mkdir -p "$work/guide" "$work/home"
    scripts/guide.py "docs/guides/$page#$heading" kubernetes "${names[@]}" >"$work/commands.sh" || return 1
    if ! (cd "$work/guide" && in_a_shell timeout 600 bash "$work/commands.sh") >"$work/said" 2>&1; then
        echo "docs/guides/$page, \"$heading\":" >&2
        cat "$work/said" >&2
        return 1
    fi
}

# As somebody who has the programs in the path, an admin's kubeconfig, and the bucket's credentials in variables.
in_a_shell() {
    PATH=$work:$tools:$PATH HOME=$work/home KUBECONFIG=$rig/kubeconfig \
        AWS_ACCESS_KEY_ID=forebay-test AWS_SECRET_ACCESS_KEY=forebay-test-secret "$@"
}

# Whether the guide's commands have listed the files of the bucket, however `ls` was asked.
listed_all() { [[ $(grep -cE '(^| )file[1-8]$' "$work/said") == 8 ]]; }

installs_what_the_guide_says() {
    guide kubernetes.md "Install"
    grep -q 's3://bucket/prefix' "$work/guide/values.yaml"
    # By `kubectl exec`.
    grep -qi active "$work/said"
    cp "$work/guide/cluster.key" "$work/cluster.key"
    chmod 600 "$work/cluster.key"
    printf 'security.mode = "key"\nsecurity.key_file = "%s"\n' "$work/cluster.key" >"$work/admin.toml"
    ok "the commands of the guide install its values, helm test passes, and the coordinator tells of its workers"
}

reads_as_the_guide_says() {
    guide kubernetes.md "Read from a pod"
    listed_all
    kube "$pods/reader" --request DELETE >/dev/null
    ok "the pod of the guide lists the bucket"
}

takes_a_node_away_as_the_guide_says() {
    local name
    name=$(as_admin cluster status --json | jq --raw-output '[.cluster.members[].name] | sort | last')
    guide kubernetes.md "Take a node away" "node7=$name"
    eventually 60 "both workers stay" states 'length == 2 and all(.state == "active")'
    ok "a worker hands over by the command of the guide, and stays after all"
}

operates_as_the_guide_says() {
    local object
    mkdir -p "$work/bucket/imagenet/train"
    cp "$work/bucket/bucket/prefix/file1" "$work/bucket/imagenet/train/"
    guide operator.md "Install"
    guide operator.md "Objects"
    kube_is "$objects/forebayloads/imagenet" '.status.totalFiles == 1 and .status.state == "SUCCEEDED"'
    eventually 60 "the policy of the guide is in effect" condition forebaypolicies/imagenet Ready True
    ok "the objects of the guide to the operator are a mount, a policy and a load that is complete"
    guide operator.md "Remove"
    for object in forebayloads/imagenet forebaypolicies/imagenet forebaymounts/imagenet; do is_gone "$objects/$object"; done
    if is_shown /imagenet; then return 1; fi
    ok "and by its command they go, with what they brought about"
}

removes_as_the_guide_says() {
    guide kubernetes.md "Remove"
    eventually 180 "the mount of the node is gone" is_unmounted
    is_gone api/v1/namespaces/forebay
    ok "what the guide has one type to remove it leaves no mount behind"
}
