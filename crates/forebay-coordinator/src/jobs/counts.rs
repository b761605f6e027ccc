//! What a job counts, and the failures that it met.
//!
//! There are two ledgers of each job. The *live* one has all that happened, and is what people see. The *settled* one has
//! only what lies before the place that a resumed job starts from, so nothing is counted twice when a coordinator dies:
//! what it had finished beyond that place is done again, and counted then.

use forebay_types::{Failure, FailureKind, FsPath};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Paths that are named for each cause of failure, and of what was evicted.
pub(super) const FIRST_PATHS: usize = 10;
/// Texts that are kept of each cause.
const FIRST_VARIANTS: usize = 10;
/// Causes that are told apart; what fails for yet another is counted together.
const MAX_CAUSES: usize = 16;
/// Characters of a path that is named; no key of Amazon's is longer.
const MAX_PATH: usize = 1024;
/// Characters of a cause's text.
const MAX_TEXT: usize = 160;

/// Files, and the bytes in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileCounts {
    /// How many.
    pub files: u64,
    /// Bytes.
    pub bytes: u64,
}

impl FileCounts {
    pub(super) fn add(&mut self, other: Self) {
        self.files = self.files.saturating_add(other.files);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }

    fn sub(&mut self, other: Self) {
        self.files = self.files.saturating_sub(other.files);
        self.bytes = self.bytes.saturating_sub(other.bytes);
    }
}

/// Everything that is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Counts {
    /// Files that the present pass has come by.
    pub(crate) seen: FileCounts,
    /// Directories that the present pass has come by.
    pub(crate) directories: u64,
    /// Loaded, or freed. Bytes count as they come, a file with its last one.
    pub(crate) done: FileCounts,
    /// Passed over because they were cached whole.
    pub(crate) skipped: FileCounts,
    /// Bytes that came from the origin.
    pub(crate) fetched: u64,
    /// Bytes that were cached already.
    pub(crate) held: u64,
    /// Checked by the present audit.
    pub(crate) audited: FileCounts,
    /// Found missing by the present audit.
    pub(crate) missing: FileCounts,
    /// Loaded again because an audit found them missing.
    pub(crate) repaired: FileCounts,
    /// Of those, by the present audit.
    pub(crate) repaired_now: FileCounts,
    /// Files that were another version than the one first seen, and were loaded anew.
    pub(crate) changed: u64,
    /// Bytes dropped from the caches.
    pub(crate) freed: u64,
    /// Files of which more replicas were loaded than readers know of.
    pub(crate) unread_replicas: u64,
}

impl Counts {
    pub(super) fn add(&mut self, other: &Self) {
        self.each(other, FileCounts::add, |mine, other| *mine = mine.saturating_add(other));
    }

    pub(super) fn sub(&mut self, other: &Self) {
        self.each(other, FileCounts::sub, |mine, other| *mine = mine.saturating_sub(other));
    }

    fn each(&mut self, other: &Self, files: fn(&mut FileCounts, FileCounts), number: fn(&mut u64, u64)) {
        files(&mut self.seen, other.seen);
        files(&mut self.done, other.done);
        files(&mut self.skipped, other.skipped);
        files(&mut self.audited, other.audited);
        files(&mut self.missing, other.missing);
        files(&mut self.repaired, other.repaired);
        files(&mut self.repaired_now, other.repaired_now);
        number(&mut self.directories, other.directories);
        number(&mut self.fetched, other.fetched);
        number(&mut self.held, other.held);
        number(&mut self.changed, other.changed);
        number(&mut self.freed, other.freed);
        number(&mut self.unread_replicas, other.unread_replicas);
    }

    /// A new pass starts: what is counted by pass starts anew.
    pub(super) fn next_pass(&mut self) {
        (self.seen, self.directories) = (FileCounts::default(), 0);
        (self.audited, self.missing) = (FileCounts::default(), FileCounts::default());
        self.repaired_now = FileCounts::default();
    }
}

