//! The file system as it is looked at: below a prefix, and never more of a file or directory than a bound.
//!
//! All that is asked of files goes through here, so that a recorded tree shows what was recorded: where the prefix is not `/`, links
//! stay below it, and the [`Answers`] that were recorded with the tree come before what its files say. A root that is
//! [recorded](Root::recorded_to) copies whatever it is asked for.

mod answers;
mod links;
#[cfg(feature = "fuzzing")]
mod memory;
mod recorder;
mod tree;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

pub use answers::{Access, Answers, Ownership};
use recorder::Recorder;
use tree::{Found, Tree};

/// Where the machine's files are: `/`, or the folder of a recorded tree. Paths are given without the leading `/`.
#[derive(Clone, Debug)]
pub struct Root {
    tree: Tree,
    /// What was recorded beside the files.
    answers: Arc<Answers>,
    recorder: Option<Arc<Recorder>>,
}

impl Default for Root {
    fn default() -> Self {
        Self::new("/")
    }
}

impl Root {
    /// The tree below `prefix`.
    #[must_use]
    pub fn new(prefix: impl Into<PathBuf>) -> Self {
        Self::of(Tree::Folder(prefix.into()))
    }

    /// A tree of these files, each with its path, for fuzzers.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn in_memory<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Self {
        Self::of(Tree::Memory(Arc::new(memory::MemoryTree::new(files))))
    }

    fn of(tree: Tree) -> Self {
        Self { tree, answers: Arc::default(), recorder: None }
    }

    /// The same with answers that were recorded with it.
    #[must_use]
    pub fn with_answers(self, answers: Answers) -> Self {
        Self { answers: Arc::new(answers), ..self }
    }

    /// The same, and whatever is looked at from now on is copied to `folder`.
    ///
    /// # Errors
    /// When the folder cannot be made, or is not empty.
    pub fn recorded_to(self, folder: &Path) -> io::Result<Self> {
        let recorder = Recorder::new(self.tree.folder().ok_or(io::ErrorKind::Unsupported)?, folder)?;
        Ok(Self { recorder: Some(Arc::new(recorder)), ..self })
    }

    /// What has to be kept beside the copy.
    ///
    /// # Errors
    /// When something could not be copied.
    pub fn recorded(&self) -> io::Result<Answers> {
        self.recorder.as_ref().map_or_else(|| Ok(Answers::default()), |recorder| recorder.finish())
    }

    /// The same, and nothing is copied: for looking through much of which little is wanted.
    pub(crate) fn unrecorded(&self) -> Self {
        Self { recorder: None, ..self.clone() }
    }

    /// Whether anything is there; links are followed.
    pub(crate) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.found(path).is_some()
    }

    /// Whether a regular file is there.
    pub(crate) fn is_file(&self, path: impl AsRef<Path>) -> bool {
        self.found(path).is_some_and(|found| found.is_file)
    }

    /// Whether a folder is there.
    pub(crate) fn is_folder(&self, path: impl AsRef<Path>) -> bool {
        self.found(path).is_some_and(|found| found.is_folder)
    }

    /// A regular file's text, without white space around it; `None` when it cannot be read. Many attributes of sysfs
    /// cannot, when they do not apply.
    pub(crate) fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        self.text_of(path, str::to_owned)
    }

    /// As [`Root::text`], of which only what `keep` makes of it is looked at: files that have secrets of others are
    /// not copied whole.
    pub(crate) fn text_of(&self, path: impl AsRef<Path>, keep: impl FnOnce(&str) -> String) -> Option<String> {
        let keep = |bytes: Vec<u8>| keep(&String::from_utf8_lossy(&bytes)).into_bytes();
        let kept = self.bytes_of(path, keep)?;
        Some(String::from_utf8_lossy(&kept).trim().to_owned())
    }

    /// What `keep` makes of a regular file's bytes.
    pub(crate) fn bytes_of(&self, path: impl AsRef<Path>, keep: impl FnOnce(Vec<u8>) -> Vec<u8>) -> Option<Vec<u8>> {
        let path = relative(path.as_ref());
        let found = match self.answers.unreadable.contains(&key(path)) {
            true => None,
            false => self.tree.read(path).map(keep),
        };
        if let Some(recorder) = &self.recorder {
            match &found {
                Some(bytes) => recorder.file(path, bytes),
                None if self.exists(path) => {
                    recorder.answer(|answers| {
                        answers.unreadable.insert(key(path));
                    });
                }
                None => {}
            }
        }
        found
    }

    /// As [`Root::text`], where an empty one says nothing.
    pub(crate) fn word(&self, path: impl AsRef<Path>) -> Option<String> {
        self.text(path).filter(|text| !text.is_empty())
    }

    /// A decimal number.
    pub(crate) fn number<T: std::str::FromStr>(&self, path: impl AsRef<Path>) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// The names in a directory, numbers in their order; none when it cannot be read.
    pub(crate) fn names(&self, directory: impl AsRef<Path>) -> Vec<String> {
        let directory = relative(directory.as_ref());
        let found = self.tree.names(directory);
        let is_there = found.is_some();
        let mut names = found.unwrap_or_default();
        names.sort_by_cached_key(|name| (name.parse::<u32>().unwrap_or(u32::MAX), name.clone()));
        if let Some(recorder) = self.recorder.as_ref().filter(|_| is_there) {
            recorder.entry(directory, true);
            names.iter().for_each(|name| recorder.entry(&directory.join(name), false));
        }
        names
    }

    /// What a symbolic link says, whether that is there or not.
    pub(crate) fn link(&self, path: impl AsRef<Path>) -> Option<PathBuf> {
        let path = relative(path.as_ref());
        let target = self.tree.link(path)?;
        if let Some(recorder) = &self.recorder {
            recorder.entry(path, false);
        }
        Some(target)
    }

    /// The last name in what a symbolic link says.
    pub(crate) fn link_name(&self, path: impl AsRef<Path>) -> Option<String> {
        Some(self.link(path)?.file_name()?.to_string_lossy().into_owned())
    }

    /// What a path leads to, all links followed: a path below the root.
    pub(crate) fn resolved(&self, path: impl AsRef<Path>) -> Option<PathBuf> {
        let path = relative(path.as_ref());
        self.exists(path).then(|| self.tree.resolved(path))?
    }

    /// Opens a device node and closes it again: permissions do not tell what a container's device rules refuse.
    pub(crate) fn access(&self, path: impl AsRef<Path>) -> Access {
        let path = relative(path.as_ref());
        if let Some(access) = self.answers.opened.get(&key(path)) {
            return access.clone();
        }
        let access = self.tree.access(path);
        self.note(|answers| answers.opened.insert(key(path), access.clone()));
        access
    }

    /// Whether a file can be opened for writing. Nothing is written.
    pub(crate) fn may_write(&self, path: impl AsRef<Path>) -> bool {
        let path = relative(path.as_ref());
        if let Some(may) = self.answers.writable.get(&key(path)) {
            return *may;
        }
        let may = self.tree.may_write(path);
        self.note(|answers| answers.writable.insert(key(path), may));
        may
    }

    /// The owner and the permissions of a file.
    pub(crate) fn ownership(&self, path: impl AsRef<Path>) -> Option<Ownership> {
        let path = relative(path.as_ref());
        if let Some(owned) = self.answers.owned.get(&key(path)) {
            return Some(*owned);
        }
        let owned = self.found(path)?.owned;
        self.note(|answers| answers.owned.insert(key(path), owned));
        Some(owned)
    }

    /// What is free in the file system of a folder, in bytes.
    pub(crate) fn free_bytes(&self, folder: impl AsRef<Path>) -> Option<u64> {
        let folder = relative(folder.as_ref());
        if let Some(bytes) = self.answers.free_bytes.get(&key(folder)) {
            return Some(*bytes);
        }
        let bytes = self.tree.free_bytes(folder)?;
        self.note(|answers| answers.free_bytes.insert(key(folder), bytes));
        Some(bytes)
    }

    /// What `look` finds at a folder that may be on a network file system; `None` when that does not answer within this time.
    pub(crate) fn in_time<T: Send + 'static>(
        &self,
        folder: impl AsRef<Path>,
        within: Duration,
        look: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Option<T> {
        let folder = relative(folder.as_ref());
        if self.answers.silent.contains(&key(folder)) {
            return None;
        }
        if self.tree.folder().is_none() {
            // In memory.
            return Some(look(self));
        }
        let ((tell, told), root) = (mpsc::channel(), self.clone());
        // One that waits for ever is left behind, and ends with the process.
        std::thread::spawn(move || {
            let _ = tell.send(look(&root));
        });
        let found = told.recv_timeout(within).ok();
        if found.is_none() {
            self.note(|answers| answers.silent.insert(key(folder)));
        }
        found
    }

    fn found(&self, path: impl AsRef<Path>) -> Option<Found> {
        let path = relative(path.as_ref());
        let found = self.tree.found(path)?;
        if let Some(recorder) = &self.recorder {
            recorder.entry(path, true);
        }
        Some(found)
    }

    fn note<T>(&self, note: impl FnOnce(&mut Answers) -> T) {
        if let Some(recorder) = &self.recorder {
            recorder.answer(|answers| {
                note(answers);
            });
        }
    }
}

