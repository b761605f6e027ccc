#!/usr/bin/env bash
# Installs what benchmarks compare Forebay with, into a directory of the user's cache, and says which versions are there. What cannot
# be had is said and left out: the benchmarks leave it out, too.
#
#   rclone    built from its Go module
#   JuiceFS   community edition, built from its Go module (takes minutes) without the clouds and databases that no benchmark uses
#   s3fs      the distribution's package
#   geesefs   only if it is on PATH or in the directory already: its module replaces others, which `go install` refuses;
#             its releases have a binary for Linux
#   Mountpoint for Amazon S3 (mount-s3)
#             only if it is on PATH or in the directory already: no package of a registry has the program
#   Python    a virtual environment with the `safetensors` package
#
# Builds run one at a time and with the lowest priority. Whatever is in the directory already stays: remove it to have it anew.
set -euo pipefail

rclone_version=v1.71.2
juicefs_version=v1.4.1

directory=${FOREBAY_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/forebay}/peers
bin=$directory/bin
mkdir -p "$bin"
export PATH=$bin:$PATH GOBIN=$bin

say() { echo "peers: $*"; }

# Runs a build. What it says is shown only when it fails.
quietly() {
    local log
    log=$(mktemp)
    if nice -n 19 "$@" >"$log" 2>&1; then
        rm -f "$log"
    else
        tail -n 5 "$log" >&2
        rm -f "$log"
        return 1
    fi
}

has_go() {
    command -v go >/dev/null 2>&1 || { say "go is missing: $1 is left out"; return 1; }
}

build_rclone() {
    has_go rclone || return 0
    say "building rclone $rclone_version"
    GOFLAGS=-p=1 quietly go install "github.com/rclone/rclone@$rclone_version" || say "rclone cannot be built: it is left out"
}

# Its module replaces others, so it is built where it was downloaded to, and not with `go install`.
build_juicefs() {
    has_go JuiceFS || return 0
    say "building JuiceFS $juicefs_version"
    local source work
    source=$(cd / && go mod download -json "github.com/juicedata/juicefs@$juicefs_version" 2>/dev/null | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
    if [[ -z $source ]]; then
        say "JuiceFS cannot be downloaded: it is left out"
        return 0
    fi
    work=$(mktemp -d)
    cp -r "$source/." "$work"
    chmod -R u+w "$work"
    local without=nogateway,nowebdav,nocos,nobos,nohdfs,noibmcos,noobs,nooss,noqingstor,nosftp,noswift,noazure,nogs,noufile,nob2,nonfs
    without+=,nodragonfly,nomysql,nopg,notikv,noetcd,nosqlite,nocifs,nostorj,noqiniu,notos,noks3
    GOFLAGS="-p=1 -buildvcs=false -trimpath" quietly env -C "$work" go build -tags "$without" -o "$bin/juicefs" . ||
        say "JuiceFS cannot be built: it is left out"
    rm -rf "$work"
}

install_s3fs() {
    if ! command -v apt-get >/dev/null 2>&1; then
        say "no apt-get: install s3fs by your distribution's own means"
        return 0
    fi
    local as_root=()
    if [[ $(id -u) -ne 0 ]]; then
        command -v sudo >/dev/null 2>&1 || { say "not root: s3fs is left out"; return 0; }
        as_root=(sudo)
    fi
    say "installing s3fs"
    quietly "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends s3fs ||
        say "s3fs cannot be installed: it is left out"
}

install_safetensors() {
    command -v python3 >/dev/null 2>&1 || { say "python3 is missing: loading a model is left out"; return 0; }
    say "installing safetensors"
    if ! quietly python3 -m venv "$directory/python" ||
        ! quietly "$directory/python/bin/pip" install --quiet --disable-pip-version-check safetensors numpy; then
        rm -rf "$directory/python"
        say "safetensors cannot be installed: loading a model is left out"
    fi
}

command -v rclone >/dev/null 2>&1 || build_rclone
command -v juicefs >/dev/null 2>&1 || build_juicefs
command -v s3fs >/dev/null 2>&1 || install_s3fs
"$directory/python/bin/python" -c 'import numpy, safetensors' 2>/dev/null || install_safetensors

# name, command that says the version
show() {
    local name=$1
    shift
    if command -v "$1" >/dev/null 2>&1; then
        # geesefs says it on standard error.
        say "$name: $("$@" 2>&1 | sed -n 1p)"
    else
        say "$name: not there"
    fi
}

show rclone rclone version
show JuiceFS juicefs version
show s3fs s3fs --version
show geesefs geesefs --version
show mountpoint-s3 mount-s3 --version
show safetensors "$directory/python/bin/python" -c 'import safetensors; print(safetensors.__version__)'
