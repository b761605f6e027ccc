//! What is to be measured: the axes of the sweep, the sizes of the files, the time of a step.
//!
//! [`Settings::full`] has the figures of the published benchmark that this one repeats: 100 GiB, 20 files of 5 GiB, a minute a step,
//! jobs from 1 to 512, three rounds of each. It takes hours. [`Settings::reference`] is its table of one client and one worker, and [`Settings::quick`] asks all
//! questions of a laptop in some minutes. All are starting points: every field may be changed, and [`Settings::check`] says what cannot be run.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::quality::Quality;
use super::sizes::Sizes;
use super::words::block;
use crate::record::{Access, CacheState, Layout, Pattern};

/// Blocks above this are warned of: they lower the number of operations, stand in each other's way in the queue, and hide what
/// the stack can really do.
pub const LARGEST_SOUND_BLOCK: u64 = 1 << 20;
/// Jobs of one fio at most: it has a table of so many.
const MAX_JOBS: u32 = 4096;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// How fio reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// `io_uring`: fastest where the kernel and its policies allow it.
    IoUring,
    /// `libaio`: asynchronous with `direct` only.
    Libaio,
    /// `psync`: one `pread` at a time. It has no queue, so a depth above 1 means nothing to it.
    Psync,
}

impl Engine {
    /// fio's name of it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::IoUring => "io_uring",
            Self::Libaio => "libaio",
            Self::Psync => "psync",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// What is to be measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// States of the cache.
    pub states: Vec<CacheState>,
    /// Sets of files.
    pub layouts: Vec<Layout>,
    /// Which job reads which file, of sets of several.
    pub patterns: Vec<Pattern>,
    /// Orders of reading.
    pub accesses: Vec<Access>,
    /// The sweep of `numjobs`, ascending.
    pub jobs: Vec<u32>,
    /// How long a step reads at most.
    pub runtime: Duration,
    /// Bytes of a sequential read of the one large file: a sweep for each.
    pub single_blocks: Vec<u64>,
    /// Bytes of a sequential read of several files.
    pub blocks: Vec<u64>,
    /// Bytes of a random read.
    pub random_blocks: Vec<u64>,
    /// Operations that a job has under way, in the shared pattern: a sweep for each.
    pub shared_depths: Vec<u32>,
    /// The same in the distinct pattern.
    pub distinct_depths: Vec<u32>,
    /// How fio reads.
    pub engine: Engine,
    /// Whether the reader's page cache is bypassed.
    pub direct: bool,
    /// How often each step is measured.
    pub repeat: u32,
    /// The files.
    pub sizes: Sizes,
}

impl Settings {
    /// Everything that the published benchmark measures: hours, and 200 GiB of disk.
    #[must_use]
    pub fn full() -> Self {
        Self {
            states: vec![CacheState::Warm, CacheState::Cold],
            layouts: vec![Layout::Single, Layout::Multiple, Layout::Small],
            patterns: vec![Pattern::Shared, Pattern::Distinct],
            accesses: vec![Access::Sequential, Access::Random],
            jobs: (0..10).map(|power| 1 << power).collect(),
            runtime: Duration::from_secs(60),
            single_blocks: vec![1 << 20],
            blocks: vec![256 << 10],
            random_blocks: vec![4 << 10],
            shared_depths: vec![1],
            distinct_depths: vec![32],
            engine: Engine::IoUring,
            direct: true,
            repeat: 3,
            sizes: Sizes {
                single_bytes: 100 * GIB,
                files: 20,
                file_bytes: 5 * GIB,
                small_files: 100,
                small_bytes: MIB,
            },
        }
    }

    /// The published table of one client and one worker: one file of 100 GiB, warm, from front to back and anywhere, in blocks of 1 MiB and
    /// of 4 KiB, with 1, 32 and 128 jobs; and with 256 and 512, where published sweeps go to. An hour, once the file is there.
    #[must_use]
    pub fn reference() -> Self {
        let blocks = vec![1 << 20, 4 << 10];
        Self {
            states: vec![CacheState::Warm],
            layouts: vec![Layout::Single],
            patterns: vec![Pattern::Shared],
            jobs: vec![1, 32, 128, 256, 512],
            single_blocks: blocks.clone(),
            random_blocks: blocks,
            ..Self::full()
        }
    }

