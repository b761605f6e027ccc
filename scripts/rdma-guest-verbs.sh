# shellcheck shell=bash
# Steps of rdma-guest.sh, which reads this and has what they call: workers, mounts and tools by verbs of our own
# (`network.rdma.data.provider`), between the same two devices.
# shellcheck disable=SC2034,SC2154 # both files have variables of the other

# There is no libucp for these.
step_a_mount_reads_every_size_by_verbs_of_our_own() {
    local provider=verbs none=(-o ucx.library=/nonexistent/libucp.so.0)
    make_files
    worker_options+=("${none[@]}")
    start_worker 0 29999
    grep 'RDMA server listening by verbs.*10.77.0.1:59999' worker0.log
    start_mount 10.77.0.1:29999 "${none[@]}" -o network.rdma.data.fallback=never
    compare_files
    grep 'RDMA client connected by verbs' mount.log
    "$FOREBAY" stats mnt --all --json | tail -1 | tee stats
    grep '"data":\[{"path":"veth1 verbs to veth0","rdma":true,"up":true}' stats
    bytes_over_the_pair 20000000
}

# Warm blocks are read from the worker's memory by the mount's card; the worker is asked for what is cold, and once a second.
step_warm_blocks_are_read_without_the_worker() {
    local provider=verbs one_sided=(-o network.rdma.data.one_sided=true)
    make_files
    worker_options+=("${one_sided[@]}")
    start_worker 0 29999
    start_mount 10.77.0.1:29999 "${one_sided[@]}" -o network.rdma.data.fallback=never
    for _ in {1..30}; do
        compare_files
        "$FOREBAY" stats mnt --all --json | tail -1 >stats
        ! grep -E '"one_sided_reads":[1-9]' stats || break
    done
    grep -E '"one_sided_reads":[1-9]' stats
}

step_with_the_key_of_a_cluster_connections_by_verbs_of_our_own_are_admitted() {
    local provider=verbs keyed
    make_files
    "$FOREBAY" key create >cluster.key
    keyed=(-o security.mode=key -o "security.key_file=$PWD/cluster.key")
    worker_options+=("${keyed[@]}")
    start_worker 0 29999
    start_mount 10.77.0.1:29999 "${keyed[@]}" -o network.rdma.data.fallback=never
    compare_files
    grep 'RDMA client connected by verbs' mount.log
}

step_attributes_and_listings_go_by_verbs_of_our_own() {
    local provider=verbs metadata=(-o network.rdma.metadata.enabled=true)
    make_files
    worker_options+=("${metadata[@]}" -o network.rdma.metadata.device=rxe0)
    start_worker 0 29999
    grep 'RDMA server listening by verbs.*10.77.0.1:29995.*rxe0:1 verbs metadata' worker0.log
    start_mount 10.77.0.1:29999 "${metadata[@]}" -o network.rdma.metadata.device=rxe1
    compare_files
    "$FOREBAY" stats mnt --all --json | tail -1 | tee stats
    grep '"metadata":\[{"path":"rxe1:1 verbs metadata to rxe0:1","rdma":true,"up":true}' stats
    grep '"tcp":{"bytes_received":0,"calls":0' stats
}

step_two_cards_on_either_side_share_the_requests_by_verbs_of_our_own() {
    local provider=verbs
    make_files
    "$FOREBAY" worker --rdma-network veth0:veth1 "${worker_options[@]}" -o worker.rpc.port=29999 \
        -o network.rdma.data.provider=verbs 2>worker.log &
    until_true grep 'worker listening' worker.log
    rdma_network=veth1:veth0 start_mount 10.77.0.1:29999 -o network.rdma.data.fallback=never
    compare_files
    grep -c 'RDMA client connected by verbs' mount.log | grep -x 2
}

step_large_reads_are_striped_by_verbs_of_our_own_over_two_pairs_of_which_one_has_a_quarter_and_then_dies() {
    local provider=verbs
    striped_over_two_pairs
}

