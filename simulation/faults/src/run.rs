//! One run: a cluster that follows from a seed, what is done with it and to it, and what is looked at.

use std::sync::Arc;
use std::time::Duration;

use forebay_cluster::records::mounts::MountRecord;
use forebay_state::{Transaction, encode_segment};
use rand::Rng;

use crate::cluster::{self, Settings, WorkerSite};
use crate::faults::Fault;
use crate::nemesis::Nemesis;
use crate::workload::Ground;
use crate::{disk, etcd, faults, kernel, origin};

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
        let record = MountRecord { path: format!("/{name}"), origin: url, options: std::collections::BTreeMap::new() };
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
    let ground = Arc::new(Ground {
        mounts,
        directories: 4,
        files: 10,
        largest: 3 << 20,
        workers: sites.iter().map(|site| site.node).collect(),
        clients: clients.clone(),
        settings,
    });
    ground.sow();
    for site in &sites {
        cluster::start_worker(*site, settings, faults::begins(Fault::Process(site.node)));
    }
    kernel::run_until(Duration::from_secs(10));
    for client in &clients {
        cluster::start_client(*client, settings, faults::begins(Fault::Process(*client)));
    }
    kernel::run_until(Duration::from_secs(20));
    operate(&ground);
    if plan.faults {
        Nemesis::begin(Arc::clone(&ground), sites, state);
    }
    kernel::run_until(end);
}

/// Operations for ever: some a minute, and sometimes many at once.
fn operate(ground: &Arc<Ground>) {
    let pause = kernel::chance(|random| -> f64 { -random.random_range(f64::EPSILON..1.0).ln() * 2.0 });
    let ground = Arc::clone(ground);
    kernel::after(Duration::from_secs_f64(pause), move || {
        let together = if kernel::once_in(20) { 12 } else { 1 };
        for _ in 0..together {
            ground.operate();
        }
        if kernel::once_in(6) {
            ground.replace_any();
        }
        operate(&ground);
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
    })
}
