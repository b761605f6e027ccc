//! From a configuration to the parts: which setting goes where. Nothing here decides anything else.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use anyhow::Context as _;
use forebay_client::{Away, Client, ClientOptions, Connector, PrefetchOptions};
use forebay_cluster::{Backoff, HedgeOptions, Member, Membership, Reach, StaticMembership};
use forebay_config::{Config, Loaded, Origin as Source, SecurityMode, WriteMode};
use forebay_engine::FetchPolicy;
use forebay_fuse::{MountOptions, WritingOptions, largest_read};
use forebay_identity::Auditing;
use forebay_memory::{Pool, PoolError, PoolOptions, Sharing};
use forebay_origin::{ChosenBy, Origin, OriginOptions, S3Options};
use forebay_private::PrivateListener;
use forebay_staging::StagingOptions;
use forebay_store::{DiskOptions, Eviction, Prewarm, ServeMode, Store, StoreOptions};
use forebay_tcp::{ServerOptions, TcpError, TcpServer, TcpTransport};
use forebay_transport::{LocalTransport, Service, Transport};
use forebay_types::{ByteSize, FsPath};
use forebay_worker::{MetadataOptions, Namespace, Worker, WorkerOptions};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::binding;
use crate::block_size::block_size;
use crate::driving::drive_options;
use crate::error::{Exit, Fault};
use crate::rdma::RdmaConnector;
use crate::security::{self, Security};
use crate::window::NearConnector;

/// The name of the worker in this process.
pub const LOCAL: &str = "local";

fn pool(size: ByteSize, huge_pages: bool, sharing: Sharing) -> Result<Pool, PoolError> {
    Pool::new(PoolOptions { huge_pages, sharing, ..PoolOptions::fixed(size.max(PoolOptions::MIN_SIZE)) })
}

/// The worker's block store on `disks`; `prewarm` says when it takes its memory. `sharing`: whether processes on this host
/// may look at that; `others`: whether it serves other processes, whose cards may read it where the configuration says so.
///
/// # Errors
/// When memory cannot be had or a disk not be used.
pub async fn worker_store(
    config: &Config,
    disks: Vec<DiskOptions>,
    prewarm: Prewarm,
    sharing: Sharing,
    others: bool,
) -> anyhow::Result<Store> {
    let size =
        Some(config.worker_memory_size).filter(|size| size.as_u64() > 0).unwrap_or(StoreOptions::MEMORY_OF_DISKS_ALONE);
    let memory = pool(size, config.worker_memory_huge_pages, sharing)?;
    if others && config.network_rdma_data_enabled && config.network_rdma_data_one_sided {
        memory.let_peers_read();
    }
    // Percentages between 1 and 100, as the table of keys says.
    let percent = |value: u32| u8::try_from(value).unwrap_or(100);
    let options = StoreOptions {
        disks,
        block_size: block_size(config),
        io: config.worker_disk_io,
        serve: config.worker_disk_serve,
        disk_read_timeout: config.worker_disk_read_timeout,
        prewarm,
        verify_reads: config.worker_memory_verify_reads,
        verify_interval: config.worker_memory_verify_interval,
        high_watermark: percent(config.worker_eviction_high_watermark),
        low_watermark: percent(config.worker_eviction_low_watermark),
        ..StoreOptions::in_memory(memory)
    };
    Ok(Store::open(options).await?)
}

/// How an origin is talked to when its mount says nothing else.
pub fn origin_options(loaded: &Loaded) -> OriginOptions {
    let config = &loaded.config;
    let path_style = (loaded.origin("origin.s3.path_style") != Source::Default).then_some(config.origin_s3_path_style);
    OriginOptions {
        max_concurrency: config.origin_max_concurrency as usize,
        request_timeout: config.origin_request_timeout,
        stall_timeout: OriginOptions::default().stall_timeout.min(config.origin_request_timeout),
        connect_timeout: config.origin_connect_timeout,
        retry_deadline: config.origin_retry_deadline,
        max_attempts: config.origin_retry_max_attempts,
        in_place: config.origin_s3_in_place,
        s3: S3Options {
            endpoint: config.origin_s3_endpoint.clone(),
            region: config.origin_s3_region.clone(),
            profile: config.origin_s3_profile.clone(),
            path_style,
            anonymous: config.origin_s3_anonymous,
            checksum: config.origin_s3_checksum,
            keys: None,
        },
        allow_http: config.origin_allow_http,
        chosen_by: ChosenBy::Operator,
    }
}

