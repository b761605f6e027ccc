#!/usr/bin/env bash
# Builds the program as packages, images and releases have it, and prints where it is: stripped, with the list of its
# dependencies in it (`cargo audit bin` reads it), and the same bytes from the same commit in whatever directory it is built.
#
#     scripts/dist.sh [TARGET_DIRECTORY]      (target/dist)
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/tools.sh
source scripts/tools.sh

need cargo-auditable 0.7.7 "lists in the program what it was built from"

CARGO_TARGET_DIR=$(realpath -m "${1:-target/dist}")
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export CARGO_TARGET_DIR SOURCE_DATE_EPOCH CARGO_INCREMENTAL=0
# Paths of this machine would make two builds differ, and are nobody's business. Of several that fit, the last one counts.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
paths=("$cargo_home=/cargo" "$(rustc --print sysroot)=/rust" "$PWD=/forebay" "$CARGO_TARGET_DIR=/target")
# What a profile says of `strip`, cargo forgets for a package that has a profile of its own.
flags=("-Cstrip=symbols") cflags=()
for path in "${paths[@]}"; do
    flags+=("--remap-path-prefix=$path")
    cflags+=("-ffile-prefix-map=$path")
done
CARGO_ENCODED_RUSTFLAGS=$(IFS=$'\x1f'; echo "${flags[*]}")
CFLAGS="${CFLAGS:-} ${cflags[*]}" CXXFLAGS="${CXXFLAGS:-} ${cflags[*]}"
export CARGO_ENCODED_RUSTFLAGS CFLAGS CXXFLAGS

cargo auditable build --config "$PWD/scripts/dist.toml" --release --locked --bin forebay >&2
echo "$CARGO_TARGET_DIR/release/forebay"
