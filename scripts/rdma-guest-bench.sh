#!/usr/bin/env bash
# Runs inside the machine of rdma-vm.sh, as root: what rdma-bench.py measures between Soft-RoCE devices.
#
#   rdma-guest-bench.sh RESULTS ROUNDS libraries|perftest|one-sided|striping...
#
# Each part is measured once in each round, one after the other, in a shell of its own, under `set -e`. What the programs print, and
# tables with tabs, lie in RESULTS/ROUND; a part that fails says so there and leaves the others. FOREBAY is the program, PERFTEST a
# directory with perftest's programs and libraries, and QUICK=yes shows that it works, not how fast.
set -euo pipefail

# Workers, mounts and links of the tests.
# shellcheck source=scripts/rdma-guest.sh
source "$(dirname "$0")/rdma-guest.sh"

part_seconds=900 # one part's limit in one round
if [[ ${QUICK:-} == yes ]]; then
    iterations=100 seconds=1 reading=2 large=4000000
else
    iterations=1000 seconds=5 reading=10 large=40000000
fi

# ---- Verbs, UCX and perftest -----------------------------------------------------------------------------------------

# By verbs and by UCX in turn, with the same server: one operation at a time, then eight. Who waits for one answer does so itself for
# longer than by default: these cards answer later.
measure_libraries() { # RESULTS
    local client=(bench rdma --remote-ip $host0 --devices rxe1:1 --provider both --json -o client.drive.wait=5ms)
    export UCX_TLS=rc_verbs,self UCX_UD_TIMEOUT=20s
    cd "$(mktemp -d)"
    "$FOREBAY" bench rdma --local-ip $host0 --devices rxe0:1 --provider verbs >server.log &
    until_true grep "Server running on $host0:20600" server.log
    "$FOREBAY" "${client[@]}" --case latency --size 4KiB --iters $iterations >latency.json
    "$FOREBAY" "${client[@]}" --case stress --size 64KiB,1MiB --numjobs 1 --iodepth 8 --duration $seconds >bandwidth.json
    mv latency.json bandwidth.json "$1"
    kill -INT $!
    wait $!
}

# One processor for both ends: they sleep in between, as ours do, but for a read, of which the other end knows nothing.
measure_perftest() { # RESULTS
    local size
    export LD_LIBRARY_PATH=$PERFTEST
    cd "$(mktemp -d)"
    trap 'cat ./*.log' ERR
    perftest_between "$1/send_lat" ib_send_lat -s 4096 -n $iterations -e
    perftest_between "$1/read_lat" ib_read_lat -s 4096 -n $iterations -e
    perftest_between "$1/read_lat_polling" ib_read_lat -s 4096 -n $iterations
    for size in 65536 1048576; do
        perftest_between "$1/write_bw_$size" ib_write_bw -s $size -n $((iterations * 65536 / size + 20)) -t 8 -e --report_gbits
        perftest_between "$1/read_bw_$size" ib_read_bw -s $size -n $((iterations * 65536 / size + 20)) -t 8 -e --report_gbits
    done
}

perftest_between() { # FILE PROGRAM OPTION...
    "$PERFTEST/$2" -d rxe0 -x 1 -F "${@:3}" >server.log 2>&1 &
    # One that does not start is not waited for.
    until listens 18515; do
        kill -0 $!
        sleep 0.1
    done
    "$PERFTEST/$2" -d rxe1 -x 1 -F "${@:3}" $host0 >client.log
    wait $!
    mv client.log "$1"
}

# ---- The processor of a worker ---------------------------------------------------------------------------------------

# A mount reads 4 MiB of a worker's memory again and again: by requests, then by itself. The worker's processor time, and what it
# takes while nobody reads. Nothing is fetched ahead: of small reads in order, whole blocks would be.
measure_one_sided() { # RESULTS
    local provider=verbs patient=(-o network.rdma.data.ack_timeout=2s) one_sided size
    export UCX_TLS=rc_verbs,self UCX_UD_TIMEOUT=20s
    cd "$(mktemp -d)"
    trap 'cat ./*.log; umount -l mnt 2>/dev/null || true' ERR
    mkdir -p /tmp/hot
    [[ -f /tmp/hot/file ]] || head -c 4194304 /dev/urandom >/tmp/hot/file
    for one_sided in false true; do
        worker_options=(-o mounts=/=file:///tmp/hot -o worker.rpc.bind.host=$host0 -o worker.memory.size=64MiB
            -o block.size=1MiB -o security.mode=off -o "network.rdma.data.one_sided=$one_sided" "${patient[@]}")
        start_worker 0 29999
        start_mount $host0:29999 -o network.rdma.data.fallback=never -o "network.rdma.data.one_sided=$one_sided" \
            -o client.prefetch.max_part_number=0 "${patient[@]}"
        cmp /tmp/hot/file mnt/file
        # The worker tells where a block lies when it was asked for twice.
        reads_for 3 1048576
        for size in 1048576 4096; do
            "$FOREBAY" stats mnt --all --json >"$1/$one_sided-$size-before.json"
            timed $one_sided $size reads_for $reading $size >>one-sided.tsv
            "$FOREBAY" stats mnt --all --json >"$1/$one_sided-$size-after.json"
        done
        timed $one_sided 0 sleep $reading >>one-sided.tsv
        umount mnt
        until_true is_free mnt
        kill "$(<worker0.pid)"
        wait
    done
    mv one-sided.tsv "$1"
}

