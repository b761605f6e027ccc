#!/usr/bin/env bash
# Builds what the tests of RDMA over real verbs run, and runs them in the machine of rdma-vm.sh.
set -euo pipefail
cd "$(dirname "$0")/.."

# With the features of scripts/test.sh, so that nothing is built twice.
conformance=$(cargo test --quiet --workspace --all-features --test conformance --no-run --message-format=json |
    grep 'crates/forebay-rdma[#"]' | sed -nE 's/.*"executable":"([^"]*)".*/\1/p' | tail -1)
cargo build --quiet --workspace --all-features --bin forebay
forebay=$(dirname "$(dirname "$conformance")")/forebay

status=0
scripts/rdma-vm.sh --timeout 900 --ro . --ro "$(dirname "$forebay")" -- \
    env SUITE="$conformance" FOREBAY="$forebay" RDMA_STEP_SECONDS=240 scripts/rdma-guest.sh "$@" || status=$?
[[ $status -ne 77 ]] || exit 0 # it said why it skipped
exit "$status"
