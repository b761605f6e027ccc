//! The server.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use forebay_state::{Committed, Condition, Entry, Revision, Snapshot, Transaction, Write};

use crate::kernel;

/// One that changed: the entry, or that it is gone.
pub(super) type Changed = (String, Option<Entry>);

/// What a stream of a watch is told: changes, and the revision up to which it knows all.
pub(super) type OnChange = Box<dyn Fn(Vec<Changed>, Revision)>;

#[derive(Default)]
struct Server {
    node: usize,
    entries: BTreeMap<String, Stored>,
    revision: u64,
    leases: BTreeMap<u64, Granted>,
    next_lease: u64,
    history: VecDeque<(u64, Vec<Changed>)>,
    /// What was before is forgotten.
    compacted: u64,
    away: bool,
    streams: BTreeMap<u64, Stream>,
    next_stream: u64,
    counts: Counts,
}

/// What it did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) commits: u64,
    pub(crate) conflicts: u64,
    pub(crate) expired: u64,
    pub(crate) snapshots: u64,
}

struct Stored {
    value: Bytes,
    revision: u64,
    lease: Option<u64>,
}

struct Granted {
    ttl: Duration,
    until: Duration,
}

struct Stream {
    prefix: String,
    told: OnChange,
}

thread_local! {
    static SERVER: RefCell<Server> = RefCell::default();
}

fn server<T>(with: impl FnOnce(&mut Server) -> T) -> T {
    SERVER.with_borrow_mut(with)
}

/// It runs on this machine.
pub(crate) fn add(node: usize) {
    server(|server| server.node = node);
}

/// The machine that it runs on.
pub(super) fn node() -> usize {
    server(|server| server.node)
}

/// It stops answering, or answers again.
pub(crate) fn away(away: bool) {
    server(|server| server.away = away);
    if away {
        drop_streams();
    }
}

/// Whether it answers.
pub(super) fn answers() -> bool {
    server(|server| !server.away)
}

/// Another member leads: watches break, and every lease begins anew, as in etcd.
pub(crate) fn change_leader() {
    drop_streams();
    server(|server| {
        let now = kernel::now();
        server.leases.values_mut().for_each(|lease| lease.until = now + lease.ttl);
    });
}

/// Forgets all history but the last so many commits.
fn compact(keep: usize) {
    server(|server| {
        while server.history.len() > keep {
            if let Some((revision, _)) = server.history.pop_front() {
                server.compacted = revision;
            }
        }
    });
}

/// Forgets all history.
pub(crate) fn compact_now() {
    compact(0);
    server(|server| server.compacted = server.revision);
}

/// What it did so far.
pub(crate) fn counts() -> Counts {
    server(|server| server.counts)
}

/// All keys under a prefix, as they are.
pub(crate) fn entries(prefix: &str) -> Vec<Entry> {
    list(prefix).entries
}

/// Carries a transaction out as an operator would, whichever nodes reach the server.
pub(crate) fn fresh(transaction: &Transaction) {
    let _ = commit(transaction);
}

fn drop_streams() {
    let streams = server(|server| std::mem::take(&mut server.streams));
    drop(streams);
}

pub(super) fn get(key: &str) -> Option<Entry> {
    server(|server| server.entries.get(key).map(|stored| entry(key, stored)))
}

pub(super) fn list(prefix: &str) -> Snapshot {
    server(|server| {
        let under = server.entries.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
        let entries = under.map(|(key, stored)| entry(key, stored)).collect();
        Snapshot { entries, revision: Revision(server.revision) }
    })
}

fn entry(key: &str, stored: &Stored) -> Entry {
    Entry { key: key.to_owned(), value: stored.value.clone(), revision: Revision(stored.revision) }
}

/// What comes of a transaction; an error is the key whose lease has ended.
pub(super) fn commit(transaction: &Transaction) -> Result<Committed, String> {
    let changed = server(|server| {
        let holds = |condition: &Condition| {
            let found = server.entries.get(condition.key());
            match condition {
                Condition::Absent(_) => found.is_none(),
                Condition::Present(_) => found.is_some(),
                Condition::Unchanged(_, revision) => found.is_some_and(|found| found.revision == revision.0),
            }
        };
        if !transaction.conditions.iter().all(holds) {
            server.counts.conflicts += 1;
            return Ok(Err(Committed::Conflict));
        }
        for write in &transaction.writes {
            if let Write::Put { key, lease: Some(lease), .. } = write
                && !server.leases.contains_key(&lease.0)
            {
                return Err(key.clone());
            }
        }
        let revision = server.revision + 1;
        let mut changed: Vec<Changed> = Vec::new();
        for write in &transaction.writes {
            match write {
                Write::Put { key, value, lease } => {
                    let stored = Stored { value: value.clone(), revision, lease: lease.map(|lease| lease.0) };
                    changed.push((key.clone(), Some(entry(key, &stored))));
                    server.entries.insert(key.clone(), stored);
                }
                Write::Delete { key } => {
                    changed.extend(server.entries.remove(key).map(|_| (key.clone(), None)));
                }
                Write::DeletePrefix { prefix } => {
                    let keys: Vec<_> =
                        server.entries.keys().filter(|key| key.starts_with(prefix.as_str())).cloned().collect();
                    for key in keys {
                        server.entries.remove(&key);
                        changed.push((key, None));
                    }
                }
            }
        }
        if changed.is_empty() {
            return Ok(Err(Committed::Done(Revision(server.revision))));
        }
        server.counts.commits += 1;
        Ok(Ok(changed))
    })?;
    match changed {
        Ok(changed) => Ok(Committed::Done(Revision(apply(changed)))),
        Err(committed) => Ok(committed),
    }
}

