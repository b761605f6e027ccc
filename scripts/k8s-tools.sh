#!/usr/bin/env bash
# Builds what tests of Kubernetes need, from Go modules, into a directory of the user's cache: helm, kubectl, kubeconform, kwok and
# csi-sanity with a controller for it, the schemas of Kubernetes' own objects, and a Kubernetes (tests/k8s/go.mod). Prints that
# directory. Minutes the first time, a quarter of an hour for the Kubernetes, nothing later. Needs Go.
#
#     scripts/k8s-tools.sh [helm|kubectl|kubeconform|kwok|csi-sanity|controller|schemas|kubernetes ...]
set -euo pipefail
cd "$(dirname "$0")/.."

at=${FOREBAY_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/forebay}/k8s
kubernetes=v1.36.3
declare -A modules=(
    [helm]=helm.sh/helm/v4/cmd/helm@v4.3.1
    [kubeconform]=github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0
    [kwok]=sigs.k8s.io/kwok/cmd/kwok@v0.8.0
    [csi-sanity]=github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity@v5.6.0
)

if ! command -v go >/dev/null 2>&1; then
    echo "k8s-tools: Go is missing: helm, Kubernetes and others are built from their modules" >&2
    exit 1
fi
mkdir -p "$at"
for tool in "${@:-helm}"; do
    if [[ $tool == schemas ]]; then
        [[ -e $at/schemas-$kubernetes/done ]] && continue
        echo "k8s-tools: making schemas of Kubernetes $kubernetes in $at" >&2
        # Of a directory without modules: nothing but the sources is fetched.
        sources=$(cd "$at" && go mod download -json "k8s.io/kubernetes@$kubernetes" |
            python3 -c 'import json, sys; print(json.load(sys.stdin)["Dir"])')
        scripts/k8s-schemas.py "$sources/api/openapi-spec/swagger.json" "$at/schemas-$kubernetes"
        touch "$at/schemas-$kubernetes/done"
        ln -sfn "schemas-$kubernetes" "$at/schemas"
        continue
    fi
    if [[ $tool == kubernetes ]]; then
        # A chart asks the API server for its version, which Kubernetes' own build writes into it.
        at_version=k8s.io/component-base/version
        flags="-X $at_version.gitVersion=$kubernetes -X $at_version.gitMajor=1 -X $at_version.gitMinor=$(cut -d. -f2 <<<"$kubernetes")"
        made=kubernetes-$( (echo "$flags"; cat tests/k8s/go.mod tests/k8s/go.sum tests/k8s/pause/main.go) | sha256sum | cut -c 1-12)
        if [[ ! -e $at/$made/done ]]; then
            echo "k8s-tools: building Kubernetes $kubernetes in $at, about a quarter of an hour" >&2
            mkdir -p "$at/$made"
            (cd tests/k8s && nice go build -ldflags "$flags" -o "$at/$made/" $(go list tool) && CGO_ENABLED=0 go build -o "$at/$made/pause" ./pause)
            touch "$at/$made/done"
        fi
        ln -sfn "$made" "$at/kubernetes"
        continue
    fi
    if [[ $tool == controller ]]; then
        # Of our own sources: Go sees by itself whether they have changed.
        (cd tests/k8s && CGO_ENABLED=0 nice go build -o "$at/controller" ./controller)
        continue
    fi
    if [[ $tool == kubectl ]]; then
        # In a module of its own, so that no Kubernetes is built anew for it; likewise.
        (cd tests/k8s/kubectl && CGO_ENABLED=0 nice go build -o "$at/kubectl" .)
        continue
    fi
    module=${modules[$tool]}
    [[ -x $at/$tool && $(cat "$at/$tool.module" 2>/dev/null) == "$module" ]] && continue
    echo "k8s-tools: building $tool in $at, some minutes" >&2
    GOBIN=$at CGO_ENABLED=0 GOFLAGS=-mod=mod go install "$module"
    if [[ $tool == kwok ]]; then
        # What nodes and pods of it do is in its module, and not in its program.
        sources=$(cd "$at" && go mod download -json "${module/\/cmd\/kwok/}" |
            python3 -c 'import json, sys; print(json.load(sys.stdin)["Dir"])')
        for stage in "$sources"/kustomize/stage/{node/fast,node/heartbeat-with-lease,pod/fast}/{node,pod}-*.yaml; do
            [[ ! -e $stage ]] || { echo "---"; cat "$stage"; }
        done >"$at/kwok.stages.yaml"
    fi
    echo "$module" >"$at/$tool.module"
done
echo "$at"
