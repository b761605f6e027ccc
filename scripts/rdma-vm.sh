#!/usr/bin/env bash
# Runs a command as root in a throw-away virtual machine that has RDMA devices, without an RDMA card: Soft-RoCE (the
# kernel's rdma_rxe) on both ends of a veth pair. rxe0 on veth0 is 10.77.0.1, rxe1 on veth1 is 10.77.0.2: two "hosts".
#
#   rdma-vm.sh [--ro DIR]... [--rw DIR]... [--timeout SECONDS] [--mem MIB] -- COMMAND [ARGUMENT]...
#
#   --ro DIR, --rw DIR   DIR appears at its own path in the machine, read-only or writable
#   --timeout SECONDS    for boot and command together, 300 by default
#   --mem MIB            memory of the machine, 1024 by default; programs and files in it share that
#
# The command starts in the current directory if that is shared, in /root otherwise, without this shell's environment
# (write `-- env NAME=VALUE COMMAND`), but with RDMA_VM_EMULATED, which is `yes` where the processor is emulated. Its output
# is forwarded while it runs; its exit code is the script's, which adds:
#   77   no such machine can be had here: one line `skipped: …` says why and how to get it
#   124  the time limit passed
#   125  wrong arguments, or the machine broke: the end of its console is printed
#
# The machine is Debian's kernel (the cloud kernels lack rdma_rxe) with a few packages, all in one initramfs, so that it
# has no disk and every run starts clean. Packages come from the apt sources of this computer, hence with its C library:
# what was compiled here runs there. apt works in a directory of its own; nothing outside the cache is changed, and root
# is not needed. The first run downloads about 150 MB; what it makes stays in $FOREBAY_CACHE/rdma-vm, by default in
# ~/.cache/forebay. KVM is used where there is hardware behind it; without, a boot takes about six seconds.
#
# It has two more cards, for whoever loads their driver (`modprobe e1000`): eth0 and eth1, joined by a hub of QEMU's. What
# travels between them leaves the kernel, which copies whatever it hands to itself, over a veth pair, too.
#
# In the machine, `veth-link down 0` takes the link of 10.77.0.1 down and `veth-link up 0` restores it with its routes.
# Verbs then fail, and TCP between the two addresses goes over lo: the other network that a host falls back to.
set -Eeuo pipefail

cache=${FOREBAY_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/forebay}/rdma-vm
# bash, tools and libraries of the machine; busybox supplies every other command.
packages=(busybox-static bash coreutils util-linux iproute2 fuse3 ibverbs-providers ibverbs-utils rdmacm-utils ucx-utils
    libstdc++6 libgomp1)
modules=(virtio_pci 9p 9pnet_virtio crc32_generic crc32-pclmul rdma_rxe rdma_ucm veth sch_netem sch_prio cls_u32 fuse)

skip() { echo "skipped: RDMA in a virtual machine: $*"; exit 77; }
die() { echo "rdma-vm: $*" >&2; exit 125; }
trap 'die "line $LINENO failed: $BASH_COMMAND"' ERR

# ---- What the machine is made of -------------------------------------------------------------------------------------

# An apt with lists, archives and package state of its own. The state is empty, so that apt names all dependencies.
# Hooks of this computer are cleared: Docker images have one that deletes the real archives.
apt_open() {
    apt_dir=$cache/apt
    [[ ! -d $apt_dir ]] || return 0
    mkdir -p "$apt_dir"/{state/lists,cache/archives}/partial
    : >"$apt_dir/status"
    cat >"$apt_dir/conf" <<EOF
Dir::State "$apt_dir/state";
Dir::State::status "$apt_dir/status";
Dir::Cache "$apt_dir/cache";
APT::Sandbox::User "";
APT::Install-Recommends "false";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::Retries "2";
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
EOF
    private_apt update >>"$apt_dir/log" || true # a source that fails need not be one that is wanted here
}

private_apt() { apt-get -q -y -c "$apt_dir/conf" "$@" 2>>"$apt_dir/log" </dev/null; }

