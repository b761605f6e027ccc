#!/usr/bin/env bash
# Runs inside the machine of rdma-vm.sh, as root: the tests of RDMA over real verbs between two devices (Soft-RoCE).
#
#   rdma-guest.sh [STEP]...    every step, or those named: `ok STEP` or `FAILED STEP` with its output; counts at the end
#   rdma-guest.sh --brief      where the processor is emulated, those of `brief_steps`, and a line for each that is left out
#
# A step is a function `step_…`; its name, with spaces for underscores, is the sentence that it proves. It runs in a
# shell of its own, under `set -e`; when it ends, its background processes end and the links are made as they were. The
# order in the files is the order of the run. Nothing here measures: the processor is usually emulated, and so slow that
# time limits are generous.
set -euo pipefail

step_seconds=${RDMA_STEP_SECONDS:-60} # one step's limit
host0=10.77.0.1                        # rxe0 on veth0
host1=10.77.0.2                        # rxe1 on veth1

# What `make test-all`, and so CI, runs where the processor is emulated and all steps take half an hour beside other tests: a connection
# and reads that are compared to the last byte, over verbs of our own and over UCX, with and without a key; hostile peers; verbs that
# are cut and come back; a worker that is killed; which library is taken. `make test-rdma` and `make test-long` leave out nothing.
brief_steps="
    step_two_verbs_devices_are_listed
    step_both_links_are_active
    step_rping_connects_the_two_hosts_through_rdmacm
    step_verbs_traffic_crosses_the_veth_pair
    step_the_transport_suite_passes_over_verbs_of_our_own_between_two_devices
    step_the_transport_suite_passes_over_verbs_of_our_own_with_payload_in_messages
    step_whatever_a_peer_does_over_verbs_of_our_own_costs_it_its_connection_at_most
    step_a_mount_reads_every_size_from_a_worker_on_the_other_device
    step_with_the_key_of_a_cluster_each_connection_is_admitted_and_reads_go_over_verbs
    step_verbs_that_fail_cost_time_and_come_back
    step_a_worker_killed_in_the_middle_of_a_transfer_costs_no_error
    step_a_mount_reads_every_size_by_verbs_of_our_own
    step_a_card_that_is_cut_off_costs_time_and_comes_back_by_verbs_of_our_own
    step_auto_takes_verbs_where_both_ends_have_them_and_ucx_otherwise
"

# until_true COMMAND...: waits until it succeeds; the step's limit ends the wait.
until_true() { until "$@" >/dev/null 2>&1; do sleep 0.1; done; }
listens() { ss -Hltn "sport = :$1" | grep -q .; }
rdmacm_listens() { rdma resource show cm_id | grep -q 'state LISTEN'; }

# Steps of verbs of our own in workers, mounts and tools; they run last.
verbs_steps=$(dirname "$0")/rdma-guest-verbs.sh
# shellcheck source=scripts/rdma-guest-verbs.sh
source "$verbs_steps"

# ---- The machine itself ----------------------------------------------------------------------------------------------

step_two_verbs_devices_are_listed() {
    ibv_devices
    [[ $(ibv_devices | grep -cE '^ *rxe[01] ') -eq 2 ]]
}

step_both_links_are_active() {
    rdma link show
    rdma link show rxe0/1 | grep -q 'state ACTIVE .* netdev veth0'
    rdma link show rxe1/1 | grep -q 'state ACTIVE .* netdev veth1'
}

step_rping_connects_the_two_hosts_through_rdmacm() {
    local served pinged
    served=$(mktemp) pinged=$(mktemp)
    rping -s -a $host0 -C 10 -v >"$served" 2>&1 &
    until_true rdmacm_listens
    # Not by how it ends: when all is said, it may find that its own thread has closed what it waits for, and fails.
    rping -c -a $host0 -I $host1 -C 10 -v >"$pinged" 2>&1 || true
    wait $! || true
    cat "$served" "$pinged"
    grep -q 'ping data: rdma-ping-9:' "$pinged"
    grep -q 'server ping data: rdma-ping-9:' "$served"
}

