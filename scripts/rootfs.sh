# Sourced by scripts/rootfs-test.sh: a Debian of its own with systemd as process 1, in namespaces, without a network. It needs
# root, `mmdebstrap` and the package sources of this machine.

# shellcheck source=scripts/sources.sh
source scripts/sources.sh

rootfs_suite=${FOREBAY_ROOTFS_SUITE:-$(own_suite)}
rootfs_cache=${FOREBAY_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/forebay}/rootfs
rootfs_packages=systemd,systemd-sysv,dbus,fuse3,ca-certificates,mount,procps,man-db

# rootfs_make DIRECTORY: a fresh system there. The first one is made, which takes minutes; others are copies of it.
rootfs_make() {
    local tar=$rootfs_cache/$rootfs_suite.tar
    if [[ ! -s $tar ]]; then
        echo "rootfs: making a Debian $rootfs_suite in $rootfs_cache, about two minutes" >&2
        mkdir -p "$rootfs_cache"
        package_sources "$rootfs_suite" | mmdebstrap --quiet --variant=minbase --include="$rootfs_packages" "$rootfs_suite" "${tar%.tar}.new.tar" - >&2
        mv "${tar%.tar}.new.tar" "$tar"
    fi
    mkdir -p "$1"
    tar -xf "$tar" -C "$1"
    # Nothing is fetched, and manual pages are kept.
    rm -f "$1"/etc/dpkg/dpkg.cfg.d/docker "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/*
    echo forebay-test >"$1/etc/hostname"
    printf '127.0.0.1 localhost forebay-test\n::1 localhost\n' >"$1/etc/hosts"
    : >"$1/etc/machine-id"
}

# rootfs_boot DIRECTORY: starts it, and waits until it runs. Sets `rootfs_holder`, the process that all of it ends with, and
# `rootfs_init`, its process 1 as this machine numbers it.
rootfs_boot() {
    unshare --net --pid --mount --uts --ipc --cgroup --propagation private --fork --kill-child \
        bash -c "$(declare -f rootfs_enter); rootfs_enter \"\$@\"" rootfs "$1" </dev/null >"$1.console" 2>&1 &
    rootfs_holder=$!
    local deadline=$((SECONDS + 60)) state
    until [[ ${state:=} == running || $state == degraded ]]; do
        if ((SECONDS > deadline)) || ! kill -0 "$rootfs_holder" 2>/dev/null; then
            echo "rootfs: systemd does not come up ($state):" >&2
            tail -n 50 "$1.console" >&2
            return 1
        fi
        sleep 0.2
        rootfs_init=$(pgrep --parent "$rootfs_holder" | head -n 1 || true)
        [[ -z $rootfs_init ]] || state=$(rootfs_run systemctl is-system-running 2>/dev/null || true)
    done
}

# In the namespaces: what a container's manager does before it starts process 1.
rootfs_enter() {
    local root=$1 device
    ip link set lo up
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount -t sysfs sysfs "$root/sys"
    mount -t tmpfs -o mode=755,nosuid,nodev tmpfs "$root/run"
    mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$root/tmp"
    mount -t tmpfs -o mode=755,nosuid tmpfs "$root/dev"
    mkdir -p "$root"/dev/{pts,shm}
    for device in null zero full random urandom tty fuse; do
        touch "$root/dev/$device"
        mount --bind "/dev/$device" "$root/dev/$device"
    done
    mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$root/dev/pts"
    ln -s pts/ptmx "$root/dev/ptmx"
    ln -s /proc/self/fd "$root/dev/fd"
    mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$root/dev/shm"
    # As on any system of today, also where this machine has its controllers in the first version.
    if ! mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup" 2>/dev/null; then
        mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
        mkdir "$root/sys/fs/cgroup/systemd"
        mount -t cgroup -o none,name=systemd cgroup "$root/sys/fs/cgroup/systemd"
    fi
    cd "$root"
    mkdir -p .old
    pivot_root . .old
    exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=unshare \
        sh -c 'umount --lazy /.old; exec /lib/systemd/systemd --log-target=console --show-status=false'
}

# rootfs_run COMMAND...: runs it in there, in its root directory: a directory that nsenter is told is one of this machine.
rootfs_run() {
    nsenter --target "$rootfs_init" --all --root --wd -- env -i HOME=/root LC_ALL=C.UTF-8 \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"
}

# Ends it.
rootfs_end() {
    if [[ -n ${rootfs_holder:-} ]]; then
        kill -KILL "$rootfs_holder" 2>/dev/null || true
        wait "$rootfs_holder" 2>/dev/null || true
        rootfs_holder=
    fi
}
