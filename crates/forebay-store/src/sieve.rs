//! The eviction order: SIEVE (Zhang et al., NSDI '24). Pure.
//!
//! Entries stand in a queue in order of arrival and never move. A hand walks from the oldest to the newest and wraps
//! around. An entry that was visited since the hand last passed is spared once; the first one that was not is the
//! victim, and the hand stays where it was. So one-time entries leave soon, popular ones stay, and a hit is one store
//! to an atomic flag: no lock, no list to reorder.
//!
//! It is our own because of what victims need here: the judge may skip an entry (its bytes have readers), and entries
//! leave from the middle when a whole frame is freed or their block is removed.

/// What the judge says of an entry that the hand has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It goes.
    Evict,
    /// It was visited: the judge has cleared its flag, and it stays for another lap.
    Spare,
    /// It cannot go now.
    Skip,
}

/// Names an entry of a [`Sieve`] for as long as it is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    position: u32,
    generation: u32,
}

const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Node<T> {
    entry: Option<T>,
    generation: u32,
    newer: u32,
    older: u32,
}

/// The queue and its hand.
#[derive(Debug)]
pub(crate) struct Sieve<T> {
    nodes: Vec<Node<T>>,
    vacant: Vec<u32>,
    oldest: u32,
    newest: u32,
    hand: u32,
}

impl<T> Sieve<T> {
    pub(crate) fn new() -> Self {
        Self { nodes: Vec::new(), vacant: Vec::new(), oldest: NONE, newest: NONE, hand: NONE }
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len() - self.vacant.len()
    }

