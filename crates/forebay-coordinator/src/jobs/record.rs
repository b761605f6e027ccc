//! A job as it is kept in the state store: enough for another coordinator to go on with it.

use forebay_types::{Failure, FsPath};
use serde::{Deserialize, Serialize};

use super::counts::{Counts, FIRST_PATHS, Failures, FileCounts, shown};
use super::delivery::Delivery;
use super::spec::JobSpec;
use super::state::{JobState, Pass};
use super::walk::Cursor;

/// Files that failed and are known by a hash, so that an audit does not report them again as evicted. A job with more
/// failures is not audited: it has failed, and its report would be of no use.
pub(super) const MAX_FAILED: usize = 1000;

/// What a job did: its counts, its failures, and the files that it names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Ledger {
    pub(crate) counts: Counts,
    pub(crate) failures: Failures,
    /// The first files that the present audit found missing.
    pub(crate) missing_paths: Vec<String>,
    /// Hashes of the paths that failed.
    failed: Vec<u64>,
    /// What mounts did, of a job that is for them, too.
    pub(crate) delivery: Option<Delivery>,
}

impl Ledger {
    pub(super) fn fail(&mut self, path: &FsPath, failure: &Failure) {
        self.failures.add(path, failure);
        if self.failed.len() < MAX_FAILED {
            self.failed.push(hash(path));
        }
    }

    /// So many files below `path` failed, which are not known by name.
    pub(super) fn fail_below(&mut self, path: &FsPath, failure: &Failure, files: u64) {
        self.failures.add_many(path, failure, files);
    }

    /// Whether `path` has failed; right as long as no more than [`MAX_FAILED`] have.
    pub(super) fn has_failed(&self, path: &FsPath) -> bool {
        !self.failed.is_empty() && self.failed.contains(&hash(path))
    }

    pub(super) fn is_missing(&mut self, path: &FsPath) {
        if self.missing_paths.len() < FIRST_PATHS {
            self.missing_paths.push(shown(path));
        }
    }

    /// Counts alone: no file and no mount is named any more, and no text is there but one for each cause.
    fn forget_names(&mut self) {
        self.missing_paths.clear();
        self.failed.clear();
        for cause in &mut self.failures.causes {
            cause.first_paths.clear();
            cause.example.clear();
            cause.variants.clear();
        }
        if let Some(delivery) = &mut self.delivery {
            delivery.gone.clear();
            delivery.missing.clear();
        }
    }

    pub(super) fn next_pass(&mut self) {
        self.counts.next_pass();
        self.missing_paths.clear();
    }
}

/// FNV-1a (draft-eastlake-fnv): the same in every release, as it is kept.
fn hash(path: &FsPath) -> u64 {
    path.as_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A job. Times are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRecord {
    pub(crate) id: String,
    pub(crate) spec: JobSpec,
    pub(crate) state: JobState,
    pub(crate) pass: Pass,
    /// All before it is in `ledger`; a resumed job goes on here.
    pub(crate) cursor: Cursor,
    #[serde(alias = "book")]
    pub(crate) ledger: Ledger,
    /// All files below the path, once that is known.
    #[serde(default)]
    pub(crate) total: Option<FileCounts>,
    /// The version of the index file that is walked: its id.
    #[serde(default)]
    pub(crate) index: Option<String>,
    #[serde(default)]
    pub(crate) stop_asked: bool,
    pub(crate) created: u64,
    #[serde(default)]
    pub(crate) started: Option<u64>,
    #[serde(default)]
    pub(crate) finished: Option<u64>,
    /// When this was written.
    pub(crate) updated: u64,
    /// The coordinator that runs it, or ran it last.
    #[serde(default)]
    pub(crate) coordinator: String,
}

impl JobRecord {
    /// A job that was taken at `now`, milliseconds since 1970.
    #[must_use]
    pub fn new(id: String, spec: JobSpec, now: u64) -> Self {
        let counts_first = match &spec {
            JobSpec::Load(load) => !load.partial_listing,
            JobSpec::Free(_) => false,
        };
        Self {
            id,
            spec,
            state: JobState::Waiting,
            pass: if counts_first { Pass::Count } else { Pass::Work },
            cursor: Cursor::default(),
            ledger: Ledger::default(),
            total: None,
            index: None,
            stop_asked: false,
            created: now,
            started: None,
            finished: None,
            updated: now,
            coordinator: String::new(),
        }
    }

    /// That of a job which has ended, as small as it can be: what it did, and not to which files.
    #[must_use]
    pub(crate) fn in_brief(mut self) -> Self {
        // Nobody goes on from there.
        self.cursor = Cursor::default();
        self.ledger.forget_names();
        self
    }

    /// As it is stored.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        // serde_json fails for maps with keys that are no text and for values that refuse: there are none of either
        // here, since the path of a spec was parsed from text.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The reverse of [`JobRecord::encode`].
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::spec::LoadSpec;
    use forebay_types::FailureKind;

    #[test]
    fn a_record_comes_back_and_stays_small_whatever_fails() {
        let mut record = JobRecord::new("load-1".into(), JobSpec::Load(LoadSpec::new(FsPath::root())), 7);
        for number in 0..5000 {
            let path = FsPath::new(format!("/{}/{number}", "d".repeat(200))).unwrap();
            record.ledger.fail(&path, &Failure::new(FailureKind::Internal, "x"));
            record.ledger.is_missing(&path);
            assert!(number >= MAX_FAILED || record.ledger.has_failed(&path));
        }
        let bytes = record.encode();
        assert!(bytes.len() < 64 << 10, "{}", bytes.len());
        assert_eq!(JobRecord::decode(&bytes).unwrap(), record);
    }

    #[test]
    fn in_brief_a_record_has_its_counts_however_many_mounts_are_gone() {
        let mut record = JobRecord::new("load-1".into(), JobSpec::Load(LoadSpec::new(FsPath::root())), 7);
        record.ledger.fail(&FsPath::root(), &Failure::new(FailureKind::Internal, "x"));
        let gone = (0..20_000).map(|number| format!("{number}:{}", "m".repeat(60))).collect();
        record.ledger.delivery = Some(Delivery { mounts: 20_000, gone, ..Delivery::default() });
        assert!(record.encode().len() > 1 << 20);
        let brief = record.in_brief();
        assert!(brief.encode().len() < 4 << 10);
        assert_eq!((brief.ledger.failures.count, brief.ledger.failures.causes.len()), (1, 1));
        assert_eq!(brief.ledger.delivery.map(|delivery| delivery.mounts), Some(20_000));
    }
}
