//! The kernel's page cache on this machine: dropped before every step, so that no step reads what another one left there.
//!
//! fio reads past it (`direct`), so this matters for what serves it: a local disk's file system, metadata, mapped files. Root
//! writes to `/proc/sys/vm/drop_caches`. A process that may not, and root in most containers, gives up the files' own pages
//! (`posix_fadvise`), which the kernel may ignore and which leaves metadata; that is told.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::Advice;

const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// How it was dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Dropped {
    /// All of it.
    All,
    /// The files' pages, as far as the kernel cared to; why not all.
    Advised(String),
}

impl Dropped {
    /// What to tell of it.
    pub(super) fn warning(&self) -> Option<String> {
        let Self::Advised(reason) = self else { return None };
        Some(format!(
            "the page cache may not be dropped ({reason}): the files' pages are given up with posix_fadvise instead, which may \
             leave some, and leaves metadata"
        ))
    }
}

/// Drops it.
pub(super) fn drop_pages(files: &[PathBuf]) -> Dropped {
    drop_at(Path::new(DROP_CACHES), files)
}

fn drop_at(control: &Path, files: &[PathBuf]) -> Dropped {
    // Pages and, 2 of 3, names and attributes. Opened without creating: elsewhere it is no such file.
    let written =
        File::options().write(true).open(control).and_then(|mut file| std::io::Write::write_all(&mut file, b"3"));
    let Err(error) = written else { return Dropped::All };
    for file in files {
        if let Ok(file) = File::open(file) {
            let _ = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
        }
    }
    Dropped::Advised(format!("{}: {error}", control.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_it_may_not_be_dropped_the_files_pages_are_given_up_and_that_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let (control, file) = (directory.path().join("drop_caches"), directory.path().join("f"));
        std::fs::write(&file, [1; 8192]).unwrap();
        let dropped = drop_at(&control, &[file.clone(), directory.path().join("none")]);
        let warning = dropped.warning().unwrap();
        assert!(warning.contains("posix_fadvise") && warning.contains("drop_caches"), "{warning}");
        assert_eq!(std::fs::read(&file).unwrap(), [1; 8192]);
        std::fs::write(&control, "").unwrap();
        assert_eq!(drop_at(&control, &[]), Dropped::All);
        assert_eq!(Dropped::All.warning(), None);
        assert_eq!(std::fs::read(&control).unwrap(), b"3");
    }
}