step_a_card_that_is_cut_off_costs_time_and_comes_back_by_verbs_of_our_own() {
    local provider=verbs
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

step_a_worker_killed_in_the_middle_of_a_transfer_costs_no_error_by_verbs_of_our_own() {
    local provider=verbs
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

# One worker has both libraries, and listens by verbs at a free port; the other has UCX alone. The mount has both.
step_auto_takes_verbs_where_both_ends_have_them_and_ucx_otherwise() {
    make_files
    provider=auto start_worker 0 29999
    grep 'RDMA server listening by verbs' worker0.log
    grep 'RDMA server listening .*10.77.0.1:59999' worker0.log
    provider=ucx start_worker 1 29998
    provider=auto start_mount 10.77.0.1:29999,10.77.0.1:29998 -o network.rdma.data.fallback=never
    compare_files
    grep 'RDMA client connected by verbs' mount.log
    grep 'RDMA client connected.*rc_verbs/rxe1:1' mount.log
}

step_the_doctor_connects_to_a_worker_by_verbs_of_our_own() {
    local report provider=verbs
    make_files
    start_worker 0 29999
    # Without a benchmark's server it measures nothing, and says so.
    report=$("$FOREBAY" doctor --rdma-network veth1 --peer $host0 -o network.rdma.data.connect_timeout=30s \
        -o block.size=1MiB -o client.network.data.bind.device=veth1) || true
    sed -n '/^Peer/,$p' <<<"$report"
    grep -q "ok .*peer worker-rdma $host0: verbs, 1 card" <<<"$report"
    grep -q "ok .*peer rdma-connect $host0 $host0:59999: connected in .*(veth1 here, veth0 there by verbs)" <<<"$report"
}

# The worker's packets are no larger than the mount wants them, and have the DSCP that it was told: those of data that do are counted.
# The mount's queue pair is brought up by ourselves for its limit and service level, the worker's for the limit of its client.
step_settings_of_the_fabric_reach_the_packets_of_verbs_of_our_own() {
    local provider=verbs fabric before after packets
    make_files
    fabric=(-o network.rdma.data.gid_index=1 -o network.rdma.data.traffic_class=104 -o network.rdma.data.ack_timeout=2s
        -o network.rdma.data.retry_count=6 -o network.rdma.data.rnr_retry_count=3)
    worker_options+=("${fabric[@]}")
    start_worker 0 29999
    start_mount 10.77.0.1:29999 "${fabric[@]}" -o network.rdma.data.mtu=1024 -o network.rdma.data.service_level=3 \
        -o network.rdma.data.fallback=never
    compare_files
    grep 'RDMA client connected by verbs' mount.log
    tc qdisc add dev veth0 root handle 1: prio priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
    tc filter add dev veth0 parent 1: protocol ip u32 match ip dport 4791 0xffff match ip tos 0x68 0xfc flowid 1:3
    before=$(</sys/class/net/veth1/statistics/rx_bytes) packets=$(</sys/class/net/veth1/statistics/rx_packets)
    compare_files
    after=$(</sys/class/net/veth1/statistics/rx_bytes)
    packets=$(($(</sys/class/net/veth1/statistics/rx_packets) - packets))
    echo "$((after - before)) bytes in $packets packets"
    ((after - before > 20000000 && (after - before) / packets < 1200))
    tc -s class show dev veth0 classid 1:3 | tee marked
    (($(sed -nE 's/.*Sent ([0-9]+) bytes.*/\1/p' marked) > 20000000))
}

# The first entry is made of no address, so rdma_cm never takes it; with both libraries UCX does.
step_an_entry_of_the_table_of_gids_that_rdma_cm_never_takes_is_refused_by_verbs_of_our_own() {
    make_files
    worker_options+=(-o network.rdma.data.gid_index=0)
    if "$FOREBAY" worker --rdma-network veth0 "${worker_options[@]}" -o worker.rpc.port=29999 \
        -o network.rdma.data.provider=verbs 2>refused.log; then false; fi
    cat refused.log
    grep 'made of no address that can be connected to' refused.log
}

# Nothing is acknowledged: the card gives up after the attempts that it was told, and the reader goes on over TCP.
step_a_card_that_was_told_to_try_twice_gives_up_and_tcp_takes_over_from_verbs_of_our_own() {
    local provider=verbs
    make_files
    start_worker 0 29999
    start_mount 10.77.0.1:29999 -o network.rdma.data.ack_timeout=250ms -o network.rdma.data.retry_count=1
    compare_files
    verbs_cut
    compare_files
    grep 'RDMA failed, falling back to TCP' mount.log
    verbs_restore
}

step_the_doctor_says_of_each_card_what_is_possible_by_verbs_of_our_own() {
    local report n
    report=$("$FOREBAY" doctor --rdma-network veth0:veth1 -o network.rdma.data.gid_index=1)
    echo "$report"
    for n in 0 1; do
        grep -q "ok .*rdma provider rxe$n:1: verbs" <<<"$report"
        grep -q "ok .*rdma verbs-gid rxe$n:1: entry 1" <<<"$report"
        grep -q "info .*rdma one-sided rxe$n:1: possible, and off" <<<"$report"
    done
    grep -q 'rxe0 .*memory windows' <<<"$report"
}

# READ and WRITE are the cards', by queue pairs of the benchmark's own; UCX is not even loaded by this client.
step_the_benchmark_verifies_every_byte_by_verbs_of_our_own() {
    cd "$(mktemp -d)"
    "$FOREBAY" bench rdma --local-ip 10.77.0.1 --devices rxe0:1 --provider verbs --transport tcp >server.log &
    until_true grep 'Server running on 10.77.0.1:20600' server.log
    "$FOREBAY" bench rdma --remote-ip 10.77.0.1 --devices rxe1:1 --case basic --provider verbs \
        -o ucx.library=/nonexistent/libucp.so.0 | tee client.log
    grep 'Verbs over rxe1: READ and WRITE' client.log
    grep 'BASIC - WRITE' client.log
    grep 'BASIC - READ' client.log
    grep 'BASIC - SEAL' client.log
    grep 'ALL TESTS COMPLETED' client.log
    kill -INT $!
    wait $!
}

step_the_benchmark_has_both_libraries_side_by_side() {
    export UCX_TLS=rc_verbs,self UCX_UD_TIMEOUT=20s
    cd "$(mktemp -d)"
    "$FOREBAY" bench rdma --local-ip 10.77.0.1 --devices rxe0:1 --provider verbs >server.log &
    until_true grep 'Server running on 10.77.0.1:20600' server.log
    "$FOREBAY" bench rdma --remote-ip 10.77.0.1 --devices rxe1:1 --case latency --size 64 --iters 20 --provider both | tee both.log
    grep -E '^#kind +#bytes +verbs +ucx +ucx/verbs$' both.log
    grep -E '^READ +64 ' both.log
    kill -INT $!
    wait $!
}

# From here on: Soft-iWARP, which binds no memory windows of type 2. Payload comes in messages there.
has_iwarp() { modprobe siw 2>/dev/null && [[ -d /sys/module/siw ]]; }
no_iwarp='skipped: RDMA, iWARP: this kernel has no siw'

# The worker's card is siw2, the mount's siw3; TCP goes over the first pair. Soft-iWARP waits in the kernel until its TCP has connected, so
# that gives up early here.
iwarp_worker() {
    sysctl -qw net.ipv4.tcp_syn_retries=1
    "$FOREBAY" worker --rdma-network veth2 "${worker_options[@]}" -o worker.rpc.port=29999 \
        -o network.rdma.data.provider=verbs 2>worker.log &
    until_true grep 'worker listening' worker.log
    grep 'RDMA server listening by verbs.*10.77.1.1:59999' worker.log
}

step_the_transport_suite_passes_over_cards_of_iwarp() {
    cd "$(mktemp -d)"
    has_iwarp || { echo "$no_iwarp"; return 0; }
    second_pair siw
    FOREBAY_TEST_VERBS=siw2,10.77.1.1,siw3,10.77.1.2 FOREBAY_TEST_SLOWNESS=6 \
        "${VERBS:?the suite of forebay-rdma over verbs}" --test-threads=1 as_it_is:: with_proof:: | tee suite.log
    grep -E 'test result: ok\. [1-9][0-9]* passed' suite.log
}

step_payload_in_messages_reaches_no_memory_that_it_may_not_over_cards_of_iwarp() {
    cd "$(mktemp -d)"
    has_iwarp || { echo "$no_iwarp"; return 0; }
    second_pair siw
    FOREBAY_TEST_VERBS=siw2,10.77.1.1,siw3,10.77.1.2 FOREBAY_TEST_SLOWNESS=6 \
        "${VERBS_HOSTILE:?the hostile peers of forebay-rdma over verbs}" --test-threads=1 --nocapture messages:: | tee suite.log
    grep -E 'test result: ok\. [1-9][0-9]* passed' suite.log
}

step_a_mount_reads_every_size_over_cards_of_iwarp() {
    local provider=verbs
    has_iwarp || { echo "$no_iwarp"; return 0; }
    make_files
    second_pair siw
    "$FOREBAY" doctor --rdma-network veth2 -o network.rdma.data.provider=verbs >doctor.log || true
    cat doctor.log
    grep 'rdma kind siw2:1: iWARP: by verbs alone' doctor.log
    grep 'rdma provider siw2:1: verbs, .* comes in messages' doctor.log
    iwarp_worker
    rdma_network=veth3 start_mount 10.77.0.1:29999 -o network.rdma.data.fallback=never
    compare_files
    grep 'RDMA client connected by verbs.*siw3.*in messages' mount.log
    "$FOREBAY" stats mnt --all --json | tail -1 | tee stats
    grep '"data":\[{"path":"veth3 verbs to veth2","rdma":true,"up":true}' stats
    # All of the largest file but its beginning, which the kernel has read ahead in small pieces.
    grep -E '"bytes_in_messages":[1-9][0-9]{7}' stats
}

# Nothing that was sent is acknowledged, and no card says so: silence ends the connection.
step_a_card_of_iwarp_that_is_cut_off_costs_time_and_tcp_takes_its_place() {
    local provider=verbs
    has_iwarp || { echo "$no_iwarp"; return 0; }
    make_files
    second_pair siw
    iwarp_worker
    rdma_network=veth3 start_mount 10.77.0.1:29999
    compare_files
    (sleep 1 && tc qdisc add dev veth2 root netem loss 100%) &
    compare_files
    wait $!
    compare_files
    grep 'RDMA failed, falling back to TCP' mount.log
}

step_the_benchmark_measures_the_cache_over_cards_of_iwarp() {
    has_iwarp || { echo "$no_iwarp"; return 0; }
    cd "$(mktemp -d)"
    second_pair siw
    "$FOREBAY" bench rdma --local-ip 10.77.1.1 --devices siw2:1 --provider verbs --transport tcp >server.log &
    until_true grep 'Server running on 10.77.1.1:20600' server.log
    "$FOREBAY" bench rdma --remote-ip 10.77.1.1 --devices siw3:1 --case basic --provider verbs | tee client.log
    grep 'No READ, WRITE and SEAL' client.log
    grep 'BASIC - CACHE' client.log
    grep 'ALL TESTS COMPLETED' client.log
    kill -INT $!
    wait $!
}
