#!/usr/bin/env bash
# Builds the packages, target/packages/forebay_*.deb and forebay-*.rpm, and has lintian and rpmlint look at them where they
# are installed. `make packages`. What goes where is in crates/forebay/Cargo.toml, what else is in them in deploy/packages/.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/tools.sh
source scripts/tools.sh

need cargo-deb 3.7.0 "makes the .deb"
need cargo-generate-rpm 0.16.0 "makes the .rpm"
need_command readelf binutils "tells which glibc the program needs"

at=target/packages
rm -rf "$at"
mkdir -p "$at"/{man,completions}
program=$(scripts/dist.sh)
CARGO_TARGET_DIR=$(dirname "$(dirname "$program")")
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export CARGO_TARGET_DIR SOURCE_DATE_EPOCH

# A program that was built on a newer system does not start on an older one, whatever its package says.
promised=$(sed -nE 's/^depends = .*libc6 \(>= ([0-9.]+)\).*/\1/p' crates/forebay/Cargo.toml)
needed=$(readelf --wide --version-info "$program" | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1)
newest=$(printf 'GLIBC_%s\n' "$promised" | cat - <(echo "$needed") | sort -V | tail -n 1)
if [[ $newest != "GLIBC_$promised" ]]; then
    echo "packages: the program needs $needed, and the .deb promises to run with $promised: build on an older system" >&2
    exit 1
fi

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

cargo deb --no-build --no-strip --package forebay --output "$at/" >&2
cargo generate-rpm --package crates/forebay --output "$at/" >&2

if command -v lintian >/dev/null 2>&1; then
    lintian --fail-on error,warning "$at"/*.deb
else
    echo "packages: lintian did not look at the .deb (apt-get install lintian)" >&2
fi
if command -v rpmlint >/dev/null 2>&1; then
    rpmlint --strict --config deploy/packages/rpmlintrc.toml "$at"/*.rpm
else
    echo "packages: rpmlint did not look at the .rpm (rpmlint of dnf or apt-get)" >&2
fi
ls -l "$at"/*.deb "$at"/*.rpm
