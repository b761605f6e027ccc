#!/usr/bin/env bash
# Runs every test of the workspace, those of RDMA over real verbs in a virtual machine after the others, and ends with the
# counts. Skipped tests print their reason as `skipped: …`.
set -euo pipefail
cd "$(dirname "$0")/.."

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# The end-to-end tests start these as processes of their own.
cargo build --workspace --bins --all-features

status=0
cargo test --workspace --all-features --no-fail-fast -- --nocapture 2>&1 | tee "$log" || status=$?
scripts/rdma-test.sh 2>&1 | tee -a "$log" || status=$?

grep -h '^skipped: ' "$log" | sort | uniq -c || true
awk -v skipped="$(grep -c '^skipped: ' "$log" || true)" '
    /^[0-9]+ passed, [0-9]+ failed$/ { passed += $1; failed += $3 } # of the virtual machine
    /^test result:/ { for (i = 1; i <= NF; i++) { if ($i ~ /^passed/) passed += $(i-1); if ($i ~ /^failed/) failed += $(i-1) } }
    END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped }' "$log"
exit "$status"
