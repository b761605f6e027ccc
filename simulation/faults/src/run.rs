//! One run: a cluster that follows from a seed, what is done with it and to it, and what is looked at.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_cluster::records::members::{WorkerRecord, WorkerState};
use forebay_cluster::records::mounts::MountRecord;
use forebay_state::{Transaction, encode_segment};
use rand::Rng;

use crate::cluster::{self, Settings, WorkerSite};
use crate::faults::Fault;
use crate::nemesis::{Nemesis, WELL_FROM};
use crate::workload::{self, Dataset};
use crate::{coordinator, disk, etcd, faults, kernel, origin};

/// What a run is to be.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) hours: f64,
    /// Whether anything is to go wrong.
    pub(crate) faults: bool,
    pub(crate) show_log: bool,
}

/// Runs it to its end, or until an invariant does not hold.
pub(crate) fn run(plan: &Plan) {
    kernel::begin(plan.seed, plan.show_log);
    let end = Duration::from_secs_f64(plan.hours * 3600.0);
    let state = kernel::add_node("etcd");
    etcd::add(state);
    let mut mounts = Vec::new();
    for name in ["a", "b"] {
        let node = kernel::add_node(format!("s3-{name}"));
        let url = format!("s3://{name}");
        mounts.push((origin::add(&url, node), format!("/{name}")));
        let record = MountRecord {
            path: format!("/{name}"),
            origin: url,
            options: std::collections::BTreeMap::new(),
            acl: None,
        };
        etcd::fresh(&Transaction::new().put(MountRecord::key(&encode_segment(&record.path)), record.encode()));
    }
    let settings = settings();
    kernel::note(format!("{settings:?}"));
    let (workers, clients) = kernel::chance(|random| (random.random_range(2..=5), random.random_range(1..=3)));
    let sites: Vec<WorkerSite> = (0..workers)
        .map(|number| {
            let node = kernel::add_node(format!("w{number}"));
            let disk = (settings.disk_frames > 0).then(|| disk::add(settings.disk_frames));
            WorkerSite { node, disk, slab: [number as u8 + 1; 16] }
        })
        .collect();
    let clients: Vec<usize> = (0..clients).map(|number| kernel::add_node(format!("m{number}"))).collect();
    let dataset = Arc::new(Dataset {
        mounts,
        directories: 4,
        files: 10,
        largest: 3 << 20,
        workers: sites.iter().map(|site| site.node).collect(),
        clients: clients.clone(),
        settings,
    });
    dataset.populate();
    for site in &sites {
        cluster::start_worker(*site, settings, faults::begins(Fault::Process(site.node)));
    }
    kernel::run_until(Duration::from_secs(10));
    for client in &clients {
        cluster::start_client(*client, settings, faults::begins(Fault::Process(*client)));
    }
    let coordinators: Vec<usize> = (0..2).map(|number| kernel::add_node(format!("c{number}"))).collect();
    for coordinator in &coordinators {
        coordinator::start(*coordinator, settings, faults::begins(Fault::Process(*coordinator)));
    }
    kernel::run_until(Duration::from_secs(20));
    let going = Rc::new(Cell::new(true));
    operate(&dataset, &going);
    manage(&dataset, &going);
    look_each_hour(&dataset, &going);
    if plan.faults {
        Nemesis::begin(Arc::clone(&dataset), sites, coordinators.clone(), state, &going);
    }
    kernel::run_until(end);
    // Nothing new goes wrong, and nothing new is asked for: all of it has its time to end.
    going.set(false);
    workload::be_strict(false);
    kernel::run_until(end + SETTLES);
    if kernel::violation().is_none() {
        well(&dataset);
    }
    if kernel::violation().is_some() {
        return;
    }
    finish(&dataset, &coordinators, end + SETTLES);
}

/// What goes on ends within this: changes have five minutes.
const SETTLES: Duration = Duration::from_secs(700);
/// How long a process may take to end.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

/// All that there is ends in an orderly way, and leaves nothing.
fn finish(dataset: &Dataset, coordinators: &[usize], at: Duration) {
    for node in coordinators {
        coordinator::gone(*node);
        cluster::kill(*node, false);
    }
    for node in &dataset.clients {
        workload::gone(*node);
        cluster::end_client(*node);
    }
    kernel::run_until(at + ENDS_WITHIN);
    dataset.workers.iter().for_each(|node| cluster::end_worker(*node));
    kernel::run_until(at + ENDS_WITHIN * 2);
    if kernel::violation().is_some() {
        return;
    }
    for node in dataset.workers.iter().chain(&dataset.clients) {
        let (tasks, memory) = (kernel::tasks(*node), cluster::memory_in_use(*node));
        // A mount's process goes on following the members until it ends.
        let own = if dataset.clients.contains(node) { 2 } else { 0 };
        if tasks > own {
            kernel::violated("everything ends", format!("node {node} has {tasks} tasks after it has ended"));
        }
        if memory > 0 {
            kernel::violated("memory is returned", format!("node {node} has {memory} bytes in use after it has ended"));
        }
    }
}

