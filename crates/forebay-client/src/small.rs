//! Small files in one round trip: which names to ask for together with their bytes, and what becomes of those.
//!
//! A worker that is asked what a name is can send the bytes of a small file along
//! ([`Op::StatRead`](forebay_transport::Op::StatRead)), which saves the reader a trip. Bytes that are not read would be
//! a waste, so a directory has to earn it: each small file that is opened there is worth [`GAIN`], each answer with
//! bytes costs one, and they are asked for from [`ENOUGH`] on. So a loader of a data set has them from the third file
//! on, and a program that only looks at names soon gets names only. A large file that is opened ends it.
//!
//! Pure; [`crate::lookup`] asks.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use forebay_types::{Attr, FileId, FileVersion, FsPath, SECTOR_SIZE};
use moka::sync::Cache;

/// What a small file that is opened is worth.
const GAIN: u32 = 2;
/// From so much on, bytes are asked for.
const ENOUGH: u32 = 4;
/// The most that a directory is worth. Answers whose bytes are not wanted soon bring it below [`ENOUGH`]; then it is
/// asked for names only.
const MAX_WORTH: u32 = 8;
/// Directories that are known, some 200 bytes each; and names whose bytes came.
const DIRECTORIES: u64 = 4096;
const NAMES: u64 = 65_536;

/// What is known of small files.
pub(crate) struct SmallFiles {
    /// The largest; 0 turns it off.
    most: u32,
    directories: Cache<FsPath, Arc<Directory>>,
    /// The same ones by what their files' versions tell of them: to open a file names its version.
    by_version: Cache<u64, Arc<Directory>>,
    /// The block and the size of the files whose bytes came.
    came: Cache<FsPath, (FileId, u32)>,
}

/// What is known of one directory.
#[derive(Debug, Default)]
struct Directory {
    worth: AtomicU32,
    /// About the size of the largest file that was opened lately.
    largest: AtomicU32,
}

impl Directory {
    /// A small file of `size` bytes is opened.
    fn opened(&self, size: u32) {
        // Counts that are lost when two do this at once are made up for by the next file.
        let worth = self.worth.load(Ordering::Relaxed);
        self.worth.store((worth + GAIN).min(MAX_WORTH), Ordering::Relaxed);
        let largest = self.largest.load(Ordering::Relaxed);
        self.largest.store(size.max(largest - largest / 8), Ordering::Relaxed);
    }

    fn opened_large(&self) {
        self.worth.store(0, Ordering::Relaxed);
    }

    /// Bytes came with an answer.
    fn answered(&self) {
        self.worth.store(self.worth.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
    }

    /// How many bytes to have room for, if they are worth asking for.
    fn wants(&self, most: u32) -> Option<u32> {
        let is_worth_it = self.worth.load(Ordering::Relaxed) >= ENOUGH;
        // Files of one directory differ little: what the buffers keep is as large as the room that was made.
        let room = self.largest.load(Ordering::Relaxed).max(SECTOR_SIZE).next_power_of_two();
        is_worth_it.then_some(room.min(most))
    }
}

/// What tells the directories of file versions apart.
pub(crate) fn place(version: &FileVersion) -> u64 {
    let end = version.path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    let mut hasher = DefaultHasher::new();
    (&version.origin, &version.path[..end]).hash(&mut hasher);
    hasher.finish()
}

impl SmallFiles {
    /// `most`: the bytes of the largest file that counts as small; 0 turns it off.
    pub(crate) fn new(most: u32) -> Self {
        let (directories, by_version) = (Cache::new(DIRECTORIES), Cache::new(DIRECTORIES));
        Self { most, directories, by_version, came: Cache::new(NAMES) }
    }

    /// Whether nothing counts as small.
    pub(crate) fn is_off(&self) -> bool {
        self.most == 0
    }

    /// How many bytes to have room for when a name of `directory` is asked for, if they are worth asking for.
    pub(crate) fn wants(&self, directory: &FsPath) -> Option<u32> {
        self.directories.get(directory)?.wants(self.most)
    }

    /// The file and the size of what came for `path`, if anything did.
    pub(crate) fn came(&self, path: &FsPath) -> Option<(FileId, u32)> {
        self.came.get(path)
    }

