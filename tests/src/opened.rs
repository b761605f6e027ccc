//! What programs have open of a mount while its process changes.

use std::fs::{self, File};
use std::io::Read as _;

use crate::mapping::Mapping;
use crate::{Mount, Tree};

/// Where mappings are read: pages that were not looked at before, within this.
const MAPPED: usize = 8 << 20;

/// A file, a directory and a mapping that are open, each read in part: `file01` and `file02` of a tree, of more than 8 MiB, and its
/// directory `wide`.
pub struct Opened {
    file: File,
    names: fs::ReadDir,
    seen: Vec<String>,
    /// How many there are.
    count: usize,
    mapping: Mapping,
}

impl Opened {
    /// Opens them. There are `names` in the directory: `00000` and so on.
    ///
    /// # Panics
    /// When one cannot be read.
    #[must_use]
    #[track_caller]
    pub fn new(mount: &Mount, tree: &Tree, names: usize) -> Self {
        let mut file = File::open(mount.path("file01")).expect("a file of the mount");
        file.read_exact(&mut [0; 1000]).expect("the start of the file");
        let size = usize::try_from(tree.file("file02").size).expect("a size");
        let mut opened = Self {
            file,
            names: fs::read_dir(mount.path("wide")).expect("a directory of the mount"),
            seen: Vec::new(),
            count: names,
            mapping: Mapping::of(&mount.path("file02"), size).expect("a mapping"),
        };
        opened.read_names(10);
        opened
    }

    /// Reads further names.
    ///
    /// # Panics
    /// When they cannot be read.
    #[track_caller]
    pub fn read_names(&mut self, count: usize) {
        let names = self.names.by_ref().take(count).map(|entry| entry.expect("a name").file_name());
        self.seen.extend(names.map(|name| name.into_string().expect("a name of the tree")));
    }

    /// Reads a part of the mapping that was not looked at before.
    ///
    /// # Panics
    /// When it cannot be read, or is wrong.
    #[track_caller]
    pub fn read_mapping(&self, tree: &Tree, round: usize) {
        let start = (round * 97 * 4096) % MAPPED;
        let bytes = self.mapping.read(start..start + 8192).expect("bytes of the mapping");
        assert_eq!(tree.file("file02").data.first_difference(start as u64, &bytes), None);
    }

    /// Reads all to the end.
    ///
    /// # Panics
    /// When anything is missing, or wrong.
    #[track_caller]
    pub fn finish(mut self, tree: &Tree) {
        let mut rest = Vec::new();
        self.file.read_to_end(&mut rest).expect("the rest of the file");
        let expected = tree.file("file01");
        assert_eq!((rest.len() as u64, expected.data.first_difference(1000, &rest)), (expected.size - 1000, None));
        self.read_names(self.count);
        self.seen.sort();
        let names: Vec<String> = (0..self.count).map(|number| format!("{number:05}")).collect();
        assert_eq!(self.seen, names);
    }
}
