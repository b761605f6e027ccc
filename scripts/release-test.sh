#!/usr/bin/env bash
# Tries each file of `make release`: checksums and signature, also of what was changed on the way; the packages in a Debian, the
# .rpms in an empty root, the wheel without an index, the image from its file, the chart. `make test-release`.
#
# FOREBAY_RELEASE_PYTHONS are the interpreters that have a wheel each, as for `make release`.
set -euo pipefail
shopt -s nullglob
cd "$(dirname "$0")/.."
# shellcheck source=scripts/tools.sh
source scripts/tools.sh
need_command rpm rpm "installs the .rpms into an empty root"
need_command cc build-essential "compiles an example in C with the library"

files=$PWD/target/release-files
[[ -s $files/SHA256SUMS ]] || { echo "there is no release in target/release-files: make release" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
ok() { passed=$((passed + 1)); echo "ok      $1"; }
bad() { echo "FAILED  $1"; exit 1; }

verify() { ssh-keygen -Y verify -f "$files/signers" -I forebay -n forebay-release -s "$files/SHA256SUMS.sig" <"$1" >/dev/null 2>&1; }
(cd "$files" && sha256sum --quiet --check SHA256SUMS)
listed=$(wc -l <"$files/SHA256SUMS")
is=$(find "$files" -type f ! -name 'SHA256SUMS*' ! -name signers | wc -l)
[[ $listed == "$is" ]] || bad "$is files, of which $listed have a checksum"
ok "each file has its checksum"
if [[ -s $files/signers ]]; then
    verify "$files/SHA256SUMS" || bad "the signature does not fit"
    (cat "$files/SHA256SUMS"; echo "one more line") >"$work/changed"
    if verify "$work/changed"; then bad "what was changed has a good signature"; fi
    ok "the signature is good for these checksums alone"
    # As the guide has it, among the files as they were brought.
    scripts/guide.py "docs/guides/air-gapped.md#Check it" release >"$work/guide.sh"
    (cd "$files" && bash "$work/guide.sh") || bad "docs/guides/air-gapped.md does not check these files"
    ok "the guide to sites without a network checks them"
fi

# That of packages and image; a wheel has one in it.
python3 - "$files"/*.cdx.json "$files"/*.whl <<'PYTHON'
import json, sys, zipfile
def lists(file):
    if not file.endswith(".whl"):
        return [open(file).read()]
    with zipfile.ZipFile(file) as wheel:
        return [wheel.read(name) for name in wheel.namelist() if ".dist-info/sboms/" in name]
for file in sys.argv[1:]:
    [parts] = map(json.loads, lists(file))
    names = {part["name"] for part in parts["components"]}
    assert parts["bomFormat"] == "CycloneDX" and {"tokio", "rustls", "object_store"} <= names, (file, sorted(names))
    assert not any(place in json.dumps(parts) for place in ("/root/", "/home/", "/tmp/")), file
PYTHON
ok "the lists of parts name them, and no place where they were built"

mkdir -p "$work/root"
rpm --root "$work/root" --initdb
rpm --root "$work/root" --install --nodeps --noscripts "$files"/*.rpm
rpm --root "$work/root" --verify --nodeps --nouser --nogroup forebay forebay-libs forebay-devel
for file in usr/bin/forebay usr/sbin/mount.forebay usr/lib/systemd/system/forebay-worker.service usr/share/forebay/forebay.toml \
    usr/lib64/libforebay.so.0 usr/lib64/forebay/libforebay_streamer.so usr/lib64/libforebay.so usr/include/forebay.h; do
    [[ -s $work/root/$file ]] || bad "the .rpms have no /$file"
done
"$work/root/usr/bin/forebay" version >/dev/null
# Each by itself: one after the other they would be one script.
for package in "$files"/*.rpm; do
    for name in prein postin preun postun; do
        rpm --query --package --queryformat "%{$name}" "$package" | sed 's/^(none)$//' | sh -n
    done
done
cc -std=c99 -I "$work/root/usr/include" crates/forebay-c/examples/read.c -L "$work/root/usr/lib64" -lforebay -o "$work/read"
mkdir "$work/origin"
echo hello >"$work/origin/small"
: >"$work/empty.toml"
provided=$(rpm --query --package --provides "$files"/forebay-devel-*.rpm)
grep -q '^pkgconfig(forebay) = ' <<<"$provided" || bad "the .rpm with the header does not provide pkgconfig(forebay)"
said=$(FOREBAY_CONFIG=$work/empty.toml LD_LIBRARY_PATH=$work/root/usr/lib64 "$work/read" "$work/origin" /small)
grep -qx hello <<<"$said" || bad "an example that is linked with the .rpm's library does not read: $said"
ok "the .rpms install into an empty root, and a program is linked with their library"

wheels=("$files"/*.whl)
read -ra pythons <<<"${FOREBAY_RELEASE_PYTHONS:-python3}"
if ((${#wheels[@]} == 0)); then
    echo "skipped: there is no wheel among the files"
    pythons=()
elif ((${#wheels[@]} != ${#pythons[@]})); then
    bad "${#wheels[@]} wheels, and ${#pythons[@]} interpreters that have one: ${pythons[*]} (FOREBAY_RELEASE_PYTHONS)"
fi
for python in "${pythons[@]}"; do
    rm -rf "$work/python"
    scripts/guide.py "docs/guides/air-gapped.md#Use it from Python" release "/opt/forebay=$work/python" \
        "python3 -m venv=$python -m venv" >"$work/guide.sh"
    (cd "$files" && bash "$work/guide.sh") || bad "docs/guides/air-gapped.md does not install the wheel for $python"
    FOREBAY_CONFIG=$work/empty.toml scripts/python.py try "$work/python/bin/python" || bad "the wheel for $python does not read"
    cmp "$work/root/usr/bin/forebay" "$work/python/bin/forebay" || bad "the wheel for $python has another program than the packages"
    ok "the wheel for $python installs without an index, and README's lines read with it"
done
for wheel in "${wheels[@]}"; do
    # By which pip refuses it where it would not start. PyPI takes no other.
    [[ $wheel == *-manylinux_* ]] || bad "${wheel##*/} does not say which glibc it needs"
done

mkdir -p target/packages target/image
rm -f target/packages/*.deb target/image/*.tar
cp "$files"/*.deb target/packages/
cp "$files"/*.tar target/image/
scripts/rootfs-test.sh
scripts/image-test.sh
for chart in "$files"/*.tgz; do
    scripts/helm.sh test "$chart"
done
echo "$passed passed, 0 failed"
