#!/usr/bin/env bash
# Runs inside the machine of rdma-vm.sh, as a step of rdma-guest.sh: the commands of a guide that are marked `soft-roce`.
#
#   rdma-guide.sh GUIDE    docs/guides/rdma.md
#
# The two hosts of the guide are two addresses of this machine: node1 is 10.77.0.1 on veth0 with the card rxe0, the client 10.77.0.2 on
# veth1 with rxe1. A command must succeed; one in a block with `server` goes on until the next of its host. A block `text` is what the one
# before it prints. tests/tests/guides.rs runs the other blocks, and tells what there is.
set -euo pipefail

guide=$1
mkdir -p work/worker work/client data mnt bin
ln -sf "${FOREBAY:?the program}" bin/forebay
export PATH=$PWD/bin:$PATH
head -c 3000000 /dev/urandom >data/model.safetensors

# Emulated time is slow and memory is small. Verbs only: shared memory would reach between these two hosts.
export UCX_TLS=rc_verbs,self UCX_UD_TIMEOUT=20s FOREBAY_CONFIG=/dev/null FOREBAY_BLOCK_SIZE=1MiB FOREBAY_WRITE_MODE=none
export FOREBAY_WORKER_MEMORY_SIZE=64MiB FOREBAY_CLIENT_REQUEST_TIMEOUT=40s FOREBAY_NETWORK_RDMA_DATA_CONNECT_TIMEOUT=15s
# What is read twice comes over the cards twice.
export FOREBAY_CLIENT_LOCAL_SIZE=0
export FOREBAY_NETWORK_RDMA_DATA_FALLBACK=never FOREBAY_NETWORK_RDMA_DATA_BUFFER_POOL_INITIAL_SIZE=8MiB
# The guide's log lines and lanes are UCX's.
export FOREBAY_NETWORK_RDMA_DATA_PROVIDER=ucx
export FOREBAY_NETWORK_SHARED_MEMORY=off FOREBAY_NETWORK_RDMA_DATA_BUFFER_POOL_PREWARM_SIZE=8MiB FOREBAY_NETWORK_RDMA_DATA_BUFFER_POOL_MAX_SIZE=8MiB

declare -A names_worker=([ib0]=veth0 [mlx5_0]=rxe0) names_client=([ib0]=veth1 [mlx5_0]=rxe1)
# here HOST TEXT: with the names that things have here
here() {
    local -n names=names_$1
    local text=$2 name
    for name in "${!names[@]}"; do text=${text//"$name"/${names[$name]}}; done
    text=${text//10.1.0.1/10.77.0.1}
    text=${text//10.1.0.2/10.77.0.2}
    text=${text//"/mnt/data"/$PWD/mnt}
    echo "${text//"s3://bucket/prefix"/file://$PWD/data}"
}

# is_ready COMMAND LOG
is_ready() {
    case $1 in
    rping*) rdma resource show cm_id | grep -q 'state LISTEN' ;;
    *) grep -qE 'listening on|running on' "$2" ;;
    esac
}

server=
end_server() {
    [[ -z $server ]] && return
    kill "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
    server=
}
trap end_server EXIT

# serve HOST COMMAND
serve() {
    end_server
    echo "[$1] $2 &"
    bash -c "exec $2" >"work/$1/server.log" 2>&1 &
    server=$!
    for _ in {1..300}; do
        kill -0 "$server" || { cat "work/$1/server.log"; return 1; }
        ! is_ready "$2" "work/$1/server.log" || return 0
        sleep 0.2
    done
    cat "work/$1/server.log"
    return 1
}

kind='' host='' printed='' count=0
while IFS= read -r line; do
    case $line in
    '```') kind='' ;;
    '```'*)
        kind=${line#'```'}
        [[ $kind != *soft-roce* ]] || { printed=''; host=client; }
        [[ $kind != *worker* ]] || host=worker
        ;;
    *)
        [[ -n $kind && -n $line ]] || continue
        if [[ $kind == text && -n $printed ]]; then
            grep -qF -- "$(here "$host" "$line")" <<<"$printed" || { echo "not printed: $line"; exit 1; }
        elif [[ $kind == sh*soft-roce*server ]]; then
            serve "$host" "$(here "$host" "$line")"
            count=$((count + 1))
        elif [[ $kind == sh*soft-roce* ]]; then
            command=$(here "$host" "$line")
            echo "[$host] $command"
            printed+=$(bash -c "$command" 2>&1 </dev/null) || { echo "failed: $printed"; cat work/*/server.log; exit 1; }
            printed+=$'\n'
            count=$((count + 1))
        elif [[ $kind != text ]]; then
            printed=''
        fi
        ;;
    esac
done <"$guide"
echo "$count commands of $guide"
((count >= 10))
