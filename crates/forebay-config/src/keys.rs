//! The table of keys: the one place where a setting exists.
//!
//! To add a setting, add a line; `FOREBAY_BLESS=1 cargo test -p forebay-config` then renews the example file.

use std::path::PathBuf;
use std::time::Duration;

use forebay_types::{
    ByteSize, FuseIo, IoBackend, MAX_BLOCK_SIZE, MIN_BLOCK_SIZE, S3Checksum, SECTOR_SIZE, ServeMode, TcpZeroCopy,
};

use crate::endpoints::{ClusterName, Disk, GroupName, Host, HostPort, Interface, Mount};
use crate::modes::{LogFormat, LogLevel, RdmaFallback, SharedMemory, WriteMode};
use crate::partition::PartitionKey;
use crate::permissions::Permissions;
use crate::table::{KeyOf, keys};
use crate::value::{Setting, describe_limits, within};

/// One key of the table.
pub type Key = KeyOf<Config>;

impl Key {
    /// The key called `name`.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name)
    }
}

const BLOCK: ByteSize = ByteSize::bytes(MAX_BLOCK_SIZE as u64);
const SMALLEST_BLOCK: ByteSize = ByteSize::bytes(MIN_BLOCK_SIZE as u64);
const SECTOR: ByteSize = ByteSize::bytes(SECTOR_SIZE as u64);
/// More memory or disk than one machine has: a unit was mistyped.
const MAX_BYTES: ByteSize = ByteSize::gib(1 << 20);

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

const HOUR: Duration = secs(3600);
const DAY: Duration = secs(24 * 3600);

