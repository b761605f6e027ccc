//! The members of a cache group and what they are about to do: which own blocks, which are leaving, which are new.
//!
//! A worker that lacks a block asks at most two others for it before it asks the origin: those that are likely to have
//! it because they owned it a moment ago or own it as well. A worker that is asked in this way fetches nothing itself,
//! so workers that ask each other never wait for each other.

use std::collections::BTreeSet;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::placement::score_of;
use crate::{Member, PlacementKey, Ring};

/// Workers that are asked for a block before the origin is: each costs a round trip when it has nothing.
pub const MAX_PEERS: usize = 2;

/// Workers of which one is asked while another does not answer: those that may have the block, and some in the order of
/// failover, of which the first ones may not answer either.
const MAX_IN_PLACE: usize = 4;

/// Members whose names are in order; what they own is told by the ring.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Topology {
    /// The members that own blocks.
    pub ring: Arc<Ring>,
    /// The members that own none any more and answer for what they still hold.
    pub leaving: Vec<Member>,
    /// The members that are there and own nothing yet, because they came and went too often.
    pub damped: Vec<Member>,
    /// The members of the ring that joined a moment ago and hold little of what they own.
    pub warming: BTreeSet<Arc<str>>,
}

impl Topology {
    /// Members of which none comes or goes.
    #[must_use]
    pub fn of(ring: Ring) -> Self {
        Self { ring: Arc::new(ring), ..Self::default() }
    }

    /// The member called `name`, leaving or not.
    #[must_use]
    pub fn member(&self, name: &str) -> Option<&Member> {
        let of_ring = self.ring.position(name).map(|at| &self.ring.members()[at]);
        of_ring.or_else(|| self.leaving.iter().find(|member| &*member.name == name))
    }

