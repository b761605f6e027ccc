//! The files of a test: what is put into a bucket, and what a mount must show of it.

mod file;

use std::collections::BTreeMap;
use std::path::Path;

use forebay_testkit::DataSet;

pub use file::TreeFile;

use crate::{Bucket, reading};

/// Files by their path.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// The files.
    pub files: Vec<TreeFile>,
}

/// Bytes in a sector, the unit of validity.
const SECTOR: u64 = 32 << 10;
/// Bytes in a block.
const BLOCK: u64 = 4 << 20;
/// More names than one page of a listing holds.
const MANY: usize = 1100;

impl Tree {
    /// Every size at which something changes, every kind of name, a deep directory and a wide one.
    #[must_use]
    pub fn of_all_kinds() -> Self {
        let mut tree = Self::default();
        for size in [0, 1, 4095, 4097, SECTOR - 1, SECTOR, SECTOR + 1, BLOCK - 1, BLOCK, BLOCK + 1] {
            tree.add(&format!("sizes/{size:08}"), size);
        }
        tree.add("sizes/large", 30 << 20);
        for name in
            ["a name with spaces", "größe-数据-🦀", "a+b&c=d%20e?f#g;h", "quote'\"s [x]*", "-rf", "~", "back\\slash"]
        {
            tree.add(&format!("names/{name}/{name}.bin"), 5000);
        }
        tree.add(&format!("names/{}", "long-".repeat(51)), 10);
        let deep: Vec<String> = (0..40).map(|level| format!("level-{level}")).collect();
        tree.add(&format!("deep/{}/bottom", deep.join("/")), 12_345);
        for number in 0..MANY {
            tree.add(&format!("wide/{number:05}.jpg"), 700 + number as u64);
        }
        tree
    }

    /// `count` files of `size` bytes, called `file00` and on.
    #[must_use]
    pub fn of_equal_files(count: usize, size: u64) -> Self {
        let mut tree = Self::default();
        for number in 0..count {
            tree.add(&format!("file{number:02}"), size);
        }
        tree
    }

    /// Adds a file with contents that no other file of the tree has.
    pub fn add(&mut self, path: &str, size: u64) {
        let data = DataSet::new(1000 + self.files.len() as u64);
        self.files.push(TreeFile { path: path.to_owned(), size, data });
    }

    /// Puts the files into a bucket, below `prefix`, which is empty or ends with a slash.
    pub fn put_into(&self, bucket: &Bucket, prefix: &str) {
        for file in &self.files {
            bucket.put(&format!("{prefix}{}", file.path), file.data, file.size);
        }
    }

    /// The file at `path`.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn file(&self, path: &str) -> &TreeFile {
        self.files.iter().find(|file| file.path == path).unwrap_or_else(|| panic!("no {path} in the tree"))
    }

    /// Reads every file below `root` and compares it.
    ///
    /// # Panics
    /// At the first difference.
    #[track_caller]
    pub fn verify(&self, root: &Path) {
        for file in &self.files {
            reading::verify(&root.join(&file.path), file.data, file.size);
        }
    }

    /// Walks `root` and compares names, kinds and sizes with the tree's: no more and no fewer.
    ///
    /// # Panics
    /// When there is a difference.
    #[track_caller]
    pub fn verify_names(&self, root: &Path) {
        let expected: BTreeMap<String, u64> = self.files.iter().map(|file| (file.path.clone(), file.size)).collect();
        let mut found = BTreeMap::new();
        walk(root, "", &mut found);
        let missing: Vec<_> = expected.iter().filter(|(path, size)| found.get(*path) != Some(size)).collect();
        let strange: Vec<_> = found.keys().filter(|path| !expected.contains_key(*path)).collect();
        assert!(missing.is_empty() && strange.is_empty(), "missing: {missing:?}, strange: {strange:?}");
    }
}

fn walk(directory: &Path, prefix: &str, found: &mut BTreeMap<String, u64>) {
    let entries = std::fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    for entry in entries {
        let entry = entry.unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        let path = format!("{prefix}{}", entry.file_name().to_str().expect("the tree's names are text"));
        let metadata = entry.metadata().unwrap_or_else(|error| panic!("{path}: {error}"));
        if metadata.is_dir() {
            walk(&entry.path(), &format!("{path}/"), found);
        } else {
            assert!(metadata.is_file(), "{path} is neither a file nor a directory");
            assert_eq!(found.insert(path.clone(), metadata.len()), None, "{path} is listed twice");
        }
    }
}