# The packets must cross the pair: a short cut through lo would leave nothing to cut in the tests of fail-over.
step_verbs_traffic_crosses_the_veth_pair() {
    local before after
    before=$(cat /sys/class/net/veth0/statistics/rx_bytes)
    ibv_rc_pingpong -d rxe0 -g 1 -n 50 -s 65536 &
    until_true listens 18515
    ibv_rc_pingpong -d rxe1 -g 1 -n 50 -s 65536 $host0
    wait $!
    after=$(cat /sys/class/net/veth0/statistics/rx_bytes)
    echo "received on veth0: $((after - before)) bytes"
    ((after - before > 50 * 65536))
}

# Active messages by the transport layer itself, which needs nothing but rc_verbs …
step_ucx_sends_active_messages_over_rc_verbs() {
    ucx_perftest_between_hosts -t am_lat -x rc_verbs -D bcopy -n 100 -w 10 -s 1024
}

# … and by the protocol layer. Its test tool connects by worker address, not by rdmacm as Forebay does, which needs
# ud_verbs besides, and an old UCX to be told that a datagram's address may lie on another device of this machine.
step_ucx_moves_large_active_messages_by_rendezvous_over_rc_verbs() {
    export UCX_TLS=rc_verbs,ud_verbs:aux,self UCX_UD_VERBS_ETH_DGID_CHECK=n UCX_UD_TIMEOUT=20s
    ucx_perftest_between_hosts -t ucp_am_bw -n 5 -w 1 -s 1048576
}

ucx_perftest_between_hosts() {
    UCX_NET_DEVICES=rxe0:1 ucx_perftest -d rxe0:1 "$@" &
    until_true listens 13337
    UCX_NET_DEVICES=rxe1:1 ucx_perftest -d rxe1:1 "$@" $host0
    wait $!
}

# What the tests of fail-over build on: a connection of TCP survives, nothing comes through by verbs.
step_a_link_taken_down_stops_verbs_and_not_tcp() {
    local line
    nc -ll -p 7000 -e cat &
    until_true listens 7000
    exec 3<>/dev/tcp/$host0/7000
    echo_line() { echo "$1" >&3 && read -r -t 20 line <&3 && [[ $line == "$1" ]]; }
    echo_line 'link up'
    veth-link down 0
    rdma link show rxe0/1 | grep -q 'state DOWN'
    echo_line 'link down'
    rping -s -a $host0 -C 3 &
    until_true rdmacm_listens
    if timeout 20 rping -c -a $host0 -I $host1 -C 3; then false; fi
    veth-link up 0
    echo_line 'link up again'
    rping -c -a $host0 -I $host1 -C 3 -v
}

step_packets_can_be_delayed_and_lost() {
    tc qdisc add dev veth1 root netem delay 1ms loss 1%
    step_rping_connects_the_two_hosts_through_rdmacm
}

step_fuse_is_there_to_mount() {
    [[ -c /dev/fuse ]]
    grep -q 'fuse$' /proc/filesystems
    fusermount3 --version
}

# ---- Forebay ---------------------------------------------------------------------------------------------------------
# rdma-vm.sh passes no environment: rdma-test.sh names the programs on the command line.

step_the_doctor_finds_two_active_cards_that_ucx_offers_verbs_on() {
    local report n
    report=$("$FOREBAY" doctor --rdma-network veth0:veth1)
    echo "$report"
    for n in 0 1; do
        grep -q "ok .*rdma port-state rxe$n:1: ACTIVE" <<<"$report"
        grep -q "ok .*rdma port-address rxe$n:1: veth$n has 10.77.0.$((n + 1))/" <<<"$report"
        grep -q "ok .*rdma roce-gid rxe$n:1: RoCE v2 at index" <<<"$report"
        grep -q "ok .*ucx transports: .*rc_verbs/rxe$n:1" <<<"$report"
    done
    grep -q 'ok .*ucx rdmacm' <<<"$report"
    grep -q '^  verbs .*: rxe0, rxe1' <<<"$("$FOREBAY" version)"
}

