//! The file of those who are denied, for who knows others by something else than a certificate.
//!
//! A process that proves who it is looks after this file together with its own ([`crate::Watch`]). One that proves nothing,
//! and whose clients sign with keys of their own, has this alone.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use arc_swap::ArcSwap;

use crate::error::LoadError;
use crate::name::Identity;
use crate::secret_file::read_public;
use crate::source::identities;

/// Those who are denied at this moment.
#[derive(Debug)]
pub struct DeniedFile {
    path: PathBuf,
    denied: ArcSwap<HashSet<Identity>>,
}

impl DeniedFile {
    /// Those in the file at `path`: an identity on each line.
    ///
    /// # Errors
    /// [`LoadError`] names the file, and what is wrong with it.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        Ok(Self { path: path.to_owned(), denied: ArcSwap::from_pointee(read(path)?) })
    }

    /// Reads the file again, and says whether it names others now. If it cannot be used, those stay denied who were. To be
    /// called every few seconds, from a thread that may wait for a disk.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn look(&self) -> Result<bool, LoadError> {
        let denied = read(&self.path)?;
        let is_new = **self.denied.load() != denied;
        if is_new {
            self.denied.store(denied.into());
        }
        Ok(is_new)
    }

    /// Whether it names `identity`.
    #[must_use]
    pub fn denies(&self, identity: &Identity) -> bool {
        self.denied.load().contains(identity)
    }
}

fn read(path: &Path) -> Result<HashSet<Identity>, LoadError> {
    let content = |reason| LoadError::Content { path: path.to_owned(), reason };
    Ok(identities(&read_public(path)?).map_err(content)?.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_in_the_file_is_denied_as_long_as_it_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("denied");
        let [a, b] = ["spiffe://d/forebay/c/reader/a", "spiffe://d/forebay/c/reader/b"];
        let of = |text: &str| text.parse::<Identity>().unwrap();
        assert!(DeniedFile::open(&path).unwrap_err().to_string().contains("denied"));
        std::fs::write(&path, format!("# who left\n{a}  # in May\n")).unwrap();
        let file = DeniedFile::open(&path).unwrap();
        assert!(file.denies(&of(a)) && !file.denies(&of(b)));
        assert!(!file.look().unwrap());
        std::fs::write(&path, "reader b\n").unwrap();
        assert!(file.look().is_err() && file.denies(&of(a)), "it names nobody, and lets nobody in");
        std::fs::write(&path, format!("{b}\n")).unwrap();
        assert!(file.look().unwrap());
        assert!(!file.denies(&of(a)) && file.denies(&of(b)));
    }
}
