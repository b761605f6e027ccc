//! The name that someone probably meant.

/// The candidate most similar to `name`, if any is similar enough to be worth saying.
pub(crate) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = name.to_ascii_lowercase();
    // A third of the letters wrong is still a guess that helps; beyond that it only confuses.
    let tolerated = (name.chars().count() / 3).max(2);
    candidates
        .into_iter()
        .map(|candidate| (distance(&name, candidate), candidate))
        .filter(|(distance, _)| *distance <= tolerated)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Edits between the two. Forgotten leading sections (`memory.size` for `worker.memory.size`) count as one.
fn distance(name: &str, candidate: &str) -> usize {
    let candidate = candidate.to_ascii_lowercase();
    let is_tail = candidate.strip_suffix(name).is_some_and(|head| head.ends_with(['.', '_']));
    if is_tail && !name.is_empty() { 1 } else { strsim::osa_distance(name, &candidate) }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(nearest("alluxio.home", NAMES), None);
        assert_eq!(nearest("", NAMES), None);
    }
}
