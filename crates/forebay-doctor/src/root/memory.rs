//! Files in memory, in place of a folder of them: a fuzzer looks at thousands of machines in a second, and making the folder of one
//! takes longer than looking at it. There are no links in it.

use std::collections::BTreeMap;
use std::path::{Component, Path};

/// The files, and the folders that they are in.
#[derive(Debug)]
pub(crate) struct MemoryTree(BTreeMap<String, Entry>);

#[derive(Debug)]
enum Entry {
    File(Vec<u8>),
    Folder,
}

impl MemoryTree {
    /// One of these files, each with its path. A file that would be in another file is left out, and so is one in the place of a
    /// folder; of two with one path the later is there.
    pub(crate) fn new<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Self {
        let mut tree = Self(BTreeMap::from([(String::new(), Entry::Folder)]));
        for (path, content) in files {
            tree.add(key(Path::new(path)), content.to_vec());
        }
        tree
    }

    fn add(&mut self, path: String, content: Vec<u8>) {
        let folders: Vec<&str> = path.match_indices('/').map(|(at, _)| &path[..at]).collect();
        let is_file = |path: &str| matches!(self.0.get(path), Some(Entry::File(_)));
        if folders.iter().any(|folder| is_file(folder)) || matches!(self.0.get(&path), Some(Entry::Folder)) {
            return;
        }
        for folder in folders {
            self.0.insert(folder.to_owned(), Entry::Folder);
        }
        self.0.insert(path, Entry::File(content));
    }

    /// Whether a file is there, and no folder. `None`: nothing is.
    pub(crate) fn is_file(&self, path: &Path) -> Option<bool> {
        Some(matches!(self.0.get(&key(path))?, Entry::File(_)))
    }

    pub(crate) fn read(&self, path: &Path) -> Option<&[u8]> {
        match self.0.get(&key(path))? {
            Entry::File(content) => Some(content),
            Entry::Folder => None,
        }
    }

    pub(crate) fn names(&self, directory: &Path) -> Option<Vec<String>> {
        self.is_file(directory).filter(|is_file| !is_file)?;
        let directory = key(directory);
        let before = if directory.is_empty() { directory } else { format!("{directory}/") };
        let below = self.0.range(before.clone()..).map_while(|(path, _)| path.strip_prefix(&before));
        Some(below.filter(|name| !name.is_empty() && !name.contains('/')).map(str::to_owned).collect())
    }
}

/// A path in the one form that all of its spellings have.
fn key(path: &Path) -> String {
    let mut parts: Vec<_> = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => parts.push(name.to_string_lossy()),
            Component::ParentDir => drop(parts.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_answers_as_a_folder_of_the_same_files_does() {
        let files =
            [("/proc/meminfo", "1"), ("proc/net/tcp", "2"), ("proc/net", "no"), ("proc/meminfo/x", "no"), ("a", "3")];
        let tree = MemoryTree::new(files.map(|(path, content)| (path, content.as_bytes())));
        let names = |path: &str| tree.names(Path::new(path));
        assert_eq!(names(""), Some(vec!["a".to_owned(), "proc".to_owned()]));
        assert_eq!(names("proc/./net/.."), Some(vec!["meminfo".to_owned(), "net".to_owned()]));
        assert_eq!((names("a"), names("b"), names("pro")), (None, None, None));
        let read = |path: &str| tree.read(Path::new(path));
        assert_eq!((read("proc/../proc/net/tcp"), read("proc/net"), read("b")), (Some(&b"2"[..]), None, None));
        let is_file = |path: &str| tree.is_file(Path::new(path));
        assert_eq!(
            [is_file("proc/net"), is_file("a"), is_file(".."), is_file("b")],
            [Some(false), Some(true), Some(false), None]
        );
    }
}
