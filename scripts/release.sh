#!/usr/bin/env bash
# Writes all that a release consists of into target/release-files/: packages, image, chart, list of parts, notes, checksums and
# their signature. `make release`. Everything is built twice, in two directories, and must be the same bytes.
#
# FOREBAY_RELEASE_KEY is a file with an SSH key, which signs; without one, FOREBAY_RELEASE_TRIAL=1 makes a release that nobody
# signed, also from a tree that is no tag.
set -euo pipefail
shopt -s nullglob
cd "$(dirname "$0")/.."
# shellcheck source=scripts/tools.sh
source scripts/tools.sh

need cargo-cyclonedx 0.5.7 "lists what the program was built from"
need_command ssh-keygen openssh-client "signs the checksums"

version=$(sed -nE '/^\[workspace.package\]/,/^\[/s/^version = "(.*)"/\1/p' Cargo.toml)
key=${FOREBAY_RELEASE_KEY:-}
is_trial=${FOREBAY_RELEASE_TRIAL:-}
if [[ -z $is_trial ]]; then
    [[ -z $(git status --porcelain) ]] || { echo "release: something is not committed (git status)" >&2; exit 1; }
    [[ $(git tag --points-at HEAD) == *"v$version"* ]] || { echo "release: HEAD is not the tag v$version" >&2; exit 1; }
    grep -qE "^## ${version//./\\.}( |,|\$)" CHANGELOG.md || { echo "release: CHANGELOG.md has no section on $version" >&2; exit 1; }
    [[ -r $key ]] || { echo "release: FOREBAY_RELEASE_KEY names no key that can be read" >&2; exit 1; }
fi
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

files=target/release-files
rm -rf "$files"
mkdir -p "$files"

# The chart is made of text alone; helm may not be there in a trial.
if chart=$(scripts/helm.sh package "$files"); then
    echo "release: $chart"
elif [[ -n $is_trial ]]; then
    echo "release: no chart: helm cannot be had here" >&2
else
    exit 1
fi

make_all() { # In whatever directory: the commit is the same.
    scripts/packages.sh >&2
    scripts/image.sh >&2
}
make_all
cp target/packages/*.deb target/packages/*.rpm target/image/*.tar "$files/"

again=$(mktemp -d)
trap 'git worktree remove --force "$again/forebay" 2>/dev/null || true; rm -rf "$again"' EXIT
git worktree add --quiet --detach "$again/forebay" HEAD
(cd "$again/forebay" && cargo cyclonedx --quiet --format json --target x86_64-unknown-linux-gnu \
    --manifest-path crates/forebay/Cargo.toml)
# Where it was made is no part of it.
sed "s|$again/forebay|/forebay|g" "$again/forebay/crates/forebay/forebay.cdx.json" >"$files/forebay-$version.cdx.json"
(cd "$again/forebay" && git clean --quiet -fdx -e target && make_all)
for first in target/dist/release/forebay target/packages/*.deb target/packages/*.rpm target/image/*.tar; do
    cmp "$first" "$again/forebay/$first" || { echo "release: $first is not the same when it is built again" >&2; exit 1; }
done
echo "release: the same bytes, built twice"

# The section of the changelog.
heading=$([[ -n $is_trial ]] && echo Unreleased || echo "$version")
awk -v heading="## $heading" 'index($0, "## ") == 1 { on = index($0, heading) == 1; next } on' CHANGELOG.md >"$files/NOTES.md"

cd "$files"
sha256sum -- *.deb *.rpm *.tar *.tgz *.cdx.json NOTES.md >SHA256SUMS
if [[ -n $key ]]; then
    ssh-keygen -q -Y sign -f "$key" -n forebay-release SHA256SUMS
    printf 'forebay namespaces="forebay-release" %s\n' "$(ssh-keygen -y -f "$key")" >signers
else
    echo "release: nobody signed it" >&2
fi
ls -l