keys! {
    section "Cluster: who there is" {
        /// The cluster's name. Workers and clients of clusters with other names refuse each other.
        cluster_name "cluster.name": ClusterName = ClusterName::forebay();
        /// The workers, where no membership service names them.
        cluster_workers "cluster.workers": Vec<HostPort> = vec![], example "[\"node1:29999\", \"node2:29999\"]";
        /// The cache group: workers of one group share a ring, and a mount reads from the workers of its group.
        cluster_cache_group "cluster.cache_group": GroupName = GroupName::default();
        /// The place that this machine stands in, shown by `forebay cluster status`: a rack, an availability zone.
        cluster_zone "cluster.zone": Option<String> = None, example "\"rack-7\"";
        /// The etcd that the cluster's state is kept in. Empty: workers are those of `cluster.workers`.
        cluster_etcd_endpoints "cluster.etcd.endpoints": Vec<String> = vec![],
            example "[\"http://etcd1:2379\", \"http://etcd2:2379\"]";
        /// The user that etcd knows us by.
        cluster_etcd_user "cluster.etcd.user": Option<String> = None, example "\"forebay\"";
        /// A file with that user's password.
        cluster_etcd_password_file "cluster.etcd.password_file": Option<PathBuf> = None,
            example "\"/etc/forebay/etcd-password\"";
        /// The certificates that sign etcd's, PEM. Unset: the system's.
        cluster_etcd_ca_file "cluster.etcd.ca_file": Option<PathBuf> = None, example "\"/etc/forebay/etcd-ca.pem\"";
        /// Our certificate for etcd, PEM.
        cluster_etcd_cert_file "cluster.etcd.cert_file": Option<PathBuf> = None, example "\"/etc/forebay/etcd.pem\"";
        /// The key of that certificate, PEM.
        cluster_etcd_key_file "cluster.etcd.key_file": Option<PathBuf> = None, example "\"/etc/forebay/etcd-key.pem\"";
        /// Longest time for one request to etcd.
        cluster_etcd_timeout "cluster.etcd.timeout": Duration = secs(5), in ms(100)..=HOUR;
        /// Directories of this worker that mounts of the cluster may show, and name files with credentials in. Whoever reaches a
        /// coordinator can add mounts.
        cluster_mounts_directories "cluster.mounts.directories": Vec<String> = vec![],
            example "[\"/run/secrets\", \"/data\"]";
        /// How long a worker that died stays in the ring, at most; a coordinator that died leads no longer.
        cluster_lease_ttl "cluster.lease_ttl": Duration = secs(10), in secs(2)..=HOUR;
    }
    section "Coordinator: jobs, the REST API and the web page" {
        /// Where the command line finds the coordinator; the one on the machine of this name tells others so.
        /// Unset: on this machine.
        coordinator_hostname "coordinator.hostname": Option<Host> = None, example "\"coordinator1\"";
        /// The coordinator's port.
        coordinator_port "coordinator.port": u16 = 19999;
        /// The address that the coordinator listens on.
        coordinator_bind_host "coordinator.bind.host": Host = Host::any();
        /// Where the coordinator keeps the cluster's state without etcd. Unset: beside the run state.
        coordinator_state_dir "coordinator.state_dir": Option<PathBuf> = None, example "\"/var/lib/forebay/state\"";
        /// Blocks that jobs load at once.
        coordinator_job_concurrency "coordinator.job.concurrency": u32 = 64, in 1..=65_536;
        /// Further replicas that blocks of the most read files get by themselves, for as long as they are; 0: none.
        coordinator_hot_replicas "coordinator.hot.replicas": u32 = 0, in 0..=15;
        /// How much of a file one worker must serve in a minute for it to be one of those.
        coordinator_hot_threshold "coordinator.hot.threshold": ByteSize = ByteSize::gib(10), in SECTOR..=MAX_BYTES;
    }
    section "Mounts: what the namespace shows" {
        /// Origins and where each shows: `s3://`, `gs://`, `az://`, `http(s)://`, `file://`.
        mounts "mounts": Vec<Mount> = vec![], example "[\"/=s3://bucket/prefix\"]";
    }
    section "Blocks: the unit of placement and transfer, the same on all workers and clients" {
        /// Size of a block, a power of two.
        block_size "block.size": ByteSize = BLOCK, in SMALLEST_BLOCK..=BLOCK;
    }
    section "Worker: a cache node" {
        /// The worker's name: what places its blocks, so it must not change. Unset: its host and port.
        worker_name "worker.name": Option<String> = None, example "\"node1\"";
        /// The name or address that clients reach this worker by. Unset: the machine's host name.
        worker_hostname "worker.hostname": Option<Host> = None, example "\"node1\"";
        /// The address that the worker listens on.
        worker_rpc_bind_host "worker.rpc.bind.host": Host = Host::any();
        /// The port that the worker listens on; 0 takes a free one.
        worker_rpc_port "worker.rpc.port": u16 = 29999;
        /// Listen for requests on this interface's address instead of `worker.rpc.bind.host`, and connect to other
        /// workers from it.
        worker_rpc_bind_device "worker.rpc.bind.device": Option<Interface> = None, example "\"ib0\"";
        /// Serve blocks over TCP on this interface's address, and connect to other workers from it. In a cluster with
        /// etcd, mounts and workers are told this address, coordinators and commands that for requests. Unset: as
        /// `worker.rpc.bind.device`.
        worker_data_bind_device "worker.data.bind.device": Option<Interface> = None, example "\"ib0\"";
        /// The port for `/metrics`, `/healthz` and `/readyz`; 0 takes a free one, and so does the default if it is taken.
        worker_web_port "worker.web.port": u16 = 30000;
        /// Serve `/metrics` and the other pages on this interface's address. Unset: where requests are listened for.
        worker_web_bind_device "worker.web.bind.device": Option<Interface> = None, example "\"ib0\"";
        /// Serve the same pages, of which `/stats` is for programs, on this interface's address, too. Unset: nowhere else.
        worker_rest_bind_device "worker.rest.bind.device": Option<Interface> = None, example "\"ib0\"";
        /// DRAM for cached blocks. 0, with `worker.disks`: blocks are cached on them alone, and 64MiB are for those on their way.
        worker_memory_size "worker.memory.size": ByteSize = ByteSize::gib(1), in ByteSize::bytes(0)..=MAX_BYTES;
        /// Take that memory in huge pages when there are some.
        worker_memory_huge_pages "worker.memory.huge_pages": bool = true;
        /// Take all of that memory at start, in the background; otherwise the first read to use a part of it waits for
        /// the kernel. `forebay up` does so only when it is told to.
        worker_memory_prewarm "worker.memory.prewarm": bool = true;
        /// Check each sector's CRC32C when it is read from DRAM, too, not only when it comes from disk or network.
        worker_memory_verify_reads "worker.memory.verify_reads": bool = true;
        /// A sector that is read again within this time of a check is not checked again; 0: every read checks.
        worker_memory_verify_interval "worker.memory.verify_interval": Duration = secs(300), in Duration::ZERO..=DAY;
        /// Directories for cached blocks, best one a device, and how much each may hold: a size, `free` for what nobody else uses
        /// but for 5 %, or a share of that, `80%`. `/mnt/nvme*:free` stands for the directories that are there, one at least; one
        /// that is named is made, in a directory that is there, so that a disk that is not mounted does not fill another.
        worker_disks "worker.disks": Vec<Disk> = vec![], example "[\"/mnt/nvme0/forebay:1TiB\"]";
        /// How blocks go from disk to a TCP connection: `dio` O_DIRECT, `pagecache` buffered, `splice` without a copy. Who is to
        /// serve none is a mount without `--cache-group`, or with `--no-sharing`.
        worker_disk_serve "worker.disk.serve": ServeMode = ServeMode::Dio;
        /// How disks are read and written; `auto` takes io_uring where it is allowed.
        worker_disk_io "worker.disk.io": IoBackend = IoBackend::Auto;
        /// Eviction starts when this much of a tier is full, in percent.
        worker_eviction_high_watermark "worker.eviction.high_watermark": u32 = 95, in 1..=100;
        /// Eviction stops when this much of a tier is full, in percent.
        worker_eviction_low_watermark "worker.eviction.low_watermark": u32 = 90, in 1..=100;
        /// Connections served at once; more are refused.
        worker_max_connections "worker.max_connections": u32 = 4096, in 1..=1_000_000;
        /// Requests in progress at once, over all connections; more wait.
        worker_max_requests "worker.max_requests": u32 = 4096, in 1..=1_000_000;
        /// This worker's share of the blocks, relative to the others'. Unset: by its capacity.
        worker_weight "worker.weight": Option<u32> = None, in Some(1)..=Some(1_000_000), example "100";
        /// How long a worker that joins asks the previous owner of a block before the origin.
        worker_warmup "worker.warmup": Duration = secs(600), in Duration::ZERO..=DAY;
        /// How long another worker may take for a block before the origin is asked in its place.
        worker_peer_timeout "worker.peer_timeout": Duration = secs(2), in ms(1)..=HOUR;
        /// Most bytes a second that a worker hands over when it leaves; 0: as fast as it goes.
        worker_drain_bandwidth "worker.drain.bandwidth": ByteSize = ByteSize::bytes(0);
    }
    section "Origin: the object store behind a mount" {
        /// Requests to origins in progress at once, for each worker.
        origin_max_concurrency "origin.max_concurrency": u32 = 64, in 1..=65_536;
        /// Longest time for one request to an origin, its body included.
        origin_request_timeout "origin.request_timeout": Duration = secs(30), in ms(1)..=HOUR;
        /// Longest time to connect to an origin.
        origin_connect_timeout "origin.connect_timeout": Duration = secs(5), in ms(1)..=HOUR;
        /// Longest time that a read waits for an origin, retries included.
        origin_retry_deadline "origin.retry.deadline": Duration = secs(60), in ms(1)..=HOUR;
        /// Most attempts at one request, the first included.
        origin_retry_max_attempts "origin.retry.max_attempts": u32 = 12, in 1..=1000;
        /// Least that a miss fetches: a random reader pays this for 4 KiB.
        origin_min_get_size "origin.min_get_size": ByteSize = ByteSize::kib(64), in SECTOR..=BLOCK;
        /// Most that one request fetches, for a reader who goes on sequentially. Never more than a block.
        origin_max_get_size "origin.max_get_size": ByteSize = BLOCK, in SECTOR..=BLOCK;
        /// Talk to origins over plain http too. Needless for one on this machine.
        origin_allow_http "origin.allow_http": bool = false;
        /// URL of an S3-compatible server. Unset: Amazon's.
        origin_s3_endpoint "origin.s3.endpoint": Option<String> = None, example "\"http://127.0.0.1:9000\"";
        /// Region of the bucket. Unset: from the environment or the profile.
        origin_s3_region "origin.s3.region": Option<String> = None, example "\"us-east-1\"";
        /// Profile to take credentials from. Unset: the usual chain (environment, profile, instance role).
        origin_s3_profile "origin.s3.profile": Option<String> = None, example "\"training\"";
        /// Put the bucket in the URL's path and not in the host name, as most S3-compatible servers need.
        origin_s3_path_style "origin.s3.path_style": bool = false;
        /// Send unsigned requests, for public buckets.
        origin_s3_anonymous "origin.s3.anonymous": bool = false;
        /// What the server checks of what is uploaded to it.
        origin_s3_checksum "origin.s3.checksum": S3Checksum = S3Checksum::Auto;
    }
    section "Metadata: attributes and listings" {
        /// How long attributes and listings are believed before the origin is asked again; 0 asks always.
        metadata_ttl "metadata.ttl": Duration = secs(60), in Duration::ZERO..=secs(365 * 24 * 3600);
        /// Most entries that a worker remembers, of files that do not exist too.
        metadata_cache_entries "metadata.cache_entries": u32 = 1_000_000, in 1..=1_000_000_000;
    }
    section "Client: whoever reads" {
        /// The port for a mount's `/metrics`, `/healthz` and `/readyz`; 0 takes a free one, and so does the default if it is
        /// taken.
        client_web_port "client.web.port": u16 = 49999;
        /// The address that a mount serves them on. They are for this machine alone; `0.0.0.0` opens them to others.
        client_web_bind_host "client.web.bind.host": Host = Host::loopback();
        /// Memory for blocks that were prefetched from workers in other processes.
        client_memory_size "client.memory.size": ByteSize = ByteSize::mib(256), in SMALLEST_BLOCK..=MAX_BYTES;
        /// Blocks to prefetch ahead of each sequential stream, at most; 0 turns prefetch off. Unset: 8, and
        /// `client.prefetch.far_part_number` where a fetch takes so long that these hold the stream up.
        client_prefetch_max_part_number "client.prefetch.max_part_number": Option<u32> = None, in Some(0)..=Some(4096),
            example "8";
        /// Blocks to prefetch ahead of a stream that is held up by how long each fetch takes, as from an origin far away. Says
        /// nothing where `client.prefetch.max_part_number` is set.
        client_prefetch_far_part_number "client.prefetch.far_part_number": u32 = 32, in 0..=4096;
        /// A file no longer than this is prefetched whole at once; 0 turns that off.
        client_prefetch_file_length_threshold "client.prefetch.file_length_threshold": ByteSize = ByteSize::bytes(0);
        /// Requests to workers for bytes of blocks in progress at once, for each mount; more wait. 0: no limit.
        client_max_concurrency "client.max_concurrency": u32 = 0, in 0..=65_536;
        /// Longest time for one request, over all workers that it is sent to. Best above `origin.retry.deadline`, so that a
        /// reader outlasts an origin that comes back.
        client_request_timeout "client.request_timeout": Duration = secs(90), in ms(1)..=HOUR;
        /// While no worker can be reached, reads go to the origin, with the credentials of the mount, and are cached
        /// nowhere. Off: they wait for a worker, for `client.request_timeout`.
        client_origin_direct "client.origin.direct": bool = false;
        /// Mounts read from workers from this interface's address. Unset: from that of `network.group_network`.
        client_network_data_bind_device "client.network.data.bind.device": Option<Interface> = None, example "\"ib0\"";
        /// How long a dead worker is left alone before it is tried again. Doubles with each failure.
        client_retry_initial_backoff "client.retry.initial_backoff": Duration = ms(500), in ms(1)..=HOUR;
        /// The longest that a dead worker is left alone.
        client_retry_max_backoff "client.retry.max_backoff": Duration = secs(30), in ms(1)..=DAY;
        /// TCP connections to each worker.
        client_connections_per_worker "client.connections_per_worker": u32 = 4, in 1..=64;
        /// Open a file for reading by its attributes as remembered, within `metadata.ttl`, without asking a worker.
        client_open_status_cache_enabled "client.open_status_cache.enabled": bool = true;
        /// A file no longer than this comes whole when it is looked up or opened; 0 turns that off.
        client_small_file_size "client.small_file_size": ByteSize = ByteSize::kib(256), in ByteSize::bytes(0)..=ByteSize::mib(1);
    }
    section "Materialised files: whole local copies that the kernel reads by itself" {
        /// Room for files that this node reads often: the kernel reads them without asking the mount. 0 turns that off. Needs
        /// Linux 6.9 and CAP_SYS_ADMIN.
        client_local_size "client.local.size": ByteSize = ByteSize::bytes(0), in ByteSize::bytes(0)..=MAX_BYTES;
        /// A directory on a local disk for them. Unset: memory, in huge pages, which nothing else can see.
        client_local_dir "client.local.dir": Option<PathBuf> = None, example "\"/mnt/nvme0/forebay-local\"";
        /// Longer files are never taken unless a job or `forebay fs local add` asks for them.
        client_local_max_file_size "client.local.max_file_size": ByteSize = ByteSize::gib(64), in SECTOR..=MAX_BYTES;
        /// So many opens within some ten minutes make a file worth it.
        client_local_min_opens "client.local.min_opens": u32 = 2, in 1..=1_000_000;
        /// The first open of a file up to this size waits until it is there whole; 0: none does.
        client_local_first_open_size "client.local.first_open_size": ByteSize = ByteSize::bytes(0), in ByteSize::bytes(0)..=MAX_BYTES;
        /// It waits no longer than this; then it is served as others are.
        client_local_first_open_wait "client.local.first_open_wait": Duration = secs(30), in ms(1)..=HOUR;
        /// Files that are fetched at once.
        client_local_fills "client.local.fills": u32 = 2, in 1..=64;
        /// Do it on mounts that take writes, too. A reader that has such a file open goes on seeing the version that it
        /// opened when somebody writes to it.
        client_local_writable "client.local.writable": bool = true;
        /// How often every byte of them is checked again; 0: never.
        client_local_check_interval "client.local.check_interval": Duration = HOUR, in Duration::ZERO..=DAY;
        /// How much of that, and of what a restart found in the directory, is read in a second.
        client_local_check_bandwidth "client.local.check_bandwidth": ByteSize = ByteSize::mib(200), in ByteSize::mib(1)..=MAX_BYTES;
        /// Read what was written to the directory back from the disk before it is used.
        client_local_check_writes "client.local.check_writes": bool = false;
    }
    section "Network: workers on the same host" {
        /// A worker shows its memory to clients on its host that run as its user, instead of sending them copies: `auto` if it
        /// can be had in huge pages then, or `worker.memory.huge_pages` is off; `on` also in small ones. A client looks if it
        /// can, unless this is `off`. `forebay up` shows none.
        network_shared_memory "network.shared_memory": SharedMemory = SharedMemory::Auto;
    }
    section "Network: TCP" {
        /// An idle connection is pinged this often; one over RDMA when calls are under way and nothing was heard for this long.
        network_tcp_keepalive "network.tcp.keepalive": Duration = secs(2), in ms(10)..=HOUR;
        /// A connection without any answer for this long is dead, over TCP and over RDMA.
        network_tcp_dead_after "network.tcp.dead_after": Duration = secs(6), in ms(10)..=HOUR;
        /// Threads of a worker that serve the connections of one address and nothing else; 0: none, the others serve
        /// them, too. Unset: one a processor where there are four or more, else none.
        network_tcp_io_threads "network.tcp.io_threads": Option<u32> = None, in Some(0)..=Some(1024), example "16";
        /// Whether the kernel sends a worker's large replies from where they lie, `MSG_ZEROCOPY`: `auto` where it makes no copy
        /// after all, which each connection finds out (to a peer on the same host it always does); `on` always; `off` never.
        network_tcp_zero_copy "network.tcp.zero_copy": TcpZeroCopy = TcpZeroCopy::Auto;
        /// Interface for all TCP traffic between nodes that has no `bind.device` of its own, and for listeners whose
        /// `bind.host` is every address. Not for etcd and origins: the routing table leads there.
        network_group_network "network.group_network": Option<Interface> = None, example "\"eth0\"";
    }
    section "Network: RDMA (read by the RDMA transport)" {
        /// Move data over RDMA.
        network_rdma_data_enabled "network.rdma.data.enabled": bool = false;
        /// RDMA devices as DEVICE:PORT. One: its address is listened on. Empty: chosen by UCX.
        network_rdma_data_bind_device "network.rdma.data.bind.device": Vec<String> = vec![],
            example "[\"mlx5_0:1\", \"mlx5_1:1\"]";
        /// Interfaces whose RDMA devices to use: the other way to name them; also `--rdma-network ib0:ib2`.
        network_rdma_data_network "network.rdma.data.network": Vec<Interface> = vec![], example "[\"ib0\", \"ib2\"]";
        /// UCX's transports, in place of those that are RDMA: `["tcp"]`, `["sysv", "cma", "tcp"]`. For tests.
        network_rdma_data_transports "network.rdma.data.transports": Vec<String> = vec![],
            example "[\"rc\", \"ud\"]";
        /// The libucp to load. Unset: the system's.
        ucx_library "ucx.library": Option<PathBuf> = None, example "\"/opt/ucx/lib/libucp.so.0\"";
        /// Address that the worker listens on for RDMA, instead of the single card's; several cards listen at their own, and an
        /// address of none of them is said to be unused.
        network_rdma_data_bind_host "network.rdma.data.bind.host": Host = Host::any();
        /// The name or address that clients reach the worker's card by over RDMA; of several cards, that of the one whose address
        /// it is: the others are told by their own. Unset: as `worker.hostname`.
        network_rdma_data_hostname "network.rdma.data.hostname": Option<Host> = None, example "\"node1-ib\"";
        /// The worker's port for RDMA; 0 takes a free one.
        network_rdma_data_port "network.rdma.data.port": u16 = 59999;
        /// Entry of each card's GID table to use for data, `UCX_IB_GID_INDEX`; negative: UCX chooses.
        network_rdma_data_gid_index "network.rdma.data.gid_index": i32 = -1;
        /// InfiniBand's service level of data, `UCX_IB_SL`; negative: UCX chooses.
        network_rdma_data_service_level "network.rdma.data.service_level": i32 = -1, in -1..=15;
        /// Traffic class of data, `UCX_IB_TRAFFIC_CLASS`. Over RoCE it is the DSCP times 4; negative: UCX chooses.
        network_rdma_data_traffic_class "network.rdma.data.traffic_class": i32 = -1, in -1..=255;
        /// InfiniBand's partition of data, `UCX_IB_PKEY`. Unset: the first that each card is a full member of.
        network_rdma_data_partition_key "network.rdma.data.partition_key": Option<PartitionKey> = None, example "\"0x8001\"";
        /// Longest time for one RDMA operation.
        network_rdma_data_operation_timeout "network.rdma.data.operation_timeout": Duration = secs(60), in ms(1)..=HOUR;
        /// Longest time to connect to a worker over RDMA.
        network_rdma_data_connect_timeout "network.rdma.data.connect_timeout": Duration = secs(5), in ms(1)..=HOUR;
        /// How long to ask again for an RDMA message before sleeping, where that is cheaper; 0: not at all.
        network_rdma_data_spin "network.rdma.data.spin": Duration = us(50), in Duration::ZERO..=ms(1);
        /// Registered memory at start.
        network_rdma_data_buffer_pool_initial_size "network.rdma.data.buffer_pool.initial_size": ByteSize =
            ByteSize::mib(256), in ByteSize::mib(4)..=MAX_BYTES;
        /// How much registered memory is touched and cut into 4 MiB chunks at start.
        network_rdma_data_buffer_pool_prewarm_size "network.rdma.data.buffer_pool.prewarm_size": ByteSize =
            ByteSize::mib(256), in ByteSize::bytes(0)..=MAX_BYTES;
        /// Most registered memory. At this limit prefetch shrinks and readers wait.
        network_rdma_data_buffer_pool_max_size "network.rdma.data.buffer_pool.max_size": ByteSize =
            ByteSize::gib(8), in ByteSize::mib(4)..=MAX_BYTES;
        /// When RDMA fails: `never` TCP; `auto` TCP until RDMA works again; `tcp-at-start` the same, and start without RDMA too.
        network_rdma_data_fallback "network.rdma.data.fallback": RdmaFallback = RdmaFallback::Auto;
        /// How long TCP is used after RDMA failed, before RDMA is tried again.
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
        /// GID index on `network.rdma.metadata.ib_port`; negative takes the default one.
        network_rdma_metadata_gid_index "network.rdma.metadata.gid_index": i32 = -1;
    }
    section "FUSE: the mount" {
        /// How requests come from the kernel. `uring`, io_uring (Linux 6.14): many small random reads at once are faster.
        /// `device`, /dev/fuse: large and buffered reads are. `auto` takes /dev/fuse.
        fuse_io "fuse.io": FuseIo = FuseIo::Auto;
        /// Requests that may be under way in each processor's queue of `fuse.io = "uring"`.
        fuse_uring_depth "fuse.uring.depth": u32 = 64, in 1..=1024;
        /// Address space for the buffers of those queues; only what is used takes memory.
        fuse_uring_memory "fuse.uring.memory": ByteSize = ByteSize::gib(4), in ByteSize::mib(8)..=MAX_BYTES;
        /// Let a process that is being killed leave a request that waits. Others go on waiting: until the deadline at most.
        fuse_interrupts "fuse.interrupts": bool = true;
        /// Threads that serve the kernel; 0 takes one a core.
        fuse_threads "fuse.threads": u32 = 0, in 0..=1024;
        /// How long a thread on `/dev/fuse` busy-polls for the next request after a read of 16KiB or less, one at a
        /// time; 0: not at all.
        fuse_spin "fuse.spin": Duration = us(20), in Duration::ZERO..=ms(1);
        /// Answer reads of 64KiB and more on `/dev/fuse` through a pipe, which spares the kernel to look up each page by itself.
        fuse_splice "fuse.splice": bool = true;
        /// Read-ahead and asynchronous requests that the kernel may have in progress at once.
        fuse_max_background "fuse.max_background": u32 = 256, in 1..=65_535;
        /// Largest read that the kernel sends. A program's longer one is sent in parts, which several threads answer at once.
        /// More than 1MiB needs the sysctl `fs.fuse.max_pages_limit` to be raised, to that many pages of 4KiB.
        fuse_max_read "fuse.max_read": ByteSize = ByteSize::kib(512), in ByteSize::kib(4)..=ByteSize::mib(4);
        /// How far the kernel reads ahead of a buffered sequential reader.
        fuse_read_ahead "fuse.read_ahead": ByteSize = ByteSize::mib(4), in ByteSize::bytes(0)..=ByteSize::gib(1);
        /// Let other users than the one who mounts see the mount. Unset: yes when root mounts, no otherwise.
        fuse_allow_other "fuse.allow_other": Option<bool> = None, example "true";
    }
    section "Writing" {
        /// Where written data goes: `through` to the origin, and not into the cache; `none` takes no writes: a mount is
        /// read-only, and a worker refuses changes.
        write_mode "write.mode": WriteMode = WriteMode::Through;
        /// Where a mount keeps what was written until it is uploaded, and after a failed upload until somebody deals with it
        /// (`forebay fs staged`). A local disk. Unset: `staging` in /var/lib/forebay, or in ~/.local/state/forebay for a user.
        write_staging_dir "write.staging_dir": Option<PathBuf> = None, example "\"/mnt/nvme0/forebay-staging\"";
        /// How much of it a mount may take. Writers wait for uploads to make room.
        write_staging_size "write.staging_size": ByteSize = ByteSize::gib(10), in ByteSize::mib(128)..=MAX_BYTES;
        /// Size of an upload's first 2000 parts; the next 3000 are four times and the last 5000 eight times as long, 64MiB at
        /// most. A file that fits into one is uploaded by one request.
        write_part_size "write.part_size": ByteSize = ByteSize::mib(8), in ByteSize::mib(5)..=ByteSize::mib(64);
        /// Memory for parts that a mount sends at once.
        write_memory "write.memory": ByteSize = ByteSize::mib(128), in ByteSize::mib(64)..=MAX_BYTES;
        /// Longest time that a writer waits for room, and that one request of an upload may take; then they fail.
        write_timeout "write.timeout": Duration = secs(300), in ms(1)..=DAY;
        /// Memory of a worker for parts on their way to origins. Who sends more waits.
        worker_write_memory "worker.write.memory": ByteSize = ByteSize::mib(256), in ByteSize::mib(128)..=MAX_BYTES;
    }
    section "POSIX: what an object store does not know" {
        /// Let chmod and chown succeed and change nothing. Otherwise they fail unless there is nothing to change.
        posix_ignore_mode "posix.ignore_mode": bool = false;
        /// The permissions of every file.
        posix_file_mode "posix.file_mode": Permissions = Permissions::new(0o644);
        /// The permissions of every directory.
        posix_dir_mode "posix.dir_mode": Permissions = Permissions::new(0o755);
        /// The owner of every file, by number. Unset: who mounts.
        posix_uid "posix.uid": Option<u32> = None, example "1000";
        /// The group of every file, by number. Unset: that of who mounts.
        posix_gid "posix.gid": Option<u32> = None, example "1000";
    }
    section "Log" {
        /// The least important messages that are logged.
        log_level "log.level": LogLevel = LogLevel::Info;
        /// File to log to. Unset: standard error, or a file of its own for a process in the background.
        log_file "log.file": Option<PathBuf> = None, example "\"/var/log/forebay.log\"";
        /// `text` for people, `json` for one object a line.
        log_format "log.format": LogFormat = LogFormat::Text;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_field_is_named_like_its_key_so_every_key_is_read_and_no_variable_is_ambiguous() {
        for key in KEYS {
            assert_eq!(key.field, key.name.replace(['.', '-'], "_"));
        }
        let variables: BTreeSet<String> = KEYS.iter().map(Key::variable).collect();
        assert_eq!(variables.len(), KEYS.len());
    }

    #[test]
    fn no_key_is_a_section_of_another() {
        for key in KEYS {
            let below = KEYS.iter().find(|other| other.name.starts_with(&format!("{}.", key.name)));
            assert!(below.is_none(), "{} and {:?}", key.name, below);
        }
    }

    #[test]
    fn every_default_is_within_its_limits_and_reads_back_as_itself() {
        let mut config = Config::default();
        for key in KEYS {
            let Some(literal) = key.default_toml() else { continue };
            let raw = crate::value::Raw::of(&literal.parse().unwrap());
            assert_eq!((key.write)(&mut config, &raw), Ok(()), "{}", key.name);
        }
        assert_eq!(config, Config::default());
    }

    #[test]
    fn every_key_without_a_default_has_an_example_that_changes_that_key_alone() {
        for key in KEYS {
            if !matches!(key.default_toml().as_deref(), None | Some("[]")) {
                continue;
            }
            let example = key.example.unwrap_or_else(|| panic!("{} has no example", key.name));
            let mut config = Config::default();
            (key.write)(&mut config, &crate::value::Raw::of(&example.parse().unwrap())).unwrap();
            let changed: Vec<&str> =
                KEYS.iter().filter(|key| key.value_toml(&config) != key.default_toml()).map(|key| key.name).collect();
            assert_eq!(changed, [key.name]);
        }
    }
}
