#!/usr/bin/env bash
# Runs the fuzz targets, as many at once as there are processors, each from its committed seeds and from what earlier runs found,
# and says of each how often it ran, how much it covered and whether something broke. Installs cargo-fuzz, and says so; needs a
# nightly compiler.
#
#   scripts/fuzz.sh [--only NAME[,NAME…]] [--seconds N] [--jobs N] [--list]
set -euo pipefail
cd "$(dirname "$0")/.."

cargo_fuzz=0.13.2
toolchain=${FOREBAY_FUZZ_TOOLCHAIN:-nightly}
seconds=${FUZZ_SECONDS:-60}
at_once=$(nproc)
only=""
suites_at=${FOREBAY_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/forebay}/suites
# No target may take more memory than this, nor more at once. An input that takes longer than so many seconds is a defect, too.
memory_mb=2048
allocation_mb=192
slowest=20

targets=()
for program in fuzz/fuzz_targets/*.rs; do targets+=("$(basename "$program" .rs)"); done

while (($#)); do
    case $1 in
        --only) only=${2:?--only takes names}; shift 2 ;;
        --seconds) seconds=${2:?--seconds takes a number}; shift 2 ;;
        --jobs) at_once=${2:?--jobs takes a number}; shift 2 ;;
        --list) printf '%s\n' "${targets[@]}"; exit 0 ;;
        *) echo "fuzz: \`$1\` is no option; usage: scripts/fuzz.sh [--only NAME[,NAME…]] [--seconds N] [--jobs N] [--list]" >&2; exit 2 ;;
    esac
done
if [[ -n $only ]]; then
    IFS=, read -ra wanted <<<"$only"
    for name in "${wanted[@]}"; do
        [[ -e fuzz/fuzz_targets/$name.rs ]] || { echo "fuzz: there is no target $name; \`scripts/fuzz.sh --list\` names all" >&2; exit 2; }
    done
    targets=("${wanted[@]}")
fi

if ! cargo "+$toolchain" --version >/dev/null 2>&1; then
    echo "fuzz: the toolchain \`$toolchain\` is missing: AddressSanitizer and coverage are nightly's. Install it with" >&2
    echo "fuzz: \`rustup toolchain install nightly --profile minimal\`, or name another nightly in FOREBAY_FUZZ_TOOLCHAIN" >&2
    exit 1
fi
if ! [[ -x $suites_at/bin/cargo-fuzz ]]; then
    echo "fuzz: installing cargo-fuzz $cargo_fuzz into $suites_at, about a minute: it builds for libFuzzer"
    cargo install --quiet --locked "cargo-fuzz@$cargo_fuzz" --root "$suites_at" --target-dir "$suites_at/target" \
        --config profile.release.opt-level=1
    rm -rf "$suites_at/target"
fi
export PATH=$suites_at/bin:$PATH
# Finding the names of a panic in 150 MB of debug information takes longer than any input may. What reproduces it can have them.
export RUST_BACKTRACE=0

# All in one go: their dependencies are the same.
host=$(rustc "+$toolchain" -vV | sed -n 's/^host: //p')
cargo "+$toolchain" fuzz build
programs=fuzz/target/$host/release

# Fuzzes one target, and says what came of it. In a subshell of its own, which ends with the target if it is told to end.
fuzz() { # NAME
    local name=$1 corpus=fuzz/corpus/$1 found=fuzz/artifacts/$1 log=fuzz/target/$1.log
    local before after executions rate coverage crashes input dictionary=() status=0
    mkdir -p "$corpus" "$found"
    before=$(find "$found" -type f | sort)
    [[ -e fuzz/dictionaries/$name ]] && dictionary=("-dict=fuzz/dictionaries/$name")
    "$programs/$name" "$corpus" "fuzz/seeds/$name" "${dictionary[@]}" -max_total_time="$seconds" -timeout="$slowest" \
        -rss_limit_mb="$memory_mb" -malloc_limit_mb="$allocation_mb" -max_len=65536 -len_control=20 -print_final_stats=1 \
        -artifact_prefix="$found/" >"$log" 2>&1 &
    local fuzzer=$!
    trap 'kill "$fuzzer" 2>/dev/null' TERM
    wait "$fuzzer" || status=$?
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -1)
    rate=$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log" | tail -1)
    coverage=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -1)
    after=$(comm -13 <(echo "$before") <(find "$found" -type f | sort) | grep -v '/slow-unit-' || true)
    crashes=$(grep -c . <<<"$after" || true)
    # In one go, so that the words of two targets do not mix.
    {
        printf '%-20s %12s %10s %8s  %s\n' "$name" "${executions:-?}" "${rate:-?}" "${coverage:-?}" "$crashes"
        if ((status != 0)); then
            grep -m 6 -hE "panicked at|SUMMARY|^assertion|ERROR: |^  (left|right):" "$log" | sed 's/^/    /' || true
            for input in $after; do
                echo "    the input: $input"
                echo "    again:     PATH=$suites_at/bin:\$PATH cargo +$toolchain fuzz run $name $input"
                echo "    smaller:   the same with \`tmin\` instead of \`run\`; then put it into fuzz/seeds/$name/ and mend what it breaks"
            done
            [[ -n $after ]] || echo "    it ended with $status: see $log"
        fi
    } >"$log.said"
    cat "$log.said"
    ((status == 0)) || echo "$name" >>"$broken"
}

# Names of those that broke.
broken=$(mktemp)
trap 'rm -f "$broken"' EXIT
fuzzed=()
trap 'kill "${fuzzed[@]}" 2>/dev/null; wait; exit 130' INT TERM HUP
printf '%-20s %12s %10s %8s  %s\n' target executions per-second coverage crashes
for name in "${targets[@]}"; do
    while (($(jobs -rp | wc -l) >= at_once)); do wait -n; done
    fuzz "$name" &
    fuzzed+=($!)
done
wait
[[ ! -s $broken ]]
