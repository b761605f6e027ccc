#!/usr/bin/env bash
# Runs what failed again, where it may have been chance: test-again.sh LOG, of `cargo test --workspace --all-features --no-fail-fast`.
# Succeeds if everything that failed is one of these, and passes:
#
# * A program that UCX aborted, whole. UCX before 1.18 may do so where connections over sockets come and go (docs/adr/0008); it says
#   so in words of its own.
# * A test, if there are at most three, of a program that ran to its end: three times, with no other test beside it. Each is then
#   named in a line `unsteady: …`.
set -euo pipefail
cd "$(dirname "$0")/.."

log=$1
most=3
times=3

# Targets are in cargo's words: `-p CRATE --test NAME`. Without any, it is the build that failed.
failed=$(sed -n '/^error: [0-9]* targets\{0,1\} failed:/,$ s/^ *.\(-p .*\).$/\1/p' "$log" | sort -u)
aborted=$(awk '/^ +(Running|Doc-tests) /{ by_ucx = 0 }
    /(async|vfs_obj)\.c:[0-9]+ +Assertion/ { by_ucx = 1 }
    /^error: test failed, to rerun pass/ { split($0, parts, "`"); target = parts[2] }
    /\(signal: 6, / { if (by_ucx) print target }' "$log" | sort)
# A target and a test in each line. The last list of names before cargo's word is the program's: others are of programs that it ran.
tests=$(awk 'function commit() { for (i = 0; target && i < n; i++) print target "\t" names[i]; target = ""; n = 0 }
    /^ +(Running|Doc-tests) /{ commit() }
    /^failures:$/ { n = 0 }
    /^    [^ ]+$/ { names[n++] = $1 }
    /^error: test failed, to rerun pass/ { split($0, parts, "`"); target = parts[2] }
    /process didn.t exit successfully/ { target = "" } # It ended in another way than by failed tests.
    END { commit() }' "$log")

status=0
while read -r target; do
    [ -n "$target" ] || continue
    echo "==> UCX aborted $target: it is run again"
    # The target is words of cargo's.
    # shellcheck disable=SC2086
    cargo test --all-features $target </dev/null || status=1
done <<<"$aborted"

may_be_chance=$(printf '%s\n' "$aborted" "$(cut -f 1 <<<"$tests")" | sed '/^$/d' | sort -u)
if [ -z "$failed" ] || [ "$failed" != "$may_be_chance" ] || [ "$(grep -c . <<<"$tests")" -gt "$most" ]; then
    exit 1
fi
[ "$status" = 0 ] || exit "$status"

while IFS=$'\t' read -r target name; do
    [ -n "$name" ] || continue
    for _ in $(seq "$times"); do
        echo "==> $name failed: it is run again alone"
        # With the features that it was built with, which are not those of its crate by itself: in the whole workspace, where other
        # programs of this name have no such test, most probably.
        # shellcheck disable=SC2086
        said=$(cargo test --quiet --workspace --all-features ${target#-p * } -- --exact "$name" </dev/null 2>&1) ||
            status=$?
        if [ "$status" != 0 ] || ! grep -q '^test result: ok\. [1-9]' <<<"$said"; then
            # Set in, so that nobody counts these tests.
            printf '%s\n' "$said" | sed 's/^/    /'
            exit 1
        fi
    done
done <<<"$tests"
sed -n 's/\(.*\)\t\(.*\)/unsteady: \2 (\1)/p' <<<"$tests"