/// Failures of one kind with one text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cause {
    /// What a program can act on: `NOT_FOUND`, `PERMISSION_DENIED`, `UNAVAILABLE` …
    pub kind: String,
    /// What was said, without what differs from file to file.
    pub message: String,
    /// What was said of the first of them, whole.
    #[serde(default)]
    pub example: String,
    /// The first texts that differ in more than the path: they name the workers that could not be reached.
    #[serde(default)]
    pub variants: Vec<String>,
    /// How many files, or directories, failed so.
    pub count: u64,
    /// The first of them.
    pub first_paths: Vec<String>,
}

/// Failures by cause, the first met first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Failures {
    /// How many altogether.
    pub count: u64,
    /// By cause.
    pub causes: Vec<Cause>,
}

impl Cause {
    /// What people are told: of one file what was said of it, of several what they have in common.
    #[must_use]
    pub fn told(&self) -> &str {
        // Records of earlier versions have no example.
        if self.count == 1 && !self.example.is_empty() { &self.example } else { &self.message }
    }

    /// What was said of them, for people: the first texts that differ. Of records of earlier versions, what they have
    /// in common.
    pub fn variants(&self) -> impl Iterator<Item = &str> {
        let common = self.variants.is_empty().then_some(self.told());
        self.variants.iter().map(String::as_str).chain(common)
    }

    /// Whether what was asked for is not there.
    #[must_use]
    pub fn is_nothing_there(&self) -> bool {
        self.kind == kind_name(FailureKind::NotFound)
    }
}

impl Failures {
    /// `path` failed.
    pub(crate) fn add(&mut self, path: &FsPath, failure: &Failure) {
        self.add_many(path, failure, 1);
    }

    /// So many failed alike, for which `path` stands.
    pub(crate) fn add_many(&mut self, path: &FsPath, failure: &Failure, files: u64) {
        self.count = self.count.saturating_add(files);
        let text = without_path(failure.message(), path);
        let (mut kind, mut message) = (kind_name(failure.kind()), class_of(&text));
        let known = self.causes.iter().any(|cause| cause.kind == kind && cause.message == message);
        if !known && self.causes.len() + 1 >= MAX_CAUSES {
            (kind, message) = ("OTHER", "other causes".to_owned());
        }
        let at = self.causes.iter().position(|cause| cause.kind == kind && cause.message == message);
        let at = at.unwrap_or_else(|| {
            let example = cut(failure.message().to_owned(), MAX_PATH);
            let (variants, first_paths) = (Vec::new(), Vec::new());
            self.causes.push(Cause { kind: kind.to_owned(), message, example, variants, count: 0, first_paths });
            self.causes.len() - 1
        });
        let cause = &mut self.causes[at];
        cause.count = cause.count.saturating_add(files);
        if cause.first_paths.len() < FIRST_PATHS {
            cause.first_paths.push(shown(path));
        }
        let variant = cut(text, MAX_TEXT);
        if cause.variants.len() < FIRST_VARIANTS && !cause.variants.contains(&variant) {
            cause.variants.push(variant);
        }
    }
}

/// The kind's name in JSON.
fn kind_name(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::NotFound => "NOT_FOUND",
        FailureKind::NotADirectory => "NOT_A_DIRECTORY",
        FailureKind::IsADirectory => "IS_A_DIRECTORY",
        FailureKind::PermissionDenied => "PERMISSION_DENIED",
        FailureKind::VersionChanged => "VERSION_CHANGED",
        FailureKind::Unavailable => "UNAVAILABLE",
        FailureKind::TimedOut => "TIMED_OUT",
        FailureKind::Corrupt => "CORRUPT",
        FailureKind::InvalidArgument => "INVALID_ARGUMENT",
        FailureKind::ReadOnly => "READ_ONLY",
        FailureKind::OutOfResources => "OUT_OF_RESOURCES",
        FailureKind::Unsupported => "UNSUPPORTED",
        FailureKind::NameTooLong => "NAME_TOO_LONG",
        FailureKind::NotCached => "NOT_CACHED",
        _ => "INTERNAL",
    }
}

/// A path as it is told: not longer than a record has room for.
pub(super) fn shown(path: &FsPath) -> String {
    cut(path.to_string(), MAX_PATH)
}

