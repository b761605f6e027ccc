//! Which workers may have missed this client's own changes.
//!
//! The author of a change sees it in whatever it asks next, though the worker that it asks may remember what was before: one that
//! could not be told of a change, and one that came to own a name after it had changed, and had owned it before. Such a worker is
//! made to forget everything before it is asked again. One that is asked in the place of an owner that does not answer was told
//! of nothing, and may remember what it heard when it stood in before: about what this client changed, it asks the origin. A
//! worker that leaves the ring and comes back gets a new link and may have its old memory, so what a worker missed is kept by its
//! name and not with its link.

mod due;
#[cfg(test)]
mod model;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use forebay_cluster::{PlacementKey, Ring, Topology};
use forebay_locks::Mutex;

pub(crate) use self::due::Missed;

/// What `due` needs of threads.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU64, Ordering};
}

/// Directories whose changes are told apart, eight bytes each. Of a client that changes more, each worker is taken to have missed
/// something whenever the ring changes.
const MAX_KEYS: usize = 4096;
/// Workers that are gone and are remembered. When there were more, each that comes is taken to have missed something.
const MAX_GONE: usize = 1024;

/// What a client has changed, and what each worker missed of it.
#[derive(Default)]
pub(crate) struct OwnChanges {
    state: Mutex<MissedState>,
}

#[derive(Default)]
struct MissedState {
    workers: HashMap<Arc<str>, Arc<Missed>>,
    /// Of whatever this client has changed.
    keys: HashSet<PlacementKey>,
    /// Not all of it is in `keys`.
    has_more: bool,
    /// Some that are gone were forgotten.
    forgot: bool,
}

impl OwnChanges {
    /// What `key` places is about to be changed.
    pub(crate) fn change(&self, key: PlacementKey) {
        let mut state = self.state.lock();
        if state.keys.len() < MAX_KEYS || state.keys.contains(&key) {
            state.keys.insert(key);
        } else {
            state.has_more = true;
        }
    }

    /// Whether something that `key` places may have been changed.
    pub(crate) fn has_changed(&self, key: PlacementKey) -> bool {
        let state = self.state.lock();
        state.has_more || state.keys.contains(&key)
    }

    /// What the worker called `name` missed.
    pub(crate) fn missed_by(&self, name: &Arc<str>) -> Arc<Missed> {
        self.state.lock().missed_by(name)
    }

    /// The ring becomes another. A worker that owns something of it then that it did not own before was not told what became of it.
    pub(crate) fn reroute(&self, before: &Topology, after: &Topology) {
        let mut state = self.state.lock();
        let mut moved: HashSet<&Arc<str>> = HashSet::new();
        if state.has_more {
            moved.extend(after.ring.members().iter().map(|member| &member.name));
        }
        for key in &state.keys {
            if let Some(owner) = owner(&after.ring, *key)
                && self::owner(&before.ring, *key) != Some(owner)
            {
                moved.insert(owner);
            }
        }
        moved.into_iter().for_each(|name| state.missed_by(name).note());
        state.forget_gone(after);
    }
}

impl MissedState {
    fn missed_by(&mut self, name: &Arc<str>) -> Arc<Missed> {
        let forgot = self.forgot;
        let missed = self.workers.entry(Arc::clone(name)).or_insert_with(|| {
            let missed = Missed::default();
            if forgot {
                missed.note();
            }
            Arc::new(missed)
        });
        Arc::clone(missed)
    }

    fn forget_gone(&mut self, topology: &Topology) {
        let here = topology.ring.members().iter().chain(&topology.leaving).chain(&topology.damped);
        if self.workers.len() > here.clone().count() + MAX_GONE {
            let here: HashSet<&str> = here.map(|member| &*member.name).collect();
            self.workers.retain(|name, _| here.contains(&**name));
            self.forgot = true;
        }
    }
}

fn owner(ring: &Ring, key: PlacementKey) -> Option<&Arc<str>> {
    ring.owner(key).map(|at| &ring.members()[at].name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_cluster::Member;
    use forebay_types::FsPath;

    fn topology(names: &[&str]) -> Topology {
        let member =
            |name: &&str| Member { name: (*name).into(), address: (*name).into(), weight: 1.0, identity: None };
        Topology::of(Ring::new(names.iter().map(member)))
    }

    fn directory(number: u32) -> PlacementKey {
        PlacementKey::from(&FsPath::new(format!("/{number}")).unwrap())
    }

    fn due(changes: &OwnChanges, name: &str) -> bool {
        changes.missed_by(&name.into()).due().is_some()
    }

    #[test]
    fn what_a_worker_missed_is_known_when_it_comes_back() {
        let changes = OwnChanges::default();
        let (both, one) = (topology(&["w1", "w2"]), topology(&["w1"]));
        changes.missed_by(&"w2".into()).note();
        changes.reroute(&both, &one);
        changes.reroute(&one, &both);
        assert!(due(&changes, "w2") && !due(&changes, "w1"));
        let missed = changes.missed_by(&"w2".into());
        missed.caught_up(missed.due().unwrap());
        assert!(!due(&changes, "w2"));
    }

    #[test]
    fn who_comes_to_own_what_was_changed_has_missed_it_and_nobody_else_has() {
        let (both, one) = (topology(&["w1", "w2"]), topology(&["w1"]));
        let of = |name: &str| (0..).map(directory).find(|key| &**owner(&both.ring, *key).unwrap() == name).unwrap();
        let changes = OwnChanges::default();
        changes.reroute(&both, &one);
        assert!(!due(&changes, "w1"), "nothing was changed");
        changes.reroute(&one, &both);
        changes.change(of("w1"));
        changes.reroute(&both, &one);
        assert!(!due(&changes, "w1"), "it made the change itself");
        changes.reroute(&one, &both);
        assert!(!due(&changes, "w2"), "it does not own it");
        changes.change(of("w2"));
        changes.reroute(&both, &one);
        assert!(due(&changes, "w1"));
        changes.reroute(&one, &both);
        assert!(due(&changes, "w2"), "others may have changed it meanwhile, through the same client too");
    }

    #[test]
    fn a_client_that_changes_more_than_it_remembers_trusts_nobody_after_the_ring_changed() {
        let (both, one) = (topology(&["w1", "w2"]), topology(&["w1"]));
        let changes = OwnChanges::default();
        for number in 0..=MAX_KEYS {
            changes.change(directory(number as u32));
        }
        changes.reroute(&one, &both);
        assert!(due(&changes, "w1") && due(&changes, "w2"));
        assert!(changes.state.lock().keys.len() <= MAX_KEYS);
        for number in 0..2 * MAX_GONE {
            changes.missed_by(&format!("gone{number}").into());
            changes.reroute(&one, &one);
        }
        assert!(changes.state.lock().workers.len() <= MAX_GONE + 2);
        assert!(due(&changes, "gone0"), "it may have missed what is not remembered");
    }
}
