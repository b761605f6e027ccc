//! The clients of a node, as the configuration wants them: of the worker in this process, or of workers in others and the links to
//! these.

use std::net::IpAddr;
use std::sync::{Arc, Weak};

use anyhow::Context as _;
use forebay_client::{Away, Client, ClientOptions, Connector, PrefetchOptions};
use forebay_cluster::{Backoff, HedgeOptions, Member, Membership, Reach, StaticMembership};
use forebay_config::Config;
use forebay_fuse::largest_read;
use forebay_memory::{Pool, PoolOptions, Sharing};
use forebay_store::{Eviction, Store, StoreOptions};
use forebay_tcp::TcpTransport;
use forebay_transport::{LocalTransport, Service, Transport};
use forebay_types::ByteSize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::assembly::pool;
use crate::binding;
use crate::block_size::block_size;
use crate::driving::drive_options;
use crate::rdma::RdmaConnector;
use crate::security::{self, Security};
use crate::window::NearConnector;

/// The name of the worker in this process.
pub const LOCAL: &str = "local";

/// Connects to workers over TCP.
pub(crate) struct TcpConnector {
    options: forebay_tcp::ClientOptions,
}

impl TcpConnector {
    /// Links of a worker to the others, as the configuration wants them.
    ///
    /// # Errors
    /// When the interface that they are to leave by has no address.
    pub(crate) fn of_worker(config: &Config, security: Option<&Security>) -> anyhow::Result<Self> {
        Ok(Self { options: proving(tcp_options(config, binding::worker_source(config)?), security) })
    }

    /// Links of a process that only asks workers things, as a coordinator does.
    ///
    /// # Errors
    /// When the interface that they are to leave by has no address.
    pub(crate) fn of_asker(config: &Config, security: Option<&Security>) -> anyhow::Result<Self> {
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
    pub(crate) fn add_to(&self, report: &mut Value) {
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
pub(crate) async fn local_client(config: &Config, service: Arc<dyn Service>) -> anyhow::Result<Client> {
    let membership = Arc::new(StaticMembership::new([LOCAL]));
    // Bytes are handed out as they lie in the worker's memory, so nothing is ever buffered.
    let budget = ByteSize::bytes(config.worker_memory_size.as_u64() / 4);
    let buffers = pool(PoolOptions::MIN_SIZE, config.worker_memory_huge_pages, Sharing::Private)?;
    client(config, membership, Arc::new(LocalConnector { service }), (buffers, budget), Away::Fail).await
}

#[cfg(test)]
mod tests {
    use forebay_config::Sources;

    use super::*;

    #[test]
    fn clients_that_are_told_nothing_do_what_the_defaults_of_the_configuration_say() {
        let loaded = Config::load(&Sources::new()).unwrap();
        let config = &loaded.config;
        let mut client = client_options(config);
        // A client that no kernel reads through knows nothing of how one does.
        (client.prefetch.largest_request, client.prefetch.read_ahead) = (u32::MAX, u32::MAX);
        assert_eq!(format!("{client:#?}"), format!("{:#?}", ClientOptions::default()));
        let links = forebay_tcp::ClientOptions::new(config.cluster_name.as_str(), block_size(config));
        assert_eq!(format!("{:#?}", tcp_options(config, None)), format!("{links:#?}"));
    }
}