/// The origin at `url`.
///
/// # Errors
/// When URL or settings make no sense. The origin is not asked anything.
pub fn open_origin(loaded: &Loaded, url: &str) -> anyhow::Result<Arc<dyn Origin>> {
    Ok(forebay_origin::open(url, &origin_options(loaded))?)
}

/// Asks the origin at `url` for its root, with few retries, so that a user who starts something soon knows whether it
/// works.
///
/// # Errors
/// What the origin refused with, or why it did not answer.
pub async fn probe_origin(loaded: &Loaded, url: &str) -> anyhow::Result<()> {
    let root = forebay_origin::open(url, &origin_options(loaded).for_a_probe())?.list(b"", None, 1).await;
    root.map_err(|failure| failure.context("cannot list the root"))?;
    Ok(())
}

/// A worker that caches what `mounts` show, in `store`.
///
/// # Errors
/// When two mounts are at one path.
pub fn worker(
    config: &Config,
    store: Store,
    mounts: Vec<(FsPath, Arc<dyn Origin>)>,
    others: bool,
) -> anyhow::Result<Arc<Worker>> {
    let namespace = Namespace::new(mounts)?;
    let namespace = guarded(config, if others { namespace.and_others() } else { namespace });
    let options = WorkerOptions {
        block_size: block_size(config),
        fetch: FetchPolicy::origin(config.origin_min_get_size.as_u64(), config.origin_max_get_size.as_u64()),
        deadline: config.origin_retry_deadline,
        takes_changes: config.write_mode == WriteMode::Through,
        metadata: MetadataOptions { ttl: config.metadata_ttl, entries: u64::from(config.metadata_cache_entries) },
    };
    Ok(Arc::new(Worker::new(store, namespace, options)))
}

/// The namespace as a worker with this configuration shows it: where clients prove who they are, nothing that is cached
/// is shown before it is known whose it is, so that a mount that was removed while the worker was away is gone, too.
pub(crate) fn guarded(config: &Config, namespace: Namespace) -> Namespace {
    match config.security_mode {
        SecurityMode::Off => namespace,
        SecurityMode::Key | SecurityMode::Mtls => namespace.guarded(),
    }
}

/// A server for `service` at `address`. One that is not `shared` is asked so little that it gets threads only when they are asked for.
///
/// # Errors
/// When it cannot listen there.
pub fn server(
    config: &Config,
    address: SocketAddr,
    service: Arc<dyn Service>,
    shared: bool,
    security: Option<&Security>,
    audit: Option<Auditing>,
) -> Result<TcpServer, TcpError> {
    let (passes, security) = (security.map(Security::passes), security.map(Security::server));
    TcpServer::bind(ServerOptions { security, passes, audit, ..server_options(config, address, shared) }, service)
}

/// The same for this user and root alone, at the Unix socket `path`.
///
/// # Errors
/// When it cannot listen there.
pub fn private_server(
    config: &Config,
    path: &Path,
    service: Arc<dyn Service>,
    security: Option<&Security>,
    audit: Option<Auditing>,
) -> anyhow::Result<TcpServer> {
    let listener = PrivateListener::bind(path).map_err(|error| {
        let next = "set FOREBAY_RUN_DIR to a directory of yours, with a short path";
        Fault::new(Exit::Denied, error.to_string(), next)
    })?;
    let nowhere = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
    let security = security.map(Security::server);
    let options = ServerOptions { security, audit, ..server_options(config, nowhere, false) };
    Ok(TcpServer::private(listener, options, service)?)
}

fn server_options(config: &Config, address: SocketAddr, shared: bool) -> ServerOptions {
    let defaults = ServerOptions::new(address, config.cluster_name.as_str(), block_size(config));
    ServerOptions {
        max_connections: config.worker_max_connections as usize,
        max_connections_per_client: config.worker_max_connections_per_client as usize,
        idle_timeout: config.network_tcp_idle_timeout,
        max_requests: config.worker_max_requests as usize,
        keepalive: config.network_tcp_keepalive.min(defaults.keepalive),
        takes_files: config.worker_disk_serve == ServeMode::Splice,
        body_memory: config.worker_write_memory,
        io_threads: config.network_tcp_io_threads.map(|threads| threads as usize).or((!shared).then_some(0)),
        zero_copy: config.network_tcp_zero_copy,
        ..defaults
    }
}

