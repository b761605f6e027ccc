//! Whether a program touches a file all over, as one does that maps a model and takes its tensors in the order of its layers.
//!
//! Each page fault brings what the kernel reads around it, and the next one is elsewhere: nothing goes on, so nothing is fetched
//! ahead, and each fault waits for the origin. Of most files that is right, since little of them is read. Of a model nearly every
//! byte is, so the first few reads that lie far apart say that all of it is wanted. Several streams side by side look alike, and
//! want all of it, too.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use forebay_types::FileVersion;

use crate::prefetch::{SLACK, is_near};

/// How the names of such files end.
const ENDING: &[u8] = b".safetensors";
/// So many reads that are far from the one before. One is the tensors after the header; programs that want a tensor or two make few.
const ENOUGH: u32 = 8;

/// The reads of one handle. Two threads that read at once may count one jump too many or too few.
#[derive(Debug, Default)]
pub(crate) struct Scattered {
    ended: AtomicU64,
    jumps: AtomicU32,
    open: Arc<()>,
}

impl Scattered {
    /// That of a handle on `version`, if it is a model.
    pub(crate) fn of(version: &FileVersion) -> Option<Self> {
        version.path.ends_with(ENDING).then(Self::default)
    }

    /// A read of `offset..end`. Whether it is the one that shows that the file is touched all over: of all reads, one.
    #[inline]
    pub(crate) fn shows(&self, offset: u64, end: u64) -> bool {
        self.jumps.load(Ordering::Relaxed) < ENOUGH && self.jumps(offset, end)
    }

    fn jumps(&self, offset: u64, end: u64) -> bool {
        let ended = self.ended.swap(end, Ordering::Relaxed);
        !is_near(ended, offset, SLACK) && self.jumps.fetch_add(1, Ordering::Relaxed) + 1 == ENOUGH
    }

    /// There for as long as the handle is.
    pub(crate) fn watch(&self) -> Weak<()> {
        Arc::downgrade(&self.open)
    }
}

#[cfg(test)]
mod tests {
    use forebay_types::VersionTag;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn version(path: &str) -> FileVersion {
        let tag = VersionTag::Etag("\"1\"".into());
        FileVersion { origin: "s3://b".into(), path: path.as_bytes().into(), size: 1 << 30, tag }
    }

    fn model() -> Scattered {
        Scattered::of(&version("llama/model-00001-of-00002.safetensors")).unwrap()
    }

    #[test]
    fn only_models_are_looked_at() {
        assert!(Scattered::of(&version("tokens.bin")).is_none());
        assert!(Scattered::of(&version("model.safetensors.index.json")).is_none());
    }

    #[test]
    fn reads_all_over_show_it_once() {
        let model = model();
        let shown = (1..1000_u64).filter(|read| {
            let offset = read * 7919 % 1000 * MIB;
            // As the parts of what the kernel reads around a fault come.
            [1, 0, 3, 2]
                .into_iter()
                .any(|part| model.shows(offset + part * 128 * 1024, offset + (part + 1) * 128 * 1024))
        });
        assert_eq!(shown.collect::<Vec<_>>(), [u64::from(ENOUGH)]);
    }

    #[test]
    fn a_reader_in_order_shows_nothing_nor_does_one_of_a_few_tensors() {
        let in_order = model();
        assert!((0..1000).all(|read| !in_order.shows(read * MIB, (read + 1) * MIB)));
        let of_few = model();
        for at in [0, 900 * MIB, 500 * MIB, 10 * MIB] {
            assert!((0..100).all(|read| !of_few.shows(at + read * 4096, at + (read + 1) * 4096)));
        }
    }

    #[test]
    fn who_watches_learns_that_the_handle_is_gone() {
        let model = model();
        let watched = model.watch();
        assert_eq!(watched.strong_count(), 1);
        drop(model);
        assert_eq!(watched.strong_count(), 0);
    }
}
