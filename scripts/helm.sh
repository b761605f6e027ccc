#!/usr/bin/env bash
# The chart: looks at it, renders it, and makes its file.
#
#     scripts/helm.sh test [CHART.tgz]     lint, what is rendered against deploy/helm/tests/*.golden.yaml, schemas, refusals
#     scripts/helm.sh package DIRECTORY    prints the file
#
# FOREBAY_BLESS=1 writes what is rendered as what is expected. helm and kubeconform are built from Go modules once
# (scripts/k8s-tools.sh).
set -euo pipefail
shopt -s nullglob
cd "$(dirname "$0")/.."

sources=deploy/helm/forebay
tests=deploy/helm/tests
version=$(sed -nE '/^\[workspace.package\]/,/^\[/s/^version = "(.*)"/\1/p' Cargo.toml)
# What is the chart's and the program's is one release's.
for key in version appVersion; do
    grep -qx "$key: $version" "$sources/Chart.yaml" || { echo "helm: $sources/Chart.yaml: $key is not $version" >&2; exit 1; }
done

# Without its remarks that files of the chart are links: they are one file with those of the program.
run_helm() { # COMMAND...
    "$tools/helm" "$@" 2> >(grep --invert-match 'level=INFO msg="found symbolic link' >&2)
}

package() {
    local tools
    tools=$(scripts/k8s-tools.sh helm) || return 1
    run_helm package "$sources" --destination "$1" >&2
    echo "$1/forebay-$version.tgz"
}

render() { # CHART VALUES
    run_helm template forebay "$1" --namespace forebay --kube-version "$kubernetes" --values "$2"
}

run_tests() {
    local chart=$1 values name golden said words passed=0 failed=0 tools
    tools=$(scripts/k8s-tools.sh helm kubeconform schemas) || {
        echo "skipped: chart: helm and kubeconform cannot be had here"
        echo "0 passed, 0 failed, 1 skipped"
        return
    }
    kubernetes=v1.36.3
    local work
    work=$(mktemp -d)
    fail() { failed=$((failed + 1)); echo "FAILED  $1"; }
    ok() { passed=$((passed + 1)); echo "ok      $1"; }

    for values in "$tests"/*.values.yaml; do
        name=$(basename "$values" .values.yaml)
        golden=$tests/$name.golden.yaml
        if ! run_helm lint --strict --quiet "$chart" --values "$values"; then fail "$name: lint"; continue; fi
        if ! render "$chart" "$values" >"$work/rendered.yaml"; then fail "$name: it is not rendered"; continue; fi
        # What others define is looked at by their operators.
        if ! "$tools/kubeconform" -strict -summary -skip Certificate,ServiceMonitor,PrometheusRule \
            -schema-location "$tools/schemas/{{ .ResourceKind }}{{ .KindSuffix }}.json" \
            "$work/rendered.yaml" >"$work/schemas" || ! grep --quiet 'Valid: [1-9]' "$work/schemas"; then
            cat "$work/schemas"
            fail "$name: schemas"
            continue
        fi
        if [[ -n ${FOREBAY_BLESS:-} ]]; then cp "$work/rendered.yaml" "$golden"; fi
        if ! diff -u "$golden" "$work/rendered.yaml"; then
            fail "$name: not as expected; FOREBAY_BLESS=1 scripts/helm.sh test makes it so"
            continue
        fi
        ok "$name: $(sed -nE 's/.* Valid: ([0-9]+).*/\1/p' "$work/schemas") objects"
    done
    # Each says in its first line what the refusal says.
    for values in "$tests"/refused/*.values.yaml; do
        name=$(basename "$values" .values.yaml)
        words=$(sed -n '1s/^# //p' "$values")
        if said=$(render "$chart" "$values" 2>&1); then
            fail "$name: it is not refused"
        elif ! grep -q -- "$words" <<<"$said"; then
            fail "$name: the refusal does not say \"$words\": $said"
        else
            ok "refused: $name"
        fi
    done
    rm -rf "$work"
    echo "$passed passed, $failed failed"
    ((failed == 0))
}

case ${1:-} in
    test) run_tests "${2:-$sources}" ;;
    package) package "${2:?a directory}" ;;
    *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
