#!/usr/bin/env bash
# Writes all that a release consists of into target/release-files/: packages, image, chart, wheel, list of parts, notes, checksums
# and their signature. `make release`. Everything is built twice, in two directories, and must be the same bytes.
#
# FOREBAY_RELEASE_KEY is a file with an SSH key, which signs; without one, FOREBAY_RELEASE_TRIAL=1 makes a release that nobody
# signed, also from a tree that is no tag. FOREBAY_RELEASE_PYTHONS are the interpreters that have a wheel each (python3, whose wheel is
# for all but free-threaded ones).
set -euo pipefail
shopt -s nullglob
cd "$(dirname "$0")/.."
# shellcheck source=scripts/tools.sh
source scripts/tools.sh

need cargo-cyclonedx 0.5.9 "lists what the program was built from"
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
# Of one commit, whatever is committed meanwhile.
commit=$(git rev-parse HEAD)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct "$commit")
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
# Neither may maturin, which comes from PyPI.
read -ra pythons <<<"${FOREBAY_RELEASE_PYTHONS:-python3}"
if ! scripts/python.py maturin >&2; then
    [[ -n $is_trial ]] || exit 1
    echo "release: no wheel: what builds it cannot be had here" >&2
    pythons=()
fi

# In fresh directories: files that were checked out before the commit was made would have times of their own in the .rpm.
directories=$(mktemp -d)
first=$directories/first second=$directories/another
trap 'rm -rf "$directories"; git worktree prune' EXIT
make_all() {
    git worktree add --quiet --detach "$1" "$commit"
    (
        cd "$1"
        scripts/packages.sh
        scripts/image.sh
        # In target/dist, as packages are: what the wheel has in common with them is compiled by then.
        unset CARGO_TARGET_DIR
        for python in "${pythons[@]}"; do
            scripts/python.py wheel --untried --interpreter "$python"
        done
        cargo cyclonedx --quiet --format json --target x86_64-unknown-linux-gnu --manifest-path crates/forebay/Cargo.toml
        # Where it was made is no part of it.
        sed --in-place "s|$1|/forebay|g" crates/forebay/forebay.cdx.json
    ) >&2
}
make_all "$first"
make_all "$second"
made=("$first"/target/packages/*.deb "$first"/target/packages/*.rpm "$first"/target/image/*.tar "$first"/target/wheels/*.whl)
parts=$first/crates/forebay/forebay.cdx.json
for file in "$first/target/dist/release/forebay" "$parts" "${made[@]}"; do
    cmp "$file" "$second/${file#"$first/"}" || { echo "release: this is not the same when it is built again" >&2; exit 1; }
done
cp "${made[@]}" "$files/"
cp "$parts" "$files/forebay-$version.cdx.json"
echo "release: the same bytes, built twice"

# The section of the changelog.
heading=$([[ -n $is_trial ]] && echo Unreleased || echo "$version")
awk -v heading="## $heading" 'index($0, "## ") == 1 { on = index($0, heading) == 1; next } on' CHANGELOG.md >"$files/NOTES.md"

cd "$files"
sha256sum -- *.deb *.rpm *.tar *.tgz *.whl *.cdx.json NOTES.md >SHA256SUMS
if [[ -n $key ]]; then
    ssh-keygen -q -Y sign -f "$key" -n forebay-release SHA256SUMS
    printf 'forebay namespaces="forebay-release" %s\n' "$(ssh-keygen -y -f "$key")" >signers
else
    echo "release: nobody signed it" >&2
fi
ls -l