/// Connects to workers over TCP.
pub struct TcpConnector {
    options: forebay_tcp::ClientOptions,
}

impl TcpConnector {
    /// Links of a worker to the others, as the configuration wants them.
    ///
    /// # Errors
    /// When the interface that they are to leave by has no address.
    pub fn of_worker(config: &Config, security: Option<&Security>) -> anyhow::Result<Self> {
        Ok(Self { options: proving(tcp_options(config, binding::worker_source(config)?), security) })
    }

    /// Links of a process that only asks workers things, as a coordinator does.
    ///
    /// # Errors
    /// When the interface that they are to leave by has no address.
    pub fn of_asker(config: &Config, security: Option<&Security>) -> anyhow::Result<Self> {
        Ok(Self { options: proving(tcp_options(config, binding::source_for(config, Reach::Requests)?), security) })
    }
}

fn proving(options: forebay_tcp::ClientOptions, security: Option<&Security>) -> forebay_tcp::ClientOptions {
    forebay_tcp::ClientOptions { security: security.and_then(Security::client), ..options }
}

impl Connector for TcpConnector {
    fn connect(&self, member: &Member) -> Arc<dyn Transport> {
        Arc::new(TcpTransport::new(Arc::clone(&member.address), security::options_for(&self.options, member)))
    }
}

fn tcp_options(config: &Config, source: Option<IpAddr>) -> forebay_tcp::ClientOptions {
    let defaults = forebay_tcp::ClientOptions::new(config.cluster_name.as_str(), block_size(config));
    forebay_tcp::ClientOptions {
        connections: config.client_connections_per_worker as usize,
        connect_timeout: defaults.connect_timeout.min(config.client_request_timeout),
        keepalive: config.network_tcp_keepalive,
        dead_after: config.network_tcp_dead_after,
        bind: source,
        drive: drive_options(config),
        ..defaults
    }
}

/// Connects to the worker in this process directly, and to others as `others` does.
struct MixedConnector {
    name: Arc<str>,
    service: Arc<dyn Service>,
    others: Arc<dyn Connector>,
}

impl Connector for MixedConnector {
    fn connect(&self, member: &Member) -> Arc<dyn Transport> {
        match member.name == self.name {
            true => Arc::new(LocalTransport::new(Arc::clone(&self.service))),
            false => self.others.connect(member),
        }
    }

    fn register(&self, memory: &Pool) {
        self.others.register(memory);
    }

    fn is_registered(&self, buffer: &[u8]) -> bool {
        self.others.is_registered(buffer)
    }

    fn close(&self) -> futures::future::BoxFuture<'_, ()> {
        self.others.close()
    }
}

struct LocalConnector {
    service: Arc<dyn Service>,
}

impl Connector for LocalConnector {
    fn connect(&self, _member: &Member) -> Arc<dyn Transport> {
        Arc::new(LocalTransport::new(Arc::clone(&self.service)))
    }
}

async fn client(
    config: &Config,
    membership: Arc<dyn Membership>,
    connector: Arc<dyn Connector>,
    (buffers, prefetch_budget): (Pool, ByteSize),
    away: Away,
) -> anyhow::Result<Client> {
    let options = ClientOptions { prefetch_budget: prefetch_budget.as_u64(), ..client_options(config) };
    let alloc_deadline = options.buffer_deadline();
    let buffers = StoreOptions { eviction: Eviction::Fifo, alloc_deadline, ..StoreOptions::in_memory(buffers) };
    let buffers = Store::open(buffers).await?;
    Ok(Client::with_resort(membership, connector, buffers, options, away, tokio::runtime::Handle::current()))
}

