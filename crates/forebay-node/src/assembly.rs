//! From a configuration to the parts: which setting goes where. Nothing here decides anything else. The clients are in
//! [`crate::clients`].

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_config::{Config, Loaded, Origin as Source, SecurityMode, WriteMode};
use forebay_engine::FetchPolicy;
use forebay_fuse::{MountOptions, WritingOptions};
use forebay_identity::Auditing;
use forebay_memory::{Pool, PoolError, PoolOptions, Sharing};
use forebay_origin::{ChosenBy, Origin, OriginOptions, S3Options};
use forebay_private::PrivateListener;
use forebay_staging::StagingOptions;
use forebay_store::{DiskOptions, Prewarm, ServeMode, Store, StoreOptions};
use forebay_tcp::{ServerOptions, TcpError, TcpServer};
use forebay_transport::Service;
use forebay_types::{ByteSize, FsPath};
use forebay_worker::{MetadataOptions, Namespace, Worker, WorkerOptions};

use crate::block_size::block_size;
use crate::error::{Exit, Fault};
use crate::security::Security;

/// Memory of `size`, or of as much as a pool has at least.
pub(crate) fn pool(size: ByteSize, huge_pages: bool, sharing: Sharing) -> Result<Pool, PoolError> {
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
