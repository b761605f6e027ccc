#!/usr/bin/env bash
# Runs every test of the workspace, those of RDMA over real verbs in a virtual machine at the same time. What failed is run again
# where it may have been chance (scripts/test-again.sh). Ends with what failed and why, the reasons of skipped tests (they print
# `skipped: …`), and the counts.
set -euo pipefail
cd "$(dirname "$0")/.."

# Where a test failed says enough, and the traces of panics on purpose would bury it.
export RUST_BACKTRACE=0
logs=$(mktemp -d)
log=$logs/log
machine=""
trap '[[ -z $machine ]] || kill "$machine" 2>/dev/null; wait; rm -rf "$logs"' EXIT
trap 'exit 130' INT TERM HUP

# All that `cargo test` builds, and the programs that the end-to-end tests start as processes of their own. In one command:
# without tests, cargo would build the programs and half of what they depend on with fewer features, and then once more.
cargo build --workspace --all-features --lib --bins --examples --tests

# Half of the time the tests wait, and the machine takes one core. In a session of its own it has its share of the processors
# beside them all, and not beside each of the threads that some tests start.
setsid scripts/rdma-test.sh >"$logs/machine" 2>&1 &
machine=$!
status=0
cargo test --workspace --all-features --no-fail-fast 2>&1 | tee "$log" || status=$?
machine_status=0
wait "$machine" || machine_status=$?
machine=""
tee -a "$log" <"$logs/machine"

if [ "$status" != 0 ]; then
    status=0
    scripts/test-again.sh "$log" 2>&1 | tee -a "$log" || status=$?
fi
[ "$machine_status" = 0 ] || status=$machine_status

unsteady=$(grep -c '^unsteady: ' "$log" || true)
if [ "$status" != 0 ]; then
    heading="What failed"
elif [ "$unsteady" != 0 ]; then
    heading="Failed once and passed three times when alone: a defect of the test or the product, to be mended"
fi
if [ -n "${heading-}" ]; then
    echo "==> $heading"
    # The harness shows what failed tests said between `failures:` and the counts of their program; the machine after `FAILED`.
    awk '/^ +(Running|Doc-tests) /{ program = $0 }
        /^failures:$/ { if (!within) print program; within = 1 }
        /^test result:/ { within = 0 }
        /^FAILED /{ left = 30 }
        /^error(:|\[)/ { left = 10 }
        (within && shown++ < 300) || left-- > 0' "$log"
fi
grep -ho 'skipped: .*' "$log" | sort | uniq -c || true
# What is unsteady failed once and has passed.
awk -v skipped="$(grep -c 'skipped: ' "$log" || true)" -v unsteady="$unsteady" -v status="$status" '
    /^[0-9]+ passed, [0-9]+ failed$/ { passed += $1; failed += $3 } # of the virtual machine
    /^ +(Running|Doc-tests) /{ commit() }
    /^test result:/ { for (i = 1; i <= NF; i++) { if ($i ~ /^passed/) p += $(i-1); if ($i ~ /^failed/) f += $(i-1) } }
    /\(signal: / { p = f = 0 } # Whatever it said, it did not end well.
    function commit() { passed += p; failed += f; p = f = 0 }
    END {
        commit()
        if (status == 0) { passed += unsteady; failed = 0 }
        printf "%d passed, %d failed, %d skipped%s\n", passed, failed, skipped, unsteady ? ", " unsteady " unsteady" : ""
    }' "$log"
exit "$status"
