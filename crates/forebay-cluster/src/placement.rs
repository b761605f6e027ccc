//! Which workers own a key: weighted rendezvous hashing.
//!
//! Every member gets a score for the key; the highest owns it, the next ones are its replicas and the order of
//! failover. With score `-weight / ln(u)`, `u` uniform in (0, 1), a member owns a share of the keys proportional to its
//! weight, and adding or removing one moves only the keys that it gains or loses (Thaler and Ravishankar, "Using
//! name-based mappings to increase hit rates", 1998; Schindelhauer and Schomaker, "Weighted distributed hash tables",
//! SPAA 2005).
//!
//! All clients must agree. They hash the same bytes; the logarithm may differ in its last digit between platforms,
//! which at worst places one key in 10^15 elsewhere: a miss, never a wrong byte.

use forebay_types::{BlockKey, FsPath};
use smallvec::SmallVec;

use crate::Member;

/// 64 bits that stand for what is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlacementKey(u64);

impl From<&BlockKey> for PlacementKey {
    fn from(key: &BlockKey) -> Self {
        // A file id is the output of a cryptographic hash: any 8 bytes of it are uniform.
        let id = u128::from_le_bytes(key.file.0) as u64;
        Self(mix(id ^ mix(key.index)))
    }
}

impl From<&FsPath> for PlacementKey {
    fn from(path: &FsPath) -> Self {
        Self(hash_bytes(path.as_bytes()))
    }
}

/// The members, ready to place keys.
///
/// Members of one weight are a class: the best of a class is the one with the highest `u`, so the logarithm is taken once a
/// class and not once a member. With 10,000 members of a few weights, an owner is found in microseconds.
///
/// ```
/// use forebay_cluster::{Member, Ring};
/// use forebay_types::FsPath;
///
/// let member = |name: &str| Member { name: name.into(), address: name.into(), weight: 1.0, identity: None };
/// let three = Ring::new(["a:1", "b:1", "c:1"].map(member));
/// let two = Ring::new(["a:1", "b:1"].map(member));
/// for number in 0..100 {
///     let path = FsPath::new(format!("/train/{number}")).unwrap();
///     let order = three.ranked(&path);
///     // When a member goes, only what it owned moves: to the one that was next in its order.
///     let left = order.iter().find(|at| &*three.members()[**at].name != "c:1").unwrap();
///     assert_eq!(two.owner(&path), Some(*left));
/// }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ring {
    members: Vec<Member>,
    classes: Vec<Class>,
}

/// Members of one weight.
#[derive(Clone, Debug, PartialEq)]
struct Class {
    weight: f64,
    /// Hash of each member's name.
    seeds: Vec<u64>,
    /// The members, in step with `seeds`, in order of name.
    indices: Vec<u32>,
}

/// The first members in rendezvous order; as many as any request needs, without an allocation.
pub type Ranked = SmallVec<[usize; 4]>;

impl Ring {
    /// A ring of `members`, in order of name; a weight that is no positive number counts as 1.
    #[must_use]
    pub fn new(members: impl IntoIterator<Item = Member>) -> Self {
        let mut members: Vec<Member> = members.into_iter().collect();
        members.sort_by(|a, b| a.name.cmp(&b.name));
        members.dedup_by(|a, b| a.name == b.name);
        let mut classes: Vec<Class> = Vec::new();
        for (index, member) in members.iter_mut().enumerate() {
            if !(member.weight.is_finite() && member.weight > 0.0) {
                member.weight = 1.0;
            }
            let known = classes.iter().position(|class| class.weight == member.weight);
            let at = known.unwrap_or_else(|| {
                classes.push(Class { weight: member.weight, seeds: Vec::new(), indices: Vec::new() });
                classes.len() - 1
            });
            classes[at].seeds.push(hash_bytes(member.name.as_bytes()));
            // No cluster has four billion workers.
            classes[at].indices.push(index as u32);
        }
        Self { members, classes }
    }