    /// The entries, the oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        let node = |position: u32| self.nodes.get(position as usize);
        let nodes = std::iter::successors(node(self.oldest), move |before| node(before.newer));
        nodes.filter_map(|node| node.entry.as_ref())
    }

    /// Adds the newest entry.
    pub(crate) fn insert(&mut self, entry: T) -> Token {
        let older = self.newest;
        let position = match self.vacant.pop() {
            Some(position) => {
                let node = &mut self.nodes[position as usize];
                node.entry = Some(entry);
                (node.newer, node.older) = (NONE, older);
                position
            }
            None => {
                self.nodes.push(Node { entry: Some(entry), generation: 0, newer: NONE, older });
                // An entry stands for at least 32 KiB: 2^32 of them would be 128 TiB in one tier of one disk.
                (self.nodes.len() - 1) as u32
            }
        };
        match older {
            NONE => self.oldest = position,
            older => self.nodes[older as usize].newer = position,
        }
        self.newest = position;
        Token { position, generation: self.nodes[position as usize].generation }
    }

    /// Takes an entry out; `None` when it has left already.
    pub(crate) fn remove(&mut self, token: Token) -> Option<T> {
        let node = self.nodes.get_mut(token.position as usize)?;
        if node.generation != token.generation {
            return None;
        }
        let entry = node.entry.take()?;
        node.generation = node.generation.wrapping_add(1);
        let (newer, older) = (node.newer, node.older);
        match older {
            NONE => self.oldest = newer,
            older => self.nodes[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.nodes[newer as usize].older = older,
        }
        if self.hand == token.position {
            self.hand = newer;
        }
        self.vacant.push(token.position);
        Some(entry)
    }

    /// Moves the hand until the judge names a victim, and takes it out. `None` when two laps found none: one lap may
    /// spare everything.
    pub(crate) fn evict(&mut self, mut judge: impl FnMut(&T) -> Verdict) -> Option<T> {
        for _ in 0..2 * self.len() {
            let position = if self.hand == NONE { self.oldest } else { self.hand };
            let node = &self.nodes[position as usize];
            let verdict = node.entry.as_ref().map_or(Verdict::Skip, &mut judge);
            if verdict == Verdict::Evict {
                // Removing the entry under the hand moves the hand on.
                self.hand = position;
                return self.remove(Token { position, generation: node.generation });
            }
            self.hand = node.newer;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// SIEVE as the paper tells it, on a plain vector, oldest first.
    #[derive(Default)]
    struct Naive {
        queue: Vec<u32>,
        hand: usize,
    }

    impl Naive {
        fn remove(&mut self, entry: u32) -> bool {
            let Some(at) = self.queue.iter().position(|other| *other == entry) else { return false };
            self.queue.remove(at);
            if self.hand > at {
                self.hand -= 1;
            }
            self.wrap();
            true
        }

        fn wrap(&mut self) {
            if self.hand >= self.queue.len() {
                self.hand = 0;
            }
        }

        fn evict(&mut self, visited: &mut HashMap<u32, bool>, pinned: u32) -> Option<u32> {
            for _ in 0..2 * self.queue.len() {
                let entry = self.queue[self.hand];
                if entry % 7 != pinned && !std::mem::take(visited.entry(entry).or_default()) {
                    self.queue.remove(self.hand);
                    self.wrap();
                    return Some(entry);
                }
                self.hand += 1;
                self.wrap();
            }
            None
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert,
        Visit(prop::sample::Index),
        Remove(prop::sample::Index),
        Evict { pinned: u32 },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => Just(Step::Insert),
            3 => any::<prop::sample::Index>().prop_map(Step::Visit),
            1 => any::<prop::sample::Index>().prop_map(Step::Remove),
            2 => (0u32..14).prop_map(|pinned| Step::Evict { pinned }),
        ];
        prop::collection::vec(step, 1..300)
    }

    proptest! {
        #[test]
        fn it_evicts_what_a_naive_sieve_evicts(steps in steps()) {
            let (mut sieve, mut naive) = (Sieve::new(), Naive::default());
            let mut visited: HashMap<u32, bool> = HashMap::new();
            let mut tokens: Vec<Token> = Vec::new();
            for step in steps {
                match step {
                    Step::Insert => {
                        let entry = tokens.len() as u32;
                        tokens.push(sieve.insert(entry));
                        naive.queue.push(entry);
                    }
                    Step::Visit(pick) if !tokens.is_empty() => {
                        visited.insert(pick.index(tokens.len()) as u32, true);
                    }
                    Step::Remove(pick) if !tokens.is_empty() => {
                        let entry = pick.index(tokens.len());
                        let there = sieve.remove(tokens[entry]).is_some();
                        prop_assert_eq!(there, naive.remove(entry as u32));
                    }
                    Step::Evict { pinned } => {
                        let mut seen = visited.clone();
                        let expected = naive.evict(&mut visited, pinned);
                        let victim = sieve.evict(|entry| {
                            if entry % 7 == pinned {
                                Verdict::Skip
                            } else if std::mem::take(seen.entry(*entry).or_default()) {
                                Verdict::Spare
                            } else {
                                Verdict::Evict
                            }
                        });
                        prop_assert_eq!(victim, expected);
                    }
                    Step::Visit(_) | Step::Remove(_) => {}
                }
                prop_assert_eq!(sieve.len(), naive.queue.len());
                prop_assert!(sieve.iter().eq(&naive.queue));
            }
        }
    }

    #[test]
    fn a_visited_entry_outlives_newer_ones_that_were_not() {
        let mut sieve = Sieve::new();
        for entry in 0..4 {
            sieve.insert(entry);
        }
        let mut visited = [true, false, false, true];
        let mut judge = |entry: &usize| {
            if std::mem::take(&mut visited[*entry]) { Verdict::Spare } else { Verdict::Evict }
        };
        assert_eq!(sieve.evict(&mut judge), Some(1));
        assert_eq!(sieve.evict(&mut judge), Some(2));
        assert_eq!(sieve.evict(&mut judge), Some(0));
    }

    #[test]
    fn nothing_is_evicted_when_everything_is_pinned() {
        let mut sieve = Sieve::new();
        sieve.insert(1);
        assert_eq!(sieve.evict(|_| Verdict::Skip), None);
        assert_eq!(sieve.len(), 1);
        assert_eq!(Sieve::<u8>::new().evict(|_| Verdict::Evict), None);
    }
}
