//! Makes a copy of what is looked at, in a folder of its own: each file as it was read, each link on the way to it, and the
//! names of what lies beside it. What was not looked at is not in it.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::answers::Answers;
use super::links::follow;

/// The copy that is being made.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// What is copied.
    source: PathBuf,
    /// Where to.
    folder: PathBuf,
    state: Mutex<RecorderState>,
}

#[derive(Debug, Default)]
struct RecorderState {
    answers: Answers,
    /// The first thing that could not be written.
    failure: Option<io::Error>,
}

impl Recorder {
    /// One of what is below `source`, into `folder`, which is made unless it is there and empty.
    pub(crate) fn new(source: &Path, folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        if fs::read_dir(folder)?.next().is_some() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is not empty"));
        }
        Ok(Self { source: source.to_owned(), folder: folder.to_owned(), state: Mutex::default() })
    }

    /// The file at `path`, which has this content.
    pub(crate) fn file(&self, path: &Path, content: &[u8]) {
        self.attempt(|| {
            let Some(place) = self.place(path, true)? else { return Ok(()) };
            fs::write(place, content)
        });
    }

    /// What is at `path`: a link, a folder, or a file whose content was not asked for yet.
    pub(crate) fn entry(&self, path: &Path, is_end_followed: bool) {
        self.attempt(|| {
            let Some(place) = self.place(path, is_end_followed)? else { return Ok(()) };
            let is_there = fs::symlink_metadata(&place).is_ok();
            let source = self.source.join(place.strip_prefix(&self.folder).unwrap_or(&place));
            let Ok(kind) = fs::symlink_metadata(&source) else { return Ok(()) };
            if kind.is_dir() {
                fs::create_dir_all(place)
            } else if is_there {
                Ok(())
            } else if kind.is_symlink() {
                symlink(fs::read_link(source)?, place)
            } else {
                fs::write(place, [])
            }
        });
    }

    /// Notes an answer.
    pub(crate) fn answer(&self, note: impl FnOnce(&mut Answers)) {
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        note(&mut state.answers);
    }

    /// The answers by now.
    ///
    /// # Errors
    /// When something could not be written.
    pub(crate) fn finish(&self) -> io::Result<Answers> {
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match state.failure.take() {
            Some(error) => Err(error),
            None => Ok(state.answers.clone()),
        }
    }

    /// Where in the copy `path` leads, with the links and folders on the way made.
    fn place(&self, path: &Path, is_end_followed: bool) -> io::Result<Option<PathBuf>> {
        let Some(followed) = follow(&self.source, path, is_end_followed) else { return Ok(None) };
        for (link, target) in &followed.links {
            let link = self.folder.join(link);
            make_parent(&link)?;
            if fs::symlink_metadata(&link).is_err() {
                symlink(target, link)?;
            }
        }
        let place = self.folder.join(followed.place);
        make_parent(&place)?;
        Ok(Some(place))
    }

    fn attempt(&self, write: impl FnOnce() -> io::Result<()>) {
        if let Err(error) = write() {
            let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            state.failure.get_or_insert(error);
        }
    }
}

/// Makes the folder that `path` is in. A place holder of a file that turned out to be none gives way.
fn make_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) => fs::create_dir_all(parent),
        None => Ok(()),
    }
}
