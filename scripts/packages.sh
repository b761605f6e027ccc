#!/usr/bin/env bash
# Builds the packages, and has lintian and rpmlint look at them where they are installed. `make packages`. In target/packages/ are then
#
#     forebay_*.deb, forebay-*.rpm                     the program: crates/forebay/Cargo.toml says what goes where
#     libforebay0_*.deb, forebay-libs-*.rpm            the library of C, and that of the model streamer
#     libforebay-dev_*.deb, forebay-devel-*.rpm        header, pkg-config file, examples
#
# What else is in them is in deploy/packages/. scripts/library-packages.sh makes the .deb of the libraries, crates/forebay-c/Cargo.toml
# says what is in their .rpm.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/tools.sh
source scripts/tools.sh

need cargo-deb 3.7.0 "makes the .deb"
need cargo-generate-rpm 0.16.0 "makes the .rpm"
need_command readelf binutils "tells which glibc the program needs"
need_command dpkg-deb dpkg "makes the .deb of the libraries"
need_command dpkg-architecture dpkg-dev "tells in which directory libraries are"

at=target/packages
rm -rf "$at"
mkdir -p "$at"/{man,completions,library}
program=$(scripts/dist.sh --libraries)
built=$(dirname "$program")
CARGO_TARGET_DIR=$(dirname "$built")
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export CARGO_TARGET_DIR SOURCE_DATE_EPOCH

# A program that was built on a newer system does not start on an older one, whatever its package says.
promised=$(sed -nE 's/^depends = .*libc6 \(>= ([0-9.]+)\).*/\1/p' crates/forebay/Cargo.toml)
for file in "$program" "$built"/libforebay_{c,streamer}.so; do
    needed=$(readelf --wide --version-info "$file" | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1)
    newest=$(printf 'GLIBC_%s\n' "$promised" | cat - <(echo "$needed") | sort -V | tail -n 1)
    if [[ $newest != "GLIBC_$promised" ]]; then
        echo "packages: $file needs $needed, and the .deb promises to run with $promised: build on an older system" >&2
        exit 1
    fi
done
# Nobody sees before it is loaded that a library has lost what it is for.
for wanted in c.so:forebay_read c.so:forebay_put streamer.so:runai_request streamer.so:runai_file_streamer_request; do
    symbols=$(readelf --wide --dyn-syms "$built/libforebay_${wanted%:*}")
    if ! grep -qE " ${wanted#*:}$" <<<"$symbols"; then
        echo "packages: libforebay_${wanted%:*} does not export ${wanted#*:}" >&2
        exit 1
    fi
done
for file in "$built"/libforebay_{c,streamer}.so; do
    dynamic=$(readelf --wide --dynamic "$file")
    if ! grep -q NODELETE <<<"$dynamic"; then
        echo "packages: $file can be unloaded while its threads run" >&2
        exit 1
    fi
done

"$program" man "$at/man"
gzip -9n "$at"/man/*.1
gzip -9nc deploy/packages/mount.forebay.8 >"$at/mount.forebay.8.gz"
"$program" completions bash >"$at/completions/forebay"
"$program" completions zsh >"$at/completions/_forebay"
"$program" completions fish >"$at/completions/forebay.fish"
version=$("$program" --version | cut -d' ' -f2)
maintainer=$(sed -nE 's/^maintainer = "(.*)"/\1/p' crates/forebay/Cargo.toml)
cat >"$at/changelog" <<CHANGELOG
forebay ($version-1) unstable; urgency=medium

  * Version $version: https://github.com/forebay/forebay/blob/v$version/CHANGELOG.md

 -- $maintainer  $(LC_ALL=C date --utc --date="@$SOURCE_DATE_EPOCH" --rfc-email)
CHANGELOG

sed "s/@VERSION@/$version/" deploy/packages/library/forebay.pc >"$at/library/forebay.pc"

cargo deb --no-build --no-strip --package forebay --output "$at/" >&2
scripts/library-packages.sh "$built" "$at" "$version" "$promised" >&2
cargo generate-rpm --package crates/forebay --output "$at/" >&2
cargo generate-rpm --package crates/forebay-c --variant libs --output "$at/" >&2
cargo generate-rpm --package crates/forebay-c --variant devel --output "$at/" \
    --set-metadata "requires = { forebay-libs = \"= $version\" }" \
    --set-metadata "provides = { \"pkgconfig(forebay)\" = \"= $version\" }" >&2

if command -v lintian >/dev/null 2>&1; then
    lintian --fail-on error,warning "$at"/*.deb
else
    echo "packages: lintian did not look at the .debs (apt-get install lintian)" >&2
fi
if command -v rpmlint >/dev/null 2>&1; then
    rpmlint --strict --config deploy/packages/rpmlintrc.toml "$at"/*.rpm
else
    echo "packages: rpmlint did not look at the .rpms (rpmlint of dnf or apt-get)" >&2
fi
ls -l "$at"/*.deb "$at"/*.rpm
