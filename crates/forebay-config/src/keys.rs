//! The table of keys: the one place where a setting exists. Those of the network are in [`network`].
//!
//! To add a setting, add a line; `FOREBAY_BLESS=1 cargo test -p forebay-config` then renews the example file.

mod network;

use std::path::PathBuf;
use std::time::Duration;

use forebay_types::{AuditEvents, ByteSize, FuseIo, IoBackend, S3Checksum, ServeMode, TcpSecurity, TcpZeroCopy};

use crate::bucket_path::BucketPath;
use crate::endpoints::{ClusterName, Disk, GroupName, Host, Interface, ListedWorker, Mount};
use crate::limits::{BLOCK, DAY, HOUR, MAX_BYTES, SECTOR, SMALLEST_BLOCK, ms, secs, us};
use crate::modes::{
    LogFormat, LogLevel, OnStop, RdmaFallback, RdmaProvider, RdmaStriping, SecurityMode, SharedMemory, WriteMode,
};
use crate::mount_endpoint::MountEndpoint;
use crate::partition::PartitionKey;
use crate::permissions::Permissions;
use crate::table::keys;
use network::network_keys;

keys! {
    section "Cluster: its members and where its state is kept" {
        /// The cluster's name. Workers and clients of clusters with other names refuse each other.
        cluster_name "cluster.name": ClusterName = ClusterName::forebay();
        /// The workers of the cluster, if no membership service lists them. With `NAME=` before the address, only the
        /// worker whose certificate has this name gets requests; without, any worker of the cluster that listens there.
        /// The certificates that workers make with the key have `worker.name`, or the name of the host.
        cluster_workers "cluster.workers": Vec<ListedWorker> = vec![], example "[\"node1:29999\", \"node2:29999\"]";
        /// The cache group: workers of one group share a ring, and a mount reads from the workers of its group.
        cluster_cache_group "cluster.cache_group": GroupName = GroupName::default();
        /// The location of this machine, such as a rack or an availability zone. `forebay cluster status` shows it.
        cluster_zone "cluster.zone": Option<String> = None, example "\"rack-7\"";
        /// The etcd servers that keep the cluster's state. Empty: the workers are those in `cluster.workers`.
        cluster_etcd_endpoints "cluster.etcd.endpoints": Vec<String> = vec![],
            example "[\"http://etcd1:2379\", \"http://etcd2:2379\"]";
        /// The user name for etcd.
        cluster_etcd_user "cluster.etcd.user": Option<String> = None, example "\"forebay\"";
        /// A file that contains the password of this user. It is sent over https, or to an etcd on this machine.
        cluster_etcd_password_file "cluster.etcd.password_file": Option<PathBuf> = None,
            example "\"/etc/forebay/etcd-password\"";
        /// The CA certificates that verify etcd's certificate, in PEM format. Unset: those of the system.
        cluster_etcd_ca_file "cluster.etcd.ca_file": Option<PathBuf> = None, example "\"/etc/forebay/etcd-ca.pem\"";
        /// The client certificate that Forebay presents to etcd, in PEM format. This file, its key and the CA
        /// certificates are read again when they change.
        cluster_etcd_cert_file "cluster.etcd.cert_file": Option<PathBuf> = None, example "\"/etc/forebay/etcd.pem\"";
        /// The private key of this certificate, in PEM format.
        cluster_etcd_key_file "cluster.etcd.key_file": Option<PathBuf> = None, example "\"/etc/forebay/etcd-key.pem\"";
        /// Longest time for one request to etcd.
        cluster_etcd_timeout "cluster.etcd.timeout": Duration = secs(5), in ms(100)..=HOUR;
        /// Directories of this worker that the cluster's mounts may show and read credential files from. Anyone with
        /// access to a coordinator or to etcd can add mounts.
        cluster_mounts_directories "cluster.mounts.directories": Vec<String> = vec![],
            example "[\"/run/secrets\", \"/data\"]";
        /// Servers that the cluster's mounts may name, as an `s3.endpoint` or as an `http(s)://` origin: scheme, host
        /// and port. Plain HTTP only if the entry says `http`. Only an entry that is an IP address or `localhost`
        /// reaches this machine or the metadata service of its cloud.
        cluster_mounts_endpoints "cluster.mounts.endpoints": Vec<MountEndpoint> = vec![],
            example "[\"https://minio.example.com:9000\"]";
        /// Variables of this worker's environment that the cluster's mounts may send as credentials, with `env:NAME`.
        cluster_mounts_environment "cluster.mounts.environment": Vec<String> = vec![],
            example "[\"MINIO_KEY\", \"MINIO_SECRET\"]";
        /// The longest time that a dead worker stays in the ring. A dead coordinator loses leadership within the same
        /// time.
        cluster_lease_ttl "cluster.lease_ttl": Duration = secs(10), in secs(2)..=HOUR;
    }
    section "Coordinator: jobs, the REST API and the web page" {
        /// The host where commands find the coordinator. A coordinator that runs on this host announces this name to
        /// others. Unset: this machine.
        coordinator_hostname "coordinator.hostname": Option<Host> = None, example "\"coordinator1\"";
        /// The coordinator's port.
        coordinator_port "coordinator.port": u16 = 19999;
        /// The address that the coordinator listens on.
        coordinator_bind_host "coordinator.bind.host": Host = Host::any();
        /// A port at which the coordinator serves nothing but `/healthz` and `/readyz`, for the probes of Kubernetes.
        /// However busy its other port is, this one answers. 0 takes a free port. Unset: none.
        coordinator_health_port "coordinator.health.port": Option<u16> = None, example "19998";
        /// Where the coordinator keeps the cluster's state if there is no etcd. Unset: next to the run state.
        coordinator_state_dir "coordinator.state_dir": Option<PathBuf> = None, example "\"/var/lib/forebay/state\"";
        /// The number of blocks that jobs load at the same time.
        coordinator_job_concurrency "coordinator.job.concurrency": u32 = 64, in 1..=65_536;
        /// The number of extra replicas for blocks of hot files, which are the most read. The replicas stay while the
        /// file is hot. 0: none.
        coordinator_hot_replicas "coordinator.hot.replicas": u32 = 0, in 0..=15;
        /// A file is hot if one worker serves this many bytes of it in a minute.
        coordinator_hot_threshold "coordinator.hot.threshold": ByteSize = ByteSize::gib(10), in SECTOR..=MAX_BYTES;
    }
    section "Mounts: what the namespace shows" {
        /// The origins, and the path where each one appears. Schemes: `s3://`, `gs://`, `az://`, `http(s)://`,
        /// `file://`.
        mounts "mounts": Vec<Mount> = vec![], example "[\"/=s3://bucket/prefix\"]";
    }
    section "Blocks: the unit of placement and transfer, the same on all workers and clients" {
        /// Size of a block, a power of two.
        block_size "block.size": ByteSize = BLOCK, in SMALLEST_BLOCK..=BLOCK;
    }
    section "Worker: a cache node" {
        /// The worker's name. It determines which blocks the worker owns, so it must not change. Unset: its host and
        /// port.
        worker_name "worker.name": Option<String> = None, example "\"node1\"";
        /// The host name or address at which clients reach this worker. Unset: the machine's host name.
        worker_hostname "worker.hostname": Option<Host> = None, example "\"node1\"";
        /// The address that the worker listens on.
        worker_rpc_bind_host "worker.rpc.bind.host": Host = Host::any();
        /// The port that the worker listens on; 0 takes a free one.
        worker_rpc_port "worker.rpc.port": u16 = 29999;
        /// The worker listens for requests on this interface's address instead of `worker.rpc.bind.host`. It also
        /// connects to other workers from this address.
        worker_rpc_bind_device "worker.rpc.bind.device": Option<Interface> = None, example "\"ib0\"";
        /// The worker serves blocks over TCP on this interface's address, and connects to other workers from it. In a
        /// cluster with etcd, mounts and workers learn this address. Coordinators and commands learn the address for
        /// requests. Unset: the same as `worker.rpc.bind.device`.
        worker_data_bind_device "worker.data.bind.device": Option<Interface> = None, example "\"ib0\"";
        /// The port for `/metrics`, `/healthz` and `/readyz`. 0 takes a free port. If the default port is taken, the
        /// worker takes a free one, too.
        worker_web_port "worker.web.port": u16 = 30000;
        /// The worker serves `/metrics` and the other pages on this interface's address. Unset: the address where it
        /// listens for requests.
        worker_web_bind_device "worker.web.bind.device": Option<Interface> = None, example "\"ib0\"";
        /// The worker also serves the same pages on this interface's address. Of these, `/stats` is for programs.
        /// Unset: no additional address.
        worker_rest_bind_device "worker.rest.bind.device": Option<Interface> = None, example "\"ib0\"";
        /// A port at which the worker serves nothing but `/healthz` and `/readyz`, as `coordinator.health.port`.
        worker_health_port "worker.health.port": Option<u16> = None, example "30001";
        /// DRAM for cached blocks. With 0 and `worker.disks`, the worker caches blocks on disks alone and uses 64MiB
        /// for blocks in transit.
        worker_memory_size "worker.memory.size": ByteSize = ByteSize::gib(1), in ByteSize::bytes(0)..=MAX_BYTES;
        /// Use huge pages for this memory if they are available.
        worker_memory_huge_pages "worker.memory.huge_pages": bool = true;
        /// Allocate all of this memory at start, in the background. Otherwise the first read that uses a part of it
        /// waits for the kernel. `forebay up` does so at start only if this key is set to `true` explicitly. If it is not
        /// set, `forebay up` does so once a tenth of the memory is used.
        worker_memory_prewarm "worker.memory.prewarm": bool = true;
        /// Verify each sector's CRC32C also when it is read from DRAM, not only when it comes from disk or network.
        worker_memory_verify_reads "worker.memory.verify_reads": bool = true;
        /// A sector that is read again within this time of a check is not checked again. 0: every read checks.
        worker_memory_verify_interval "worker.memory.verify_interval": Duration = secs(300), in Duration::ZERO..=DAY;
        /// Directories for cached blocks, best one per device, each with the space that it may use. The space is a
        /// size, `free` (the unused space of the file system except 5 %), or a share of the unused space, `80%`.
        /// `/mnt/nvme*:free` matches existing directories, and must match at least one. Forebay creates a directory
        /// that is named, but not its parent. So if a disk is not mounted, Forebay does not fill another one.
        worker_disks "worker.disks": Vec<Disk> = vec![], example "[\"/mnt/nvme0/forebay:1TiB\"]";
        /// How blocks go from disk to a TCP connection: `dio` uses O_DIRECT, `pagecache` uses buffered reads, `splice`
        /// avoids a copy. To serve no blocks to others, mount without `--cache-group` or with `--no-sharing`.
        worker_disk_serve "worker.disk.serve": ServeMode = ServeMode::Dio;
        /// How Forebay reads and writes disks. `auto` uses io_uring where it is permitted.
        worker_disk_io "worker.disk.io": IoBackend = IoBackend::Auto;
        /// Longest time that a read waits for a disk. After that, the block comes from other workers or the origin. A disk
        /// that hangs is not used until it answers again. 0: no limit.
        worker_disk_read_timeout "worker.disk.read_timeout": Duration = secs(2), in Duration::ZERO..=HOUR;
        /// Eviction starts when this percentage of a tier is full.
        worker_eviction_high_watermark "worker.eviction.high_watermark": u32 = 95, in 1..=100;
        /// Eviction stops when this percentage of a tier is full.
        worker_eviction_low_watermark "worker.eviction.low_watermark": u32 = 90, in 1..=100;
        /// The maximum number of connections at the same time. For one more, the worker closes the connection that was
        /// idle longest; if none is idle, it refuses the new one.
        worker_max_connections "worker.max_connections": u32 = 4096, in 1..=1_000_000;
        /// The maximum number of TCP connections from one address. A mount opens `client.connections_per_worker`, and up
        /// to four more while its threads wait for answers themselves (`client.drive.wait`).
        worker_max_connections_per_client "worker.max_connections_per_client": u32 = 1024, in 1..=1_000_000;
        /// The maximum number of requests in progress at the same time, over all connections. More requests wait.
        worker_max_requests "worker.max_requests": u32 = 4096, in 1..=1_000_000;
        /// This worker's share of the blocks, relative to other workers. Unset: its capacity determines the share.
        worker_weight "worker.weight": Option<u32> = None, in Some(1)..=Some(1_000_000), example "100";
        /// For this long after it joins, a worker asks a block's previous owner before it asks the origin.
        worker_warmup "worker.warmup": Duration = secs(600), in Duration::ZERO..=DAY;
        /// Longest time that a worker waits for a block from another worker. After that, it asks the origin instead.
        worker_peer_timeout "worker.peer_timeout": Duration = secs(2), in ms(1)..=HOUR;
        /// The maximum number of bytes per second that a worker hands over when it leaves. 0: no limit.
        worker_drain_bandwidth "worker.drain.bandwidth": ByteSize = ByteSize::bytes(0);
    }
    section "Origin: the object store behind a mount" {
        /// The maximum number of requests to origins in progress at the same time, per worker.
        origin_max_concurrency "origin.max_concurrency": u32 = 256, in 1..=65_536;
        /// Longest time for one request to an origin, including its body.
        origin_request_timeout "origin.request_timeout": Duration = secs(30), in ms(1)..=HOUR;
        /// Longest time to connect to an origin.
        origin_connect_timeout "origin.connect_timeout": Duration = secs(5), in ms(1)..=HOUR;
        /// Longest time that a read waits for an origin, including retries.
        origin_retry_deadline "origin.retry.deadline": Duration = secs(60), in ms(1)..=HOUR;
        /// The maximum number of attempts for one request, including the first.
        origin_retry_max_attempts "origin.retry.max_attempts": u32 = 12, in 1..=1000;
        /// The minimum size of a fetch from an origin after a miss. A random read of 4 KiB also fetches this much.
        origin_min_get_size "origin.min_get_size": ByteSize = ByteSize::kib(64), in SECTOR..=BLOCK;
        /// The maximum size of one request to an origin, for sequential readers. It never exceeds a block.
        origin_max_get_size "origin.max_get_size": ByteSize = BLOCK, in SECTOR..=BLOCK;
        /// Allow plain HTTP to origins, too. An origin on this machine does not need this key.
        origin_allow_http "origin.allow_http": bool = false;
        /// URL of an S3-compatible server. Unset: Amazon S3.
        origin_s3_endpoint "origin.s3.endpoint": Option<String> = None, example "\"http://127.0.0.1:9000\"";
        /// Region of the bucket. Unset: from the environment or the profile.
        origin_s3_region "origin.s3.region": Option<String> = None, example "\"us-east-1\"";
        /// The profile that supplies credentials. Unset: the usual chain (environment, profile, instance role).
        origin_s3_profile "origin.s3.profile": Option<String> = None, example "\"training\"";
        /// Put the bucket in the URL's path instead of the host name. Most S3-compatible servers need this.
        origin_s3_path_style "origin.s3.path_style": bool = false;
        /// Send unsigned requests, for public buckets.
        origin_s3_anonymous "origin.s3.anonymous": bool = false;
        /// The checksum that the server verifies for uploaded data.
        origin_s3_checksum "origin.s3.checksum": S3Checksum = S3Checksum::Auto;
        /// Read objects from the connection directly into the cache's memory. `false`: through the buffers of the HTTP
        /// library, as with any value where a proxy or a special setting for connections (`AWS_PROXY_URL` and others)
        /// is in the environment.
        origin_s3_in_place "origin.s3.in_place": bool = true;
    }
    section "Metadata: attributes and listings" {
        /// How long attributes and listings stay valid before Forebay asks the origin again. 0: it always asks.
        metadata_ttl "metadata.ttl": Duration = secs(60), in Duration::ZERO..=secs(365 * 24 * 3600);
        /// The maximum number of entries that a worker caches, including entries for files that do not exist.
        metadata_cache_entries "metadata.cache_entries": u32 = 1_000_000, in 1..=1_000_000_000;
    }
    section "Client: a mount or a command that reads" {
        /// The port for a mount's `/metrics`, `/healthz` and `/readyz`. 0 takes a free port. If the default port is
        /// taken, the mount takes a free one, too.
        client_web_port "client.web.port": u16 = 49999;
        /// The address on which a mount serves these pages. The default lets only this machine reach them; `0.0.0.0`
        /// opens them to other machines.
        client_web_bind_host "client.web.bind.host": Host = Host::loopback();
        /// A port at which a mount serves nothing but `/healthz` and `/readyz`, as `coordinator.health.port`.
        client_health_port "client.health.port": Option<u16> = None, example "49998";
        /// Memory for blocks that a client prefetches from workers in other processes.
        client_memory_size "client.memory.size": ByteSize = ByteSize::mib(256), in SMALLEST_BLOCK..=MAX_BYTES;
        /// The maximum number of blocks to prefetch ahead of each sequential stream. 0 turns prefetching off. Unset:
        /// 8, or `client.prefetch.far_part_number` if fetches take so long that 8 blocks hold up the stream.
        client_prefetch_max_part_number "client.prefetch.max_part_number": Option<u32> = None, in Some(0)..=Some(4096),
            example "8";
        /// The maximum number of blocks to prefetch ahead of a stream that slow fetches hold up, for example from a
        /// distant origin. It has no effect if `client.prefetch.max_part_number` is set.
        client_prefetch_far_part_number "client.prefetch.far_part_number": u32 = 32, in 0..=4096;
        /// A client prefetches a file up to this length as a whole, at once. 0 turns this off.
        client_prefetch_file_length_threshold "client.prefetch.file_length_threshold": ByteSize = ByteSize::bytes(0);
        /// A model file (`*.safetensors`) that a program reads or maps here and there is fetched by the workers as a whole.
        client_prefetch_models "client.prefetch.models": bool = true;
        /// The maximum size of small files (`client.small_file_size`) that a client fetches before they are opened, because a
        /// program opens the files of a directory in the order of its listing. 0 turns this off.
        client_prefetch_directory_budget "client.prefetch.directory_budget": ByteSize = ByteSize::mib(32),
            in ByteSize::bytes(0)..=ByteSize::gib(4);
        /// The maximum number of block requests to workers in progress at the same time, per mount. More requests
        /// wait. 0: no limit.
        client_max_concurrency "client.max_concurrency": u32 = 0, in 0..=65_536;
        /// Longest time for one request, over all workers that it is sent to. Set it above `origin.retry.deadline`, so
        /// that reads survive an origin that fails and recovers.
        client_request_timeout "client.request_timeout": Duration = secs(90), in ms(1)..=HOUR;
        /// A read that its worker answers later than usual also goes to another worker, or with `client.origin.direct` to
        /// the origin, and the first answer counts. So does a question about a name, to another worker. A worker that stays
        /// slow is left out for a while.
        client_hedge_enabled "client.hedge.enabled": bool = true;
        /// The shortest time that a read waits for its worker before it also goes to another one. It is longer if the
        /// 99th percentile of the worker's reads of that size is.
        client_hedge_min_delay "client.hedge.min_delay": Duration = ms(2), in us(100)..=HOUR;
        /// The maximum number of requests that this adds, in percent of all these requests, after the first few dozen.
        client_hedge_budget "client.hedge.budget": u32 = 5, in 1..=100;
        /// A thread that reads 64KiB or less from a worker waits for the answer itself, for this long at most. That saves
        /// two changes of thread. Then the read goes on in the background. Of a mount's threads, all but one do so at a
        /// time. 0: never.
        client_drive_wait "client.drive.wait": Duration = us(250), in Duration::ZERO..=ms(5);
        /// How long of that the thread busy-polls, if that costs no more than to sleep.
        client_drive_spin "client.drive.spin": Duration = us(50), in Duration::ZERO..=ms(1);
        /// If no worker is reachable, reads go to the origin with the mount's credentials, and nothing caches them.
        /// Off: reads wait for a worker, up to `client.request_timeout`.
        client_origin_direct "client.origin.direct": bool = false;
        /// Mounts connect to workers from this interface's address for reads. Unset: the address of
        /// `network.group_network`.
        client_network_data_bind_device "client.network.data.bind.device": Option<Interface> = None, example "\"ib0\"";
        /// How long a client waits before it tries a dead worker again. The time doubles with each failure.
        client_retry_initial_backoff "client.retry.initial_backoff": Duration = ms(500), in ms(1)..=HOUR;
        /// Longest time that a client waits before it tries a dead worker again.
        client_retry_max_backoff "client.retry.max_backoff": Duration = secs(30), in ms(1)..=DAY;
        /// TCP connections to each worker.
        client_connections_per_worker "client.connections_per_worker": u32 = 4, in 1..=64;
        /// Open a file for reading with its cached attributes, within `metadata.ttl`, without asking a worker.
        client_open_status_cache_enabled "client.open_status_cache.enabled": bool = true;
        /// A lookup or an open fetches a file up to this length as a whole. 0 turns this off.
        client_small_file_size "client.small_file_size": ByteSize = ByteSize::kib(256), in ByteSize::bytes(0)..=ByteSize::mib(1);
    }
    section "Materialised files: whole local copies that the kernel reads without a request to the mount" {
        /// Room for files that this node reads often. The kernel reads them without asking the mount. This needs Linux
        /// 6.9 and CAP_SYS_ADMIN. 0 turns this off. Unset: a worker in the mount's process (`forebay up`, or a mount
        /// that shares its cache) lends up to three quarters of `worker.memory.size`, or a quarter if it shares its
        /// memory, and leaves 64 MiB; any other mount takes a sixteenth of the memory that it may have, at most 8 GiB. A
        /// size is room beside `worker.memory.size`.
        client_local_size "client.local.size": Option<ByteSize> = None, in Some(ByteSize::bytes(0))..=Some(MAX_BYTES), example "\"64GiB\"";
        /// A directory on a local disk for these files, with `client.local.size`. Reads of such a file wait for that
        /// disk if it hangs, and fail if it fails. Unset: memory, in huge pages, which nothing else can see.
        client_local_dir "client.local.dir": Option<PathBuf> = None, example "\"/mnt/nvme0/forebay-local\"";
        /// A longer file is materialised only if a job or `forebay fs local add` asks for it.
        client_local_max_file_size "client.local.max_file_size": ByteSize = ByteSize::gib(64), in SECTOR..=MAX_BYTES;
        /// This many opens within about ten minutes make a file worth materialising. One that a program reads from its
        /// start, or maps, is taken before that if there is room. Without `client.local.size`, one below 1 MiB takes four
        /// more opens, and memory that is spare.
        client_local_min_opens "client.local.min_opens": u32 = 2, in 1..=1_000_000;
        /// The first open of a file up to this size waits until the whole file is local. 0: no open waits.
        client_local_first_open_size "client.local.first_open_size": ByteSize = ByteSize::bytes(0), in ByteSize::bytes(0)..=MAX_BYTES;
        /// Longest time that such an open waits. After that, the mount serves the file like any other.
        client_local_first_open_wait "client.local.first_open_wait": Duration = secs(30), in ms(1)..=HOUR;
        /// The number of files that a mount fetches at the same time to materialise them.
        client_local_fills "client.local.fills": u32 = 2, in 1..=64;
        /// Materialise files on mounts that take writes, too. If somebody writes to such a file, a reader that has it
        /// open still sees the version that it opened.
        client_local_writable "client.local.writable": bool = true;
        /// How often a mount checks every byte of the materialised files again. 0: never.
        client_local_check_interval "client.local.check_interval": Duration = HOUR, in Duration::ZERO..=DAY;
        /// The number of bytes that these checks read per second. It also applies to checks of files that a restart
        /// found in the directory.
        client_local_check_bandwidth "client.local.check_bandwidth": ByteSize = ByteSize::mib(200), in ByteSize::mib(1)..=MAX_BYTES;
        /// Read data that was written to the directory back from the disk before it is used.
        client_local_check_writes "client.local.check_writes": bool = false;
    }
    sections network_keys;
    section "FUSE: the mount" {
        /// How requests arrive from the kernel. `uring` uses io_uring (Linux 6.14), which is faster for many small
        /// random reads at once. `device` uses /dev/fuse, which is faster for large and buffered reads. `auto` uses
        /// /dev/fuse.
        fuse_io "fuse.io": FuseIo = FuseIo::Auto;
        /// The maximum number of requests in progress in each processor's queue with `fuse.io = "uring"`.
        fuse_uring_depth "fuse.uring.depth": u32 = 64, in 1..=1024;
        /// Address space for the buffers of these queues. Only the part in use takes memory.
        fuse_uring_memory "fuse.uring.memory": ByteSize = ByteSize::gib(4), in ByteSize::mib(8)..=MAX_BYTES;
        /// Let a process that is being killed abandon a request that waits. Other processes keep waiting, until the
        /// deadline at most.
        fuse_interrupts "fuse.interrupts": bool = true;
        /// The number of threads that serve the kernel. 0: one per core.
        fuse_threads "fuse.threads": u32 = 0, in 0..=1024;
        /// How long a thread on `/dev/fuse` busy-polls for the next request after a read of 16KiB or less. Only one
        /// thread of a mount polls at a time. 0: no polling.
        fuse_spin "fuse.spin": Duration = us(20), in Duration::ZERO..=ms(1);
        /// Answer reads of 64KiB and more on `/dev/fuse` through a pipe. The kernel then need not look up each page
        /// separately.
        fuse_splice "fuse.splice": bool = true;
        /// The maximum number of read-ahead and asynchronous requests that the kernel has in progress at the same
        /// time.
        fuse_max_background "fuse.max_background": u32 = 256, in 1..=65_535;
        /// The largest read that the kernel sends. It sends a longer read in parts, which several threads answer at
        /// once. More than 1MiB requires a higher sysctl `fs.fuse.max_pages_limit`: as many pages of 4KiB as the read
        /// has.
        fuse_max_read "fuse.max_read": ByteSize = ByteSize::kib(512), in ByteSize::kib(4)..=ByteSize::mib(4);
        /// How far the kernel reads ahead of a buffered sequential reader.
        fuse_read_ahead "fuse.read_ahead": ByteSize = ByteSize::mib(4), in ByteSize::bytes(0)..=ByteSize::gib(1);
        /// Let other users than the mounting user see the mount. Unset: yes if root mounts, no otherwise.
        fuse_allow_other "fuse.allow_other": Option<bool> = None, example "true";
        /// The SELinux label of every file of the mount, as `mount -o context=` sets it. Only root can. Unset: what the
        /// system's policy says of FUSE.
        fuse_selinux_context "fuse.selinux_context": Option<String> = None,
            example "\"system_u:object_r:container_file_t:s0\"";
        /// Keep the mount when its process is killed: programs that use it wait, and go on when the next process serves
        /// it. `forebay keeper` has it meanwhile and starts that process, or systemd does. Requires Linux 6.9, and
        /// another `fuse.io` than `uring`.
        fuse_survive_crash "fuse.survive_crash": bool = false;
        /// What becomes of the mount when SIGTERM ends its process. `auto`: under `systemctl restart`, systemd has it
        /// until the next process serves it, and programs keep what they have open; otherwise it is unmounted.
        /// `unmount`: always. `leave`: systemd, or a keeper that does not end with the process, has it in any case, for
        /// 5 minutes at most; without one, it is unmounted.
        fuse_on_stop "fuse.on_stop": OnStop = OnStop::Auto;
    }
    section "Writing" {
        /// Where written data goes. `through`: to the origin, and not into the cache. `none`: nowhere; a mount is
        /// read-only, and a worker refuses changes.
        write_mode "write.mode": WriteMode = WriteMode::Through;
        /// The directory, on a local disk, where a mount keeps written data until it is uploaded. After a failed
        /// upload, the data stays until somebody handles it with `forebay fs staged`. Unset: `staging` in
        /// /var/lib/forebay, or in ~/.local/state/forebay for a user.
        write_staging_dir "write.staging_dir": Option<PathBuf> = None, example "\"/mnt/nvme0/forebay-staging\"";
        /// The maximum space that a mount uses in this directory. Writers wait until uploads free space.
        write_staging_size "write.staging_size": ByteSize = ByteSize::gib(10), in ByteSize::mib(128)..=MAX_BYTES;
        /// The size of the first 2000 parts of an upload. The next 3000 parts are four times as long, and the last
        /// 5000 eight times, 64MiB at most. A file that fits into one part takes one request.
        write_part_size "write.part_size": ByteSize = ByteSize::mib(8), in ByteSize::mib(5)..=ByteSize::mib(64);
        /// Memory for the parts that a mount uploads at the same time.
        write_memory "write.memory": ByteSize = ByteSize::mib(128), in ByteSize::mib(64)..=MAX_BYTES;
        /// Longest time that a writer waits for space, and longest time for one request of an upload. After that, they
        /// fail.
        write_timeout "write.timeout": Duration = secs(300), in ms(1)..=DAY;
        /// Memory of a worker for parts in transit to origins. Senders of more parts wait.
        worker_write_memory "worker.write.memory": ByteSize = ByteSize::mib(256), in ByteSize::mib(128)..=MAX_BYTES;
    }
    section "POSIX: what an object store does not know" {
        /// Let chmod and chown succeed without changing anything. Otherwise they fail, unless there is nothing to
        /// change.
        posix_ignore_mode "posix.ignore_mode": bool = false;
        /// The permissions of every file.
        posix_file_mode "posix.file_mode": Permissions = Permissions::new(0o644);
        /// The permissions of every directory.
        posix_dir_mode "posix.dir_mode": Permissions = Permissions::new(0o755);
        /// The owner of every file, as a number. Unset: the user that mounts.
        posix_uid "posix.uid": Option<u32> = None, example "1000";
        /// The group of every file, as a number. Unset: the group of the user that mounts.
        posix_gid "posix.gid": Option<u32> = None, example "1000";
    }
    section "S3: what `forebay s3`, a worker and `forebay up` serve to S3 clients" {
        /// The port of the S3 endpoint. 0 takes a free port. Unset: a worker and `forebay up` have none, and `forebay s3`
        /// takes 9000.
        s3_port "s3.port": Option<u16> = None, example "9000";
        /// The address that the endpoint listens on.
        s3_bind_host "s3.bind.host": Host = Host::loopback();
        /// A file of the keys that requests are signed with, of mode 0600: `forebay key s3` prints a line for it. They are
        /// keys of this cache, and none of the origin's. Read again when it changes.
        s3_credentials_file "s3.credentials_file": Option<PathBuf> = None, example "\"/etc/forebay/s3-keys\"";
        /// The buckets, and the path in the namespace that each one shows. Empty: each directory at the top of the
        /// namespace, or, if an origin is mounted at `/`, one bucket with the origin's name.
        s3_buckets "s3.buckets": Vec<BucketPath> = vec![], example "[\"imagenet=/datasets/imagenet\"]";
        /// Domains below which each name is a bucket: `BUCKET.s3.example.com` besides `s3.example.com/BUCKET`.
        s3_domains "s3.domains": Vec<Host> = vec![], example "[\"s3.example.com\"]";
        /// The number of connections at the same time. One address has half of them at most, other than loopback.
        s3_connections "s3.connections": u32 = 512, in 2..=65_536;
        /// Memory for the bodies of all requests together: bytes of the cache on their way to clients, and parts on their
        /// way to the origin. Requests wait for it in turn.
        s3_memory_size "s3.memory.size": ByteSize = ByteSize::mib(256), in ByteSize::mib(128)..=MAX_BYTES;
    }
    section "Security: who is who, and who may do what" {
        /// How both ends of a connection to a worker, coordinator or page of metrics prove who they are. The same on all nodes.
        security_mode "security.mode": SecurityMode = SecurityMode::Off;
        /// What is accepted of those who connect, and whom all believe, while a running cluster goes from one mode
        /// to another: `["off", "key"]` first on all nodes, then `security.mode=key`, then nothing here. Empty:
        /// `security.mode` alone. Whoever proves nothing may do everything meanwhile.
        security_accept "security.accept": Vec<SecurityMode> = vec![], example "[\"off\", \"key\"]";
        /// Refuse to start where something would go over a network in plain text: RDMA, `network.tcp.security=auth`, and
        /// `security.mode=off` or `off` in `security.accept`.
        security_require_encryption "security.require_encryption": bool = false;
        /// The file that holds the key of the cluster, of mode 0600: `forebay key create` makes one.
        security_key_file "security.key_file": PathBuf = PathBuf::from("/etc/forebay/cluster.key");
        /// With `mtls`: the certificate of this process, and those between it and an authority, in PEM format.
        security_cert_file "security.cert_file": PathBuf = PathBuf::from("/etc/forebay/tls.crt");
        /// The private key of this certificate, in PEM format. Of mode 0600.
        security_cert_key_file "security.cert_key_file": PathBuf = PathBuf::from("/etc/forebay/tls.key");
        /// The authorities whose certificates are believed, in PEM format.
        security_ca_file "security.ca_file": PathBuf = PathBuf::from("/etc/forebay/ca.crt");
        /// A file of identities, one a line, that are denied though their certificates are good. Read again when it changes.
        security_denied_file "security.denied_file": Option<PathBuf> = None, example "\"/etc/forebay/denied\"";
        /// A file of tokens, one a line: whoever shows one in `Authorization: Bearer` to a coordinator or a page of metrics
        /// is an admin there. Of mode 0600; `forebay key token` makes one. Read again when it changes.
        security_token_file "security.token_file": Option<PathBuf> = None, example "\"/etc/forebay/token\"";
        /// The same for who scrapes: these tokens open `/metrics` and `/stats`, and nothing that names a file.
        security_metrics_token_file "security.metrics_token_file": Option<PathBuf> = None,
            example "\"/etc/forebay/metrics-token\"";
        /// The SPIFFE trust domain of the cluster's identities, `spiffe://DOMAIN/forebay/CLUSTER/ROLE/NAME`.
        security_trust_domain "security.trust_domain": String = String::from("forebay");
        /// A file in which a worker or a coordinator records who did what to which path, and who was admitted or refused:
        /// a JSON object a line. Of mode 0600, and for one process alone: a worker and a coordinator of one host each have
        /// their own. Unset: none.
        security_audit_file "security.audit.file": Option<PathBuf> = None, example "\"/var/log/forebay/audit.jsonl\"";
        /// What is recorded besides all that is refused: `changes` to files, to what is cached, and to mounts, policies,
        /// drains and jobs, and who is admitted; or `all`, which is also lookups, listings and opens by path, and reads of
        /// the REST interface. Reads of blocks are never recorded.
        security_audit_events "security.audit.events": AuditEvents = AuditEvents::Changes;
        /// A file that would outgrow this is renamed to `FILE.1`, that to `FILE.2`, and so on.
        security_audit_max_size "security.audit.max_size": ByteSize = ByteSize::mib(64), in ByteSize::mib(1)..=MAX_BYTES;
        /// How many of these renamed files are kept.
        security_audit_keep "security.audit.keep": u32 = 8, in 1..=1000;
    }
    section "Log" {
        /// The lowest severity of the messages that are logged.
        log_level "log.level": LogLevel = LogLevel::Info;
        /// File to log to. Unset: standard error, or a file of its own for a background process.
        log_file "log.file": Option<PathBuf> = None, example "\"/var/log/forebay.log\"";
        /// `text` is for people; `json` writes one object per line.
        log_format "log.format": LogFormat = LogFormat::Text;
    }
}

#[cfg(test)]
mod tests;
