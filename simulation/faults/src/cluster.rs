//! The processes of a cluster, put together from the product's own parts over the simulated world.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_client::{Away, Client, ClientOptions};
use forebay_cluster::records::members::{Addresses, Capacity, WorkerRecord};
use forebay_cluster::records::mounts::{MOUNTS, MountRecord};
use forebay_cluster::records::policies::{POLICIES, PolicyRecord};
use forebay_cluster::{Backoff, Membership as _, Reach, Topology};
use forebay_engine::FetchPolicy;
use forebay_memory::{Pool, PoolOptions, Sharing};
use forebay_origin::Origin;
use forebay_peering::{JoinOptions, Joined};
use forebay_state::StateStore;
use forebay_state::membership::{Members, MembersOptions, RegisteredOptions, Table};
use forebay_store::{Eviction, SlabMedium, Store, StoreError, StoreOptions};
use forebay_types::{ByteSize, FsPath, PolicyTable};
use forebay_worker::{DrainOptions, MetadataOptions, Namespace, Worker, WorkerOptions};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::disk::{self, SimulatedDisk};
use crate::etcd::SimulatedEtcd;
use crate::faults::Fault;
use crate::kernel::{self, Process};
use crate::net::{self, SimulatedConnector};
use crate::origin::{self, SimulatedOrigin};
use crate::{faults, model};

/// The one cache group.
pub(crate) const GROUP: &str = "default";

/// What is configured alike everywhere: the product's defaults, but for sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) block_size: u32,
    pub(crate) worker_memory: u64,
    pub(crate) client_memory: u64,
    pub(crate) disk_frames: u32,
    pub(crate) metadata_ttl: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) change_timeout: Duration,
    pub(crate) lease: Duration,
    pub(crate) warmup: Duration,
    pub(crate) verify_reads: bool,
    /// How long a disk is waited for; zero: for ever.
    pub(crate) disk_read_timeout: Duration,
}

const BACKOFF: Backoff = Backoff { initial: Duration::from_millis(500), max: Duration::from_secs(30) };
const PEER_TIMEOUT: Duration = Duration::from_secs(2);

/// A machine with a worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerSite {
    pub(crate) node: usize,
    pub(crate) disk: Option<usize>,
    /// The identity of its slab.
    pub(crate) slab: [u8; 16],
}

/// A worker's process, as the world sees it.
struct Running {
    process: Process,
    members: Arc<Members>,
    stop: CancellationToken,
}

#[derive(Default)]
struct Processes {
    workers: BTreeMap<usize, Running>,
    clients: BTreeMap<usize, (Process, Client)>,
    /// Processes that start: until they are up, that is what is wrong with them.
    starting: BTreeMap<usize, u64>,
    /// Machines whose disks were written to.
    used: BTreeMap<usize, bool>,
    /// Memory of processes that live, or ended in an orderly way: all of it is to be free in the end.
    pools: BTreeMap<usize, Vec<(Process, Pool)>>,
}

thread_local! {
    static PROCESSES: RefCell<Processes> = RefCell::default();
}

fn processes<T>(with: impl FnOnce(&mut Processes) -> T) -> T {
    PROCESSES.with_borrow_mut(with)
}

/// The name of the worker at a node.
pub(crate) fn worker_name(node: usize) -> String {
    net::address_of(node)
}

fn memory(size: u64) -> Pool {
    let pool = pool(size);
    let process = kernel::current();
    let old = processes(|processes| {
        let pools = processes.pools.entry(process.node).or_default();
        let old: Vec<_> = pools.extract_if(.., |(of, _)| *of != process).collect();
        pools.push((process, pool.clone()));
        old
    });
    drop(old);
    pool
}

/// Bytes that are in use of the memory of a node's last process.
pub(crate) fn memory_in_use(node: usize) -> u64 {
    processes(|processes| processes.pools.get(&node).map_or(0, |pools| pools.iter().map(|(_, pool)| pool.used()).sum()))
}

