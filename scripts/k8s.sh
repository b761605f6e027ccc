# Sourced by scripts/k8s-test.sh, within namespaces of its own: a Kubernetes of one node. API server, controllers, scheduler and
# kubelet are real; containerd, runc, CNI plugins and etcd are Debian's. There is no kube-proxy: names of Services are the
# addresses of their pods (tests/k8s/dns.py), and the address of the API server's own Service is one of this host.
#
# `rig` is the directory of it, `tools` that of scripts/k8s-tools.sh. Everything that it starts ends with the process namespace.

node_address=10.89.0.1
api_address=10.96.0.1
dns_address=10.96.0.10
api=https://$node_address
node=node1

# rig_start NAME COMMAND...: in the background, with a log.
rig_start() {
    local name=$1
    shift
    "$@" >"$rig/logs/$name.log" 2>&1 </dev/null &
}

# What went wrong, as far as logs tell.
rig_logs() {
    local log
    for log in "$rig"/logs/*.log; do
        echo "== ${log##*/}"
        tail -n "${1:-15}" "$log"
    done
}

# eventually SECONDS WHAT COMMAND...
eventually() {
    local deadline=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        if ((SECONDS >= deadline)); then
            echo "waited in vain for: $what" >&2
            return 1
        fi
        sleep 0.3
    done
}

# The API server, asked as its admin: kube PATH [CURL OPTION...].
kube() {
    local path=$1
    shift
    curl --silent --show-error --fail-with-body --max-time 60 --cacert "$rig/pki/ca.crt" \
        --header "Authorization: Bearer $(<"$rig/pki/token")" "$@" "$api/$path"
}

# kube_apply PATH [QUERY]: what is on standard input, by server-side apply.
kube_apply() {
    kube "$1?fieldManager=test&force=true${2:+&$2}" --request PATCH \
        --header 'Content-Type: application/apply-patch+yaml' --data-binary @-
}

# kube_is PATH FILTER: whether jq's filter is true of an object.
kube_is() { kube "$1" | jq --exit-status "$2" >/dev/null; }

rig_network() {
    ip link set lo up
    # A bridge, as CNI needs them, too; it has no ports.
    ip link add node0 type bridge
    ip address add "$node_address/24" dev node0
    ip address add "$api_address/32" dev node0
    ip address add "$dns_address/32" dev node0
    ip link set node0 up
    echo 1 >/proc/sys/net/ipv4/ip_forward
    echo "nameserver $dns_address" >"$rig/resolv.conf"
    mkdir -p "$rig/containerd/cni"
    cat >"$rig/containerd/cni/10-rig.conflist" <<EOF
{"cniVersion": "0.4.0", "name": "rig", "plugins": [{
  "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "dataDir": "$rig/containerd/addresses", "ranges": [[{"subnet": "10.88.0.0/16"}]],
           "routes": [{"dst": "0.0.0.0/0"}]}}]}
EOF
}

# Mounts of pods are seen by others only below what is shared; what parts of it write elsewhere stays here.
rig_mounts() {
    local directory
    mount --make-rshared /
    for directory in /run /mnt /var/log /var/lib/cni; do
        mount -t tmpfs -o mode=755 tmpfs "$directory"
    done
    mkdir -p "$rig/kubelet"
    mount --bind "$rig/kubelet" "$rig/kubelet"
    mount --make-rshared "$rig/kubelet"
}

rig_identities() {
    local key=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2)
    local names="subjectAltName=IP:$node_address,IP:$api_address,DNS:kubernetes.default.svc"
    mkdir -p "$rig/pki"
    (
        cd "$rig/pki"
        openssl req -x509 "${key[@]}" -subj /CN=rig -keyout ca.key -out ca.crt
        openssl req "${key[@]}" -subj /CN=apiserver -keyout api.key -out api.csr
        openssl x509 -req -in api.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile <(echo "$names") -out api.crt
        openssl genrsa -out accounts.key 2048
        openssl rand -hex 16 >token
        echo "$(<token),admin,admin,system:masters" >tokens
    ) 2>"$rig/logs/openssl.log"
    cat >"$rig/kubeconfig" <<EOF
apiVersion: v1
kind: Config
current-context: rig
contexts: [{name: rig, context: {cluster: rig, user: admin}}]
clusters: [{name: rig, cluster: {server: "$api", certificate-authority: $rig/pki/ca.crt}}]
users: [{name: admin, user: {token: "$(<"$rig/pki/token")"}}]
EOF
}

# configured FILE: one of tests/k8s/, with the directory of the rig.
configured() {
    sed "s|@RIG@|$rig|g" "tests/k8s/$1" >"$rig/$1"
    echo "$rig/$1"
}

rig_control_plane() {
    local of=$tools/kubernetes
    rig_start etcd etcd --data-dir "$rig/etcd" --listen-client-urls http://127.0.0.1:2379 \
        --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380
    eventually 60 "the etcd of the API server" curl --silent --fail http://127.0.0.1:2379/health
    rig_start apiserver "$of/kube-apiserver" --etcd-servers http://127.0.0.1:2379 --secure-port 443 \
        --advertise-address "$node_address" --tls-cert-file "$rig/pki/api.crt" --tls-private-key-file "$rig/pki/api.key" \
        --token-auth-file "$rig/pki/tokens" --authorization-mode RBAC --allow-privileged \
        --kubelet-preferred-address-types InternalIP \
        --service-account-issuer https://kubernetes.default.svc --service-account-key-file "$rig/pki/accounts.key" \
        --service-account-signing-key-file "$rig/pki/accounts.key" --service-cluster-ip-range 10.96.0.0/16
    eventually 120 "the API server" kube readyz
    rig_start controllers "$of/kube-controller-manager" --kubeconfig "$rig/kubeconfig" --leader-elect=false \
        --root-ca-file "$rig/pki/ca.crt" --service-account-private-key-file "$rig/pki/accounts.key"
    rig_start scheduler "$of/kube-scheduler" --kubeconfig "$rig/kubeconfig" --leader-elect=false
    rig_start dns tests/k8s/dns.py "$dns_address" "$api" "$rig/pki/ca.crt" "$(<"$rig/pki/token")"
}

containers() { ctr --address "$rig/containerd/c.sock" --namespace k8s.io "$@"; }

rig_node() {
    mkdir -p "$rig/containerd"
    rig_start containerd containerd --config "$(configured containerd.toml)"
    eventually 60 "containerd" containers version
    tests/k8s/archive.py localhost/pause:test "$tools/kubernetes/pause" | containers images import - >/dev/null
    rig_start kubelet "$tools/kubernetes/kubelet" --kubeconfig "$rig/kubeconfig" --config "$(configured kubelet.yaml)" \
        --root-dir "$rig/kubelet" --cert-dir "$rig/kubelet-pki" --hostname-override "$node" --node-ip "$node_address"
    eventually 120 "the node is ready" node_is_ready
}

node_is_ready() { kube_is "api/v1/nodes/$node" '.status.conditions | any(.type == "Ready" and .status == "True")'; }

rig_up() {
    mkdir -p "$rig/logs"
    rig_network
    rig_mounts
    rig_identities
    rig_control_plane
    rig_node
}