    /// The bytes of `path`, a name of `directory`, came with an answer.
    pub(crate) fn answered(&self, directory: &FsPath, path: &FsPath, file: FileId, size: u32) {
        if let Some(directory) = self.directories.get(directory) {
            directory.answered();
        }
        self.came.insert(path.clone(), (file, size));
    }

    /// The bytes of `path` came without a question about its name.
    pub(crate) fn brought(&self, path: &FsPath, file: FileId, size: u32) {
        self.came.insert(path.clone(), (file, size));
    }

    /// The largest file that counts as small.
    pub(crate) fn largest(&self) -> u32 {
        self.most
    }

    /// Whether the file of `version` is a small one, and not empty.
    pub(crate) fn is_small(&self, version: &FileVersion) -> bool {
        (1..=u64::from(self.most)).contains(&version.size)
    }

    /// A file is opened.
    pub(crate) fn opened(&self, version: &FileVersion) {
        if self.most == 0 {
            return;
        }
        let Some(directory) = self.by_version.get(&place(version)) else { return };
        match u32::try_from(version.size) {
            Ok(size) if size <= self.most => directory.opened(size),
            _ => directory.opened_large(),
        }
    }

    /// A name of a directory turned out to be this.
    pub(crate) fn learned(&self, directory: &FsPath, attr: &Attr) {
        let Some(version) = attr.version() else { return };
        let place = place(version);
        if self.by_version.get(&place).is_none() {
            let known = self.directories.get_with_by_ref(directory, Arc::default);
            self.by_version.insert(place, known);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::VersionTag;

    const KIB: u32 = 1 << 10;

    #[test]
    fn a_directory_whose_small_files_are_opened_earns_their_bytes_and_loses_them_when_nobody_reads() {
        let directory = Directory::default();
        directory.opened(100 * KIB);
        assert_eq!(directory.wants(256 * KIB), None);
        directory.opened(90 * KIB);
        assert_eq!(directory.wants(256 * KIB), Some(128 * KIB));
        for _ in 0..100 {
            directory.answered();
            directory.opened(100 * KIB);
            assert_eq!(directory.wants(256 * KIB), Some(128 * KIB), "those who read go on");
        }
        let answers = (0..100).take_while(|_| directory.wants(256 * KIB).map(|_| directory.answered()).is_some());
        assert!(answers.count() <= (MAX_WORTH - ENOUGH) as usize + 1, "who only looks gets names");
        (0..3).for_each(|_| directory.opened(KIB));
        assert!(directory.wants(256 * KIB).is_some());
        directory.opened_large();
        assert_eq!(directory.wants(256 * KIB), None);
    }

    #[test]
    fn room_follows_the_sizes_of_the_files_and_stays_within_the_limit() {
        let directory = Directory::default();
        (0..3).for_each(|_| directory.opened(200 * KIB));
        assert_eq!((directory.wants(256 * KIB), directory.wants(150 * KIB)), (Some(256 * KIB), Some(150 * KIB)));
        (0..40).for_each(|_| directory.opened(3 * KIB));
        assert_eq!(directory.wants(256 * KIB), Some(SECTOR_SIZE));
    }

    #[test]
    fn a_directory_is_known_by_its_path_and_by_the_versions_of_its_files() {
        let version = |path: &str, size| FileVersion {
            origin: "s3://b".into(),
            path: path.as_bytes().into(),
            size,
            tag: VersionTag::Etag("\"1\"".into()),
        };
        let small = SmallFiles::new(256 * KIB);
        let (directory, elsewhere) = (FsPath::new("/data/d").unwrap(), FsPath::new("/data/e").unwrap());
        small.opened(&version("d/a", 10));
        assert!(small.directories.get(&directory).is_none(), "nobody has asked for a name of it");
        small.learned(&directory, &Attr::file(version("d/a", 10)));
        small.learned(&elsewhere, &Attr::file(version("e/a", 10)));
        for name in ["d/a", "d/b", "d/c"] {
            small.opened(&version(name, 10));
        }
        let wants = |path| small.directories.get(path).unwrap().wants(small.most);
        assert!(wants(&directory).is_some() && wants(&elsewhere).is_none());
        small.opened(&version("d/large", 1 << 30));
        assert!(wants(&directory).is_none());
        assert!(small.is_small(&version("f", 1)) && !small.is_small(&version("f", 0)));
        assert!(!SmallFiles::new(0).is_small(&version("f", 1)));
    }
}