fn pool(size: u64) -> Pool {
    let size = ByteSize::bytes(size);
    let options = PoolOptions { initial: size, max: size, huge_pages: false, sharing: Sharing::Private };
    Pool::new(options).expect("memory can be had")
}

pub(crate) fn members_of(store: &Arc<dyn StateStore>, settings: &Settings) -> Arc<Members> {
    let options = MembersOptions {
        group: GROUP.to_owned(),
        grace: settings.lease * 2,
        until_told: Topology::default(),
        reach: Reach::Requests,
    };
    Arc::new(Members::watch(store, options))
}

/// A process starts.
pub(crate) fn starts(node: usize, until_up: u64) {
    processes(|processes| processes.starting.insert(node, until_up));
}

/// It is up, which a worker is once it knows what is mounted, or will never be.
pub(crate) fn is_up(node: usize) {
    if let Some(until_up) = processes(|processes| processes.starting.remove(&node)) {
        faults::ends(until_up);
    }
}

/// Starts the worker of a machine. `up` is what it is that it is not there until then.
pub(crate) fn start_worker(site: WorkerSite, settings: Settings, until_up: u64) {
    starts(site.node, until_up);
    kernel::start(site.node, move || {
        tokio::spawn(work(site, settings));
    });
}

/// Whether anything was wrong with a disk at any time since then.
fn is_ill_since(disk: usize, since: Duration) -> bool {
    faults::since(since).contains(&Fault::Disk(disk))
}

