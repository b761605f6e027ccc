#!/usr/bin/env bash
# Builds what the tests of RDMA over real verbs run, and runs them in the machine of rdma-vm.sh: all of them, those named, or with
# `--brief` few of them where the processor is emulated (rdma-guest.sh).
#
# The machine is given copies of the programs: whoever builds meanwhile may put others in their place, and a program whose file
# changes while it runs dies.
set -euo pipefail
cd "$(dirname "$0")/.."

programs=$(mktemp -d "${TMPDIR:-/tmp}/rdma-test.XXXXXX")
chmod 755 "$programs" # a step runs one as somebody else
machine=""
trap '[[ -z $machine ]] || kill "$machine" 2>/dev/null; wait; rm -rf "$programs"' EXIT
trap 'exit 130' INT TERM HUP

# With the features of scripts/test.py, so that nothing is built twice.
built=$(cargo build --quiet --workspace --all-features --bin forebay --test conformance --test verbs --test verbs_hostile \
    --test zero_copy --message-format=json)
copy() { # CRATE PROGRAM
    local named
    named=$(grep "/crates/$1[#\"]" <<<"$built" | grep "\"name\":\"$2\"")
    cp "$(sed -nE 's/.*"executable":"([^"]*)".*/\1/p' <<<"$named" | tail -1)" "$programs/$2"
}
copy forebay forebay
copy forebay-rdma conformance
copy forebay-rdma verbs
copy forebay-rdma verbs_hostile
copy forebay-tcp zero_copy

# In the background, so that this hears a signal and ends the machine.
scripts/rdma-vm.sh --timeout 3600 --ro . --ro "$programs" -- env SUITE="$programs/conformance" \
    VERBS="$programs/verbs" VERBS_HOSTILE="$programs/verbs_hostile" ZERO_COPY="$programs/zero_copy" \
    FOREBAY="$programs/forebay" RDMA_STEP_SECONDS=900 scripts/rdma-guest.sh "$@" &
machine=$!
status=0
wait "$machine" || status=$?
machine=""
[[ $status -ne 77 ]] || exit 0 # it said why it skipped
exit "$status"
