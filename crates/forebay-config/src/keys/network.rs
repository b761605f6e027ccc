//! The keys of the network: shared memory, TCP, HTTP and RDMA.
//!
//! A macro puts them into the table, which is one struct and one list. So the names in them are looked up where that is: `keys.rs`
//! imports what a key needs.

/// The table with these sections, between those `before` and those `after` them. They are indented as in `keys.rs`.
macro_rules! network_keys {
    ({ $($before:tt)* } { $($after:tt)* }) => { $crate::table::keys! { $($before)*

    section "Network: workers on the same host" {
        /// A worker shares its memory with clients on its host that run as its user, instead of sending them copies.
        /// `auto`: if shared memory can use huge pages, or `worker.memory.huge_pages` is off. `on`: also with small
        /// pages. A client uses shared memory if it can, unless this is `off`. `forebay up` shares none.
        network_shared_memory "network.shared_memory": SharedMemory = SharedMemory::Auto;
        /// The directory of the sockets over which workers share their memory. It belongs to the user of worker and
        /// mounts, has mode 0700, and all of them must see it: in containers, mount it into each. Unset:
        /// /run/forebay-shm-0 for root, /tmp/forebay-shm-UID for other users.
        network_shared_memory_dir "network.shared_memory_dir": Option<PathBuf> = None, example "\"/run/user/1000/forebay-shm\"";
    }
    section "Network: TCP" {
        /// How often an idle connection is pinged. An RDMA connection is pinged when calls are in progress and nothing
        /// arrives for this long.
        network_tcp_keepalive "network.tcp.keepalive": Duration = secs(2), in ms(10)..=HOUR;
        /// A connection over TCP or RDMA is dead after this long without any answer.
        network_tcp_dead_after "network.tcp.dead_after": Duration = secs(6), in ms(10)..=HOUR;
        /// A worker closes a TCP connection that was idle for this long. Its client connects again when it needs it.
        network_tcp_idle_timeout "network.tcp.idle_timeout": Duration = HOUR, in secs(1)..=DAY;
        /// The number of I/O threads for one address of a worker. They serve its connections and nothing else. 0:
        /// none; the other threads also serve the connections. Unset: one per processor if there are four or more,
        /// else none.
        network_tcp_io_threads "network.tcp.io_threads": Option<u32> = None, in Some(0)..=Some(1024), example "16";
        /// With `security.mode`: what connections to workers are protected from besides who is at the other end. `encrypt`:
        /// everything that goes over them is encrypted and cannot be changed on its way. `auth`: both ends prove who
        /// they are, then bytes go in plain text, and large replies without a copy: for networks that nobody can listen
        /// on. The same on all nodes; a worker with `auth` also takes connections that are encrypted.
        network_tcp_security "network.tcp.security": TcpSecurity = TcpSecurity::Encrypt;
        /// Whether the kernel sends a worker's large replies without copying them, with `MSG_ZEROCOPY`. `auto`: only
        /// if the kernel then really makes no copy, which each connection finds out. To a peer on the same host, it
        /// always copies. `on`: always. `off`: never. What is encrypted is always copied.
        network_tcp_zero_copy "network.tcp.zero_copy": TcpZeroCopy = TcpZeroCopy::Auto;
        /// Interface for all TCP traffic between nodes that has no `bind.device` of its own, and for listeners whose
        /// `bind.host` is every address. It does not apply to etcd and origins, which use the routing table.
        network_group_network "network.group_network": Option<Interface> = None, example "\"eth0\"";
    }
    section "Network: HTTP (pages, the REST API and probes)" {
        /// Further host names under which this process answers over HTTP, such as those of an ingress or a Kubernetes
        /// Service. Without this key it answers to IP addresses, `localhost`, the machine's host name,
        /// `worker.hostname` and `coordinator.hostname`. Any other name is refused, so that no web page can lead a
        /// browser here under a name of its own. Pages of these hosts may also send requests.
        network_http_hosts "network.http.hosts": Vec<Host> = vec![], example "[\"forebay.example.org\"]";
        /// The address on which the ports for probes listen, such as `coordinator.health.port`. Their answers contain
        /// no data. `network.group_network` does not change it.
        network_health_bind_host "network.health.bind.host": Host = Host::any();
    }
    section "Network: RDMA (read by the RDMA transport)" {
        /// Move data over RDMA.
        network_rdma_data_enabled "network.rdma.data.enabled": bool = false;
        /// The library for RDMA. `verbs`: libibverbs and librdmacm. `ucx`: UCX. `auto`: a worker offers both if it can;
        /// a client prefers verbs. Data and metadata use the same library.
        network_rdma_data_provider "network.rdma.data.provider": RdmaProvider = RdmaProvider::Auto;
        /// RDMA devices as DEVICE:PORT. With a single device, the worker listens on its address. Empty: UCX chooses;
        /// verbs use every active device with an IP address.
        network_rdma_data_bind_device "network.rdma.data.bind.device": Vec<String> = vec![],
            example "[\"mlx5_0:1\", \"mlx5_1:1\"]";
        /// Interfaces whose RDMA devices to use, instead of device names. The flag `--rdma-network ib0:ib2` does the
        /// same.
        network_rdma_data_network "network.rdma.data.network": Vec<Interface> = vec![], example "[\"ib0\", \"ib2\"]";
        /// Whether a large read is divided among the cards that lead to a worker. `auto`: where that ends it earlier, by the
        /// bytes under way and the measured bandwidth of each. `off`: each request goes over one random idle card.
        network_rdma_data_striping "network.rdma.data.striping": RdmaStriping = RdmaStriping::Auto;
        /// UCX transports to use instead of the RDMA ones, such as `["tcp"]` or `["sysv", "cma", "tcp"]`. For tests.
        network_rdma_data_transports "network.rdma.data.transports": Vec<String> = vec![],
            example "[\"rc\", \"ud\"]";
        /// The libucp to load. Unset: the system's.
        ucx_library "ucx.library": Option<PathBuf> = None, example "\"/opt/ucx/lib/libucp.so.0\"";
        /// Address that the worker listens on for RDMA, instead of the address of a single card. Several cards listen
        /// on their own addresses. Forebay reports an address of none of these cards as unused.
        network_rdma_data_bind_host "network.rdma.data.bind.host": Host = Host::any();
        /// The name or address at which clients reach the worker's card over RDMA. With several cards, it applies only
        /// to the card that has this address; the other cards use their own addresses. Unset: the same as
        /// `worker.hostname`.
        network_rdma_data_hostname "network.rdma.data.hostname": Option<Host> = None, example "\"node1-ib\"";
        /// The worker's port for RDMA; 0 takes a free one. With UCX and verbs, this port is for UCX, and verbs use a free
        /// one.
        network_rdma_data_port "network.rdma.data.port": u16 = 59999;
        /// The entry of each card's GID table to use for data (`UCX_IB_GID_INDEX`). Verbs use the address of the entry, which
        /// must be of RoCE. Negative: the library chooses.
        network_rdma_data_gid_index "network.rdma.data.gid_index": i32 = -1;
        /// The InfiniBand service level for data (`UCX_IB_SL`); over RoCE the Ethernet priority. Negative: the library chooses.
        network_rdma_data_service_level "network.rdma.data.service_level": i32 = -1, in -1..=15;
        /// The traffic class for data (`UCX_IB_TRAFFIC_CLASS`). Over RoCE it is the DSCP times 4. Negative: the library chooses.
        network_rdma_data_traffic_class "network.rdma.data.traffic_class": i32 = -1, in -1..=255;
        /// The InfiniBand partition for data, `UCX_IB_PKEY`. Unset: the first one that each card is a full member of.
        network_rdma_data_partition_key "network.rdma.data.partition_key": Option<PartitionKey> = None, example "\"0x8001\"";
        /// The largest RDMA packet in bytes: 256 to 4096 (`UCX_IB_PATH_MTU`, from 512). Verbs use the setting of the client.
        /// Unset: as large as the path allows.
        network_rdma_data_mtu "network.rdma.data.mtu": Option<u32> = None, example "2048";
        /// How long a card waits for an acknowledgement before it sends again (`UCX_RC_TIMEOUT`). Cards round this to 4.096
        /// us times a power of 2. Unset: by verbs, all attempts take two thirds of `network.tcp.dead_after` at most, and no
        /// longer than `network.rdma.data.operation_timeout`; UCX chooses.
        network_rdma_data_ack_timeout "network.rdma.data.ack_timeout": Option<Duration> = None, example "\"500ms\"";
        /// How often a card sends again what was not acknowledged (`UCX_RC_RETRY_COUNT`). Verbs use the setting of the
        /// client. Negative: 7 by verbs; UCX chooses.
        network_rdma_data_retry_count "network.rdma.data.retry_count": i32 = -1, in -1..=7;
        /// How often the other end sends again what this end was not ready to receive (`UCX_RC_RNR_RETRY_COUNT`). 7: without
        /// end. Negative: 2 by verbs; UCX chooses.
        network_rdma_data_rnr_retry_count "network.rdma.data.rnr_retry_count": i32 = -1, in -1..=7;
        /// Longest time for one RDMA operation.
        network_rdma_data_operation_timeout "network.rdma.data.operation_timeout": Duration = secs(60), in ms(1)..=HOUR;
        /// Longest time to connect to a worker over RDMA.
        network_rdma_data_connect_timeout "network.rdma.data.connect_timeout": Duration = secs(5), in ms(1)..=HOUR;
        /// How long a thread polls for an RDMA message before it sleeps, where polling is cheaper. 0: no polling.
        network_rdma_data_spin "network.rdma.data.spin": Duration = us(50), in Duration::ZERO..=ms(1);
        /// Let clients read a worker's memory without the worker's processor, by verbs: those that may see all that is cached,
        /// and whose reads are not recorded. On a client: do so where a worker lets it.
        network_rdma_data_one_sided "network.rdma.data.one_sided": bool = false;
        /// What each connection of a client has to receive into where its card has no memory windows of type 2 (iWARP, eRDMA),
        /// by verbs: payload comes in messages of 16 KiB there, as many at once as fit, and is copied.
        network_rdma_data_receive_buffers "network.rdma.data.receive_buffers": ByteSize = ByteSize::mib(1),
            in ByteSize::kib(64)..=ByteSize::mib(16);
        /// The amount of registered memory at start.
        network_rdma_data_buffer_pool_initial_size "network.rdma.data.buffer_pool.initial_size": ByteSize =
            ByteSize::mib(256), in ByteSize::mib(4)..=MAX_BYTES;
        /// The amount of registered memory that is touched and divided into chunks of 4 MiB at start.
        network_rdma_data_buffer_pool_prewarm_size "network.rdma.data.buffer_pool.prewarm_size": ByteSize =
            ByteSize::mib(256), in ByteSize::bytes(0)..=MAX_BYTES;
        /// The maximum amount of registered memory. At this limit, prefetching shrinks and readers wait.
        network_rdma_data_buffer_pool_max_size "network.rdma.data.buffer_pool.max_size": ByteSize =
            ByteSize::gib(8), in ByteSize::mib(4)..=MAX_BYTES;
        /// What happens when RDMA fails. `never`: no TCP. `auto`: TCP until RDMA works again. `tcp-at-start`: the
        /// same, and the process also starts without RDMA.
        network_rdma_data_fallback "network.rdma.data.fallback": RdmaFallback = RdmaFallback::Auto;
        /// How long TCP is used after RDMA fails, before RDMA is tried again.
        network_rdma_data_retry_duration "network.rdma.data.retry_duration": Duration = secs(300), in ms(1)..=DAY;
        /// Log statistics of RDMA operations.
        network_rdma_data_trace_enabled "network.rdma.data.trace.enabled": bool = false;
        /// How often statistics of RDMA operations are logged.
        network_rdma_data_trace_print_interval "network.rdma.data.trace.print_interval": Duration = secs(20),
            in ms(1)..=DAY;
        /// Ask for attributes and listings over RDMA.
        network_rdma_metadata_enabled "network.rdma.metadata.enabled": bool = false;
        /// The worker's port for attributes and listings over RDMA.
        network_rdma_metadata_port "network.rdma.metadata.port": u16 = 29995;
        /// RDMA device for attributes and listings. Unset: the default active one.
        network_rdma_metadata_device "network.rdma.metadata.device": Option<String> = None, example "\"mlx5_0\"";
        /// Port of `network.rdma.metadata.device`.
        network_rdma_metadata_ib_port "network.rdma.metadata.ib_port": u32 = 1, in 1..=255;
        /// GID index on `network.rdma.metadata.ib_port`, as `network.rdma.data.gid_index`; negative takes the default one.
        network_rdma_metadata_gid_index "network.rdma.metadata.gid_index": i32 = -1;
    }

    $($after)* } };
}

pub(super) use network_keys;
