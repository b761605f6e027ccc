//! What users do, and what they must get.
//!
//! Each operation is a task of a mount's process, and everything that it is answered is held against the history of the objects
//! ([`crate::model`]):
//!
//! * bytes are those of the version that the handle has, all that were asked for, whatever else happens;
//! * what a name is said to be, it was at some time since `metadata.ttl` before the question, and not before the last change of this
//!   mount that was acknowledged;
//! * an operation ends within its deadline;
//! * it fails only where something that it needs was in trouble.

mod dataset;
mod judge;
mod reads;
mod state;
mod writes;

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;

use self::judge::Operation;
use self::state::{UnderWay, state};
use crate::{cluster, kernel};

pub(crate) use self::dataset::Dataset;
pub(crate) use self::state::{be_strict, counts, gone, oldest};

/// Several programs of one mount change one file and look at it, all at about the same time.
pub(crate) fn rush(dataset: &Arc<Dataset>) {
    let Some(operation) = on_any_mount(dataset) else { return };
    let place = dataset.any();
    for _ in 0..12 {
        let (operation, place) = (operation.clone(), place.clone());
        let begins = kernel::between(Duration::ZERO, Duration::from_secs(15));
        kernel::after_at(operation.process, begins, move || {
            state(|state| state.counts.operations += 1);
            tokio::spawn(async move { operation.change_and_look(&place, UnderWay::begin()).await });
        });
    }
}

/// A program of one mount looks at every name of an origin at once, as `ls -l` of all its directories side by side.
pub(crate) fn look_at_all(dataset: &Arc<Dataset>, origin: usize) {
    let Some(operation) = on_any_mount(dataset) else { return };
    for place in dataset.all(origin) {
        let operation = operation.clone();
        state(|state| state.counts.operations += 1);
        kernel::after_at(operation.process, Duration::ZERO, move || {
            tokio::spawn(async move {
                let _under_way = UnderWay::begin();
                operation.stat(&place, false).await;
            });
        });
    }
}

fn on_any_mount(dataset: &Arc<Dataset>) -> Option<Operation> {
    let node = kernel::chance(|random| dataset.clients[random.random_range(0..dataset.clients.len())]);
    let (process, client) = cluster::client(node)?;
    Some(Operation { dataset: Arc::clone(dataset), process, client })
}

/// Something is done on one of the mounts.
pub(crate) fn operate(dataset: &Arc<Dataset>) {
    let Some(operation) = on_any_mount(dataset) else { return };
    let kind = kernel::chance(|random| random.random_range(0..100));
    state(|state| state.counts.operations += 1);
    kernel::after_at(operation.process, Duration::ZERO, move || {
        tokio::spawn(async move {
            let under_way = UnderWay::begin();
            match kind {
                0..35 => operation.read().await,
                35..60 => operation.read_on().await,
                60..64 => operation.look().await,
                64..66 => operation.walk().await,
                66..72 => operation.list().await,
                72..79 => operation.put().await,
                79..82 => operation.remove().await,
                82..85 => operation.rename().await,
                85..88 => operation.upload().await,
                _ => operation.change_and_look(&operation.dataset.any(), under_way).await,
            }
        });
    });
}