# fetch DIRECTORY PACKAGE...: these packages and all that they depend on, as files.
fetch() {
    mkdir -p "$1/partial"
    private_apt -o Dir::Cache::archives="$1" --download-only install "${@:2}" >>"$apt_dir/log" && return
    skip "apt-get cannot fetch ${*:2} ($(tail -n 1 "$apt_dir/log")); run it once with the network and Debian's archive"
}

# unpack PACKAGES ROOT: without running their scripts, into a tree whose /bin, /lib … are links into /usr.
unpack() {
    local directory package
    for directory in bin sbin lib lib64; do
        mkdir -p "$2/usr/$directory"
        ln -sfn "usr/$directory" "$2/$directory"
    done
    for package in "$1"/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar -x -C "$2" --no-same-owner --keep-directory-symlink \
            --exclude='./usr/share/doc*' --exclude='./usr/share/man*' --exclude='./usr/share/locale*' \
            --exclude='./usr/share/i18n*' --exclude='*/gconv*' --exclude='./usr/share/perl*' --exclude='*/perl-base*'
    done
}

# The ELF kernel inside the bzImage $1. QEMU starts it directly (PVH); where the processor is emulated, a kernel that
# decompresses itself would take most of the boot. Offsets: Documentation/arch/x86/boot.rst of the kernel.
vmlinux_of() {
    local setup offset length
    field() { od -An -v -t "u$2" -j "$1" -N "$2" "$3" | tr -d ' '; }
    setup=$(field 0x1f1 1 "$1")
    offset=$(((setup + 1) * 512 + $(field 0x248 4 "$1")))
    length=$(($(field 0x24c 4 "$1") - 4)) # the payload ends with its size, which is no part of the archive
    local unpack=(xz -dc)
    [[ $(field "$offset" 4 "$1") -ne $((0xfd2fb528)) ]] || unpack=(zstd -dcq)
    head -c $((offset + length)) "$1" | tail -c "$length" | "${unpack[@]}"
}

# build DIRECTORY: kernel and initramfs.
build() {
    local work=$1.new kernel=linux-image-amd64 root tree version module names package
    rm -rf "$work"
    echo "rdma-vm: building the virtual machine's image, once: $1" >&2
    apt_open
    root=$work/root
    mkdir -p "$root" "$work/kernel"
    fetch "$work/packages" "${packages[@]}"
    unpack "$work/packages" "$root"
    local busybox=$root/bin/busybox

    # Of the kernel, only the packages with the image and its modules, not those that would install it.
    private_apt --simulate install "$kernel" >"$work/simulated" || kernel=linux-image-generic # Ubuntu's name
    private_apt --simulate install "$kernel" >"$work/simulated" ||
        skip "apt-get finds no $kernel; run it once with the network and Debian's or Ubuntu's archive"
    sed -nE 's/^Inst (linux-(image|binary|modules|modules-extra)-[0-9][^ ]*) .*/\1/p' "$work/simulated" >"$work/names"
    mapfile -t names <"$work/names"
    (cd "$work/kernel" && private_apt download "${names[@]}" >>"$apt_dir/log") ||
        skip "apt-get cannot fetch ${names[*]} ($(tail -n 1 "$apt_dir/log")); run it once with the network"
    for package in "$work"/kernel/*.deb; do
        # A package has only some of these, of which tar complains; what is missing in the end is found out below.
        dpkg-deb --fsys-tarfile "$package" | tar -x -C "$work/kernel" --no-same-owner --wildcards '*/vmlinuz*' \
            '*/modules.builtin*' '*/modules.order' '*/drivers/infiniband/core/*' '*/drivers/infiniband/sw/*' \
            '*/drivers/virtio/*' '*/drivers/net/veth.ko*' '*/intel/e1000/*' '*/kernel/net/9p/*' '*/kernel/net/core/*' \
            '*/kernel/net/ipv4/*' '*/kernel/net/ipv6/*' '*/kernel/net/sched/*' '*/kernel/fs/9p/*' \
            '*/kernel/fs/fuse/*' '*/kernel/fs/netfs/*' '*/kernel/fs/fscache/*' '*/kernel/fs/configfs/*' \
            '*/kernel/lib/*' '*/kernel/crypto/*' '*/arch/x86/crypto/*' 2>/dev/null || true
    done
    module=$(find "$work/kernel" -name 'rdma_rxe.ko*' -print -quit)
    [[ -n $module ]] || die "no rdma_rxe in ${names[*]}"
    tree=${module%%/kernel/drivers/*}
    version=${tree##*/}
    mkdir -p "$root/lib/modules"
    mv "$tree" "$root/lib/modules/"
    find "$root/lib/modules" -name '*.ko.xz' -exec xz -d {} +
    find "$root/lib/modules" -name '*.ko.zst' -exec zstd -dq --rm {} +
    "$busybox" depmod -b "$(realpath "$root")" "$version"
    vmlinux_of "$(find "$work/kernel" -name 'vmlinuz*' -type f -print -quit)" >"$work/vmlinux"

    mkdir -p "$root"/{proc,sys,dev,run,tmp,root,etc,mnt,ctl,var/tmp,usr/lib/busybox}
    ln -sf /bin/busybox "$root/sbin/modprobe" # the kernel calls it by this name
    printf '%s\n' 'root:x:0:0:root:/root:/bin/bash' 'nobody:x:65534:65534:nobody:/tmp:/bin/bash' >"$root/etc/passwd"
    printf '%s\n' 'root:x:0:' 'nogroup:x:65534:' >"$root/etc/group"
    printf '%s\n' '127.0.0.1 localhost' '10.77.0.1 host0' '10.77.0.2 host1' >"$root/etc/hosts"
    echo 'hosts: files' >"$root/etc/nsswitch.conf"
    guest_init >"$root/init"
    guest_veth_link >"$root/usr/bin/veth-link"
    chmod +x "$root/init" "$root/usr/bin/veth-link"
    (cd "$root" && find . | bin/busybox cpio -o -H newc -R 0:0 2>/dev/null) >"$work/initrd"

    rm -rf "$work"/{packages,kernel,root,simulated,names}
    mv "$work" "$1"
}