fn client_options(config: &Config) -> ClientOptions {
    ClientOptions {
        block_size: block_size(config),
        max_concurrency: Some(config.client_max_concurrency as usize).filter(|most| *most > 0),
        request_timeout: config.client_request_timeout,
        change_timeout: config.write_timeout,
        backoff: Backoff { initial: config.client_retry_initial_backoff, max: config.client_retry_max_backoff },
        hedge: config.client_hedge_enabled.then_some(HedgeOptions {
            min_delay: config.client_hedge_min_delay,
            budget_percent: config.client_hedge_budget,
        }),
        prefetch: PrefetchOptions {
            max_part_number: config.prefetch_parts(),
            far_part_number: config.prefetch_parts_far(),
            largest_request: u32::try_from(largest_read(config.fuse_max_read).as_u64()).unwrap_or(u32::MAX),
            read_ahead: u32::try_from(forebay_fuse::read_ahead(config.fuse_read_ahead).as_u64()).unwrap_or(u32::MAX),
            file_length_threshold: config.client_prefetch_file_length_threshold.as_u64(),
            models: config.client_prefetch_models,
        },
        directory_budget: config.client_prefetch_directory_budget.as_u64(),
        // At most 1 MiB, as the table of keys says.
        small_file_size: u32::try_from(config.client_small_file_size.as_u64()).unwrap_or(u32::MAX),
        ..ClientOptions::default()
    }
}

/// The worker in this process that a client reads from directly, and its name.
pub type Own = (Arc<str>, Arc<dyn Service>);

/// A client of workers in other processes, and what is counted of its links.
pub struct RemoteClient {
    /// The client.
    pub client: Client,
    /// Its links.
    pub links: LinkReports,
}

/// What is counted of a client's links, for as long as it has them.
#[derive(Clone, Default)]
pub struct LinkReports {
    rdma: Weak<RdmaConnector>,
    near: Weak<NearConnector>,
}

impl LinkReports {
    /// Adds it to the report of the client's process.
    pub fn add_to(&self, report: &mut Value) {
        if let Some(rdma) = self.rdma.upgrade() {
            report["rdma"] = rdma.report();
        }
        if let Some(near) = self.near.upgrade() {
            report["window"] = near.report();
        }
    }
}

/// A client of the workers of `membership`, over TCP, RDMA and shared memory; of `own`, if it is one of them, directly. `reach` is which of their
/// addresses those are, and decides what it connects from; `away` is what becomes of requests while none can be reached;
/// `security` is what it proves to them, over TCP and for shared memory; it is to be kept for as long as the client.
///
/// # Errors
/// When its memory cannot be had or its interface has no address.
pub async fn remote_client(
    config: &Config,
    reach: Reach,
    membership: Arc<dyn Membership>,
    own: Option<Own>,
    away: Away,
    security: Option<&Security>,
) -> anyhow::Result<RemoteClient> {
    let options = proving(tcp_options(config, binding::source_for(config, reach)?), security);
    let buffers = match crate::rdma::is_wanted_for_data(config) {
        true => registered_buffers(config).await?,
        false => pool(config.client_memory_size, config.worker_memory_huge_pages, Sharing::Private)?,
    };
    let mut links = LinkReports::default();
    let connector: Arc<dyn Connector> = match RdmaConnector::start(config, &buffers, &options).await?.map(Arc::new) {
        Some(rdma) => {
            links.rdma = Arc::downgrade(&rdma);
            rdma
        }
        None => Arc::new(TcpConnector { options }),
    };
    let near = NearConnector::over(Arc::clone(&connector), config, security);
    let connector: Arc<dyn Connector> = match near.map(Arc::new) {
        Some(near) => {
            links.near = Arc::downgrade(&near);
            near
        }
        None => connector,
    };
    let connector = match own {
        Some((name, service)) => Arc::new(MixedConnector { name, service, others: connector }),
        None => connector,
    };
    // The other half holds what was read and may be read again by others, and what is in flight.
    let budget = ByteSize::bytes(buffers.capacity().as_u64() / 2);
    let client = client(config, membership, connector, (buffers, budget), away).await?;
    Ok(RemoteClient { client, links })
}

/// Buffers to be registered. If the future is dropped, the taking of their memory ends.
async fn registered_buffers(config: &Config) -> anyhow::Result<Pool> {
    let pool = Pool::new(PoolOptions {
        initial: config.network_rdma_data_buffer_pool_initial_size,
        max: config.network_rdma_data_buffer_pool_max_size.max(PoolOptions::MIN_SIZE),
        huge_pages: config.worker_memory_huge_pages,
        sharing: Sharing::Private,
    })?;
    let given_up = CancellationToken::new();
    let _waits = given_up.clone().drop_guard();
    let (warmed, size) = (pool.clone(), config.network_rdma_data_buffer_pool_prewarm_size);
    let warming = tokio::task::spawn_blocking(move || warmed.warm_up(size, || !given_up.is_cancelled()));
    warming.await.context("taking memory panicked")??;
    Ok(pool)
}

