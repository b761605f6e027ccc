//! The files that are measured: made by fio through the mount, checked, and removed again.
//!
//! They have a directory of their own in the one that is measured, and in that a place for each layout, so that one job
//! of the coordinator loads a layout and nothing else. What lies there with the right size is used as it is: the data
//! of an earlier run that kept it, or what a user put into the origin of a mount that takes no writes. Then it is not
//! ours: it is neither written to nor removed.
//!
//! Nothing is followed to another place: a link where a file or a directory of ours belongs is refused, and left when the rest
//! is removed.

use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use super::cache::CachedFiles;
use super::error::RunError;
use super::journal::Journal;
use crate::posix::job::{self, Command};
use crate::posix::settings::Settings;
use crate::posix::sizes::DataFile;
use crate::record::Layout;

/// The directory in the one that is measured.
pub const DIRECTORY: &str = "forebay-bench";

/// The data below one directory.
#[derive(Clone, Debug)]
pub(super) struct Data {
    root: PathBuf,
    settings: Settings,
}

impl Data {
    pub(super) fn new(measured: &Path, settings: &Settings) -> Self {
        Self { root: measured.join(DIRECTORY), settings: settings.clone() }
    }

    /// What all of it is below.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Where the files of a layout begin: what command lines are made for. (Small files have a directory in it already.)
    pub(super) fn directory(&self, layout: Layout) -> PathBuf {
        match layout {
            Layout::Single => self.root.join("single"),
            Layout::Multiple => self.root.join("multiple"),
            Layout::Small => self.root.clone(),
        }
    }

    fn files(&self, layout: Layout) -> Vec<(PathBuf, u64)> {
        let directory = self.directory(layout);
        let files = self.settings.sizes.files(layout).into_iter();
        files.map(|DataFile { name, bytes }| (directory.join(name), bytes)).collect()
    }

    /// All that a run can make here: there is nothing else that it may remove.
    pub(super) fn places(&self) -> Vec<PathBuf> {
        let mut places = vec![self.root.clone()];
        for layout in [Layout::Single, Layout::Multiple, Layout::Small] {
            let files = self.files(layout);
            places.extend(files.first().and_then(|(path, _)| path.parent()).map(Path::to_owned));
            places.extend(files.into_iter().map(|(path, _)| path));
        }
        places
    }

    /// What is filled and emptied for a layout: the directory that has its files and no others.
    pub(super) fn cached(&self, layout: Layout) -> CachedFiles {
        let files = self.files(layout);
        let parent = files.first().and_then(|(path, _)| path.parent());
        let directory = parent.unwrap_or(&self.root).to_owned();
        let files = files.into_iter().filter_map(|(path, bytes)| {
            let name = path.strip_prefix(&directory).ok()?.to_string_lossy().into_owned();
            Some(DataFile { name, bytes })
        });
        CachedFiles { files: files.collect(), directory }
    }

    /// What has to be run so that the files of a layout are there. Their names are written down, and their directories made,
    /// first.
    ///
    /// # Errors
    /// When something is there that is not ours and not what is needed, or is no file.
    pub(super) fn missing(&self, layout: Layout, journal: &mut Journal) -> Result<Vec<(PathBuf, Command)>, RunError> {
        let files = self.files(layout);
        self.check_directories(&files)?;
        let mut missing = Vec::new();
        for (path, bytes) in &files {
            match std::fs::symlink_metadata(path) {
                Ok(metadata) if !metadata.is_file() => return Err(in_the_way(path, "file")),
                Ok(metadata) if metadata.len() == *bytes => continue,
                Ok(metadata) if !journal.made.files.contains(path) => {
                    return Err(RunError::Usage(format!(
                        "{} is there already, with {} bytes where {bytes} are needed; if an earlier run left it, remove {}",
                        path.display(),
                        metadata.len(),
                        self.root.display()
                    )));
                }
                Ok(_) => std::fs::remove_file(path).map_err(RunError::io("remove", path))?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(RunError::io("look at", path)(error)),
            }
            missing.push(path.clone());
        }
        if missing.is_empty() {
            return Ok(Vec::new());
        }
        self.make_directories(&files, journal)?;
        let new = missing.iter().filter(|path| !journal.made.files.contains(*path)).cloned().collect::<Vec<_>>();
        journal.made.files.extend(new);
        journal.save_made()?;
        let directory = self.directory(layout);
        let needed = |name: &str| missing.contains(&directory.join(name));
        let commands = job::preparation(layout, &directory, &self.settings, needed);
        let commands = commands.map_err(|error| RunError::Usage(error.to_string()))?;
        if layout == Layout::Small {
            // One for all of them.
            return Ok(commands.into_iter().map(|command| (directory.clone(), command)).collect());
        }
        Ok(missing.into_iter().zip(commands).collect())
    }

