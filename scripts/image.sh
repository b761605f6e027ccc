#!/usr/bin/env bash
# Builds the image with buildah, and writes it as one file for sites without a registry: target/image/forebay-VERSION.tar, for
# `podman load`, `docker load` and `ctr images import`. `make image`. The base is made from Debian's packages: nothing is pulled.
#
# FOREBAY_IMAGE names the image (localhost/forebay), FOREBAY_IMAGE_SUITE the Debian that it stands on (this machine's).
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/tools.sh
source scripts/tools.sh
# shellcheck source=scripts/sources.sh
source scripts/sources.sh

need_command buildah buildah "builds the image"
need_command mmdebstrap mmdebstrap "makes the Debian that the image stands on"
need_command python3 python3 "takes out of the image what is another thing each time it is built"

suite=${FOREBAY_IMAGE_SUITE:-$(own_suite)}
at=target/image
context=$at/context
rm -rf "$at"
mkdir -p "$context/licences"
program=$(scripts/dist.sh)
version=$("$program" --version | cut -d' ' -f2)
name=${FOREBAY_IMAGE:-localhost/forebay}:$version
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

# Forebay's user has a number that no distribution gives away. What tells of this machine stays out.
# A /usr that is merged from the beginning needs no Perl to merge it: 50 MB.
packages=ca-certificates,fuse3,ibverbs-providers,libibverbs1,librdmacm1,libucx0,usr-is-merged
package_sources "$suite" | mmdebstrap --quiet --variant=minbase --include="$packages" \
    --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --customize-hook='echo "forebay:x:10001:10001::/var/lib/forebay:/usr/sbin/nologin" >>"$1/etc/passwd"' \
    --customize-hook='echo "forebay:x:10001:" >>"$1/etc/group"' \
    --customize-hook='install -d -o 10001 -g 10001 -m 0700 "$1"/var/cache/forebay "$1"/var/lib/forebay' \
    --customize-hook='install -d -m 0755 "$1"/etc/forebay "$1"/run/forebay' \
    --customize-hook='rm -rf "$1"/etc/apt/sources.list* "$1"/etc/apt/apt.conf.d/99mmdebstrap' \
    --customize-hook='rm -f "$1"/etc/resolv.conf "$1"/etc/hostname' \
    --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/* "$1"/var/log/*' \
    --customize-hook='rm -f "$1"/var/cache/debconf/*-old' \
    "$suite" "$context/base.tar" - >&2

cp "$program" "$context/forebay"
cp deploy/image/health "$context/health"
cp LICENSE README.md SECURITY.md "$context/licences/"

# The image of the build before would stay, without a name.
buildah rmi "$name" >/dev/null 2>&1 || true
# HEALTHCHECK is no part of OCI's format.
buildah build --isolation chroot --format docker --timestamp "$SOURCE_DATE_EPOCH" --pull=never --quiet \
    --label org.opencontainers.image.title=forebay \
    --label "org.opencontainers.image.version=$version" \
    --label "org.opencontainers.image.revision=$(git rev-parse HEAD)" \
    --label org.opencontainers.image.licenses=Apache-2.0 \
    --label org.opencontainers.image.source=https://github.com/forebay/forebay \
    --tag "$name" --file deploy/Containerfile "$context" >&2
archive=$at/forebay-$version.tar
buildah push --quiet "$name" "docker-archive:$context/image.tar:$name" >&2
scripts/image-archive.py "$context/image.tar" "$archive"
rm -rf "$context"
# What is pushed to a registry from here is what the file has.
buildah rmi "$name" >&2
buildah pull --quiet "docker-archive:$archive" >&2
ls -l "$archive"