/// A client of the worker in this process.
///
/// # Errors
/// When its memory cannot be had.
pub async fn local_client(config: &Config, service: Arc<dyn Service>) -> anyhow::Result<Client> {
    let membership = Arc::new(StaticMembership::new([LOCAL]));
    // Bytes are handed out as they lie in the worker's memory, so nothing is ever buffered.
    let budget = ByteSize::bytes(config.worker_memory_size.as_u64() / 4);
    let buffers = pool(PoolOptions::MIN_SIZE, config.worker_memory_huge_pages, Sharing::Private)?;
    client(config, membership, Arc::new(LocalConnector { service }), (buffers, budget), Away::Fail).await
}

/// How the kernel mounts what `source` names.
pub fn mount_options(loaded: &Loaded, source: String) -> MountOptions {
    let config = &loaded.config;
    let defaults = MountOptions::default();
    MountOptions {
        source,
        allow_other: config.fuse_allow_other.unwrap_or(defaults.allow_other),
        selinux_context: config.fuse_selinux_context.clone(),
        open_status_cache: config.client_open_status_cache_enabled,
        max_read: config.fuse_max_read,
        io: config.fuse_io,
        ring_depth: config.fuse_uring_depth,
        ring_memory: config.fuse_uring_memory,
        interrupts: config.fuse_interrupts,
        threads: config.fuse_threads as usize,
        spin: config.fuse_spin,
        splice: config.fuse_splice,
        // At most 65 535, as the table of keys says.
        max_background: u16::try_from(config.fuse_max_background).unwrap_or(u16::MAX),
        read_ahead: config.fuse_read_ahead,
        // Names that are not there are names, too: with a time of zero, the kernel shall always ask.
        negative_ttl: defaults.negative_ttl.min(config.metadata_ttl),
        uid: config.posix_uid,
        gid: config.posix_gid,
        file_mode: config.posix_file_mode.bits(),
        directory_mode: config.posix_dir_mode.bits(),
        ..defaults
    }
}

/// How a mount writes that stages in `directory` as `owner`.
pub fn writing_options(config: &Config, directory: PathBuf, owner: String) -> WritingOptions {
    let staging = staging_options(config, directory, owner);
    WritingOptions { staging, ignore_mode: config.posix_ignore_mode }
}

/// How what is written is staged and uploaded.
pub fn staging_options(config: &Config, directory: PathBuf, owner: String) -> StagingOptions {
    StagingOptions {
        dir: directory,
        size: config.write_staging_size,
        part_size: config.write_part_size,
        memory: config.write_memory,
        timeout: config.write_timeout,
        quiet: StagingOptions::QUIET,
        owner,
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;
    use std::net::Ipv4Addr;

    use forebay_config::Sources;

    use super::*;

    fn text(options: &impl Debug) -> String {
        format!("{options:#?}")
    }

    #[test]
    fn parts_that_are_told_nothing_do_what_the_defaults_of_the_configuration_say() {
        let loaded = Config::load(&Sources::new()).unwrap();
        let config = &loaded.config;
        let (cluster, block_size) = (config.cluster_name.as_str(), block_size(config));
        let mut client = client_options(config);
        // A client that no kernel reads through knows nothing of how one does.
        (client.prefetch.largest_request, client.prefetch.read_ahead) = (u32::MAX, u32::MAX);
        assert_eq!(text(&client), text(&ClientOptions::default()));
        assert_eq!(text(&tcp_options(config, None)), text(&forebay_tcp::ClientOptions::new(cluster, block_size)));
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        assert_eq!(
            text(&server_options(config, address, true)),
            text(&ServerOptions::new(address, cluster, block_size))
        );
        assert_eq!(text(&origin_options(&loaded)), text(&OriginOptions::default()));
        let mount = MountOptions::default();
        assert_eq!(text(&mount_options(&loaded, mount.source.clone())), text(&mount));
    }
}
