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

step_the_benchmark_measures_the_caches_requests_by_either_library() {
    export UCX_TLS=rc_verbs,self UCX_UD_TIMEOUT=20s
    cd "$(mktemp -d)"
    "$FOREBAY" bench rdma --local-ip 10.77.0.1 --devices rxe0:1 --provider verbs >server.log &
    until_true grep 'Server running on 10.77.0.1:20600' server.log
    local provider
    for provider in verbs ucx; do
        "$FOREBAY" bench rdma --remote-ip 10.77.0.1 --devices rxe1:1 --case basic --provider $provider | tee $provider.log
        grep 'ALL TESTS COMPLETED' $provider.log
    done
    grep 'CACHE by verbs over rxe1' verbs.log
    if grep 'CACHE by verbs' ucx.log; then false; fi
    kill -INT $!
    wait $!
}
