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
if [ "$status" != 0 ]; then
    # UCX before 1.18 may abort a program in which connections over sockets come and go (docs/adr/0008); it says so in words of its
    # own. What it ended is run again, whole; whatever else failed has failed.
    failed=$(sed -n '/^error: [0-9]* targets\{0,1\} failed:/,$ s/^ *`\(.*\)`$/\1/p' "$log" | sort)
    aborted=$(awk '/^ +(Running|Doc-tests) /{ by_ucx = 0 }
        /(async|vfs_obj)\.c:[0-9]+ +Assertion/ { by_ucx = 1 }
        /^error: test failed, to rerun pass/ { split($0, parts, "`"); target = parts[2] }
        /\(signal: 6, / { if (by_ucx) print target }' "$log" | sort)
    if [ -n "$aborted" ] && [ "$failed" = "$aborted" ]; then
        status=0
    fi
    while read -r target; do
        [ -n "$target" ] || continue
        echo "==> UCX aborted $target: it is run again"
        # The target is words of cargo's.
        # shellcheck disable=SC2086
        cargo test --all-features $target 2>&1 | tee -a "$log" || status=1
    done <<<"$aborted"
fi
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
    /^ +(Running|Doc-tests) /{ commit() }
    /^test result:/ { for (i = 1; i <= NF; i++) { if ($i ~ /^passed/) p += $(i-1); if ($i ~ /^failed/) f += $(i-1) } }
    /\(signal: / { p = f = 0 } # Whatever it said, it did not end well.
    function commit() { passed += p; failed += f; p = f = 0 }
    END { commit(); printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped }' "$log"
exit "$status"