step_every_command_of_the_guide_to_rdma_works() {
    local repository=$PWD
    cd "$(mktemp -d)"
    "$repository/scripts/rdma-guide.sh" "$repository/docs/guides/rdma.md"
}

# The fields that only netlink and libibverbs have, and a listener of rdma_cm in the way, which no table of TCP shows.
step_the_doctor_sees_what_verbs_and_rdma_cm_know() {
    local report
    rping -s -a $host0 -C 3 -p 59999 &
    until_true rdmacm_listens
    if report=$("$FOREBAY" doctor --rdma-network veth0 -o mounts=/=file:///tmp); then false; fi
    echo "$report"
    grep -q 'rdma_cm .*10.77.0.1:59999 on rxe0 rping' <<<"$report"
    grep -q 'fail .*network port network.rdma.data.port: rping' <<<"$report"
    grep -q 'rxe0 .*vendor 0x.*transport InfiniBand' <<<"$report"
    grep -q 'packets 4096 of 4096' <<<"$report"
    kill $!
}

# From the second device to a benchmark's server and to a worker on the first one, both connected to through rdma_cm.
step_the_doctor_connects_to_a_peer_by_verbs_and_measures_it() {
    local report
    make_files
    start_worker 0 29999
    "$FOREBAY" bench rdma --local-ip $host0 --devices rxe0:1 >server.log &
    until_true grep "Server running on $host0:20600" server.log
    report=$("$FOREBAY" doctor --rdma-network veth1 --peer $host0 -o network.rdma.data.connect_timeout=30s \
        -o block.size=1MiB -o client.network.data.bind.device=veth1)
    sed -n '/^Peer/,$p' <<<"$report"
    grep -q "ok .*peer worker $host0:" <<<"$report"
    grep -q "ok .*peer rdma-connect $host0 $host0:59999: connected in .*(veth1 here, veth0 there)" <<<"$report"
    grep -q "ok .*peer rdma-connect $host0 ucx: rc_verbs/rxe1:1" <<<"$report"
    grep -qE "peer bandwidth $host0 ucx: .* to it, .* from it" <<<"$report"
    grep -q "ok .*peer counted $host0 ucx: .*rxe1:1 counted" <<<"$report"
    grep -q "ok .*peer path-mtu $host0: packets of [0-9]* bytes arrive whole" <<<"$report"
    grep -q 'route .*veth1, from 10.77.0.2' <<<"$report"
}

step_the_doctor_tells_of_a_link_that_is_down() {
    local report
    veth-link down 0
    if report=$("$FOREBAY" doctor --rdma-network veth0); then false; fi
    echo "$report"
    grep -q 'fail .*rdma port-state rxe0:1: DOWN' <<<"$report"
    veth-link up 0
}

step_the_transport_suite_passes_over_rc_verbs_between_two_devices() {
    transport_suite_between_devices --skip with_proof::
}

# Each connection goes through rdmacm with its client id, and carries reads alone.
step_the_transport_suite_passes_over_rc_verbs_where_each_connection_is_admitted() {
    # Where it can write: a pipe has that function change the directory of a process of its own.
    cd "$(mktemp -d)"
    transport_suite_between_devices with_proof:: | tee suite.log
    # With another name for its module, nothing would have run.
    grep -E 'test result: ok\. [1-9][0-9]* passed' suite.log
}

# One process, two I/O threads: the server's on rxe0, the client's on rxe1.
transport_suite_between_devices() {
    cd "$(mktemp -d)"
    export FOREBAY_TEST_UCX_TLS=rc_verbs,self FOREBAY_TEST_UCX_SERVER=rxe0:1 FOREBAY_TEST_UCX_CLIENT=rxe1:1
    export FOREBAY_TEST_UCX_ADDRESS=$host0 FOREBAY_TEST_UCX_REQUIRE_RDMA=1 UCX_UD_TIMEOUT=20s
    export FOREBAY_TEST_SLOWNESS=6
    "${SUITE:?the transport suite of forebay-rdma}" --test-threads=1 "$@"
}

# Without UCX: verbs of our own, the server on rxe0 and the client on rxe1.
step_the_transport_suite_passes_over_verbs_of_our_own_between_two_devices() {
    cd "$(mktemp -d)"
    verbs_between_devices "${VERBS:?the suite of forebay-rdma over verbs}" --skip with_proof:: --skip in_messages:: \
        --skip by_threads_that_wait --skip driving:: | tee suite.log
    grep -E 'test result: ok\. [1-9][0-9]* passed' suite.log
}

# Over connections of their own, with which they wait themselves; through windows, in messages and where each is admitted.
step_the_transport_suite_passes_over_verbs_of_our_own_by_threads_that_wait() {
    cd "$(mktemp -d)"
    verbs_between_devices "${VERBS:?the suite of forebay-rdma over verbs}" by_threads_that_wait driving:: | tee suite.log
    grep -E 'test result: ok\. [1-9][0-9]* passed' suite.log
}

step_the_transport_suite_passes_over_verbs_of_our_own_where_each_connection_is_admitted() {
    cd "$(mktemp -d)"
    verbs_between_devices "${VERBS:?the suite of forebay-rdma over verbs}" with_proof:: --skip by_threads_that_wait | tee suite.log
    grep -E 'test result: ok\. [1-9][0-9]* passed' suite.log
}

# As where a client's card has no memory windows; one that has some does without them.
step_the_transport_suite_passes_over_verbs_of_our_own_with_payload_in_messages() {
    cd "$(mktemp -d)"
    verbs_between_devices "${VERBS:?the suite of forebay-rdma over verbs}" in_messages:: --skip by_threads_that_wait | tee suite.log
    grep -E 'test result: ok\. [1-9][0-9]* passed' suite.log
}

# Peers by hand, which break the protocol, offer places that are not there, and write where nothing waits for them.
step_whatever_a_peer_does_over_verbs_of_our_own_costs_it_its_connection_at_most() {
    cd "$(mktemp -d)"
    verbs_between_devices "${VERBS_HOSTILE:?the hostile peers of forebay-rdma over verbs}" --nocapture | tee suite.log
    grep -E 'test result: ok\. [1-9][0-9]* passed' suite.log
}

verbs_between_devices() { # PROGRAM [OPTION]...
    FOREBAY_TEST_VERBS=rxe0,$host0,rxe1,$host1 FOREBAY_TEST_SLOWNESS=6 "$@" --test-threads=1
}

# From here on: a worker on 10.77.0.1 and a mount on 10.77.0.2, which UCX must connect by verbs although both are on one
# machine. Buffers are small, so that every read is made of requests. What is started takes UCX unless `provider` says otherwise.
step_a_mount_reads_every_size_from_a_worker_on_the_other_device() {
    make_files
    start_worker 0 29999
    start_mount 10.77.0.1:29999 -o network.rdma.data.fallback=never
    compare_files
    grep 'RDMA client connected.*rc_verbs/rxe1:1' mount.log
    bytes_over_the_pair 20000000
}

# Without its client id a connection would not be accepted: it has to go through rdmacm, whose private data is short.
step_with_the_key_of_a_cluster_each_connection_is_admitted_and_reads_go_over_verbs() {
    local keyed
    make_files
    "$FOREBAY" key create >cluster.key
    keyed=(-o security.mode=key -o "security.key_file=$PWD/cluster.key")
    worker_options+=("${keyed[@]}")
    start_worker 0 29999
    start_mount 10.77.0.1:29999 "${keyed[@]}" -o network.rdma.data.fallback=never
    compare_files
    grep 'RDMA client connected.*rc_verbs/rxe1:1' mount.log
    bytes_over_the_pair 20000000
}

# On a device, a port and an entry of the GID table of its own: the second one is RoCE version 2 over IPv4.
step_attributes_and_listings_go_over_verbs_when_they_are_asked_to() {
    make_files
    local metadata=(-o network.rdma.metadata.enabled=true -o network.rdma.metadata.gid_index=1)
    worker_options+=("${metadata[@]}" -o network.rdma.metadata.device=rxe0)
    start_worker 0 29999
    grep 'RDMA server listening.*10.77.0.1:29995.*rxe0:1 metadata' worker0.log
    start_mount 10.77.0.1:29999 "${metadata[@]}" -o network.rdma.metadata.device=rxe1
    compare_files
    "$FOREBAY" stats mnt --all --json | tail -1 | tee stats
    grep '"metadata":\[{"path":"rxe1:1 metadata to rxe0:1","rdma":true,"up":true}' stats
    grep '"tcp":{"bytes_received":0,"calls":0' stats
}

step_two_cards_on_either_side_share_the_requests() {
    make_files
    "$FOREBAY" worker --rdma-network veth0:veth1 "${worker_options[@]}" -o worker.rpc.port=29999 \
        -o network.rdma.data.provider=ucx 2>worker.log &
    until_true grep 'worker listening' worker.log
    rdma_network=veth1:veth0 start_mount 10.77.0.1:29999 -o network.rdma.data.fallback=never
    compare_files
    grep -c 'RDMA client connected' mount.log | grep -x 2
}

step_large_reads_are_striped_over_two_pairs_of_which_one_has_a_quarter_and_then_dies() {
    striped_over_two_pairs
}

step_verbs_that_fail_cost_time_and_come_back() {
    make_files
    start_worker 0 29999
    start_mount 10.77.0.1:29999 -o network.rdma.data.retry_duration=3s -o log.level=debug
    compare_files
    (sleep 1 && verbs_cut) &
    compare_files
    wait $!
    compare_files
    grep 'RDMA failed, falling back to TCP' mount.log
    verbs_restore
    for _ in {1..20}; do
        compare_files
        ! grep 'RDMA is back' mount.log || break
        sleep 1
    done
    grep 'RDMA is back' mount.log
    bytes_over_the_pair 20000000
}

step_with_never_verbs_that_fail_are_an_error_and_nothing_hangs() {
    make_files
    start_worker 0 29999
    start_mount 10.77.0.1:29999 -o network.rdma.data.fallback=never -o network.rdma.data.retry_duration=2s
    compare_files
    verbs_cut
    drop_caches
    if timeout 50 cat mnt/20000000 >/dev/null; then false; else [[ $? -ne 124 ]]; fi
    grep 'allows nothing else' mount.log
    verbs_restore
    until_true compare_files
}

step_a_worker_killed_in_the_middle_of_a_transfer_costs_no_error() {
    make_files
    start_worker 0 29999
    start_worker 1 29998
    start_mount 10.77.0.1:29999,10.77.0.1:29998 -o client.retry.max_backoff=1s
    compare_files
    (sleep 1 && kill -9 "$(<worker1.pid)") &
    compare_files
    compare_files
    wait $!
}

# Over TCP, the kernel sends from a worker's memory only to who is not in the same kernel: here, by cards that QEMU joins, and whose
# second is in a network of its own. Some packets are lost, and sent again from that memory: had it been given to other bytes meanwhile,
# those would arrive.
step_large_payloads_leave_over_tcp_from_where_they_lie_and_arrive_whole_though_packets_are_lost() {
    cd "$(mktemp -d)"
    modprobe e1000
    trap 'ip netns del far || true; modprobe -r e1000 || true' EXIT
    ip netns add far
    ip link set eth1 netns far
    ip addr add 10.78.0.1/24 dev eth0
    ip link set eth0 up
    ip -n far addr add 10.78.0.2/24 dev eth1
    ip -n far link set lo up
    ip -n far link set eth1 up
    until_true ping -c 1 -W 1 10.78.0.2
    tc qdisc add dev eth0 root netem loss 4%
    export FOREBAY_TEST_ZERO_COPY_DEVICE="10.78.0.1 /run/netns/far" FOREBAY_TEST_SLOWNESS=6
    "${ZERO_COPY:?the tests of zero-copy sends of forebay-tcp}" --include-ignored through_a_device | tee log
    grep '1 passed' log
    tc -s qdisc show dev eth0 | tee lost
    grep -E 'dropped [1-9]' lost
}

# Root may lock what it likes; others are told before they begin.
step_a_user_who_may_lock_too_little_memory_is_told_the_remedy() {
    make_files
    chmod 777 .
    if setpriv --reuid=65534 --regid=65534 --clear-groups bash -c "ulimit -l 64; exec '$FOREBAY' worker --rdma-network veth0 \
        ${worker_options[*]} -o worker.rpc.port=29999" 2>refused.log; then false; fi
    cat refused.log
    grep 'RDMA cannot be had' refused.log
    grep 'ulimit -l' refused.log
}

step_the_benchmark_verifies_every_byte_over_verbs() {
    export UCX_TLS=rc_verbs,self UCX_UD_TIMEOUT=20s
    cd "$(mktemp -d)"
    "$FOREBAY" bench rdma --local-ip 10.77.0.1 --devices rxe0:1 >server.log &
    until_true grep 'Server running on 10.77.0.1:20600' server.log
    "$FOREBAY" bench rdma --remote-ip 10.77.0.1 --devices rxe1:1 --case basic | tee client.log
    grep 'rc_verbs/rxe1:1' client.log
    grep 'ALL TESTS COMPLETED' client.log
    kill -INT $!
    wait $!
}

# Loses every packet of RoCE (UDP port 4791) between the devices, and none of TCP. Not by taking the link down: after that,
# the kernel's Soft-RoCE (6.1) connects nothing any more, if something was under way; rping fails, too.
verbs_cut() {
    local device
    for device in veth0 veth1; do
        tc qdisc add dev $device root handle 1: prio priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
        tc qdisc add dev $device parent 1:3 netem loss 100%
        tc filter add dev $device parent 1: protocol ip u32 match ip dport 4791 0xffff flowid 1:3
    done
}
verbs_restore() { for device in veth0 veth1; do tc qdisc del dev $device root; done; }

# second_pair [TYPE]: a second pair of devices, of Soft-RoCE unless said otherwise, in a subnet of its own, with routes as the first one
# has them (rdma-vm.sh): rxe2 on veth2 is 10.77.1.1, rxe3 on veth3 is 10.77.1.2. `restore_links` takes it away.
second_pair() {
    local device type=${1:-rxe}
    ip link add veth2 mtu 9000 type veth peer name veth3 mtu 9000
    ip addr add 10.77.1.1/24 dev veth2
    ip addr add 10.77.1.2/24 dev veth3
    ip rule add pref 12 iif lo from 10.77.1.1 to 10.77.1.1 lookup local
    ip rule add pref 13 iif lo from 10.77.1.2 to 10.77.1.2 lookup local
    ip rule add pref 22 iif lo to 10.77.1.2 lookup 103
    ip rule add pref 23 iif lo to 10.77.1.1 lookup 104
    rdma link add "${type}2" type "$type" netdev veth2
    rdma link add "${type}3" type "$type" netdev veth3
    for device in veth2 veth3; do ip link set $device up; done
    ip route replace 10.77.1.2 dev veth2 src 10.77.1.1 table 103
    ip route replace 10.77.1.1 dev veth3 src 10.77.1.2 table 104
    for device in "${type}2" "${type}3"; do until_true is_active "$device"; done
}
is_active() { rdma link show "$1/1" | grep -q 'state ACTIVE'; }

# What the worker sends over the first pair is held to 32 Mbit/s, over the second one to a quarter of that: far less than even an
# emulated processor moves, so that it is the pairs that are slow. The queues are long: nothing is lost.
two_speeds() {
    tc qdisc replace dev veth0 root netem rate 32mbit limit 100000
    tc qdisc replace dev veth2 root netem rate 8mbit limit 100000
}

# Blocks of 4 MiB, which are worth dividing, and a file of ten of them. A mount reads what the worker has; then the slow pair loses
# every packet in the middle of reading.
striped_over_two_pairs() {
    local data=/tmp/striped fast slow
    export UCX_TLS=rc_verbs,self UCX_UD_TIMEOUT=20s
    cd "$(mktemp -d)"
    trap 'cat ./*.log; umount -l mnt 2>/dev/null || true' ERR
    mkdir -p $data
    [[ -f $data/file ]] || head -c 40000000 /dev/urandom >$data/file
    second_pair
    striped_worker $data
    striped_mount
    cmp $data/file mnt/file
    umount mnt
    until_true is_free mnt
    two_speeds
    striped_mount
    cmp $data/file mnt/file
    "$FOREBAY" stats mnt --all --json | tail -1 | tee stats
    grep -E '"striping":\{[^}]*"reads":[1-9]' stats
    fast=$(received_over veth1) slow=$(received_over veth3)
    echo "received: $fast bytes over the fast pair, $slow over the slow one"
    ((fast > 2 * slow && slow > 1000000))
    umount mnt
    until_true is_free mnt
    striped_mount
    (sleep 2 && tc qdisc replace dev veth2 root netem loss 100%) &
    cmp $data/file mnt/file
    wait $!
    drop_caches
    cmp $data/file mnt/file
    grep 'RDMA path failed, the others are used' mount.log
    umount mnt
}
is_free() { ! mountpoint -q "$1"; }
received_over() { grep -oE "\"bytes_received\":[0-9]+,\"card\":\"$1[ \"]" stats | head -1 | grep -oE '[0-9]+' | head -1; }

# striped_worker DIRECTORY [OPTION]...: one worker with a card of either pair.
striped_worker() {
    "$FOREBAY" worker --rdma-network veth0:veth2 -o mounts=/=file://"$1" -o worker.rpc.bind.host=10.77.0.1 \
        -o worker.rpc.port=29999 -o worker.memory.size=128MiB -o security.mode=off \
        -o "network.rdma.data.provider=${provider:-ucx}" "${@:2}" 2>worker.log &
    until_true grep 'worker listening' worker.log
}

# Both mounts materialise nothing: in a machine with more memory the kernel would read by itself what is read twice, and nothing would
# come over the cards.
striped_mount() { # [OPTION]...
    mkdir -p mnt
    drop_caches
    "$FOREBAY" mount mnt --foreground --workers 10.77.0.1:29999 --rdma-network "${rdma_network:-veth1:veth3}" \
        -o client.request_timeout=50s \
        -o network.rdma.data.buffer_pool.initial_size=64MiB -o network.rdma.data.buffer_pool.prewarm_size=8MiB \
        -o network.rdma.data.buffer_pool.max_size=64MiB -o network.rdma.data.connect_timeout=45s \
        -o network.shared_memory=off -o network.rdma.data.fallback=never -o client.local.size=0 \
        -o "network.rdma.data.provider=${provider:-ucx}" "$@" 2>mount.log &
    until_true mountpoint -q mnt
}

worker_options=(-o mounts=/=file:///tmp/data -o worker.rpc.bind.host=10.77.0.1 -o worker.memory.size=64MiB
    -o block.size=1MiB -o security.mode=off)

# start_worker NUMBER PORT
start_worker() {
    rm -f "worker$1.log" # another one of this number may have listened before
    "$FOREBAY" worker --rdma-network veth0 "${worker_options[@]}" -o worker.rpc.port="$2" \
        -o network.rdma.data.port=$((59999 - $1)) -o "network.rdma.data.provider=${provider:-ucx}" 2>"worker$1.log" &
    echo $! >"worker$1.pid"
    until_true grep 'worker listening' "worker$1.log"
}

# start_mount WORKERS OPTION...: on ./mnt, by verbs of veth1.
start_mount() {
    mkdir -p mnt
    "$FOREBAY" mount mnt --foreground --workers "$1" --rdma-network "${rdma_network:-veth1}" -o block.size=1MiB \
        -o network.rdma.data.buffer_pool.initial_size=8MiB -o network.rdma.data.buffer_pool.prewarm_size=8MiB \
        -o network.rdma.data.buffer_pool.max_size=8MiB -o client.request_timeout=40s \
        -o network.rdma.data.connect_timeout=45s -o network.shared_memory=off -o client.local.size=0 \
        -o "network.rdma.data.provider=${provider:-ucx}" "${@:2}" 2>mount.log &
    until_true mountpoint -q mnt
}

# Every size class: nothing, parts of sectors, sectors, blocks and over their ends.
make_files() {
    export UCX_TLS=rc_verbs,self UCX_UD_TIMEOUT=20s
    cd "$(mktemp -d)"
    trap 'cat ./*.log; umount -l mnt 2>/dev/null || true' ERR
    mkdir -p /tmp/data
    local size
    for size in 0 1 4095 4096 32768 32769 1048575 1048576 1048577 20000000; do
        [[ -f /tmp/data/$size ]] || head -c $size /dev/urandom >"/tmp/data/$size"
    done
}

drop_caches() { echo 3 >/proc/sys/vm/drop_caches; }

compare_files() {
    local file
    drop_caches
    for file in /tmp/data/*; do cmp "$file" "mnt/${file##*/}"; done
}

