#!/usr/bin/env bash
# A CPython without a global lock, for the wheel and the tests of the Python package: no package of Debian or PyPI is one. It is built
# from Debian's source of CPython 3.14, without the optimisation by profile, into the user's cache (some minutes on two processors, 300
# MB), and stays there. Prints where it is:
#
#   make wheel ARGS="--interpreter $(scripts/free-threaded.sh)"
#   PYO3_PYTHON=$(scripts/free-threaded.sh) cargo build -p forebay-python --lib --target-dir target/free-threaded
#   $(scripts/free-threaded.sh) scripts/python.py test target/free-threaded/debug/lib_native.so
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh

suite=forky version=3.14
at=${FOREBAY_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/forebay}/python$version-free-threaded
python=$at/bin/python${version}t

if [[ ! -x $python ]]; then
    need_command apt-get apt "it brings the source of CPython"
    need_command make "make gcc libffi-dev libssl-dev zlib1g-dev" "CPython is built with it"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    # Lists of their own: the machine's stay as they are. The same archive, of a release that has this version.
    archive=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' | awk '$2 !~ /-/ { print $1; exit }')
    mkdir -p "$work"/lists/partial "$work"/archives/partial
    echo "deb-src $archive $suite main" >"$work/sources.list"
    options=(-o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$work/lists")
    options+=(-o "Dir::Cache::Archives=$work/archives" -o APT::Sandbox::User=root -qq)
    echo "building CPython $version without a global lock into $at" >&2
    (
        cd "$work"
        apt-get "${options[@]}" update
        apt-get "${options[@]}" source --download-only "python$version"
        mkdir source
        tar -xf "python${version}"_*.orig.tar.xz -C source --strip-components=1
        cd source
        ./configure --quiet --disable-gil --disable-test-modules --prefix="$at"
        nice make --silent -j"$(nproc)"
        make --silent install
    ) >&2
    "$python" -c 'import ctypes, ssl, sys, venv, zlib; assert not sys._is_gil_enabled()'
fi
echo "$python"
