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
    "setpriv|util-linux|util-linux|tests that mount as an ordinary user"
)

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

if ! command -v cargo >/dev/null 2>&1; then
    echo "setup: cargo is missing: install Rust 1.89 or newer (rustup, or your distribution's rustc and cargo)" >&2
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

if [[ ! -e /dev/fuse ]]; then
    echo "setup: /dev/fuse is missing: load the kernel module with \`modprobe fuse\`; mounts will not work without it" >&2
fi
