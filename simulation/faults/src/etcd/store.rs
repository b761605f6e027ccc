//! A process's way to the server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_state::{
    Committed, Entry, Lease, LeaseId, LeaseOwner, Revision, Snapshot, StateError, StateStore, Transaction, Update,
    Watch, WatchSender,
};
use forebay_types::Tenure;
use rand::Rng;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::server::{self, Beginning, Changed};
use crate::{kernel, net};

/// As the configuration has it.
const DEADLINE: Duration = Duration::from_secs(5);
/// How long until a stream that breaks without a word is known to be broken.
const STREAM_DEAD: Duration = Duration::from_secs(10);
const RENEWALS_PER_TTL: u32 = 3;
const WATCH_CAPACITY: usize = 16;
/// Pauses after failures.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(5);

/// See the module.
pub(crate) struct SimulatedEtcd {
    tasks: TaskTracker,
    closing: CancellationToken,
}

/// Why there is no answer.
enum Fault {
    Unreachable,
    TimedOut,
}

impl SimulatedEtcd {
    /// The way of the process that runs.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { tasks: TaskTracker::new(), closing: CancellationToken::new() })
    }

    fn check_open(&self) -> Result<(), StateError> {
        if self.closing.is_cancelled() { Err(StateError::Closed { store: NAME.to_owned() }) } else { Ok(()) }
    }
}

const NAME: &str = "etcd at simulated";

fn travel() -> Duration {
    let slow = if kernel::once_in(50) { kernel::chance(|random| random.random_range(1..300)) } else { 1 };
    kernel::between(Duration::from_micros(100), Duration::from_millis(2)) * slow
}

/// Has the server do something, if it is reached, and tells what came of it, if that comes back.
async fn call<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Fault> {
    let (me, server) = (kernel::current().node, server::node());
    if !server::answers() && kernel::once_in(2) {
        // Its machine is there, and nothing listens.
        sleep(Duration::from_millis(1)).await;
        return Err(Fault::Unreachable);
    }
    let there = travel();
    let (tell, answered) = tokio::sync::oneshot::channel();
    let asker = kernel::current();
    kernel::after(there, move || {
        if !server::answers() || !net::reaches(me, server) {
            return;
        }
        let answer = work();
        let back = travel();
        kernel::after(back, move || {
            if net::reaches(server, me) {
                kernel::after_at(asker, Duration::ZERO, move || _ = tell.send(answer));
            }
        });
    });
    match timeout(DEADLINE, answered).await {
        Ok(Ok(answer)) => Ok(answer),
        // What was lost on the way is known to be lost only by the clock.
        Ok(Err(_)) => {
            sleep(DEADLINE.saturating_sub(there)).await;
            Err(Fault::TimedOut)
        }
        Err(_) => Err(Fault::TimedOut),
    }
}

fn error(fault: &Fault, operation: impl Into<String>) -> StateError {
    match fault {
        Fault::Unreachable => {
            StateError::Unavailable { store: NAME.to_owned(), reason: "connection refused".to_owned() }
        }
        Fault::TimedOut => {
            StateError::TimedOut { store: NAME.to_owned(), operation: operation.into(), deadline: DEADLINE }
        }
    }
}

#[derive(Default)]
struct Backoff(u32);

impl Backoff {
    fn failed(&mut self) -> Duration {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.0.min(10)).min(LAST_PAUSE);
        self.0 += 1;
        pause.mul_f64(0.5 + kernel::chance(|random| random.random::<f64>()) / 2.0)
    }
}

#[async_trait::async_trait]
impl StateStore for SimulatedEtcd {
    async fn get(&self, key: &str) -> Result<Option<Entry>, StateError> {
        self.check_open()?;
        let asked = key.to_owned();
        call(move || server::get(&asked)).await.map_err(|fault| error(&fault, format!("read `{key}`")))
    }

    async fn list(&self, prefix: &str) -> Result<Snapshot, StateError> {
        self.check_open()?;
        let asked = prefix.to_owned();
        call(move || server::list(&asked)).await.map_err(|fault| error(&fault, format!("list `{prefix}`")))
    }

    async fn commit(&self, transaction: Transaction) -> Result<Committed, StateError> {
        self.check_open()?;
        transaction.check()?;
        let committed = call(move || server::commit(&transaction)).await.map_err(|fault| error(&fault, "commit"))?;
        committed.map_err(|key| StateError::LeaseLost { store: NAME.to_owned(), key })
    }

    async fn lease(&self, ttl: Duration) -> Result<Lease, StateError> {
        self.check_open()?;
        let before = Instant::now();
        let id = call(move || server::grant(ttl)).await.map_err(|fault| error(&fault, "take a lease"))?;
        let (lease, owner) = Lease::new(LeaseId(id), ttl);
        let tenure = Arc::clone(owner.tenure());
        let mut keeper = Keeper { id, ttl, expires: before, tenure };
        keeper.renewed(before);
        self.tasks.spawn(keeper.keep(owner, self.closing.clone()));
        Ok(lease)
    }

