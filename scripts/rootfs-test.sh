#!/usr/bin/env bash
# Tries the .debs of `make packages` in a Debian of its own with systemd as process 1: installs the program, runs its units, kills what
# runs, upgrades under a reader as docs/guides/upgrading.md has it, mounts from /etc/fstab, compiles and runs the examples in C with the
# library that is installed, follows docs/guides/packages.md, and purges all of it. Needs root and mmdebstrap, and no network once the
# system is made.
# `make test-packages`.
set -euo pipefail
shopt -s nullglob
cd "$(dirname "$0")/.."
# shellcheck source=scripts/tools.sh
source scripts/tools.sh
# shellcheck source=scripts/rootfs.sh
source scripts/rootfs.sh

if [[ $(id -u) -ne 0 ]]; then
    echo "skipped: packages: only root makes a system with systemd as process 1"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
need_command mmdebstrap mmdebstrap "makes the system that the package is installed on"
need_command dpkg-deb dpkg "makes an older version of the package, to upgrade from"
need_command ip iproute2 "brings up the loopback interface of the system"
# The system has no compiler: it would be larger than all the rest of it.
need_command cc build-essential "compiles the examples in C"
need_command pkg-config pkgconf "tells what they are linked with"
debs=(target/packages/forebay_*.deb)
libraries=(target/packages/libforebay0_*.deb target/packages/libforebay-dev_*.deb)
[[ ${#debs[@]} -eq 1 && ${#libraries[@]} -eq 2 ]] ||
    { echo "there is not one .deb of each kind in target/packages: make packages" >&2; exit 1; }

work=$(mktemp -d)
root=$work/root
trap 'rootfs_end; rm -rf --one-file-system "$work"' EXIT

passed=0 failed=0
# A step is a function. Each is tried, whatever became of the one before.
try() {
    local log=$work/step.log code
    # As a condition, a step would go on after what failed in it.
    set +e
    (set -euo pipefail; "$1") >"$log" 2>&1
    code=$?
    set -e
    if ((code == 0)); then
        passed=$((passed + 1))
        echo "ok      ${1//_/ }"
    else
        failed=$((failed + 1))
        echo "FAILED  ${1//_/ }"
        sed 's/^/        /' "$log"
        rootfs_run journalctl --no-pager --lines 60 2>/dev/null | sed 's/^/        /' || true
    fi
}

# eventually WHAT COMMAND...: waits for what is to come true, 60 s at most.
eventually() {
    local what=$1 deadline=$((SECONDS + 60))
    shift
    until "$@"; do
        ((SECONDS < deadline)) || { echo "waited a minute for: $what" >&2; return 1; }
        sleep 0.1
    done
}

not() { ! "$@"; }
property() { rootfs_run systemctl show --value --property "$2" "$1"; }
is_active() { [[ $(property "$1" ActiveState) == active ]]; }
pid_of() { property "$1" MainPID; }
has_other_pid() { [[ $(pid_of "$1") != "$2" && $(pid_of "$1") != 0 ]]; }
is_there() { rootfs_run test -e "$1"; }
verifies() { rootfs_run sh -c "cd $1 && md5sum --quiet --check /srv/checksums"; }

# What names of the guides are in there, and sizes.
guide_names=(
    "s3://bucket/prefix=file:///srv/data"
    "./forebay_*.deb=/root/forebay.deb"
    "./libforebay0_*.deb=/root/libforebay0.deb"
    "./libforebay-dev_*.deb=/root/libforebay-dev.deb"
    "64GiB,=64MiB,"
)

# guide PAGE [HEADING]: runs what it has for packages, in a section or in all of it.
guide() {
    scripts/guide.py "docs/guides/$1${2:+#$2}" packages "${guide_names[@]}" >"$root/root/guide.sh" || return 1
    rootfs_run bash /root/guide.sh
}

# An older version: the same, but for its number.
make_older() {
    dpkg-deb --raw-extract "${debs[0]}" "$work/older"
    sed -i 's/^Version: .*/Version: 0.0.1-1/' "$work/older/DEBIAN/control"
    # It is installed once: compressing it takes longer.
    dpkg-deb -Znone --root-owner-group --build "$work/older" "$root/root/older.deb" >/dev/null
    cp "${debs[0]}" "$root/root/forebay.deb"
    cp "${libraries[0]}" "$root/root/libforebay0.deb"
    cp "${libraries[1]}" "$root/root/libforebay-dev.deb"
}

make_bucket() {
    mkdir -p "$root/srv/data/deep"
    local number
    for number in 1 2 3; do head -c 20M /dev/urandom >"$root/srv/data/deep/$number"; done
    echo hello >"$root/srv/data/small"
    (cd "$root/srv/data" && md5sum small deep/*) >"$root/srv/checksums"
}

# Reads all of a mount again and again until a file is there, and says of each read that failed or was wrong.
start_reader() {
    rootfs_run rm -f /run/reader.stop /run/reader.errors /run/reader.rounds
    # Around the page cache, which would answer without the mount.
    rootfs_run setsid sh -c "
        cd $1
        while [ ! -e /run/reader.stop ]; do
            while read -r sum name; do
                found=\$(dd if=\"\$name\" iflag=direct bs=1M status=none 2>>/run/reader.errors | md5sum | cut -d' ' -f1)
                [ \"\$found\" = \"\$sum\" ] || echo \"\$name is \$found\" >> /run/reader.errors
            done < /srv/checksums
            echo >> /run/reader.rounds
        done
        touch /run/reader.ended" >/dev/null 2>&1 &
    eventually "the reader has read all once" has_read_more 0
}
rounds() { rootfs_run sh -c 'wc -l < /run/reader.rounds 2>/dev/null || echo 0'; }
has_read_more() { (($(rounds) > $1)); }
# It reads once more before it is stopped: also what came last is seen.
stop_reader() {
    local before
    before=$(rounds)
    eventually "the reader goes on" has_read_more "$((before + 1))"
    rootfs_run touch /run/reader.stop
    eventually "the reader has ended" is_there /run/reader.ended
    rootfs_run rm /run/reader.ended
    rootfs_run sh -c '! [ -s /run/reader.errors ] || { cat /run/reader.errors; exit 1; }'
}

it_is_installed_and_starts_nothing() {
    rootfs_run apt-get install --yes --quiet /root/older.deb
    rootfs_run forebay version
    rootfs_run forebay conf check /etc/forebay/forebay.toml
    rootfs_run id forebay
    for unit in forebay-worker forebay-coordinator; do
        not is_active "$unit.service"
        [[ $(rootfs_run systemctl is-enabled "$unit.service" || true) == disabled ]]
    done
    rootfs_run test -x /usr/sbin/mount.forebay
    for page in forebay.1 forebay-fs-location.1; do rootfs_run test -s "/usr/share/man/man1/$page.gz"; done
    rootfs_run test -s /usr/share/doc/forebay/copyright
    rootfs_run sh -c 'systemd-analyze verify /usr/lib/systemd/system/forebay-*.service'
}

a_worker_without_a_mode_of_security_says_so_and_is_not_tried_again() {
    not rootfs_run systemctl start forebay-worker.service
    [[ $(property forebay-worker.service ExecMainStatus) == 2 ]]
    [[ $(property forebay-worker.service NRestarts) == 0 ]]
    rootfs_run systemctl reset-failed forebay-worker.service
}

a_worker_and_a_coordinator_run_as_their_user_and_say_when_they_are_ready() {
    rootfs_run sh -c 'forebay key create > /etc/forebay/cluster.key
        chgrp forebay /etc/forebay/cluster.key && chmod 0640 /etc/forebay/cluster.key
        printf "%s\n" \
            "security.mode = \"key\"" \
            "mounts = [\"/=file:///srv/data\"]" \
            "cluster.workers = [\"localhost:29999\"]" \
            "worker.hostname = \"localhost\"" \
            "worker.memory.size = \"64MiB\"" \
            "worker.disks = [\"/var/cache/forebay/blocks:128MiB\"]" > /etc/forebay/forebay.toml'
    rootfs_run systemctl enable --now forebay-worker.service forebay-coordinator.service
    is_active forebay-worker.service
    is_active forebay-coordinator.service
    [[ $(property forebay-worker.service StatusText) == Serving ]]
    rootfs_run sh -c '[ "$(stat -c %U /var/cache/forebay/blocks)" = forebay ]'
    rootfs_run forebay fs ls / --workers localhost:29999
    # No sandbox is complete; what is there must not get less.
    rootfs_run systemd-analyze security --threshold=40 forebay-worker.service >/dev/null
    rootfs_run systemd-analyze security --threshold=30 forebay-coordinator.service >/dev/null
}

a_mount_is_a_unit() {
    rootfs_run systemctl enable --now forebay-mount@mnt-data.service
    is_active forebay-mount@mnt-data.service
    verifies /mnt/data
    rootfs_run systemctl stop forebay-mount@mnt-data.service
    rootfs_run sh -c '! mountpoint -q /mnt/data'
    rootfs_run systemctl start forebay-mount@mnt-data.service
    verifies /mnt/data
}

a_worker_that_is_killed_is_started_again_and_costs_no_reader_an_error() {
    local pid
    start_reader /mnt/data
    pid=$(pid_of forebay-worker.service)
    rootfs_run kill -KILL "$pid"
    eventually "another worker" has_other_pid forebay-worker.service "$pid"
    eventually "the worker is active" is_active forebay-worker.service
    stop_reader
}

a_mount_that_is_killed_is_started_again() {
    local pid
    pid=$(pid_of forebay-mount@mnt-data.service)
    rootfs_run kill -KILL "$pid"
    eventually "another mount" has_other_pid forebay-mount@mnt-data.service "$pid"
    eventually "the mount is active" is_active forebay-mount@mnt-data.service
    verifies /mnt/data
}

programs_notice_nothing_of_a_killed_mount_that_systemd_keeps() {
    local pid round
    rootfs_run sh -c 'echo FOREBAY_FUSE_SURVIVE_CRASH=true > /etc/forebay/mounts/mnt-data.env
        systemctl restart forebay-mount@mnt-data.service'
    start_reader /mnt/data
    rootfs_run sh -c 'tail -f -n 0 /mnt/data/small >/dev/null & echo $! > /run/holder'
    for round in 1 2 3; do
        # The process that takes over gives systemd what the one before has given it.
        ((round == 1)) || rootfs_run systemctl reload forebay-mount@mnt-data.service
        (($(property forebay-mount@mnt-data.service NFileDescriptorStore) > 2))
        pid=$(pid_of forebay-mount@mnt-data.service)
        rootfs_run kill -KILL "$pid"
        eventually "another mount" has_other_pid forebay-mount@mnt-data.service "$pid"
        eventually "the mount is active" is_active forebay-mount@mnt-data.service
    done
    stop_reader
    rootfs_run sh -c '[ "$(cat "/proc/$(cat /run/holder)/fd/3")" = hello ] && kill "$(cat /run/holder)"'
    rootfs_run sh -c 'rm /etc/forebay/mounts/mnt-data.env && systemctl restart forebay-mount@mnt-data.service'
    verifies /mnt/data
}

a_worker_that_hangs_is_found_by_the_watchdog() {
    local pid
    rootfs_run sh -c 'mkdir -p /run/systemd/system/forebay-worker.service.d
        printf "[Service]\nWatchdogSec=3\n" > /run/systemd/system/forebay-worker.service.d/test.conf
        systemctl daemon-reload && systemctl restart forebay-worker.service'
    pid=$(pid_of forebay-worker.service)
    rootfs_run kill -STOP "$pid"
    eventually "another worker" has_other_pid forebay-worker.service "$pid"
    rootfs_run sh -c 'rm -r /run/systemd/system/forebay-worker.service.d && systemctl daemon-reload'
    eventually "the worker is active" is_active forebay-worker.service
    verifies /mnt/data
}

an_upgrade_under_a_reader_costs_no_error_and_keeps_configuration_and_mounts() {
    local worker mount before
    start_reader /mnt/data
    worker=$(pid_of forebay-worker.service) mount=$(pid_of forebay-mount@mnt-data.service)
    before=$(rootfs_run md5sum /etc/forebay/forebay.toml)
    guide upgrading.md "With the packages"
    has_other_pid forebay-worker.service "$worker"
    eventually "the worker is active" is_active forebay-worker.service
    # Another process has the mount, with what is open in it, and is the unit's.
    has_other_pid forebay-mount@mnt-data.service "$mount"
    is_active forebay-mount@mnt-data.service
    rootfs_run journalctl --unit forebay-mount@mnt-data.service --no-pager | grep 'taken over from another process' >/dev/null
    [[ $(rootfs_run md5sum /etc/forebay/forebay.toml) == "$before" ]]
    stop_reader
}

a_reload_under_a_reader_takes_the_mount_over_and_the_unit_stays_what_it_is() {
    local before round
    start_reader /mnt/data
    for round in 1 2 3; do
        before=$(pid_of forebay-mount@mnt-data.service)
        rootfs_run systemctl reload forebay-mount@mnt-data.service
        has_other_pid forebay-mount@mnt-data.service "$before"
        not rootfs_run kill -0 "$before"
    done
    # systemd hears it die as any other.
    before=$(pid_of forebay-mount@mnt-data.service)
    stop_reader
    rootfs_run kill -KILL "$before"
    eventually "another process serves the mount" has_other_pid forebay-mount@mnt-data.service "$before"
    eventually "the mount is active" is_active forebay-mount@mnt-data.service
    verifies /mnt/data
}

a_restart_under_a_reader_keeps_what_is_open_and_a_stop_unmounts() {
    local before round
    start_reader /mnt/data
    # A handle from before, read when its process is gone.
    rootfs_run sh -c 'sleep 600 3</mnt/data/small >/dev/null 2>&1 & echo $! > /run/holder'
    for round in 1 2 3; do
        before=$(pid_of forebay-mount@mnt-data.service)
        rootfs_run systemctl restart forebay-mount@mnt-data.service
        has_other_pid forebay-mount@mnt-data.service "$before"
        is_active forebay-mount@mnt-data.service
        # What was left is not kept any more: nobody has asked for that.
        [[ $(property forebay-mount@mnt-data.service NFileDescriptorStore) == 0 ]]
    done
    rootfs_run journalctl --unit forebay-mount@mnt-data.service --no-pager | grep 'taken over from a process that left it' >/dev/null
    rootfs_run sh -c '[ "$(cat "/proc/$(cat /run/holder)/fd/3")" = hello ]'
    stop_reader
    # A restart that changes what a mount keeps mounts anew.
    rootfs_run sh -c 'kill "$(cat /run/holder)"; echo FOREBAY_FUSE_MAX_READ=256KiB > /etc/forebay/mounts/mnt-data.env
        systemctl restart forebay-mount@mnt-data.service'
    rootfs_run journalctl --unit forebay-mount@mnt-data.service --no-pager | grep 'it is mounted anew' >/dev/null
    verifies /mnt/data
    rootfs_run rm /etc/forebay/mounts/mnt-data.env
    rootfs_run systemctl stop forebay-mount@mnt-data.service
    rootfs_run sh -c '! mountpoint -q /mnt/data'
    rootfs_run systemctl start forebay-mount@mnt-data.service
    verifies /mnt/data
}

a_restart_whose_start_fails_for_good_leaves_no_dead_mount() {
    rootfs_run sh -c 'echo FOREBAY_FUSE_MAX_READ=nonsense > /etc/forebay/mounts/mnt-data.env'
    not rootfs_run systemctl restart forebay-mount@mnt-data.service
    rootfs_run sh -c '! grep -q " /mnt/data fuse.forebay " /proc/self/mounts'
    rootfs_run journalctl --unit forebay-mount@mnt-data.service --no-pager | grep 'systemd starts no other' >/dev/null
    rootfs_run sh -c 'rm /etc/forebay/mounts/mnt-data.env && systemctl start forebay-mount@mnt-data.service'
    verifies /mnt/data
}

a_line_of_fstab_mounts_a_bucket() {
    rootfs_run sh -c 'mkdir -p /mnt/fstab
        echo "file:///srv/data /mnt/fstab forebay ro,nofail,_netdev,memory=64MiB,worker.disks= 0 0" >> /etc/fstab
        systemctl daemon-reload'
    rootfs_run mount /mnt/fstab
    verifies /mnt/fstab
    rootfs_run umount /mnt/fstab
    rootfs_run systemctl start mnt-fstab.mount
    verifies /mnt/fstab
    rootfs_run systemctl stop mnt-fstab.mount
    not rootfs_run mount -t forebay file:///srv/data /mnt/fstab -o noexec
}

a_bucket_of_its_own_is_a_unit() {
    rootfs_run sh -c 'echo "ORIGIN=file:///srv/data" > /etc/forebay/mounts/mnt-own.env
        echo "FOREBAY_WORKER_MEMORY_SIZE=64MiB" >> /etc/forebay/mounts/mnt-own.env
        echo "FOREBAY_WORKER_DISKS=" >> /etc/forebay/mounts/mnt-own.env'
    rootfs_run systemctl start forebay-up@mnt-own.service
    verifies /mnt/own
    rootfs_run forebay umount /mnt/own
    eventually "the unit has ended" inactive forebay-up@mnt-own.service
}
inactive() { [[ $(property "$1" ActiveState) == inactive ]]; }

# with_library NAME OPTION...: compiles what comes in as /root/NAME, with the header and the library that are installed in there.
with_library() {
    local name=$1
    shift
    cc -std=gnu99 -Wall -Wextra -Werror -I "$root/usr/include" -x c - -x none -o "$root/root/$name" -L "$root${library%/*}" "$@"
}
# The path of the library in there, as the loader knows it.
installed_library() { rootfs_run ldconfig --print-cache | sed -nE 's/.*libforebay\.so\.0 .*=> //p'; }
# No settings of the machine's.
as_a_program() { rootfs_run env FOREBAY_CONFIG=/root/empty.toml "$@"; }

programs_in_c_are_compiled_with_the_library_and_read_and_write() {
    local library options said example
    rootfs_run apt-get install --yes --quiet /root/libforebay0.deb /root/libforebay-dev.deb
    library=$(installed_library)
    [[ $library == /* ]]
    options=$(PKG_CONFIG_LIBDIR=$root${library%/*}/pkgconfig pkg-config --libs forebay)
    for example in read write; do
        # shellcheck disable=SC2086
        with_library "$example" $options <"$root/usr/share/doc/libforebay-dev/examples/$example.c"
    done
    rootfs_run sh -c ': > /root/empty.toml && mkdir -p /srv/written'
    said=$(as_a_program /root/read /srv/data /small)
    grep -x hello <<<"$said"
    said=$(as_a_program /root/write /srv/written /deep/file)
    grep -x 'it is there already' <<<"$said"
    rootfs_run sh -c '[ "$(wc -l < /srv/written/deep/file)" = 1000 ]'
    # Nobody needs what is there to compile with.
    rootfs_run apt-get purge --yes --quiet libforebay-dev
    as_a_program /root/read /srv/data /small >/dev/null
}

a_process_loads_the_library_of_the_model_streamer() {
    local library
    library=$(installed_library)
    with_library streamer <<'PROGRAM'
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **arguments) {
    void *library = count == 2 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    int (*start)(void **) = (int (*)(void **))dlsym(library, "runai_file_streamer_start");
    void (*end)(void *) = (void (*)(void *))dlsym(library, "runai_file_streamer_end");
    void *streamer = NULL;
    if (start == NULL || end == NULL || start(&streamer) != 0 || streamer == NULL) {
        return 1;
    }
    end(streamer);
    /* Its threads go on, so it stays. */
    return dlclose(library) == 0 && dlopen(arguments[1], RTLD_NOW | RTLD_NOLOAD) != NULL ? 0 : 1;
}
PROGRAM
    as_a_program /root/streamer "${library%/*}/forebay/libforebay_streamer.so"
    rootfs_run apt-get purge --yes --quiet libforebay0
    [[ -z $(installed_library) ]]
}

a_purge_leaves_nothing_that_runs_and_no_configuration() {
    rootfs_run apt-get purge --yes --quiet forebay
    rootfs_run sh -c '! pgrep -x forebay'
    rootfs_run sh -c '! grep -q fuse.forebay /proc/mounts'
    local left
    for left in /etc/forebay/forebay.toml /var/cache/forebay /usr/bin/forebay /usr/sbin/mount.forebay; do
        not is_there "$left"
    done
    # What no package may take away.
    is_there /etc/forebay/cluster.key
}

the_guide_does_what_it_says() {
    rootfs_run rm -rf /etc/forebay /mnt/data /mnt/fstab
    guide packages.md
}

rootfs_make "$root"
make_older
make_bucket
rootfs_boot "$root"
try it_is_installed_and_starts_nothing
try a_worker_without_a_mode_of_security_says_so_and_is_not_tried_again
try a_worker_and_a_coordinator_run_as_their_user_and_say_when_they_are_ready
try a_mount_is_a_unit
try a_worker_that_is_killed_is_started_again_and_costs_no_reader_an_error
try a_mount_that_is_killed_is_started_again
try programs_notice_nothing_of_a_killed_mount_that_systemd_keeps
try a_worker_that_hangs_is_found_by_the_watchdog
try an_upgrade_under_a_reader_costs_no_error_and_keeps_configuration_and_mounts
try a_reload_under_a_reader_takes_the_mount_over_and_the_unit_stays_what_it_is
try a_restart_under_a_reader_keeps_what_is_open_and_a_stop_unmounts
try a_restart_whose_start_fails_for_good_leaves_no_dead_mount
try a_line_of_fstab_mounts_a_bucket
try a_bucket_of_its_own_is_a_unit
try programs_in_c_are_compiled_with_the_library_and_read_and_write
try a_process_loads_the_library_of_the_model_streamer
try a_purge_leaves_nothing_that_runs_and_no_configuration
try the_guide_does_what_it_says
echo "$passed passed, $failed failed"
((failed == 0))
