//! The thread that writes: the only place where state is changed.
//!
//! It takes all requests that wait, plans them one after the other, writes what they change with one sync, and only
//! then shows it to readers and answers. So commits under load share syncs, and no reader ever sees what a crash could
//! undo.

use std::collections::{HashSet, VecDeque};

use forebay_locks::{Condvar, Mutex, RwLock};
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};
use tracing::warn;

use super::disk::Disk;
use super::table::{Change, Plan, Table};
use crate::coalesce::Changes;
use crate::{Committed, LeaseId, Revision, StateError, Transaction, Update};

/// How much of the past is kept for watchers that lag, in commits and in bytes of their keys and values. A watcher that
/// lags further gets a new snapshot.
const HISTORY_COMMITS: usize = 1024;
const HISTORY_BYTES: usize = 8 << 20;

/// Something for the writer to do.
#[derive(Debug)]
pub(super) enum Request {
    Commit(Transaction, oneshot::Sender<Result<Committed, StateError>>),
    Grant(LeaseId, oneshot::Sender<()>),
    End(LeaseId, oneshot::Sender<()>),
}

/// A request, and the room that it takes until it is answered, also when its caller has given up waiting.
#[derive(Debug)]
struct Waited {
    request: Request,
    room: Option<OwnedSemaphorePermit>,
}

/// Requests that wait. The room that they take bounds them.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    requests: Vec<Waited>,
    is_closed: bool,
}

impl Queue {
    /// Has the writer take a request, which keeps `room` until it is answered. False when the queue is closed.
    pub(super) fn push(&self, request: Request, room: Option<OwnedSemaphorePermit>) -> bool {
        let mut waiting = self.waiting.lock();
        if waiting.is_closed {
            return false;
        }
        waiting.requests.push(Waited { request, room });
        self.changed.notify_one();
        true
    }

    pub(super) fn close(&self) {
        self.waiting.lock().is_closed = true;
        self.changed.notify_one();
    }

    /// All that waits; empty when the queue is closed and there is nothing more.
    fn take(&self) -> Vec<Waited> {
        let mut waiting = self.waiting.lock();
        while waiting.requests.is_empty() && !waiting.is_closed {
            waiting = self.changed.wait(waiting);
        }
        std::mem::take(&mut waiting.requests)
    }
}

/// What readers see: durable state only.
#[derive(Debug)]
pub(super) struct Published {
    state: RwLock<Visible>,
    revision: watch::Sender<Revision>,
}

#[derive(Debug)]
struct Visible {
    table: Table,
    /// The last changes, oldest first.
    history: VecDeque<Change>,
    history_bytes: usize,
}

impl Published {
    pub(super) fn new(table: Table) -> Self {
        let revision = watch::Sender::new(table.revision());
        Self { state: RwLock::new(Visible { table, history: VecDeque::new(), history_bytes: 0 }), revision }
    }

    pub(super) fn read<T>(&self, read: impl FnOnce(&Table) -> T) -> T {
        read(&self.state.read().table)
    }

    /// Tells of each new revision.
    pub(super) fn revisions(&self) -> watch::Receiver<Revision> {
        self.revision.subscribe()
    }

    /// What happened under `prefix` after `known`, if anything, and the revision up to which that is all.
    pub(super) fn since(&self, prefix: &str, known: Option<Revision>) -> (Option<Update>, Revision) {
        let state = self.state.read();
        let now = state.table.revision();
        let oldest = state.history.front().map_or(now, |change| Revision(change.revision.0 - 1));
        let Some(known) = known.filter(|known| *known >= oldest) else {
            return (Some(Update::Snapshot(state.table.list(prefix))), now);
        };
        let mut changes = Changes::default();
        for change in state.history.iter().filter(|change| change.revision > known) {
            for key in change.deletes.iter().filter(|key| key.starts_with(prefix)) {
                changes.delete(key.clone());
            }
            for put in change.puts.iter().filter(|put| put.key.starts_with(prefix)) {
                changes.put(put.entry(change.revision));
            }
        }
        ((!changes.is_empty()).then(|| changes.into_update(now)), now)
    }

    fn publish(&self, changes: Vec<Change>) {
        if changes.is_empty() {
            return;
        }
        let mut state = self.state.write();
        for change in changes {
            state.table.apply(&change);
            state.history_bytes += change.size();
            state.history.push_back(change);
        }
        while state.history.len() > HISTORY_COMMITS || state.history_bytes > HISTORY_BYTES {
            let Some(oldest) = state.history.pop_front() else { break };
            state.history_bytes -= oldest.size();
        }
        let revision = state.table.revision();
        drop(state);
        self.revision.send_replace(revision);
    }
}

/// The writer's own state.
pub(super) struct Writer<'a> {
    /// For errors.
    pub(super) store: &'a str,
    /// Without, nothing outlives the process.
    pub(super) disk: Option<Disk>,
    /// As published, and what is planned on top of it.
    pub(super) table: Table,
    /// Leases that have not ended.
    pub(super) held: HashSet<LeaseId>,
    pub(super) published: &'a Published,
}

impl Writer<'_> {
    /// Serves the queue until it is closed.
    pub(super) fn run(mut self, queue: &Queue) {
        loop {
            let waited = queue.take();
            if waited.is_empty() {
                return;
            }
            let (requests, rooms): (Vec<_>, Vec<_>) = waited.into_iter().map(|of| (of.request, of.room)).unzip();
            self.serve(requests);
            drop(rooms);
            if let Some(disk) = self.disk.as_mut().filter(|disk| disk.wants_compaction())
                && let Err(error) = disk.compact(&self.table)
            {
                warn!(%error, "the log of the state directory cannot be shortened");
            }
        }
    }

    fn serve(&mut self, requests: Vec<Request>) {
        let (mut changes, mut commits, mut done) = (Vec::new(), Vec::new(), Vec::new());
        for request in requests {
            let plan = match request {
                Request::Commit(transaction, answer) => {
                    let plan = self.table.plan(&transaction, &self.held);
                    commits.push((answer, self.outcome(&plan)));
                    plan
                }
                Request::Grant(lease, answer) => {
                    self.held.insert(lease);
                    done.push(answer);
                    continue;
                }
                // Keys that a failed write left behind go with the next lease that ends.
                Request::End(lease, answer) => {
                    self.held.remove(&lease);
                    done.push(answer);
                    self.table.plan_end(&self.held)
                }
            };
            if let Plan::Change(change) = plan {
                self.table.apply(&change);
                changes.push(change);
            }
        }
        let written = match &mut self.disk {
            Some(disk) if !changes.is_empty() => disk.append(&changes),
            _ => Ok(()),
        };
        match &written {
            Ok(()) => self.published.publish(changes),
            Err(error) => {
                warn!(%error, "a commit to the state directory failed");
                self.table = self.published.read(Table::clone);
            }
        }
        for (answer, outcome) in commits {
            // The caller may have given up.
            let _ = answer.send(written.clone().and(outcome));
        }
        for answer in done {
            let _ = answer.send(());
        }
    }

    fn outcome(&self, plan: &Plan) -> Result<Committed, StateError> {
        match plan {
            Plan::Conflict => Ok(Committed::Conflict),
            Plan::LeaseLost { key } => Err(StateError::LeaseLost { store: self.store.to_owned(), key: key.clone() }),
            Plan::Nothing => Ok(Committed::Done(self.table.revision())),
            Plan::Change(change) => Ok(Committed::Done(change.revision)),
        }
    }
}
