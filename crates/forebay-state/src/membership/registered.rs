//! A worker's record in the cluster's state, for as long as the worker lives.
//!
//! The record is under a lease. When that was lost, also because the process was stopped for a time, others owned what
//! was this worker's and took changes of it. So the worker is told of each lease before the record says that it owns
//! anything: by its [`Tenure`] it sees by itself that the lease is over, whichever request it gets first.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::{
    Committed, Lease, MAX_TRANSACTION_OPERATIONS, Revision, StateError, StateStore, Transaction, Update, encode_segment,
};
use forebay_cluster::records::members::{DRAINS, DrainProgress, JOINS, WorkerRecord, WorkerState};
use forebay_cluster::{JoinHistory, Registration, Standing};
use forebay_locks::Mutex;
use forebay_types::Tenure;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

/// How long between two tries at a store that cannot be reached, or at a name that another process has.
const TRY_AGAIN: Duration = Duration::from_secs(2);
/// How often the progress of a drain is written at most.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// How a worker is registered.
#[derive(Clone, Copy, Debug)]
pub struct RegisteredOptions {
    /// How long a worker that died is still believed to live.
    pub ttl: Duration,
    /// How long a new worker asks previous owners before the origin.
    pub warmup: Duration,
}

/// A worker that is registered, or on its way to it. Dropping it ends the registration in the background.
pub struct Registered {
    shared: Arc<RegisteredShared>,
    stop: CancellationToken,
    standing: watch::Receiver<Option<Standing>>,
    leave: watch::Receiver<bool>,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// Is told of the tenure that begins.
type Begins = dyn Fn(&Arc<Tenure>) + Send + Sync;

struct RegisteredShared {
    store: Arc<dyn StateStore>,
    /// What does not change of the record.
    record: WorkerRecord,
    options: RegisteredOptions,
    /// Tells the worker that a tenure begins.
    begins: Box<Begins>,
    registration: Mutex<Registration>,
    /// The registration has changed by itself: a drain went on.
    changed: Notify,
}

impl Registered {
    /// Registers a worker once `ready` is over, since a worker in the ring is asked at once. `record` says all but what
    /// it is about to do. `begins` is told of each lease before any process sees the record under it: nothing that was
    /// learned before is to be believed then, and nothing that was learned under the lease once it is over.
    #[must_use]
    pub fn start(
        store: Arc<dyn StateStore>,
        record: WorkerRecord,
        options: RegisteredOptions,
        begins: impl Fn(&Arc<Tenure>) + Send + Sync + 'static,
        ready: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        let registration = Mutex::new(Registration::new(Instant::now(), Duration::ZERO, options.warmup));
        let shared =
            RegisteredShared { store, record, options, begins: Box::new(begins), registration, changed: Notify::new() };
        let shared = Arc::new(shared);
        let stop = CancellationToken::new();
        let (tell_standing, standing) = watch::channel(None);
        let (tell_leave, leave) = watch::channel(false);
        let registering = keep(Arc::clone(&shared), tell_standing, tell_leave, stop.clone());
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            tokio::select! {
                () = ready => registering.await,
                () = stopped.cancelled() => {}
            }
        });
        Self { shared, stop, standing, leave, task: Mutex::new(Some(task)) }
    }

    /// What the worker's record says; `None` before it is registered for the first time.
    #[must_use]
    pub fn standing(&self) -> watch::Receiver<Option<Standing>> {
        self.standing.clone()
    }

    /// Whether the worker is to leave: to hand over what it holds.
    #[must_use]
    pub fn leave(&self) -> watch::Receiver<bool> {
        self.leave.clone()
    }

    /// How far the worker is in handing over what it holds.
    pub fn drained(&self, progress: DrainProgress, done: bool) {
        self.shared.registration.lock().drained(progress, done);
        self.shared.changed.notify_one();
    }

    /// Ends the registration: the worker's record is gone when this returns, as far as the store can be reached.
    pub async fn close(&self) {
        self.stop.cancel();
        let task = self.task.lock().take();
        if let Some(task) = task {
            // It does not panic, and if it did that has been told.
            let _ = task.await;
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Registers the worker again and again, until the end.
async fn keep(
    shared: Arc<RegisteredShared>,
    standing: watch::Sender<Option<Standing>>,
    leave: watch::Sender<bool>,
    stop: CancellationToken,
) {
    let watching = watch_drains(&shared, &leave, &stop);
    let registering = async {
        let mut told = false;
        while !stop.is_cancelled() {
            match shared.once(&standing, &stop).await {
                Ok(()) => told = false,
                Err(error) => {
                    // Once a failure, not once a try.
                    if !std::mem::replace(&mut told, true) {
                        warn!(worker = shared.record.name, %error, "the worker cannot be registered, trying again");
                    }
                    tokio::select! {
                        () = tokio::time::sleep(TRY_AGAIN) => {}
                        () = stop.cancelled() => {}
                    }
                }
            }
        }
    };
    tokio::join!(watching, registering);
}

/// Tells whether the worker is to leave, as the state says.
async fn watch_drains(shared: &RegisteredShared, leave: &watch::Sender<bool>, stop: &CancellationToken) {
    let key = format!("{DRAINS}{}", encode_segment(&shared.record.name));
    // The key is a prefix of others' only if their names begin like ours.
    let mut updates = shared.store.watch(&key);
    loop {
        let update = tokio::select! {
            update = updates.next() => update,
            () = stop.cancelled() => None,
        };
        let asked = match update {
            None => return,
            Some(Update::Snapshot(snapshot)) => Some(snapshot.entries.iter().any(|entry| entry.key == key)),
            Some(Update::Changed { puts, deletes, .. }) => {
                let put = puts.iter().any(|entry| entry.key == key).then_some(true);
                put.or_else(|| deletes.contains(&key).then_some(false))
            }
            Some(Update::Lost { .. }) => None,
        };
        let news = match asked {
            None => false,
            Some(true) => shared.registration.lock().drain(),
            Some(false) => shared.registration.lock().stay(Instant::now()),
        };
        if let (true, Some(asked)) = (news, asked) {
            info!(
                worker = shared.record.name,
                leave = asked,
                "the cluster wants this worker to leave, or not any more"
            );
            leave.send_replace(asked);
            shared.changed.notify_one();
        }
    }
}

impl RegisteredShared {
    /// Registers once, and keeps the record current until the lease is lost or the end has come.
    async fn once(
        &self,
        standing: &watch::Sender<Option<Standing>>,
        stop: &CancellationToken,
    ) -> Result<(), StateError> {
        let lease = self.store.lease(self.options.ttl).await?;
        let first = standing.borrow().is_none();
        (self.begins)(lease.tenure());
        // When the record was written last, as far as the store has said.
        let mut known = self.claim(&lease, first).await?;
        if known.is_none() {
            return wait(TRY_AGAIN.max(self.options.ttl / 2), stop).await;
        }
        // A lease that is lost does not count: it tells more of the store and the network than of the worker.
        if first {
            let penalty = self.join().await?;
            if !penalty.is_zero() {
                let worker = &self.record.name;
                warn!(worker, ?penalty, "the worker joined too often lately: it owns nothing for a while");
            }
            self.registration.lock().joined(Instant::now(), penalty);
        }
        info!(worker = self.record.name, store = self.store.describe(), "the worker is registered");
        let mut written: Option<Standing> = None;
        loop {
            let (now_standing, next) = self.registration.lock().standing(Instant::now());
            if written != Some(now_standing) {
                match self.write(&lease, now_standing, &mut known).await {
                    Ok(()) => {}
                    // While there is the lease, the others see the worker. If it were given up, the ring would move.
                    Err(error) if error.is_unavailable() && !lease.is_lost() && !stop.is_cancelled() => {
                        let worker = &self.record.name;
                        warn!(worker, %error, "what the worker is about to do is not written down yet");
                        wait(TRY_AGAIN, stop).await?;
                        continue;
                    }
                    Err(error) => return Err(error),
                }
                standing.send_replace(Some(now_standing));
                // A drain tells of each block that it moved.
                let only_progress = written.is_some_and(|before| before.state == now_standing.state);
                written = Some(now_standing);
                if only_progress {
                    wait(PROGRESS_EVERY, stop).await?;
                }
            }
            let time_passes = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = lease.lost() => {
                    warn!(worker = self.record.name, "the worker's lease was lost, it registers again");
                    return Ok(());
                }
                () = time_passes => {}
                () = self.changed.notified() => {}
                () = stop.cancelled() => {
                    lease.revoke().await;
                    return Ok(());
                }
            }
        }
    }

    fn key(&self) -> String {
        WorkerRecord::key(&encode_segment(&self.record.group), &encode_segment(&self.record.name))
    }

    /// Takes the worker's name. When that was; `None` when another worker lives that has it.
    async fn claim(&self, lease: &Lease, first: bool) -> Result<Option<Revision>, StateError> {
        let key = self.key();
        let standing = match first {
            // It owns nothing before it is known how often it joined lately.
            true => Standing { state: WorkerState::Damped, warming: false, drain: None },
            // The others know it: when a store that was away is back, all workers come at once, and the ring is to stay.
            false => self.registration.lock().standing(Instant::now()).0,
        };
        let value = self.described(standing).encode();
        loop {
            let found = self.store.get(&key).await?;
            let condition = match &found {
                None => Transaction::new().if_absent(&*key),
                Some(entry) => {
                    let theirs = WorkerRecord::decode(&entry.value).ok();
                    // Two processes do not listen at one address: that was this worker, before it was started again.
                    if let Some(theirs) = theirs.filter(|theirs| theirs.addresses.rpc != self.record.addresses.rpc) {
                        error!(
                            worker = self.record.name,
                            other = theirs.addresses.rpc,
                            ours = self.record.addresses.rpc,
                            "another worker is registered under this name; give each a `worker.name` of its own"
                        );
                        return Ok(None);
                    }
                    Transaction::new().if_unchanged(&*key, entry.revision)
                }
            };
            match self.store.commit(condition.put_leased(&*key, value.clone(), lease.id())).await? {
                Committed::Done(revision) => return Ok(Some(revision)),
                Committed::Conflict => {}
            }
        }
    }

    /// Notes that the worker joined. How long it is to own nothing for having done so too often.
    async fn join(&self) -> Result<Duration, StateError> {
        let key = format!("{JOINS}{}", encode_segment(&self.record.name));
        let known = self.store.get(&key).await?;
        let (is_new, now) = (known.is_none(), unix_seconds());
        let history = known.and_then(|entry| serde_json::from_slice(&entry.value).ok());
        let mut history: JoinHistory = history.unwrap_or_default();
        let penalty = history.join(now);
        // Numbers: their encoding cannot fail.
        let value = serde_json::to_vec(&history).unwrap_or_default();
        self.store.commit(Transaction::new().put(key, value)).await?;
        if is_new && let Err(error) = self.forget_old_joins(now).await {
            debug!(worker = self.record.name, %error, "joins of workers that are long gone are not forgotten yet");
        }
        Ok(penalty)
    }

    /// Forgets joins that count no more, of as many workers as one transaction takes: what a new name adds, those of workers that never
    /// come back make up for. If one of them joins at this moment, nothing is forgotten.
    async fn forget_old_joins(&self, now: u64) -> Result<(), StateError> {
        let is_old = |value: &[u8]| serde_json::from_slice::<JoinHistory>(value).is_ok_and(|joins| joins.is_old(now));
        let entries = self.store.list(JOINS).await?.entries;
        let old = entries.into_iter().filter(|entry| is_old(&entry.value)).take(MAX_TRANSACTION_OPERATIONS);
        let forget = old
            .fold(Transaction::new(), |write, entry| write.if_unchanged(&*entry.key, entry.revision).delete(entry.key));
        if !forget.writes.is_empty() {
            self.store.commit(forget).await?;
        }
        Ok(())
    }

    /// Writes down what the worker is about to do. Of writes of which the store says nothing one may be carried out later: with what was
    /// `known` of the record as its condition, it is not after this one.
    async fn write(&self, lease: &Lease, standing: Standing, known: &mut Option<Revision>) -> Result<(), StateError> {
        let (key, value) = (self.key(), self.described(standing).encode());
        loop {
            let as_known = match *known {
                Some(revision) => Transaction::new().if_unchanged(&*key, revision),
                None => Transaction::new().if_absent(&*key),
            };
            let write = as_known.put_leased(&*key, value.clone(), lease.id());
            if let Committed::Done(revision) = self.store.commit(write).await? {
                *known = Some(revision);
                return Ok(());
            }
            *known = self.store.get(&key).await?.map(|entry| entry.revision);
        }
    }

    fn described(&self, standing: Standing) -> WorkerRecord {
        let Standing { state, warming, drain } = standing;
        WorkerRecord { state, warming, drain, ..self.record.clone() }
    }
}

/// Lets some time pass, or the end come.
async fn wait(time: Duration, stop: &CancellationToken) -> Result<(), StateError> {
    tokio::select! {
        () = tokio::time::sleep(time) => {}
        () = stop.cancelled() => {}
    }
    Ok(())
}

fn unix_seconds() -> u64 {
    // A clock before 1970 is one that was never set.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