async fn work(site: WorkerSite, settings: Settings) {
    let process = kernel::current();
    let is_new = processes(|processes| !std::mem::replace(processes.used.entry(site.node).or_default(), true));
    let slabs = site.disk.map(|disk| SlabMedium {
        name: format!("disk{disk}").into(),
        id: site.slab,
        frames: settings.disk_frames,
        is_new,
        medium: Arc::new(SimulatedDisk(disk)),
    });
    let options = StoreOptions {
        block_size: settings.block_size,
        verify_reads: settings.verify_reads,
        verify_interval: Duration::from_secs(600),
        disk_read_timeout: settings.disk_read_timeout,
        ..StoreOptions::in_memory(memory(settings.worker_memory))
    };
    let slabs: Vec<SlabMedium> = slabs.into_iter().collect();
    let store = loop {
        let began = kernel::now();
        match Store::open_on(options.clone(), slabs.clone()).await {
            Ok(store) => break store,
            // It ends with an error on a disk that hangs or hardly moves, and is then started again.
            Err(error @ StoreError::Silent { .. }) if site.disk.is_some_and(|disk| is_ill_since(disk, began)) => {
                kernel::note(format!("worker does not start: {error}"));
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Err(error) => return kernel::violated("a worker starts", error.to_string()),
        }
    };
    let counted = store.clone();
    model::caches(process, move || leaves(&counted));
    let options = WorkerOptions {
        block_size: settings.block_size,
        fetch: FetchPolicy::origin(64 << 10, 4 << 20),
        deadline: origin::DEADLINE,
        takes_changes: true,
        metadata: MetadataOptions { ttl: settings.metadata_ttl, entries: 100_000 },
    };
    let worker = Arc::new(Worker::new(store.clone(), Namespace::default().and_others(), options));
    let etcd = SimulatedEtcd::new();
    let state = Arc::clone(&etcd) as Arc<dyn StateStore>;
    let members = members_of(&state, &settings);
    let (mounts, policies) =
        (Table::watch(&state, MOUNTS, MountRecord::decode), Table::watch(&state, POLICIES, PolicyRecord::decode));
    let stop = CancellationToken::new();
    let (show, mut shows) = watch::channel(false);
    let following = tokio::spawn(follow(site.node, Arc::clone(&worker), mounts, policies, show, stop.clone()));
    let address = net::address_of(site.node);
    net::listen(&address, Arc::clone(&worker) as _);
    processes(|processes| {
        processes.workers.insert(site.node, Running { process, members: Arc::clone(&members), stop: stop.clone() });
    });
    let record = WorkerRecord {
        name: worker_name(site.node),
        group: GROUP.to_owned(),
        addresses: Addresses { rpc: address.clone(), ..Addresses::default() },
        capacity: Capacity { memory: settings.worker_memory, disk: 0 },
        block_size: u64::from(settings.block_size),
        weight: 1.0,
        since: 0,
        ..WorkerRecord::default()
    };
    let ready = async move {
        let _ = shows.wait_for(|shows| *shows).await;
    };
    let options = JoinOptions {
        peer_timeout: PEER_TIMEOUT,
        backoff: BACKOFF,
        registration: RegisteredOptions { ttl: settings.lease, warmup: settings.warmup },
        drain: DrainOptions::default(),
    };
    let connector = Arc::new(SimulatedConnector);
    let joined = Joined::join(&worker, record, state, Arc::clone(&members), connector, options, ready);
    kernel::note("worker is up");
    stop.cancelled().await;
    // In the order of `forebay`'s own end.
    joined.close().await;
    net::close(&address);
    let _ = following.await;
    worker.close().await;
    let _ = tokio::time::timeout(Duration::from_secs(20), store.flush()).await;
    drop(worker);
    members.close().await;
    etcd.close().await;
    drop(processes(|processes| processes.workers.remove(&site.node)));
    model::gone(site.node);
    store.close().await;
    kernel::note("worker has ended");
    // Each task has an owner, which has waited for it; but a disk that is not waited for any more keeps what it has.
    let waits_for_ever = settings.disk_read_timeout.is_zero();
    let kept = site.disk.filter(|_| !waits_for_ever).map_or(0, disk::under_way);
    let left = Handle::current().metrics().num_alive_tasks().saturating_sub(1 + net::serving(process) + kept);
    if left > 0 {
        kernel::violated("everything ends", format!("{left} tasks of the worker of node {} outlive it", site.node));
    }
}

/// Keeps a worker's namespace and policies as the cluster says.
async fn follow(
    node: usize,
    worker: Arc<Worker>,
    mounts: Table<MountRecord>,
    policies: Table<PolicyRecord>,
    show: watch::Sender<bool>,
    stop: CancellationToken,
) {
    let (mut shows_mounts, mut shows_policies) = (false, false);
    let (mut told_mounts, mut told_policies) = (mounts.records(), policies.records());
    let mut opened: BTreeMap<FsPath, (String, Arc<dyn Origin>)> = BTreeMap::new();
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            _ = told_mounts.changed() => {
                let records = told_mounts.borrow_and_update().clone();
                let Some(records) = records else { continue };
                let before = std::mem::take(&mut opened);
                for record in records.values() {
                    let (Ok(path), Some(number)) = (FsPath::new(&record.path), origin::with_url(&record.origin)) else { continue };
                    let known = before.get(&path).filter(|(url, _)| *url == record.origin).map(|(_, origin)| Arc::clone(origin));
                    let origin = known.unwrap_or_else(|| Arc::new(SimulatedOrigin::new(number)));
                    opened.insert(path, (record.origin.clone(), origin));
                }
                let shown = opened.iter().map(|(path, (_, origin))| (path.clone(), Arc::clone(origin)));
                if let Ok(namespace) = Namespace::new(shown) {
                    worker.set_namespace(namespace).await;
                    shows_mounts = true;
                    // Until then its answer is that it does not know yet: with etcd away, for as long as that is so.
                    is_up(node);
                }
            }
            _ = told_policies.changed() => {
                let records = told_policies.borrow_and_update().clone();
                if let Some(records) = records {
                    worker.set_policies(PolicyTable::new(records.values().filter_map(|record| record.policy().ok()))).await;
                    shows_policies = true;
                }
            }
        }
        show.send_replace(shows_mounts && shows_policies);
    }
    tokio::join!(mounts.close(), policies.close());
}

