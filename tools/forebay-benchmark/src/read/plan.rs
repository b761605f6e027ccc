//! What is measured, in which order.
//!
//! **Size by size.** All that is measured with one size of file follows each other, so that no more than one set of files has to
//! be kept at a time.
//!
//! **Rounds in pairs.** A cell is measured once by each way in a round, and what is compared are neighbours in time. Every other
//! round goes through the ways backwards, so that a machine that becomes slower, or faster, favours none.

/// Megabytes are decimal here, as they are in the study.
const MB: u64 = 1_000_000;
/// The study's sizes.
const SIZES: [u64; 5] = [50 * MB, 100 * MB, 500 * MB, 1_000 * MB, 2_000 * MB];
/// And those of its first test only: one client that reads one file.
const LARGE: [u64; 3] = [5_000 * MB, 10_000 * MB, 40_000 * MB];
/// No file is scaled below a page: that would be a measurement of `open(2)`.
const SMALLEST: u64 = 4096;

/// What is to be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Numbers of clients.
    pub clients: Vec<u32>,
    /// Numbers of files that each client reads.
    pub files: Vec<u32>,
    /// Bytes of a file, measured with every number of clients and files.
    pub sizes: Vec<u64>,
    /// Bytes of a file, measured with the fewest clients and files only.
    pub large: Vec<u64>,
    /// How often everything is measured.
    pub repeat: u32,
}

impl Settings {
    /// The study's, with files of `scale` times its sizes, measured twice.
    #[must_use]
    pub fn study(scale: f64) -> Self {
        let scaled = |sizes: &[u64]| {
            let mut sizes: Vec<u64> = sizes.iter().map(|size| ((*size as f64 * scale) as u64).max(SMALLEST)).collect();
            sizes.dedup();
            sizes
        };
        Self { clients: vec![1, 4], files: vec![1, 20], sizes: scaled(&SIZES), large: scaled(&LARGE), repeat: 2 }
    }

    /// The most bytes of files that are needed at once.
    #[must_use]
    pub fn max_bytes(&self) -> u64 {
        plan(self, 1).iter().map(Batch::bytes).max().unwrap_or_default()
    }
}

/// All that is measured with files of one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Bytes in a file.
    pub file_bytes: u64,
    /// How many files are needed.
    pub files: u32,
    /// The measurements, in order.
    pub steps: Vec<Step>,
}

impl Batch {
    /// The bytes of its files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.file_bytes.saturating_mul(u64::from(self.files))
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// Clients that read at once.
    pub clients: u32,
    /// Files that each of them reads.
    pub files: u32,
    /// Which repetition, from 0.
    pub round: u32,
    /// Which of the ways to read.
    pub way: usize,
}

/// The measurements of `settings` for a number of ways to read the same files.
#[must_use]
pub fn plan(settings: &Settings, ways: usize) -> Vec<Batch> {
    let (clients, files) = (sorted(&settings.clients), sorted(&settings.files));
    let every = |size: &u64| (*size, &clients[..], &files[..]);
    let fewest = |size: &u64| (*size, &clients[..clients.len().min(1)], &files[..files.len().min(1)]);
    let sizes = sorted(&settings.sizes);
    let mut large = sorted(&settings.large);
    large.retain(|size| !sizes.contains(size));
    let shapes = sizes.iter().map(every).chain(large.iter().map(fewest));
    shapes
        .map(|(file_bytes, clients, files)| Batch {
            file_bytes,
            files: files.iter().copied().max().unwrap_or_default(),
            steps: steps(clients, files, settings.repeat, ways),
        })
        .filter(|batch| !batch.steps.is_empty())
        .collect()
}

fn steps(clients: &[u32], files: &[u32], repeat: u32, ways: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    for clients in clients {
        for files in files {
            for round in 0..repeat {
                let step = |way| Step { clients: *clients, files: *files, round, way };
                if round % 2 == 0 {
                    steps.extend((0..ways).map(step));
                } else {
                    steps.extend((0..ways).rev().map(step));
                }
            }
        }
    }
    steps
}

fn sorted<T: Copy + Ord>(values: &[T]) -> Vec<T> {
    let mut values = values.to_vec();
    values.sort_unstable();
    values.dedup();
    values
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_matrix_is_that_of_the_study() {
        let batches = plan(&Settings::study(1.0), 2);
        let sizes: Vec<u64> = batches.iter().map(|batch| batch.file_bytes / MB).collect();
        assert_eq!(sizes, [50, 100, 500, 1000, 2000, 5000, 10_000, 40_000]);
        // Clients {1, 4} × files {1, 20} × two samples × two transports; the large ones only one by one.
        assert!(batches[..5].iter().all(|batch| batch.files == 20 && batch.steps.len() == 2 * 2 * 2 * 2));
        assert!(batches[5..].iter().all(|batch| batch.files == 1 && batch.steps.len() == 2 * 2));
        assert!(batches[5..].iter().flat_map(|batch| &batch.steps).all(|step| step.clients == 1));
        assert_eq!(Settings::study(1.0).max_bytes(), 40_000 * MB);
        assert_eq!(Settings::study(0.5).max_bytes(), 20_000 * MB);
    }

    #[test]
    fn every_other_round_goes_backwards() {
        let settings = Settings { clients: vec![1], files: vec![1], sizes: vec![1], large: Vec::new(), repeat: 3 };
        let ways: Vec<usize> = plan(&settings, 2)[0].steps.iter().map(|step| step.way).collect();
        assert_eq!(ways, [0, 1, 1, 0, 0, 1]);
    }

    #[test]
    fn a_small_scale_leaves_each_size_once() {
        let settings = Settings::study(1e-9);
        assert_eq!((&settings.sizes, &settings.large), (&vec![SMALLEST], &vec![SMALLEST]));
        assert_eq!(plan(&settings, 1).len(), 1, "a large size that is also an ordinary one is measured once");
    }

    proptest! {
        #[test]
        fn each_cell_is_measured_once_a_round_by_each_way(
            clients in proptest::collection::vec(1u32..9, 1..4),
            files in proptest::collection::vec(1u32..30, 1..4),
            sizes in proptest::collection::vec(1u64..1000, 1..5),
            large in proptest::collection::vec(1u64..1000, 0..3),
            repeat in 1u32..4,
            ways in 1usize..4,
        ) {
            let settings = Settings { clients, files, sizes, large, repeat };
            let mut seen = std::collections::HashSet::new();
            for batch in plan(&settings, ways) {
                for (index, step) in batch.steps.iter().enumerate() {
                    prop_assert!(seen.insert((batch.file_bytes, *step)));
                    prop_assert!(step.files <= batch.files && step.way < ways);
                    // What is compared are neighbours.
                    let first = batch.steps[index - index % ways];
                    prop_assert_eq!((first.clients, first.files, first.round), (step.clients, step.files, step.round));
                }
            }
        }
    }
}