# reads_for SECONDS SIZE: past the page cache; sets `bytes`.
reads_for() {
    local until=$((SECONDS + $1))
    bytes=0
    while ((SECONDS < until)); do
        dd if=mnt/file of=/dev/null bs="$2" iflag=direct status=none
        bytes=$((bytes + 4194304))
    done
}

# timed ONE_SIDED SIZE COMMAND...: a row: these two, bytes, seconds, and seconds of the worker's processor.
timed() {
    local bytes=0 began cpu
    cpu=$(cpu_of "$(<worker0.pid)") began=$EPOCHREALTIME
    "${@:3}"
    awk -v OFS='\t' -v one_sided="$1" -v size="$2" -v bytes=$bytes -v began="$began" -v ended="$EPOCHREALTIME" -v before="$cpu" \
        -v after="$(cpu_of "$(<worker0.pid)")" 'BEGIN { print one_sided, size, bytes, ended - began, (after - before) / 1e9 }'
}

# In ns, of all threads that live: the clock of proc_pid_stat(5) ticks too rarely.
cpu_of() { awk '{ ns += $1 } END { printf "%.0f\n", ns }' "/proc/$1"/task/*/schedstat; }

# ---- Two pairs, one of a quarter of the speed ------------------------------------------------------------------------

# Blocks of 4 MiB that the worker has: a file that is prefetched, and one large read after the other; striped, not striped, and by the
# fast pair alone. Each by a mount of its own, which has read something before, so that it knows what each pair can do.
measure_striping() { # RESULTS
    local provider=verbs data=/tmp/striping patient=(-o network.rdma.data.ack_timeout=2s) striping rdma_network how pattern ahead
    export UCX_TLS=rc_verbs,self UCX_UD_TIMEOUT=20s
    cd "$(mktemp -d)"
    trap 'cat ./*.log; umount -l mnt 2>/dev/null || true' ERR
    mkdir -p $data
    [[ -f $data/file ]] || head -c $large /dev/urandom >$data/file
    [[ -f $data/first ]] || head -c 12582912 /dev/urandom >$data/first
    second_pair
    striped_worker $data "${patient[@]}"
    striped_mount "${patient[@]}"
    cmp $data/file mnt/file
    cmp $data/first mnt/first
    unmount
    two_speeds
    for how in striped whole fast-alone; do
        striping=auto rdma_network=veth1:veth3
        case $how in
        whole) striping=off ;;
        fast-alone) rdma_network=veth1 ;;
        esac
        for pattern in prefetched large; do
            # Large reads are to come one after the other.
            ahead=()
            [[ $pattern == prefetched ]] || ahead=(-o client.prefetch.max_part_number=0)
            striped_mount "${patient[@]}" "${ahead[@]}" -o network.rdma.data.striping=$striping
            cat mnt/first >/dev/null
            drop_caches
            "$FOREBAY" stats mnt --all --json >"$1/$how-$pattern-before.json"
            timed_read $how $pattern >>striping.tsv
            "$FOREBAY" stats mnt --all --json >"$1/$how-$pattern-after.json"
            unmount
        done
    done
    mv striping.tsv "$1"
}

unmount() {
    umount mnt
    until_true is_free mnt
}

# timed_read HOW PATTERN: a row: these two, bytes, seconds.
timed_read() {
    local began=$EPOCHREALTIME
    case $2 in
    prefetched) cat mnt/file >/dev/null ;;
    large) dd if=mnt/file of=/dev/null bs=4M iflag=direct status=none ;;
    esac
    awk -v OFS='\t' -v how="$1" -v pattern="$2" -v bytes=$large -v began="$began" -v ended="$EPOCHREALTIME" \
        'BEGIN { print how, pattern, bytes, ended - began }'
}

# ---- The harness -----------------------------------------------------------------------------------------------------

measure_all() { # RESULTS ROUNDS PART...
    local results=$1 rounds=$2 part round log status failed=0
    log=$(mktemp)
    # Before it, nothing connects in a fresh machine.
    step_rping_connects_the_two_hosts_through_rdmacm >"$log" 2>&1 || { cat "$log"; return 1; }
    for ((round = 1; round <= rounds; round++)); do
        mkdir -p "$results/$round"
        for part in "${@:3}"; do
            echo "round $round of $rounds: $part"
            status=0
            timeout --kill-after=5 $part_seconds bash "$0" --part "$part" "$results/$round" >"$log" 2>&1 </dev/null || status=$?
            restore_links || echo "the links are not active again after: $part"
            ((status != 0)) || continue
            failed=$((failed + 1))
            echo "FAILED $part (exit code $status)"
            sed 's/^/    /' "$log"
        done
    done
    rm -f "$log"
    ((failed == 0))
}

if [[ ${1:-} == --part ]]; then
    run_step "measure_${2//-/_}" "$3"
else
    measure_all "$@"
fi