# Process 1 of the machine. /ctl is the run's directory on the host.
guest_init() {
    cat <<EOF
#!/bin/bash
modules=(${modules[*]})
EOF
    cat <<'EOF'
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/usr/lib/busybox HOME=/root LANG=C.UTF-8
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
exec >/dev/console 2>&1
$b --install -s /usr/lib/busybox
mkdir -p /dev/shm /dev/pts
mount -t tmpfs shm /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs run /run # a real mount: the root of an initramfs cannot be the root of every test
mount -t tmpfs tmp /tmp
ln -s /proc/self/fd /dev/fd
modprobe -a "${modules[@]}" 2>/dev/null # what is built into the kernel is not found, and need not be
nine() { mount -t 9p -o "trans=virtio,version=9p2000.L,msize=262144,$3" "$1" "$2"; }
nine ctl /ctl cache=none
. /ctl/conf

finish() { # the result, then the end
    echo "$1" >/ctl/status.new
    mv /ctl/status.new /ctl/status
    sync
    poweroff -f
}
problem() { echo "rdma-vm: $*" >>/ctl/err; finish 125; }

for n in "${!shares[@]}"; do # "ro:/path" or "rw:/path"
    path=${shares[n]#*:}
    mkdir -p "$path"
    case ${shares[n]} in ro:*) options=ro,cache=loose ;; *) options=rw,cache=mmap ;; esac
    nine "share$n" "$path" "$options" || problem "cannot mount $path in the machine"
done

# Two hosts in one network namespace, as rxe before Linux 7 knows no others. Each end takes packets from an address of
# this same machine and answers ARP only for its own. A route over a link whose other end is down does not count, so
# that TCP finds lo meanwhile. IPv6: duplicate address detection would delay the RoCE addresses.
sysctl -qw net.ipv4.conf.{all,default}.rp_filter=0 net.ipv4.conf.default.accept_local=1 \
    net.ipv4.conf.default.arp_ignore=1 net.ipv4.conf.default.arp_announce=2 \
    net.ipv4.conf.{all,default}.ignore_routes_with_linkdown=1 net.ipv6.conf.default.accept_dad=0
