//! The entries in memory, and what a transaction does to them. No I/O: the log writes what is planned here, and plays it
//! back after a restart.

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;

use bytes::Bytes;

use crate::{Condition, Entry, LeaseId, Revision, Snapshot, Transaction, Write};

/// One commit: all that changed from one revision to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    pub(super) revision: Revision,
    pub(super) puts: Vec<Put>,
    pub(super) deletes: Vec<String>,
}

/// A key made or replaced by a [`Change`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Put {
    pub(super) key: String,
    pub(super) value: Bytes,
    /// What the log keeps of it is only whether there is one: no lease outlives the process.
    pub(super) lease: Option<LeaseId>,
}

impl Change {
    /// Bytes of keys and values.
    pub(super) fn size(&self) -> usize {
        let puts: usize = self.puts.iter().map(|put| put.key.len() + put.value.len()).sum();
        puts + self.deletes.iter().map(String::len).sum::<usize>()
    }
}

impl Put {
    /// The entry as it is after a change of this revision.
    pub(super) fn entry(&self, revision: Revision) -> Entry {
        Entry { key: self.key.clone(), value: self.value.clone(), revision }
    }
}

/// What a transaction would do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// Its conditions do not hold.
    Conflict,
    /// Its lease has ended.
    LeaseLost { key: String },
    /// Its conditions hold and it changes nothing.
    Nothing,
    /// To be applied.
    Change(Change),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Stored {
    value: Bytes,
    revision: Revision,
    lease: Option<LeaseId>,
}

/// All entries at one revision.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    entries: BTreeMap<String, Stored>,
    revision: Revision,
}

impl Table {
    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    pub(super) fn get(&self, key: &str) -> Option<Entry> {
        self.entries.get(key).map(|stored| entry(key, stored))
    }

    pub(super) fn list(&self, prefix: &str) -> Snapshot {
        let entries = self.under(prefix).map(|(key, stored)| entry(key, stored)).collect();
        Snapshot { entries, revision: self.revision }
    }

    /// Each entry as the change that would make it.
    pub(super) fn as_changes(&self) -> impl Iterator<Item = Change> {
        self.entries.iter().map(|(key, stored)| {
            let put = Put { key: key.clone(), value: stored.value.clone(), lease: stored.lease };
            Change { revision: stored.revision, puts: vec![put], deletes: Vec::new() }
        })
    }

    /// What a transaction does while these leases are held.
    pub(super) fn plan(&self, transaction: &Transaction, held: &HashSet<LeaseId>) -> Plan {
        if !transaction.conditions.iter().all(|condition| self.holds(condition)) {
            return Plan::Conflict;
        }
        let mut change = Change { revision: self.next_revision(), ..Change::default() };
        for write in &transaction.writes {
            match write {
                Write::Put { key, lease: Some(lease), .. } if !held.contains(lease) => {
                    return Plan::LeaseLost { key: key.clone() };
                }
                Write::Put { key, value, lease } => {
                    change.puts.push(Put { key: key.clone(), value: value.clone(), lease: *lease });
                }
                Write::Delete { key } => change.deletes.extend(self.entries.contains_key(key).then(|| key.clone())),
                Write::DeletePrefix { prefix } => {
                    change.deletes.extend(self.under(prefix).map(|(key, _)| key.clone()));
                }
            }
        }
        nothing_or(change)
    }

    /// What it does when all leases end but these.
    pub(super) fn plan_end(&self, held: &HashSet<LeaseId>) -> Plan {
        let ended = |stored: &Stored| stored.lease.is_some_and(|lease| !held.contains(&lease));
        let deletes = self.entries.iter().filter(|(_, stored)| ended(stored)).map(|(key, _)| key.clone()).collect();
        nothing_or(Change { revision: self.next_revision(), puts: Vec::new(), deletes })
    }

    /// Carries out what was planned.
    pub(super) fn apply(&mut self, change: &Change) {
        for key in &change.deletes {
            self.entries.remove(key);
        }
        for Put { key, value, lease } in &change.puts {
            let stored = Stored { value: value.clone(), revision: change.revision, lease: *lease };
            self.entries.insert(key.clone(), stored);
        }
        self.revision = self.revision.max(change.revision);
    }

    fn next_revision(&self) -> Revision {
        Revision(self.revision.0 + 1)
    }

    fn holds(&self, condition: &Condition) -> bool {
        let stored = self.entries.get(condition.key());
        match condition {
            Condition::Absent(_) => stored.is_none(),
            Condition::Present(_) => stored.is_some(),
            Condition::Unchanged(_, revision) => stored.is_some_and(|stored| stored.revision == *revision),
        }
    }

    fn under(&self, prefix: &str) -> impl Iterator<Item = (&String, &Stored)> {
        let from = (Bound::Included(prefix), Bound::Unbounded);
        self.entries.range::<str, _>(from).take_while(move |(key, _)| key.starts_with(prefix))
    }
}

fn entry(key: &str, stored: &Stored) -> Entry {
    Entry { key: key.to_owned(), value: stored.value.clone(), revision: stored.revision }
}

fn nothing_or(change: Change) -> Plan {
    if change.puts.is_empty() && change.deletes.is_empty() { Plan::Nothing } else { Plan::Change(change) }
}
