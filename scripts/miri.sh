#!/usr/bin/env bash
# Runs under Miri what deals with memory by itself, and what parses what others send: pool and spans (on an allocator in the place of
# a mapping), entries of rings, requests of the kernel, messages, headers on disk. Miri knows provenance, alignment, initialisation and
# weakly ordered memory; tests of threads run with many seeds, each another order. What it has no kernel for is named and left out.
#
# Needs the component miri of a nightly toolchain (FOREBAY_NIGHTLY names another one).
set -euo pipefail
cd "$(dirname "$0")/.."

nightly=${FOREBAY_NIGHTLY:-nightly}
if ! cargo "+$nightly" miri --version >/dev/null 2>&1; then
    echo "skipped: Miri: rustup component add miri rust-src --toolchain $nightly"
    exit 0
fi
export CARGO_TARGET_DIR=target/miri PROPTEST_CASES=${PROPTEST_CASES:-2} PROPTEST_DISABLE_FAILURE_PERSISTENCE=true
# Without isolation the clock and the environment are those of the machine.
flags="-Zmiri-disable-isolation -Zmiri-strict-provenance -Zmiri-symbolic-alignment-check"
seeds=${FOREBAY_MIRI_SEEDS:-16}
status=0

miri() { # package, flags, tests…
    local package=$1 more=$2
    shift 2
    echo "miri: $package: $*"
    MIRIFLAGS="$flags $more" cargo "+$nightly" miri test --locked -p "$package" --lib -- "$@" || status=1
}

miri forebay-types "" ""
# Which extents are free is numbers alone, and takes an hour here.
miri forebay-memory "" --skip shared:: --skip numa:: --skip extents_never_overlap
miri forebay-memory "-Zmiri-many-seeds=0..$seeds" memory_that_goes_from_thread_to_thread what_lies_behind_a_view
miri forebay-fuse-io "" protocol:: --skip abi
miri forebay-fuse-io "-Zmiri-many-seeds=0..$seeds" ring::entry::
miri forebay-transport "" wire:: an_upload_is_sent
# The test that is left out waited for a lock of parking_lot, which makes pointers of numbers; it was not tried with ours.
miri forebay-store "" header:: geometry:: keep:: write_buffer:: space::tests::a_ verify::tests --skip a_leftover_is_found_while
# It leaks on purpose, which Miri takes for a fault.
miri forebay-shm "" wire:: pins:: lease:: --skip what_is_shown_is_forgotten

echo "skipped: memory that processes share, huge pages and nodes: Miri knows no memfd, madvise and mbind"
echo "skipped: sockets, io_uring, slab files, UCX: Miri has no kernel and calls no foreign function"
exit "$status"