ip link set lo up
ip link add veth0 mtu 9000 type veth peer name veth1 mtu 9000
ip addr add 10.77.0.1/24 dev veth0
ip addr add 10.77.0.2/24 dev veth1
# Packets made here (iif lo) for one host leave by the other's interface, tables 101 and 102; a host reaches itself, and
# received packets reach it, by the local table, which therefore has to come last.
ip rule add pref 10 iif lo from 10.77.0.1 to 10.77.0.1 lookup local
ip rule add pref 11 iif lo from 10.77.0.2 to 10.77.0.2 lookup local
ip rule add pref 20 iif lo to 10.77.0.2 lookup 101
ip rule add pref 21 iif lo to 10.77.0.1 lookup 102
ip rule add pref 30 lookup local
ip rule del pref 0
rdma link add rxe0 type rxe netdev veth0 || problem "no rxe0"
rdma link add rxe1 type rxe netdev veth1 || problem "no rxe1"
for n in 0 1; do ip link set "veth$n" up; done # a link is up when both ends are
veth-link up 0 && veth-link up 1 || problem "the rxe links do not become active"

cd "$directory" 2>/dev/null || cd /root
echo "ready after $(cut -d' ' -f1 /proc/uptime) s"
"${command[@]}" </dev/null >>/ctl/out 2>>/ctl/err
finish $?
EOF
}

# veth-link up|down 0|1: pulls the cable of one host, or puts it back: until both devices are active again.
guest_veth_link() {
    cat <<'EOF'
#!/bin/bash
set -e
ip link set "veth$2" "$1"
[ "$1" = up ] || exit 0
# The kernel drops the routes of an interface that goes down.
case $2 in
0) ip route replace 10.77.0.2 dev veth0 src 10.77.0.1 table 101 ;;
1) ip route replace 10.77.0.1 dev veth1 src 10.77.0.2 table 102 ;;
esac
for _ in {1..100}; do
    [ "$(rdma link show | grep -c 'state ACTIVE')" = 2 ] && exit 0
    sleep 0.1
done
exit 1
EOF
}

# A QEMU in the cache, run by its own loader with its own libraries.
build_qemu() {
    echo "rdma-vm: no qemu-system-x86_64 here: unpacking one, once: $1" >&2
    apt_open
    rm -rf "$1.new"
    mkdir -p "$1.new/root"
    fetch "$1.new/packages" qemu-system-x86
    unpack "$1.new/packages" "$1.new/root"
    mv "$1.new/root" "$1"
    rm -rf "$1.new"
}