fn cut(mut text: String, most: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(most) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// The message without the path and its name.
fn without_path(message: &str, path: &FsPath) -> String {
    let (path, name) = (path.to_string(), String::from_utf8_lossy(path.name()).into_owned());
    let mut text = message.replace(&path, "…");
    if let Some(below) = path.get(1..).filter(|below| !below.is_empty()) {
        text = text.replace(below, "…");
    }
    if name.len() > 2 {
        text = text.replace(&name, "…");
    }
    text
}

/// The text without what tells one file's from another's besides: numbers.
fn class_of(text: &str) -> String {
    let mut class = String::new();
    for word in text.split_inclusive(' ').take(MAX_TEXT) {
        let trimmed = word.trim_end();
        // Ids and offsets: a word with two digits in it, or a number.
        let digits = trimmed.bytes().filter(u8::is_ascii_digit).count();
        if digits > 1 && !trimmed.contains('…') {
            class.push('#');
            class.push_str(&word[trimmed.len()..]);
        } else {
            class.push_str(word);
        }
    }
    cut(class, MAX_TEXT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> FsPath {
        FsPath::new(text).unwrap()
    }

    #[test]
    fn failures_of_one_cause_are_counted_together_with_their_first_paths() {
        let mut failures = Failures::default();
        for number in 0..1000 {
            let path = path(&format!("/s3/part-{number:05}"));
            let failure = Failure::new(FailureKind::PermissionDenied, format!("{path}: access denied"));
            failures.add(&path, &failure);
        }
        failures.add(&path("/s3/x"), &Failure::new(FailureKind::Unavailable, "connection 4711 reset"));
        assert_eq!(failures.count, 1001);
        let [denied, reset] = &failures.causes[..] else { panic!("{failures:?}") };
        assert_eq!((denied.count, denied.message.as_str()), (1000, "…: access denied"));
        assert_eq!(denied.example, "/s3/part-00000: access denied");
        assert_eq!(denied.variants, ["…: access denied"]);
        assert_eq!((denied.first_paths.len(), denied.first_paths[1].as_str()), (FIRST_PATHS, "/s3/part-00001"));
        assert_eq!((reset.kind.as_str(), reset.message.as_str()), ("UNAVAILABLE", "connection # reset"));
    }

    #[test]
    fn workers_that_cannot_be_reached_are_one_cause_and_the_first_are_named() {
        let mut failures = Failures::default();
        for number in 10..200 {
            let message = format!("node{number}: cannot connect to 10.0.0.{number}:29999: refused");
            let path = path(&format!("/s3/part-{number:05}"));
            let failure = Failure::new(FailureKind::Unavailable, message);
            failures.add(&path, &failure);
            failures.add(&path, &failure);
        }
        let [cause] = &failures.causes[..] else { panic!("{failures:?}") };
        assert_eq!((cause.count, cause.message.as_str()), (380, "# cannot connect to # refused"));
        assert_eq!(cause.variants.len(), FIRST_VARIANTS);
        assert_eq!(cause.variants().nth(1), Some("node11: cannot connect to 10.0.0.11:29999: refused"));
        let earlier = Cause { variants: Vec::new(), ..cause.clone() };
        assert_eq!(earlier.variants().collect::<Vec<_>>(), ["# cannot connect to # refused"]);
    }

    #[test]
    fn causes_are_bounded_whatever_the_failures_say() {
        let mut failures = Failures::default();
        for number in 0..5000u32 {
            let word: String = number.to_string().bytes().map(|digit| char::from(digit - b'0' + b'a')).collect();
            failures.add(&path("/f"), &Failure::new(FailureKind::Internal, word.repeat(100)));
        }
        assert_eq!((failures.causes.len(), failures.count), (MAX_CAUSES, 5000));
        assert_eq!(failures.causes.iter().map(|cause| cause.count).sum::<u64>(), 5000);
        assert!(failures.causes.iter().all(|cause| cause.message.chars().count() <= MAX_TEXT + 1));
        assert!(failures.causes.iter().all(|cause| cause.variants.len() <= FIRST_VARIANTS));
    }

    #[test]
    fn what_was_added_can_be_taken_back() {
        let some = Counts { fetched: 7, done: FileCounts { files: 1, bytes: 7 }, ..Counts::default() };
        let mut counts = some;
        counts.add(&some);
        counts.sub(&some);
        assert_eq!(counts, some);
    }
}