/// Whatever left a worker's cache.
fn leaves(store: &Store) -> u64 {
    let stats = store.stats();
    let disks = stats.disks.iter().map(|disk| {
        // What is on a disk that is out counts as not held, whatever is fetched meanwhile.
        let out = if disk.out { kernel::now().as_nanos() as u64 } else { disk.taken_out + disk.read_timeouts };
        disk.runs_evicted + disk.corrupt_sectors + disk.read_errors + disk.write_errors + out
    });
    stats.memory.runs_evicted
        + stats.memory.corrupt_sectors
        + stats.over_quota
        + stats.bytes_removed
        + stats.disk_write_skipped
        + disks.sum::<u64>()
}

/// Starts the process of a mount.
pub(crate) fn start_client(node: usize, settings: Settings, until_up: u64) {
    starts(node, until_up);
    kernel::start(node, move || {
        tokio::spawn(async move {
            let etcd: Arc<dyn StateStore> = SimulatedEtcd::new();
            let members = members_of(&etcd, &settings);
            // `forebay mount` ends with an error, and is then started again.
            while !members.told(Duration::from_secs(10)).await {}
            let (client, _) = client_over(Arc::clone(&members), &settings).await;
            let process = kernel::current();
            let before = processes(|processes| processes.clients.insert(node, (process, client)));
            drop(before);
            is_up(node);
            kernel::note("mount is up");
        });
    });
}

/// A client of the members, and its buffers.
pub(crate) async fn client_over(members: Arc<Members>, settings: &Settings) -> (Client, Store) {
    let buffers = StoreOptions {
        eviction: Eviction::Fifo,
        alloc_deadline: settings.request_timeout / 4,
        ..StoreOptions::in_memory(memory(settings.client_memory))
    };
    let buffers = Store::open(buffers).await.expect("a store of memory can be had");
    let options = ClientOptions {
        block_size: settings.block_size,
        request_timeout: settings.request_timeout,
        change_timeout: settings.change_timeout,
        backoff: BACKOFF,
        prefetch_budget: settings.client_memory / 2,
        ..ClientOptions::default()
    };
    let runtime = Handle::current();
    let client =
        Client::with_resort(members, Arc::new(SimulatedConnector), buffers.clone(), options, Away::Wait, runtime);
    (client, buffers)
}

/// The client of a mount that is up.
pub(crate) fn client(node: usize) -> Option<(Process, Client)> {
    processes(|processes| processes.clients.get(&node).cloned()).filter(|(process, _)| kernel::is_alive(*process))
}

/// A process is killed; its machine with it if `off`.
pub(crate) fn kill(node: usize, off: bool) {
    is_up(node);
    net::killed(node, off);
    let gone = processes(|processes| (processes.workers.remove(&node), processes.clients.remove(&node)));
    model::gone(node);
    kernel::kill(node);
    // The last of what its tasks had.
    drop(gone);
}

/// Has a worker end in an orderly way.
pub(crate) fn end_worker(node: usize) {
    let running =
        processes(|processes| processes.workers.get(&node).map(|running| (running.process, running.stop.clone())));
    if let Some((process, stop)) = running {
        kernel::after_at(process, Duration::ZERO, move || stop.cancel());
    }
}

/// Has a mount end in an orderly way.
pub(crate) fn end_client(node: usize) {
    let known = processes(|processes| processes.clients.remove(&node));
    if let Some((process, client)) = known {
        kernel::after_at(process, Duration::ZERO, move || {
            tokio::spawn(async move {
                client.close().await;
                drop(client);
                kernel::note("mount has ended");
            });
        });
    }
}

/// The names of the workers that each process takes for the owners of blocks.
pub(crate) fn views() -> Vec<(usize, Vec<String>)> {
    let names = |topology: &Topology| topology.ring.members().iter().map(|member| member.name.to_string()).collect();
    processes(|processes| {
        let of_workers = processes.workers.iter().map(|(node, running)| (*node, names(&running.members.topology())));
        let of_clients = processes.clients.iter().map(|(node, (_, client))| (*node, names(&client.topology())));
        of_workers.chain(of_clients).collect()
    })
}
