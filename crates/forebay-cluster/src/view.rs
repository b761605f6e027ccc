//! What a process knows of the members: a state machine from what the state store tells to the [`Topology`] in use.
//!
//! The store is believed, except when believing it would stop reads:
//!
//! * while it cannot be reached, the last known members stay;
//! * what it says first after that may lack workers whose leases ran out meanwhile, though they live: those that are missing
//!   stay for a grace period, in which a living worker registers again;
//! * a group without any worker is not believed at all once there was one: the last known members stay, and those that are
//!   really gone cost a failed connection.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::records::members::{WorkerRecord, WorkerState};
use crate::{Member, Ring, Topology};

/// Which of its addresses a worker is reached at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// That for requests: by processes that move no data, and may not be on the network for it.
    #[default]
    Requests,
    /// That for data, where the worker has one.
    Data,
}

/// The members of one group, as one process knows them.
#[derive(Debug)]
pub struct MemberView {
    grace: Duration,
    reach: Reach,
    /// By name, as told.
    told: BTreeMap<String, WorkerRecord>,
    /// Members that were there before the store was lost and that it has not spoken of since, and until when they stay.
    missing: BTreeMap<String, (WorkerRecord, Instant)>,
    /// Since when the store cannot be reached, and why.
    lost: Option<(Instant, String)>,
    /// Until when what the store deletes is taken for a lease that ran out while it was away, half of the grace period: it says that it
    /// is back before it tells what happened meanwhile, and does not say where that ends.
    settles: Option<Instant>,
    topology: Arc<Topology>,
}

/// How fresh what is known is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// As the store says now.
    Current,
    /// The store cannot be reached: the last known members are in use.
    LastKnown {
        /// Since when.
        since: Instant,
        /// Why it cannot be reached.
        reason: String,
    },
}

impl MemberView {
    /// A view in which members that are missing after the store was lost stay for `grace`.
    #[must_use]
    pub fn new(grace: Duration) -> Self {
        let reach = Reach::default();
        let (told, missing) = (BTreeMap::new(), BTreeMap::new());
        Self { grace, reach, told, missing, lost: None, settles: None, topology: Arc::default() }
    }

    /// The same, with these addresses of the members.
    #[must_use]
    pub fn reaching(self, reach: Reach) -> Self {
        Self { reach, ..self }
    }

    /// The topology in use.
    #[must_use]
    pub fn topology(&self) -> &Arc<Topology> {
        &self.topology
    }

    /// How fresh it is.
    #[must_use]
    pub fn freshness(&self) -> Freshness {
        match &self.lost {
            None => Freshness::Current,
            Some((since, reason)) => Freshness::LastKnown { since: *since, reason: reason.clone() },
        }
    }

    /// Every worker that counts, in order of name.
    pub fn records(&self) -> impl Iterator<Item = &WorkerRecord> {
        let all: BTreeMap<&String, &WorkerRecord> =
            self.missing.iter().map(|(name, (record, _))| (name, record)).chain(&self.told).collect();
        all.into_values()
    }

    /// The store told all that there is.
    pub fn replaced(&mut self, records: impl IntoIterator<Item = WorkerRecord>, now: Instant) {
        let told: BTreeMap<String, WorkerRecord> =
            records.into_iter().map(|record| (record.name.clone(), record)).collect();
        let before = std::mem::replace(&mut self.told, told);
        if self.is_back(now) {
            let until = now + self.grace;
            self.missing.extend(before.into_iter().map(|(name, record)| (name, (record, until))));
        }
        self.renew(now);
    }

    /// The store told what changed.
    pub fn changed(
        &mut self,
        puts: impl IntoIterator<Item = WorkerRecord>,
        deletes: impl IntoIterator<Item = String>,
        now: Instant,
    ) {
        let settles = self.is_back(now) || self.settles.is_some_and(|until| now < until);
        for name in deletes {
            let record = self.told.remove(&name);
            match record.filter(|_| settles) {
                Some(record) => drop(self.missing.insert(name, (record, now + self.grace))),
                None => drop(self.missing.remove(&name)),
            }
        }
        self.told.extend(puts.into_iter().map(|record| (record.name.clone(), record)));
        self.renew(now);
    }

    /// The store cannot be reached.
    pub fn lost(&mut self, reason: &str, now: Instant) {
        self.lost.get_or_insert_with(|| (now, reason.to_owned()));
    }

    /// The store tells something. Whether it was lost: then those that are missing could not register until now.
    fn is_back(&mut self, now: Instant) -> bool {
        let was_lost = self.lost.take().is_some();
        if was_lost {
            self.missing.values_mut().for_each(|(_, until)| *until = now + self.grace);
            self.settles = Some(now + self.grace / 2);
        }
        was_lost
    }

