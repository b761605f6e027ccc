#!/usr/bin/env bash
# Builds the program as packages, images and releases have it, and prints where it is: stripped, with the list of its
# dependencies in it (`cargo audit bin` reads it), and the same bytes from the same commit in whatever directory it is built.
#
#     scripts/dist.sh [--libraries] [TARGET_DIRECTORY]      (target/dist)
#     scripts/dist.sh --run TARGET_DIRECTORY COMMAND…
#
# With --run, nothing but a command that builds something else with cargo, in the same directory and in the same way, so that it has in
# common what it can: the wheel's module. With --libraries, the C library and that of the model streamer are beside it: libforebay_c.so,
# whose soname is libforebay.so.0, and libforebay_streamer.so.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/tools.sh
source scripts/tools.sh

libraries= run=
case ${1:-} in
--libraries)
    libraries=1
    shift
    ;;
--run)
    run=1
    shift
    ;;
esac
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

if [[ -n $run ]]; then
    exec "${@:2}"
fi
options=(--config "$PWD/scripts/dist.toml" --release --locked)
cargo auditable build "${options[@]}" --bin forebay >&2
# library PACKAGE SONAME: as a library of C alone, which link-time optimisation takes; what Rust links with as well, it does not.
library() {
    cargo auditable rustc "${options[@]}" --package "$1" --lib --crate-type cdylib -- "-Clink-arg=-Wl,-soname,$2" >&2
}
if [[ -n $libraries ]]; then
    library forebay-c libforebay.so.0
    library forebay-streamer libforebay_streamer.so
fi
echo "$CARGO_TARGET_DIR/release/forebay"
