#!/usr/bin/env bash
# Builds the .deb of the C library, that of the model streamer with it, and the one for who compiles against it. scripts/packages.sh
# runs it, which has made the changelog and the pkg-config file. Not cargo-deb: it makes no `shlibs`, by which packages that are linked
# with the library depend on this one.
#
#     scripts/library-packages.sh BUILT PACKAGES VERSION GLIBC
set -euo pipefail
cd "$(dirname "$0")/.."

built=$1 at=$2 version=$3 glibc=$4
# Of a program that is linked with the library: it changes when a function goes or is another one.
soname=libforebay.so.0
library=libforebay0
architecture=$(dpkg --print-architecture)
triplet=$(dpkg-architecture --query DEB_HOST_MULTIARCH)
maintainer=$(sed -nE 's/^maintainer = "(.*)"/\1/p' crates/forebay/Cargo.toml)
umask 022

# package NAME: makes the package of its files, which are in a directory of its name. What comes in is the end of its control file.
package() {
    local name=$1 root=$at/library/$1
    install -D -m 644 deploy/packages/copyright "$root/usr/share/doc/$name/copyright"
    gzip -9nc "$at/changelog" >"$root/usr/share/doc/$name/changelog.Debian.gz"
    install -D -m 644 "deploy/packages/library/$name.overrides" "$root/usr/share/lintian/overrides/$name"
    mkdir -p "$root/DEBIAN"
    {
        printf '%s: %s\n' Package "$name" Source forebay Version "$version-1" Architecture "$architecture" Multi-Arch same \
            Maintainer "$maintainer" Homepage https://github.com/forebay/forebay Priority optional \
            Installed-Size "$(find "$root/usr" -printf '%y %s\n' | awk '{ n += $1 == "f" ? int(($2 + 1023) / 1024) : 1 } END { print n }')"
        cat
    } >"$root/DEBIAN/control"
    (cd "$root" && find usr -type f -print0 | LC_ALL=C sort --zero-terminated | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
    chmod 644 "$root"/DEBIAN/*
    dpkg-deb --root-owner-group --build "$root" "$at/${name}_$version-1_$architecture.deb"
    rm -r "$root"
}

root=$at/library/$library
install -D -m 644 "$built/libforebay_c.so" "$root/usr/lib/$triplet/$soname"
# Nobody links with it: a program is told where it is.
install -D -m 644 "$built/libforebay_streamer.so" "$root/usr/lib/$triplet/forebay/libforebay_streamer.so"
mkdir "$root/DEBIAN"
echo "${soname%.so.*} ${soname##*.} $library (>= $version)" >"$root/DEBIAN/shlibs"
echo "activate-noawait ldconfig" >"$root/DEBIAN/triggers"
package "$library" <<CONTROL
Section: libs
Depends: libc6 (>= $glibc), libgcc-s1
Recommends: ca-certificates
Suggests: ibverbs-providers, librdmacm1, libucx0
Description: distributed read cache for GPUs - library of C
 Forebay keeps the hot blocks of S3 objects in the DRAM and on the NVMe of
 machines near to GPUs. Programs that are linked with this library read and
 write objects through it in their own process, without a mount.
 .
 The package also has libforebay_streamer.so, which the Run:ai model streamer
 loads in the place of its own library.
CONTROL

root=$at/library/libforebay-dev
install -D -m 644 crates/forebay-c/include/forebay.h "$root/usr/include/forebay.h"
install -D -m 644 "$at/library/forebay.pc" "$root/usr/lib/$triplet/pkgconfig/forebay.pc"
ln -s "$soname" "$root/usr/lib/$triplet/${soname%.*}"
install -D -m 644 --target-directory "$root/usr/share/doc/libforebay-dev/examples" crates/forebay-c/examples/*.c
package libforebay-dev <<CONTROL
Section: libdevel
Depends: $library (= $version-1)
Suggests: pkgconf
Description: distributed read cache for GPUs - development files
 Forebay keeps the hot blocks of S3 objects in the DRAM and on the NVMe of
 machines near to GPUs. This package is for programs of C and C++ that read
 and write through it in their own process: a header, a file for pkg-config,
 and examples.
CONTROL
