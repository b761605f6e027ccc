#!/usr/bin/env bash
# Builds what the tests of RDMA over real verbs run, and runs them in the machine of rdma-vm.sh.
set -euo pipefail
cd "$(dirname "$0")/.."

# suite PACKAGE NAME: the test program NAME of PACKAGE, built.
suite() {
    cargo test --quiet -p "$1" --test "$2" --no-run --message-format=json |
        sed -nE 's/.*"executable":"([^"]*)".*/\1/p' | grep "/$2-" | tail -1
}
conformance=$(suite forebay-rdma conformance)
cargo build --quiet --bin forebay
forebay=$(dirname "$(dirname "$conformance")")/forebay

status=0
scripts/rdma-vm.sh --timeout 900 --ro . --ro "$(dirname "$forebay")" -- \
    env SUITE="$conformance" FOREBAY="$forebay" RDMA_STEP_SECONDS=240 scripts/rdma-guest.sh "$@" || status=$?
[[ $status -ne 77 ]] || exit 0 # it said why it skipped
exit "$status"