fn relative(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

fn key(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::tree::MAX_TEXT;
    use super::*;

    #[test]
    fn hostile_files_are_cut_shown_or_unknown_and_nothing_waits() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::new(folder.path());
        fs::write(folder.path().join("bytes"), b" 4: \xff\xfe\n").unwrap();
        File::create(folder.path().join("huge")).unwrap().set_len(MAX_TEXT + 1).unwrap();
        fs::write(folder.path().join("empty"), "").unwrap();
        std::os::unix::fs::symlink("nowhere/at/all", folder.path().join("dangling")).unwrap();
        std::os::unix::fs::symlink("loop", folder.path().join("loop")).unwrap();
        let pipe = std::ffi::CString::new(folder.path().join("pipe").to_str().unwrap()).unwrap();
        // SAFETY: a path that ends with a zero.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
        assert_eq!(root.text("bytes").as_deref(), Some("4: \u{fffd}\u{fffd}"));
        assert_eq!(root.text("huge").unwrap().len() as u64, MAX_TEXT);
        assert_eq!((root.text("empty").as_deref(), root.word("empty")), (Some(""), None));
        for none in ["dangling", "loop", "pipe", ".", "missing", "missing/below"] {
            assert_eq!(root.text(none), None, "{none}");
        }
        assert_eq!(root.link_name("dangling").as_deref(), Some("all"));
        assert_eq!((root.resolved("dangling"), root.number::<u32>("bytes")), (None, None));
        assert_eq!(root.access("dangling"), Access::Missing);
        assert!(matches!(root.access("."), Access::Refused(_)));
        assert_eq!(root.access("/empty"), Access::Granted);
    }

    #[test]
    fn a_file_system_that_does_not_answer_is_waited_for_no_longer_than_it_is_given() {
        let copy = tempfile::tempdir().unwrap();
        let recording = Root::default().recorded_to(copy.path()).unwrap();
        let long = Duration::from_secs(60);
        assert_eq!(recording.in_time("/proc", long, |root| root.is_folder("/proc")), Some(true));
        let (hang, hung) = mpsc::channel::<()>();
        let soon = Duration::from_millis(10);
        assert_eq!(recording.in_time("/mnt/nfs", soon, move |_| hung.recv().is_ok()), None);
        drop(hang);
        let answers = recording.recorded().unwrap();
        assert_eq!(answers.silent.iter().collect::<Vec<_>>(), ["mnt/nfs"]);
        let copied = Root::new(copy.path()).with_answers(answers);
        assert_eq!(copied.in_time("/mnt/nfs", long, |_| ()), None, "as it was then");
    }

    #[test]
    fn a_copy_gives_the_answers_that_were_given() {
        let (source, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = |path: &str| source.path().join(path);
        fs::create_dir_all(at("sys/devices/card/net/ib0")).unwrap();
        fs::create_dir_all(at("sys/class/net")).unwrap();
        fs::create_dir_all(at("etc")).unwrap();
        fs::write(at("sys/devices/card/net/ib0/mtu"), "2044\n").unwrap();
        fs::write(at("sys/devices/card/net/ib0/speed"), "1").unwrap();
        fs::write(at("etc/keys"), "name\nsecret\n").unwrap();
        fs::write(at("etc/other"), "secret\n").unwrap();
        fs::write(at("bytes"), [0x82, 0, 255]).unwrap();
        std::os::unix::fs::symlink("../../devices/card/net/ib0", at("sys/class/net/ib0")).unwrap();
        std::os::unix::fs::symlink("../..", at("sys/devices/card/net/ib0/device")).unwrap();
        std::os::unix::fs::symlink("socket:[7]", at("descriptor")).unwrap();
        let ask = |root: &Root| {
            let first_line = |text: &str| text.lines().next().unwrap_or_default().to_owned();
            (
                (root.names("sys/class/net"), root.number::<u32>("sys/class/net/ib0/mtu")),
                root.names("sys/class/net/ib0"),
                (root.resolved("sys/class/net/ib0/device"), root.text("sys/class/net/ib0"), root.text("missing")),
                (root.link_name("descriptor"), root.text_of("etc/keys", first_line), root.bytes_of("bytes", |all| all)),
                (root.access("etc/keys"), root.may_write("etc/keys"), root.ownership("etc/keys")),
                (root.access("dev/fuse"), root.free_bytes("etc"), root.is_file("etc/keys"), root.is_folder("etc")),
            )
        };
        let recording = Root::new(source.path()).recorded_to(copy.path()).unwrap();
        let answered = ask(&recording);
        let answers = recording.recorded().unwrap();
        assert!(answers.unreadable.contains("sys/class/net/ib0"), "a folder is no text: {answers:?}");
        drop(source);
        assert_eq!(ask(&Root::new(copy.path()).with_answers(answers)), answered);
        assert_eq!(fs::read_to_string(copy.path().join("etc/keys")).unwrap(), "name", "no more than was asked for");
        assert!(!copy.path().join("etc/other").exists());
        assert!(Root::default().recorded_to(copy.path()).is_err(), "it is not empty");
    }
}