/// The entries are changed: notes it, and tells the streams that watch them.
fn apply(changed: Vec<Changed>) -> u64 {
    let (revision, told) = server(|server| {
        server.revision += 1;
        server.history.push_back((server.revision, changed.clone()));
        let told: Vec<(u64, Vec<Changed>)> = server
            .streams
            .iter()
            .map(|(id, stream)| {
                let of_it = changed.iter().filter(|(key, _)| key.starts_with(&stream.prefix)).cloned().collect();
                (*id, of_it)
            })
            .filter(|(_, changed): &(u64, Vec<Changed>)| !changed.is_empty())
            .collect();
        (server.revision, told)
    });
    compact(1000);
    for (id, changed) in told {
        // Taken out meanwhile: a stream that is told may ask the server things.
        let Some(stream) = server(|server| server.streams.remove(&id)) else { continue };
        (stream.told)(changed, Revision(revision));
        server(|server| server.streams.insert(id, stream));
    }
    revision
}

/// A lease of so long.
pub(super) fn grant(ttl: Duration) -> u64 {
    let id = server(|server| {
        server.next_lease += 1;
        let until = kernel::now() + ttl;
        server.leases.insert(server.next_lease, Granted { ttl, until });
        server.next_lease
    });
    look_at(id);
    id
}

/// Whether there is such a lease, which begins anew.
pub(super) fn renew(id: u64) -> bool {
    server(|server| match server.leases.get_mut(&id) {
        Some(lease) => {
            lease.until = kernel::now() + lease.ttl;
            true
        }
        None => false,
    })
}

/// The lease ends, and its keys with it.
pub(super) fn revoke(id: u64) {
    let changed: Vec<Changed> = server(|server| {
        server.leases.remove(&id);
        let keys: Vec<String> =
            server.entries.iter().filter(|(_, stored)| stored.lease == Some(id)).map(|(key, _)| key.clone()).collect();
        keys.into_iter().inspect(|key| drop(server.entries.remove(key))).map(|key| (key, None)).collect()
    });
    if !changed.is_empty() {
        apply(changed);
    }
}

/// Ends a lease when its time is over. While the server is away it expires nothing.
fn look_at(id: u64) {
    let Some(left) = server(|server| server.leases.get(&id).map(|lease| lease.until.saturating_sub(kernel::now())))
    else {
        return;
    };
    // etcd looks twice a second.
    kernel::after(left + Duration::from_millis(500), move || {
        let is_over =
            server(|server| !server.away && server.leases.get(&id).is_some_and(|lease| lease.until <= kernel::now()));
        if is_over {
            server(|server| server.counts.expired += 1);
            kernel::note(format!("etcd: lease {id:x} expired"));
            revoke(id);
        } else {
            look_at(id);
        }
    });
}

/// What a watch may begin with.
pub(super) enum Beginning {
    /// All there is.
    Snapshot(Snapshot),
    /// What changed since.
    Changes(Vec<Changed>, Revision),
}

/// A stream of what changes under `prefix` after `known`, and what it begins with.
pub(super) fn open(prefix: &str, known: Option<Revision>, told: OnChange) -> (u64, Beginning) {
    let beginning = server(|server| match known {
        Some(known) if known.0 >= server.compacted => {
            let later = server.history.iter().filter(|(revision, _)| *revision > known.0);
            let changed = later.flat_map(|(_, changed)| changed).filter(|(key, _)| key.starts_with(prefix)).cloned();
            Some(Beginning::Changes(changed.collect(), Revision(server.revision)))
        }
        _ => None,
    });
    let beginning = beginning.unwrap_or_else(|| {
        server(|server| server.counts.snapshots += 1);
        Beginning::Snapshot(list(prefix))
    });
    let id = server(|server| {
        server.next_stream += 1;
        server.streams.insert(server.next_stream, Stream { prefix: prefix.to_owned(), told });
        server.next_stream
    });
    (id, beginning)
}

/// Whether a stream is open.
pub(super) fn is_open(id: u64) -> bool {
    server(|server| server.streams.contains_key(&id))
}

/// Ends a stream.
pub(super) fn close(id: u64) {
    let stream = server(|server| server.streams.remove(&id));
    drop(stream);
}
