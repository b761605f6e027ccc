//! Sets of small numbers, of which one bit tells whether a number is in.

/// A set of numbers, in as many bits as the greatest of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BitSet(Vec<u64>);

impl BitSet {
    /// Adds a number.
    pub fn insert(&mut self, number: u32) {
        let word = (number / u64::BITS) as usize;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (number % u64::BITS);
    }

    /// The bits of the numbers `64 * index..64 * index + 64`, the first one's the lowest.
    #[must_use]
    pub fn word(&self, index: usize) -> u64 {
        self.0.get(index).copied().unwrap_or(0)
    }

    /// Whether the number is in.
    #[inline]
    #[must_use]
    pub fn contains(&self, number: u32) -> bool {
        let word = self.0.get((number / u64::BITS) as usize);
        word.is_some_and(|word| (word >> (number % u64::BITS)) & 1 == 1)
    }
}

impl FromIterator<u32> for BitSet {
    fn from_iter<T: IntoIterator<Item = u32>>(numbers: T) -> Self {
        let mut set = Self::default();
        numbers.into_iter().for_each(|number| set.insert(number));
        set
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_number_is_in_if_it_was_put_in(numbers in prop::collection::btree_set(0..300u32, 0..40)) {
            let set: BitSet = numbers.iter().copied().collect();
            let found: BTreeSet<u32> = (0..400).filter(|number| set.contains(*number)).collect();
            prop_assert_eq!(found, numbers);
            prop_assert!(!set.contains(u32::MAX));
        }
    }
}
