//! What was written through a mount of ours and did not arrive: it stays staged on this machine, for another try, and
//! parts of it may be at the origin. The data of a benchmark needs no other try.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_benchmark::posix::run::{DIRECTORY, Stop};
use forebay_staging::{Staged, StagedState};
use forebay_types::FsPath;

use super::workers::Workers;
use crate::output;
use forebay_node::staged;
use forebay_node::state::RunState;

/// How long a mount may take to give up what it is at.
const SETTLES_WITHIN: Duration = Duration::from_secs(60);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// What the names of uploads begin with in the root of an origin that is a directory.
const UPLOAD: &str = ".forebay-upload-";

/// Files that a mount staged and did not upload.
pub(super) struct Unfinished {
    directory: PathBuf,
    owner: String,
}

impl Unfinished {
    /// Of the mount with this state, if it takes writes.
    pub(super) fn of(state: &RunState) -> Option<Self> {
        Some(Self { directory: state.staging.clone()?, owner: staged::owner(&state.source, &state.mountpoint) })
    }

    /// Why the first of those below a directory was not uploaded, once no process works with it any more.
    pub(super) fn reason_below(&self, below: &FsPath, stop: &Stop) -> Option<String> {
        self.settle(below, stop);
        let reason = |staged: Staged| match staged.state {
            StagedState::Failed { reason } => Some(reason),
            StagedState::Open { .. } | StagedState::Unfinished => None,
        };
        let reason = self.below(below).into_iter().find_map(reason)?;
        // What to do about it is said of all errors alike.
        Some(reason.split_once("; ").map_or(reason.as_str(), |(what, _)| what).to_owned())
    }

    /// Waits until no process works with what is below a directory.
    fn settle(&self, below: &FsPath, stop: &Stop) {
        let deadline = Instant::now() + SETTLES_WITHIN;
        let is_open = |staged: &Staged| matches!(staged.state, StagedState::Open { .. });
        while self.below(below).iter().any(is_open) && Instant::now() < deadline && !stop.is_asked() {
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Drops those below a directory, and aborts their uploads. What is left, each with the command that removes it.
    pub(super) fn drop_below(&self, below: &FsPath, workers: Option<&Workers>, stop: &Stop) -> Vec<String> {
        self.settle(below, stop);
        let mut left = Vec::new();
        for staged in self.below(below) {
            let what = format!("{} of {} in {}", output::human(staged.bytes), staged.path, staged.file.display());
            let command = format!("`forebay fs staged drop {} --yes`", staged.id);
            if let StagedState::Open { pid } = staged.state {
                left.push(format!("{what}, which process {pid} still uploads; {command} when it has given up"));
                continue;
            }
            let dropped = workers.map(|workers| {
                let remote = Arc::new(workers.client.clone());
                workers.runtime.block_on(forebay_staging::drop_staged(&self.directory, &staged.id, Some(remote)))
            });
            match dropped {
                Some(Ok(())) => {}
                Some(Err(failure)) => left.push(format!("{what} ({failure}); {command} removes it")),
                None => left.push(format!("{what}; {command} removes it")),
            }
        }
        left
    }

    fn below(&self, below: &FsPath) -> Vec<Staged> {
        let mut found = forebay_staging::staged(&self.directory).unwrap_or_default();
        found.retain(|staged| staged.owner == self.owner && staged.path.relative_to(below).is_some());
        found
    }
}

/// Parts of a benchmark's files that are left in the root of an origin that is a directory here, each with the command that removes
/// them. Those that are being aborted are waited for.
pub(super) fn uploads_of(root: &Path, stop: &Stop) -> Vec<String> {
    let deadline = Instant::now() + SETTLES_WITHIN;
    loop {
        let found = uploads(root);
        if found.is_empty() || Instant::now() > deadline || stop.is_asked() {
            let told = |path: PathBuf| {
                let path = path.display();
                format!("parts of a file that was not written in {path}; `rm -r '{path}'` removes them")
            };
            return found.into_iter().map(told).collect();
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn uploads(root: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    let is_upload = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(UPLOAD));
    // Each says what it is of.
    let is_ours = |path: &PathBuf| {
        let of = std::fs::read_to_string(path.join("path")).unwrap_or_default();
        of.split('/').any(|name| name == DIRECTORY)
    };
    entries.map(|entry| entry.path()).filter(is_upload).filter(is_ours).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uploads_of_others_are_not_named() {
        let root = tempfile::tempdir().unwrap();
        for (name, of) in [("ours", "s3/forebay-bench/single/single"), ("theirs", "data/forebay-benchmarks/a")] {
            let upload = root.path().join(format!("{UPLOAD}{name}"));
            std::fs::create_dir(&upload).unwrap();
            std::fs::write(upload.join("path"), of).unwrap();
        }
        let stop = Stop::default();
        stop.ask();
        let left = uploads_of(root.path(), &stop);
        assert!(
            left.len() == 1
                && left[0].contains(&format!("`rm -r '{}'`", root.path().join(".forebay-upload-ours").display())),
            "{left:?}"
        );
    }
}
