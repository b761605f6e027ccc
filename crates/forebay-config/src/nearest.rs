//! The name that someone probably meant.

/// Longest name that is compared with others, in bytes: a bit of a word for each. No key, variable or property is as long.
const MAX_LEN: usize = 128;

/// The candidate most similar to `name`, if any is similar enough to be worth saying.
pub(crate) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let typed = Typed::new(name.as_bytes())?;
    // A third of the letters wrong is still a guess that helps; beyond that it only confuses.
    let tolerated = (name.chars().count() / 3).max(2);
    let edits = |candidate: &str| match is_tail(name.as_bytes(), candidate.as_bytes()) {
        // Forgotten leading sections (`memory.size` for `worker.memory.size`) count as one.
        true => Some(1),
        // So many letters are added or left out at least.
        false if candidate.len().abs_diff(name.len()) > tolerated => None,
        false => Some(typed.distance(candidate)).filter(|edits| *edits <= tolerated),
    };
    let similar = candidates.into_iter().filter_map(|candidate| Some((edits(candidate)?, candidate)));
    similar.min_by_key(|(edits, _)| *edits).map(|(_, candidate)| candidate)
}

/// Whether `candidate` is sections, and then `name`.
fn is_tail(name: &[u8], candidate: &[u8]) -> bool {
    let head = candidate.len().checked_sub(name.len());
    let parts = head.and_then(|head| candidate.split_at_checked(head));
    parts.is_some_and(|(head, tail)| matches!(head.last(), Some(b'.' | b'_')) && tail.eq_ignore_ascii_case(name))
}

/// A name that is compared with many, whatever the case of its letters.
struct Typed {
    /// For each letter, a bit for each place at which it stands.
    places: [u128; 256],
    length: usize,
}

impl Typed {
    /// `None`: it is empty, or longer than anything that it could be meant for.
    fn new(name: &[u8]) -> Option<Self> {
        if name.is_empty() || name.len() > MAX_LEN {
            return None;
        }
        let mut places = [0_u128; 256];
        for (at, letter) in name.iter().enumerate() {
            places[usize::from(letter.to_ascii_lowercase())] |= 1_u128 << at;
        }
        Some(Self { places, length: name.len() })
    }

    /// Edits between the two: bytes that are added, left out or changed, and neighbours that changed places.
    ///
    /// Of the matrix of distances between all their beginnings, a column is the word of an addition, a bit for each row (H. Hyyrö,
    /// "A Bit-Vector Algorithm for Computing Levenshtein and Damerau Edit Distances", 2003). A file that is none of ours has thousands of
    /// unknown names, each of which is compared with every key.
    fn distance(&self, candidate: &str) -> usize {
        let last = 1_u128 << (self.length - 1);
        // Where a column is by one more, or less, than in the row above; where it is the same as one up and one to the left; where
        // the letter before stands.
        let (mut rises, mut falls, mut same, mut before) = (u128::MAX, 0_u128, 0_u128, 0_u128);
        let mut distance = self.length;
        for letter in candidate.bytes() {
            let equal = self.places[usize::from(letter.to_ascii_lowercase())];
            let swapped = ((!same & equal) << 1) & before;
            same = ((equal & rises).wrapping_add(rises) ^ rises) | equal | falls | swapped;
            // The same of a row, from the column before to this one.
            let (row_rises, row_falls) = (falls | !(same | rises), same & rises);
            distance += usize::from(row_rises & last != 0);
            distance -= usize::from(row_falls & last != 0);
            let (row_rises, row_falls) = (row_rises << 1 | 1, row_falls << 1);
            (rises, falls) = (row_falls | !(same | row_rises), row_rises & same);
            before = equal;
        }
        distance
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NAMES: [&str; 3] = ["worker.memory.size", "worker.disks", "log.level"];

    #[test]
    fn a_slip_of_the_finger_and_a_forgotten_section_are_recognised() {
        assert_eq!(nearest("worker.memroy.size", NAMES), Some("worker.memory.size"));
        assert_eq!(nearest("Worker.Memory-Size", NAMES), Some("worker.memory.size"));
        assert_eq!(nearest("memory.size", NAMES), Some("worker.memory.size"));
        assert_eq!(nearest("level", NAMES), Some("log.level"));
    }

    #[test]
    fn a_name_like_no_other_gets_no_suggestion() {
        let long = "worker.memory.size".repeat(1000);
        for name in ["alluxio.home", "", long.as_str()] {
            assert_eq!(nearest(name, NAMES), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn edits_are_counted_as_a_matrix_of_distances_counts_them(
            name in "[ab.]{1,12}|[a-d]{60,70}|[ab]{120,128}",
            candidate in "[ab.]{0,12}|[a-d]{60,70}",
        ) {
            let typed = Typed::new(name.as_bytes()).unwrap();
            prop_assert_eq!(typed.distance(&candidate), strsim::osa_distance(&name, &candidate));
        }
    }
}