# bytes_over_the_pair N: reading everything takes at least N bytes over the link between the devices.
bytes_over_the_pair() {
    local before after
    before=$(</sys/class/net/veth1/statistics/rx_bytes)
    compare_files
    after=$(</sys/class/net/veth1/statistics/rx_bytes)
    echo "received on veth1: $((after - before)) bytes"
    ((after - before >= $1))
}

# ---- The harness -----------------------------------------------------------------------------------------------------

run_step() {
    set -E
    trap 'echo "line $LINENO failed: $BASH_COMMAND"' ERR
    trap 'jobs -p | xargs -r kill 2>/dev/null || true' EXIT
    "$@"
}

# What a step did to the links does not reach the next one, however it ended.
restore_links() {
    local n
    sysctl -qw net.ipv4.tcp_syn_retries=6
    for n in 0 1; do
        if tc qdisc show dev veth$n | grep -qE 'netem|prio'; then tc qdisc del dev veth$n root; fi
    done
    if [[ -e /sys/class/net/veth2 ]]; then
        ip link del veth2
        for n in 12 13 22 23; do ip rule del pref $n 2>/dev/null || true; done
    fi
    for n in 0 1; do
        if [[ $(<"/sys/class/net/veth$n/operstate") != up ]]; then veth-link up $n; fi
    done
}

