#!/usr/bin/env bash
# Installs what the demo and the tests need and this machine lacks. Says what, and what for. Changes nothing else.
set -euo pipefail

# command, Debian package, Fedora package, what for
needs=(
    "cc|build-essential|gcc|compiling the TLS and compression code of dependencies"
    "protoc|protobuf-compiler|protobuf-compiler|building the client of etcd"
    "etcd|etcd-server|etcd|tests of the cluster's state with a real etcd"
    "chromium|chromium|chromium|the test of the web page"
    "fusermount3|fuse3|fuse3|mounting without being root"
    "fio|fio|fio|the benchmark command lines that the end-to-end tests run"
    "iperf3|iperf3|iperf3|the network figure that benchmarks compare with"
    "ucx_perftest|ucx-utils|ucx|the figure that benchmarks of RDMA compare with"
    "setpriv|util-linux|util-linux|tests of ordinary users and of containers"
    "git|git|git|the test that clones a repository into a mount"
    "rsync|rsync|rsync|the test that copies a tree into a mount and back"
    "sqlite3|sqlite3|sqlite|the test that reads a database from a mount"
    "tar|tar|tar|the test that unpacks an archive into a mount"
    "script|bsdutils|util-linux|the test of a benchmark that loses its terminal"
    "valgrind|valgrind|valgrind|counting the instructions of a read that hits (make instructions)"
    "python3|python3|python3|running the tests, and the benchmark's generator of fio's job files"
    "pip3|python3-pip|python3-pip|the UCX that the tests run on, where the system's is too old"
)

# crate, version, what for. Programs that others wrote to test file systems, in a directory of the user's cache; where they
# cannot be had, the tests that run them are skipped.
suites=(
    "fsx|0.3.2|a hundred thousand random operations on one file of a mount, each checked"
    "pjdfstest|0.2.2|what POSIX says of every system call on files, tried on a mount"
)
suites_at=${FOREBAY_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/forebay}/suites

# UCX for the tests, from a wheel, in the user's cache: what distributions have may be older than 1.18, which can abort a process that
# makes connections over sockets (docs/adr/0008), and tests make no others. Optional.
ucx=libucx-cu12==1.22.0
ucx_at=${FOREBAY_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/forebay}/ucx

# library, Debian package, Fedora package, what for. Optional: everything builds and runs without.
libraries=(
    "libucp.so.0|libucx0|ucx|the RDMA data path, loaded at run time, and its tests (optional)"
)

missing=()
for need in "${needs[@]}"; do
    IFS='|' read -r command debian fedora purpose <<<"$need"
    if ! command -v "$command" >/dev/null 2>&1; then
        echo "setup: $command is missing: $purpose"
        if command -v apt-get >/dev/null 2>&1; then missing+=("$debian"); else missing+=("$fedora"); fi
    fi
done

for library in "${libraries[@]}"; do
    IFS='|' read -r soname debian fedora purpose <<<"$library"
    if ! PATH=$PATH:/sbin:/usr/sbin ldconfig -p | grep -F "$soname" >/dev/null; then
        echo "setup: $soname is missing: $purpose"
        if command -v apt-get >/dev/null 2>&1; then missing+=("$debian"); else missing+=("$fedora"); fi
    fi
done

# What every .proto file may import, which distributions have in a package of its own.
imports=$(mktemp -d)
trap 'rm -rf "$imports"' EXIT
echo 'syntax = "proto3"; import "google/protobuf/descriptor.proto";' >"$imports/try.proto"
includes=(-I "$imports" ${PROTOC_INCLUDE:+-I "$PROTOC_INCLUDE"})
if ! protoc "${includes[@]}" --descriptor_set_out=/dev/null "$imports/try.proto" >/dev/null 2>&1; then
    echo "setup: google/protobuf/descriptor.proto is missing: building the client of etcd"
    if command -v apt-get >/dev/null 2>&1; then missing+=(libprotobuf-dev); else missing+=(protobuf-devel); fi
fi

if ! command -v cargo >/dev/null 2>&1; then
    echo "setup: cargo is missing: install Rust 1.92 or newer (rustup, or your distribution's rustc and cargo)" >&2
    exit 1
fi

if ((${#missing[@]})); then
    as_root=()
    if [[ $(id -u) -ne 0 ]]; then
        command -v sudo >/dev/null 2>&1 || { echo "setup: run as root: install ${missing[*]}" >&2; exit 1; }
        as_root=(sudo)
    fi
    echo "setup: installing ${missing[*]}"
    if command -v apt-get >/dev/null 2>&1; then
        "${as_root[@]}" apt-get update -qq
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
    elif command -v dnf >/dev/null 2>&1; then
        "${as_root[@]}" dnf install -y -q "${missing[@]}"
    else
        echo "setup: install these with your package manager: ${missing[*]}" >&2
        exit 1
    fi
fi

for suite in "${suites[@]}"; do
    IFS='|' read -r crate version purpose <<<"$suite"
    if [[ -x $suites_at/bin/$crate ]] && grep -q "^\"$crate $version " "$suites_at/.crates.toml" 2>/dev/null; then
        continue
    fi
    echo "setup: installing $crate $version into $suites_at, about a minute: $purpose"
    # They spend their time in the kernel, so optimising them takes longer than it saves.
    cargo install --quiet --locked "$crate@$version" --root "$suites_at" --target-dir "$suites_at/target" \
        --config profile.release.opt-level=1 ||
        echo "setup: $crate cannot be installed: the tests that need it will be skipped" >&2
done
rm -rf "$suites_at/target"

has_sound_ucx() { # The distribution's, or what was installed here.
    local version
    version=$(ucx_info -v 2>/dev/null | sed -nE 's/^# Library version: ([0-9]+)\.([0-9]+).*/\1 \2/p')
    [[ -f $ucx_at/$ucx ]] || awk '{ exit !($1 > 1 || $2 >= 18) }' <<<"${version:-0 0}"
}
if ! has_sound_ucx; then
    echo "setup: installing $ucx into $ucx_at: this system's UCX is older than 1.18, and the tests need one that is not"
    wheel=$(mktemp -d)
    trap 'rm -rf "$imports" "$wheel"' EXIT
    if python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$wheel" "$ucx" &&
        rm -rf "$ucx_at" && python3 -m zipfile -e "$wheel"/*.whl "$ucx_at"; then
        touch "$ucx_at/$ucx"
    else
        echo "setup: $ucx cannot be installed (python3 -m pip): tests over UCX will be skipped" >&2
    fi
fi

if [[ ! -e /dev/fuse ]]; then
    echo "setup: /dev/fuse is missing: load the kernel module with \`modprobe fuse\`; mounts will not work without it" >&2
fi