/// In each hour there is a time when nothing has been wrong for a while.
fn look_each_hour(dataset: &Arc<Dataset>, going: &Rc<Cell<bool>>) {
    let into = kernel::now().as_secs() % 3600;
    let wait = (WELL_FROM + 3600 - into) % 3600;
    let (dataset, going) = (Arc::clone(dataset), Rc::clone(going));
    kernel::after(Duration::from_secs(wait.max(1)), move || {
        if !going.get() {
            return;
        }
        well(&dataset);
        workload::be_strict(true);
        let again = Rc::clone(&going);
        kernel::after(Duration::from_secs(3590 - WELL_FROM), move || {
            workload::be_strict(false);
            kernel::after(Duration::from_secs(20), move || look_each_hour(&dataset, &again));
        });
    });
}

/// Nothing is wrong, and it has been so for longer than it takes to find out: all is well.
fn well(dataset: &Dataset) {
    let wrong = faults::now();
    if !wrong.is_empty() {
        return kernel::violated("the simulation itself", format!("{wrong:?} did not end"));
    }
    let prefix = WorkerRecord::key(&encode_segment(cluster::GROUP), "");
    let records = etcd::entries(&prefix);
    let records: Vec<_> = records.iter().filter_map(|entry| WorkerRecord::decode(&entry.value).ok()).collect();
    if records.len() != dataset.workers.len() {
        let names: Vec<_> = records.iter().map(|record| &record.name).collect();
        kernel::violated("views agree", format!("of {} workers {names:?} are registered", dataset.workers.len()));
    }
    let mut ring: Vec<_> =
        records.iter().filter(|record| record.state == WorkerState::Active).map(|record| record.name.clone()).collect();
    ring.sort();
    for (node, view) in cluster::views() {
        if view != ring {
            kernel::violated("views agree", format!("node {node} takes {view:?} for the ring, which is {ring:?}"));
        }
    }
    if let Some(since) = workload::oldest().filter(|since| kernel::now() - *since > SETTLES) {
        let since = kernel::clock(since.as_nanos() as u64);
        kernel::violated("deadlines", format!("an operation has been under way since {since}"));
    }
    coordinator::look();
    if let Some(old) = coordinator::older_than(Duration::from_secs(1200)) {
        kernel::violated("jobs end", old);
    }
}

/// Jobs, now and then, and a look at all of them.
fn manage(dataset: &Arc<Dataset>, going: &Rc<Cell<bool>>) {
    let (dataset, going) = (Arc::clone(dataset), Rc::clone(going));
    kernel::after(kernel::between(Duration::from_secs(20), Duration::from_secs(300)), move || {
        coordinator::look();
        if going.get() {
            coordinator::submit(&dataset);
            manage(&dataset, &going);
        }
    });
}

/// Operations, some a minute, and sometimes many at once.
fn operate(dataset: &Arc<Dataset>, going: &Rc<Cell<bool>>) {
    let pause = kernel::chance(|random| -> f64 { -random.random_range(f64::EPSILON..1.0).ln() * 2.0 });
    let (dataset, going) = (Arc::clone(dataset), Rc::clone(going));
    kernel::after(Duration::from_secs_f64(pause), move || {
        if !going.get() {
            return;
        }
        match kernel::chance(|random| random.random_range(0..40)) {
            0 => (0..12).for_each(|_| workload::operate(&dataset)),
            1 => workload::rush(&dataset),
            _ => workload::operate(&dataset),
        }
        if kernel::once_in(6) {
            dataset.replace_any();
        }
        operate(&dataset, &going);
    });
}

fn settings() -> Settings {
    kernel::chance(|random| Settings {
        block_size: if random.random_bool(0.5) { 256 << 10 } else { 1 << 20 },
        worker_memory: [16 << 20, 32 << 20, 64 << 20][random.random_range(0..3)],
        client_memory: [8 << 20, 16 << 20][random.random_range(0..2)],
        disk_frames: [0, 4, 16][random.random_range(0..3)],
        metadata_ttl: Duration::from_secs([1, 10, 60, 300][random.random_range(0..4)]),
        request_timeout: Duration::from_secs(90),
        change_timeout: Duration::from_secs(300),
        lease: Duration::from_secs(10),
        warmup: Duration::from_secs(600),
        verify_reads: random.random_bool(0.5),
        // The default, or none: then a slow disk is waited for, and nothing is fetched a second time that was not evicted.
        disk_read_timeout: Duration::from_secs([0, 2][random.random_range(0..2)]),
    })
}
