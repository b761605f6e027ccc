#!/usr/bin/env bash
# Counts the instructions of a read that hits memory, in client and worker, and fails where they are more than tests/instructions.toml
# allows. Instructions, because time on a shared machine says little: these are the same each time to a few in a thousand.
#
# A program that hits 10,000 times runs under valgrind's callgrind, which counts in the thread that hits and there only while it hits:
# what other threads do besides depends on how long all of it takes. It runs five times, and the least counts: the seed of the blocks'
# hash table is another one each time, and where two of the few blocks fall into one place, each hit there probes once more.
# valgrind knows no AVX-512, so what is counted is not all that a newer processor runs.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v valgrind >/dev/null 2>&1; then
    echo "skipped: instructions of a hit: valgrind is not installed"
    exit 0
fi

# Optimised as for a release, on the dependencies that the tests are linked with: another build of all of them takes minutes.
# Compiled piece by piece, functions of other crates are not inlined.
export CARGO_INCREMENTAL=0
export CARGO_PROFILE_DEV_OPT_LEVEL=3 CARGO_PROFILE_DEV_DEBUG_ASSERTIONS=false CARGO_PROFILE_DEV_OVERFLOW_CHECKS=false
# What a hit passes through, each crate in one piece, as in a release: cut into pieces, what is compiled into what changes with
# every function that is added anywhere in a crate, and the count with it, by a twentieth.
whole=()
for crate in client cluster engine memory metrics store transport types worker; do
    whole+=(--config "profile.dev.package.forebay-$crate.codegen-units=1")
done
# What is linked and not called by a hit: optimising it takes minutes.
for crate in identity origin private staging tcp testkit; do
    whole+=(--config "profile.dev.package.forebay-$crate.opt-level=0")
done
cargo build --quiet --workspace --all-features "${whole[@]}" --example hits
program=${CARGO_TARGET_DIR:-target}/debug/examples/hits

hits=10000
runs=5
counted() { # who
    # Without a count it would be none, which no limit is less than.
    valgrind --tool=callgrind --toggle-collect='hits::counted*' --callgrind-out-file=/dev/null "$program" "$1" "$hits" 2>&1 | awk '
        / Collected : / && $4 > 0 { print $4; found = 1 }
        END { if (!found) { print "valgrind tells no count" >"/dev/stderr"; exit 1 } }'
}
least() { # who
    export -f counted
    export program hits
    for ((run = 0; run < runs; run++)); do
        echo "$1"
    done | xargs -P "$(nproc)" -I{} bash -c 'set -o pipefail; counted {}' | sort -n | head -n 1
}

status=0
worker=0
while read -r who equals limit _; do
    [ "$equals" = "=" ] || continue
    all=$(least "$who")
    each=$((all / hits))
    echo "instructions of a hit, $who: $each of $limit"
    [ "$who" != worker ] || worker=$each
    # Of one build, whatever it inlines.
    if [ "$who" = proved ] && [ $((each * 50)) -gt $((worker * 51)) ]; then
        echo "too many: a proof may cost a fiftieth of $worker"
        status=1
    fi
    if [ "$each" -gt "$limit" ]; then
        echo "too many: find out which with callgrind_annotate, or raise the limit in tests/instructions.toml and say why"
        status=1
    elif [ "$each" -lt $((limit * 8 / 10)) ]; then
        echo "the limit of tests/instructions.toml can be lowered"
    fi
done <tests/instructions.toml
exit "$status"