    /// The members, in order of name.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The index of the member called `name`.
    #[must_use]
    pub fn position(&self, name: &str) -> Option<usize> {
        self.members.binary_search_by(|member| (*member.name).cmp(name)).ok()
    }

    /// The share of the keys that each member owns, in order of name; they add up to 1.
    #[must_use]
    pub fn shares(&self) -> Vec<f64> {
        let total: f64 = self.members.iter().map(|member| member.weight).sum();
        self.members.iter().map(|member| member.weight / total).collect()
    }

    /// The index of the member that owns `key`; `None` in an empty ring.
    #[must_use]
    pub fn owner(&self, key: impl Into<PlacementKey>) -> Option<usize> {
        self.first(key, 1).first().copied()
    }

    /// The indices of the first `count` members in rendezvous order: the owner, its replicas, and the members to ask
    /// next.
    #[must_use]
    pub fn first(&self, key: impl Into<PlacementKey>, count: usize) -> Ranked {
        if self.members.len() == 1 && count > 0 {
            return Ranked::from_slice(&[0]);
        }
        let key = key.into();
        let mut best: SmallVec<[(f64, usize); 8]> = SmallVec::new();
        for class in &self.classes {
            class.first(key, count, &mut best);
        }
        best.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        best.into_iter().take(count).map(|(_, index)| index).collect()
    }

    /// The indices of all members, the owner first, then in the order of failover.
    #[must_use]
    pub fn ranked(&self, key: impl Into<PlacementKey>) -> Vec<usize> {
        let key = key.into();
        let scores = self.classes.iter().flat_map(|class| class.scores(key));
        let mut scored: Vec<(f64, usize)> = scores.collect();
        scored.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        scored.into_iter().map(|(_, index)| index).collect()
    }

    /// What places `key` on the member at `index`, as a number: the member with the highest one owns it.
    #[must_use]
    pub fn score(&self, index: usize, key: impl Into<PlacementKey>) -> f64 {
        score_of(&self.members[index], key.into())
    }
}

/// What would place `key` on `member`, were it in the ring.
pub(crate) fn score_of(member: &Member, key: PlacementKey) -> f64 {
    score(draw(hash_bytes(member.name.as_bytes()), key), member.weight)
}

/// 53 random bits for a member and a key: the precision of an f64.
fn draw(seed: u64, key: PlacementKey) -> u64 {
    mix(key.0 ^ seed) >> 11
}

fn score(draw: u64, weight: f64) -> f64 {
    // Moved to the middle of its interval so that 0 and 1 never occur.
    let uniform = (draw as f64 + 0.5) / (1u64 << 53) as f64;
    -weight / uniform.ln()
}

impl Class {
    /// Adds the best `count` members of the class, with their scores, to `best`.
    fn first(&self, key: PlacementKey, count: usize, best: &mut SmallVec<[(f64, usize); 8]>) {
        let mut drawn: SmallVec<[(u64, u32); 4]> = SmallVec::new();
        for (seed, index) in self.seeds.iter().zip(&self.indices) {
            let draw = draw(*seed, key);
            if drawn.len() == count && drawn.last().is_none_or(|worst| draw <= worst.0) {
                continue;
            }
            // Of equal ones the first stays ahead, as in `ranked`.
            let at = drawn.iter().position(|other| other.0 < draw).unwrap_or(drawn.len());
            drawn.truncate(count - 1);
            drawn.insert(at, (draw, *index));
        }
        best.extend(drawn.into_iter().map(|(draw, index)| (score(draw, self.weight), index as usize)));
    }