    /// The directories of these files, outermost first.
    fn directories(&self, files: &[(PathBuf, u64)]) -> Vec<PathBuf> {
        let below = files.first().and_then(|(path, _)| path.parent()).map(Path::to_owned);
        std::iter::once(self.root.clone()).chain(below).collect()
    }

    /// Whether they are directories, as far as they are there, and no links to others.
    fn check_directories(&self, files: &[(PathBuf, u64)]) -> Result<(), RunError> {
        for directory in self.directories(files) {
            match std::fs::symlink_metadata(&directory) {
                Ok(found) if found.is_dir() => {}
                Ok(_) => return Err(in_the_way(&directory, "directory")),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(RunError::io("look at", &directory)(error)),
            }
        }
        Ok(())
    }

    fn make_directories(&self, files: &[(PathBuf, u64)], journal: &mut Journal) -> Result<(), RunError> {
        for directory in self.directories(files) {
            if directory.is_dir() {
                continue;
            }
            if !journal.made.directories.contains(&directory) {
                journal.made.directories.push(directory.clone());
                journal.save_made()?;
            }
            std::fs::create_dir(&directory).map_err(RunError::io("make", &directory))?;
        }
        Ok(())
    }

    /// Bytes of a layout.
    pub(super) fn bytes(&self, layout: Layout) -> u64 {
        self.settings.sizes.bytes(layout)
    }

    /// The sizes of the files of a layout that are not there yet.
    pub(super) fn missing_sizes(&self, layout: Layout) -> Vec<u64> {
        let files = self.files(layout).into_iter();
        let is_right = |found: Metadata, bytes: u64| found.is_file() && found.len() == bytes;
        let missing =
            files.filter(|(path, bytes)| !std::fs::symlink_metadata(path).is_ok_and(|found| is_right(found, *bytes)));
        missing.map(|(_, bytes)| bytes).collect()
    }