    /// The same questions as [`Settings::full`], of 1.6 GiB, two seconds a step, once each: some minutes, and figures that are called quick.
    #[must_use]
    pub fn quick() -> Self {
        Self {
            jobs: vec![1, 2, 4, 8, 16, 32],
            runtime: Duration::from_secs(2),
            repeat: 1,
            sizes: Sizes { single_bytes: GIB, files: 20, file_bytes: 25 * MIB, small_files: 100, small_bytes: MIB },
            ..Self::full()
        }
    }

    /// The same of files that are `factor` times as large ([`Sizes::scaled`]).
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        Self { sizes: self.sizes.scaled(factor), ..self.clone() }
    }

    /// Bytes of a read, of each sweep.
    #[must_use]
    pub fn blocks_of(&self, layout: Layout, access: Access) -> &[u64] {
        match (access, layout) {
            (Access::Random, _) => &self.random_blocks,
            (Access::Sequential, Layout::Single) => &self.single_blocks,
            (Access::Sequential, _) => &self.blocks,
        }
    }

    /// Operations that a job has under way, of each sweep.
    #[must_use]
    pub fn depths_of(&self, pattern: Pattern) -> &[u32] {
        match pattern {
            Pattern::Shared => &self.shared_depths,
            Pattern::Distinct => &self.distinct_depths,
        }
    }

    /// Bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.layouts.iter().fold(0, |bytes, layout| bytes.saturating_add(self.sizes.bytes(*layout)))
    }

    /// Whether this can be run at all.
    ///
    /// # Errors
    /// The first of [`SettingsError`] that applies.
    pub fn check(&self) -> Result<(), SettingsError> {
        let axes = [
            ("--states", self.states.is_empty()),
            ("--layouts", self.layouts.is_empty()),
            ("--patterns", self.patterns.is_empty()),
            ("--accesses", self.accesses.is_empty()),
            ("--numjobs", self.jobs.is_empty()),
            ("--bs", self.single_blocks.is_empty() || self.blocks.is_empty()),
            ("--random-bs", self.random_blocks.is_empty()),
            ("--iodepth", self.shared_depths.is_empty() || self.distinct_depths.is_empty()),
        ];
        if let Some((flag, _)) = axes.iter().find(|(_, empty)| *empty) {
            return Err(SettingsError::Nothing(flag));
        }
        if let Some(jobs) = self.jobs.iter().find(|jobs| !(1..=MAX_JOBS).contains(*jobs)) {
            return Err(SettingsError::Jobs(*jobs));
        }
        if !self.jobs.is_sorted_by(|before, after| before < after) {
            return Err(SettingsError::Order);
        }
        // fio reckons in whole seconds where it is told seconds: what is shorter would be no limit at all.
        if self.runtime < Duration::from_secs(1) || self.runtime.subsec_nanos() != 0 {
            return Err(SettingsError::Runtime(self.runtime));
        }
        let numbers = [
            ("--repeat", self.repeat),
            ("--files", self.sizes.files),
            ("--small-files", self.sizes.small_files),
            ("--iodepth", self.shared_depths.iter().chain(&self.distinct_depths).copied().min().unwrap_or(0)),
        ];
        if let Some((flag, _)) = numbers.iter().find(|(_, number)| *number == 0) {
            return Err(SettingsError::Zero(flag));
        }
        for layout in &self.layouts {
            self.check_blocks(*layout)?;
        }
        Ok(())
    }

    fn check_blocks(&self, layout: Layout) -> Result<(), SettingsError> {
        let file = self.sizes.files(layout).first().map_or(0, |file| file.bytes);
        for block in self.accesses.iter().flat_map(|access| self.blocks_of(layout, *access)).copied() {
            // fio reads whole blocks only: the rest of a file would never be read.
            if block == 0 || file == 0 || !file.is_multiple_of(block) {
                return Err(SettingsError::Block { block, file });
            }
        }
        Ok(())
    }

    /// What may mislead, though it can be run: sentences for the user who asked for it.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut blocks: Vec<u64> = self.layouts.iter().flat_map(|layout| self.blocks(*layout)).collect();
        blocks.sort_unstable();
        blocks.dedup();
        let mut warnings: Vec<String> = blocks.into_iter().filter_map(oversized).collect();
        let depths = self.patterns.iter().flat_map(|pattern| self.depths_of(*pattern));
        if let Some(depth) = depths.max().filter(|depth| **depth > 1 && self.engine == Engine::Psync) {
            warnings.push(format!("With psync each job has a depth of 1, not {depth}: it has no queue."));
        }
        if !self.direct {
            let what = "the reader's own page cache answers what is read again, at the memory's speed";
            warnings.push(format!("Without direct reads {what}."));
        }
        warnings.extend(Quality::of(&self.named()).warning().map(|(text, next)| format!("{text} {next}")));
        warnings
    }

    fn blocks(&self, layout: Layout) -> Vec<u64> {
        self.accesses.iter().flat_map(|access| self.blocks_of(layout, *access)).copied().collect()
    }

    /// All of it by the names of the command line, as [`crate::record::Record::settings`] keeps it. Two runs with the same can go on
    /// where the other ended.
    #[must_use]
    pub fn named(&self) -> BTreeMap<String, String> {
        let pairs = [
            ("states", list(&self.states, |state| state.name().to_owned())),
            ("layouts", list(&self.layouts, |layout| layout.name().to_owned())),
            ("patterns", list(&self.patterns, |pattern| pattern.name().to_owned())),
            ("accesses", list(&self.accesses, |access| access.name().to_owned())),
            ("numjobs", list(&self.jobs, |jobs| jobs.to_string())),
            ("runtime", format!("{}s", self.runtime.as_secs())),
            ("single-bs", list(&self.single_blocks, |bytes| bytes.to_string())),
            ("bs", list(&self.blocks, |bytes| bytes.to_string())),
            ("random-bs", list(&self.random_blocks, |bytes| bytes.to_string())),
            ("shared-iodepth", list(&self.shared_depths, |depth| depth.to_string())),
            ("distinct-iodepth", list(&self.distinct_depths, |depth| depth.to_string())),
            ("ioengine", self.engine.to_string()),
            ("direct", u8::from(self.direct).to_string()),
            ("repeat", self.repeat.to_string()),
            ("size", self.sizes.single_bytes.to_string()),
            ("files", self.sizes.files.to_string()),
            ("file-size", self.sizes.file_bytes.to_string()),
            ("small-files", self.sizes.small_files.to_string()),
            ("small-size", self.sizes.small_bytes.to_string()),
        ];
        pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

fn list<T: Copy>(values: &[T], name: impl Fn(T) -> String) -> String {
    values.iter().map(|value| name(*value)).collect::<Vec<_>>().join(",")
}

/// What is to be said of blocks that are too large, if they are.
pub(super) fn oversized(bytes: u64) -> Option<String> {
    let what = "there are fewer operations, each holds up those behind it, and what the stack can do does not show";
    (bytes > LARGEST_SOUND_BLOCK).then(|| format!("Blocks of {} are over 1 MiB: {what}.", block(bytes)))
}

/// Why settings cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// An axis has no value.
    #[error("{0} names nothing; name one at least")]
    Nothing(&'static str),
    /// fio cannot run so many.
    #[error("{0} jobs cannot be run; name 1 to {MAX_JOBS}")]
    Jobs(u32),
    /// A sweep goes upwards.
    #[error("--numjobs is not in order; name each number once, the smallest first")]
    Order,
    /// fio is told whole seconds.
    #[error("a step of {0:?} cannot be asked of fio; name whole seconds")]
    Runtime(Duration),
    /// Something is zero that cannot be.
    #[error("{0} is 0; name 1 at least")]
    Zero(&'static str),
    /// fio reads whole blocks.
    #[error("files of {file} bytes are not made of whole blocks of {block}; change one of them")]
    Block {
        /// Bytes of a read.
        block: u64,
        /// Bytes of a file.
        file: u64,
    },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_full_plan_is_100_gib_20_files_of_5_gib_a_minute_a_step_and_1_to_512_jobs() {
        let full = Settings::full();
        assert_eq!(full.sizes.single_bytes, 100 << 30);
        assert_eq!((full.sizes.files, full.sizes.file_bytes, full.sizes.small_files), (20, 5 << 30, 100));
        assert_eq!(full.jobs, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]);
        assert_eq!(full.runtime, Duration::from_secs(60));
        assert_eq!(full.blocks_of(Layout::Single, Access::Sequential), [1 << 20]);
        assert_eq!(full.blocks_of(Layout::Multiple, Access::Sequential), [256 << 10]);
        assert_eq!(full.blocks_of(Layout::Multiple, Access::Random), [4 << 10]);
        assert_eq!((full.depths_of(Pattern::Shared), full.depths_of(Pattern::Distinct)), (&[1][..], &[32][..]));
        assert_eq!((full.engine.name(), full.direct), ("io_uring", true));
        assert_eq!((full.check(), full.warnings()), (Ok(()), Vec::<String>::new()));
    }

    #[test]
    fn the_reference_plan_has_the_twelve_published_cells() {
        let reference = Settings::reference();
        assert_eq!((reference.check(), reference.warnings()), (Ok(()), Vec::<String>::new()));
        let published = super::super::baseline::PUBLISHED;
        let planned = super::super::plan(&reference, &["forebay".to_owned()], 1, 1);
        let is_planned = |cell: &super::super::baseline::Published| {
            planned.iter().any(|step| {
                let case = &step.case;
                (case.layout, case.pattern, case.access, case.block_bytes, Some(case.jobs))
                    == (cell.layout, cell.pattern, cell.access, cell.block_bytes, cell.jobs)
            })
        };
        assert_eq!(published.iter().filter(|cell| is_planned(cell)).count(), 12);
        assert_eq!(
            planned.len(),
            2 * 2 * 5 * 3,
            "two orders, two sizes of blocks, 256 and 512 jobs besides, three rounds"
        );
    }

    #[test]
    fn a_laptop_s_run_fits_on_a_laptop_and_says_that_it_is_short() {
        let quick = Settings::quick();
        assert_eq!(quick.check(), Ok(()));
        assert!(quick.bytes() < 2 << 30, "{}", quick.bytes());
        assert!(quick.warnings().iter().any(|warning| warning.contains("orders of magnitude")));
    }

    #[test]
    fn what_cannot_be_run_is_refused_by_the_flag_s_name() {
        let full = Settings::full();
        let refused = |settings: Settings| settings.check().unwrap_err();
        assert_eq!(refused(Settings { patterns: vec![], ..full.clone() }), SettingsError::Nothing("--patterns"));
        assert_eq!(refused(Settings { jobs: vec![0], ..full.clone() }), SettingsError::Jobs(0));
        assert_eq!(refused(Settings { jobs: vec![4, 2], ..full.clone() }), SettingsError::Order);
        assert_eq!(refused(Settings { repeat: 0, ..full.clone() }), SettingsError::Zero("--repeat"));
        let half = Duration::from_millis(500);
        assert_eq!(refused(Settings { runtime: half, ..full.clone() }), SettingsError::Runtime(half));
        let small = Settings { sizes: Sizes { small_bytes: 100_000, ..full.sizes }, ..full.clone() };
        assert!(matches!(refused(small), SettingsError::Block { file: 100_000, .. }));
    }

    #[test]
    fn large_blocks_a_useless_depth_and_the_page_cache_are_warned_of() {
        let settings =
            Settings { blocks: vec![4 << 20], engine: Engine::Psync, direct: false, ..Settings::full() }.warnings();
        assert_eq!(settings.len(), 3);
        assert!(settings[0].starts_with("Blocks of 4 MiB are over 1 MiB"), "{}", settings[0]);
        assert!(settings[1].contains("psync") && settings[2].contains("page cache"));
    }

    #[test]
    fn equal_settings_and_no_others_have_equal_names() {
        let full = Settings::full();
        assert_eq!(full.named()["numjobs"], "1,2,4,8,16,32,64,128,256,512");
        assert_eq!(full.named()["states"], "warm,cold");
        assert_eq!(full.named(), Settings::full().named());
        for other in [
            Settings { direct: false, ..full.clone() },
            Settings { distinct_depths: vec![16], ..full.clone() },
            Settings { accesses: vec![Access::Random], ..full.clone() },
            full.scaled(0.5),
        ] {
            assert_ne!(other.named(), full.named());
        }
    }

    proptest! {
        #[test]
        fn scaling_keeps_counts_and_gives_sizes_that_blocks_divide(factor in 1e-9_f64..100.0) {
            let (full, scaled) = (Settings::full(), Settings::full().scaled(factor));
            prop_assert_eq!(scaled.check(), Ok(()));
            for layout in [Layout::Single, Layout::Multiple, Layout::Small] {
                let files = scaled.sizes.files(layout);
                prop_assert_eq!(files.len() as u32, full.sizes.count(layout));
                prop_assert!(files.iter().all(|file| file.bytes >= MIB && file.bytes % MIB == 0));
                prop_assert_eq!(files.iter().map(|file| file.bytes).sum::<u64>(), scaled.sizes.bytes(layout));
            }
        }
    }
}