    /// The workers that `me` asks for `key`, which it lacks, before it asks the origin, when `replicas` workers own
    /// each key:
    ///
    /// 1. a worker that is leaving and owned the key before `me` did, or owned it when `me` was not yet there;
    /// 2. while `me` is new: the one that owned it before `me` came;
    /// 3. others of those that own it.
    #[must_use]
    pub fn peers(&self, me: &str, key: PlacementKey, replicas: usize) -> SmallVec<[&Member; MAX_PEERS]> {
        let replicas = replicas.max(1);
        let first = self.ring.first(key, replicas + 1);
        let members = self.ring.members();
        let my_rank = first.iter().position(|at| &*members[*at].name == me);
        let owners = first.iter().take(replicas).map(|at| &members[*at]).filter(|member| &*member.name != me);
        let warming = self.warming.contains(me);
        let score_to_beat = self.member(me).filter(|_| !warming).map_or(f64::NEG_INFINITY, |me| score_of(me, key));
        let leaving = self.leaving.iter().filter(|member| &*member.name != me);
        let leaving = leaving.map(|member| (score_of(member, key), member)).filter(|(score, _)| *score > score_to_beat);
        let leaving = leaving.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, member)| member);
        let previous = match my_rank {
            Some(rank) if rank < replicas && warming => first.get(replicas).map(|at| &members[*at]),
            _ => None,
        };
        // A previous owner is likelier to have it than a replica that may be as new as we are.
        leaving.into_iter().chain(previous).chain(owners).take(MAX_PEERS).collect()
    }

    /// The workers to ask for `key` while `asked` does not answer, best first: those that `asked` itself would ask, since they
    /// are likely to have it, then the others in the order of failover.
    #[must_use]
    pub fn in_place_of(&self, asked: &str, key: PlacementKey, replicas: usize) -> SmallVec<[&Member; MAX_IN_PLACE]> {
        let mut others: SmallVec<[&Member; MAX_IN_PLACE]> = self.peers(asked, key, replicas).into_iter().collect();
        let next = self.ring.first(key, replicas.max(1) + MAX_IN_PLACE);
        for member in next.into_iter().map(|at| &self.ring.members()[at]) {
            if others.len() < MAX_IN_PLACE
                && &*member.name != asked
                && others.iter().all(|other| other.name != member.name)
            {
                others.push(member);
            }
        }
        others
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn member(name: &str) -> Member {
        Member { name: name.into(), address: format!("{name}:29999").into(), weight: 1.0, identity: None }
    }

    fn names(count: usize) -> impl Iterator<Item = String> {
        (0..count).map(|number| format!("worker-{number:02}"))
    }

    fn topology(count: usize) -> Topology {
        Topology::of(Ring::new(names(count).map(|name| member(&name))))
    }

    fn key(number: u64) -> PlacementKey {
        PlacementKey::from(&forebay_types::FsPath::new(format!("/{number}")).unwrap())
    }

    proptest! {
        #[test]
        fn a_worker_that_is_new_asks_the_one_that_owned_the_block_before(number: u64, count in 2usize..9) {
            let mut after = topology(count);
            let owner = &after.ring.members()[after.ring.owner(key(number)).unwrap()].name;
            let before = Ring::new(after.ring.members().iter().filter(|other| other.name != *owner).cloned());
            let previous = before.members()[before.owner(key(number)).unwrap()].name.clone();
            let owner = Arc::clone(owner);
            prop_assert!(after.peers(&owner, key(number), 1).is_empty(), "who is not new asks nobody");
            after.warming.insert(Arc::clone(&owner));
            let asked: Vec<_> = after.peers(&owner, key(number), 1).iter().map(|member| &*member.name).collect();
            prop_assert_eq!(asked, [&*previous]);
        }

        #[test]
        fn the_new_owner_asks_the_one_that_leaves_for_what_that_one_owned(number: u64, count in 2usize..9, leaver in 0usize..9) {
            let before = topology(count);
            let leaver = before.ring.members()[leaver % count].clone();
            let ring = Ring::new(before.ring.members().iter().filter(|other| other.name != leaver.name).cloned());
            let during = Topology { leaving: vec![leaver.clone()], ..Topology::of(ring) };
            let owned = before.ring.members()[before.ring.owner(key(number)).unwrap()].name == leaver.name;
            let owner = &during.ring.members()[during.ring.owner(key(number)).unwrap()].name;
            let asks_it = during.peers(owner, key(number), 1).iter().any(|member| member.name == leaver.name);
            prop_assert_eq!(asks_it, owned);
            prop_assert!(during.peers(&leaver.name, key(number), 1).iter().all(|member| member.name != leaver.name));
        }
    }

    proptest! {
        #[test]
        fn those_asked_in_the_place_of_another_are_others_and_never_the_same_twice(
            number: u64,
            count in 1usize..9,
            asked in 0usize..9,
            replicas in 1usize..4,
            is_warming: bool,
            leaves: bool,
        ) {
            let mut topology = topology(count);
            let asked = Arc::clone(&topology.ring.members()[asked % count].name);
            if is_warming {
                topology.warming.insert(Arc::clone(&asked));
            }
            if leaves {
                topology.leaving.push(member("worker-99"));
            }
            let others = topology.in_place_of(&asked, key(number), replicas);
            let names: BTreeSet<_> = others.iter().map(|member| &*member.name).collect();
            prop_assert!(names.len() == others.len() && !names.contains(&*asked));
            prop_assert!(others.len() >= (count - 1).min(MAX_IN_PLACE));
            let peers = topology.peers(&asked, key(number), replicas);
            prop_assert!(others.iter().zip(&peers).all(|(other, peer)| other.name == peer.name));
        }
    }

    #[test]
    fn the_next_in_the_order_of_failover_stands_in_for_the_only_owner() {
        let topology = topology(5);
        for number in 0..100 {
            let ranked = topology.ring.ranked(key(number));
            let name = |rank: usize| &*topology.ring.members()[ranked[rank]].name;
            let asked = topology.in_place_of(name(0), key(number), 1);
            let asked: Vec<_> = asked.iter().map(|member| &*member.name).collect();
            assert_eq!(asked, [name(1), name(2), name(3), name(4)]);
        }
    }

    #[test]
    fn a_worker_that_is_new_asks_the_one_that_leaves_what_that_one_owned_before_it_came() {
        let before = topology(4);
        for number in 0..100 {
            let ranked = before.ring.ranked(key(number));
            let name = |rank: usize| Arc::clone(&before.ring.members()[ranked[rank]].name);
            let staying = before.ring.members().iter().filter(|member| member.name != name(1)).cloned();
            let mut now = Topology::of(Ring::new(staying));
            now.leaving.push(before.ring.members()[ranked[1]].clone());
            assert!(now.peers(&name(0), key(number), 1).is_empty(), "who was there before has it");
            now.warming.insert(name(0));
            assert_eq!(now.peers(&name(0), key(number), 1)[0].name, name(1));
        }
    }

    #[test]
    fn replicas_ask_each_other_and_who_owns_nothing_asks_the_owner() {
        let topology = topology(5);
        let ranked = topology.ring.ranked(key(1));
        let name = |rank: usize| Arc::clone(&topology.ring.members()[ranked[rank]].name);
        let asked = |rank: usize, replicas| {
            let me = name(rank);
            let peers = topology.peers(&me, key(1), replicas);
            peers.iter().map(|member| Arc::clone(&member.name)).collect::<Vec<_>>()
        };
        assert_eq!(asked(0, 2), [name(1)]);
        assert_eq!(asked(1, 2), [name(0)]);
        assert_eq!(asked(2, 4), [name(0), name(1)], "never more than two");
        assert_eq!(asked(4, 1), [name(0)], "a reader that could not reach the owner came here");
        assert!(asked(0, 1).is_empty());
    }
}
