//! The files that are measured: how many of each layout, of which sizes and names.

use crate::record::Layout;

/// fio takes no value of an option that is longer, in a job file or on its command line (seen with 3.33).
pub const LONGEST_OPTION: usize = 4096;
/// What sizes are multiples of.
const MIB: u64 = 1 << 20;

/// The files of each layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes of the one large file.
    pub single_bytes: u64,
    /// How many files the layout of several has.
    pub files: u32,
    /// Bytes in each of them.
    pub file_bytes: u64,
    /// How many small files there are.
    pub small_files: u32,
    /// Bytes in each of them.
    pub small_bytes: u64,
}

/// A file that a layout consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataFile {
    /// Its path below the directory that is measured: `file07`, `small/042`.
    pub name: String,
    /// Its size.
    pub bytes: u64,
}

impl Sizes {
    /// How many files a layout has.
    #[must_use]
    pub fn count(&self, layout: Layout) -> u32 {
        match layout {
            Layout::Single => 1,
            Layout::Multiple => self.files,
            Layout::Small => self.small_files,
        }
    }

    /// The files of a layout, in order. Those that are small have a directory of their own, so that lists of their names are
    /// short ([`LONGEST_OPTION`]).
    #[must_use]
    pub fn files(&self, layout: Layout) -> Vec<DataFile> {
        let count = self.count(layout);
        let last = count.saturating_sub(1);
        let (width, bytes) = match layout {
            Layout::Single => return vec![DataFile { name: "single".to_owned(), bytes: self.single_bytes }],
            Layout::Multiple => (last.to_string().len().max(2), self.file_bytes),
            Layout::Small => (last.to_string().len().max(3), self.small_bytes),
        };
        let name = |index: u32| match layout {
            Layout::Small => format!("small/{index:0width$}"),
            _ => format!("file{index:0width$}"),
        };
        (0..count).map(|index| DataFile { name: name(index), bytes }).collect()
    }

    /// Bytes in all files of a layout.
    #[must_use]
    pub fn bytes(&self, layout: Layout) -> u64 {
        let each = match layout {
            Layout::Single => self.single_bytes,
            Layout::Multiple => self.file_bytes,
            Layout::Small => self.small_bytes,
        };
        each.saturating_mul(u64::from(self.count(layout)))
    }

    /// The same, with the files of one layout so much smaller, or fewer, that they have no more than `most` bytes together.
    #[must_use]
    pub fn within(&self, layout: Layout, most: u64) -> Self {
        if self.bytes(layout) <= most {
            return *self;
        }
        let count = |each: u64| u32::try_from(most / each.max(1)).unwrap_or(u32::MAX).max(1);
        match layout {
            // A power of two: a size that people recognise.
            Layout::Single => Self { single_bytes: 1 << most.max(MIB).ilog2(), ..*self },
            Layout::Multiple => {
                let files = self.files.min(count(MIB));
                let each = most / u64::from(files) / MIB * MIB;
                Self { files, file_bytes: each.clamp(MIB, self.file_bytes.max(MIB)), ..*self }
            }
            Layout::Small => Self { small_files: count(self.small_bytes).min(self.small_files), ..*self },
        }
    }

    /// The same number of files, each `factor` times as large: a multiple of 1 MiB, and 1 MiB at least.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        let scale = |bytes: u64| ((bytes as f64 * factor / MIB as f64).round().max(1.0) as u64).saturating_mul(MIB);
        Self {
            single_bytes: scale(self.single_bytes),
            file_bytes: scale(self.file_bytes),
            small_bytes: scale(self.small_bytes),
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn published() -> Sizes {
        crate::posix::Settings::full().sizes
    }

    #[test]
    fn files_have_names_of_one_width() {
        let sizes = Sizes { files: 101, small_files: 2, ..published() };
        let names = |layout| sizes.files(layout).into_iter().map(|file| file.name).collect::<Vec<_>>();
        assert_eq!(names(Layout::Single), ["single"]);
        assert_eq!(names(Layout::Multiple)[100], "file100");
        assert_eq!(names(Layout::Multiple)[7], "file007");
        assert_eq!(names(Layout::Small), ["small/000", "small/001"]);
        let published = published().files(Layout::Multiple);
        assert_eq!((published[0].name.as_str(), published[19].name.as_str()), ("file00", "file19"));
    }

    #[test]
    fn scaled_files_are_whole_mebibytes_and_at_least_one() {
        let scaled = published().scaled(0.001);
        assert_eq!((scaled.single_bytes, scaled.file_bytes), (102 << 20, 5 << 20));
        assert_eq!((scaled.small_bytes, scaled.small_files), (1 << 20, 100));
    }

    #[test]
    fn a_laptop_s_files_are_made_smaller_until_they_fit_into_its_cache() {
        let quick = crate::posix::Settings::quick().sizes;
        let most = 819 * MIB;
        assert_eq!(quick.within(Layout::Single, most).single_bytes, 512 * MIB);
        assert_eq!(quick.within(Layout::Multiple, most), quick, "500 MiB fit");
        let small = quick.within(Layout::Multiple, 51 * MIB);
        assert_eq!((small.files, small.file_bytes), (20, 2 * MIB));
        assert_eq!(quick.within(Layout::Small, 51 * MIB).small_files, 51);
    }

    proptest! {
        #[test]
        fn what_is_made_to_fit_fits_and_nothing_grows(most in MIB..1 << 40) {
            for before in [published(), crate::posix::Settings::quick().sizes] {
                for layout in [Layout::Single, Layout::Multiple, Layout::Small] {
                    let after = before.within(layout, most);
                    prop_assert!(after.bytes(layout) <= most.max(MIB));
                    prop_assert!(after.bytes(layout) <= before.bytes(layout));
                    prop_assert!(after.files(layout).iter().all(|file| file.bytes % MIB == 0 && file.bytes > 0));
                }
            }
        }
    }
}
