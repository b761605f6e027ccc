#!/usr/bin/env bash
# Runs the suites of memory, store, engine and transports under AddressSanitizer (with LeakSanitizer) and ThreadSanitizer: both, or the
# one that is named. Needs a nightly toolchain (FOREBAY_NIGHTLY names another one), and ThreadSanitizer the sources of the standard
# library, which must be compiled with it: what happens inside a lock of the standard library would else look like nothing at all.
# It knows no fences, and of mappings only what the C library is asked for: memory that is mapped anew is else still that of those who
# had it before. Models are left out: they take turns by themselves.
set -euo pipefail
cd "$(dirname "$0")/.."

nightly=${FOREBAY_NIGHTLY:-nightly}
if ! sysroot=$(rustc "+$nightly" --print sysroot 2>/dev/null); then
    echo "skipped: sanitizers: there is no toolchain \"$nightly\" (rustup toolchain install nightly; FOREBAY_NIGHTLY)"
    exit 0
fi
host=$(rustc "+$nightly" -vV | sed -n 's/^host: //p')
suppressions=$PWD/scripts/sanitize
packages=()
for crate in types memory store engine transport tcp shm fuse-io one-sided handover verbs; do
    packages+=(-p "forebay-$crate")
done

# Frames of a report have lines; a target directory of its own, since everything is compiled anew.
export CARGO_PROFILE_DEV_DEBUG=line-tables-only CARGO_INCREMENTAL=0

address() {
    echo "skipped: UCX: it patches functions of the C library in memory, which AddressSanitizer has replaced, and jumps into nowhere"
    FOREBAY_TEST_SLOWNESS=4 ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1 \
        LSAN_OPTIONS="suppressions=$suppressions/leak.supp:print_suppressions=0" \
        CARGO_TARGET_DIR=target/sanitize/address RUSTFLAGS="-Zsanitizer=address" \
        cargo "+$nightly" test --locked --target "$host" --no-fail-fast --all-features "${packages[@]}" \
        -- --skip model::
}

thread() {
    if [ ! -d "$sysroot/lib/rustlib/src/rust/library" ]; then
        echo "skipped: ThreadSanitizer: rust-src is not installed (rustup component add rust-src --toolchain $nightly)"
        return 0
    fi
    FOREBAY_TEST_SLOWNESS=20 TSAN_OPTIONS="suppressions=$suppressions/thread.supp:second_deadlock_stack=1:history_size=4:print_suppressions=0" \
        CARGO_TARGET_DIR=target/sanitize/thread RUSTFLAGS="-Zsanitizer=thread --cfg thread_sanitizer --cfg rustix_use_libc" \
        cargo "+$nightly" test --locked -Zbuild-std --target "$host" --no-fail-fast --all-features "${packages[@]}" \
        -- --skip model::
}

status=0
for sanitizer in ${*:-address thread}; do
    echo "sanitizer: $sanitizer"
    "$sanitizer" || status=1
done
exit "$status"
