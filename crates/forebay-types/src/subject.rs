//! What a request is about: for whoever keeps a record of requests.

use crate::FileId;

/// Longest path of a [`Subject`], in bytes: what a POSIX system takes (`PATH_MAX`). A longer one is cut there.
pub const MAX_SUBJECT_PATH: usize = 4096;
/// How many file versions a [`Subject`] names, at most. Of more, it says how many there are.
pub const MAX_SUBJECT_FILES: usize = 16;

/// What a request is about. Of a worker's requests it is what their senders say, checked by nobody; empty where that makes no sense.
/// It holds no secrets: no tokens, and no options of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// Which change it is, where one operation does several: `remove`; of a job its kind, `load`.
    pub change: Option<&'static str>,
    /// The path of the namespace that it names; of a copy, the new one.
    pub path: Option<Vec<u8>>,
    /// What is copied.
    pub from: Option<Vec<u8>>,
    /// The file versions that it names: of many, the first [`MAX_SUBJECT_FILES`].
    pub files: Vec<FileId>,
    /// How many file versions it names.
    pub file_count: usize,
    /// The URL of the origin that is mounted, or was.
    pub origin: Option<String>,
    /// The name of a job.
    pub job: Option<String>,
    /// The name of a worker.
    pub worker: Option<String>,
}

impl Subject {
    /// This path, as far as [`MAX_SUBJECT_PATH`].
    #[must_use]
    pub fn of_path(path: &[u8]) -> Self {
        Self { path: Some(path[..path.len().min(MAX_SUBJECT_PATH)].to_vec()), ..Self::default() }
    }

    /// These file versions, the first [`MAX_SUBJECT_FILES`] of them by name.
    #[must_use]
    pub fn of_files(files: impl ExactSizeIterator<Item = FileId>) -> Self {
        let file_count = files.len();
        Self { files: files.take(MAX_SUBJECT_FILES).collect(), file_count, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_without_end_is_cut() {
        let of = |length| Subject::of_path(&vec![b'a'; length]).path.map(|path| path.len());
        assert_eq!((of(3), of(2 * MAX_SUBJECT_PATH)), (Some(3), Some(MAX_SUBJECT_PATH)));
    }

    #[test]
    fn of_many_files_the_first_are_named_and_all_are_counted() {
        let named = |count: u8| Subject::of_files((0..count).map(|number| FileId([number; 16])));
        assert_eq!((named(0).files, named(0).file_count), (Vec::new(), 0));
        assert_eq!((named(2).files, named(2).file_count), (vec![FileId([0; 16]), FileId([1; 16])], 2));
        let many = named(200);
        assert_eq!((many.files.len(), many.file_count), (MAX_SUBJECT_FILES, 200));
        assert_eq!(many.files.last(), Some(&FileId([15; 16])));
    }
}