    fn watch(&self, prefix: &str) -> Watch {
        let (sender, watch) = Watch::new(WATCH_CAPACITY);
        let (closing, prefix) = (self.closing.clone(), prefix.to_owned());
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = closing.cancelled() => {}
                () = sender.closed() => {}
                () = serve_watch(&prefix, &sender) => {}
            }
        });
        watch
    }

    fn describe(&self) -> String {
        NAME.to_owned()
    }

    async fn close(&self) {
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Looks after a lease, as `forebay-state`'s does.
struct Keeper {
    id: u64,
    ttl: Duration,
    expires: Instant,
    tenure: Arc<Tenure>,
}

impl Keeper {
    async fn keep(mut self, mut owner: LeaseOwner, closing: CancellationToken) {
        let done = tokio::select! {
            biased;
            done = owner.ended() => done,
            () = closing.cancelled() => None,
            () = self.renew_while_possible() => {
                owner.lose();
                return;
            }
        };
        owner.lose();
        let id = self.id;
        let _ = call(move || server::revoke(id)).await;
        drop(done);
    }

    async fn renew_while_possible(&mut self) {
        let mut backoff = Backoff::default();
        loop {
            let due = self.expires - self.ttl + self.ttl / RENEWALS_PER_TTL;
            sleep_until(due.max(Instant::now())).await;
            let (asked, id) = (Instant::now(), self.id);
            let renewed = tokio::select! {
                biased;
                renewed = call(move || server::renew(id)) => renewed,
                () = sleep_until(self.expires) => return,
            };
            match renewed {
                Ok(true) => {
                    self.renewed(asked);
                    backoff = Backoff::default();
                }
                Ok(false) => return,
                Err(_) => sleep(backoff.failed()).await,
            }
        }
    }

    fn renewed(&mut self, asked: Instant) {
        self.expires = asked + self.ttl;
        self.tenure.hold_until(self.expires.into_std());
    }
}

/// What comes over a stream.
type News = (Vec<Changed>, Revision);

async fn serve_watch(prefix: &str, sender: &WatchSender) {
    let mut known: Option<Revision> = None;
    let mut is_lost = false;
    let mut backoff = Backoff::default();
    loop {
        let (me, home) = (kernel::current(), server::node());
        let (tell, mut news) = mpsc::unbounded_channel::<News>();
        let (asked, broken) = (prefix.to_owned(), Arc::new(AtomicBool::new(false)));
        let breaks = Arc::clone(&broken);
        let opened = call(move || {
            // Messages of one stream arrive in order, and none after one that did not.
            let last = std::cell::Cell::new(Duration::ZERO);
            let told = move |changed: Vec<Changed>, revision: Revision| {
                let arrives = (kernel::now() + travel()).max(last.get());
                last.set(arrives);
                let (tell, broken) = (tell.clone(), Arc::clone(&breaks));
                kernel::after(arrives - kernel::now(), move || {
                    if broken.load(Ordering::Relaxed) || !net::reaches(home, me.node) {
                        return broken.store(true, Ordering::Relaxed);
                    }
                    kernel::after_at(me, Duration::ZERO, move || _ = tell.send((changed, revision)));
                });
            };
            server::open(&asked, known, Box::new(told))
        });
        let (stream, beginning) = match opened.await {
            Ok(opened) => opened,
            Err(fault) => {
                let reason = error(&fault, "watch").to_string();
                if !std::mem::replace(&mut is_lost, true) && !sender.send(Update::Lost { reason }).await {
                    return;
                }
                sleep(backoff.failed()).await;
                continue;
            }
        };
        backoff = Backoff::default();
        let _open = Open(stream);
        let (update, revision) = match beginning {
            Beginning::Snapshot(snapshot) => {
                let revision = snapshot.revision;
                (Some(Update::Snapshot(snapshot)), revision)
            }
            Beginning::Changes(changed, revision) => {
                let is_news = !changed.is_empty() || is_lost;
                (is_news.then(|| update_of(changed, revision)), revision)
            }
        };
        known = Some(revision);
        if let Some(update) = update {
            is_lost = false;
            if !sender.send(update).await {
                return;
            }
        }
        loop {
            let heard = timeout(STREAM_DEAD, news.recv()).await;
            match heard {
                Ok(Some((changed, revision))) => {
                    if known.is_some_and(|known| revision <= known) {
                        continue;
                    }
                    known = Some(revision);
                    if !sender.send(update_of(changed, revision)).await {
                        return;
                    }
                }
                Ok(None) => break,
                // Nothing for a while: is it still there?
                Err(_) => {
                    let is_whole = call(move || server::is_open(stream)).await;
                    if !matches!(is_whole, Ok(true)) || broken.load(Ordering::Relaxed) {
                        break;
                    }
                }
            }
        }
    }
}

/// A stream, until it is dropped.
struct Open(u64);

impl Drop for Open {
    fn drop(&mut self) {
        let stream = self.0;
        kernel::after(Duration::ZERO, move || server::close(stream));
    }
}

fn update_of(changed: Vec<Changed>, revision: Revision) -> Update {
    let last: BTreeMap<String, Option<Entry>> = changed.into_iter().collect();
    let (mut puts, mut deletes) = (Vec::new(), Vec::new());
    for (key, entry) in last {
        match entry {
            Some(entry) => puts.push(entry),
            None => deletes.push(key),
        }
    }
    Update::Changed { puts, deletes, revision }
}
