//! Keys and files: where an object lies, which keys a directory has in which order.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use forebay_locks::Mutex;

use super::kept::has_marker;

/// Sorted directories that are remembered: a listing of many pages reads its directory once.
const REMEMBERED: usize = 8;

/// One name of a directory as a key: a subdirectory's ends in `/`.
pub(super) type Names = Arc<Vec<String>>;

/// The remembered directories.
#[derive(Debug, Default)]
pub(super) struct Directories(Mutex<VecDeque<(PathBuf, SystemTime, Names)>>);

impl Directories {
    /// The names of a directory in the order of keys, in which `a-b` comes before `a/`.
    pub(super) fn names(&self, path: &Path) -> std::io::Result<Names> {
        let modified = path.metadata()?.modified()?;
        let known = self
            .0
            .lock()
            .iter()
            .find(|(known, at, _)| known == path && *at == modified)
            .map(|(.., names)| Arc::clone(names));
        // A directory that changed within the clock's tick may look unchanged; only a settled one is trusted.
        let is_settled = modified.elapsed().is_ok_and(|age| age.as_millis() > 50);
        if let (Some(names), true) = (known, is_settled) {
            return Ok(names);
        }
        let mut names = Vec::new();
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            let Ok(mut name) = entry.file_name().into_string() else { continue };
            // The entry's own type suffices unless it is a link.
            let kind = entry.file_type()?;
            if kind.is_dir() || (kind.is_symlink() && entry.path().is_dir()) {
                name.push('/');
            }
            names.push(name);
        }
        names.sort_unstable();
        let names = Arc::new(names);
        if is_settled {
            let mut remembered = self.0.lock();
            remembered.retain(|(known, ..)| known != path);
            remembered.truncate(REMEMBERED - 1);
            remembered.push_front((path.to_owned(), modified, Arc::clone(&names)));
        }
        Ok(names)
    }
}

/// The file of a key below its bucket's directory; `None` for keys that are no path (`a//b`, `../x`).
pub(super) fn object_path(bucket: &Path, key: &str) -> Option<PathBuf> {
    let key = key.strip_suffix('/').unwrap_or(key);
    let is_path = key.split('/').all(|name| !matches!(name, "" | "." | "..") && !name.contains('\0'));
    is_path.then(|| bucket.join(key))
}

/// The keys and common prefixes of a listing that come after `after`, in order, at most `max` and one more.
///
/// Without a delimiter all keys below the prefix; a directory that is empty, or whose marker a client put, is the key
/// `dir/`.
pub(super) fn keys_after(
    directories: &Directories,
    bucket: &Path,
    prefix: &str,
    is_delimited: bool,
    after: &str,
    max: usize,
) -> std::io::Result<Vec<String>> {
    let mut found = Vec::new();
    let (parent, _) = prefix.rsplit_once('/').map_or(("", prefix), |(parent, rest)| (&prefix[..=parent.len()], rest));
    if !parent.is_empty() && object_path(bucket, parent).is_none() {
        return Ok(found);
    }
    let walk = Walk { directories, bucket, prefix, is_delimited, after, max };
    walk.directory(parent, &mut found)?;
    Ok(found)
}

struct Walk<'a> {
    directories: &'a Directories,
    bucket: &'a Path,
    prefix: &'a str,
    is_delimited: bool,
    after: &'a str,
    max: usize,
}

impl Walk<'_> {
    /// Adds the keys of the directory `parent` (empty, or ending in `/`).
    fn directory(&self, parent: &str, found: &mut Vec<String>) -> std::io::Result<()> {
        let names = match self.directories.names(&self.bucket.join(parent)) {
            Ok(names) => names,
            Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let is_asked_for = !parent.is_empty() && parent > self.after && parent.starts_with(self.prefix);
        if is_asked_for && (names.is_empty() || has_marker(&self.bucket.join(parent))) {
            found.push(parent.to_owned());
        }
        // Names before these cannot come after `after`, nor hold keys that do.
        let first = self.after.strip_prefix(parent).unwrap_or_default();
        let start = names.partition_point(|name| name.as_str() < first && !first.starts_with(name.as_str()));
        for name in &names[start..] {
            if found.len() > self.max {
                break;
            }
            let key = format!("{parent}{name}");
            if !key.starts_with(self.prefix) {
                continue;
            }
            if !name.ends_with('/') || self.is_delimited {
                if *key > *self.after {
                    found.push(key);
                }
            } else {
                self.directory(&key, found)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(bucket: &Path, prefix: &str, is_delimited: bool, after: &str) -> Vec<String> {
        keys_after(&Directories::default(), bucket, prefix, is_delimited, after, 100).unwrap()
    }

    #[test]
    fn keys_come_in_the_order_of_keys_not_of_directories() {
        let bucket = tempfile::tempdir().unwrap();
        for path in ["a/x", "a-b", "a.txt", "b/c/d"] {
            std::fs::create_dir_all(bucket.path().join(path).parent().unwrap()).unwrap();
            std::fs::write(bucket.path().join(path), b"").unwrap();
        }
        std::fs::create_dir(bucket.path().join("b/empty")).unwrap();
        let bucket = bucket.path();
        assert_eq!(keys(bucket, "", true, ""), ["a-b", "a.txt", "a/", "b/"]);
        assert_eq!(keys(bucket, "", false, ""), ["a-b", "a.txt", "a/x", "b/c/d", "b/empty/"]);
        assert_eq!(keys(bucket, "", true, "a.txt"), ["a/", "b/"]);
        assert_eq!(keys(bucket, "", false, "a/x"), ["b/c/d", "b/empty/"]);
        assert_eq!(keys(bucket, "", true, "a/"), ["b/"]);
        assert_eq!(keys(bucket, "a", true, ""), ["a-b", "a.txt", "a/"]);
        assert_eq!(keys(bucket, "b/", true, ""), ["b/c/", "b/empty/"]);
        assert_eq!(keys(bucket, "b/empty/", true, ""), ["b/empty/"]);
        assert_eq!(keys(bucket, "b/e", true, ""), ["b/empty/"]);
        assert!(keys(bucket, "a-b/", true, "").is_empty() && keys(bucket, "none/", true, "").is_empty());
    }

    #[test]
    fn keys_that_are_no_path_have_no_file() {
        let bucket = Path::new("/bucket");
        for key in ["", "/", "a//b", "../x", "a/./b", "/a"] {
            assert_eq!(object_path(bucket, key), None, "{key}");
        }
        assert_eq!(object_path(bucket, "a/b/"), Some(PathBuf::from("/bucket/a/b")));
    }
}
