#!/usr/bin/env bash
# Tries the image of `make image` from its file, as a site without a registry does: a worker and a coordinator without rights on
# a root that nothing writes to, and a mount that the host sees; then follows docs/guides/air-gapped.md. Needs root and podman.
# `make test-image`.
set -euo pipefail
shopt -s nullglob
cd "$(dirname "$0")/.."
# shellcheck source=scripts/tools.sh
source scripts/tools.sh

if [[ $(id -u) -ne 0 ]]; then
    echo "skipped: image: a mount that the host sees needs root"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
need_command podman "podman runc" "runs the image"
need_command runc runc "runs what podman has it run"
archives=(target/image/forebay-*.tar)
[[ ${#archives[@]} -eq 1 ]] || { echo "there is no one image in target/image: make image" >&2; exit 1; }

work=$(mktemp -d)
# Limits that podman would raise are not this machine's to give; its control groups may be of the first version.
podman=(podman --log-level fatal --cgroup-manager=cgroupfs --root "$work/storage" --runroot "$work/run" --storage-driver vfs)
limits=(--runtime runc --ulimit nofile=20000:20000 --ulimit nproc=4096:4096)
clean_up() {
    "${podman[@]}" rm --force --all --time 20 >/dev/null 2>&1 || true
    umount --lazy "$work/shared/mnt" "$work/shared/data" "$work/shared" 2>/dev/null || true
    "${podman[@]}" system reset --force >/dev/null 2>&1 || true
    rm -rf --one-file-system "$work"
}
trap clean_up EXIT

passed=0
ok() { passed=$((passed + 1)); echo "ok      $1"; }
eventually() {
    local what=$1 deadline=$((SECONDS + 60))
    shift
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < deadline)) || { echo "FAILED  waited a minute for: $what"; "${podman[@]}" logs --tail 30 worker || true; exit 1; }
        sleep 0.2
    done
}

# The guide's podman: with those options, little memory, and a bucket; what it runs is not to be reached from elsewhere. What needs no
# network gets none: podman's own would be made, with a bridge and rules of this machine's firewall.
mkdir -p "$work/bin" "$work/etc" "$work/data"
{
    printf '#!/usr/bin/env bash\npodman=('
    printf '%q ' "$(command -v podman)" "${podman[@]:1}"
    printf ')\nmore=('
    printf '%q ' "${limits[@]}" --volume "$work/data:/srv/data:ro" --env FOREBAY_WORKER_MEMORY_SIZE=64MiB \
        --env FOREBAY_WORKER_RPC_BIND_HOST=127.0.0.1 --env FOREBAY_NETWORK_HEALTH_BIND_HOST=127.0.0.1
    printf ')\n'
    cat <<'WRAPPER'
[[ $1 == run ]] || exec "${podman[@]}" "$@"
shift
[[ " $* " == *" --network "* ]] || more+=(--network none)
exec "${podman[@]}" run "${more[@]}" "$@"
WRAPPER
} >"$work/bin/podman"
chmod 755 "$work/bin/podman"

# guide PAGE HEADING: runs what a section has for an image. What it says is in `said`.
guide() {
    local name version=${archives[0]##*/forebay-}
    version=${version%.tar}
    local names=(
        "${archives[0]##*/}=$PWD/${archives[0]}"
        "localhost/forebay:$version=${image:-}"
        "s3://bucket/prefix=file:///srv/data"
        "blocks:1GiB=blocks:128MiB"
        "localhost:29999=127.0.0.1:29999"
        '"localhost"="127.0.0.1"'
        # On this side alone: in containers they are what the guide calls them.
        "--volume /etc/forebay:=--volume $work/etc:"
        "--volume /mnt/forebay:=--volume $work/shared:"
        " /etc/forebay/= $work/etc/"
        "mkdir -p /mnt/forebay/=mkdir -p $work/shared/"
        "mountpoint -q /mnt/forebay/=mountpoint -q $work/shared/"
        "ls /mnt/forebay/=ls $work/shared/"
    )
    scripts/guide.py "docs/guides/$1#$2" image "${names[@]}" >"$work/guide.sh" || exit 1
    if ! PATH=$work/bin:$PATH timeout 300 bash "$work/guide.sh" >"$work/said" 2>&1; then
        echo "FAILED  docs/guides/$1, \"$2\""
        cat "$work/said"
        for name in worker mount; do "${podman[@]}" logs --tail 30 "$name" || true; done
        exit 1
    fi
}

guide air-gapped.md "Load the image"
image=$(sed -nE 's/^Loaded image: //p' "$work/said")
"${podman[@]}" run --rm "${limits[@]}" --network none "$image" version
ok "the image is loaded from its file, as the guide says"

head -c 20M /dev/urandom >"$work/data/file"
chmod 755 "$work" "$work/data"
# Nothing listens beyond this machine.
role() {
    local name=$1
    shift
    "${podman[@]}" run --detach --name "$name" "${limits[@]}" --network host --read-only --cap-drop all --security-opt no-new-privileges \
        --tmpfs /tmp --volume "$work/data:/srv/data:ro" "$image" "$@" >/dev/null
}
role worker worker -o mounts=/=file:///srv/data -o worker.rpc.bind.host=127.0.0.1 -o worker.memory.size=64MiB \
    -o worker.disks=/var/cache/forebay/blocks:128MiB -o network.health.bind.host=127.0.0.1
role coordinator coordinator -o cluster.workers=127.0.0.1:29999 -o coordinator.bind.host=127.0.0.1 \
    -o network.health.bind.host=127.0.0.1
for name in worker coordinator; do
    eventually "the $name is healthy" "${podman[@]}" healthcheck run "$name"
    [[ $("${podman[@]}" exec "$name" id -u) == 10001 ]]
done
ok "worker and coordinator run without rights on a root that nothing writes to"
"${podman[@]}" exec worker forebay fs ls / --workers 127.0.0.1:29999 | grep -q file
"${podman[@]}" exec worker ls /var/cache/forebay/blocks >/dev/null
ok "the worker serves, and caches on its volume"

mkdir -p "$work/shared"
mount --bind "$work/shared" "$work/shared"
mount --make-shared "$work/shared"
mkdir "$work/shared/mnt"
"${podman[@]}" run --detach --name mount "${limits[@]}" --network host --user 0 --device /dev/fuse --cap-add SYS_ADMIN \
    --security-opt apparmor=unconfined --volume "$work/shared:/shared:rshared" "$image" \
    mount --foreground /shared/mnt --workers 127.0.0.1:29999 -o network.health.bind.host=127.0.0.1 >/dev/null
eventually "the mount is healthy" "${podman[@]}" healthcheck run mount
cmp "$work/shared/mnt/file" "$work/data/file"
ok "the host reads what a container has mounted"
"${podman[@]}" stop --time 20 mount >/dev/null
if mountpoint -q "$work/shared/mnt"; then
    echo "FAILED  the mount of a container that was stopped is still there"
    exit 1
fi
ok "a container that is stopped unmounts"

"${podman[@]}" rm --force --all --time 20 >/dev/null
guide air-gapped.md "Run it without Kubernetes"
grep -qx file "$work/said"
cmp "$work/shared/data/file" "$work/data/file"
ok "a worker and a mount run by the commands of the guide, with a key"
"${podman[@]}" stop --time 20 mount >/dev/null
echo "$passed passed, 0 failed"