    /// Has what was written of a layout synced once more, by ourselves: a file that could not be kept says so now, and not when it is
    /// looked for later.
    ///
    /// # Errors
    /// What the first of them says.
    pub(super) fn sync(&self, layout: Layout, journal: &Journal) -> Result<(), (PathBuf, io::Error)> {
        let ours = self.files(layout).into_iter().map(|(path, _)| path);
        for path in ours.filter(|path| journal.made.files.contains(path)) {
            match File::open(&path).and_then(|file| file.sync_all()) {
                // It has no such thing as a sync.
                Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {}
                Err(error) => return Err((path, error)),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Whether the files of a layout are there as they should be.
    ///
    /// # Errors
    /// The first that is not.
    pub(super) fn check(&self, layout: Layout) -> Result<(), RunError> {
        for (path, bytes) in self.files(layout) {
            let found = std::fs::symlink_metadata(&path).map_err(RunError::io("look at", &path))?.len();
            if found != bytes {
                return Err(RunError::Usage(format!(
                    "{} has {found} bytes after it was written, not {bytes}; look at its mount's log, and whether there is room",
                    path.display()
                )));
            }
        }
        Ok(())
    }
}

fn in_the_way(path: &Path, kind: &str) -> RunError {
    RunError::Usage(format!("{} is no {kind} of its own, and one is needed there; remove it", path.display()))
}

/// Removes a file, and nothing else that may have come into its place: by its name or above it, where a link would lead
/// elsewhere.
fn remove_file(path: &Path) -> io::Result<()> {
    let found = std::fs::symlink_metadata(path)?;
    // The layout's directory, and the one of all layouts.
    for directory in path.ancestors().skip(1).take(2) {
        if !std::fs::symlink_metadata(directory)?.is_dir() {
            return Err(io::Error::other(format!("{} is no directory any more", directory.display())));
        }
    }
    if found.is_file() { std::fs::remove_file(path) } else { Err(io::Error::other("it is no file any more")) }
}

/// Removes what the run has made, and only that. What cannot be removed is told.
pub(super) fn remove(journal: &mut Journal) -> Result<Vec<String>, RunError> {
    let mut left = Vec::new();
    let mut keep = |path: &Path, error: &io::Error| {
        let is_gone = error.kind() == io::ErrorKind::NotFound;
        if !is_gone {
            left.push(format!("cannot remove {}: {error}", path.display()));
        }
        !is_gone
    };
    journal.made.files.retain(|path| remove_file(path).is_err_and(|error| keep(path, &error)));
    journal.made.directories.reverse();
    journal.made.directories.retain(|path| std::fs::remove_dir(path).is_err_and(|error| keep(path, &error)));
    journal.made.directories.reverse();
    journal.save_made()?;
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::posix::settings::Engine;
    use crate::posix::sizes::Sizes;
    use crate::record::{FORMAT, Machine, Measured, Record};

    const LAYOUTS: [Layout; 3] = [Layout::Single, Layout::Multiple, Layout::Small];

    fn settings() -> Settings {
        let sizes = Sizes { single_bytes: 30, files: 2, file_bytes: 20, small_files: 3, small_bytes: 10 };
        Settings { sizes, engine: Engine::Psync, ..Settings::quick() }
    }

    fn journal(directory: &Path) -> Journal {
        let measured = Measured::Posix { targets: Vec::new(), steps: Vec::new() };
        let fresh = Record {
            format: FORMAT,
            version: String::new(),
            begun: String::new(),
            finished: false,
            machine: Machine::default(),
            settings: settings().named(),
            measured,
            findings: Vec::new(),
        };
        let places = Data::new(directory, &settings()).places().into_iter().collect();
        let journal = Journal::open(&directory.join("results"), fresh, &places).unwrap();
        journal.save().unwrap();
        journal
    }

    /// What fio would write.
    fn write(data: &Data, layout: Layout) {
        data.files(layout).iter().for_each(|(path, bytes)| std::fs::write(path, vec![0; *bytes as usize]).unwrap());
    }

    #[test]
    fn what_a_run_made_is_removed_also_by_the_run_that_goes_on_with_it_and_nothing_else_is() {
        let directory = tempfile::tempdir().unwrap();
        let data = Data::new(directory.path(), &settings());
        let mut first = journal(directory.path());
        for layout in LAYOUTS {
            assert!(!data.missing_sizes(layout).is_empty());
            let commands = data.missing(layout, &mut first).unwrap();
            // Small files are written by one command.
            assert_eq!(commands.len(), if layout == Layout::Multiple { 2 } else { 1 });
            assert!(data.check(layout).is_err());
            write(&data, layout);
            data.check(layout).unwrap();
            assert_eq!((data.missing_sizes(layout).len(), data.missing(layout, &mut first).unwrap().len()), (0, 0));
        }
        assert_eq!(data.cached(Layout::Small).directory, directory.path().join("forebay-bench/small"));
        assert_eq!(data.cached(Layout::Multiple).bytes(), 40);
        // As a kill leaves it.
        drop(first);
        std::fs::write(directory.path().join("forebay-bench/single/single"), "short").unwrap();
        let mut second = journal(directory.path());
        assert_eq!(data.missing(Layout::Single, &mut second).unwrap().len(), 1, "ours, and written anew");
        std::fs::write(directory.path().join("forebay-bench/theirs"), "x").unwrap();
        let left = remove(&mut second).unwrap();
        assert!(left.len() == 1 && left[0].contains("forebay-bench: "), "{left:?}");
        let names: Vec<_> = std::fs::read_dir(directory.path().join("forebay-bench")).unwrap().flatten().collect();
        assert_eq!(names.len(), 1);
        assert_eq!(names[0].file_name(), "theirs");
        std::fs::remove_file(names[0].path()).unwrap();
        assert_eq!(remove(&mut second).unwrap(), Vec::<String>::new());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "the results");
    }

    #[test]
    fn files_of_others_are_used_when_they_are_right_and_refused_when_not() {
        let directory = tempfile::tempdir().unwrap();
        let data = Data::new(directory.path(), &settings());
        let mut journal = journal(directory.path());
        std::fs::create_dir_all(data.directory(Layout::Multiple)).unwrap();
        let (file, _) = &data.files(Layout::Multiple)[1];
        std::fs::write(file, [0; 20]).unwrap();
        let missing = data.missing(Layout::Multiple, &mut journal).unwrap();
        assert_eq!(missing.len(), 1);
        assert!(missing[0].0.ends_with("file00"));
        std::fs::write(file, [0; 19]).unwrap();
        let told = data.missing(Layout::Multiple, &mut journal).unwrap_err().to_string();
        assert!(told.contains("with 19 bytes where 20 are needed; if an earlier run left it, remove"), "{told}");
        assert_eq!(remove(&mut journal).unwrap(), Vec::<String>::new());
        assert!(file.exists());
    }

    #[test]
    fn of_small_files_only_those_that_are_missing_are_written() {
        let directory = tempfile::tempdir().unwrap();
        let data = Data::new(directory.path(), &settings());
        let mut journal = journal(directory.path());
        let files = data.files(Layout::Small);
        std::fs::create_dir_all(files[0].0.parent().unwrap()).unwrap();
        // Not ours, and right.
        files[..2].iter().for_each(|(path, _)| std::fs::write(path, [7; 10]).unwrap());
        let missing = data.missing(Layout::Small, &mut journal).unwrap();
        let [(_, command)] = missing.as_slice() else { panic!("{missing:?}") };
        let line = command.line("");
        assert!(line.contains("/small/002") && line.contains("--size=10 "), "{line}");
        assert!(!line.contains("/small/000") && !line.contains("/small/001"), "{line}");
        assert_eq!(journal.made.files, [files[2].0.clone()]);
    }

    #[test]
    fn a_link_is_neither_written_through_nor_removed() {
        use std::os::unix::fs::symlink;
        let directory = tempfile::tempdir().unwrap();
        let (elsewhere, data) = (directory.path().join("elsewhere"), Data::new(directory.path(), &settings()));
        let mut journal = journal(directory.path());
        let (file, _) = data.files(Layout::Single).remove(0);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        symlink(&elsewhere, &file).unwrap();
        let told = data.missing(Layout::Single, &mut journal).unwrap_err().to_string();
        assert!(told.contains("is no file of its own"), "{told}");
        // As if it had come there after we wrote ours.
        std::fs::write(&elsewhere, [0; 30]).unwrap();
        journal.made.files.push(file.clone());
        let left = remove(&mut journal).unwrap();
        assert!(left.len() == 1 && left[0].ends_with("it is no file any more"), "{left:?}");
        assert!(elsewhere.exists() && file.is_symlink());

        // The directory as well: what is behind it is not ours.
        let theirs = directory.path().join("theirs");
        std::fs::create_dir(&theirs).unwrap();
        std::fs::write(theirs.join("single"), [0; 30]).unwrap();
        std::fs::remove_dir_all(file.parent().unwrap()).unwrap();
        symlink(&theirs, file.parent().unwrap()).unwrap();
        let told = data.missing(Layout::Single, &mut journal).unwrap_err().to_string();
        assert!(told.contains("is no directory of its own"), "{told}");
        assert_eq!(remove(&mut journal).unwrap().len(), 1);
        assert!(theirs.join("single").exists());
    }
}