    /// Time has passed. Returns when to say so again; while the store is away, time changes nothing.
    pub fn tick(&mut self, now: Instant) -> Option<Instant> {
        self.renew(now);
        if self.lost.is_some() {
            return None;
        }
        self.missing.values().map(|(_, until)| *until).min()
    }

    fn renew(&mut self, now: Instant) {
        let told = &self.told;
        // While the store is away, no member's time runs out: no worker could register.
        let away = self.lost.is_some();
        self.missing.retain(|name, (_, until)| !told.contains_key(name) && (away || now < *until));
        let renewed = topology_at(self.reach, self.records());
        let nobody = renewed.ring.members().is_empty() && !self.topology.ring.members().is_empty();
        if !nobody && renewed != *self.topology {
            self.topology = Arc::new(renewed);
        }
    }
}

/// The topology that these records describe, at the addresses for requests.
#[must_use]
pub fn topology_of<'a>(records: impl IntoIterator<Item = &'a WorkerRecord>) -> Topology {
    topology_at(Reach::Requests, records)
}

fn topology_at<'a>(reach: Reach, records: impl IntoIterator<Item = &'a WorkerRecord>) -> Topology {
    let (mut active, mut leaving, mut damped) = (Vec::new(), Vec::new(), Vec::new());
    let mut warming = BTreeSet::new();
    for record in records {
        let for_data = record.addresses.tcp_data.first().filter(|_| reach == Reach::Data);
        let member = Member {
            name: record.name.as_str().into(),
            address: for_data.unwrap_or(&record.addresses.rpc).as_str().into(),
            weight: record.weight,
            identity: record.identity.as_deref().map(Arc::from),
        };
        match record.state {
            WorkerState::Active => {
                if record.warming {
                    warming.insert(Arc::clone(&member.name));
                }
                active.push(member);
            }
            WorkerState::Draining | WorkerState::Drained => leaving.push(member),
            WorkerState::Damped => damped.push(member),
        }
    }
    // A cluster whose workers all leave, or all flap, still has to be read from.
    for last_resort in [&mut leaving, &mut damped] {
        if active.is_empty() {
            std::mem::swap(&mut active, last_resort);
        }
    }
    Topology { ring: Arc::new(Ring::new(active)), leaving, damped, warming }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::members::Addresses;

    const GRACE: Duration = Duration::from_secs(20);

    fn record(name: &str) -> WorkerRecord {
        WorkerRecord { name: name.into(), weight: 1.0, ..WorkerRecord::default() }
    }

    fn names(view: &MemberView) -> Vec<String> {
        view.topology().ring.members().iter().map(|member| member.name.to_string()).collect()
    }

    fn view_of(names: &[&str], now: Instant) -> MemberView {
        let mut view = MemberView::new(GRACE);
        view.replaced(names.iter().map(|name| record(name)), now);
        view
    }

    #[test]
    fn members_come_and_go_as_the_store_says() {
        let now = Instant::now();
        let mut view = view_of(&["a", "b"], now);
        view.changed([record("c")], ["a".to_owned()], now);
        assert_eq!(names(&view), ["b", "c"]);
        view.replaced([record("a")], now);
        assert_eq!(names(&view), ["a"], "the store was not lost: what it says is all there is");
    }

    #[test]
    fn the_last_known_members_stay_while_the_store_is_away_and_for_a_grace_period_after_it() {
        let now = Instant::now();
        let mut view = view_of(&["a", "b", "c"], now);
        view.lost("connection refused", now);
        view.tick(now + GRACE * 100);
        assert_eq!(names(&view), ["a", "b", "c"]);
        assert!(matches!(view.freshness(), Freshness::LastKnown { since, .. } if since == now));
        let back = now + GRACE * 100;
        view.replaced([record("a")], back);
        assert_eq!((names(&view).len(), view.freshness()), (3, Freshness::Current));
        view.changed([record("b")], [], back + GRACE / 2);
        assert_eq!(view.tick(back + GRACE / 2), Some(back + GRACE));
        assert_eq!(view.tick(back + GRACE), None);
        assert_eq!(names(&view), ["a", "b"], "the one that did not come back is gone");
    }

    #[test]
    fn leases_that_ran_out_while_the_store_was_away_end_after_a_grace_period_too() {
        let now = Instant::now();
        let mut view = view_of(&["a", "b"], now);
        view.lost("gone", now);
        view.changed([], ["a".to_owned(), "b".to_owned()], now);
        assert_eq!((names(&view).len(), view.tick(now)), (2, Some(now + GRACE)));
        view.changed([record("b")], [], now);
        view.tick(now + GRACE);
        assert_eq!(names(&view), ["b"]);
    }

    #[test]
    fn what_happened_while_the_store_was_away_may_be_told_after_it_has_said_that_it_is_back() {
        let now = Instant::now();
        let mut view = view_of(&["a", "b", "c"], now);
        view.lost("gone", now);
        // As etcd does: the watch goes on, and then come the events.
        view.changed([], [], now);
        view.changed([], ["a".to_owned(), "b".to_owned()], now);
        view.changed([record("a")], ["c".to_owned()], now + GRACE / 4);
        assert_eq!(names(&view), ["a", "b", "c"], "those that live register again");
        view.changed([record("c")], [], now + GRACE / 2);
        assert_eq!(view.tick(now + GRACE), None);
        assert_eq!(names(&view), ["a", "c"]);
        view.changed([], ["c".to_owned()], now + GRACE);
        assert_eq!(names(&view), ["a"], "who goes later is gone at once");
    }

    #[test]
    fn a_store_that_goes_away_again_in_the_grace_period_begins_it_anew_and_is_not_waited_for_in_circles() {
        let now = Instant::now();
        let mut view = view_of(&["a", "b"], now);
        view.lost("gone", now);
        view.changed([], ["a".to_owned()], now);
        assert_eq!(view.tick(now), Some(now + GRACE));
        view.lost("gone again", now + GRACE / 2);
        assert_eq!(
            view.tick(now + GRACE * 2),
            None,
            "nothing happens until it is back: whoever ticks would never rest"
        );
        let back = now + GRACE * 3;
        view.changed([], [], back);
        assert_eq!((names(&view).len(), view.tick(back)), (2, Some(back + GRACE)), "it could not register meanwhile");
        assert_eq!(view.tick(back + GRACE), None);
        assert_eq!(names(&view), ["b"]);
    }

    #[test]
    fn a_member_that_is_deleted_in_the_grace_period_is_gone_at_once() {
        let now = Instant::now();
        let mut view = view_of(&["a", "b"], now);
        view.lost("gone", now);
        view.replaced([record("a")], now);
        view.changed([], ["b".to_owned()], now);
        assert_eq!(names(&view), ["a"]);
    }

    #[test]
    fn an_empty_group_is_not_believed_once_there_was_a_worker() {
        let now = Instant::now();
        let mut view = view_of(&["a"], now);
        view.changed([], ["a".to_owned()], now);
        assert_eq!(names(&view), ["a"]);
        view.changed([record("b")], [], now);
        assert_eq!(names(&view), ["b"]);
    }

    #[test]
    fn who_drains_or_flaps_owns_nothing_unless_nobody_else_is_there() {
        let state = |name: &str, state| WorkerRecord { state, ..record(name) };
        let mut records =
            vec![state("a", WorkerState::Draining), state("b", WorkerState::Damped), state("c", WorkerState::Active)];
        let topology = topology_of(&records);
        assert_eq!((topology.ring.members().len(), topology.leaving.len()), (1, 1));
        assert_eq!(topology.member("a").map(|member| &*member.name), Some("a"));
        assert_eq!(topology.member("b"), None);
        records.pop();
        let all_leave = topology_of(&records);
        assert_eq!((&*all_leave.ring.members()[0].name, all_leave.leaving.len(), all_leave.damped.len()), ("a", 0, 1));
        records.remove(0);
        let all_flap = topology_of(&records);
        assert_eq!((&*all_flap.ring.members()[0].name, all_flap.damped.len()), ("b", 0));
    }

    #[test]
    fn who_moves_data_reaches_workers_at_their_addresses_for_it() {
        let addresses = |data: &[&str]| Addresses {
            rpc: "10.0.0.1:1".into(),
            tcp_data: data.iter().map(|address| (*address).to_owned()).collect(),
            ..Addresses::default()
        };
        let at = |reach, data: &[&str]| {
            let mut view = MemberView::new(GRACE).reaching(reach);
            view.replaced([WorkerRecord { addresses: addresses(data), ..record("a") }], Instant::now());
            view.topology().ring.members()[0].address.to_string()
        };
        assert_eq!(at(Reach::Data, &["10.1.0.1:1"]), "10.1.0.1:1");
        assert_eq!(at(Reach::Requests, &["10.1.0.1:1"]), "10.0.0.1:1");
        assert_eq!(at(Reach::Data, &[]), "10.0.0.1:1");
    }

    #[test]
    fn a_change_that_changes_nobody_keeps_the_topology() {
        let now = Instant::now();
        let mut view = view_of(&["a"], now);
        let before = Arc::clone(view.topology());
        view.changed([WorkerRecord { since: 9, ..record("a") }], [], now);
        assert!(Arc::ptr_eq(&before, view.topology()), "links are kept for as long as this one is");
    }
}