# Sets `image` and `qemu`, built where they are missing.
prepare() {
    local need libraries own=$cache/qemu
    image=$cache/guest-$(sha256sum "$0" | cut -c 1-12) # an edit of this script makes a new one
    qemu=(qemu-system-x86_64)
    if ! command -v "${qemu[0]}" >/dev/null; then
        libraries=$own/usr/lib/x86_64-linux-gnu
        export QEMU_MODULE_DIR=$libraries/qemu
        qemu=("$own/lib64/ld-linux-x86-64.so.2" --library-path "$libraries:$libraries/pulseaudio"
            "$own/usr/bin/qemu-system-x86_64" -L "$own/usr/share/qemu" -L "$own/usr/share/seabios")
    fi
    [[ ! -d $image || (${#qemu[@]} -gt 1 && ! -d $own) ]] || return 0

    for need in apt-get dpkg-deb xz zstd flock; do
        command -v $need >/dev/null ||
            skip "no $need here, with which QEMU and a kernel are fetched; run it on Debian or Ubuntu (packages dpkg," \
                "xz-utils, zstd, util-linux), or copy $cache from there"
    done
    mkdir -p "$cache"
    exec 9>"$cache/lock"
    flock 9
    rm -rf "$cache/apt"
    find "$cache" -maxdepth 1 -name 'guest-*' -mtime +30 -exec rm -rf {} + # of scripts that are no more
    ((${#qemu[@]} == 1)) || [[ -d $own ]] || build_qemu "$own"
    [[ -d $image ]] || build "$image"
    rm -rf "$cache/apt"
    exec 9>&-
}

# ---- A run -----------------------------------------------------------------------------------------------------------

shares=() limit=300 memory=1024
while (($#)); do
    [[ $1 == -- || -n ${2-} ]] || die "$1 lacks its value"
    case $1 in
    --ro | --rw)
        path=$(realpath -- "$2")
        [[ -d $path ]] || die "no directory $2 to share"
        [[ $path != *,* ]] || die "QEMU cannot share a path with a comma: $path"
        shares+=("${1#--}:$path") && shift 2
        ;;
    --timeout) limit=$2 && shift 2 ;;
    --mem) memory=$2 && shift 2 ;;
    --) shift && break ;;
    *) die "unknown option $1: the head of $0 lists them" ;;
    esac
done
(($#)) || die "no command after --"

[[ $(uname -sm) == "Linux x86_64" ]] || skip "this is $(uname -sm); run it on Linux on x86-64"
prepare

# /dev/kvm alone proves nothing: in a cloud it may be a software one, slower than QEMU's own emulation.
accelerator=(-accel "tcg,thread=multi" -cpu max)
emulated=yes
if [[ -w /dev/kvm && (-d /sys/module/kvm_intel || -d /sys/module/kvm_amd) ]]; then
    accelerator=(-accel kvm -cpu host)
    emulated=no
fi

run=$(mktemp -d "${TMPDIR:-/tmp}/rdma-vm.XXXXXX")
vm=""
trap '[[ -z $vm ]] || kill "$vm" 2>/dev/null; wait; rm -rf "$run"' EXIT
trap 'exit 130' INT TERM
: >"$run/out"
: >"$run/err"
command=("$@")
directory=$PWD
{
    declare -p shares command directory
    echo "export RDMA_VM_EMULATED=$emulated"
} >"$run/conf"

# What a processor's counter is worth a second the kernel measures as it starts, and a machine that does a lot else makes that wrong: eight
# times was seen, and time limits that much too short. The ACPI timer and the HPET have a frequency that is known.
clock="tsc=unstable clocksource=acpi_pm nolapic_timer"
# One processor: emulated ones wait for each other, two take twice as long as one.
machine=("${qemu[@]}" "${accelerator[@]}" -M q35 -smp 1 -m "$memory" -nodefaults -no-user-config -display none
    -no-reboot -serial "file:$run/console" -kernel "$image/vmlinux" -initrd "$image/initrd"
    -append "console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=on no_timer_check $clock")
for n in 0 1; do # without the ROM to boot from, which is not there
    machine+=(-netdev "hubport,id=eth$n,hubid=0" -device "e1000,netdev=eth$n,romfile=,mac=52:54:00:00:78:0$n")
done
share() { # share TAG PATH OPTION
    machine+=(-fsdev "local,id=$1,path=$2,security_model=none$3" -device "virtio-9p-pci,fsdev=$1,mount_tag=$1")
}
share ctl "$run" ""
for n in "${!shares[@]}"; do
    case ${shares[n]} in ro:*) option=,readonly=on ;; *) option="" ;; esac
    share "share$n" "${shares[n]#*:}" "$option"
done

timeout -k 5 "$limit" "${machine[@]}" </dev/null >"$run/qemu" 2>&1 &
vm=$!
tail -s 0.1 --pid="$vm" -c +1 -f "$run/out" &
tail -s 0.1 --pid="$vm" -c +1 -f "$run/err" >&2 &
status=0
wait "$vm" || status=$?
vm=""
wait
if [[ -e $run/status ]]; then exit "$(<"$run/status")"; fi
if ((status == 124 || status == 137)); then
    echo "rdma-vm: the time limit of $limit s passed" >&2
    exit 124
fi
tail -n 25 "$run/qemu" "$run/console" >&2
die "the machine ended without a result (QEMU: $status)"