    fn scores(&self, key: PlacementKey) -> impl Iterator<Item = (f64, usize)> + '_ {
        let members = self.seeds.iter().zip(&self.indices);
        members.map(move |(seed, index)| (score(draw(*seed, key), self.weight), *index as usize))
    }
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): every input bit moves every output bit.
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A 64-bit hash that is the same in every release and on every platform, which `std`'s is not.
fn hash_bytes(bytes: &[u8]) -> u64 {
    let mut hash = mix(bytes.len() as u64);
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = mix(hash ^ u64::from_le_bytes(word));
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::FileId;
    use proptest::prelude::*;

    fn ring(weights: &[f64]) -> Ring {
        Ring::new(weights.iter().enumerate().map(|(number, weight)| Member {
            name: format!("worker-{number:03}").into(),
            address: format!("10.0.0.{number}:29999").into(),
            weight: *weight,
            identity: None,
        }))
    }

    fn keys(count: u64) -> impl Iterator<Item = BlockKey> {
        (0..count).map(|number| {
            let id = u128::from(mix(number / 16)) << 64 | u128::from(mix(number / 16 + 7));
            BlockKey { file: FileId(id.to_le_bytes()), index: number % 16 }
        })
    }

    #[test]
    fn shares_follow_weights() {
        let ring = ring(&[1.0, 1.0, 2.0, 4.0]);
        let mut owned = [0u32; 4];
        for key in keys(80_000) {
            owned[ring.owner(&key).unwrap()] += 1;
        }
        for (count, expected) in owned.into_iter().zip([10_000.0, 10_000.0, 20_000.0, 40_000.0]) {
            assert!((f64::from(count) / expected - 1.0).abs() < 0.05, "{owned:?}");
        }
    }

    #[test]
    fn a_new_member_takes_its_share_and_nothing_else_moves() {
        let before = ring(&[1.0; 9]);
        let after = ring(&[1.0; 10]);
        let mut moved = 0;
        for key in keys(50_000) {
            let (old, new) = (before.owner(&key).unwrap(), after.owner(&key).unwrap());
            if old != new {
                assert_eq!(new, 9, "a key moved between two members that were there before");
                moved += 1;
            }
        }
        assert!((4_500..5_500).contains(&moved), "{moved} of 50000 moved, expected a tenth");
    }

    #[test]
    fn placement_never_changes_between_releases() {
        let ring = ring(&[1.0, 2.0, 3.0]);
        let owners: Vec<_> = keys(12).map(|key| ring.owner(&key).unwrap()).collect();
        assert_eq!(owners, [1, 0, 0, 1, 0, 2, 2, 0, 1, 2, 2, 2]);
    }

    #[test]
    fn an_empty_ring_owns_nothing_and_bad_weights_count_as_one() {
        assert_eq!(Ring::default().owner(&FsPath::root()), None);
        assert!(Ring::default().shares().is_empty());
        let ring = ring(&[f64::NAN, 0.0, -1.0, f64::INFINITY]);
        assert!(ring.members().iter().all(|member| member.weight == 1.0));
    }

    proptest! {
        #[test]
        fn the_first_are_the_first_of_all(number: u64, weights in prop::collection::vec(1u8..4, 1..12), count in 0usize..14) {
            let weights: Vec<f64> = weights.into_iter().map(f64::from).collect();
            let ring = ring(&weights);
            let key = PlacementKey(number);
            let ranked = ring.ranked(key);
            prop_assert_eq!(&ring.first(key, count)[..], &ranked[..count.min(ranked.len())]);
            prop_assert!(ranked.windows(2).all(|pair| ring.score(pair[0], key) >= ring.score(pair[1], key)));
        }

        #[test]
        fn failover_order_is_what_is_left_when_the_owner_goes(number: u64, count in 2usize..12) {
            let ring = ring(&vec![1.0; count]);
            let key = PlacementKey(number);
            let ranked = ring.ranked(key);
            prop_assert_eq!(ring.owner(key), Some(ranked[0]));
            let without = Ring::new(ring.members().iter().enumerate()
                .filter(|(at, _)| *at != ranked[0]).map(|(_, member)| member.clone()));
            let next = without.owner(key).unwrap();
            prop_assert_eq!(&without.members()[next].name, &ring.members()[ranked[1]].name);
        }
    }
}
