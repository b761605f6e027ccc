#!/usr/bin/env bash
# Runs every test of the workspace, those of RDMA over real verbs in a virtual machine after the others. Ends with what failed
# and why, the reasons of skipped tests (they print `skipped: …`), and the counts.
set -euo pipefail
cd "$(dirname "$0")/.."

# Where a test failed says enough, and the traces of panics on purpose would bury it.
export RUST_BACKTRACE=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# The end-to-end tests start these as processes of their own.
cargo build --workspace --bins --all-features

status=0
cargo test --workspace --all-features --no-fail-fast 2>&1 | tee "$log" || status=$?
scripts/rdma-test.sh 2>&1 | tee -a "$log" || status=$?

if [ "$status" != 0 ]; then
    echo "==> What failed"
    # The harness shows what failed tests said between `failures:` and the counts of their program; the machine after `FAILED`.
    awk '/^ +(Running|Doc-tests) /{ program = $0 }
        /^failures:$/ { if (!within) print program; within = 1 }
        /^test result:/ { within = 0 }
        /^FAILED /{ left = 30 }
        /^error(:|\[)/ { left = 10 }
        (within && shown++ < 300) || left-- > 0' "$log"
fi
grep -ho 'skipped: .*' "$log" | sort | uniq -c || true
awk -v skipped="$(grep -c 'skipped: ' "$log" || true)" '
    /^[0-9]+ passed, [0-9]+ failed$/ { passed += $1; failed += $3 } # of the virtual machine
    /^test result:/ { for (i = 1; i <= NF; i++) { if ($i ~ /^passed/) passed += $(i-1); if ($i ~ /^failed/) failed += $(i-1) } }
    END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped }' "$log"
exit "$status"
