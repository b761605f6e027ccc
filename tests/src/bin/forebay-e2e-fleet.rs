//! Registers workers that nobody can reach: what etcd holds of a cluster that is larger than this machine.
//!
//! `forebay-e2e-fleet ETCD CLUSTER GROUP BLOCK_SIZE`, with a line `NAME HOST:PORT` for each worker on standard input.
//! Each is registered by what a worker registers itself with, under a lease, and is in the record what its process
//! would say of itself; but nothing listens at its address. `registered NUMBER` is printed when all of them own their
//! share. With SIGTERM they leave, and their records are gone when this ends.

use std::io::BufRead as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use forebay_cluster::records::members::{Addresses, Capacity, WorkerRecord, WorkerState};
use forebay_state::membership::{Registered, RegisteredOptions};
use forebay_state::{EtcdOptions, EtcdStore, StateStore};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

const USAGE: &str =
    "usage: forebay-e2e-fleet ETCD CLUSTER GROUP BLOCK_SIZE, with lines NAME HOST:PORT on standard input";
/// A lease is renewed often enough on a machine where tests run beside each other, and is over soon when this is
/// killed. New workers ask nobody before the origin.
const REGISTERED: RegisteredOptions = RegisteredOptions { ttl: Duration::from_secs(20), warmup: Duration::ZERO };
/// What each of them can hold: more than a worker of a test.
const CAPACITY: Capacity = Capacity { memory: 64 << 30, disk: 0 };

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [etcd, cluster, group, block_size] = &arguments[..] else { bail!(USAGE) };
    let block_size: u64 = block_size.parse().context(USAGE)?;
    let mut terminate = signal(SignalKind::terminate())?;
    let store: Arc<dyn StateStore> = Arc::new(EtcdStore::new(EtcdOptions::new([etcd], cluster))?);
    let mut workers = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let record = record(&line?, group, block_size)?;
        workers.push(Registered::start(Arc::clone(&store), record, REGISTERED, |_| (), async {}));
    }
    tokio::select! {
        registered = all_own(&workers) => registered?,
        _ = terminate.recv() => return Ok(()),
    }
    println!("registered {}", workers.len());
    terminate.recv().await;
    let mut leaving = JoinSet::new();
    for worker in workers {
        leaving.spawn(async move { worker.close().await });
    }
    leaving.join_all().await;
    store.close().await;
    Ok(())
}

/// What a worker says of itself.
fn record(line: &str, group: &str, block_size: u64) -> anyhow::Result<WorkerRecord> {
    let (name, rpc) = line.split_once(' ').context(USAGE)?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).context("a clock that was never set")?;
    Ok(WorkerRecord {
        name: name.to_owned(),
        group: group.to_owned(),
        addresses: Addresses { rpc: rpc.to_owned(), ..Addresses::default() },
        capacity: CAPACITY,
        block_size,
        weight: CAPACITY.weight(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        since: since.as_secs(),
        ..WorkerRecord::default()
    })
}

/// Waits until all of them own their share.
async fn all_own(workers: &[Registered]) -> anyhow::Result<()> {
    for worker in workers {
        let mut standing = worker.standing();
        let owns = standing.wait_for(|standing| standing.is_some_and(|now| now.state == WorkerState::Active));
        owns.await.context("a worker was not registered")?;
    }
    Ok(())
}