main() {
    local steps step name log status start is_brief="" passed=0 failed=0
    mapfile -t steps < <(sed -nE 's/^(step_[a-z0-9_]+)\(\) \{$/\1/p' "$0" "$verbs_steps")
    if [[ ${1:-} == --brief ]]; then
        shift
        [[ ${RDMA_VM_EMULATED:-} != yes ]] || is_brief=yes
        # A step that was given another name would be left out without a word.
        for step in $brief_steps; do
            declare -F "$step" >/dev/null || { echo "there is no $step"; return 1; }
        done
    fi
    (($# == 0)) || steps=("$@")
    log=$(mktemp)
    for step in "${steps[@]}"; do
        name=${step#step_}
        name=${name//_/ }
        if [[ -n $is_brief && $brief_steps != *[[:space:]]"$step"[[:space:]]* ]]; then
            echo "skipped: RDMA, \"$name\": the processor is emulated; make test-rdma and make test-long run it"
            continue
        fi
        start=$SECONDS
        status=0
        # A process of its own: `set -e` would not hold in a function whose status is looked at. --kill-after: a process
        # stuck in the verbs does not always heed the first signal.
        timeout --kill-after=5 "$step_seconds" bash "$0" --run-step "$step" >"$log" 2>&1 </dev/null || status=$?
        restore_links || echo "the links are not active again after: $name"
        if ((status == 0)); then
            passed=$((passed + 1))
            echo "ok $name ($((SECONDS - start)) s)"
            # What of it this machine cannot have.
            grep '^skipped: ' "$log" || true
        else
            failed=$((failed + 1))
            echo "FAILED $name (exit code $status after $((SECONDS - start)) s)"
            sed 's/^/    /' "$log"
        fi
    done
    rm -f "$log"
    echo "$passed passed, $failed failed"
    ((failed == 0))
}

# rdma-guest-bench.sh reads this for what steps call.
[[ ${BASH_SOURCE[0]} == "$0" ]] || return 0
if [[ ${1:-} == --run-step ]]; then run_step "$2"; else main "$@"; fi
